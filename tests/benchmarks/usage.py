"""What a process and all that descend from it use, by thread, as Linux counts it (proc(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

from tests.brokers.guard import family

NAMED = {"PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).with_name("names"), Path(__file__).parents[2])))}
"""In the environment of a process of the tests, it gives the threads their names."""


class Usage(NamedTuple):
    """Microseconds of CPU, and how often the thread waited, and was interrupted."""

    cpu: float
    waits: float
    forced: float


NOTHING = Usage(0, 0, 0)


class Measured(NamedTuple):
    """What one worker process did: jobs a second, and what its threads and the broker used for a job."""

    rate: float
    used: Mapping[str, Usage]
    broker: Usage

    @property
    def total(self) -> Usage:
        """What all threads used."""
        return added(self.used.values())


def usage(pid: int) -> Mapping[tuple[str, int], Usage]:
    """Return what each thread has used by now, by its name and id; threads that differ by a number have the same name."""
    found = {}
    for process in family(pid):
        with suppress(OSError, psutil.NoSuchProcess):  # the process has ended
            module = next((word for word in process.cmdline() if word.startswith("steadyworker.")), "worker")
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                with suppress(OSError):  # the thread has ended
                    name = "main" if task.name == str(process.pid) else task.joinpath("comm").read_text().strip()
                    key = f"{module.rpartition('.')[2]}: {re.sub(r'[-_0-9]+$', '', name)}"
                    counts = dict(_counts(task / "status"))
                    cpu = int(task.joinpath("schedstat").read_text().split()[0]) / 1000
                    switches = counts["voluntary_ctxt_switches"], counts["nonvoluntary_ctxt_switches"]
                    found[key, int(task.name)] = Usage(cpu, *switches)
    return found


def added(used: Iterable[Usage]) -> Usage:
    """Return the sum."""
    return Usage(*map(sum, zip(NOTHING, *used, strict=True)))


def per_job(
    before: Mapping[tuple[str, int], Usage], after: Mapping[tuple[str, int], Usage], jobs: int
) -> Mapping[str, Usage]:
    """Return what the threads of each name have used in between, divided by the number of jobs."""
    used: dict[str, Usage] = {}
    for (name, number), last in after.items():
        first, sums = before.get((name, number), NOTHING), used.get(name, NOTHING)
        used[name] = Usage(*(total + (end - begin) / jobs for total, begin, end in zip(sums, first, last, strict=True)))
    return used


def pss(pid: int) -> int:
    """Return the bytes of memory of a process and all that descend from it; each has its part of a page that several share."""
    rollups = [Path(f"/proc/{process.pid}/smaps_rollup") for process in family(pid)]
    return sum(dict(_counts(rollup))["Pss"] for rollup in rollups) * 1024


def _counts(file: Path) -> Iterator[tuple[str, int]]:
    for line in file.read_text().splitlines():
        name, _, value = line.partition(":")
        if (number := value.removesuffix("kB").strip()).isdecimal():
            yield name, int(number)
