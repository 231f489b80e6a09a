"""A broker that does not report how many consumers a queue has, to worker processes whose ledger serves one host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.ledger.base import State
from steadyworker.outcome import Counters
from tests.support.stage import Stage

STEPS = "tests.support.jobs:Steps"


class CountedStage(Stage):
    """A stage whose broker reports the count that the test sets."""

    main = Path(__file__).with_name("counted.py")

    def count(self, number: str) -> None:
        new = self.folder / "count.new"
        new.write_text(number)
        new.rename(self.folder / "count")  # a reader never sees half of it

    def is_audited_again(self, times: int) -> None:
        """Wait for so many further audits."""
        self.notes("audits", len(self.lines("audits")) + times)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[CountedStage]:
    made = CountedStage(tmp_path)
    yield made
    made.close()


def test_78_at_the_start_unless_the_operator_answers_for_the_consumers(stage: CountedStage) -> None:
    stage.count("none")
    stage.send("steps", {"steps": 1})
    refused = stage.worker(STEPS)
    refused.ended(78)
    line = refused.reports("startup_refused")
    assert "how many consumers queue 'steps' has: the user has no right to ask." in line["what"]
    assert line["remedy"].startswith("grant it; or ")
    assert "--ledger-reach host" in line["remedy"]
    stage.worker(STEPS, ledger_reach="host", max_jobs=1).ended(0)
    assert stage.reaches("steps", State.DONE)


def test_a_right_that_is_taken_away_ends_no_job_and_then_the_worker_process(stage: CountedStage) -> None:
    """The job in hand runs to its end, however often the broker refuses; the next one is not begun; then 78."""
    stage.count("1")
    stage.send("steps", {"steps": 3, "gate": "gate"}, key="in-hand")
    process = stage.worker(STEPS).started()
    stage.notes("waiting", 1)
    stage.count("none")
    assert process.reports("consumers_uncounted")["why"] == "the user has no right to ask"
    why = process.reports("not_ready", part="steps: consumers")["why"]
    stage.send("steps", {"steps": 1}, key="next")
    stage.is_audited_again(20)  # two seconds: the main thread checks for a reason to stop once a second
    assert process.lines("stage_changed") == []
    stage.open()
    process.ended(78)
    assert stage.reaches("steps", State.DONE, "in-hand").counters == Counters()
    assert process.reports("worker_stopped")["reasons"] == [f"steps: {why}"]
    assert stage.lines("starts") == ["in-hand 1 0"]
    assert stage.ready("steps") == 1


def test_a_right_that_is_given_back_lets_the_worker_process_go_on(stage: CountedStage) -> None:
    stage.count("1")
    stage.send("steps", {"steps": 3, "gate": "gate"}, key="in-hand")
    process = stage.worker(STEPS).started()
    stage.notes("waiting", 1)
    stage.count("none")
    process.reports("not_ready", part="steps: consumers")
    stage.count("1")
    process.reports("ready_again", part="steps: consumers")
    stage.send("steps", {"steps": 1}, key="next")
    stage.open()
    for key in ("in-hand", "next"):
        assert stage.reaches("steps", State.DONE, key).counters == Counters()
    process.terminate()
    process.ended(0)
