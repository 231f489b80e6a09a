"""Promises about the record: owners, retention, cancel marks, progress."""
# ruff: noqa: PLR2004 - the expected number belongs in the assertion

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from steadyworker.ledger.base import (
    Claimed,
    JobFilter,
    JobId,
    KeptMessage,
    Ledger,
    Need,
    NeedsOf,
    Orders,
    Progress,
    State,
)
from steadyworker.ledger.retention import DAY, Retention
from steadyworker.outcome import SNOOZED, Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance.ledger_fixtures import (
    AGAIN,
    BODY,
    DEAD_END,
    JOB,
    ME,
    OTHER,
    LedgerBench,
    claimed,
    in_state,
    seen,
    timeless,
)

OLD = {
    (State.MOVED, None): 14 * DAY + 20,  # 14 days are counted from the copy's due time, which is 20 s from now
    (State.MOVED, True): 14 * DAY + 20,
    (State.DONE, None): 14 * DAY,
    (State.DONE, False): 14 * DAY,
    (State.DONE, True): DAY,
    (State.DEAD, None): 90 * DAY,
    (State.DEAD, True): 90 * DAY,
}


class RecordPromises(LedgerBench):
    """Tests of what the ledger keeps, and for how long."""

    def test_a_job_that_is_cancelled_unseen_is_in_no_claim_s_way(self, ledger: Ledger) -> None:
        """Claims and cancels at the same instant each create their own row."""
        fences = []
        for number in range(20):
            assert ledger.cancel(replace(JOB, key=f"cancelled-{number}"), "wrong month") is None
            fences.append(claimed(ledger, replace(JOB, key=f"claimed-{number}")).fence)
        assert fences == sorted(set(fences))
        assert len(list(ledger.jobs())) == 40

    def test_a_ledger_has_an_id_of_its_own(self, ledger: Ledger, tmp_path: Path, clock: FakeClock) -> None:
        """The id never changes, and differs from the id of every other ledger."""
        (tmp_path / "elsewhere").mkdir()
        other = self.make_ledger(tmp_path / "elsewhere", clock, self.times)
        assert ledger.ledger_id() == ledger.ledger_id()
        assert other.ledger_id() != ledger.ledger_id()
        other.close()

    def test_a_good_ledger_has_nothing_wrong(self, ledger: Ledger) -> None:
        """`findings` of a healthy ledger has no errors."""
        assert [finding for finding in ledger.findings() if finding.level == "error"] == []

    def test_its_url_has_a_scheme(self, ledger: Ledger) -> None:
        """The url has a scheme and no password."""
        assert ":" in ledger.url
        assert "secret" not in ledger.url

    def test_the_first_broker_is_the_one_that_is_bound(self, ledger: Ledger) -> None:
        """`bind` returns the identity of the first broker, even if a later caller names another broker."""
        assert ledger.bind("shop", "exports", "broker-1") == "broker-1"
        assert ledger.bind("shop", "exports", "broker-2") == "broker-1"
        assert ledger.bind("shop", "exports", "broker-1") == "broker-1"
        assert ledger.bind("shop", "refunds", "broker-2") == "broker-2"
        assert ledger.bind("other", "exports", "broker-3") == "broker-3"

    def test_owners_are_known_while_they_are_seen(self, ledger: Ledger, clock: FakeClock) -> None:
        """
        A second registration replaces the queues; a registration can name a queue twice.

        The ledger does not list an owner that has unregistered, or that was not seen for a day.
        """
        ledger.register(ME, "host", ["exports", "refunds"])
        self.let_pass(clock, self.times.renew)
        ledger.register(OTHER, "other-host", [])
        found = {seen.owner: seen for seen in ledger.owners()}
        assert set(found) == {ME, OTHER}
        assert (found[ME].host, found[ME].queues, found[ME].dead) == ("host", ("exports", "refunds"), False)
        assert found[ME].seen_ago >= self.times.renew * 0.9
        assert found[OTHER].queues == ()
        ledger.register(ME, "host", ["exports", "exports"])
        again = {seen.owner: seen for seen in ledger.owners()}[ME]
        assert (again.queues, again.seen_ago < self.times.renew) == (("exports", "exports"), True)
        ledger.unregister(OTHER)
        ledger.unregister("never seen")
        assert [seen.owner for seen in ledger.owners()] == [ME]
        if not self.own_clock:
            clock.advance(DAY + 1)
            assert list(ledger.owners()) == []

    @pytest.mark.parametrize("state", [State.RUNNING, State.INTERRUPTED, State.MOVING, State.MOVED])
    def test_a_cancel_leaves_a_mark(self, ledger: Ledger, state: State) -> None:
        """
        `cancel` returns the job's state, and changes only the cancel reason.

        A second reason replaces the first.
        """
        before, _ = in_state(ledger, state)
        assert ledger.cancel(JOB, "first") is state
        assert ledger.cancel(JOB, "wrong month") is state
        after = seen(ledger)
        assert after.cancel_reason == "wrong month"
        assert timeless(replace(after, cancel_reason=None)) == timeless(before)

    @pytest.mark.parametrize("state", [State.DONE, State.DEAD])
    def test_what_has_ended_cannot_be_cancelled(self, ledger: Ledger, state: State) -> None:
        """`cancel` returns the state of the job, and changes nothing."""
        before, _ = in_state(ledger, state)
        assert ledger.cancel(JOB, "too late") is state
        assert timeless(seen(ledger)) == timeless(before)

    def test_cancel_marks_are_read_for_the_jobs_that_an_owner_holds(self, ledger: Ledger) -> None:
        """
        `orders` returns the reasons by uid.

        It leaves out jobs without a mark, jobs that have ended, and jobs of other owners.
        """
        rows = {key: claimed(ledger, replace(JOB, key=key)) for key in ("a", "b", "c")}
        rows["d"] = claimed(ledger, replace(JOB, key="d"), OTHER)
        for key in ("a", "b", "d"):
            ledger.cancel(rows[key].id, f"wrong month {key}")
        ledger.done(rows["b"].token)
        assert ledger.orders(ME).cancels == {rows["a"].uid: "wrong month a"}
        assert ledger.orders(OTHER).cancels == {rows["d"].uid: "wrong month d"}
        assert ledger.orders("unknown") == Orders({})

    def test_a_cancel_that_is_quicker_than_its_job_makes_the_row(self, ledger: Ledger) -> None:
        """The row is `interrupted`, has no owner, and matches any body."""
        assert ledger.cancel(JOB, "not needed") is None
        row = seen(ledger)
        assert (row.state, row.cancel_reason, row.body_sha256) == (State.INTERRUPTED, "not needed", None)
        assert (row.owner, row.lease_over, row.hop) == (None, True, 0)
        assert row.uid
        assert ledger.cancel(JOB, "really") is State.INTERRUPTED

    @pytest.mark.parametrize("state", [State.INTERRUPTED, State.MOVED])
    def test_the_mark_of_a_job_without_a_run_can_be_removed(self, ledger: Ledger, state: State) -> None:
        """`uncancel` changes only the cancel reason; the second call returns False."""
        before, _ = in_state(ledger, state)
        ledger.cancel(JOB, "wrong month")
        assert ledger.uncancel(JOB)
        assert timeless(seen(ledger)) == timeless(before)
        assert not ledger.uncancel(JOB)

    @pytest.mark.parametrize("state", [State.RUNNING, State.MOVING])
    def test_the_mark_of_a_run_stays(self, ledger: Ledger, state: State) -> None:
        """The worker process may have read the mark, so `uncancel` returns False, and changes nothing."""
        in_state(ledger, state)
        ledger.cancel(JOB, "wrong month")
        assert not ledger.uncancel(JOB)
        assert seen(ledger).cancel_reason == "wrong month"

    def test_the_mark_of_a_dead_letter_stays(self, ledger: Ledger) -> None:
        """The job has ended by its cancel, so `uncancel` returns False, and changes nothing."""
        row = claimed(ledger)
        ledger.cancel(JOB, "wrong month")
        assert ledger.moving(row.token, DEAD_END)
        assert ledger.moved(row.token)
        assert not ledger.uncancel(JOB)
        assert seen(ledger).cancel_reason == "wrong month"

    def test_the_mark_of_an_unknown_job_goes_with_its_row(self, ledger: Ledger) -> None:
        """If no message has claimed the row, `uncancel` deletes the row; a message then claims the job as a new one."""
        assert not ledger.uncancel(JOB)
        ledger.cancel(JOB, "wrong month")
        assert ledger.uncancel(JOB)
        assert ledger.read(JOB) is None
        assert claimed(ledger).cancel_reason is None

    @pytest.mark.parametrize("state", State)
    def test_a_checkpoint_is_cleared_when_nobody_runs_the_job(self, ledger: Ledger, state: State) -> None:
        """`replay --from-start` clears the checkpoint, but not if the job has an owner."""
        in_state(ledger, state, checkpoint=b"17")
        assert seen(ledger).checkpoint == b"17"
        ledger.clear_checkpoint(JOB)
        kept = b"17" if state in {State.RUNNING, State.MOVING} else None
        assert seen(ledger).checkpoint == kept

    def test_progress_is_kept_for_people(self, ledger: Ledger) -> None:
        """The ledger keeps the last progress of the current run, and ignores progress of a run that was taken over."""
        row = claimed(ledger)
        assert ledger.last_progress(JOB) is None
        ledger.progress(row.token, Progress(1, 100, "page", 12.5))
        ledger.progress(row.token, Progress(2.5, None, "", 13.5))
        assert ledger.last_progress(JOB) == Progress(2.5, None, "", 13.5)
        later = claimed(ledger, owner=OTHER, seen=row)
        ledger.progress(row.token, Progress(99, 100, "stale", 14.5))
        assert ledger.last_progress(JOB) == Progress(2.5, None, "", 13.5)
        ledger.progress(later.token, Progress(3, 100, "page", 15.5))
        assert ledger.last_progress(JOB) == Progress(3, 100, "page", 15.5)

    def test_the_highest_round_of_a_key_is_known(self, ledger: Ledger) -> None:
        """`last_round` returns the highest round of a key; `send(again=True)` uses it."""
        assert ledger.last_round(JOB.namespace, JOB.queue, JOB.key) is None
        for number in (0, 2, 1):
            claimed(ledger, replace(JOB, round=number))
        claimed(ledger, replace(JOB, key="other", round=7))
        assert ledger.last_round(JOB.namespace, JOB.queue, JOB.key) == 2

    def test_jobs_are_listed_newest_first_with_their_progress(self, ledger: Ledger) -> None:
        """`jobs` returns all jobs, or only the jobs of a namespace or a queue."""
        rows = [claimed(ledger, replace(JOB, key=f"m-{number}")) for number in range(450)]
        ledger.progress(rows[3].token, Progress(1, 2, "x", 3.5))
        elsewhere = claimed(ledger, replace(JOB, namespace="other", queue="refunds"))
        listed = list(ledger.jobs())
        assert [row for row, _ in listed] == [elsewhere, *reversed(rows)]
        assert [progress for _, progress in listed if progress] == [Progress(1, 2, "x", 3.5)]
        assert [row for row, _ in ledger.jobs(JobFilter(namespace="other"))] == [elsewhere]
        assert [row for row, _ in ledger.jobs(JobFilter(queue="refunds"))] == [elsewhere]
        assert list(ledger.jobs(JobFilter("shop", "refunds"))) == []

    def test_jobs_of_some_states_and_late_jobs_are_listed_alone(self, ledger: Ledger, clock: FakeClock) -> None:
        """`jobs` can list only the rows in some states; `late_by` shows which of them are late."""
        for state in State:
            in_state(ledger, state, id=replace(JOB, key=state.value))
        scheduled = claimed(ledger, replace(JOB, key="scheduled")).token
        assert ledger.moving(scheduled, replace(AGAIN, delay=100 * self.times.lease))
        assert ledger.moved(scheduled)

        def keys(wanted: JobFilter) -> list[str]:
            return sorted(row.id.key for row, _ in ledger.jobs(wanted))

        assert keys(JobFilter(states=(State.DONE, State.DEAD))) == ["dead", "done"]
        assert keys(JobFilter(states=(State.MOVED,))) == ["moved", "scheduled"]
        assert keys(JobFilter(states=())) == []
        self.let_pass(clock, self.times.lease + AGAIN.delay)
        kept = claimed(ledger, replace(JOB, key="held now")).token
        assert ledger.renew([kept])[0].granted
        late = {row.id.key: row.late_by for row, _ in ledger.jobs() if row.late_by > 0}
        assert sorted(late) == ["moved", "moving", "running"]

    def test_a_late_job_that_a_later_round_replaces_is_not_listed_as_late(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        """
        A job whose message was lost is late until the job is sent again.

        After that, `jobs` still lists the row of the late job.
        """
        replaced, waiting = (in_state(ledger, State.MOVED, id=replace(JOB, key=key))[0].id for key in ("m-1", "m-2"))
        in_state(ledger, State.DONE, id=replace(JOB, queue="refunds", key="m-2", round=1))
        self.let_pass(clock, self.times.lease + AGAIN.delay)

        def late() -> set[JobId]:
            needs = NeedsOf(None, None, overdue=0.0, lost=2, stalled=600.0, dead=600.0)
            return {row.id for row, _, need in ledger.needing(needs, 0, 9).jobs if need is Need.OVERDUE}

        assert late() == {replaced, waiting}
        again = in_state(ledger, State.DONE, id=replace(replaced, round=1))[0].id
        assert late() == {waiting}
        assert {replaced, again} <= {row.id for row, _ in ledger.jobs()}

    def test_jobs_whose_message_is_kept_are_listed_alone(self, ledger: Ledger) -> None:
        """`jobs` can list only the rows whose message the ledger has, and that no later round replaces."""
        for key in ("waits", "replaced", "done"):
            row = ledger.claim(Claimed(replace(JOB, key=key), None, ME, 0, BODY, Counters(), KeptMessage(b"{}", b"{}")))
            assert row is not None
            assert ledger.done(row.token) if key == "done" else ledger.moving(row.token, DEAD_END)
            assert key == "done" or ledger.moved(row.token)
        in_state(ledger, State.DEAD, id=replace(JOB, key="without"))
        in_state(ledger, State.RUNNING, id=replace(JOB, key="replaced", round=1))
        listed = list(ledger.jobs(JobFilter("shop", "exports", (State.DEAD,), kept=True)))
        assert [row.id.key for row, _ in listed] == ["waits"]
        assert list(ledger.jobs(JobFilter(states=(State.DONE,), kept=True))) == []

    def test_only_the_last_round_of_each_key_is_listed(self, ledger: Ledger) -> None:
        """With `last`, `jobs` leaves out the rows that a later round of their key has replaced."""
        for round_ in (0, 1):
            in_state(ledger, State.DEAD, id=replace(JOB, round=round_))
        in_state(ledger, State.DEAD, id=replace(JOB, queue="refunds"))
        listed = [(row.id.queue, row.id.round) for row, _ in ledger.jobs(JobFilter(states=(State.DEAD,), last=True))]
        assert listed == [("refunds", 0), ("exports", 1)]

    def test_snoozed_jobs_are_listed_alone_or_left_out(self, ledger: Ledger) -> None:
        """`snoozed` selects by the reason; an error whose reason begins like the reason of a snooze is no snooze."""
        reasons = {"snoozed": replace(AGAIN, reason=f"{SNOOZED}20 s", error_class="", error_text=""), "failed": AGAIN}
        reasons["odd"] = replace(AGAIN, reason=f"{SNOOZED}ever")
        for key, verdict in reasons.items():
            token = claimed(ledger, replace(JOB, key=key)).token
            assert ledger.moving(token, verdict)
            assert ledger.moved(token)
        listed = {wanted: [row.id.key for row, _ in ledger.jobs(JobFilter(snoozed=wanted))] for wanted in (True, False)}
        assert listed == {True: ["snoozed"], False: ["odd", "failed"]}

    def test_jobs_since_a_time_are_listed_alone(self, ledger: Ledger, clock: FakeClock) -> None:
        """`since` compares with a job's end; without an end with its last start, and before its first start with its creation."""
        old, ends = (claimed(ledger, replace(JOB, key=key)).token for key in ("old", "ends late"))
        assert ledger.done(old)
        self.let_pass(clock, 0.1)
        between = clock.wall() if not self.own_clock else seen(ledger, ends.id).created_at + 0.05
        self.let_pass(clock, 0.1)
        assert ledger.done(ends)
        claimed(ledger, replace(JOB, key="starts late"))
        ledger.cancel(replace(JOB, key="mark"), "why")
        listed = [row.id.key for row, _ in ledger.jobs(JobFilter(since=between))]
        assert listed == ["mark", "starts late", "ends late"]
        assert list(ledger.jobs(JobFilter(since=between + 100))) == []

    def test_jobs_with_a_text_are_listed_alone(self, ledger: Ledger) -> None:
        """`grep` finds the text itself, not a pattern, in key, reason, error, cancel reason and note."""
        for key in ("Key-50%_", "error", "cancel", "note", "none"):
            claimed(ledger, replace(JOB, key=key))
        assert ledger.moving(seen(ledger, replace(JOB, key="error")).token, replace(AGAIN, error_text="no 50%_ here"))
        ledger.cancel(replace(JOB, key="cancel"), "50%_")
        ledger.progress(seen(ledger, replace(JOB, key="note")).token, Progress(1, 2, "page 50%_", 3.5))
        assert [row.id.key for row, _ in ledger.jobs(JobFilter(grep="50%_"))] == ["note", "cancel", "error", "Key-50%_"]
        assert [row.id.key for row, _ in ledger.jobs(JobFilter(grep="kEY-5"))] == ["Key-50%_"]
        assert [row.id.key for row, _ in ledger.jobs(JobFilter(grep="ValueError: no"))] == ["error"]
        assert list(ledger.jobs(JobFilter(grep="errorValueError"))) == []

    @pytest.mark.parametrize("state", State)
    def test_only_a_dead_job_is_forgotten(self, ledger: Ledger, state: State) -> None:
        """`forget` removes the row of a dropped dead letter, with its progress; rows in other states stay."""
        _, token = in_state(ledger, state)
        ledger.progress(token, Progress(1, 2, "", 3.5))
        ledger.forget(JOB)
        dead = state is State.DEAD
        assert (ledger.read(JOB) is None) is dead
        assert (ledger.last_progress(JOB) is None) is dead

    def test_which_jobs_have_ended_is_known_by_their_uids(self, ledger: Ledger) -> None:
        """`ended` returns the uids whose staging folders may be removed; an unknown uid is not among them."""
        uids = {}
        for state in State:
            row, _ = in_state(ledger, state, id=replace(JOB, key=state.value))
            uids[state] = row.uid
        assert ledger.ended([*uids.values(), "unknown"]) == {uids[State.DONE], uids[State.DEAD]}
        assert ledger.ended([uids[State.RUNNING], uids[State.DEAD]]) == {uids[State.DEAD]}
        assert ledger.ended([]) == frozenset()

    def test_a_checkpoint_outlives_the_replay_until_the_next_round_has_it(self, ledger: Ledger) -> None:
        """`forget` keeps the row of a replayed dead letter with a checkpoint until the next round has copied the checkpoint."""
        token = claimed(ledger).token
        ledger.checkpoint(token, b"400")
        ledger.moving(token, DEAD_END)
        ledger.moved(token)
        ledger.forget(JOB)
        assert claimed(ledger, replace(JOB, round=1)).checkpoint == b"400"
        ledger.forget(JOB)
        assert ledger.read(JOB) is None

    @pytest.mark.parametrize(("state", "known"), OLD)
    def test_a_row_is_kept_for_its_time(
        self, ledger: Ledger, clock: FakeClock, state: State, *, known: bool | None
    ) -> None:
        """
        The ledger keeps a `moved` row until 14 days after the retry is due.

        By default, the ledger keeps a `dead` row for 90 days, and a `done` row for 14 days (24 h if confirmed).
        """
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        _, token = in_state(ledger, state)
        if known is not None:
            ledger.settled(token, known)
        assert seen(ledger).settled == {None: "unknown", False: "sent", True: "confirmed"}[known]
        clock.advance(OLD[state, known] - 1)
        assert ledger.purge() == 0
        assert seen(ledger).state is state
        clock.advance(2)
        assert ledger.purge() == 1
        assert ledger.read(JOB) is None

    @pytest.mark.parametrize("name", ["done", "dead", "cancelled"])
    def test_a_queue_keeps_what_has_ended_for_its_own_times(self, ledger: Ledger, clock: FakeClock, name: str) -> None:
        """Each queue has its own time for each kind of end; without the broker's confirm, the ledger keeps a done job for 14 days."""
        shorter: dict[str, float] = {name: 0.5}
        ledger.retain(JOB.namespace, JOB.queue, Retention(**shorter))
        for queue in (JOB.queue, "other"):
            ids = {kind: replace(JOB, queue=queue, key=kind) for kind in ("done", "dead", "cancelled", "sent")}
            for kind in ("done", "sent"):
                _, token = in_state(ledger, State.DONE, id=ids[kind])
                ledger.settled(token, kind == "done")
            in_state(ledger, State.DEAD, id=ids["dead"])
            row, token = in_state(ledger, State.RUNNING, id=ids["cancelled"])
            assert ledger.cancel(row.id, "wrong month") is State.RUNNING
            assert ledger.moving(token, replace(DEAD_END, reason="cancelled: wrong month"))
            assert ledger.moved(token)
        self.let_pass(clock, 1.0)
        assert ledger.purge() == 1
        assert ledger.read(replace(JOB, key=name)) is None
        assert len(list(ledger.jobs())) == 7

    @pytest.mark.parametrize("one_turn", [False, True])
    def test_a_longer_time_also_applies_without_a_confirm(
        self, ledger: Ledger, clock: FakeClock, *, one_turn: bool
    ) -> None:
        """If a queue keeps done jobs for longer than 14 days, a job whose settlement is not confirmed stays as long."""
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        ledger.retain(JOB.namespace, JOB.queue, Retention(done=30 * DAY))
        _, token = in_state(ledger, State.RUNNING)
        _, other = in_state(ledger, State.RUNNING, id=replace(JOB, queue="other"))
        if one_turn:
            assert ledger.record([], [(token, None), (other, None)]) == ([], [True, True])
        else:
            assert ledger.done(token)
            assert ledger.done(other)
        clock.advance(14 * DAY + 1)
        assert ledger.purge() == 1
        assert seen(ledger).state is State.DONE
        clock.advance(16 * DAY)
        assert ledger.purge() == 1
        assert ledger.read(JOB) is None

    def test_a_dead_job_without_a_cancel_is_kept_after_a_cancelled_one(self, ledger: Ledger, clock: FakeClock) -> None:
        """By default, the ledger keeps a cancelled job for 7 days."""
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        row, token = in_state(ledger, State.RUNNING)
        ledger.cancel(row.id, "wrong month")
        assert ledger.moving(token, replace(DEAD_END, reason="cancelled: wrong month"))
        assert ledger.moved(token)
        failed, token = in_state(ledger, State.RUNNING, id=replace(JOB, key="failed before its cancel"))
        ledger.cancel(failed.id, "wrong month")
        assert ledger.moving(token, DEAD_END)
        assert ledger.moved(token)
        clock.advance(7 * DAY - 1)
        assert ledger.purge() == 0
        clock.advance(2)
        assert ledger.purge() == 1
        assert ledger.read(failed.id) is not None

    @pytest.mark.parametrize("state", [State.RUNNING, State.INTERRUPTED, State.MOVING])
    def test_what_is_not_ended_is_never_removed(self, ledger: Ledger, clock: FakeClock, state: State) -> None:
        """A row that has not ended is never purged, and `settled` does not change it."""
        _, token = in_state(ledger, state)
        if state is not State.INTERRUPTED:
            ledger.settled(token, known=True)
            assert seen(ledger).settled == "unknown"
        clock.advance(400 * DAY)
        assert ledger.purge() == 0
        assert seen(ledger).state is state

    def test_a_purge_removes_many(self, ledger: Ledger, clock: FakeClock) -> None:
        """`purge` returns the number of removed rows."""
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        for number in range(1200):
            ledger.done(claimed(ledger, replace(JOB, key=f"old-{number}")).token)
        kept = claimed(ledger)
        clock.advance(15 * DAY)
        assert ledger.purge() == 1200
        assert [row.id for row, _ in ledger.jobs()] == [kept.id]

    def test_only_the_last_run_records_what_is_known_of_its_message(self, ledger: Ledger) -> None:
        """`settled` of an earlier run is ignored; `confirmed` never becomes `sent` again."""
        row, stale = in_state(ledger, State.MOVED)
        token = claimed(ledger, seen=row, hop=1).token
        ledger.done(token)
        ledger.settled(stale, known=True)
        assert seen(ledger).settled == "unknown"
        ledger.settled(token, known=True)
        ledger.settled(token, known=False)
        assert seen(ledger).settled == "confirmed"

    def test_a_cancel_mark_without_a_job_is_kept_for_fourteen_days(self, ledger: Ledger, clock: FakeClock) -> None:
        """`purge` deletes the row 14 days after the last cancel, but not if a worker process has claimed the row."""
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        came = replace(JOB, key="came")
        ledger.cancel(JOB, "first")
        ledger.cancel(came, "first")
        clock.advance(10 * DAY)
        ledger.cancel(JOB, "second")
        claimed(ledger, came, seen=seen(ledger, came))
        clock.advance(13 * DAY)
        assert ledger.purge() == 0
        clock.advance(DAY + 1)
        assert ledger.purge() == 1
        assert ledger.read(JOB) is None
        assert seen(ledger, came).cancel_reason == "first"

    def test_the_bound_queues_of_a_namespace_are_listed(self, ledger: Ledger) -> None:
        """`queues` returns the queues that `bind` has bound in this namespace."""
        assert list(ledger.queues("shop")) == []
        for namespace, queue in (("shop", "exports"), ("shop", "refunds"), ("other", "exports")):
            ledger.bind(namespace, queue, "broker-1")
        assert sorted(ledger.queues("shop")) == ["exports", "refunds"]
        assert {("shop", "exports"), ("shop", "refunds")} <= set(ledger.bindings())

    @pytest.mark.parametrize("state", State)
    def test_a_conflict_is_counted_and_changes_nothing_else(self, ledger: Ledger, state: State) -> None:
        """`conflict` adds 1 to `conflicts` in every state; without a row it does nothing."""
        before, _ = in_state(ledger, state)
        ledger.conflict(JOB)
        ledger.conflict(JOB)
        ledger.conflict(replace(JOB, key="unknown"))
        assert timeless(seen(ledger)) == timeless(replace(before, conflicts=2))
        assert ledger.read(replace(JOB, key="unknown")) is None

    def test_the_record_outlives_the_process(self, ledger: Ledger, tmp_path: Path, clock: FakeClock) -> None:
        """A ledger that was closed, even twice, and opened again still has all rows, and its fences continue."""
        if not self.durable:
            pytest.skip("is not durable")
        token = claimed(ledger).token
        ledger.checkpoint(token, b"17")
        ledger.cancel(JOB, "wrong month")
        ledger.bind("shop", "exports", "broker-1")
        ledger.progress(token, Progress(1, 2, "", 3.5))
        before, id_ = seen(ledger), ledger.ledger_id()
        ledger.close()
        ledger.close()
        second = self.make_ledger(tmp_path, clock, self.times)
        assert seen(second) == before
        assert second.ledger_id() == id_
        assert second.bind("shop", "exports", "broker-2") == "broker-1"
        assert second.last_progress(JOB) == Progress(1, 2, "", 3.5)
        assert claimed(second, replace(JOB, key="b")).fence > before.fence
        second.close()

    def test_what_one_worker_writes_the_next_reads(self, ledger: Ledger, tmp_path: Path, clock: FakeClock) -> None:
        """Two worker processes that open one ledger read and write one record."""
        second = self.make_ledger(tmp_path, clock, self.times)
        assert second.ledger_id() == ledger.ledger_id()
        row = claimed(ledger)
        assert second.read(JOB) == row
        other = claimed(second, owner=OTHER, seen=row)
        assert other.fence > row.fence
        assert not ledger.done(row.token)
        assert second.done(other.token)
        assert seen(ledger).state is State.DONE
        second.close()

    def test_keys_are_kept_as_they_are(self, ledger: Ledger) -> None:
        """Keys that differ in case, `:` or `.` are different jobs."""
        keys = ["a", "A", "a:", "a.", "a:b"]
        uids = {claimed(ledger, JobId("shop", "exports", key)).uid for key in keys}
        assert len(uids) == len(keys)
