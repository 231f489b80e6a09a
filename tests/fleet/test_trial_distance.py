"""A hundred jobs on a RabbitMQ that is far away, or silent for a while: each job starts once and ends done."""

from __future__ import annotations

import time

import pytest

from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.faults.proxy import Proxy
from tests.fleet.kit import LIGHT, SOON, Fleet
from tests.fleet.trials import HELD, JOBS, all_once, lose_all, two_workers
from tests.support.stage import eventually

AWAY = 0.2
"""Seconds that each byte is on its way, in each direction: an answer takes 0.4 s."""
WITHIN = 200.0
"""Seconds for what takes 20 on an idle machine: at its start, a process asks the broker dozens of questions in turn."""
HEARTBEAT = 2
"""Thirty times as short as by default, so that a job of six heartbeats lasts as one of six minutes would."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def one_delay(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """One retry queue: each costs a second of questions at a process's start."""
    monkeypatch.setenv("STEADYWORKER_DELAYS", "1")


def test_a_distant_broker(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    """The held jobs last six heartbeats; no heartbeat, confirm or acknowledgement is missed for the distance (40 s)."""
    with Proxy(rabbitmq_place.address()) as proxy:
        proxy.delay(AWAY)
        url = rabbitmq_place.url(heartbeat=HEARTBEAT, through=proxy)
        fleet.send_all(JOBS)
        checked = fleet.command("check", LIGHT, broker=url)
        checked.ended(0, WITHIN)
        workers = [fleet.worker(LIGHT, broker=url, concurrency=HELD // 2, script=SOON) for _ in range(2)]
        fleet.notes("starts", HELD, WITHIN)
        began = time.monotonic()
        eventually(lambda: time.monotonic() > began + 6 * HEARTBEAT, "six heartbeats")
        fleet.open()
        all_once(fleet)
    for worker in workers:
        assert [worker.lines(event) for event in ("delivery_lost", "surplus_consumers")] == [[], []]
        assert {line["why"] for line in worker.lines("not_ready")} <= {"connecting"}


def test_retries_and_dead_letters_at_a_distant_broker(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    """A copy is confirmed before its original is acknowledged, so each retry costs two answers of the broker (15 s)."""
    keys = [f"again-{number}" for number in range(10)]
    with Proxy(rabbitmq_place.address()) as proxy:
        proxy.delay(AWAY)
        fleet.urls["broker"] = rabbitmq_place.url(heartbeat=HEARTBEAT, through=proxy)
        fleet.send_all({key: {"delays": [1]} for key in keys})
        rabbitmq_place.publish(fleet.queue, b"\xff no job", key="poison")
        fleet.worker(LIGHT, concurrency=5)
        fleet.notes("ends", len(keys), WITHIN)
        eventually(lambda: rabbitmq_place.dead_letters(fleet.queue) == 1, "a dead letter", WITHIN, fleet.logs)
        listed = fleet.command("dead", "list", fleet.queue, "--json")
        listed.ended(0, WITHIN)
        assert '"key":"poison"' in listed.log_end()
        fleet.command("dead", "drop", fleet.queue, "--all").ended(0, WITHIN)
        fleet.ends_clean(*keys, attempts=1)
    assert sorted(fleet.lines("starts")) == sorted(f"{key} {attempt}" for key in keys for attempt in (1, 2))


@pytest.mark.parametrize("ends", ["in the silence", "after it"])
def test_a_broker_that_is_silent_for_more_than_two_heartbeats_in_mid_job(
    rabbitmq_place: RabbitmqPlace, fleet: Fleet, ends: str
) -> None:
    """Nobody is told that the network is away: the broker gives the messages to another worker process, which starts none (25 s)."""
    fleet.send_all(JOBS)
    with Proxy(rabbitmq_place.address()) as proxy:
        url = rabbitmq_place.url(heartbeat=HEARTBEAT, through=proxy)
        first = fleet.worker(LIGHT, broker=url, concurrency=HELD, script=SOON)
        fleet.notes("starts", HELD)
        proxy.stall()
        began = time.monotonic()
        second = fleet.worker(LIGHT, concurrency=HELD, script=SOON)
        second.reports("delivery_deferred")
        first.reports("delivery_lost", HELD)
        assert time.monotonic() - began > 2 * HEARTBEAT
        first.reports("not_ready", part="fleet: broker")
        if ends == "in the silence":
            fleet.open()
            fleet.notes("ends", len(JOBS))
        proxy.resume()
        first.reports("ready_again", part="fleet: broker")
        fleet.open()
        all_once(fleet)


def test_a_silence_that_every_worker_process_shares(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    """After the silence a message comes home to its run, or to the other worker process, which starts none (25 s)."""
    fleet.send_all(JOBS)
    with Proxy(rabbitmq_place.address()) as proxy:
        workers = two_workers(fleet, rabbitmq_place.url(heartbeat=HEARTBEAT, through=proxy))
        proxy.stall()
        lose_all(workers)
        proxy.resume()
        eventually(
            lambda: fleet.logged("adopted") or fleet.logged("delivery_deferred"), "messages again", report=fleet.logs
        )
        fleet.open()
        all_once(fleet)
