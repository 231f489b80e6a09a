"""What the tests of lost messages share: clocks by which a message counts as lost after seconds, and a minute of chaos."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL

from steadyworker.ledger.base import JobFilter, State
from tests.brokers.place import Place
from tests.fleet.kit import Fleet
from tests.support.stage import Processes, WorkerProcess, eventually

BRIEF = "tests.fleet.jobs:Brief"
QUICK = {"forgets_consumers_within": 10.0, "redelivers_within": 0.0, "answers_within": 2.0}
"""What a broker is said to need, for tests in which it needs no longer."""

SOON_LOST = {"scale": 8, "times": {"call_timeout": 5.0}, "capabilities": QUICK}
LOST_AFTER = 15.0
"""With these clocks, a lease lasts 7.5 s, and a message counts as lost 11 s after it had to come, by a look every 4 s."""

RESERVING = {"scale": 8, "times": {"call_timeout": 5.0, "orphan_reserve": 2 * LOST_AFTER}, "capabilities": QUICK}
"""The same, and a lost message gets the next slot of a busy queue after half a minute."""

CHAOS = {"scale": 4, "times": {"call_timeout": 5.0}, "capabilities": {"forgets_consumers_within": 20.0}}
"""A lease of 15 s; a message counts as lost after 22 s, or when the broker should have it delivered again; a look every 8 s."""

JOBS, WORKERS, SLOTS = 200, 4, 5
LASTS, CUT_EVERY, KILL_EVERY = 60.0, 3.0, 8.0


def place_in_file(place: Place, folder: Path) -> Fleet:
    """Return a fleet at this place whose ledger is a file, so that all its worker processes are on one host."""
    made = Fleet(folder, place, f"sqlite:{folder / 'ledger.db'}")
    if place.namespace:
        made.ledger.bind(place.namespace, made.queue, place.namespace)
    return made


@dataclass
class Chaos:
    """
    A minute in which all connections are cut and worker processes are killed, in turn, while many jobs run.

    Attributes:
        start: Starts another worker process.
        cut: Cuts the connections of all of them.
        count, seconds: How many jobs there are, and between which times each takes, four seconds on the average by default.
        killed: When each process was killed, by its id.
    """

    processes: Processes
    queue: str
    seed: int
    start: Callable[[], WorkerProcess]
    cut: Callable[[], None]
    count: int = JOBS
    seconds: tuple[float, float] = (1, 7)
    killed: dict[int, float] = field(default_factory=dict)

    def jobs(self) -> dict[str, dict[str, float]]:
        """Return the payload of each job, by its key."""
        chance = random.Random(self.seed)
        return {f"job-{number:03}": {"seconds": chance.uniform(*self.seconds)} for number in range(self.count)}

    def rages(self) -> None:
        """Start the worker processes, and let it all happen."""
        chance = random.Random(-self.seed - 1)
        workers = [self.start() for _ in range(WORKERS)]
        eventually(lambda: self.processes.lines("starts"), "a start", 120, self.processes.logs)
        began = time.monotonic()
        cuts, kills = began + CUT_EVERY, began + KILL_EVERY
        while (now := time.monotonic()) < began + LASTS:
            if now >= cuts:
                self.cut()
                cuts += CUT_EVERY
            if now >= kills:
                victim = workers.pop(chance.randrange(len(workers)))
                self.killed[victim.pid] = time.monotonic()
                victim.signal_all(SIGKILL)
                victim.wait()
                workers.append(self.start())
                kills += KILL_EVERY
            time.sleep(max(0.0, min(cuts, kills) - time.monotonic()))

    def ends(self, within: float = 240.0) -> dict[str, int]:
        """Wait until each job is done, and count: each ran again only after the process that ran it before was killed."""
        eventually(lambda: len({*self.processes.lines("ends")}) == self.count, "all ends", within, self._unfinished)
        eventually(lambda: self._states() == {State.DONE: self.count}, "all done", within, self._unfinished)
        runs: dict[str, list[tuple[float, int]]] = {}
        for line in self.processes.lines("starts"):
            key, process, at = line.split()
            runs.setdefault(key, []).append((float(at), int(process)))
        for key, each in runs.items():
            for (_, earlier), (began, _) in pairwise(each):
                assert self.killed.get(earlier, began) < began, f"{key} ran in two processes: {each}"
        lost = [line for process in self.processes.processes for line in process.lines("message_lost")]
        late = Counter(line["key"] for process in self.processes.processes for line in process.lines("duplicate_acked"))
        return {
            "jobs": len(runs),
            "kills": len(self.killed),
            "message_lost": len({line["key"] for line in lost}),
            "came late": len({line["key"] for line in lost} & {*late}),
            "extra starts": sum(map(len, runs.values())) - self.count,
            "ends": len(self.processes.lines("ends")),
        }

    def _states(self) -> Counter[State]:
        return Counter(row.state for row, _ in self.processes.ledger.jobs(JobFilter(queue=self.queue)))

    def _unfinished(self) -> str:
        rows = [
            row for row, _ in self.processes.ledger.jobs(JobFilter(queue=self.queue)) if row.state is not State.DONE
        ]
        return f"{self._states()}\n{rows}\n{self.processes.logs()}"
