"""The screen of `jobs`, exactly, at 80 and at 140 columns; and the order of a listing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from steadyworker.cli.job_lines import as_record, lines_of, state_text, why
from steadyworker.clock import Times
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Moving, OwnerSeen, Progress, Row, State, Verdict
from steadyworker.ledger.facts import OwnerReport, QueueReport
from steadyworker.ledger.lease import QUIET, registered_name
from steadyworker.ledger.listing import CRASHES, ListedJob, Listing, Liveness, Need, Wanted, owner_now, time_left
from steadyworker.outcome import CANCELLED, SNOOZED, Counters, JobState
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger

JOB = JobId("shop", "exports", "k")
NAME = registered_name("shop", "exports")
TIMES = Times()
QUEUE = QueueReport(2, 1, 7200.0, connected=True)
NONE, EVERY = Counters(), Wanted()


class Night:
    """A ledger at night: worker processes that live or not, and a job in each state."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.dead: set[str] = set()
        self.ledger = MemoryLedger(self.clock, TIMES, "worker-1", self.dead.__contains__)
        self.ledger.bind("shop", "exports", "shop")

    def register(self, *owners: str, **queue: object) -> None:
        for number, owner in enumerate(owners):
            report = OwnerReport(100 + number, "1.0", queues={NAME: replace(QUEUE, **queue)})
            self.ledger.renew([row.token for row, _ in self.ledger.jobs() if row.owner == owner])
            self.ledger.register(owner, "host-1", [NAME], report)

    def claim(self, key: str, owner: str = "alive", counters: Counters = NONE, queue: str = "exports") -> Row:
        id = JobId("shop", queue, key)
        row = self.ledger.claim(Claimed(id, None, owner, 0, b"\x01" * 32, counters, KeptMessage(b"{}", b"{}")))
        assert row is not None
        return row

    def end(self, key: str, verdict: Verdict | None = None) -> None:
        row = self.claim(key)
        if verdict is None:
            assert self.ledger.done(row.token)
        else:
            assert self.ledger.moving(row.token, verdict)
            assert self.ledger.moved(row.token)

    def jobs(self, wanted: Wanted = EVERY) -> list[ListedJob]:
        return list(Listing(self.ledger, wanted, self.clock.wall()).jobs())

    def keys(self, wanted: Wanted = EVERY) -> list[str]:
        return [job.row.id.key for job in self.jobs(wanted)]


def retry(**values: object) -> Verdict:
    defaults = {
        "target": Moving.RETRY,
        "reason": "ValueError: no such merchant: m-17",
        "counters": Counters(attempts=2),
    }
    return Verdict(**(defaults | {"delay": 7200.0, "error_class": "ValueError"} | values))  # type: ignore[arg-type]


@pytest.fixture
def night() -> Night:
    night = Night()
    night.register("silent", "gone", "alive")
    night.end("old-dead", retry(target=Moving.DEAD, reason="exhausted", counters=Counters(attempts=5)))
    night.clock.advance(2 * 86400.0)
    night.end("done")
    cancelled = night.claim("cancelled")
    night.ledger.cancel(cancelled.id, "wrong month")
    end = retry(target=Moving.DEAD, reason=f"{CANCELLED}wrong month", error_class="", counters=Counters())
    assert night.ledger.moving(cancelled.token, end)
    assert night.ledger.moved(cancelled.token)
    night.end("dead", retry(target=Moving.DEAD, reason="exhausted: ValueError: no such merchant: m-17"))
    night.end("scheduled", retry(reason=f"{SNOOZED}2 h", error_class="", counters=Counters()))
    night.end("retrying", retry())
    night.end("crashing", retry(reason="killed by SIGSEGV", counters=Counters(crashes=CRASHES), error_class=""))
    night.claim("on-a-silent-worker", "silent")
    night.claim("on-a-dead-worker", "gone")
    night.register("silent", "gone", "alive")
    night.clock.advance(40.0)
    night.register("alive")
    long = night.claim("report-of-the-whole-year-for-merchant-m-17")
    night.ledger.progress(long.token, Progress(1140, 4000, "pages", night.clock.wall()))
    night.clock.advance(60.0)
    night.register("silent", "gone", "alive")
    night.ledger.progress(long.token, Progress(1200, 4000, "pages", night.clock.wall()))
    night.clock.advance(40.0)
    night.register("alive")
    night.dead.add("gone")
    return night


def test_what_needs_a_person_comes_first_then_by_state_newest_first(night: Night) -> None:
    assert night.keys() == [
        "crashing",
        "report-of-the-whole-year-for-merchant-m-17",
        "on-a-dead-worker",
        "on-a-silent-worker",
        "dead",
        "retrying",
        "scheduled",
        "cancelled",
        "done",
        "old-dead",
    ]


SCREEN_80 = """\
KEY                    STATE        PROGRESS     ELAPSED  WHY
crashing               retrying                        –  2 crashes; due in 1 h…
report-of-the-whole-…  running      30% 1,2…  1 min 40 s  about 46 min 00 s left
on-a-dead-worker       gone                   2 min 20 s  taken over by another…
on-a-silent-worker     silent 40 s            2 min 20 s  no renewal for 40 s: …
dead                   dead                          0 s  exhausted: ValueError…
retrying               retrying                        –  due in 1 h 57 min; Va…
scheduled              scheduled                       –  due in 1 h 57 min; sn…
cancelled              cancelled                     0 s  cancelled: wrong month
done                   done                          0 s
old-dead               dead                          0 s  gave up after 5 failu…
"""
SCREEN_140 = """\
KEY                     STATE        ATTEMPTS  PROGRESS             LIMIT       STARTED     ELAPSED  WHY
crashing                retrying            0                           –         22:13           –  2 crashes; due in 1 h 57 min; killed b…
report-of-the-whole-y…  running             0  30% 1,2…  1% of 2 h 00 min         22:14  1 min 40 s  about 46 min 00 s left
on-a-dead-worker        gone                0            1% of 2 h 00 min         22:13  2 min 20 s  taken over by another worker within 50…
on-a-silent-worker      silent 40 s         0            1% of 2 h 00 min         22:13  2 min 20 s  no renewal for 40 s: frozen, or cut of…
dead                    dead                2                           –         22:13         0 s  exhausted: ValueError: no such merchan…
retrying                retrying            2                           –         22:13           –  due in 1 h 57 min; ValueError: no such…
scheduled               scheduled           0                           –         22:13           –  due in 1 h 57 min; snoozed for 2 h
cancelled               cancelled           0                           –         22:13         0 s  cancelled: wrong month
done                    done                0                           –         22:13         0 s
old-dead                dead                5                           –  14 Nov 22:13         0 s  gave up after 5 failures: ValueError
"""


def shown(night: Night, width: int, *, verbose: bool = False) -> str:
    lines = lines_of(night.jobs(), width, night.clock.wall(), verbose=verbose)
    return "".join(f"{line.plain}\n" for line in lines)


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(("width", "expected"), [(80, SCREEN_80), (140, SCREEN_140)])
def test_a_job_is_one_line_on_every_screen(night: Night, width: int, expected: str) -> None:
    assert shown(night, width) == expected


@pytest.mark.usefixtures("utc")
def test_verbose_has_the_whole_text_that_was_cut_below_its_job(night: Night) -> None:
    lines = shown(night, 80, verbose=True).splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("dead ")]
    whole = "exhausted: ValueError: no such merchant: m-17; `steadyworker dead replay exports dead` runs it again"
    assert lines[place + 1] == f"  {whole}"
    (place,) = [number for number, line in enumerate(lines) if line.startswith("cancelled ")]
    assert lines[place + 1].startswith("done ")


def test_a_run_without_a_connection_goes_on_and_its_line_names_the_reason(night: Night) -> None:
    night.register("alive", connected=False)
    assert "its worker has no connection to the broker; it goes on" in shown(night, 300)


def test_a_run_without_progress_for_half_an_hour_needs_a_person(night: Night) -> None:
    for _ in range(31):
        night.clock.advance(60.0)
        night.register("alive", "silent")
    report = next(job for job in night.jobs() if job.row.id.key.startswith("report"))
    assert report.need is Need.STUCK
    remedy = "; `steadyworker cancel exports report-of-the-whole-year-for-merchant-m-17` ends the run;"
    pace = "no progress for 31 min 40 s at 1,200 of 4,000, pages; before that, a step took about 1.0 s"
    assert f"{pace}{remedy} the job becomes a dead letter, and" in shown(night, 400)


def test_a_run_that_may_hang_has_no_time_left(night: Night) -> None:
    """Its rate was right for as long as it made progress: twice the minute between its samples."""
    night.clock.advance(75.0)
    night.register("alive", "silent")
    assert "about 44 min 45 s left" in shown(night, 200)
    night.clock.advance(215.0)
    night.register("alive", "silent")
    (job,) = night.jobs(Wanted(keys=("report-of-the-whole-year-for-merchant-m-17",)))
    record = as_record(job, night.clock.wall())
    assert (record["state"], record["need"], record["eta"], state_text(job)) == ("running", "stuck", None, "may hang")
    assert "left" not in why(job, night.clock.wall())


def test_a_time_left_that_is_over_is_unknown() -> None:
    progress = Progress(90.0, 100.0, "", 1000.0, before=(900.0, 80.0))
    assert time_left(progress, 1099.0) == 1.0
    assert time_left(progress, 1101.0) is None
    assert time_left(Progress(100.0, 100.0, "", 1000.0, before=(900.0, 80.0)), 1001.0) is None


def test_a_few_dead_jobs_stand_for_all_of_one_reason(night: Night) -> None:
    """The key of a job in its reason makes no reason of its own; a run comes before all dead jobs."""
    for number in range(60):
        night.end(f"m-{number}", retry(target=Moving.DEAD, reason=f"no such merchant: m-{number}", error_class=""))
    listing = Listing(night.ledger, EVERY, night.clock.wall(), few_dead=True)
    keys = [job.row.id.key for job in listing.jobs()]
    assert keys[4:8] == ["m-59", "m-58", "m-57", "dead"]
    assert keys[8:] == ["retrying", "scheduled", "cancelled", "done", "old-dead"]
    assert listing.left_out == 57
    assert len(night.keys()) == len(keys) + 57


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (Progress(1200, 4000, "", 100.0, (40.0, 1140)), 2800.0),
        (Progress(4000, 4000, "", 110.0, (50.0, 3940)), 0.0),
        (Progress(1200, 4000, "", 110.0, None), None),
        (Progress(1200, 4000, "", 110.0, (50.0, 1200)), None),
        (Progress(1200, None, "", 110.0, (50.0, 1140)), None),
        (Progress(None, 4000, "", 110.0, (50.0, 1140)), None),
        (None, None),
    ],
)
def test_the_time_left_follows_the_rate_of_the_last_minutes(progress: Progress | None, expected: float | None) -> None:
    """The rate is one page a second."""
    assert time_left(progress, 110.0 if progress is None else progress.at) == expected


def test_the_time_left_counts_down_between_two_reports() -> None:
    assert time_left(Progress(1200, 4000, "", 100.0, (40.0, 1140)), 110.0) == 2790.0


def test_the_queue_has_a_column_if_there_are_two(night: Night) -> None:
    night.claim("refund-1", queue="refunds")
    assert [line.split()[0] for line in shown(night, 80).splitlines()][:3] == ["QUEUE", "exports", "refunds"]


def test_conditions_choose_and_keep_the_order(night: Night) -> None:
    states = frozenset((JobState.DONE, JobState.RUNNING))
    report = "report-of-the-whole-year-for-merchant-m-17"
    assert night.keys(Wanted(states=states)) == [report, "on-a-dead-worker", "on-a-silent-worker", "done"]
    assert night.keys(Wanted(states=frozenset((JobState.DEAD,)))) == ["dead", "old-dead"]
    assert night.keys(Wanted(states=frozenset((JobState.CANCELLED,)))) == ["cancelled"]
    assert night.keys(Wanted(grep="MERCHANT")) == [report, "dead", "retrying"]
    assert night.keys(Wanted(since=night.clock.wall() - 3600, states=frozenset((JobState.DEAD,)))) == ["dead"]
    assert night.keys(Wanted(keys=("done", "unknown", "dead"))) == ["done", "dead"]
    assert night.keys(Wanted(queue="refunds")) == []
    assert night.keys(Wanted(overdue=True)) == []


def test_each_round_of_a_key_is_listed_and_only_the_last_needs_a_person(night: Night) -> None:
    night.ledger.replay(JobId("shop", "exports", "dead", 1), KeptMessage(b"{}", b"{}"), b"\x01" * 32)
    jobs = night.jobs(Wanted(keys=("dead",)))
    assert [(job.row.id.round, job.row.job_state, job.need) for job in jobs] == [
        (1, JobState.RETRYING, None),
        (0, JobState.DEAD, None),
    ]
    assert "dead" not in [job.row.id.key for job in night.jobs() if job.need is Need.DEAD]


def test_an_ended_round_of_a_replayed_job_is_listed_only_with_its_key(night: Night) -> None:
    night.ledger.replay(JobId("shop", "exports", "dead", 1), KeptMessage(b"{}", b"{}"), b"\x01" * 32)
    replayed = [(job.row.id.round, job.row.job_state) for job in night.jobs() if job.row.id.key == "dead"]
    assert replayed == [(1, JobState.RETRYING)]
    assert night.keys(Wanted(states=frozenset((JobState.DEAD,)))) == ["old-dead"]


def test_a_cancel_that_waits_for_its_job_is_listed_only_with_its_state_or_key(night: Night) -> None:
    night.ledger.cancel(JobId("shop", "exports", "early", 0), "wrong month")
    assert "early" not in [job.row.id.key for job in night.jobs()]
    assert night.keys(Wanted(states=frozenset((JobState.INTERRUPTED,)))) == []
    for wanted in (Wanted(states=frozenset((JobState.CANCEL_WAITING,))), Wanted(keys=("early",))):
        assert [(job.row.id.key, job.row.job_state) for job in night.jobs(wanted)] == [
            ("early", JobState.CANCEL_WAITING)
        ]


def test_a_job_of_a_lost_worker_process_needs_a_person_if_no_other_consumes_its_queue(night: Night) -> None:
    night.dead |= {"alive", "silent"}
    first, second, *_ = night.jobs(Wanted(states=frozenset((JobState.RUNNING,))))
    assert (first.need, second.need) == (Need.NO_WORKER, Need.NO_WORKER)
    assert "no worker consumes this queue: start one with `steadyworker run MODULE:CLASS`" in shown(night, 300)


def test_a_job_that_waits_in_a_paused_queue_names_the_pause_and_its_remedy(night: Night) -> None:
    """All worker processes of the queue register as quiet then; they take the job of the lost one over after the pause."""
    night.ledger.facts.pause("shop", "exports", "ada@ops", "the bank is closed")
    for owner in ("silent", "alive"):
        night.ledger.register(owner, "host-1", [f"{NAME}{QUIET}"])
    jobs = {job.row.id.key: job for job in night.jobs()}
    lost = jobs["on-a-dead-worker"]
    assert lost.need is None
    assert lost.owner is not None
    assert lost.owner.heirs == 2
    paused = "its queue is paused by ada@ops 0 s ago; the bank is closed; `steadyworker resume exports` ends the pause"
    assert why(lost, night.clock.wall()) == f"its worker is gone; {paused}"
    assert [key for key, job in jobs.items() if paused in why(job, 0.0)] == [
        "crashing",
        "on-a-dead-worker",
        "retrying",
        "scheduled",
    ]
    night.dead |= {"alive", "silent"}
    (lost, *_) = night.jobs(Wanted(keys=("on-a-dead-worker",)))
    assert lost.need is Need.NO_WORKER
    assert why(lost, 0.0) == f"no worker consumes this queue: start one with `steadyworker run MODULE:CLASS`; {paused}"


def test_no_message_of_a_paused_queue_counts_as_lost(night: Night) -> None:
    """It waits at the broker; the retry itself is late."""
    night.clock.advance(3 * 3600.0)
    assert {job.row.id.key for job in night.jobs() if job.orphan is not None} >= {"retrying", "on-a-dead-worker"}
    night.ledger.facts.pause("shop", "exports", "ada@ops", "")
    jobs = {job.row.id.key: job for job in night.jobs(Wanted(overdue=True))}
    assert [key for key, job in jobs.items() if job.orphan is not None] == []
    assert jobs["retrying"].need is Need.OVERDUE
    paused = "its queue is paused by ada@ops 0 s ago; `steadyworker resume exports` ends the pause"
    assert why(jobs["retrying"], 0.0).startswith(f"late by 1 h 02 min; {paused}; ")
    assert "steadyworker retry" not in why(jobs["retrying"], 0.0)


ROW = Row(JOB, "uid", State.RUNNING, owner="me", lease_over=False)


@pytest.mark.parametrize(
    ("row", "seen_ago", "dead", "expected"),
    [
        (ROW, 14.0, False, (Liveness.ALIVE, 14.0, 76.0)),
        (ROW, 30.0, False, (Liveness.ALIVE, 30.0, 60.0)),
        (ROW, 40.0, False, (Liveness.SILENT, 40.0, 50.0)),
        (replace(ROW, late_by=15.0), 75.0, False, (Liveness.SILENT, 75.0, 15.0)),
        (replace(ROW, lease_over=True, late_by=31.0), 91.0, False, (Liveness.GONE, 91.0, 0.0)),
        (replace(ROW, lease_over=True), 10.0, True, (Liveness.GONE, 10.0, 80.0)),
        (ROW, None, False, (Liveness.ALIVE, None, 90.0)),
        (replace(ROW, lease_over=True, late_by=180.0), None, False, (Liveness.GONE, 240.0, 0.0)),
    ],
)
def test_the_owner_is_alive_silent_or_gone(
    row: Row, seen_ago: float | None, dead: bool, expected: tuple[object, ...]
) -> None:
    seen = {} if seen_ago is None else {"me": OwnerSeen("me", "h", (NAME,), seen_ago, dead)}
    owner = owner_now(row, seen, TIMES)
    assert owner is not None
    assert (owner.liveness, owner.silent_for, owner.free_within, owner.heirs) == (*expected, 0)
    assert owner_now(replace(row, owner=None), seen, TIMES) is None


def test_only_living_owners_that_consume_the_queue_are_heirs() -> None:
    owners = {
        name: OwnerSeen(name, "h", queues, seen_ago, dead)
        for name, queues, seen_ago, dead in (
            ("me", (NAME,), 1.0, True),
            ("other", (NAME,), 1.0, False),
            ("quiet", (f"{NAME} (quiet)",), 1.0, False),
            ("elsewhere", ("shop/refunds",), 1.0, False),
            ("dead", (NAME,), 1.0, True),
            ("long ago", (NAME,), 91.0, False),
        )
    }
    owner = owner_now(ROW, owners, TIMES)
    assert owner is not None
    assert owner.liveness is Liveness.GONE
    assert owner.heirs == 1


def test_a_job_of_a_lost_worker_process_waits_for_the_end_of_a_pause(night: Night) -> None:
    """The other worker processes obey the pause, and will take the job over, so nobody has to start another one."""
    night.ledger.facts.pause("shop", "exports", "ann@desk", "the bank is closed")
    for owner in ("alive", "silent"):
        night.ledger.register(owner, "host-1", [f"{NAME}{QUIET}"])
    jobs = {job.row.id.key: job for job in night.jobs()}
    (pause,) = night.ledger.facts.pauses()
    paused = {key for key, job in jobs.items() if job.pause == pause}
    assert paused == {"crashing", "on-a-dead-worker", "retrying", "scheduled"}
    assert jobs["on-a-dead-worker"].need is None
    text = (
        "its worker is gone; its queue is paused by ann@desk 0 s ago; the bank is closed; `steadyworker resume exports`"
    )
    assert text in shown(night, 300)
    assert "start one with" not in shown(night, 300)
