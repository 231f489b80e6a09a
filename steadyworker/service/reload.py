"""
`run --reload`: the worker process starts again when a Python file below the working directory changes.

The process first stops accepting messages, and waits until its runs have ended.
Then it stops as usual, and executes its own command line again, so the process id stays the same.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from steadyworker.system.leaving import flush_logs

_EVERY = 0.3
_SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages"})


class Reload:
    """A thread that finds changed files; `changed` is the first changed file, or None."""

    def __init__(self, folder: Path) -> None:
        self.changed: str | None = None
        self._folder = folder
        self._before = _times(folder)
        threading.Thread(target=self._watch, name="reload", daemon=True).start()

    def wait(self) -> None:
        """Return when a file has changed."""
        while self.changed is None:
            time.sleep(_EVERY)

    def execute_again(self) -> NoReturn:
        """Replace this process by a new one with the same command line."""
        flush_logs()
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - no shell is wanted

    def _watch(self) -> None:
        while self.changed is None:
            time.sleep(_EVERY)
            now = _times(self._folder)
            if now != self._before:
                different = {file for file, _ in now.items() ^ self._before.items()}
                self.changed = min(different)


def _times(folder: Path) -> Mapping[str, int]:
    """Return the modification times of the Python files below this folder, without environments and hidden folders."""
    return dict(_files(folder, folder))


def _files(folder: Path, top: Path) -> Iterator[tuple[str, int]]:
    with suppress(OSError):  # the file was removed meanwhile, or is not readable
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                hidden = entry.name.startswith(".") or entry.name in _SKIPPED
                if not hidden and not Path(entry.path, "pyvenv.cfg").exists():
                    yield from _files(Path(entry.path), top)
            elif entry.name.endswith(".py"):
                with suppress(OSError):
                    yield str(Path(entry.path).relative_to(top)), entry.stat().st_mtime_ns
