"""
Spark's tasks behind everything else that its JVM does: planning, scheduling, compiling, collecting garbage.

All of that is short and somebody waits for it, and on few cores it would share them with tasks that run for minutes:
ten rows beside twenty million took 1.2 to 1.4 s so, and take 0.8 to 1.0 (two cores, Spark 4.3.0).
Linux keeps a priority for each thread, and numbers threads as it does processes (setpriority(2), "C library/kernel differences").
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

BEHIND = 10
"""How much nicer a task's thread is than its process."""

_TASK = "Executor task "  # "launch worker for task …" or "idle worker"; of a name Linux keeps 15 characters


class TaskThreads:
    """
    The threads of one JVM that run tasks.

    Args:
        pid: The JVM's.
    """

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc", str(pid), "task")
        self._known: frozenset[str] = frozenset()
        self._seen: frozenset[str] = frozenset()

    def step_back(self) -> None:
        """Put those that are new behind; nothing where the system shows no threads, as macOS."""
        with suppress(OSError):
            there = frozenset(thread.name for thread in self._folder.iterdir())
            for thread in there - self._known:
                self._consider(thread)
            # Looked at twice: a thread has its name a moment after it is there.
            self._known, self._seen = there & self._seen, there

    def _consider(self, thread: str) -> None:
        with suppress(OSError):  # it has ended
            if (self._folder / thread / "comm").read_text().startswith(_TASK):
                os.setpriority(os.PRIO_PROCESS, int(thread), os.getpriority(os.PRIO_PROCESS, 0) + BEHIND)
