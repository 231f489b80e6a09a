"""A hundred jobs on each kind of queue that operators have: each job starts once and ends done, whatever is cut."""

from __future__ import annotations

import json

import pytest

from steadyworker.ledger.base import State
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.faults.proxy import Proxy
from tests.fleet.kit import LIGHT, QUEUE, SOON, Fleet
from tests.fleet.trials import (
    HELD,
    JOBS,
    KEYS,
    all_done,
    all_once,
    lose_all,
    publish_all,
    set_policy,
    two_workers,
)
from tests.support.stage import eventually

DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{QUEUE}.dead"}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_single_active_consumer(rabbitmq_place: RabbitmqPlace, fleet: Fleet, kind: str) -> None:
    """The active worker process is cut off: the other one becomes active, and gets the messages of the first one's runs."""
    rabbitmq_place.declare(QUEUE, **{"x-queue-type": kind, "x-single-active-consumer": True} | DEAD_LETTERS)
    fleet.send_all(JOBS)
    with Proxy(rabbitmq_place.address()) as proxy:
        first = fleet.worker(LIGHT, broker=rabbitmq_place.url(through=proxy), concurrency=HELD, script=SOON)
        fleet.notes("starts", HELD)
        second = fleet.worker(LIGHT, concurrency=HELD, script=SOON).started()
        eventually(
            lambda: len(rabbitmq_place.rabbitmq.management("GET", f"consumers/{rabbitmq_place.vhost.name}")) == 2,
            "two consumers",
        )
        assert rabbitmq_place.consumers(QUEUE) == (2 if kind == "classic" else 1), (
            "a quorum queue counts the active one only"
        )
        assert not second.lines("job_started")
        proxy.cut()
        first.reports("delivery_lost", HELD)
        second.reports("delivery_deferred")
        fleet.notes("ends", len(JOBS) - HELD)
        fleet.open()
        all_once(fleet)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_messages_with_priorities(rabbitmq_place: RabbitmqPlace, fleet: Fleet, kind: str) -> None:
    """A cut puts a message back to its place: of those that wait, the most urgent ones start first."""
    rabbitmq_place.declare(
        QUEUE, **{"x-queue-type": kind} | ({"x-max-priority": 9} if kind == "classic" else DEAD_LETTERS)
    )
    fleet.open()
    publish_all(rabbitmq_place.address(), QUEUE, priorities=range(10))
    with Proxy(rabbitmq_place.address()) as proxy:
        fleet.worker(LIGHT, broker=rabbitmq_place.url(through=proxy), script=SOON)
        for count in (20, 50, 80):
            fleet.notes("starts", count)
            proxy.cut()
        all_once(fleet)
    urgency = [KEYS.index(line.split()[0]) % 10 for line in fleet.lines("starts")]
    ten_in_a_quorum_queue = rabbitmq_place.rabbitmq.version >= (4, 3)  # before, it has two priorities, or none
    if kind == "classic" or ten_in_a_quorum_queue:
        assert urgency == sorted(urgency, reverse=True)


@pytest.mark.parametrize("rabbitmq_series", ["3.10"], indirect=True)
@pytest.mark.parametrize("by", ["argument", "policy"])
def test_a_lazy_queue(rabbitmq_place: RabbitmqPlace, fleet: Fleet, by: str) -> None:
    """From 3.12 on, a broker ignores the mode."""
    rabbitmq_place.declare(QUEUE, **{"x-queue-mode": "lazy"} if by == "argument" else {})
    if by == "policy":
        set_policy(rabbitmq_place, {"queue-mode": "lazy"})
    fleet.send_all(JOBS)
    with Proxy(rabbitmq_place.address()) as proxy:
        workers = two_workers(fleet, rabbitmq_place.url(through=proxy))
        proxy.cut()
        lose_all(workers)
        fleet.open()
        all_once(fleet)


def test_a_delivery_limit_by_policy_that_is_high_enough(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    """Each lost connection counts a delivery of each job that runs; the worker process says so, and takes jobs."""
    fleet.send_all(JOBS)
    set_policy(rabbitmq_place, {"delivery-limit": 20})
    eventually(
        lambda: '{"delivery-limit": 20}' in rabbitmq_place.policies_in_statistics(), "the policy in the statistics"
    )
    with Proxy(rabbitmq_place.address()) as proxy:
        worker = fleet.worker(
            LIGHT, broker=rabbitmq_place.url(through=proxy, management=True), concurrency=HELD
        ).started()
        (warning,) = [line for line in worker.lines("check_warning") if "after 20 deliveries" in line["what"]]
        assert "'theirs'" in warning["remedy"]
        fleet.notes("starts", HELD)
        for turn in range(1, 6):
            proxy.cut()
            worker.reports("adopted", turn * HELD)
        fleet.open()
        all_once(fleet)


def test_a_delivery_limit_by_policy_that_is_too_low_is_refused(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    fleet.send_all(JOBS)
    set_policy(rabbitmq_place, {"delivery-limit": 2})
    eventually(
        lambda: '{"delivery-limit": 2}' in rabbitmq_place.policies_in_statistics(), "the policy in the statistics"
    )
    worker = fleet.worker(LIGHT, broker=rabbitmq_place.url(management=True))
    worker.ended(78)
    refused = worker.lines("startup_refused")[0]
    assert "the broker gives a message up after 2" in refused["what"]
    assert "'theirs'" in refused["remedy"]
    assert fleet.lines("starts") == []


def test_a_delivery_limit_by_policy_that_is_too_low_and_unseen(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    """
    Without the management API, no worker process can know of it: the broker gives up the messages of jobs that run.

    The jobs start once and end done all the same, and a replay of such a dead letter starts nothing.
    """
    fleet.send_all(JOBS)
    set_policy(rabbitmq_place, {"delivery-limit": 1})
    with Proxy(rabbitmq_place.address()) as proxy:
        worker = fleet.worker(LIGHT, broker=rabbitmq_place.url(through=proxy), concurrency=HELD, script=SOON)
        fleet.notes("starts", HELD)
        proxy.cut()
        worker.reports("adopted", HELD)
        proxy.cut()
        eventually(lambda: rabbitmq_place.dead_letters(QUEUE) == HELD, "given up", report=fleet.logs)
        fleet.open()
        all_done(fleet)
        fleet.command("dead", "replay", QUEUE, "--all").ended(0)
        all_once(fleet)


@pytest.mark.parametrize("letters", [DEAD_LETTERS, {}], ids=["with dead letters", "without"])
def test_the_21st_lost_delivery_at_the_limit_of_20(
    rabbitmq_place: RabbitmqPlace, fleet: Fleet, letters: dict[str, object]
) -> None:
    """
    A queue that somebody else has made has RabbitMQ 4's own limit: the 21st lost delivery takes the message away.

    The run goes on, and its job ends done. A job whose worker process is killed then is still a row of the ledger:
    with dead letters a replay runs it, and without them, `send --again`.
    """
    rabbitmq_place.declare(QUEUE, **{"x-queue-type": "quorum"} | letters)
    fleet.send_all({"ends": {"gate": "ends"}, "dies": {"gate": "dies"}})
    checked = fleet.command("check", LIGHT, broker=rabbitmq_place.url(management=True))
    checked.ended(0 if letters else 78)
    assert (
        "becomes a dead letter" if letters else "drops a job of 'fleet'"
    ) + " after 20 deliveries" in checked.log_end()
    with Proxy(rabbitmq_place.address()) as proxy:
        worker = fleet.worker(LIGHT, broker=rabbitmq_place.url(through=proxy), concurrency=2, script=SOON).started()
        fleet.notes("starts", 2)
        for turn in range(1, 21):
            proxy.cut()
            worker.reports("adopted", 2 * turn)
        proxy.cut()
        worker.reports("delivery_lost", 2 * 21)
        dead = 2 if letters else 0
        eventually(lambda: sum(rabbitmq_place.ready().values()) == dead, f"{dead} messages", report=fleet.logs)
        fleet.open("ends")
        assert fleet.notes("ends", 1) == ["ends"]
        fleet.reaches(QUEUE, State.DONE, "ends")
        worker.reports("job_settled", key="ends", outcome="done", settled="unknown")
        worker.kill()
    fleet.open("dies")
    second = fleet.worker(LIGHT, script=SOON).started()
    jobs = fleet.command("jobs", "--json")
    jobs.ended(0)
    assert [(job["key"], job["state"]) for job in map(json.loads, jobs.log_end().splitlines())] == [
        ("dies", "running"),
        ("ends", "done"),
    ]
    if letters:
        fleet.command("dead", "replay", QUEUE, "--all").ended(0)
    else:
        fleet.command("send", QUEUE, "{}", "--key", "dies", "--again").ended(0)
    second.reports("job_settled", key="dies", outcome="done", settled="confirmed")
    fleet.empties()
    assert sorted(fleet.lines("starts")) == ["dies 1", "dies 1", "ends 1"], (
        "each again only where its process was killed"
    )
    assert fleet.lines("ends") == ["ends", "dies"]
