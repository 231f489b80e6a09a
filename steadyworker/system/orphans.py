"""The dead processes that this process has not started, but inherited: as PID 1 of a container, or as a subreaper."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

from steadyworker.system.procfs import dead_children

LOOKS = 30
"""Looks in a row that find the same dead process, after which nothing is going to wait for it."""

_PR_GET_CHILD_SUBREAPER = 37


class Orphans:
    """
    Reaps dead orphans, so that they do not use up the processes that a container may have.

    An orphan that does not lead its session is in another one than this process, unlike any process that was started here.
    One that leads its session looks like a process that was started here with a session of its own.
    It is reaped when `LOOKS` looks in a row have found it dead, because code that starts a process waits for it sooner.

    `adopts` says whether this process inherits orphans; by default the kernel is asked.
    """

    def __init__(self, *, adopts: bool | None = None) -> None:
        self._adopts = _adopts() if adopts is None else adopts
        self._seen: dict[tuple[int, int], int] = {}

    def reap(self) -> None:
        """Look once, and reap; call it once a second."""
        if not self._adopts:
            return
        own, before, self._seen = os.getsid(0), self._seen, {}
        for found in dead_children():
            if found.session == found.pid:
                key = found.pid, found.started_at
                self._seen[key] = before.get(key, 0) + 1
                orphan = self._seen[key] >= LOOKS
            else:
                orphan = found.session != own
            if orphan:
                with suppress(ChildProcessError):
                    os.waitpid(found.pid, os.WNOHANG)


def _adopts() -> bool:
    """Return whether the kernel gives this process the orphans among its descendants."""
    if os.getpid() == 1:
        return True
    subreaper = ctypes.c_int(0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(subreaper), 0, 0, 0)
    return bool(subreaper.value)
