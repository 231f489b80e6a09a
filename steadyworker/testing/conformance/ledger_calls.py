"""The promises of the calls of `on_dead`: a verdict records that a call is owed, and one process at a time makes it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from steadyworker.ledger.base import JobId, Ledger, Moving, OwedCall, Verdict
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance.ledger_fixtures import AGAIN, DEAD_END, JOB, OTHER, LedgerBench, claimed, seen

OWING = replace(DEAD_END, owes_call=True)
LEASE = 90.0


def given_up(ledger: Ledger, id: JobId = JOB, verdict: Verdict = OWING) -> None:
    """Make this job dead with this verdict."""
    token = claimed(ledger, id).token
    assert ledger.moving(token, verdict)
    assert ledger.moved(token)


def call_of(ledger: Ledger, lease: float = LEASE) -> OwedCall | None:
    """Reserve the next call of the queue."""
    return ledger.next_call(JOB.namespace, JOB.queue, lease)


class CallPromises(LedgerBench):
    """Tests of the promises of owed calls."""

    def test_only_a_verdict_with_its_flag_owes_a_call(self, ledger: Ledger) -> None:
        """For another dead job, or another queue, no call is owed."""
        given_up(ledger, replace(JOB, key="silent"), DEAD_END)
        given_up(ledger, replace(JOB, queue="other"))
        given_up(ledger, replace(JOB, namespace="other"))
        assert call_of(ledger) is None

    def test_a_call_is_due_once_the_job_is_dead(self, ledger: Ledger) -> None:
        """Before the job is dead, its dead letter may be lost with the process, so no call is due."""
        token = claimed(ledger).token
        assert ledger.moving(token, OWING)
        assert call_of(ledger) is None
        assert ledger.moved(token)
        assert call_of(ledger) == OwedCall(JOB, 1)

    def test_a_refused_verdict_owes_no_call(self, ledger: Ledger) -> None:
        """The run no longer holds the job, so the ledger changes nothing."""
        token = claimed(ledger).token
        assert not ledger.moving(replace(token, owner=OTHER), OWING)
        assert ledger.moving(token, DEAD_END)
        assert ledger.moved(token)
        assert call_of(ledger) is None

    def test_a_verdict_that_replaces_a_retry_owes_a_call(self, ledger: Ledger) -> None:
        """The broker refused the retry, so a second verdict makes a dead letter; a third verdict adds no second call."""
        token = claimed(ledger).token
        assert ledger.moving(token, AGAIN)
        for _ in range(2):
            assert ledger.moving(token, OWING)
        assert ledger.moved(token)
        assert call_of(ledger) == OwedCall(JOB, 1)
        assert call_of(ledger) is None

    def test_a_job_that_was_lost_too_often_owes_a_call(self, ledger: Ledger, clock: FakeClock) -> None:
        """The take-over of the job records the verdict, and with it the owed call."""
        claimed(ledger)
        self.lease_ends(clock)
        lost = ledger.lose(seen(ledger), OTHER, Verdict(Moving.DEAD, "lost", Counters(losses=5), owes_call=True))
        assert lost is not None
        assert ledger.moved(lost.token)
        assert call_of(ledger) == OwedCall(JOB, 1)

    def test_a_reserved_call_has_one_caller_until_its_lease_is_over(self, ledger: Ledger, clock: FakeClock) -> None:
        """After the lease, the caller counts as dead, and its call is due again; a call that has ended is not."""
        ids = [replace(JOB, key=key) for key in ("a", "b")]
        for id in ids:
            given_up(ledger, id)
        calls = [call_of(ledger), call_of(ledger), call_of(ledger)]
        assert calls == [OwedCall(ids[0], 1), OwedCall(ids[1], 1), None]
        ledger.end_call(OwedCall(ids[1], 1))
        self.let_pass(clock, LEASE + 1.0)
        assert [call_of(ledger), call_of(ledger)] == [OwedCall(ids[0], 2), None]

    def test_a_call_that_ended_is_no_longer_owed(self, ledger: Ledger, clock: FakeClock) -> None:
        """A call that was made is not due again."""
        given_up(ledger)
        call = call_of(ledger)
        assert call is not None
        ledger.end_call(call)
        self.let_pass(clock, LEASE + 1.0)
        assert call_of(ledger) is None

    def test_a_call_that_failed_is_due_again_after_its_wait(self, ledger: Ledger, clock: FakeClock) -> None:
        """When the call is due again, its number of tries is higher."""
        given_up(ledger)
        call = call_of(ledger)
        assert call is not None
        ledger.end_call(call, again_in=10.0)
        self.let_pass(clock, 9.0)
        assert call_of(ledger) is None
        self.let_pass(clock, 2.0)
        assert call_of(ledger) == OwedCall(JOB, 2)

    @pytest.mark.parametrize("again_in", [None, 0.0])
    def test_the_end_of_an_earlier_try_changes_nothing(
        self, ledger: Ledger, clock: FakeClock, again_in: float | None
    ) -> None:
        """A frozen process can wake up while another process makes the call."""
        given_up(ledger)
        first = call_of(ledger)
        self.let_pass(clock, LEASE + 1.0)
        assert first is not None
        assert call_of(ledger) == OwedCall(JOB, 2)
        ledger.end_call(first, again_in)
        assert call_of(ledger) is None
        self.let_pass(clock, LEASE + 1.0)
        assert call_of(ledger) == OwedCall(JOB, 3)

    def test_a_call_goes_with_its_row(self, ledger: Ledger) -> None:
        """A job that was replayed or dropped is no longer given up, so its call is no longer owed."""
        given_up(ledger)
        ledger.forget(JOB)
        assert call_of(ledger) is None
