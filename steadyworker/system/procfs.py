"""
Memory and processes: the memory limit of this process, memory and processor time of a process tree, and the end of sessions.

The functions read `/proc` and the cgroup file system of Linux.
On other systems their results are None and 0, and SteadyWorker enforces no memory limit.
On other systems, a kill of a session reaches only the process group of the session's leader.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

_UNLIMITED = 1 << 60  # cgroup v1 expresses "no limit" as a number near 2**63
_KILLS, _PAUSE = 500, 0.01
_STATUS = 4096  # longer than the status of a process


def cgroup_limit(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """
    Return the smallest memory limit of this process's cgroups and their ancestors, in bytes; None without a limit.

    Inside a container, the root of the mounted cgroup file system is the container's own cgroup.
    """
    limits = []
    with suppress(OSError):
        for line in proc.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                base, name = root, "memory.max"
            elif "memory" in controllers.split(","):
                base, name = root / "memory", "memory.limit_in_bytes"
            else:
                continue
            own = base / path.lstrip("/")
            for folder in (own, *own.parents):
                if folder.is_relative_to(base):
                    with suppress(OSError, ValueError):  # "max" is not a number: this cgroup has no limit
                        limits.append(int((folder / name).read_text(encoding="ascii")))
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)


def rss(pid: int) -> int:
    """Return the resident bytes of one process, or 0 if it has ended."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc", str(pid), "statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def reset_peak_memory() -> None:
    """Let this process's peak of resident memory begin at its present value; do nothing where the kernel cannot do this."""
    with suppress(OSError):
        _through("/proc/self/clear_refs", os.O_WRONLY, lambda file: os.write(file, b"5"))


def peak_memory(pid: int) -> int | None:
    """Return the peak of a process's resident memory in bytes, since its last reset, or since its start; None if it is not known."""
    with suppress(OSError, IndexError, ValueError):
        status: bytes = _through(f"/proc/{pid}/status", os.O_RDONLY, lambda file: os.read(file, _STATUS))
        return int(status.partition(b"VmHWM:")[2].split(maxsplit=1)[0]) << 10
    return None


def _through(path: str, flags: int, act: Callable[[int], Any]) -> Any:
    """Open a file, act on its descriptor, and close it; this runs for each job, and `Path` would take twice as long."""
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        return act(file)
    finally:
        os.close(file)


def max_rss(usage: resource.struct_rusage) -> int:
    """Return the largest resident memory of a process in bytes; the kernels of Linux and macOS count in different units."""
    return usage.ru_maxrss << (0 if sys.platform == "darwin" else 10)


def tree_rss(pid: int) -> int:
    """
    Return the resident bytes of this process and all its descendants; a page that two processes share counts twice.

    This function reads a few files for each process of the tree, and no file for any other process of the machine.
    """
    return sum(map(rss, _tree(pid)))


def cpu(pid: int) -> float:
    """Return the seconds of processor time of one process; 0 if it has ended."""
    with suppress(OSError, IndexError, ValueError):
        fields = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def tree_cpu(pid: int) -> float:
    """Return the seconds of processor time of this process and all its descendants that are alive."""
    return sum(map(cpu, _tree(pid)))


def kill_sessions(leaders: Collection[int]) -> bool:
    """
    Send SIGKILL once to every process of these sessions, in all process groups; return whether any process was alive.

    Call this function before the leaders are reaped, because the kernel can give a reaped leader's process id to a new process.
    This function reads one file for each process of the machine.
    """
    for leader in leaders:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    lived = False
    for process in _processes():
        if process.session in leaders:
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
                lived = lived or process.lives()
    return lived


def end_sessions(leaders: Collection[int]) -> None:
    """Send SIGKILL to every process of these sessions until none is alive; stop after about 5 s, because a process can hang."""
    for _ in range(_KILLS):
        if not kill_sessions(leaders):
            return
        time.sleep(_PAUSE)


def end_own_session() -> NoReturn:
    """Send SIGKILL to every process of this process's session, and to this process last; this process must lead the session."""
    own = os.getpid()
    others = [process.pid for process in _processes() if process.session == own != process.pid]
    for pid in others:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    os.killpg(own, signal.SIGKILL)
    os._exit(1)


def dead_children() -> list[Process]:
    """Return the children of this process that have ended, and for which no code has waited."""
    found = [_process(Path("/proc", str(pid))) for pid in _children(os.getpid())]
    return [child for child in found if child is not None and child.state == b"Z"]


def started_at(pid: int) -> int | None:
    """Return the start time of this process in clock ticks since the boot; None if the process has ended, or without `/proc`."""
    found = _process(Path("/proc", str(pid)))
    return None if found is None else found.started_at


def _tree(pid: int) -> Iterator[int]:
    """Yield this process and all its descendants."""
    todo = [pid]
    while todo:
        yield (pid := todo.pop())
        todo += _children(pid)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path("/proc", str(pid), "task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


class Process(NamedTuple):
    """A process as its `stat` file shows it (proc_pid_stat(5))."""

    pid: int
    state: bytes
    parent: int
    session: int
    started_at: int

    def lives(self) -> bool:
        """Return whether the process is alive; a zombie with threads counts as alive, because the threads can have files open."""
        return self.state != b"Z" or len(list(Path("/proc", str(self.pid), "task").iterdir())) > 1


def _processes() -> Iterator[Process]:
    try:
        entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    except OSError:  # macOS has no /proc, so only the process group gets the signal
        return
    for entry in entries:
        if (found := _process(entry)) is not None:
            yield found


def _process(entry: Path) -> Process | None:
    with suppress(OSError, IndexError, ValueError):
        # The command's name, in parentheses, can contain any character: the fields begin after the last `)`.
        fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        return Process(int(entry.name), fields[0], int(fields[1]), int(fields[3]), int(fields[19]))
    return None
