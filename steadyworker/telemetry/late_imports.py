"""The import of a library only when a handler needs it, in such a way that no file of a user hides the library."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec


@contextmanager
def libraries_first() -> Iterator[None]:
    """
    Within the `with` block, imports find the standard library and the installed packages before a user's files.

    A child imports some libraries only when a handler needs them, and then the user's folder is first in `sys.path`.
    A user's `ssl.py` would hide the module that asyncio needs.
    """
    standard, installed = Path(os.__file__).parent, Path(msgspec.__file__).parents[1]
    first = [str(standard), str(standard / "lib-dynload"), str(installed)]
    sys.path[:0] = first
    try:
        yield
    finally:
        for folder in first:  # the first occurrence is the one of this block, or of the same block in another thread
            with suppress(ValueError):
                sys.path.remove(folder)
