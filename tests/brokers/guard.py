"""
Ends what its parent started, however the parent ends.

A program of its own, which reads lines from standard input: `watch PID`, `forget PID`, `remove FOLDER`.
When its parent is gone, by Ctrl-C, SIGKILL or a crash, it kills every process that it still watches, with all
descendants, and then removes the folders.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress

import psutil  # type: ignore[import-untyped]


def family(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it; empty when it is gone."""
    try:
        main = psutil.Process(pid)
        return [main, *main.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end(processes: list[psutil.Process]) -> None:
    """SIGKILL to each, frozen ones too; returns when none runs any more."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    while any(runs(process) for process in processes):
        time.sleep(0.01)


def runs(process: psutil.Process) -> bool:
    """Whether it is more than an entry that its parent has yet to read."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def main() -> None:
    watched: list[int] = []
    folders: list[str] = []
    for line in sys.stdin:
        word, value = line.rstrip("\n").split(" ", 1)
        match word:
            case "watch":
                watched.append(int(value))
            case "forget":
                watched.remove(int(value))
            case "remove":
                folders.append(value)
    for pid in watched:
        end(family(pid))
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
