"""Promises about the message of a job: the ledger keeps the message, finds the jobs whose message is lost, and replays jobs."""
# ruff: noqa: PLR2004 - the expected number belongs in the assertion

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from steadyworker.ledger.base import REPLAYED, Claimed, Hindrance, JobId, KeptMessage, Ledger, Moving, Row, State, Token
from steadyworker.ledger.lease import QUIET, registered_name
from steadyworker.ledger.retention import ABSENCE, DAY
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
    timeless,
)

MESSAGE = KeptMessage(bytes(range(256)) * 1200, b'{"headers":{"customer":"7"}}')
ANOTHER = KeptMessage(b"", b"{}")
NAME = registered_name(JOB.namespace, JOB.queue)
ROUND_1 = replace(JOB, round=1)
HELD = (State.RUNNING, State.MOVING)
UNFINISHED = (*HELD, State.INTERRUPTED, State.MOVED)


def kept(
    ledger: Ledger, id: JobId = JOB, message: KeptMessage | None = MESSAGE, seen: Row | None = None, hop: int = 0
) -> Row:
    """Claim a job with this message, and return its row."""
    row = ledger.claim(Claimed(id, seen, ME, hop, BODY, Counters(), message))
    assert row is not None, "a claim was refused"
    return row


def brought(ledger: Ledger, state: State, id: JobId = JOB, message: KeptMessage | None = MESSAGE) -> Token:
    """Bring a job with this message into this state, and return the token of its last run."""
    kept(ledger, id, message)
    token = seen(ledger, id).token
    match state:
        case State.INTERRUPTED:
            assert ledger.interrupted(token, Counters())
        case State.DONE:
            assert ledger.done(token)
        case State.MOVING | State.MOVED:
            assert ledger.moving(token, AGAIN)
        case State.DEAD:
            assert ledger.moving(token, DEAD_END)
    if state in {State.MOVED, State.DEAD}:
        assert ledger.moved(token)
    return token


class MessagePromises(LedgerBench):
    """Tests of the messages that the ledger keeps, of orphans and of replays."""

    def found(
        self, ledger: Ledger, after: float = 0.0, id: JobId = JOB, limit: int = 100, *, stranded: bool = False
    ) -> list[str]:
        """Return the keys of the orphans in the queue of this job, in order."""
        orphans = ledger.orphans(id.namespace, id.queue, after, limit, stranded=stranded)
        assert all((orphan.hindrance is not None) is stranded for orphan in orphans)
        return [orphan.row.id.key for orphan in orphans]

    def hindrance(self, ledger: Ledger) -> Hindrance | None:
        """Return the hindrance of the only orphan."""
        (orphan,) = (
            orphan
            for stranded in (False, True)
            for orphan in ledger.orphans(JOB.namespace, JOB.queue, 0.0, 10, stranded=stranded)
        )
        return orphan.hindrance

    def wait(self, clock: FakeClock, state: State) -> None:
        """Let time pass until the message of a job in this state is a little late."""
        self.let_pass(clock, self.times.lease * 0.1)
        if state in HELD:
            self.lease_ends(clock)

    # --- The message ------------------------------------------------------------------------------------------------------

    def test_a_claim_keeps_its_message(self, ledger: Ledger) -> None:
        """
        `message` returns the body and the facts as they were.

        `message` returns None for a job without a message, and for an unknown job.
        """
        kept(ledger)
        kept(ledger, replace(JOB, key="empty"), ANOTHER)
        kept(ledger, replace(JOB, key="none"), None)
        kept(ledger, ROUND_1, ANOTHER)
        assert ledger.message(JOB) == MESSAGE
        assert ledger.message(replace(JOB, key="empty")) == ANOTHER
        assert ledger.message(replace(JOB, key="none")) is None
        assert ledger.message(ROUND_1) == ANOTHER
        assert ledger.message(replace(JOB, key="unknown")) is None

    def test_a_refused_claim_keeps_no_message(self, ledger: Ledger) -> None:
        """The message is written in the claim's transaction, so a refused claim writes no message."""
        before = kept(ledger, message=None)
        assert ledger.claim(Claimed(JOB, None, OTHER, 0, BODY, Counters(), MESSAGE)) is None
        kept(ledger, message=None, seen=before)
        assert ledger.claim(Claimed(JOB, before, OTHER, 0, BODY, Counters(), MESSAGE)) is None
        assert ledger.message(JOB) is None

    @pytest.mark.parametrize("state", UNFINISHED)
    def test_a_later_claim_does_not_change_the_message(self, ledger: Ledger, state: State) -> None:
        """The job keeps the message of its first claim, although the message of the retry has other facts."""
        brought(ledger, state)
        row = kept(ledger, message=ANOTHER, seen=seen(ledger), hop=1)
        assert ledger.message(JOB) == MESSAGE
        kept(ledger, message=None, seen=row, hop=1)
        assert ledger.message(JOB) == MESSAGE

    def test_a_row_without_a_message_gets_that_of_the_next_claim(self, ledger: Ledger) -> None:
        """The row of a cancel mark, or of a worker that kept no message, gets the message of the next claim."""
        ledger.cancel(JOB, "not needed")
        row = kept(ledger, message=None, seen=seen(ledger))
        assert ledger.message(JOB) is None
        kept(ledger, seen=row)
        assert ledger.message(JOB) == MESSAGE

    @pytest.mark.parametrize("state", State)
    def test_a_message_is_kept_until_its_job_is_done(self, ledger: Ledger, state: State) -> None:
        """
        `done` deletes the message.

        A `dead` job keeps its message, so that a dead letter that is gone can be replayed.
        """
        brought(ledger, state)
        assert ledger.message(JOB) == (None if state is State.DONE else MESSAGE)

    def test_a_refused_done_keeps_the_message(self, ledger: Ledger) -> None:
        """A run that lost its job deletes nothing."""
        stale = kept(ledger)
        kept(ledger, seen=stale)
        assert not ledger.done(stale.token)
        assert ledger.message(JOB) == MESSAGE

    def test_a_message_goes_with_its_row(self, ledger: Ledger, clock: FakeClock) -> None:
        """
        `forget` and `purge` delete the messages of the rows that they delete.

        A new row of the same key has no message.
        """
        brought(ledger, State.DEAD)
        ledger.forget(JOB)
        assert ledger.message(JOB) is None
        kept(ledger, message=None)
        assert ledger.message(JOB) is None
        if self.own_clock:
            return
        old, stays = replace(JOB, key="old"), replace(JOB, key="stays")
        brought(ledger, State.DEAD, old)
        clock.advance(90 * DAY + 1)
        brought(ledger, State.DEAD, stays)
        assert ledger.purge() == 1
        assert (ledger.message(old), ledger.message(stays)) == (None, MESSAGE)
        kept(ledger, old, None)
        assert ledger.message(old) is None

    # --- Orphans ----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("state", HELD)
    def test_a_job_that_is_held_is_an_orphan_when_lease_and_margin_are_over(
        self, ledger: Ledger, clock: FakeClock, state: State
    ) -> None:
        """
        The message is late from the end of lease and margin on.

        Each renewal moves this end.
        """
        ledger.register(ME, "host", [NAME])
        token = brought(ledger, state)
        self.let_pass(clock, self.times.lease)
        assert ledger.renew([token])[0].granted
        self.let_pass(clock, self.times.lease + self.times.margin * 0.5)
        assert self.found(ledger) == []
        self.let_pass(clock, self.times.margin)
        (orphan,) = ledger.orphans(JOB.namespace, JOB.queue, 0.0, 10)
        assert timeless(orphan.row) == timeless(seen(ledger))
        assert orphan.row.lease_over
        assert self.times.margin * 0.4 < orphan.unseen_for < self.times.margin * 1.5
        assert self.found(ledger, self.times.margin * 2) == []

    def test_an_interrupted_job_is_an_orphan_at_once(self, ledger: Ledger, clock: FakeClock) -> None:
        """The job's message is released when the run stops, so the broker must deliver this message at once."""
        ledger.register(ME, "host", [NAME])
        brought(ledger, State.INTERRUPTED)
        self.let_pass(clock, self.times.lease)
        assert self.found(ledger, self.times.lease * 0.5) == [JOB.key]
        assert self.found(ledger, self.times.lease * 2) == []

    def test_a_retry_is_an_orphan_after_the_time_that_moved_recorded(self, ledger: Ledger, clock: FakeClock) -> None:
        """The time that `moved` recorded counts, not the retry's own delay, because the broker can deliver later."""
        ledger.register(ME, "host", [NAME])
        token = brought(ledger, State.MOVING)
        assert ledger.moved(token, wake_in=self.times.lease * 2)
        self.let_pass(clock, self.times.lease * 1.5)
        assert self.found(ledger) == []
        self.let_pass(clock, self.times.lease)
        assert self.found(ledger) == [JOB.key]
        assert self.found(ledger, self.times.lease) == []

    @pytest.mark.parametrize("state", [State.DONE, State.DEAD])
    def test_what_has_ended_is_no_orphan(self, ledger: Ledger, clock: FakeClock, state: State) -> None:
        """A job that has ended waits for no message, even if one was deferred before."""
        ledger.register(ME, "host", [NAME])
        token = kept(ledger).token
        ledger.deferred(JOB, 1.0)
        if state is State.DEAD:
            assert ledger.moving(token, DEAD_END)
            assert ledger.moved(token, wake_in=1.0)
        else:
            assert ledger.done(token)
        ledger.deferred(JOB, 1.0)
        self.wait(clock, State.RUNNING)
        assert self.found(ledger) == self.found(ledger, stranded=True) == []

    @pytest.mark.parametrize("state", UNFINISHED)
    def test_a_deferred_message_gives_its_job_time(self, ledger: Ledger, clock: FakeClock, state: State) -> None:
        """
        The job is no orphan before the time of the deferred message.

        An earlier message changes nothing.
        """
        ledger.register(ME, "host", [NAME])
        brought(ledger, state)
        delay = (self.times.lease + self.times.margin) * 2
        ledger.deferred(JOB, delay)
        ledger.deferred(JOB, delay * 0.1)
        ledger.deferred(replace(JOB, key="unknown"), delay)
        self.let_pass(clock, delay * 0.9)
        assert self.found(ledger) == []
        self.let_pass(clock, delay * 0.2)
        (orphan,) = ledger.orphans(JOB.namespace, JOB.queue, 0.0, 10)
        assert 0 < orphan.unseen_for < delay * 0.3
        assert ledger.read(replace(JOB, key="unknown")) is None

    @pytest.mark.parametrize("how", ["claim", "take_over", "lose"])
    def test_a_new_owner_ends_the_time_of_a_deferred_message(self, ledger: Ledger, clock: FakeClock, how: str) -> None:
        """After a change of owner, the time of a deferred message no longer counts: only lease and margin do."""
        ledger.register(ME, "host", [NAME])
        brought(ledger, State.MOVING if how == "take_over" else State.RUNNING)
        ledger.deferred(JOB, 100 * self.times.lease)
        before = seen(ledger)
        match how:
            case "claim":
                kept(ledger, seen=before)
            case "take_over":
                assert ledger.take_over(before, OTHER)
            case "lose":
                assert ledger.lose(before, OTHER, DEAD_END)
        assert self.found(ledger) == []
        self.lease_ends(clock)
        assert self.found(ledger) == [JOB.key]

    def test_orphans_are_listed_longest_first_and_by_queue(self, ledger: Ledger, clock: FakeClock) -> None:
        """At most `limit` orphans of the queue and namespace are returned, whatever their states."""
        others = [replace(JOB, queue="refunds"), replace(JOB, namespace="other")]
        ledger.register(ME, "host", [NAME, *(registered_name(id.namespace, id.queue) for id in others)])
        for id in others:
            brought(ledger, State.INTERRUPTED, id)
        brought(ledger, State.RUNNING, replace(JOB, key="running"))
        for key in ("first", "second"):
            self.let_pass(clock, self.times.lease * 0.1)
            brought(ledger, State.INTERRUPTED, replace(JOB, key=key))
        self.lease_ends(clock)
        token = brought(ledger, State.MOVING, replace(JOB, key="moved"))
        assert ledger.moved(token)
        self.let_pass(clock, self.times.lease * 0.1)
        assert self.found(ledger) == ["first", "second", "running", "moved"]
        assert self.found(ledger, limit=3) == ["first", "second", "running"]
        assert self.found(ledger, limit=1) == ["first"]
        assert [self.found(ledger, id=id) for id in others] == [[JOB.key], [JOB.key]]
        found = ledger.orphans(JOB.namespace, JOB.queue, 0.0, 10)
        assert [orphan.unseen_for for orphan in found] == sorted((orphan.unseen_for for orphan in found), reverse=True)

    @pytest.mark.parametrize("state", UNFINISHED)
    def test_a_job_without_a_message_is_stranded(self, ledger: Ledger, clock: FakeClock, state: State) -> None:
        """No worker process can run a job without a message, so only `stranded` lists such a job."""
        ledger.register(ME, "host", [NAME])
        brought(ledger, state, message=None)
        self.wait(clock, state)
        assert self.found(ledger) == []
        assert self.found(ledger, stranded=True) == [JOB.key]
        assert self.hindrance(ledger) is Hindrance.NO_MESSAGE

    def test_a_limit_counts_only_the_orphans_that_are_asked_for(self, ledger: Ledger, clock: FakeClock) -> None:
        """Stranded jobs, which can be many, do not hide an orphan that a worker process can run."""
        ledger.register(ME, "host", [NAME])
        for number in range(3):
            brought(ledger, State.INTERRUPTED, replace(JOB, key=f"stranded-{number}"), None)
        self.let_pass(clock, self.times.lease * 0.1)
        brought(ledger, State.INTERRUPTED)
        self.let_pass(clock, self.times.lease * 0.1)
        assert self.found(ledger, limit=1) == [JOB.key]
        assert len(self.found(ledger, limit=2, stranded=True)) == 2

    def test_a_job_that_moves_to_a_dead_letter_needs_no_message(self, ledger: Ledger, clock: FakeClock) -> None:
        """The job becomes `dead` without a letter, so the missing message does not hinder the job."""
        ledger.register(ME, "host", [NAME])
        assert ledger.moving(kept(ledger, message=None).token, DEAD_END)
        self.lease_ends(clock)
        assert self.hindrance(ledger) is None

    @pytest.mark.parametrize("state", UNFINISHED)
    def test_a_job_that_was_sent_again_has_no_hindrance(self, ledger: Ledger, clock: FakeClock, state: State) -> None:
        """
        The next round has replaced the job, so the job only has to end, with or without a message.

        A job with another key is unaffected.
        """
        ledger.register(ME, "host", [NAME])
        for id in (JOB, replace(JOB, key="other")):
            brought(ledger, state, id)
        brought(ledger, State.DONE, ROUND_1)
        ledger.distrust()
        self.wait(clock, state)
        assert self.found(ledger) == [JOB.key]
        assert self.found(ledger, stranded=True) == ["other"]

    def test_an_interrupted_job_is_no_orphan_before_the_deferred_copy_of_its_message(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        """
        The delay of a deferred copy can be longer than the wait after which a job counts as an orphan.

        In this test, the job is interrupted during this delay.
        """
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        ledger.register(ME, "host", [NAME])
        token = kept(ledger).token
        ledger.deferred(JOB, 600.0)
        assert ledger.interrupted(token, Counters())
        clock.advance(599.0)
        assert self.found(ledger) == []
        clock.advance(2.0)
        assert self.found(ledger) == [JOB.key]

    def test_an_earlier_round_that_moves_to_a_dead_letter_is_an_orphan(self, ledger: Ledger, clock: FakeClock) -> None:
        """
        The handler of such a job does not run again, and no message of the job comes.

        The next round can be the replay of this job's letter.
        """
        ledger.register(ME, "host", [NAME])
        assert ledger.moving(kept(ledger).token, DEAD_END)
        brought(ledger, State.DONE, ROUND_1)
        self.lease_ends(clock)
        assert self.found(ledger) == [JOB.key]

    def test_a_mark_of_a_cancel_is_no_orphan(self, ledger: Ledger, clock: FakeClock) -> None:
        """
        A row that was never claimed waits for no message.

        A claimed job with a mark can be an orphan, and the orphan's row has the mark.
        """
        ledger.register(ME, "host", [NAME])
        ledger.cancel(JOB, "in advance")
        came = replace(JOB, key="came")
        brought(ledger, State.INTERRUPTED, came)
        ledger.cancel(came, "wrong month")
        self.let_pass(clock, self.times.lease)
        assert self.found(ledger, stranded=True) == []
        (orphan,) = ledger.orphans(JOB.namespace, JOB.queue, 0.0, 10)
        assert (orphan.row.id, orphan.row.cancel_reason) == (came, "wrong month")

    # --- Trust ------------------------------------------------------------------------------------------------------------

    def test_a_ledger_that_goes_on_is_trusted(self, ledger: Ledger) -> None:
        """`register` returns True at each call, for each owner, and also after `unregister`."""
        assert ledger.register(ME, "host", [NAME])
        assert ledger.register(OTHER, "host", [NAME, NAME])
        assert ledger.register(ME, "host", [f"{NAME}{QUIET}"])
        ledger.unregister(ME)
        assert ledger.register(OTHER, "host", [NAME])
        assert ledger.register(ME, "host", [])

    def test_an_owner_that_slept_for_days_finds_the_ledger_as_it_was(self, ledger: Ledger, clock: FakeClock) -> None:
        """The owner's registration is removed after a day, but the ledger does not mistake this for a step back in time."""
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        for _ in range(2):
            assert ledger.register(ME, "host", [NAME])
        clock.sleep(3 * DAY)
        ledger.purge()
        assert list(ledger.owners()) == []
        assert ledger.register(ME, "host", [NAME])

    def test_jobs_from_before_an_hour_without_an_owner_are_stranded(self, ledger: Ledger, clock: FakeClock) -> None:
        """
        These jobs may have been done with another ledger.

        Each registration for the queue counts, even if its owner is quiet; registrations for other queues do not count.
        """
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        ledger.register(ME, "host", [NAME])
        brought(ledger, State.INTERRUPTED)
        clock.advance(ABSENCE * 0.9)
        assert ledger.register(OTHER, "host", [f"{NAME}{QUIET}"])
        clock.advance(ABSENCE * 0.9)
        assert ledger.register(ME, "host", [NAME, NAME])
        assert self.hindrance(ledger) is None
        clock.advance(ABSENCE + 1)
        assert ledger.register(ME, "host", [registered_name(JOB.namespace, "refunds")])
        assert ledger.register(ME, "host", [NAME])
        assert self.hindrance(ledger) is Hindrance.OLD_RECORD
        assert ledger.register(ME, "host", [NAME])
        brought(ledger, State.INTERRUPTED, replace(JOB, key="later"))
        clock.advance(1)
        assert self.found(ledger) == ["later"]
        assert self.found(ledger, stranded=True) == [JOB.key]

    def test_a_claim_makes_an_old_record_new(self, ledger: Ledger, clock: FakeClock) -> None:
        """
        A message that comes after all proves that the job must run.

        If an old record has no message, the hindrance is still `OLD_RECORD`.
        """
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        ledger.register(ME, "host", [NAME])
        brought(ledger, State.INTERRUPTED, message=None)
        clock.advance(ABSENCE + 1)
        ledger.register(ME, "host", [NAME])
        assert self.hindrance(ledger) is Hindrance.OLD_RECORD
        assert ledger.interrupted(kept(ledger, seen=seen(ledger)).token, Counters())
        clock.advance(1)
        assert self.hindrance(ledger) is None

    def test_a_ledger_of_which_a_job_shows_that_it_went_back_is_not_trusted(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        """
        `distrust` makes every row of every queue an old record.

        A later claim is trusted.
        """
        other = replace(JOB, queue="refunds")
        ledger.register(ME, "host", [NAME, registered_name(other.namespace, other.queue)])
        for id in (JOB, other):
            brought(ledger, State.INTERRUPTED, id)
        ledger.distrust()
        self.let_pass(clock, self.times.lease * 0.1)
        for id in (JOB, other):
            assert self.found(ledger, id=id) == []
            assert self.found(ledger, id=id, stranded=True) == [JOB.key]
        assert ledger.register(ME, "host", [NAME])
        brought(ledger, State.INTERRUPTED, replace(JOB, key="later"))
        self.let_pass(clock, self.times.lease * 0.1)
        assert self.found(ledger) == ["later"]

    def test_a_ledger_that_went_back_in_time_is_not_trusted(
        self, ledger: Ledger, tmp_path: Path, clock: FakeClock
    ) -> None:
        """
        `register` reports the step back once, by returning False.

        Before this report, the ledger has no orphans for the owner.
        After this report, no job with an older row runs by itself.
        """
        other = replace(JOB, queue="refunds")
        names = [NAME, registered_name(other.namespace, other.queue)]
        assert ledger.register(ME, "host", names)
        for id in (JOB, other):
            brought(ledger, State.INTERRUPTED, id)
        restore = self.saved(ledger, tmp_path)
        self.let_pass(clock, self.times.renew)
        assert ledger.register(ME, "host", names)
        assert ledger.done(kept(ledger, seen=seen(ledger)).token)
        restore()
        assert seen(ledger).state is State.INTERRUPTED, "the ledger no longer knows that the job is done"
        assert self.found(ledger) == self.found(ledger, stranded=True) == []
        if self.durable:
            stranger = self.make_ledger(tmp_path, clock, self.times)
            assert self.found(stranger) == [JOB.key], "a process that never registered cannot know it"
            stranger.close()
        assert not ledger.register(ME, "host", [NAME])
        for id in (JOB, other):
            assert self.found(ledger, id=id) == []
            assert self.found(ledger, id=id, stranded=True) == [JOB.key]
        assert self.hindrance(ledger) is Hindrance.OLD_RECORD
        assert ledger.register(ME, "host", names)
        brought(ledger, State.INTERRUPTED, replace(JOB, key="later"))
        self.let_pass(clock, self.times.lease * 0.1)
        assert self.found(ledger) == ["later"]

    # --- Retries at another time ------------------------------------------------------------------------------------------

    def test_a_retry_gets_another_time_and_waits_for_another_message(self, ledger: Ledger, clock: FakeClock) -> None:
        """`reschedule` changes only the time of the retry and the hop; the job is no orphan before its new message comes."""
        ledger.register(ME, "host", [NAME])
        token = brought(ledger, State.MOVING)
        assert ledger.moved(token, 100 * self.times.lease)
        before = seen(ledger)
        delay = self.times.lease
        assert ledger.reschedule(before, delay, delay * 1.5)
        after = seen(ledger)
        assert (after.hop, after.delay) == (before.hop + 1, delay)
        assert delay * 0.5 < after.due_in <= delay
        same = replace(after, hop=before.hop, delay=before.delay)
        assert timeless(same) == timeless(before)
        assert ledger.message(JOB) == MESSAGE
        self.let_pass(clock, delay * 1.2)
        assert seen(ledger).due_in == 0.0
        assert self.found(ledger) == []
        self.let_pass(clock, delay * 0.5)
        assert self.found(ledger) == [JOB.key]

    def test_a_retry_can_be_due_now(self, ledger: Ledger) -> None:
        """A worker process may then claim the job; the hop of the claim is the hop of the new message."""
        moving = kept(ledger).token
        assert ledger.moving(moving, replace(AGAIN, delay=3600.0))
        assert ledger.moved(moving, 3600.0)
        assert ledger.reschedule(seen(ledger), 0.0, 0.0)
        row = seen(ledger)
        assert (row.due_in, row.hop) == (0.0, 1)
        assert kept(ledger, seen=row, hop=2).hop == 2

    @pytest.mark.parametrize("state", [state for state in State if state is not State.MOVED])
    def test_only_a_retry_that_waits_gets_another_time(self, ledger: Ledger, state: State) -> None:
        """In every other state, `reschedule` returns False, and changes nothing."""
        before, _ = in_state(ledger, state)
        assert not ledger.reschedule(before, 60.0, 60.0)
        assert timeless(seen(ledger)) == timeless(before)

    def test_a_retry_that_has_changed_since_it_was_read_keeps_its_time(self, ledger: Ledger) -> None:
        """Of two processes that read the same row, one reschedules the job; after a claim, none does."""
        before, _ = in_state(ledger, State.MOVED)
        assert ledger.reschedule(before, 60.0, 60.0)
        assert not ledger.reschedule(before, 0.0, 0.0)
        second = seen(ledger)
        assert second.due_in > 0.0
        kept(ledger, seen=second)
        assert not ledger.reschedule(second, 0.0, 0.0)
        assert not ledger.reschedule(replace(second, id=replace(JOB, key="unknown")), 0.0, 0.0)

    def test_a_retry_at_a_later_time_is_kept_longer(self, ledger: Ledger, clock: FakeClock) -> None:
        """`purge` deletes the row 14 days after its new time."""
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        in_state(ledger, State.MOVED)
        assert ledger.reschedule(seen(ledger), 10 * DAY, 10 * DAY)
        clock.advance(24 * DAY - 1)
        assert ledger.purge() == 0
        clock.advance(2)
        assert ledger.purge() == 1

    # --- Replays ----------------------------------------------------------------------------------------------------------

    def test_a_replay_is_a_retry_that_is_due(self, ledger: Ledger, clock: FakeClock) -> None:
        """
        The row waits for the message with hop 0, and has the checkpoint of the round before.

        If the message does not come, the job is an orphan.
        """
        ledger.register(ME, "host", [NAME])
        dead, _ = in_state(ledger, State.DEAD, checkpoint=b"400")
        assert ledger.replay(ROUND_1, MESSAGE, BODY)
        row = seen(ledger, ROUND_1)
        assert (row.state, row.target, row.hop, row.owner, row.body_sha256) == (
            State.MOVED,
            Moving.RETRY,
            -1,
            None,
            BODY,
        )
        assert (row.due_in, row.delay, row.reason, row.counters) == (0.0, 0.0, REPLAYED, Counters())
        assert row.late_by < self.times.lease
        assert (row.checkpoint, row.checkpoint_fence, row.export_state) == (b"400", None, None)
        assert row.uid != dead.uid
        assert row.fence > dead.fence
        assert ledger.message(ROUND_1) == MESSAGE
        assert seen(ledger) == dead
        self.let_pass(clock, self.times.lease)
        assert self.found(ledger) == [JOB.key]
        claim = kept(ledger, ROUND_1, ANOTHER, seen=row)
        assert (claim.state, claim.hop, claim.checkpoint, claim.uid) == (State.RUNNING, 0, b"400", row.uid)
        assert ledger.message(ROUND_1) == MESSAGE

    def test_a_delayed_replay_is_a_retry_that_is_due_later(self, ledger: Ledger, clock: FakeClock) -> None:
        """The job is no orphan before the time at which its message comes."""
        ledger.register(ME, "host", [NAME])
        in_state(ledger, State.DEAD)
        delay = self.times.lease
        assert ledger.replay(ROUND_1, MESSAGE, BODY, delay=delay, wake_in=delay * 1.5)
        row = seen(ledger, ROUND_1)
        assert (row.state, row.hop, row.delay) == (State.MOVED, -1, delay)
        assert delay * 0.5 < row.due_in <= delay
        self.let_pass(clock, delay * 1.2)
        assert seen(ledger, ROUND_1).due_in == 0.0
        assert self.found(ledger) == []
        self.let_pass(clock, delay * 0.5)
        assert self.found(ledger) == [JOB.key]

    def test_a_round_is_replayed_once(self, ledger: Ledger) -> None:
        """If the round already has a row, even a row with only a cancel mark, `replay` changes nothing, and returns False."""
        in_state(ledger, State.DEAD)
        assert ledger.replay(ROUND_1, MESSAGE, BODY)
        before = seen(ledger, ROUND_1)
        assert not ledger.replay(ROUND_1, ANOTHER, b"\x03" * 32)
        assert timeless(seen(ledger, ROUND_1)) == timeless(before)
        assert ledger.message(ROUND_1) == MESSAGE
        marked = replace(JOB, round=2)
        ledger.cancel(marked, "in advance")
        assert not ledger.replay(marked, MESSAGE, BODY)
        assert (seen(ledger, marked).state, ledger.message(marked)) == (State.INTERRUPTED, None)

    def test_a_replay_is_kept_as_long_as_a_retry(self, ledger: Ledger, clock: FakeClock) -> None:
        """`purge` deletes the row and the message of a replayed job 14 days after the replay."""
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        assert ledger.replay(ROUND_1, MESSAGE, BODY)
        clock.advance(14 * DAY - 1)
        assert ledger.purge() == 0
        clock.advance(2)
        assert ledger.purge() == 1
        assert ledger.message(ROUND_1) is None

    def test_the_next_round_may_be_forgotten_for(self, ledger: Ledger) -> None:
        """A replayed dead letter with a checkpoint can be forgotten, because the new row has copied the checkpoint."""
        in_state(ledger, State.DEAD, checkpoint=b"400")
        assert ledger.replay(ROUND_1, MESSAGE, BODY)
        ledger.forget(JOB)
        assert ledger.read(JOB) is None
        assert seen(ledger, ROUND_1).checkpoint == b"400"
