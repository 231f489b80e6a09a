"""Promises about facts: reports, links, counts, orders, actions and depths."""
# ruff: noqa: PLR2004 - the expected number belongs in the assertion

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from steadyworker.adapter import Depth
from steadyworker.ledger.base import JobFilter, Ledger, Orders, Progress
from steadyworker.ledger.facts import (
    DURATIONS,
    Action,
    LinkEvent,
    Minute,
    OwnerReport,
    QueueReport,
    ReportedFinding,
)
from steadyworker.ledger.retention import DAY
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance.ledger_fixtures import JOB, ME, OTHER, LedgerBench, claimed

ADA, BOB = "ada@ops", "bob@ops"
SECRET = "kanarie-7"  # noqa: S105 - no recognised secret may reach a fact
URL = f"https://shop:{SECRET}@host/path"
REPORT = OwnerReport(
    pid=17,
    version="0.9",
    started_at=1000.5,
    stage="running",
    ready=False,
    not_ready=("exports: broker: connecting",),
    queues={"shop/exports": QueueReport(4, 2, 60.0, connected=True), "shop/refunds": QueueReport(1, paused=True)},
    findings=(ReportedFinding("check.windows", "warning", "text"),),
)
CLASSES = len(DURATIONS) + 1


def event(at: float, *, owner: str = ME, fence: int | None = None) -> LinkEvent:
    """Return an event of a link."""
    return LinkEvent(owner, "exports", at, 1, "lost", "reset", fence)


def minute(at: int, *counts: int, queue: str = "exports", outcome: str = "done") -> Minute:
    """Return the counts of one minute, whose last classes have no runs."""
    return Minute("shop", queue, at, outcome, (*counts, *(0,) * (CLASSES - len(counts))))


class FactPromises(LedgerBench):
    """Tests of every promise of `steadyworker.ledger.facts.Facts`, except the promises of attempts."""

    def test_a_report_comes_back_with_its_owner(self, ledger: Ledger) -> None:
        """A later registration replaces the report; an owner of an older version has no report."""
        ledger.register(ME, "host", ["shop/exports"], REPORT)
        ledger.register(OTHER, "host", [])
        assert {seen.owner: seen.report for seen in ledger.owners()} == {ME: REPORT, OTHER: None}
        ledger.register(ME, "host", [], replace(REPORT, ready=True))
        assert {seen.owner: seen.report for seen in ledger.owners()}[ME] == replace(REPORT, ready=True)

    def test_progress_has_an_earlier_sample_of_the_last_minutes(self, ledger: Ledger) -> None:
        """The earlier sample is from 60 s to about 120 s older, and belongs to the same run."""
        row = claimed(ledger)
        ages = []
        for at in range(0, 400, 7):
            ledger.progress(row.token, Progress(at / 2, 1000, "", float(at)))
            last = ledger.last_progress(JOB)
            assert last is not None
            assert last.before is None or last.before[1] == last.before[0] / 2
            ages.append(None if last.before is None else at - last.before[0])
        assert ages[:9] == [None] * 9
        assert all(age is not None and 60 <= age <= 127 for age in ages[9:])
        [(_, listed)] = ledger.jobs(JobFilter())
        assert listed == ledger.last_progress(JOB)
        later = claimed(ledger, owner=OTHER, seen=row)
        ledger.progress(later.token, Progress(1, 1000, "", 500.0))
        assert ledger.last_progress(JOB) == Progress(1, 1000, "", 500.0)

    def test_progress_without_a_number_has_no_earlier_sample(self, ledger: Ledger) -> None:
        """A sample without a number never becomes the earlier sample, and never replaces it."""
        row = claimed(ledger)
        for at, done in ((0.0, None), (10.0, 1.0), (80.0, None), (90.0, 2.0)):
            ledger.progress(row.token, Progress(done, None, "", at))
        assert ledger.last_progress(JOB) == Progress(2.0, None, "", 90.0, (10.0, 1.0))

    def test_link_events_are_listed_oldest_first(self, ledger: Ledger) -> None:
        """A listing can begin at a time, and have only the events of one owner or of some runs."""
        now = float(int(ledger_now(ledger)))
        events = [event(now - 3.5), event(now - 2.0, owner=OTHER), event(now - 1.0, fence=7), event(now, fence=8)]
        ledger.facts.add_link_events([events[2], events[0]])
        ledger.facts.add_link_events([events[3], events[1]])
        ledger.facts.add_link_events([])
        assert list(ledger.facts.link_events(0)) == events
        assert list(ledger.facts.link_events(now - 2.0)) == events[1:]
        assert list(ledger.facts.link_events(0, owner=OTHER)) == [events[1]]
        assert list(ledger.facts.link_events(0, fences=[8, 7, 99])) == events[2:]
        assert list(ledger.facts.link_events(0, owner=OTHER, fences=[7])) == []

    def test_counts_of_one_minute_add_up(self, ledger: Ledger) -> None:
        """Two worker processes can count the same minute; the ledger adds their counts."""
        ledger.facts.add_minutes([minute(60, 1, 2), minute(120, 0, 0, 5), minute(60, 1, queue="refunds")])
        ledger.facts.add_minutes([minute(60, 3), minute(60, *[0] * 11, 4), minute(60, 1, outcome="failed")])
        ledger.facts.add_minutes([])
        first = minute(60, 4, 2, *[0] * 9, 4)
        failed, refunds = minute(60, 1, outcome="failed"), minute(60, 1, queue="refunds")
        assert list(ledger.facts.minutes(0)) == [first, failed, refunds, minute(120, 0, 0, 5)]
        assert first.runs == 10
        assert list(ledger.facts.minutes(61)) == [minute(120, 0, 0, 5)]
        assert list(ledger.facts.minutes(0, "shop", "refunds")) == [refunds]
        assert list(ledger.facts.minutes(0, "other")) == []

    def test_a_pause_lasts_until_it_is_ended(self, ledger: Ledger) -> None:
        """A second pause replaces the first; every owner gets all pauses with its orders."""
        assert ledger.orders(ME) == Orders({})
        ledger.facts.pause("shop", "refunds", ADA, "bank is closed")
        ledger.facts.pause("shop", "exports", ADA, "first")
        ledger.facts.pause("shop", "exports", BOB, "disk is full")
        found = list(ledger.facts.pauses())
        assert [(each.queue, each.who, each.reason) for each in found] == [
            ("exports", BOB, "disk is full"),
            ("refunds", ADA, "bank is closed"),
        ]
        assert all(abs(each.at - ledger_now(ledger)) < 60 for each in found)
        assert sorted(ledger.orders(ME).pauses, key=lambda each: each.queue) == found
        assert ledger.facts.resume("shop", "exports")
        assert not ledger.facts.resume("shop", "exports")
        assert not ledger.facts.resume("other", "refunds")
        assert list(ledger.facts.pauses()) == found[1:]
        assert list(ledger.orders(OTHER).pauses) == found[1:]

    def test_a_pause_of_another_process_is_among_the_orders(
        self, ledger: Ledger, tmp_path: Path, clock: FakeClock
    ) -> None:
        """An owner that has just read its orders reads each later order of any process: pause, command, cancel mark."""
        person = self.make_ledger(tmp_path, clock, self.times)
        row = claimed(ledger)
        for giver in (person, ledger):
            assert ledger.orders(ME) == Orders({})
            giver.facts.pause("shop", "exports", ADA, "disk is full")
            assert [pause.who for pause in ledger.orders(ME).pauses] == [ADA]
            giver.facts.resume("shop", "exports")
            assert ledger.orders(ME) == Orders({})
            giver.facts.command(ME, "quiet", ADA)
            assert ledger.orders(ME).commands
            assert ledger.facts.commands(ME)
        assert ledger.orders(ME) == Orders({})
        person.cancel(JOB, "wrong month")
        assert ledger.orders(ME) == Orders({row.uid: "wrong month"})
        ledger.cancel(JOB, "wrong year")
        assert ledger.orders(ME) == Orders({row.uid: "wrong year"})
        person.close()

    def test_a_pause_outlives_the_process(self, ledger: Ledger, tmp_path: Path, clock: FakeClock) -> None:
        """A worker process that starts while its queue is paused gets the pause."""
        ledger.facts.pause("shop", "exports", ADA, "disk is full")
        found = list(ledger.facts.pauses())
        if self.durable:
            ledger.close()
        second = self.make_ledger(tmp_path, clock, self.times)
        assert list(second.orders(OTHER).pauses) == found
        second.close()

    def test_a_command_is_read_once_by_its_owner(self, ledger: Ledger) -> None:
        """Commands come in order, and only to the process that they name."""
        ledger.facts.command(ME, "quiet", ADA)
        ledger.facts.command(OTHER, "quiet", BOB)
        ledger.facts.command(ME, "resume", BOB)
        assert (ledger.orders(ME).commands, ledger.orders("unknown").commands) == (True, False)
        found = ledger.facts.commands(ME)
        assert [(each.name, each.who) for each in found] == [("quiet", ADA), ("resume", BOB)]
        assert all(abs(each.at - ledger_now(ledger)) < 60 for each in found)
        assert list(ledger.facts.commands(ME)) == []
        assert (ledger.orders(ME).commands, ledger.orders(OTHER).commands) == (False, True)
        assert [each.who for each in ledger.facts.commands(OTHER)] == [BOB]

    def test_actions_are_listed_newest_first(self, ledger: Ledger) -> None:
        """The ledger sets the time; an action names at most twenty keys, and counts all of them."""
        keys = tuple(f"m-{number}" for number in range(30))
        ledger.facts.act(Action(ADA, "cancel", "shop", "exports", keys, 30, "wrong month", at=5.0))
        ledger.facts.act(Action(BOB, "pause", "shop", "refunds"))
        ledger.facts.act(Action(BOB, "cancel", "other", "exports", ("m-1",), 1))
        found = list(ledger.facts.actions())
        assert [(each.who, each.what, each.namespace, each.queue) for each in found] == [
            (BOB, "cancel", "other", "exports"),
            (BOB, "pause", "shop", "refunds"),
            (ADA, "cancel", "shop", "exports"),
        ]
        assert (found[2].keys, found[2].count, found[2].detail) == (keys[:20], 30, "wrong month")
        assert all(abs(each.at - ledger_now(ledger)) < 60 for each in found)
        assert list(ledger.facts.actions(limit=1)) == found[:1]
        assert list(ledger.facts.actions(key="m-1")) == [found[0], found[2]]
        assert list(ledger.facts.actions(key="m-29")) == []
        assert list(ledger.facts.actions(namespace="shop", queue="exports")) == [found[2]]
        assert list(ledger.facts.actions(found[0].at + 60)) == []
        assert list(ledger.facts.actions(found[2].at)) == found

    def test_one_process_of_a_fleet_may_measure(self, ledger: Ledger, tmp_path: Path, clock: FakeClock) -> None:
        """Each queue has its own period, in which one process may measure."""
        second, every = self.make_ledger(tmp_path, clock, self.times), self.times.renew
        assert ledger.facts.may_measure("shop", "exports", every)
        assert not second.facts.may_measure("shop", "exports", every)
        assert second.facts.may_measure("shop", "refunds", every)
        self.let_pass(clock, every + 0.01)
        assert second.facts.may_measure("shop", "exports", every)
        assert not ledger.facts.may_measure("shop", "exports", every)
        second.close()

    def test_the_last_depth_of_each_queue_is_kept(self, ledger: Ledger, clock: FakeClock) -> None:
        """A queue that was never measured has no depth, even if a process may measure it."""
        assert ledger.facts.may_measure("shop", "exports", 10)
        assert list(ledger.facts.depths()) == []
        ledger.facts.record_depth("shop", "refunds", Depth.unknown("no right to count"))
        ledger.facts.record_depth("shop", "exports", Depth(ready=1))
        self.let_pass(clock, self.times.renew)
        ledger.facts.record_depth("shop", "exports", Depth(40, 3, 1.5, 2, 0, 7, why={"oldest_age": "not reported"}))
        exports, refunds = ledger.facts.depths()
        assert (exports.namespace, exports.queue, exports.depth) == (
            "shop",
            "exports",
            Depth(40, 3, 1.5, 2, 0, 7, why={"oldest_age": "not reported"}),
        )
        assert refunds.depth == Depth.unknown("no right to count")
        assert exports.age < self.times.renew * 0.9 <= refunds.age

    def test_no_secret_reaches_a_fact(self, ledger: Ledger) -> None:
        """Texts come from brokers, libraries and people, and can contain the password of a URL; long texts are cut."""
        long = f"{URL} {'x' * 10_000} \0 \udcff"
        finding = ReportedFinding("check.windows", "error", long)
        ledger.register(ME, "host", [], replace(REPORT, not_ready=(long,), findings=(finding,)))
        ledger.facts.add_link_events([replace(event(ledger_now(ledger)), why=long)])
        ledger.facts.pause("shop", "exports", long, long)
        ledger.facts.command(ME, "quiet", long)
        ledger.facts.act(Action(long, long, "shop", "exports", (long,), 1, long))
        ledger.facts.record_depth("shop", "exports", Depth.unknown(long))
        facts = ledger.facts
        found = [
            repr(each)
            for each in (
                *ledger.owners(),
                *facts.link_events(0),
                *facts.pauses(),
                *facts.commands(ME),
                *facts.actions(),
                *facts.depths(),
            )
        ]
        assert len(found) == 6
        assert not [text for text in found if SECRET in text]
        assert all("https://shop:***@host" in text for text in found)
        assert all(len(text) < 6000 for text in found)

    def test_a_ledger_knows_its_bytes_or_nothing(self, ledger: Ledger) -> None:
        """A ledger in memory has no bytes of its own."""
        claimed(ledger)
        size = ledger.size()
        assert size is None or size > 0

    @pytest.mark.parametrize(
        ("kind", "days"), [("link events", 1), ("minutes", 2), ("commands", 1), ("depths", 1), ("actions", 90)]
    )
    def test_a_fact_is_kept_for_its_time(self, ledger: Ledger, clock: FakeClock, kind: str, days: int) -> None:
        """A pause is kept until a person ends it."""
        if self.own_clock:
            pytest.skip("reads a clock of its own")
        facts, now = ledger.facts, ledger_now(ledger)
        facts.add_link_events([event(now)])
        facts.add_minutes([minute(int(now) + 1, 1)])
        facts.command(ME, "quiet", ADA)
        facts.record_depth("shop", "exports", Depth(ready=1))
        facts.act(Action(ADA, "pause"))
        facts.pause("shop", "exports", ADA, "")

        def kept() -> bool:
            return bool(
                {
                    "link events": facts.link_events(0),
                    "minutes": facts.minutes(0),
                    "commands": ledger.orders(ME).commands,
                    "depths": facts.depths(),
                    "actions": facts.actions(),
                }[kind]
            )

        clock.advance(days * DAY - 1)
        ledger.purge()
        assert kept()
        clock.advance(3)
        ledger.purge()
        assert not kept()
        assert len(facts.pauses()) == 1


def ledger_now(ledger: Ledger) -> float:
    """Return the ledger's clock, as the time of an action shows it."""
    ledger.facts.pause("clock", "clock", "", "")
    [now] = [pause.at for pause in ledger.facts.pauses() if pause.namespace == "clock"]
    ledger.facts.resume("clock", "clock")
    return now
