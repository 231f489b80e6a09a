"""
Memory as the kernel reports it: the limit for this process, and the use of a process and its descendants.

Both come from `/proc` and the cgroup file system of Linux.
On other systems the results are None and 0, and nothing is enforced.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_UNLIMITED = 1 << 60  # cgroup v1 expresses "no limit" as a number near 2**63


def cgroup_limit(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """
    Return the smallest memory limit in bytes of the cgroups that this process is in, or None without a limit.

    A limit of any ancestor counts.
    Inside a container, the container's own cgroup is the mounted root.
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
                    with suppress(OSError, ValueError):  # "max" is not a number: no limit here
                        limits.append(int((folder / name).read_text(encoding="ascii")))
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)


def rss(pid: int) -> int:
    """Return the resident bytes of one process, or 0 if it has ended."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc", str(pid), "statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def tree_rss(pid: int) -> int:
    """
    Return the resident bytes of this process and all its descendants; a page that two of them share counts twice.

    It reads a few files for each process of the tree, and none for the other processes of the machine.
    """
    total = 0
    todo = [pid]
    while todo:
        pid = todo.pop()
        total += rss(pid)
        with suppress(OSError):
            for task in Path("/proc", str(pid), "task").iterdir():
                with suppress(OSError):
                    todo += map(int, (task / "children").read_text(encoding="ascii").split())
    return total


def kill_session(leader: int) -> bool:
    """
    Send SIGKILL to every process of a session, in all of its process groups; return whether one of them lived.

    Call it before the leader is reaped, because its number may belong to another process afterwards.
    It reads one file for each process of the machine.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    lived = False
    for entry in _processes():
        with suppress(OSError, IndexError, ValueError):
            # The command's name, in parentheses, may contain any character: the fields begin after the last `)`.
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) == leader:
                os.kill(int(entry.name), signal.SIGKILL)
                # A process is a zombie as soon as its first thread has ended, but other threads may still have files open.
                lived = lived or fields[0] != b"Z" or len(list((entry / "task").iterdir())) > 1
    return lived


def _processes() -> list[Path]:
    try:
        return [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    except OSError:  # macOS has no /proc, so only the process group gets the signal
        return []
