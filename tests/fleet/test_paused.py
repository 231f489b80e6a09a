"""A queue that a person pauses for a whole fleet, on a network's brokers and one PostgreSQL ledger."""

from __future__ import annotations

from steadyworker.ledger.base import State
from tests.fleet.kit import LIGHT, Fleet
from tests.support.stage import eventually

ADA = "ada@ops"


def test_a_paused_fleet_takes_nothing_and_keeps_its_jobs_and_its_connections(fleet: Fleet) -> None:
    """A process that starts meanwhile takes nothing either; the end of the pause lets every message run, once."""
    fleet.send_all({"running": {"gate": "gate"}})
    first = fleet.worker(LIGHT)
    fleet.notes("starts", 1)
    second = fleet.worker(LIGHT).started()
    ((namespace, queue),) = fleet.ledger.bindings()

    fleet.ledger.facts.pause(namespace, queue, ADA, "disk is full")
    for worker in (first, second):
        worker.reports("queue_paused", who=ADA, reason="disk is full")
    third = fleet.worker(LIGHT)
    third.reports("queue_paused")
    third.started()
    fleet.send_all({f"waits-{number}": {} for number in range(3)})
    fleet.open()
    fleet.reaches(fleet.queue, State.DONE, "running")
    eventually(lambda: sum(fleet.left().values()) == 3, "three messages wait", report=fleet.logs)
    assert fleet.lines("starts") == ["running 1"]

    assert fleet.ledger.facts.resume(namespace, queue)
    fleet.ends_clean("running", "waits-0", "waits-1", "waits-2")
    assert sorted(fleet.lines("starts")) == ["running 1", "waits-0 1", "waits-1 1", "waits-2 1"]
    for worker in (first, second, third):
        assert worker.lines("delivery_lost") == []
        assert worker.lines("message_lost") == []
