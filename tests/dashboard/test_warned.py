"""The warnings: each kind, with its remedy and its entry in the catalogue, and when it is over."""

from __future__ import annotations

from steadyworker.adapter import Depth
from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.application import application
from steadyworker.dashboard.warned import MOST_OVERDUE_SHOWN
from steadyworker.ledger.facts import OwnerReport, ReportedFinding
from tests.cli.night import EXPORTS, REFUNDS
from tests.dashboard.fleet_of_facts import FleetOfFacts
from tests.dashboard.kit import request


def words(facts: FleetOfFacts) -> str:
    """Return the page's words, without the seconds for which a read serves several viewers."""
    return request(application(facts.ledger, checked_access(), clock=facts.clock), "/warnings").words


def test_consumers_that_no_worker_process_explains(facts: FleetOfFacts) -> None:
    assert (
        "unknown consumers exports 3 consumers at the broker that no worker process of this ledger explains: "
        "another program, or a worker with another --ledger, receives its messages. "
        "Give all workers one ledger, or stop the other program. "
        "steadyworker explain --id check.foreign-consumers explains it."
    ) in words(facts)
    facts.ledger.facts.record_depth("shop", "exports", Depth(ready=40, consumers=9))
    assert "unknown consumers" not in words(facts)


def test_a_queue_whose_workers_use_another_ledger(facts: FleetOfFacts) -> None:
    facts.ledger.bind("shop", "elsewhere", "shop")
    facts.ledger.facts.record_depth("shop", "elsewhere", Depth(ready=0, consumers=2))
    assert (
        "another ledger elsewhere 2 consumers at the broker that no worker process of this ledger explains"
    ) in words(facts)
    assert (
        "This ledger knows no worker process of the queue: set --ledger and --namespace as its workers have them. "
        "steadyworker explain --id ledger.of-others explains it."
    ) in words(facts)


def test_overdue_jobs(facts: FleetOfFacts) -> None:
    assert "overdue" not in words(facts)
    facts.end("late", delay=60.0)
    facts.pass_time(3600.0 + 600.0, 60.0)
    found = words(facts)
    assert "late in exports Its message did not come for" in found
    assert "steadyworker explain --id check.lost-messages explains it." in found


def test_many_overdue_jobs_are_counted(facts: FleetOfFacts) -> None:
    for number in range(MOST_OVERDUE_SHOWN + 5):
        facts.end(f"late-{number}", delay=60.0)  # beside `crashing` and `lost`
    facts.pass_time(3600.0 + 600.0, 60.0)
    found = words(facts)
    assert (
        f"{MOST_OVERDUE_SHOWN} of {MOST_OVERDUE_SHOWN + 7}; steadyworker jobs --overdue --limit 0 lists all." in found
    )


def test_an_alarm_of_the_broker(facts: FleetOfFacts) -> None:
    ago = facts.clock.wall() - facts.began
    why = "the broker accepts no messages (low on memory): free memory or disk space on the broker"
    report = OwnerReport(1, "1.4.0", facts.began, "running", not_ready=("exports: broker alarm",))
    for owner in ("worker-0", "worker-1", "worker-4", "worker-6"):  # the third is gone, and the last is ready again
        facts.links(owner, [(ago - 90.0, "connected", ""), (ago - 60.0, "blocked", why)])
    for owner in ("worker-0", "worker-1"):
        facts.ledger.register(owner, "host-0", [EXPORTS], report)
    assert (
        "broker alarm exports The broker accepts no messages (low on memory): free memory or disk space on the broker. "
        "2 worker processes recorded this, the first 1 min 00 s ago. Jobs go on; retries and dead letters wait. "
        "steadyworker explain --id broker.alarm explains it."
    ) in words(facts)
    for owner in ("worker-0", "worker-1"):
        facts.links(owner, [(ago, "unblocked", "")])
    assert "broker alarm" not in words(facts)


def test_delayed_messages_that_are_due_and_not_delivered(facts: FleetOfFacts) -> None:
    due = facts.clock.wall() - 600.0
    facts.ledger.facts.record_depth("shop", "exports", Depth(delayed=3, next_due=due))
    assert (
        "late delays exports 3 delayed messages, and the first was due 10 min 00 s before it was counted. "
        "Check the broker's scheduler and clock. steadyworker explain --id broker.late-delays explains it."
    ) in words(facts)
    facts.ledger.facts.record_depth("shop", "exports", Depth(delayed=3, next_due=due + 570.0))
    assert "late delays" not in words(facts)


def test_worker_processes_of_several_versions(facts: FleetOfFacts) -> None:
    assert "several versions" in words(facts)
    now = facts.clock.wall()
    facts.ledger.unregister("worker-9")
    assert "several versions" not in words(facts)
    facts.ledger.register("new", "host-7", [EXPORTS], OwnerReport(1, "1.5.0", now, "running", ready=True))
    assert "several versions" not in words(facts)  # a deploy goes on
    facts.pass_time(660.0, 60.0)
    facts.ledger.register("new", "host-7", [EXPORTS], OwnerReport(1, "1.5.0", now, "running", ready=True))
    assert (
        "several versions exports Its worker processes have the versions 1.4.0 (9), 1.5.0 (1). "
        "Deploy one version to all hosts. steadyworker explain --id ledger.several-versions explains it."
    ) in words(facts)
    facts.ledger.register("new", "host-7", [EXPORTS], OwnerReport(1, "1.5.0", now, "draining", ready=True))
    assert "several versions" not in words(facts)


def test_a_finding_has_the_age_of_its_last_report(facts: FleetOfFacts) -> None:
    finding = ReportedFinding("check.clock", "warning", "The clock is 4 s ahead. Remedy: run an NTP client.")
    report = OwnerReport(7, "1.4.0", facts.began, "running", ready=True, findings=(finding,))
    facts.ledger.register("worker-8", "host-8", [REFUNDS], report)
    facts.clock.advance(20.0)
    assert (
        "warning The clock is 4 s ahead. Remedy: run an NTP client. Reported by host-8:7, 20 s ago. "
        "steadyworker explain --id check.clock explains it."
    ) in words(facts)


def test_a_namespace_with_slashes_is_another_one(facts: FleetOfFacts) -> None:
    """Each has its own page, whatever its name begins with."""
    facts.ledger.bind("shop/eu", "exports", "other")
    finding = ReportedFinding("eu.business", "error", "only of the other namespace")
    report = OwnerReport(7, "1.4.0", facts.began, "running", ready=True, findings=(finding,))
    facts.ledger.register("worker-eu", "host-eu", ["shop/eu/exports"], report)
    for namespace, shown in (("shop", False), ("shop/eu", True), (None, True)):
        page = application(facts.ledger, checked_access(), namespace, clock=facts.clock)
        assert ("only of the other namespace" in request(page, "/warnings").words) is shown
