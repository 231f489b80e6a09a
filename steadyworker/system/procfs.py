"""
Memory, read from where the kernel tells it: what we may use, and what a process and its descendants do use.

Linux tells both in `/proc` and in the cgroup file system; elsewhere the answers are None and 0: nothing is enforced.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a number near 2**63


def cgroup_limit(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """
    The smallest memory limit in bytes of the cgroups that this process is in, or None when there is none.

    A limit of any ancestor counts; inside a container the own cgroup is the mounted root.
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
                    with suppress(OSError, ValueError):  # "max" is no number: no limit there
                        limits.append(int((folder / name).read_text(encoding="ascii")))
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)


def rss(pid: int) -> int:
    """Resident bytes of one process; 0 when it has ended."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc", str(pid), "statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def tree_rss(pid: int) -> int:
    """
    Resident bytes of this process and all its descendants; a page that two of them share counts twice.

    Costs a few file reads for each process of the tree, whatever else runs on the machine.
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


def session_members(session: int) -> list[int]:
    """The processes of this session, zombies left out; reads one file for each process of the machine."""
    found = []
    with suppress(OSError):
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError, IndexError, ValueError):
                    # The command's name, in parentheses, may hold anything: the fields begin after the last one.
                    fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                    if int(fields[3]) == session and fields[0] != b"Z":
                        found.append(int(folder.name))
    return found
