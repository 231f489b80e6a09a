"""
The program of the guard process, which `guard.py` starts.

The guard reads lines from its standard input: `+PID` adds the session of this leader, and `-PID` removes it.
At the end of its input, or at the death of its parent, the guard kills all processes of the sessions that are left.
If the parent's own session is among these sessions, the guard kills that session only when the parent is dead.
A fork of the worker process can hold the input open; therefore, on Linux, the guard also watches its parent.
The guard holds the owner's lock, so that no other worker process can prove the owner's death before the last SIGKILL.
The guard blocks all signals that can be blocked, from its start.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Mapping

from steadyworker.system.procfs import end_sessions, started_at

_CHUNK = 1 << 16
_POLL_EVERY = 0.02


def main() -> None:
    """Run the guard; the arguments are the process id of its parent and the leaders of the first sessions."""
    parent = int(sys.argv[1])
    known = {leader: started_at(leader) for leader in map(int, sys.argv[2:])}
    for line in _lines(parent):
        pid = int(line[1:])
        if line[:1] == b"+":
            known[pid] = started_at(pid)
        else:
            known.pop(pid, None)
    _end({pid: began for pid, began in known.items() if pid != parent})
    if parent in known:
        while os.getppid() == parent:  # the parent closes the stream before its exit; a kill would change its exit code
            time.sleep(_POLL_EVERY)
        _end({parent: known[parent]})
    os._exit(0)


def _end(known: Mapping[int, int | None]) -> None:
    """Kill the sessions of these leaders; skip a leader if another process now has the leader's process id."""
    # If another process has reaped a leader, the leader's process id can belong to a new process, which began later.
    end_sessions([pid for pid, began in known.items() if started_at(pid) in (None, began)])


def _lines(parent: int) -> Iterator[bytes]:
    """Yield each line of standard input, until the input ends or the parent dies."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    death = -1
    try:
        death = os.pidfd_open(parent)
        poll.register(death, select.POLLIN)
    except (AttributeError, OSError):  # not on Linux, or the parent has been reaped
        pass
    os.set_blocking(0, False)
    rest = b""
    gone = False
    while True:
        # This is checked before the read, so that the guard reads all lines of a dead parent.
        gone = gone or os.getppid() != parent
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
