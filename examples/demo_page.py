"""The page of the demo's jobs: `steadyworker dashboard`, from the first job on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import Self

from demo_screen import Screen

COMMAND = (sys.executable, "-m", "steadyworker", "dashboard")


class Page:
    """
    The page beside the demo's ledger; it only reads.

    `address` is empty if the page could not start.
    """

    def __init__(self, screen: Screen, ledger: str) -> None:
        self._screen = screen
        environ = {name: value for name, value in os.environ.items() if not name.startswith("STEADYWORKER_")}
        self._process = subprocess.Popen(
            [*COMMAND, "--port", "0", "--ledger", ledger], env=environ, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        found = re.search(r"http://\S+", self._process.stdout.readline())
        self.address = found[0] if found else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate()

    def keep(self) -> None:
        """Keep the page up until Ctrl-C, which the page gets, too."""
        self._screen.say(f"The page stays at {self.address} until Ctrl-C.", "bold")
        with suppress(KeyboardInterrupt):
            self._process.wait()
