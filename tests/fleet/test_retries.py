"""Retries at real brokers: their delays, an alarm on their way, and a target that is not there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import pytest
from pika.exceptions import NackError

from steadyworker.ledger.base import JobFilter, State
from steadyworker.names import normal_key
from tests.brokers.rabbitmq import Node
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.fleet.kit import LIGHT, ORDERED, QUEUE, Fleet
from tests.support.stage import eventually

RETRY = "fleet.later.1000ms"
LATE = 5.0
"""Seconds that a retry may come late: five times what it should be at most."""


@pytest.mark.also("classic", "rocketmq4")
def test_three_failures_with_three_delays_and_a_long_one_beside_them(fleet: Fleet) -> None:
    """Lower bounds, in order; a copy that waits longer is in nobody's way, though it was there first."""
    worker = fleet.worker(LIGHT, concurrency=2).started()
    delays = [1.0, 2.0, 5.0]
    fleet.send_all({"long": {"delays": [10.0]}})
    worker.reports("job_settled", key="long", settlement="later")
    fleet.send_all({"short": {"delays": delays}})
    fleet.notes("ends", 2)
    began = {
        key: [float(at) for name, at in map(str.split, fleet.lines("times")) if name == key]
        for key in ("long", "short")
    }
    waits = [later - earlier for earlier, later in zip(began["short"], began["short"][1:], strict=False)]
    assert [delay <= wait < delay + LATE for delay, wait in zip(delays, waits, strict=True)] == [True] * 3, waits
    assert 10 <= began["long"][1] - began["long"][0] < 10 + LATE
    assert began["short"][2] < began["long"][1], "two retries of the one, before the first of the other"
    fleet.empties()
    assert [fleet.row(fleet.queue, key).counters.attempts for key in ("long", "short")] == [1, 3]  # type: ignore[union-attr]
    assert sorted(fleet.lines("starts")) == ["long 1", "long 2", "short 1", "short 2", "short 3", "short 4"]


@pytest.mark.also("classic", "rocketmq4")
def test_two_jobs_whose_long_keys_begin_alike_stay_two_jobs(fleet: Fleet) -> None:
    """Through retry, dead letter, replay and retry: a header that a copy has no room for is the key, and stays whole."""
    fleet.worker(ORDERED).started()
    fleet.consumed_by(1)
    size = fleet.place.long_header
    keys = ["k" * (size - 1) + last for last in "12"]
    for key in keys:
        fleet.place.publish(fleet.queue, b'{"delays": [1.0]}', headers={"orderKey": key})
    eventually(lambda: fleet.place.dead_letters(fleet.queue) == 2, "two dead letters", report=fleet.logs)
    fleet.open("mended")
    fleet.command("dead", "replay", ORDERED, "--all").ended(0)
    fleet.notes("ends", 2)
    fleet.empties()
    rows = {(row.id.key, row.id.round): row for row, _ in fleet.ledger.jobs(JobFilter(queue=fleet.queue))}
    found = {job: (row.state, row.counters.attempts, row.conflicts) for job, row in rows.items()}
    assert {job: row for job, row in found.items() if job[1]} == {
        (normal_key(key), 1): (State.DONE, 1, 0) for key in keys
    }
    # The replay forgets a first round whose settlement was confirmed by then.
    assert {row for job, row in found.items() if not job[1]} <= {(State.DEAD, 1, 0)}
    attempts = [1, 1, 2]  # the second one of the first round ends in a rejection
    assert sorted(fleet.lines("keys")) == sorted(f"{attempt} {size} {last}" for attempt in attempts for last in "12")


def test_a_queue_that_delays_by_itself_changes_no_delay_of_ours_and_no_counter(
    rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    """A retry comes over its own level; what is given back at a shutdown goes on later, from 4.3 on; no delivery limit is used up."""
    native = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 3000, "x-delayed-retry-max": 60_000}
    limited = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-delivery-limit": 7}
    rabbitmq_place.declare(QUEUE, **limited, **native)
    delays = [1.0, 2.0]
    fleet.send_all({"retried": {"delays": delays}, "interrupted": {"gate": "gate"}})
    first = fleet.worker(LIGHT, concurrency=2)
    fleet.notes("ends", 1)
    fleet.notes("starts", 4)
    first.reports("job_settled", key="retried", settlement="ack")
    began = [float(at) for key, at in map(str.split, fleet.lines("times")) if key == "retried"]
    waits = [later - earlier for earlier, later in pairwise(began)]
    assert [delay <= wait for delay, wait in zip(delays, waits, strict=True)] == [True, True], waits
    first.terminate()
    first.ended(0)
    fleet.worker(LIGHT)
    fleet.notes("starts", 5)
    fleet.open()
    fleet.notes("ends", 2)
    fleet.empties()
    assert sorted(fleet.lines("starts")) == ["interrupted 1", "interrupted 1", "retried 1", "retried 2", "retried 3"]
    counters = {key: fleet.reaches(QUEUE, State.DONE, key).counters for key in ("retried", "interrupted")}
    assert (counters["retried"].attempts, counters["retried"].interruptions) == (2, 0)
    assert (counters["interrupted"].attempts, counters["interrupted"].interruptions) == (0, 1)


def test_an_alarm_holds_up_a_retry_and_no_ack(rabbitmq_node: Node, fleet: Fleet) -> None:
    """The broker stops reading who publishes: acks go another way, and the retry waits for the end of the alarm."""
    fleet.send_all({"retried": {"gate": "fail", "delays": [1.0]}, "done": {"gate": "end"}})
    worker = fleet.worker(LIGHT, concurrency=2)
    fleet.notes("starts", 2)
    rabbitmq_node.set_memory_alarm(on=True)
    fleet.open("fail")
    worker.reports("not_ready", part="fleet: broker alarm")
    assert fleet.reaches(QUEUE, State.MOVING, "retried").counters.attempts == 1
    fleet.open("end")
    assert worker.reports("job_settled", key="done")["settled"] == "confirmed"
    eventually(lambda: fleet.unacked() == 1, "the original of the retry is kept", report=fleet.logs)
    assert sorted(fleet.lines("starts")) == ["done 1", "retried 1"]
    rabbitmq_node.set_memory_alarm(on=False)
    worker.reports("ready_again", part="fleet: broker alarm")
    fleet.notes("ends", 2)
    assert sorted(fleet.lines("starts")) == ["done 1", "retried 1", "retried 2"]
    fleet.empties()
    assert fleet.lines("ends") == ["done", "retried"]


def test_a_stop_during_an_alarm_waits_for_no_confirm(rabbitmq_node: Node, fleet: Fleet) -> None:
    """No job runs, so it takes no time and is no failure; the next worker process finishes the retry."""
    fleet.send_all({"retried": {"gate": "fail", "delays": [1.0]}})
    worker = fleet.worker(LIGHT)
    fleet.notes("starts", 1)
    rabbitmq_node.set_memory_alarm(on=True)
    fleet.open("fail")
    worker.reports("not_ready", part="fleet: broker alarm")
    worker.terminate()
    assert worker.ended(0) < 10
    rabbitmq_node.set_memory_alarm(on=False)
    fleet.worker(LIGHT)
    fleet.notes("ends", 1)
    fleet.empties()
    assert fleet.lines("starts") == ["retried 1", "retried 2"]


def _missing(place: RabbitmqPlace) -> None:
    place.delete(RETRY)


def _full(place: RabbitmqPlace) -> None:
    place.delete(RETRY)
    place.declare(RETRY, **{"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"})
    with place.channel() as foreign:
        foreign.confirm_delivery()
        with suppress(NackError):
            while True:
                foreign.basic_publish("", RETRY, b"")


@pytest.mark.parametrize("spoil", [pytest.param(_missing, marks=pytest.mark.slow), _full])
def test_a_retry_without_a_target_keeps_its_original(
    rabbitmq_place: RabbitmqPlace, fleet: Fleet, spoil: Callable[[RabbitmqPlace], None]
) -> None:
    """Not acknowledged, not started again, not ready by the target's name; and it goes on when the target is back."""
    fleet.send_all({"job": {"gate": "fail", "delays": [1.0]}})
    worker = fleet.worker(LIGHT, concurrency=2, topology="verify")
    fleet.notes("starts", 1)
    spoil(rabbitmq_place)
    fleet.open("fail")
    assert RETRY in worker.reports("not_ready", part="fleet: later queue")["why"]
    assert fleet.reaches(QUEUE, State.MOVING).counters.attempts == 1
    eventually(lambda: fleet.unacked() == 1, "the original is kept", report=fleet.logs)
    assert fleet.lines("starts") == ["job 1"]
    rabbitmq_place.delete(RETRY)
    fleet.send_all({"maker": {}})  # a sender declares what is missing
    worker.reports("ready_again", part="fleet: later queue")
    worker.reports("job_settled", key="job", settlement="ack")
    assert [line for line in fleet.lines("starts") if line.startswith("job")] == ["job 1", "job 2"]
    fleet.empties()
