"""
`ledger.md`'s list of kill points, walked with SIGKILL of the worker process and of the child: real processes, real files.

After each death a second worker process goes on, on the same host.
What is counted: how often `handle` started, how often the export was computed, how often the job ended; never "at least".
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from steadyworker import Client
from steadyworker.clock import SystemClock, Times
from steadyworker.exports import verify
from steadyworker.ledger.base import Row, State
from steadyworker.ledger.sqlite import SqliteLedger

HERE = Path(__file__).parent
WITHIN = 20.0

Eventually = Callable[..., Any]


class Stage:
    """One broker, one ledger, and the worker processes that come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = SqliteLedger(folder / "ledger.db", clock=SystemClock(), times=Times())
        self.urls = {"broker": f"sqlite:{folder / 'broker.db'}", "ledger": f"sqlite:{folder / 'ledger.db'}"}
        self.processes: list[subprocess.Popen[bytes]] = []

    def send(self, queue: str, payload: dict[str, Any], key: str = "job") -> None:
        with Client(**self.urls) as client:
            client.send(queue, payload, key=key)

    def worker(self, target: str, *, point: str = "", child: str = "") -> subprocess.Popen[bytes]:
        """Start a worker process."""
        environment = os.environ | {
            "STEADYWORKER_BROKER": self.urls["broker"],
            "STEADYWORKER_LEDGER": self.urls["ledger"],
            "STEADYWORKER_STATE_DIR": str(self.folder / "state"),
            "STEADYWORKER_STOP_WITHIN": "10",
            "KILL_POINT": point,
            "KILL_IN_CHILD": child,
            "KILL_FOLDER": str(self.folder),
            "PYTHONPATH": str(HERE),
        }
        log = (self.folder / f"worker-{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, str(HERE / "main.py"), target], cwd=self.folder, env=environment, stdout=log, stderr=log
        )
        log.close()
        self.processes.append(process)
        return process

    def row(self, queue: str, key: str = "job") -> Row | None:
        """The job's row, whatever its namespace is called."""
        found = [row for row, _ in self.ledger.jobs(queue=queue) if row.id.key == key]
        return found[0] if found else None

    def depth(self, queue: str) -> int:
        """How many messages the queue still has, held and delayed ones included."""
        with closing(sqlite3.connect(self.folder / "broker.db")) as broker:
            return int(broker.execute("SELECT count(*) FROM messages WHERE queue = ?", (queue,)).fetchone()[0])

    def lines(self, file: str) -> list[str]:
        path = self.folder / file
        return path.read_text().splitlines() if path.exists() else []

    def logs(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.folder.glob("worker-*.log")))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.ledger.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def ends(stage: Stage, queue: str, state: State, eventually: Eventually) -> None:
    """A second worker process goes on; the job ends, the queue is empty, and the process stops in good order."""
    target = {"plain": "jobs:Plain", "exports": "jobs:Exports"}[queue]
    second = stage.worker(target)

    def ended() -> bool:
        row = stage.row(queue)
        return row is not None and row.state is state and stage.depth(queue) == 0

    eventually(ended, within=WITHIN)
    second.send_signal(signal.SIGTERM)
    assert second.wait(WITHIN) == 0, stage.logs()


def died(process: subprocess.Popen[bytes]) -> None:
    """The first process met its kill point."""
    assert process.wait(WITHIN) == -signal.SIGKILL


PARENT_POINTS = [
    # point, starts of the one attempt
    ("ledger.claim:before:1", 1),
    ("ledger.claim:after:1", 1),  # the claim is there, but no handler was started under it
    ("ledger.done:before:1", 2),  # the handler had returned: the ledger did not know
    ("ledger.done:after:1", 1),
    ("adapter.settle:before:1", 1),
    ("adapter.settle:after:1", 1),
    ("ledger.settled:after:1", 1),
]


@pytest.mark.parametrize(("point", "starts"), PARENT_POINTS)
def test_the_worker_process_dies_on_the_way_of_a_job_that_succeeds(
    stage: Stage, eventually: Eventually, point: str, starts: int
) -> None:
    stage.send("plain", {})
    first = stage.worker("jobs:Plain", point=point)
    died(first)
    if point.startswith(("adapter.settle:after", "ledger.settled")):
        assert stage.row("plain").state is State.DONE  # type: ignore[union-attr]
    else:
        ends(stage, "plain", State.DONE, eventually)
    assert len(stage.lines("starts")) == starts, stage.logs()
    assert Counter(stage.lines("effects")) == {f"job {position}": 1 for position in range(10)}


RETRY_POINTS = [
    # point, starts of the first attempt
    ("ledger.moving:before:1", 2),
    ("ledger.moving:after:1", 1),
    ("adapter.publish:before:1", 1),
    ("adapter.publish:after:1", 1),
    ("ledger.moved:before:1", 1),
    ("ledger.moved:after:1", 1),
    ("adapter.settle:before:1", 1),
    ("adapter.settle:after:1", 1),
]


@pytest.mark.parametrize(("point", "starts"), RETRY_POINTS)
def test_the_worker_process_dies_on_the_way_of_a_retry(
    stage: Stage, eventually: Eventually, point: str, starts: int
) -> None:
    stage.send("plain", {"fail": 1})
    died(stage.worker("jobs:Plain", point=point))
    ends(stage, "plain", State.DONE, eventually)
    attempts = Counter(line.split()[1] for line in stage.lines("starts"))
    assert attempts == {"1": starts, "2": 1}, stage.logs()
    assert stage.row("plain").counters.attempts == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(("point", "starts"), RETRY_POINTS)
def test_the_worker_process_dies_on_the_way_of_a_dead_letter(
    stage: Stage, eventually: Eventually, point: str, starts: int
) -> None:
    stage.send("plain", {"fail": 99})
    # The third attempt is the last one: its hand-over is the third.
    died(stage.worker("jobs:Plain", point=point.removesuffix("1") + "3"))
    if point != "adapter.settle:after:1":
        ends(stage, "plain", State.DEAD, eventually)
    attempts = Counter(line.split()[1] for line in stage.lines("starts"))
    assert attempts == {"1": 1, "2": 1, "3": starts}, stage.logs()
    row = stage.row("plain")
    assert row is not None
    assert (row.state, row.reason, row.counters.attempts) == (State.DEAD, "exhausted", 3)


@pytest.mark.parametrize("whom", ["worker", "child"])
def test_a_job_that_is_killed_in_the_middle_goes_on_from_its_checkpoint(
    stage: Stage, eventually: Eventually, whom: str
) -> None:
    stage.send("plain", {})
    first = stage.worker("jobs:Plain", child=f"mid-job:5/{whom}")
    if whom == "worker":
        died(first)
        ends(stage, "plain", State.DONE, eventually)
        assert stage.row("plain").counters.losses == 1  # type: ignore[union-attr]
    else:
        eventually(lambda: (row := stage.row("plain")) is not None and row.state is State.DONE, within=WITHIN)
        assert stage.row("plain").counters.crashes == 1  # type: ignore[union-attr]
    assert [line.split()[2] for line in stage.lines("starts")] == ["0", "5"], stage.logs()
    assert Counter(stage.lines("effects")) == {f"job {position}": 1 for position in range(10)}


def test_a_restarted_worker_resumes_within_two_seconds(stage: Stage, eventually: Eventually) -> None:
    """Its dead predecessor's lock is free: no lease has to run out.  Asserted at five times the value."""
    stage.send("plain", {})
    died(stage.worker("jobs:Plain", child="mid-job:5/worker"))
    second = stage.worker("jobs:Plain")
    eventually(lambda: "worker_started" in (stage.folder / "worker-1.log").read_text(), within=WITHIN)
    began = time.monotonic()
    eventually(lambda: len(stage.lines("starts")) == 2, within=10.0)
    print(f"resumed after {time.monotonic() - began:.2f} s")
    second.terminate()


EXPORT_POINTS = [
    # where, exports computed
    ("before-link:data", 1),
    ("after-link:data", 1),
    ("before-link:manifest", 1),
    ("after-link:manifest", 1),
    ("returning", 1),
]


@pytest.mark.parametrize("whom", ["worker", "child"])
@pytest.mark.parametrize(("where", "computations"), EXPORT_POINTS)
def test_an_export_is_rolled_forward_not_computed_again(
    stage: Stage, eventually: Eventually, where: str, computations: int, whom: str
) -> None:
    stage.send("exports", {})
    first = stage.worker("jobs:Exports", child=f"{where}/{whom}")
    if whom == "worker":
        died(first)
        ends(stage, "exports", State.DONE, eventually)
    else:
        eventually(lambda: (row := stage.row("exports")) is not None and row.state is State.DONE, within=WITHIN)
    assert len(stage.lines("starts")) == 2, stage.logs()
    assert len(stage.lines("computed")) == computations, stage.logs()
    files = sorted(path.name for path in (stage.folder / "out").iterdir() if path.is_file())
    assert files == ["job.csv", "job.csv.manifest.json"]
    assert verify(stage.folder / "out" / "job.csv").rows == 500


@pytest.mark.parametrize("point", ["ledger.may_commit:before:1", "ledger.may_commit:after:1", "ledger.done:before:1"])
def test_the_worker_process_dies_while_an_export_asks_for_leave(
    stage: Stage, eventually: Eventually, point: str
) -> None:
    stage.send("exports", {})
    died(stage.worker("jobs:Exports", point=point))
    ends(stage, "exports", State.DONE, eventually)
    assert len(stage.lines("starts")) == 2, stage.logs()
    assert len(stage.lines("computed")) == 1, stage.logs()
    assert verify(stage.folder / "out" / "job.csv").rows == 500
