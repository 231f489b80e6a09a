"""
`ledger.md`'s list of kill points, walked with SIGKILL of the worker process and of the child: real processes, real files.

After each death a second worker process goes on, on the same host.
What is counted: how often `handle` started, how often the export was computed, how often the job ended; never "at least".
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from steadyworker.exports import verify
from steadyworker.ledger.base import State
from steadyworker.ledger.facts import Attempt
from tests.support.stage import Stage, WorkerProcess

TARGETS = {"plain": "tests.killpoints.jobs:Plain", "exports": "tests.killpoints.jobs:Exports"}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def killed(stage: Stage, queue: str, *, point: str = "", child: str = "") -> WorkerProcess:
    """A worker process that dies at a point of its own, or whose child strikes at one."""
    return stage.worker(TARGETS[queue], script={"point": point}, env={"KILL_IN_CHILD": child}, stop_within=10)


def ends(stage: Stage, queue: str, state: State) -> None:
    """A second worker process goes on; the job ends, the queue is empty, and the process stops in good order."""
    second = stage.worker(TARGETS[queue])
    stage.reaches(queue, state)
    stage.empties(queue)
    second.terminate()
    second.ended(0)


def died(process: WorkerProcess) -> None:
    """The first process met its kill point."""
    process.ended(-signal.SIGKILL)


def attempts(stage: Stage) -> Sequence[Attempt]:
    """The attempts of the job, as its ledger has them."""
    row = stage.row("plain")
    assert row is not None
    return stage.ledger.facts.attempts(row.id)


def outcomes(stage: Stage) -> list[str]:
    """How each attempt of the job ended."""
    return [attempt.outcome for attempt in attempts(stage)]


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
def test_the_worker_process_dies_on_the_way_of_a_job_that_succeeds(stage: Stage, point: str, starts: int) -> None:
    stage.send("plain", {})
    first = killed(stage, "plain", point=point)
    died(first)
    if point.startswith(("adapter.settle:after", "ledger.settled")):
        assert stage.row("plain").state is State.DONE  # type: ignore[union-attr]
    else:
        ends(stage, "plain", State.DONE)
    assert len(stage.lines("starts")) == starts, stage.logs()
    assert Counter(stage.lines("effects")) == {f"job {position}": 1 for position in range(10)}
    lost = 1 if point == "ledger.claim:after:1" else starts - 1
    assert outcomes(stage) == ["lost"] * lost + ["done"]


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
def test_the_worker_process_dies_on_the_way_of_a_retry(stage: Stage, point: str, starts: int) -> None:
    stage.send("plain", {"fail": 1})
    died(killed(stage, "plain", point=point))
    ends(stage, "plain", State.DONE)
    attempts = Counter(line.split()[1] for line in stage.lines("starts"))
    assert attempts == {"1": starts, "2": 1}, stage.logs()
    assert stage.row("plain").counters.attempts == 1  # type: ignore[union-attr]
    assert outcomes(stage) == ["lost"] * (starts - 1) + ["failed", "done"]


@pytest.mark.parametrize(("point", "starts"), RETRY_POINTS)
def test_the_worker_process_dies_on_the_way_of_a_dead_letter(stage: Stage, point: str, starts: int) -> None:
    stage.send("plain", {"fail": 99})
    # The third attempt is the last one: it reaches this point for the third time.
    died(killed(stage, "plain", point=point.removesuffix("1") + "3"))
    if point != "adapter.settle:after:1":
        ends(stage, "plain", State.DEAD)
    attempts = Counter(line.split()[1] for line in stage.lines("starts"))
    assert attempts == {"1": 1, "2": 1, "3": starts}, stage.logs()
    row = stage.row("plain")
    assert row is not None
    assert (row.state, row.reason, row.counters.attempts) == (State.DEAD, "exhausted", 3)
    assert outcomes(stage) == ["failed", "failed", *["lost"] * (starts - 1), "failed"]


@pytest.mark.parametrize("whom", ["worker", "child"])
def test_a_job_that_is_killed_in_the_middle_goes_on_from_its_checkpoint(stage: Stage, whom: str) -> None:
    stage.send("plain", {})
    first = killed(stage, "plain", child=f"mid-job:5/{whom}")
    if whom == "worker":
        died(first)
        ends(stage, "plain", State.DONE)
        assert stage.row("plain").counters.losses == 1  # type: ignore[union-attr]
    else:
        assert stage.reaches("plain", State.DONE).counters.crashes == 1
    assert [line.split()[2] for line in stage.lines("starts")] == ["0", "5"], stage.logs()
    assert outcomes(stage) == ["lost" if whom == "worker" else "crashed", "done"]
    assert [attempt.checkpoint_before for attempt in attempts(stage)] == [None, "5"]
    assert Counter(stage.lines("effects")) == {f"job {position}": 1 for position in range(10)}


def test_a_restarted_worker_resumes_within_two_seconds(stage: Stage) -> None:
    """Its dead predecessor's lock is free: no lease has to run out.  Asserted at five times the value."""
    stage.send("plain", {})
    died(killed(stage, "plain", child="mid-job:5/worker"))
    second = stage.worker(TARGETS["plain"]).started()
    began = time.monotonic()
    stage.notes("starts", 2, within=10.0)
    print(f"resumed after {time.monotonic() - began:.2f} s")
    second.terminate()


EXPORT_POINTS = [
    # where, exports computed
    ("before-link:data", 1),
    ("after-link:data", 1),
    ("before-link:manifest", 1),
    ("after-link:manifest", 1),  # the stage is still there
    ("returning", 1),
]


@pytest.mark.parametrize("whom", ["worker", "child"])
@pytest.mark.parametrize(("where", "computations"), EXPORT_POINTS)
def test_an_export_is_rolled_forward_not_computed_again(stage: Stage, where: str, computations: int, whom: str) -> None:
    stage.send("exports", {})
    first = killed(stage, "exports", child=f"{where}/{whom}")
    if whom == "worker":
        died(first)
        ends(stage, "exports", State.DONE)
    else:
        stage.reaches("exports", State.DONE)
    assert len(stage.lines("starts")) == 2, stage.logs()
    assert len(stage.lines("computed")) == computations, stage.logs()
    files = sorted(path.name for path in (stage.folder / "out").iterdir())
    assert files == ["job.csv", "job.csv.manifest.json"], "and no stage"
    assert [path.read_text() for path in (stage.folder / "state" / "stages").iterdir()] == [str(stage.folder / "out")]
    assert verify(stage.folder / "out" / "job.csv").rows == 500


@pytest.mark.parametrize("point", ["ledger.may_commit:before:1", "ledger.may_commit:after:1", "ledger.done:before:1"])
def test_the_worker_process_dies_while_an_export_asks_for_leave(stage: Stage, point: str) -> None:
    stage.send("exports", {})
    died(killed(stage, "exports", point=point))
    ends(stage, "exports", State.DONE)
    assert len(stage.lines("starts")) == 2, stage.logs()
    assert len(stage.lines("computed")) == 1, stage.logs()
    assert verify(stage.folder / "out" / "job.csv").rows == 500
