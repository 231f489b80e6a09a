"""The tasks of one job, as Spark reports them, the files of its parts, and whether the job still moves."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable
from contextlib import suppress
from pathlib import Path

from steadyworker.clock import Clock, SystemClock
from steadyworker.system.procfs import tree_cpu

_READ_EVERY = 5.0  # seconds between two reads of the processor time, and of the folder while tasks move
_LATE = 5.0  # seconds between two polls; after a longer pause, this process itself stood still
_BUSY = 0.1  # the share of one core that a host uses at least, if Spark computes


class Tasks:
    """
    The tasks of one job, and its time without progress; the job's watcher calls `poll` and `stuck`, and any thread calls `record`.

    A slow task and a hung task look the same until the slow task ends, so a job that was stuck gets a longer limit.
    Processor time is no progress, because it can belong to another job, but it puts off the limit.

    Attributes:
        done: The number of complete tasks.
        total: The number of tasks known so far; it grows while Spark plans one stage after another.

    Args:
        parts: The folder of the job's parts; in a bucket, their bytes are not counted, because each look would be a request.
        limit: Seconds without progress before which the job is never stuck.
        longest: Seconds without progress up to which the processor time of this process and its children puts off the limit;
            None if Spark's processes are not among them.
        waits: True if the time before Spark begins a task of the job does not count, because Spark can have other jobs.
    """

    def __init__(
        self,
        parts: Path,
        limit: float,
        *,
        longest: float | None = None,
        waits: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._parts, self._limit, self._longest, self._waits = parts, limit, longest, waits
        self._clock = clock or SystemClock()
        self._since = self._polled = self._read_at = self._computed_at = self._clock.monotonic()
        self._cpu, self._bytes = 0.0, 0
        self._seen: Hashable = None
        self._stages: dict[int, tuple[int, int]] = {}
        self._reported: dict[int, int] = {}
        self._running = 0
        self.done = self.total = 0

    def record(self, stages: Iterable[tuple[int, int, int]], running: int = 0) -> None:
        """Record the id, the complete tasks and the tasks of each stage that has begun, and the number of running tasks."""
        known, reported = dict(self._stages), dict(self._reported)
        for stage, done, total in stages:
            # A repeated stage ends more tasks than it has, and each end is progress.
            reported[stage] = done
            known[stage] = max(known.get(stage, (0, 0))[0], min(done, total)), total
        self._stages, self._reported, self._running = known, reported, running

    def poll(self) -> bool:
        """
        Return whether the job has made progress, a task or a byte, since the last poll.

        If there was no poll for longer than 5 s, the time between the polls counts as 5 s.
        """
        now, stages, running = self._clock.monotonic(), self._stages, self._running
        late = max(0.0, now - self._polled - _LATE)
        self._since, self._read_at, self._computed_at = (
            self._since + late,
            self._read_at + late,
            self._computed_at + late,
        )
        self.done = sum(done for done, _ in stages.values())
        self.total = sum(total for _, total in stages.values())
        if self._longest is None or now >= self._read_at + _READ_EVERY:
            self._read(now)
        seen = (tuple(self._reported.items()), self.total, running, self._bytes)
        moved, self._seen, self._polled = seen != self._seen, seen, now
        if moved or (self._waits and not running):
            self._since = now
        return moved

    def _read(self, now: float) -> None:
        self._bytes = size_of(self._parts)
        if self._longest is not None:
            cpu, before = tree_cpu(os.getpid()), self._cpu
            if abs(cpu - before) >= _BUSY * (now - self._read_at):  # the sum becomes smaller when a process ends
                self._computed_at = now
            self._cpu = cpu
        self._read_at = now

    def stuck(self) -> str:
        """Return a message if the job has been without progress for too long, otherwise an empty text."""
        now = self._clock.monotonic()
        still = now - self._since
        computes = now - self._computed_at < self._limit and still < (self._longest or 0.0)
        if still < self._limit or computes:
            return ""
        running = "" if self._longest is not None else f" and {self._running} in flight"
        return (
            f"nothing has moved for {still:.0f} s, neither a task nor a byte, with {self.done} of {self.total} tasks "
            f"complete{running}; the limit is {self._limit:.0f} s: raise spark_stuck_after if a task can take longer"
        )


def size_of(folder: Path) -> int:
    """Return the total size in bytes of the files in a folder; files that disappear meanwhile do not count."""
    size = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(inside, name).stat().st_size
    return size
