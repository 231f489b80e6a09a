"""Promises about writes: each write of the owner has its effect, and every other write is refused."""
# ruff: noqa: PLR2004 - the expected number belongs in the assertion

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from steadyworker.ledger.base import Ledger, Moving, Renewal, State, Token, Verdict
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance.ledger_fixtures import (
    AGAIN,
    DEAD_END,
    JOB,
    OTHER,
    LedgerBench,
    claimed,
    in_state,
    seen,
    timeless,
)

Write = Callable[[Ledger, Token], bool]

WRITES: dict[str, Write] = {
    "renew": lambda ledger, token: ledger.renew([token])[0].granted,
    "checkpoint": lambda ledger, token: ledger.checkpoint(token, b"new"),
    "clear": lambda ledger, token: ledger.checkpoint(token, None),
    "export_state": lambda ledger, token: ledger.export_state(token, b"new"),
    "may_commit": lambda ledger, token: ledger.may_commit(token).granted,
    "done": lambda ledger, token: ledger.done(token),
    "interrupted": lambda ledger, token: ledger.interrupted(token, Counters(interruptions=9)),
    "moving": lambda ledger, token: ledger.moving(token, DEAD_END),
    "moved": lambda ledger, token: ledger.moved(token),
}
HELD = {State.RUNNING, State.MOVING}
ALLOWED = {"renew": HELD, "moving": HELD, "moved": {State.MOVING}}


class WritePromises(LedgerBench):
    """Tests of the writes of a run's owner."""

    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("state", State)
    def test_each_write_lands_in_its_states_only(self, ledger: Ledger, write: str, state: State) -> None:
        """A refused write returns False and changes nothing."""
        before, token = in_state(ledger, state)
        allowed = state in ALLOWED.get(write, {State.RUNNING})
        assert WRITES[write](ledger, token) is allowed
        if not allowed:
            assert timeless(seen(ledger)) == timeless(before)

    @pytest.mark.parametrize("write", WRITES)
    def test_no_write_lands_after_another_claimed(self, ledger: Ledger, write: str) -> None:
        """After another owner has claimed the job, every write of the earlier owner is refused, and the row stays as it is."""
        stale = claimed(ledger)
        row = claimed(ledger, owner=OTHER, seen=stale)
        if write == "moved":
            assert ledger.moving(row.token, AGAIN)
        before = seen(ledger)
        assert WRITES[write](ledger, stale.token) is False
        assert timeless(seen(ledger)) == timeless(before)

    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("forged", ["uid", "fence", "owner"])
    def test_a_write_names_the_run_in_full(self, ledger: Ledger, write: str, forged: str) -> None:
        """The ledger grants a write only if uid, fence and owner all match the row."""
        state = State.MOVING if write == "moved" else State.RUNNING
        before, token = in_state(ledger, state)
        others = {
            "uid": replace(token, uid="another"),
            "fence": replace(token, fence=token.fence + 1),
            "owner": replace(token, owner="another"),
        }
        assert WRITES[write](ledger, others[forged]) is False
        assert timeless(seen(ledger)) == timeless(before)

    @pytest.mark.parametrize("write", WRITES)
    def test_a_write_to_a_row_that_is_gone_is_refused(self, ledger: Ledger, write: str) -> None:
        """The ledger refuses the write even if the row was removed and created again."""
        token = in_state(ledger, State.DEAD)[1]
        ledger.forget(JOB)
        assert WRITES[write](ledger, token) is False
        assert ledger.read(JOB) is None
        in_state(ledger, State.MOVING if write == "moved" else State.RUNNING)
        assert WRITES[write](ledger, token) is False

    def test_a_checkpoint_is_kept_with_the_fence_that_saved_it(self, ledger: Ledger) -> None:
        """
        `checkpoint_fence` shows which run saved the checkpoint.

        A checkpoint of None clears checkpoint and `checkpoint_fence`.
        """
        token = claimed(ledger).token
        big = bytes(range(256)) * 256
        assert ledger.checkpoint(token, big)
        assert (seen(ledger).checkpoint, seen(ledger).checkpoint_fence) == (big, token.fence)
        assert ledger.checkpoint(token, None)
        assert (seen(ledger).checkpoint, seen(ledger).checkpoint_fence) == (None, None)

    def test_an_empty_checkpoint_is_a_checkpoint(self, ledger: Ledger) -> None:
        """Empty bytes are kept, and differ from None."""
        token = claimed(ledger).token
        assert ledger.checkpoint(token, b"")
        assert (seen(ledger).checkpoint, seen(ledger).checkpoint_fence) == (b"", token.fence)

    def test_a_handle_is_kept_until_it_is_replaced(self, ledger: Ledger) -> None:
        """`export_state` is kept until it is replaced; None clears it."""
        token = claimed(ledger).token
        assert ledger.export_state(token, b"\x00app-1")
        assert seen(ledger).export_state == b"\x00app-1"
        assert ledger.export_state(token, None)
        assert seen(ledger).export_state is None

    def test_leave_to_commit_renews_the_lease(self, ledger: Ledger, clock: FakeClock) -> None:
        """A run that may commit has the time of a whole lease for the commit."""
        token = claimed(ledger).token
        self.let_pass(clock, self.times.lease * 0.8)
        assert ledger.may_commit(token).granted
        self.let_pass(clock, self.times.lease * 0.8)
        assert seen(ledger).late_by == 0.0

    def test_a_cancelled_job_may_not_commit(self, ledger: Ledger) -> None:
        """After `cancel` has returned, `may_commit` returns the reason instead of a grant; the run still owns the job."""
        row = claimed(ledger)
        assert ledger.may_commit(row.token) == Renewal(granted=True)
        ledger.cancel(JOB, "wrong month")
        assert ledger.may_commit(row.token) == Renewal(granted=False, cancel_reason="wrong month")
        assert (seen(ledger).state, seen(ledger).fence) == (State.RUNNING, row.fence)
        assert ledger.renew([row.token])[0].granted

    def test_done_ends_the_job(self, ledger: Ledger) -> None:
        """A `done` row has no owner, and does not keep the reason of an earlier attempt."""
        row, token = in_state(ledger, State.MOVED)
        token = claimed(ledger, seen=row, hop=1).token
        assert seen(ledger).reason == AGAIN.reason
        assert ledger.done(token)
        after = seen(ledger)
        assert (after.state, after.owner, after.reason, after.error_class) == (State.DONE, None, "", "")
        assert (after.hop, after.fence, after.uid) == (1, token.fence, row.uid)
        assert after.ended_at is not None

    def test_interrupted_is_nobodys_and_keeps_its_position(self, ledger: Ledger) -> None:
        """The checkpoint and the `export_state` are kept for the next claim."""
        token = claimed(ledger).token
        ledger.checkpoint(token, b"17")
        ledger.export_state(token, b"app-1")
        assert ledger.interrupted(token, Counters(attempts=1, interruptions=2))
        row = seen(ledger)
        assert (row.state, row.owner, row.checkpoint, row.export_state) == (State.INTERRUPTED, None, b"17", b"app-1")
        assert row.counters == Counters(attempts=1, interruptions=2)

    def test_moving_keeps_the_verdict_and_the_owner(self, ledger: Ledger) -> None:
        """Target, reason, counters and delay are recorded before anything is published."""
        token = claimed(ledger, hop=3).token
        ledger.checkpoint(token, b"17")
        counters = Counters(attempts=2, first_failed_at=99.5)
        assert ledger.moving(token, Verdict(Moving.RETRY, "no", counters, 20.0, "ValueError", "no: 1"))
        row = seen(ledger)
        assert (row.state, row.target, row.reason, row.counters) == (State.MOVING, Moving.RETRY, "no", counters)
        assert (row.error_class, row.error_text, row.delay) == ("ValueError", "no: 1", 20.0)
        assert (row.owner, row.fence, row.hop, row.checkpoint) == (token.owner, token.fence, 3, b"17")
        assert not row.lease_over
        assert 19.0 < row.due_in <= 20.0

    def test_a_verdict_may_clear_the_checkpoint(self, ledger: Ledger) -> None:
        """After `Retry(fresh=True)`, the next attempt starts from the beginning, so the export state is cleared too."""
        token = claimed(ledger).token
        ledger.checkpoint(token, b"17")
        ledger.export_state(token, b"row 17")
        assert ledger.moving(token, replace(AGAIN, keep_checkpoint=False))
        row = seen(ledger)
        assert (row.checkpoint, row.checkpoint_fence, row.export_state) == (None, None, None)

    def test_a_second_verdict_replaces_the_first(self, ledger: Ledger) -> None:
        """A retry whose message the broker refuses becomes a dead letter, and keeps its checkpoint."""
        token = claimed(ledger).token
        ledger.checkpoint(token, b"17")
        assert ledger.moving(token, AGAIN)
        assert ledger.moving(token, DEAD_END)
        row = seen(ledger)
        assert (row.state, row.target, row.reason, row.checkpoint) == (
            State.MOVING,
            Moving.DEAD,
            DEAD_END.reason,
            b"17",
        )
        assert ledger.moved(token)
        assert seen(ledger).state is State.DEAD

    def test_moved_follows_the_verdict(self, ledger: Ledger) -> None:
        """A retry becomes `moved`, and a dead letter becomes `dead`, with the reason."""
        assert in_state(ledger, State.MOVED)[0].state is State.MOVED
        again = claimed(ledger, seen=seen(ledger), hop=1).token
        assert ledger.moving(again, DEAD_END)
        assert ledger.moved(again)
        row = seen(ledger)
        assert (row.state, row.target, row.reason, row.counters) == (
            State.DEAD,
            Moving.DEAD,
            "exhausted",
            DEAD_END.counters,
        )
        assert row.ended_at is not None

    def test_a_copy_is_due_after_its_delay(self, ledger: Ledger, clock: FakeClock) -> None:
        """
        `due_in` counts down by the ledger's clock, also after `moved`.

        From the due time on, `late_by` counts up.
        """
        delay = self.times.lease
        token = claimed(ledger).token
        assert ledger.moving(token, replace(AGAIN, delay=delay))
        assert ledger.moved(token)
        clock.step_wall(-3600)
        self.let_pass(clock, delay * 0.5)
        assert 0 < seen(ledger).due_in <= delay * 0.5
        clock.step_wall(3600)
        assert seen(ledger).late_by == 0.0
        self.let_pass(clock, delay)
        assert seen(ledger).due_in == 0.0
        assert seen(ledger).late_by > 0

    def test_odd_text_is_kept_readable(self, ledger: Ledger) -> None:
        """
        A reason comes from an exception, so it can be long, or contain a NUL or undecodable bytes of a file name.

        No write fails because of such a reason.
        """
        token = claimed(ledger).token
        odd = "no \udcff \x00 ü 𝄞 " + "x" * 100_000
        assert ledger.moving(token, replace(AGAIN, reason=odd, error_class=odd, error_text=odd))
        assert "ü 𝄞 xxx" in seen(ledger).reason
        ledger.cancel(JOB, odd)
        assert "ü 𝄞 xxx" in (seen(ledger).cancel_reason or "")
