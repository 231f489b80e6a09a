"""A queue that a person pauses, and a worker process that a person makes quiet: real processes, on the embedded broker."""

from __future__ import annotations

import signal

import pytest

from steadyworker.clock import SystemClock
from steadyworker.ledger.base import OwnerSeen, State
from tests.support.probes import free_address, probe, ready
from tests.support.stage import Stage, WorkerProcess, eventually

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

STEPS = "tests.support.jobs:Steps"
ADA = "ada@ops"
RENEWS = {"times": {"renew": 1.0}}
"""A renewal each second, so that a test does not wait long for the report that comes with it."""


def queue(stage: Stage) -> tuple[str, str]:
    """The namespace and the name of the queue, as the worker process has bound them."""
    [bound] = eventually(lambda: list(stage.ledger.bindings()), "bound")
    return str(bound[0]), str(bound[1])


def owners(stage: Stage, *processes: WorkerProcess) -> list[OwnerSeen]:
    """What these processes have registered, in their order."""
    by_pid = {seen.report.pid: seen for seen in stage.ledger.owners() if seen.report is not None}
    return [by_pid[process.pid] for process in processes if process.pid in by_pid]


def obeyed(stage: Stage, *processes: WorkerProcess, paused: bool = True) -> None:
    """Wait until each of these processes reports that it obeys the pause, or its end."""

    def all_report() -> bool:
        reports = [seen.report for seen in owners(stage, *processes)]
        states = [state.paused for report in reports if report is not None for state in report.queues.values()]
        return states == [paused] * len(processes)

    eventually(all_report, f"paused: {paused}", report=stage.logs)


def test_a_pause_stops_the_fleet_and_nothing_else(stage: Stage) -> None:
    """A job goes on, a restart and a new process change nothing; the end of the pause lets all go on."""
    health = free_address()
    stage.send("steps", {"gate": "gate"}, key="running")
    first = stage.worker(STEPS, health=health, script=RENEWS)
    stage.notes("waiting", 1)
    second = stage.worker(STEPS, script=RENEWS).started()
    at, name = queue(stage)

    stage.ledger.facts.pause(at, name, ADA, "disk is full, password=kanarie-7")
    obeyed(stage, first, second)
    waiting = [f"waiting-{number}" for number in range(3)]
    for key in waiting:
        stage.send("steps", {"steps": 1}, key=key)
    shown = (200, f"steps: paused by {ADA}: disk is full, password=***\n")
    eventually(lambda: probe(health, "readyz") == shown, "ready, and paused", report=stage.logs)

    stage.open()
    stage.reaches("steps", State.DONE, "running")
    second.send_signal(signal.SIGTERM)
    second.ended(0)
    third = stage.worker(STEPS, script=RENEWS).started()
    obeyed(stage, first, third)
    assert stage.lines("starts") == ["running 1 0"]
    assert stage.ready("steps") == 3
    (line,) = first.lines("queue_paused")
    assert (line["queue"], line["who"], line["reason"]) == ("steps", ADA, "disk is full, password=***")
    assert "kanarie" not in stage.logs()

    assert stage.ledger.facts.resume(at, name)
    for key in waiting:
        stage.reaches("steps", State.DONE, key)
    eventually(lambda: probe(health, "readyz") == (200, "ok\n"), "ready", report=stage.logs)
    assert first.lines("connection_lost") == first.lines("not_ready") == []
    assert [event.event for event in stage.ledger.facts.link_events(0, owner=owners(stage, first)[0].owner)] == [
        "connected"
    ]


def test_a_pause_reaches_an_idle_process_within_seconds(stage: Stage) -> None:
    """At the clocks of use, with a renewal each 15 s."""
    process = stage.worker(STEPS).started()
    at, name = queue(stage)
    for _ in range(2):
        stage.ledger.facts.pause(at, name, ADA, "")
        began = SystemClock().monotonic()
        times = len(process.lines("queue_paused"))
        process.reports("queue_paused", times + 1)
        assert SystemClock().monotonic() - began < 10, "4 s, and what a busy machine takes"
        assert stage.ledger.facts.resume(at, name)
        process.reports("queue_resumed", times + 1)


def test_a_command_makes_one_process_quiet(stage: Stage) -> None:
    """As SIGUSR1 and SIGUSR2 do; the other process goes on."""
    health = free_address()
    first, second = stage.worker(STEPS, health=health, script=RENEWS), stage.worker(STEPS, script=RENEWS)
    eventually(lambda: len(owners(stage, first, second)) == 2, "registered", report=stage.logs)
    owner = owners(stage, first)[0].owner
    ready(health)

    stage.ledger.facts.command(owner, "quiet", ADA)
    assert first.reports("stage_changed")["reason"] == f"the command quiet by {ADA}"
    eventually(lambda: probe(health, "readyz") == (503, "steps: stage: quiet\n"), "not ready")
    eventually(lambda: owners(stage, first)[0].report.stage == "quiet", "its report")  # type: ignore[union-attr]
    stage.send("steps", {"steps": 1})
    stage.reaches("steps", State.DONE)
    second.reports("job_settled")
    assert not first.lines("job_settled")

    stage.ledger.facts.command(owner, "resume", ADA)
    assert first.reports("stage_changed", 2)["stage"] == "running"
    ready(health)
    assert not second.lines("stage_changed")


def test_a_worker_process_reports_itself_its_links_and_its_runs(stage: Stage) -> None:
    health = free_address()
    process = stage.worker(STEPS, health=health, script=RENEWS, concurrency=2)
    ready(health)
    stage.send("steps", {"gate": "gate"}, key="long")
    stage.send("steps", {"steps": 1, "fail": 1}, key="fails")
    stage.reaches("steps", State.DONE, "fails")

    def report() -> bool:
        found = owners(stage, process)
        return bool(found and found[0].report and found[0].report.ready and _busy(found[0]) == 1)

    eventually(report, "ready, with one busy slot", report=stage.logs)
    (seen,) = owners(stage, process)
    assert seen.report is not None
    assert (seen.report.stage, seen.report.not_ready) == ("running", ())
    assert set(seen.report.queues) == set(seen.queues)
    ((state,),) = [tuple(seen.report.queues.values())]
    assert (state.slots, state.time_limit, state.connected) == (2, 120.0, True)
    assert 0 <= seen.report.started_at <= SystemClock().wall()

    stage.evict("steps")
    process.reports("delivery_lost", key="long")
    process.reports("adopted", key="long")
    stage.open()
    stage.reaches("steps", State.DONE, "long")
    process.terminate()
    process.ended(0)

    events = stage.ledger.facts.link_events(0, owner=seen.owner)
    assert [(each.event, each.queue) for each in events] == [
        (event, "steps") for event in ("connected", "lost", "delivery-lost", "connected", "adopted", "draining")
    ]
    fence = process.lines("adopted")[0]["fence"]
    assert [each.event for each in stage.ledger.facts.link_events(0, fences=[fence])] == ["delivery-lost", "adopted"]
    runs = [(each.outcome, each.runs) for each in stage.ledger.facts.minutes(0)]
    assert sum(number for outcome, number in runs if outcome == "done") == 2
    assert sum(number for outcome, number in runs if outcome == "failed") == 1


def _busy(seen: OwnerSeen) -> int:
    return sum(queue.busy for queue in seen.report.queues.values()) if seen.report is not None else 0
