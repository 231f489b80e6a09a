"""The reaping of dead processes that this process inherited (as PID 1 of a container, or as a subreaper), but did not start."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

from steadyworker.system.procfs import dead_children

CHECKS = 30
"""
The number of checks in a row that must find the same process dead.

After this time, the code that started the process has had time to wait for the process.
"""

_PR_GET_CHILD_SUBREAPER = 37


class OrphanReaper:
    """
    A reaper of dead orphans, which otherwise use up the number of processes that a container may have.

    If a dead child is in another session, but does not lead that session, the child is an orphan.
    The reason is that this process starts no such child itself.
    A dead child that leads its session can be an orphan, or a child that this process started with a new session.
    So the reaper waits until `CHECKS` checks in a row have found this child dead.
    By then, the code that started the child has had time to wait for the child.
    In this process's own session, handlers in threads start children, and can wait for them hours later.
    If there are such handlers, the reaper leaves this session alone, and `steadyworker check` reports this.

    `adopts` is true if this process inherits orphans; by default, the kernel's setting decides.
    """

    def __init__(self, *, adopts: bool | None = None) -> None:
        self._adopts = adopts_orphans() if adopts is None else adopts
        self._seen: dict[tuple[int, int], int] = {}

    def reap(self, *, own_session: bool = False) -> None:
        """
        Check once, and reap dead orphans; call this method once a second.

        With `own_session`, also reap orphans in this process's own session.
        """
        if not self._adopts:
            return
        own, before, self._seen = os.getsid(0), self._seen, {}
        for found in dead_children():
            if found.session == found.pid or (own_session and found.session == own):
                key = found.pid, found.started_at
                self._seen[key] = before.get(key, 0) + 1
                orphan = self._seen[key] >= CHECKS
            else:
                orphan = found.session != own
            if orphan:
                with suppress(ChildProcessError):
                    os.waitpid(found.pid, os.WNOHANG)


def adopts_orphans() -> bool:
    """Return whether this process becomes the parent of its descendants' orphans."""
    if os.getpid() == 1:
        return True
    subreaper = ctypes.c_int(0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(subreaper), 0, 0, 0)
    return bool(subreaper.value)
