"""The attempts of a job in the ledger: the story of its runs, as the runner records it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from steadyworker.errors import Reject, Retry, Snooze
from steadyworker.ledger.base import JobId
from steadyworker.ledger.facts import Attempt
from steadyworker.retry import RetryPolicy
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from steadyworker.text.versions import version
from tests.runner.ghosts import SEARCH_EVERY, SOON, lose
from tests.runner.kit import QUEUE, Gate, Obedient, nothing, raises, saves, worker
from tests.runner.test_keys import letters
from tests.testing.workers import Exports as ChildExports


def attempts(h: Harness, key: str = "k", round: int = 0) -> Sequence[Attempt]:
    return h.ledger.facts.attempts(JobId(NAMESPACE, QUEUE, key, round))


def story(h: Harness, key: str = "k", round: int = 0) -> list[tuple[str, str]]:
    """Why each run of a job began, and how it ended."""
    return [(each.because, each.outcome) for each in attempts(h, key, round)]


def test_a_job_that_ends_well_has_one_attempt(harness: MakeHarness) -> None:
    exports = worker(saves(400))
    h = harness(exports)
    h.send(exports, {}, key="k")
    row = h.wait("k", until="done")
    assert row is not None
    (attempt,) = attempts(h)
    assert (attempt.fence, attempt.pid, attempt.slot, attempt.version) == (row.fence, os.getpid(), 0, version())
    assert (attempt.because, attempt.outcome, attempt.reason, attempt.traceback) == ("new", "done", "", "")
    assert (attempt.checkpoint_before, attempt.checkpoint_after) == (None, "400")
    assert attempt.epoch is not None
    assert attempt.ended_at is not None
    assert attempt.owner.startswith(attempt.host)


def test_each_outcome_and_each_reason_is_in_order(harness: MakeHarness) -> None:
    exports = worker(
        raises(ValueError("no such merchant")), raises(Retry("not yet")), raises(Snooze(30)), nothing,
        retry=RetryPolicy(max_attempts=9, wait=1),
    )  # fmt: skip
    h = harness(exports)
    h.send(exports, {}, key="k")
    h.wait("k", until="done")
    assert story(h) == [("new", "failed"), ("retry", "retry"), ("retry", "snoozed"), ("snoozed", "done")]
    failed, again, snoozed, _ = attempts(h)
    assert (failed.error_class, failed.error_text) == ("ValueError", "no such merchant")
    assert failed.reason == "ValueError: no such merchant"
    assert failed.traceback.splitlines()[-1] == "ValueError: no such merchant"
    assert "in deed\n" in failed.traceback
    assert again.traceback.splitlines()[-1] == "steadyworker.errors.Retry: not yet"
    assert (snoozed.reason, snoozed.traceback) == ("snoozed for 30 s", "")


def test_a_dead_letter_has_the_attempt_that_led_to_it(harness: MakeHarness) -> None:
    exports = worker(raises(Reject("no such table")))
    h = harness(exports)
    h.send(exports, {}, key="k")
    h.wait("k", until="dead")
    (attempt,) = attempts(h)
    assert (attempt.outcome, attempt.reason) == ("rejected", "no such table")
    assert attempt.traceback.splitlines()[-1] == "steadyworker.errors.Reject: no such table"


def test_a_cancelled_run_is_cancelled_and_has_its_reason(harness: MakeHarness) -> None:
    gate = Gate(saves(1))
    exports = worker(gate)
    h = harness(exports)
    h.send(exports, {}, key="k")
    h.wait("k", until=gate.reached.is_set)
    h.ledger.cancel(JobId(NAMESPACE, QUEUE, "k"), "wrong month")
    h.advance(2.0)
    gate.open()
    h.wait("k", until="dead")
    (attempt,) = attempts(h)
    assert (attempt.outcome, attempt.reason) == ("cancelled", "cancelled: wrong month")


def test_a_job_that_was_cancelled_before_its_claim_has_an_attempt_that_ran_nothing(harness: MakeHarness) -> None:
    exports = worker(nothing)
    h = harness(exports)
    h.ledger.cancel(JobId(NAMESPACE, QUEUE, "k"), "in advance")
    h.send(exports, {}, key="k")
    h.wait("k", until="dead")
    assert h.starts("k") == 0
    assert story(h) == [("new", "cancelled")]


def test_a_stopped_worker_process_interrupts_its_run(harness: MakeHarness) -> None:
    obedient = Obedient()
    exports = worker(saves(3, obedient), nothing)
    h = harness(exports)
    h.send(exports, {}, key="k")
    h.wait("k", until=obedient.begun.is_set)
    h.stop()
    assert story(h) == [("new", "interrupted")]
    h.start()
    h.wait("k", until="done")
    assert story(h) == [("new", "interrupted"), ("interrupted", "done")]
    assert [(each.owner, each.host) for each in attempts(h)] == [("harness/1", "harness"), ("harness/2", "harness")]
    assert [each.checkpoint_before for each in attempts(h)] == [None, "3"]


def test_a_run_whose_worker_process_froze_is_lost_and_its_job_is_taken_over(harness: MakeHarness) -> None:
    gate = Gate(nothing)
    exports = worker(gate, nothing)
    h = harness(exports)
    h.send(exports, {}, key="k")
    h.wait("k", until=gate.reached.is_set)
    h.expire_lease("k")
    gate.open()
    h.wait("k", until="done")
    assert story(h) == [("new", "lost"), ("taken over", "done")]


def test_a_job_whose_message_is_lost_runs_from_the_ledger(harness: MakeHarness) -> None:
    obedient = Obedient()
    exports = worker(obedient, nothing)
    h = harness(exports)
    h.send(exports, {}, key="job")
    h.wait("job", until=obedient.begun.is_set)
    h.stop()
    lose(h, "job")
    h.start()
    h.advance(SOON)
    h.advance(2 * SEARCH_EVERY)
    h.wait("job", until="done")
    assert story(h, "job") == [
        ("new", "interrupted"),
        ("interrupted; the broker lost its message", "done"),
    ]
    assert attempts(h, "job")[1].epoch is None


def test_a_replay_is_an_attempt_of_the_next_round(harness: MakeHarness) -> None:
    exports = worker(saves(17, raises(Reject("no"))), nothing)
    h = harness(exports)
    h.send(exports, {}, key="k")
    h.wait("k")
    letters(h).replay(["k"])
    h.wait("k", until="done")
    assert story(h, round=1) == [("replayed", "done")]
    assert attempts(h, round=1)[0].checkpoint_before == "17"


def test_a_run_keeps_its_end_if_the_broker_refuses_its_retry(harness: MakeHarness) -> None:
    """The job becomes dead; its only run failed as before."""
    gate = Gate(raises(ValueError("odd")))
    exports = worker(gate)
    h = harness(exports)
    key = h.send(exports, {"x": "x" * 200})
    h.wait(key, until=gate.reached.is_set)
    h.broker.limit_bodies(50)
    gate.open()
    row = h.wait(key, until="dead")
    assert row is not None
    assert "the broker refuses its copies" in row.reason
    assert [(each.outcome, each.reason) for each in attempts(h, key)] == [("failed", "ValueError: odd")]


def test_a_killed_child_is_a_crash_and_the_next_attempt_begins_at_the_checkpoint(harness: MakeHarness) -> None:
    h = harness(ChildExports, processes=True)
    key = h.send(ChildExports, {})
    h.wait(key, until="checkpoint", timeout=30)
    h.kill_child(key)
    h.wait(key, timeout=30)
    crashed, done = h.ledger.facts.attempts(JobId(NAMESPACE, ChildExports.queue, key))
    assert (crashed.because, crashed.outcome, crashed.reason) == ("new", "crashed", "SIGKILL")
    assert crashed.checkpoint_before is None
    assert crashed.checkpoint_after is not None
    assert (done.because, done.outcome, done.checkpoint_before) == ("retry", "done", crashed.checkpoint_after)
    assert crashed.peak_memory is not None
    assert done.peak_memory is not None
