"""
Facts about the machine and its service manager for the checks; this code reads each fact once, and guesses no fact.

A fact that this process cannot read (no cgroup v2, no systemd, a sandbox that hides facts) is None or False.
The checks report nothing about a fact that is None or False.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from steadyworker.system.orphans import adopts_orphans
from steadyworker.system.procfs import cgroup_limit
from steadyworker.units import parse_seconds

_SYSTEMCTL_WITHIN = 2.0


@dataclass(frozen=True, slots=True)
class Unit:
    """
    The systemd unit that has this process as its main process.

    `stop_within` is its TimeoutStopSec in seconds, or None for no limit.
    """

    name: str
    oom_policy: str = ""
    stop_within: float | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """
    The host of this process.

    Attributes:
        platform: The value of `sys.platform`.
        memory_limit: Bytes that the cgroup allows, or None.
        kills_group: True if the kernel kills the whole cgroup when the cgroup runs out of memory.
        unit: The systemd unit, or None.
        notified: True if the service manager receives messages of this process, so that a stop can ask for more time.
        adopts_orphans: True if this process becomes the parent of its descendants' orphans, as PID 1 does.
        command_line: The process's arguments, which every user of this machine can read in the process list.
    """

    platform: str = "linux"
    memory_limit: int | None = None
    kills_group: bool = False
    unit: Unit | None = None
    notified: bool = False
    adopts_orphans: bool = False
    command_line: tuple[str, ...] = ()


def read_host(environ: Mapping[str, str], command_line: Sequence[str]) -> Host:
    """Return the facts; under systemd, call systemctl, and wait at most 2 s for its output."""
    return Host(
        platform=sys.platform,
        memory_limit=cgroup_limit(),
        kills_group=kills_group(),
        unit=_unit() if "INVOCATION_ID" in environ else None,
        notified=bool(environ.get("NOTIFY_SOCKET")),
        adopts_orphans=adopts_orphans(),
        command_line=tuple(command_line),
    )


def kills_group(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> bool:
    """Return whether `memory.oom.group` is set for this process's cgroup (version 2) or for one of its ancestors."""
    own = root / _cgroup(proc).lstrip("/")
    for folder in (own, *own.parents):
        if folder.is_relative_to(root):
            with suppress(OSError):
                if (folder / "memory.oom.group").read_text(encoding="ascii").strip() == "1":
                    return True
    return False


def unit_from(name: str, shown: str, pid: int) -> Unit | None:
    """Return the unit from the output of `systemctl show`, or None if this process is not the unit's main process."""
    properties = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    if properties.get("MainPID") != str(pid):
        return None
    stop_within = None
    with suppress(ValueError):  # "infinity", or nothing
        stop_within = parse_seconds(properties.get("TimeoutStopUSec", ""))
    return Unit(name, properties.get("OOMPolicy", ""), stop_within)


def _unit() -> Unit | None:
    path = _cgroup(Path("/proc/self/cgroup"))
    name = path.rpartition("/")[2]
    systemctl = shutil.which("systemctl")
    if systemctl is None or not name.endswith(".service"):
        return None
    command = [systemctl, "show", "--property=MainPID,OOMPolicy,TimeoutStopUSec", "--", name]
    if "/user@" in path:
        command.insert(1, "--user")
    with suppress(OSError, subprocess.SubprocessError):
        shown = subprocess.run(command, capture_output=True, text=True, timeout=_SYSTEMCTL_WITHIN, check=True).stdout
        return unit_from(name, shown, os.getpid())
    return None


def _cgroup(proc: Path) -> str:
    """Return the path of this process's cgroup in the unified hierarchy, or `/` without one."""
    with suppress(OSError):
        for line in proc.read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                return line.removeprefix("0::")
    return "/"
