"""The opening of standard streams of this process that its parent has closed (`2>&-`)."""

from __future__ import annotations

import os
import sys


def open_standard_streams() -> None:
    """
    Open the null device in place of each standard stream that is closed.

    Otherwise the next file or socket would get the stream's number, and libraries and children would write into this file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)  # noqa: FBT003 - its name in the standard library
            if getattr(sys, name) is None:
                mode = "r" if number == 0 else "w"
                setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays open
