"""The promises of attempts: `steadyworker.ledger.facts.Facts.attempts`, and the writes that record them."""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec.structs import asdict, replace

from steadyworker.ledger.base import Began, Claimed, Ending, JobId, Ledger, Row, State
from steadyworker.ledger.facts import CHECKPOINT_SHOWN, MOST_ATTEMPTS, TRACEBACK_END, Attempt
from steadyworker.ledger.retention import Retention
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance.ledger_fixtures import (
    AGAIN,
    BODY,
    DEAD_END,
    JOB,
    ME,
    OTHER,
    LedgerBench,
    in_state,
    seen,
)
from steadyworker.text.versions import version

FIRST = Began(3, "new", 7)
AGAIN_BEGUN = Began(0, "retry")
LEFT = b'{"at":17}'
WELL = Ending("done", peak_memory=40 << 20, checkpoint=LEFT)
STOPPED = Ending("interrupted", checkpoint=LEFT)
FAILED = Ending("failed", "ValueError: no", "ValueError", "no", "Traceback …\nValueError: no\n", 50 << 20, None, LEFT)


def begun(
    ledger: Ledger, id: JobId = JOB, run: Began | None = FIRST, before: Row | None = None, owner: str = ME
) -> Row:
    """Claim a job for this run, and return its row."""
    row = ledger.claim(Claimed(id, before, owner, 0, BODY, Counters(), run=run))
    assert row is not None, "a claim was refused"
    return row


def last(ledger: Ledger, id: JobId = JOB) -> Attempt:
    """Return the newest attempt of a job."""
    return ledger.facts.attempts(id)[-1]


class AttemptPromises(LedgerBench):
    """Tests of the promises of attempts."""

    def test_a_job_without_a_row_has_no_attempts(self, ledger: Ledger) -> None:
        """The attempts of a job are deleted with its row."""
        assert list(ledger.facts.attempts(JOB)) == []

    def test_a_claim_records_an_attempt(self, ledger: Ledger) -> None:
        """A new attempt has no end yet, and the same start as the row."""
        row = begun(ledger)
        (attempt,) = ledger.facts.attempts(JOB)
        assert attempt == Attempt(
            row.fence, ME, "host", os.getpid(), 3, version(), "new", 7, attempt.started_at, checkpoint_before=None
        )
        assert abs(attempt.started_at - (row.started_at or 0.0)) < 1.0

    def test_a_claim_without_a_run_records_no_attempt(self, ledger: Ledger) -> None:
        """A worker process that only makes a job dead runs nothing, so no attempt is recorded."""
        row = begun(ledger, run=None)
        assert ledger.done(row.token, WELL)
        assert list(ledger.facts.attempts(JOB)) == []

    def test_each_end_is_recorded_with_its_outcome(self, ledger: Ledger) -> None:
        """The attempt has every field that the runner gave, and the time of the end."""
        ends: dict[str, Callable[[Row], bool]] = {
            "done": lambda row: ledger.done(row.token, WELL),
            "interrupted": lambda row: ledger.interrupted(row.token, Counters(), STOPPED),
            "failed": lambda row: ledger.moving(row.token, AGAIN, FAILED),
        }
        for key, end in ends.items():
            id = replace(JOB, key=key)
            row = begun(ledger, id)
            assert end(row)
            attempt = last(ledger, id)
            expected = {"done": WELL, "failed": FAILED}.get(key, STOPPED)
            fields = asdict(expected).keys() - {"result", "checkpoint"}  # `Facts.result` returns the result
            assert {name: asdict(attempt)[name] for name in fields} == {name: asdict(expected)[name] for name in fields}
            assert attempt.ended_at is not None
            assert attempt.ended_at >= attempt.started_at
            assert (attempt.checkpoint_before, attempt.checkpoint_after) == (None, '{"at":17}')

    def test_an_end_without_an_ending_leaves_the_attempt(self, ledger: Ledger) -> None:
        """A verdict that replaces an earlier verdict changes the job, and not the attempt: the run has ended before."""
        row = begun(ledger)
        assert ledger.moving(row.token, AGAIN, FAILED)
        ended = last(ledger)
        assert ledger.moving(row.token, DEAD_END)
        assert last(ledger) == ended

    def test_a_refused_write_leaves_the_attempt(self, ledger: Ledger) -> None:
        """The run no longer holds the job, so the ledger changes nothing."""
        row = begun(ledger)
        stale = replace(row.token, owner=OTHER)
        assert not ledger.done(stale, WELL)
        assert not ledger.interrupted(stale, Counters(), Ending("interrupted"))
        assert not ledger.moving(stale, AGAIN, FAILED)
        assert ledger.claim(Claimed(JOB, None, OTHER, 0, BODY, Counters(), run=FIRST)) is None
        assert ledger.record([Claimed(JOB, None, OTHER, 0, BODY, Counters(), run=FIRST)], [(stale, WELL)]) == (
            [None],
            [False],
        )
        assert [(attempt.fence, attempt.outcome) for attempt in ledger.facts.attempts(JOB)] == [(row.fence, "")]

    def test_a_later_claim_ends_a_lost_attempt(self, ledger: Ledger) -> None:
        """The attempts are in the order of their fences; the second attempt begins with the checkpoint of the first."""
        first = begun(ledger)
        assert ledger.checkpoint(first.token, b"400")
        second = begun(ledger, run=Began(1, "taken over", 8), before=seen(ledger), owner="far/boot/other")
        lost, taken = ledger.facts.attempts(JOB)
        assert (lost.fence, lost.outcome, lost.because) == (first.fence, "lost", "new")
        assert lost.ended_at is not None
        assert (taken.fence, taken.outcome, taken.because, taken.host) == (second.fence, "", "taken over", "far")
        assert (taken.slot, taken.epoch, taken.checkpoint_before) == (1, 8, "400")

    def test_a_job_that_was_lost_too_often_has_a_lost_attempt(self, ledger: Ledger) -> None:
        """The take-over begins no run, so there is no second attempt."""
        begun(ledger)
        assert ledger.lose(seen(ledger), OTHER, DEAD_END) is not None
        assert [attempt.outcome for attempt in ledger.facts.attempts(JOB)] == ["lost"]

    def test_a_settlement_that_is_taken_over_is_no_attempt(self, ledger: Ledger) -> None:
        """A take-over of a settlement begins no run, because the job's run has already ended."""
        row = begun(ledger)
        assert ledger.moving(row.token, AGAIN, FAILED)
        ended = last(ledger)
        taken = ledger.take_over(seen(ledger), OTHER)
        assert taken is not None
        assert ledger.moved(taken.token)
        assert list(ledger.facts.attempts(JOB)) == [ended]

    def test_a_turn_records_attempts_as_single_writes_do(self, ledger: Ledger) -> None:
        """A claim without a run records no attempt; an end without an `Ending` leaves the attempt open."""
        ids = [replace(JOB, key=key) for key in ("a", "b", "c")]
        runs = [FIRST, None, AGAIN_BEGUN]
        claims = [Claimed(id, None, ME, 0, BODY, Counters(), run=run) for id, run in zip(ids, runs, strict=True)]
        rows, _ = ledger.record(claims, [])
        began = [ledger.facts.attempts(id) for id in ids]
        assert [[(each.slot, each.because, each.epoch) for each in attempts] for attempts in began] == [
            [(3, "new", 7)],
            [],
            [(0, "retry", None)],
        ]
        tokens = [row.token for row in rows if row is not None]
        ledger.record([], list(zip(tokens, [WELL, WELL, None], strict=True)))
        ended = [ledger.facts.attempts(id) for id in ids]
        assert [[(each.outcome, each.peak_memory) for each in attempts] for attempts in ended] == [
            [("done", 40 << 20)],
            [],
            [("", None)],
        ]
        assert ended[0][0].ended_at is not None

    def test_the_last_attempts_of_a_job_stay(self, ledger: Ledger) -> None:
        """Each claim above the limit deletes the oldest attempt of the job; the attempts of other jobs stay."""
        other = begun(ledger, replace(JOB, key="other"))
        row, fences = begun(ledger), []
        for _ in range(MOST_ATTEMPTS + 3):
            assert ledger.interrupted(row.token, Counters(), Ending("interrupted"))
            row = begun(ledger, run=AGAIN_BEGUN, before=seen(ledger))
            fences.append(row.fence)
        assert [attempt.fence for attempt in ledger.facts.attempts(JOB)] == fences[-MOST_ATTEMPTS:]
        assert last(ledger, other.id).fence == other.fence

    def test_attempts_go_with_their_job(self, ledger: Ledger) -> None:
        """A later job with the same key begins without attempts."""
        row = begun(ledger)
        assert ledger.moving(row.token, DEAD_END, FAILED)
        assert ledger.moved(row.token)
        ledger.forget(JOB)
        assert ledger.read(JOB) is None
        new = begun(ledger)
        assert [attempt.fence for attempt in ledger.facts.attempts(JOB)] == [new.fence]

    def test_a_checkpoint_is_shown_cut_and_without_secrets(self, ledger: Ledger) -> None:
        """A checkpoint is the handler's data, which can have a URL with a password."""
        url = b'{"to":"amqp://user:canary-secret@host/","left":"' + b"x" * 5_000
        first = begun(ledger)
        assert ledger.checkpoint(first.token, url)
        assert ledger.interrupted(first.token, Counters(), replace(STOPPED, checkpoint=url))
        second = begun(ledger, before=seen(ledger))
        assert ledger.moving(second.token, DEAD_END, replace(FAILED, checkpoint=url))
        assert ledger.moved(second.token)
        third = begun(ledger, replace(JOB, round=1))
        fourth, token = replace(JOB, round=2), third.token
        assert ledger.checkpoint(token, url)
        claim = Claimed(fourth, None, ME, 0, BODY, Counters(), run=FIRST)
        _, ended = ledger.record([claim], [(token, replace(WELL, checkpoint=url))])
        assert list(ended) == [True]
        runs = [run for round_ in range(3) for run in ledger.facts.attempts(replace(JOB, round=round_))]
        texts = [text for run in runs for text in (run.checkpoint_before, run.checkpoint_after)]
        assert [text is None for text in texts] == [True, False, False, False, False, False, False, True]
        for text in filter(None, texts):
            assert len(text) == CHECKPOINT_SHOWN
            assert text.endswith("x…")
            assert "canary-secret" not in text

    def test_a_purge_deletes_the_old_attempts_of_a_queue(self, ledger: Ledger, clock: FakeClock) -> None:
        """Each queue has its own time for attempts; the job's row and the attempt of a present run stay."""
        ledger.retain(JOB.namespace, JOB.queue, Retention(attempts=0.5))
        rows = {queue: begun(ledger, replace(JOB, queue=queue)) for queue in (JOB.queue, "other")}
        for row in rows.values():
            assert ledger.moving(row.token, AGAIN, FAILED)
            assert ledger.moved(row.token)
        runs = begun(ledger, replace(JOB, key="runs"))
        self.let_pass(clock, 1.0)
        assert ledger.purge() == 0
        counts = [len(ledger.facts.attempts(id)) for id in (JOB, rows["other"].id, runs.id)]
        assert counts == [0, 1, 1]
        assert seen(ledger).state is State.MOVED

    def test_the_last_tracebacks_of_several_jobs_are_read_at_once(self, ledger: Ledger) -> None:
        """A later run without a traceback hides none, and a long one is cut at its beginning."""
        second, none, unknown = (JobId(JOB.namespace, JOB.queue, key) for key in ("second 'é'", "none", "unknown"))
        row = begun(ledger)
        assert ledger.moving(row.token, AGAIN, replace(FAILED, traceback="the first"))
        assert ledger.moved(row.token)
        row = begun(ledger, run=AGAIN_BEGUN, before=seen(ledger))
        assert ledger.moving(row.token, AGAIN, FAILED)
        assert ledger.moved(row.token)
        row = begun(ledger, run=AGAIN_BEGUN, before=seen(ledger))
        assert ledger.done(row.token, WELL)
        long = begun(ledger, second)
        assert ledger.moving(long.token, AGAIN, replace(FAILED, traceback=f"cut{'é' * TRACEBACK_END}"))
        begun(ledger, none)
        found = ledger.facts.tracebacks([unknown, second, none, JOB])
        assert found == {JOB: FAILED.traceback, second: "é" * TRACEBACK_END}
        assert ledger.facts.tracebacks([]) == {}

    def test_a_text_that_is_no_valid_unicode_is_recorded(self, ledger: Ledger) -> None:
        """A file name of undecodable bytes, and a NUL, can be in a traceback."""
        row = begun(ledger)
        odd = "\udce9\0"
        assert ledger.moving(row.token, AGAIN, Ending("failed", odd, odd, odd, odd))
        assert last(ledger).outcome == "failed"

    def test_a_replayed_job_has_no_attempts_of_the_round_before(self, ledger: Ledger, clock: FakeClock) -> None:
        """Each round is a job of its own."""
        del clock
        in_state(ledger, State.DEAD)
        next_round = replace(JOB, round=1)
        begun(ledger, next_round, Began(0, "replayed", 1))
        assert [attempt.because for attempt in ledger.facts.attempts(next_round)] == ["replayed"]
