"""Promises about the owner of a job: claims, fences, leases, take-overs."""
# ruff: noqa: PLR2004 - the expected number belongs in the assertion

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from msgspec.structs import replace

from steadyworker.ledger.base import Claimed, Ledger, Moving, Row, State, Verdict
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance.ledger_fixtures import (
    AGAIN,
    BODY,
    DEAD_END,
    JOB,
    ME,
    OTHER,
    OTHER_BODY,
    LedgerBench,
    claimed,
    in_state,
    seen,
    timeless,
)

ROUND_1 = replace(JOB, round=1)


class ClaimPromises(LedgerBench):
    """Tests of claims, fences, leases and take-overs."""

    def test_a_job_that_was_never_seen_has_no_row(self, ledger: Ledger) -> None:
        """`read` returns None for a job without a row."""
        assert ledger.read(JOB) is None

    def test_a_first_claim_makes_the_row(self, ledger: Ledger) -> None:
        """A claim of a job without a row writes every value of the claim."""
        counters = Counters(attempts=2, crashes=1, losses=3, interruptions=4, first_failed_at=12.5)
        row = ledger.claim(Claimed(JOB, None, ME, 3, BODY, counters))
        assert row is not None
        assert row == seen(ledger)
        assert (row.id, row.state, row.owner, row.hop, row.body_sha256) == (JOB, State.RUNNING, ME, 3, BODY)
        assert row.counters == counters
        assert row.uid
        assert row.fence > 0
        assert not row.lease_over
        assert (row.checkpoint, row.export_state, row.cancel_reason, row.target, row.settled) == (
            None,
            None,
            None,
            None,
            "unknown",
        )
        assert row.started_at is not None

    def test_jobs_differ_by_namespace_queue_key_and_round(self, ledger: Ledger) -> None:
        """Namespace, queue, key and round are the primary key."""
        ids = [
            JOB,
            replace(JOB, namespace="other"),
            replace(JOB, queue="other"),
            replace(JOB, key="other"),
            replace(JOB, round=1),
        ]
        assert len({claimed(ledger, id).uid for id in ids}) == len(ids)

    def test_a_first_claim_is_refused_when_there_is_a_row_by_now(self, ledger: Ledger) -> None:
        """The ledger grants a claim with `seen` None only if there is no row yet."""
        first = claimed(ledger)
        assert ledger.claim(Claimed(JOB, None, OTHER, 0, BODY, Counters())) is None
        assert timeless(seen(ledger)) == timeless(first)

    @pytest.mark.parametrize("state", [State.RUNNING, State.INTERRUPTED, State.MOVING, State.MOVED])
    def test_a_claim_keeps_uid_checkpoint_handle_and_cancel_mark(self, ledger: Ledger, state: State) -> None:
        """A claim starts a run, and keeps the job's checkpoint and export state."""
        token = claimed(ledger).token
        assert ledger.checkpoint(token, b"17")
        assert ledger.export_state(token, b"spark-1")
        ledger.cancel(JOB, "wrong month")
        if state is State.INTERRUPTED:
            ledger.interrupted(token, Counters())
        elif state is not State.RUNNING:
            ledger.moving(token, AGAIN)
            if state is State.MOVED:
                ledger.moved(token)
        before = seen(ledger)
        row = claimed(ledger, owner=OTHER, seen=before, hop=2)
        assert (row.state, row.owner, row.hop) == (State.RUNNING, OTHER, 2)
        assert row.fence > before.fence
        kept = (row.uid, row.checkpoint, row.checkpoint_fence, row.export_state, row.cancel_reason, row.counters)
        assert kept == (before.uid, b"17", token.fence, b"spark-1", "wrong month", before.counters)
        assert (row.target, row.due_in, row.delay, row.settled) == (None, 0.0, 0.0, "unknown")

    def test_a_claim_never_lowers_the_hop(self, ledger: Ledger) -> None:
        """The row keeps the highest hop of all its claims."""
        first = claimed(ledger, hop=4)
        assert claimed(ledger, seen=first, hop=2).hop == 4

    def test_a_claim_writes_its_counters(self, ledger: Ledger) -> None:
        """The claim of a take-over writes the new counters."""
        row = ledger.claim(Claimed(JOB, claimed(ledger), OTHER, 0, BODY, Counters(losses=1)))
        assert row is not None
        assert row.counters == Counters(losses=1)

    def test_a_claim_is_refused_when_the_row_was_claimed_since(self, ledger: Ledger) -> None:
        """If two owners read the same row and then claim the job, only one owner gets the job."""
        before = in_state(ledger, State.INTERRUPTED)[0]
        winner = claimed(ledger, owner=OTHER, seen=before)
        assert ledger.claim(Claimed(JOB, before, ME, 0, BODY, Counters())) is None
        assert timeless(seen(ledger)) == timeless(winner)

    @pytest.mark.parametrize("state", [state for state in State if state is not State.RUNNING])
    def test_what_was_seen_running_is_not_claimed_or_lost_when_it_no_longer_runs(
        self, ledger: Ledger, state: State
    ) -> None:
        """The state must match too, because the end of a run draws no new fence."""
        now, _ = in_state(ledger, state)
        before = replace(now, state=State.RUNNING)
        assert ledger.claim(Claimed(JOB, before, OTHER, 0, BODY, Counters())) is None
        assert ledger.lose(before, OTHER, DEAD_END) is None
        assert timeless(seen(ledger)) == timeless(now)

    def test_a_claim_is_refused_when_the_row_is_gone(self, ledger: Ledger) -> None:
        """The ledger refuses a claim if the row was removed after the read."""
        dead = in_state(ledger, State.DEAD)[0]
        ledger.forget(JOB)
        assert ledger.claim(Claimed(JOB, dead, OTHER, 0, BODY, Counters())) is None

    @pytest.mark.parametrize("state", [State.DONE, State.DEAD])
    def test_what_has_ended_is_never_claimed(self, ledger: Ledger, state: State) -> None:
        """A job ends as `done` or `dead`, and never runs after that."""
        row, _ = in_state(ledger, state)
        assert ledger.claim(Claimed(JOB, row, OTHER, 0, BODY, Counters())) is None
        assert timeless(seen(ledger)) == timeless(row)

    def test_a_row_made_by_a_cancel_gets_the_body_of_its_first_claim(self, ledger: Ledger) -> None:
        """The row of a job that was cancelled in advance matches any body, and keeps the body of the first claim."""
        ledger.cancel(JOB, "not needed")
        row = claimed(ledger, seen=seen(ledger))
        assert (row.body_sha256, row.cancel_reason) == (BODY, "not needed")
        again = ledger.claim(Claimed(JOB, row, OTHER, 0, OTHER_BODY, Counters()))
        assert again is not None
        assert again.body_sha256 == BODY

    def test_the_first_claim_of_a_round_begins_at_the_checkpoint_of_the_round_before(self, ledger: Ledger) -> None:
        """A replay continues from the dead letter's checkpoint."""
        first = claimed(ledger).token
        assert ledger.checkpoint(first, b"400")
        assert ledger.moving(first, DEAD_END)
        assert ledger.moved(first)
        row = claimed(ledger, ROUND_1)
        assert (row.checkpoint, row.checkpoint_fence) == (b"400", None)
        assert row.uid != first.uid
        ledger.checkpoint(row.token, b"500")
        assert claimed(ledger, ROUND_1, seen=seen(ledger, ROUND_1)).checkpoint == b"500", "only the first claim copies"
        assert claimed(ledger, replace(JOB, round=3)).checkpoint is None, "only from the round just before"

    def test_a_round_that_was_cancelled_before_it_came_keeps_the_checkpoint_too(self, ledger: Ledger) -> None:
        """A cancel in advance creates the row; the first claim still copies the checkpoint."""
        first = claimed(ledger).token
        assert ledger.checkpoint(first, b"400")
        ledger.cancel(ROUND_1, "wrong month")
        assert claimed(ledger, ROUND_1, seen=seen(ledger, ROUND_1)).checkpoint == b"400"

    def test_every_fence_is_greater_than_every_fence_before(self, ledger: Ledger, clock: FakeClock) -> None:
        """
        The ledger has one counter of fences for claims and take-overs.

        If the wall clock is set back, or the row of the last fence is deleted, the counter does not change.
        """
        fences = [claimed(ledger).fence, claimed(ledger, replace(JOB, key="b")).fence]
        clock.step_wall(-3600)
        lost = ledger.lose(seen(ledger), OTHER, DEAD_END)
        assert lost is not None
        other = ledger.take_over(lost, ME)
        assert other is not None
        fences += [lost.fence, other.fence]
        assert ledger.moved(other.token)
        ledger.forget(JOB)
        fences.append(claimed(ledger).fence)
        newest = replace(JOB, key="c")
        fences.append(in_state(ledger, State.DEAD, id=newest)[0].fence)
        ledger.forget(newest)
        fences.append(claimed(ledger, newest).fence)
        assert fences == sorted(set(fences))

    def test_a_fence_is_at_least_the_wall_clock_in_milliseconds(self, ledger: Ledger, clock: FakeClock) -> None:
        """Therefore a ledger that was lost and created again continues above the fences of the old ledger."""
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        assert claimed(ledger).fence >= int(clock.wall() * 1000)
        clock.advance(3600)
        assert claimed(ledger, replace(JOB, key="b")).fence >= int(clock.wall() * 1000)

    def test_of_many_that_claim_at_once_one_wins(self, ledger: Ledger) -> None:
        """A claim is one compare-and-set, and any thread may make a claim."""
        together = Barrier(8)

        def claim(number: int) -> Row | None:
            together.wait(10)
            return ledger.claim(Claimed(JOB, before, f"host/boot/{number}", 0, BODY, Counters()))

        before: Row | None = None
        with ThreadPoolExecutor(8) as pool:
            for _ in range(20):
                winners = [row for row in pool.map(claim, range(8)) if row is not None]
                assert len(winners) == 1
                before = seen(ledger)
                assert before == winners[0]

    def test_a_lease_is_over_a_margin_after_its_end(self, ledger: Ledger, clock: FakeClock) -> None:
        """Another owner can take the job over only after lease and margin."""
        claimed(ledger)
        self.let_pass(clock, self.times.lease + self.times.margin * 0.5)
        assert not seen(ledger).lease_over
        assert seen(ledger).late_by > 0
        self.let_pass(clock, self.times.margin * 0.6)
        assert seen(ledger).lease_over

    def test_a_wall_clock_that_jumps_ends_no_lease(self, ledger: Ledger, clock: FakeClock) -> None:
        """The wall clock never decides which owner runs a job."""
        claimed(ledger)
        clock.step_wall(86_400)
        assert not seen(ledger).lease_over

    def test_a_lease_runs_out_while_its_machine_sleeps(self, ledger: Ledger, clock: FakeClock) -> None:
        """The clock of leases includes a suspend, because other machines run on during the suspend."""
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        claimed(ledger)
        clock.sleep(self.times.lease + self.times.margin + 1)
        assert seen(ledger).lease_over

    @pytest.mark.parametrize("state", [State.INTERRUPTED, State.MOVED, State.DONE, State.DEAD])
    def test_nobody_holds_what_does_not_run(self, ledger: Ledger, state: State) -> None:
        """Only `running` and `moving` rows have an owner and a lease."""
        row, _ = in_state(ledger, state)
        assert (row.owner, row.lease_over) == (None, True)

    def test_a_renewal_begins_the_lease_anew(self, ledger: Ledger, clock: FakeClock) -> None:
        """A renewal restarts the lease of a running and of a moving row."""
        running = claimed(ledger).token
        moving = claimed(ledger, replace(JOB, key="b")).token
        assert ledger.moving(moving, AGAIN)
        self.let_pass(clock, self.times.lease * 0.8)
        assert [answer.granted for answer in ledger.renew([running, moving])] == [True, True]
        self.let_pass(clock, self.times.lease * 0.8)
        assert [seen(ledger, token.id).lease_over for token in (running, moving)] == [False, False]
        assert [seen(ledger, token.id).late_by for token in (running, moving)] == [0.0, 0.0]

    def test_renewals_are_answered_one_each_and_in_order(self, ledger: Ledger) -> None:
        """
        A refused renewal does not affect the other renewals.

        The answer for a job with a cancel mark has this mark.
        """
        tokens = [claimed(ledger, replace(JOB, key=key)).token for key in "abc"]
        ledger.cancel(tokens[2].id, "wrong month")
        assert claimed(ledger, tokens[1].id, OTHER, seen(ledger, tokens[1].id))
        answers = ledger.renew(tokens)
        assert [(answer.granted, answer.cancel_reason) for answer in answers] == [
            (True, None),
            (False, None),
            (True, "wrong month"),
        ]
        assert list(ledger.renew([])) == []

    def test_a_lease_that_ended_is_renewed_if_no_other_owner_has_the_job(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        """The fence, not the clock, decides which run has the job."""
        token = claimed(ledger).token
        self.lease_ends(clock)
        assert seen(ledger).lease_over
        assert ledger.renew([token])[0].granted
        assert not seen(ledger).lease_over

    def test_a_take_over_changes_nothing_of_the_settlement(self, ledger: Ledger) -> None:
        """`take_over` changes fence, owner and lease, and nothing else."""
        before, token = in_state(ledger, State.MOVING)
        other = ledger.take_over(before, OTHER)
        assert other is not None
        assert other.fence > before.fence
        assert timeless(replace(other, fence=before.fence, owner=before.owner)) == timeless(before)
        assert timeless(other) == timeless(seen(ledger))
        assert not ledger.moved(token)
        assert ledger.moved(other.token)

    @pytest.mark.parametrize("state", [state for state in State if state is not State.MOVING])
    def test_only_a_settlement_is_taken_over(self, ledger: Ledger, state: State) -> None:
        """`take_over` is refused unless the row is `moving`."""
        row, _ = in_state(ledger, state)
        assert ledger.take_over(row, OTHER) is None
        assert timeless(seen(ledger)) == timeless(row)

    def test_of_two_take_overs_of_one_settlement_one_wins(self, ledger: Ledger) -> None:
        """`take_over` succeeds only if the row has not changed since it was read."""
        before, _ = in_state(ledger, State.MOVING)
        assert ledger.take_over(before, OTHER) is not None
        assert ledger.take_over(before, ME) is None

    def test_a_run_that_was_lost_too_often_goes_to_moving(self, ledger: Ledger) -> None:
        """`lose` draws a fence, sets the owner and writes the verdict; writes of the old owner are refused."""
        before = claimed(ledger)
        verdict = Verdict(Moving.DEAD, "owner lost ×5", Counters(losses=5))
        lost = ledger.lose(before, OTHER, verdict)
        assert lost is not None
        assert timeless(lost) == timeless(seen(ledger))
        assert (lost.state, lost.target, lost.owner, lost.reason) == (State.MOVING, Moving.DEAD, OTHER, "owner lost ×5")
        assert lost.counters == Counters(losses=5)
        assert lost.fence > before.fence
        assert not lost.lease_over
        assert not ledger.done(before.token)
        assert ledger.lose(before, ME, verdict) is None
        assert ledger.moved(lost.token)
        assert seen(ledger).state is State.DEAD

    @pytest.mark.parametrize("state", [state for state in State if state is not State.RUNNING])
    def test_only_a_run_is_lost(self, ledger: Ledger, state: State) -> None:
        """`lose` is refused unless the row is `running`."""
        row, _ = in_state(ledger, state)
        assert ledger.lose(row, OTHER, DEAD_END) is None
        assert timeless(seen(ledger)) == timeless(row)
