"""
All that runs inside the guard process, which `guard.py` starts.

It reads lines from its standard input: `+PID` for each session to end with the worker process, `-PID` for one that has ended.
At the end of the stream, or at the death of its parent, it kills every process of the sessions that are left, and ends.
The parent's own session, if it is one of them, is killed only when the parent is dead.
A fork of the worker process may hold the stream open: that is why the guard looks at its parent too, where Linux allows it.
The guard holds the owner's lock, so that no other worker process has proof of the owner's death before the last SIGKILL.
Every signal that can be blocked is blocked from its start.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Mapping

from steadyworker.system.procfs import end_sessions, started_at

_CHUNK = 1 << 16
_LOOK_EVERY = 0.02


def main() -> None:
    """Run the guard; `sys.argv[1]` is the process id of its parent."""
    known: dict[int, int | None] = {}
    parent = int(sys.argv[1])
    for line in _lines(parent):
        pid = int(line[1:])
        if line[:1] == b"+":
            known[pid] = started_at(pid)
        else:
            known.pop(pid, None)
    _end({pid: began for pid, began in known.items() if pid != parent})
    if parent in known:
        while os.getppid() == parent:  # it has closed the stream, as the end of Python does, and keeps its exit code
            time.sleep(_LOOK_EVERY)
        _end({parent: known[parent]})
    os._exit(0)


def _end(known: Mapping[int, int | None]) -> None:
    """Kill the sessions of these leaders, which were started at these times."""
    # A leader that another process has reaped may have left its number to a new process, which is younger.
    end_sessions([pid for pid, began in known.items() if started_at(pid) in (None, began)])


def _lines(parent: int) -> Iterator[bytes]:
    """Yield each line of standard input, until its end or the parent's."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    death = -1
    try:
        death = os.pidfd_open(parent)
        poll.register(death, select.POLLIN)
    except (AttributeError, OSError):  # another system than Linux; or the parent has been reaped
        pass
    os.set_blocking(0, False)
    rest = b""
    gone = False
    while True:
        gone = gone or os.getppid() != parent  # before the read: what the parent wrote is read to the end
        try:
            data = os.read(0, _CHUNK)
        except BlockingIOError:
            if gone:
                return
            gone = any(descriptor == death for descriptor, _ in poll.poll())
            continue
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
