"""
What the jobs of the drills do, and what they leave behind: the same few functions for every contestant.

The standard library is all that they need: they run in the peers' environment, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

QUEUE = "drill"
"""What the drills call the work queue; on RabbitMQ it has this name."""

HEARTBEAT = 10
"""Seconds, for every contestant."""


def perform(id: str, do: str, seconds: float = 0) -> None:
    """
    Do one job.

    | `do` | |
    |---|---|
    | `hold` | one call of C that keeps the GIL for so many seconds, as a bad regular expression or a big `json.dumps` does |
    | `sleep` | as long, in small steps |
    | `kill` | SIGKILL to its own process, as the kernel does when memory is short |
    | `mark` | nothing, but it is noted |
    | `wait` | until the gate `go` is open |
    | `noop` | nothing, and nothing is noted |
    """
    if do == "noop":
        return
    note("start", id)
    match do:
        case "hold":
            ctypes.PyDLL(None).sleep(int(seconds))
        case "sleep":
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(0.1)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "wait":
            while not is_open("go"):
                time.sleep(0.05)
    note("end", id)


def is_open(gate: str) -> bool:
    """Whether the drill has opened this gate: a file beside the notes."""
    return Path(os.environ["DRILL_NOTES"]).with_name(gate).exists()


@dataclass(frozen=True)
class Note:
    """A line that a job left: it started or it ended, in this process, at this time of CLOCK_MONOTONIC."""

    what: str
    id: str
    pid: int
    at: float


def note(what: str, id: str) -> None:
    """Append a line to `DRILL_NOTES`, in one write: it is there when the process is killed right after."""
    with Path(os.environ["DRILL_NOTES"]).open("a") as file:
        file.write(f"{what} {id} {os.getpid()} {time.monotonic():.6f}\n")


def notes(file: Path) -> list[Note]:
    """What the jobs left, oldest first."""
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [Note(what, id, int(pid), float(at)) for what, id, pid, at in lines]
