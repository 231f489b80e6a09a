"""A minute of chaos on every broker: each job ends once, whatever becomes of its message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.place import Place
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.brokers.rocketmq_place import GrpcPlace
from tests.faults.proxy import Proxy
from tests.fleet.kit import QUEUE, Fleet
from tests.fleet.lost import BRIEF, CHAOS, SLOTS, Chaos, place_in_file
from tests.support.stage import Processes, Stage, WorkerProcess

SEEDS = range(5)
TOGETHER: dict[str, Any] = {"count": 4_000, "seconds": (0.2, 0.2)}
"""Jobs of one length, so that those of a worker process begin and end together, and one commit records several of them."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def on_one_host(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A fleet whose ledger is a file."""
    if place.namespace:
        monkeypatch.setenv("STEADYWORKER_NAMESPACE", place.namespace)
    with closing(place_in_file(place, tmp_path)) as made:
        yield made


def rages(
    fleet: Fleet, seed: int, loses: Callable[[], None] = lambda: None, slots: int = SLOTS, **more: Any
) -> dict[str, int]:
    """Send the jobs, let chaos rage, wait for all ends, and return the counts; with each cut, the broker `loses` messages."""
    with Proxy(fleet.place.address()) as proxy:

        def cut() -> None:
            proxy.cut()
            loses()

        url = fleet.place.url(through=proxy, heartbeat=5)
        chaos = Chaos(fleet, fleet.queue, seed, lambda: _worker(fleet, fleet.queue, url, slots), cut, **more)
        fleet.send_all(chaos.jobs())
        chaos.rages()
        return _told(f"{type(fleet.place).__name__} {seed}", chaos)


def _worker(processes: Processes, queue: str, url: str, slots: int) -> WorkerProcess:
    return processes.worker(BRIEF, broker=url, concurrency=slots, script=CHAOS, env={"FLEET_QUEUE": queue})


def _told(where: str, chaos: Chaos) -> dict[str, int]:
    """Wait for all ends, and print the counts (`pytest -s`)."""
    counts = chaos.ends()
    print(f"chaos at {where}: {counts}")
    return counts


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("place_kind", ["rocketmq5"], indirect=True)
def test_a_broker_that_loses_messages_of_killed_workers(on_one_host: Fleet, seed: int) -> None:
    """
    RocketMQ 5.4.0 by its proxy, which lost 5 of 200 messages in such a minute, and in 23 others none.

    So the test loses what the broker has revived and not yet delivered again; each such job runs from the ledger's copy.
    """
    place = on_one_host.place
    assert isinstance(place, GrpcPlace)
    counts = rages(on_one_host, seed, lambda: place.drop_revived(on_one_host.queue))
    assert counts["message_lost"] - counts["came late"] >= 1


@pytest.mark.parametrize("place_kind", ["rocketmq5"], indirect=True)
def test_the_same_without_losses_of_ours(on_one_host: Fleet) -> None:
    rages(on_one_host, 0)


@pytest.mark.parametrize("place_kind", ["rocketmq4", "classic", "artemis", "3.10", "4.3"], indirect=True)
def test_every_other_broker(on_one_host: Fleet) -> None:
    rages(on_one_host, 0)


def test_a_ledger_in_postgresql(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    assert rabbitmq_place.broker
    rages(fleet, 0)


@pytest.mark.parametrize("place_kind", ["4.3"], indirect=True)
def test_eight_slots_whose_jobs_end_together(on_one_host: Fleet) -> None:
    rages(on_one_host, 0, slots=8, **TOGETHER)


@pytest.mark.parametrize(("slots", "more"), [(SLOTS, {}), (8, TOGETHER)])
def test_the_embedded_broker(tmp_path: Path, slots: int, more: dict[str, Any]) -> None:
    """Its connections are cut as it does that itself to a worker that it takes for dead."""
    with closing(Stage(tmp_path)) as stage:
        url = stage.urls["broker"]
        chaos = Chaos(stage, QUEUE, 0, lambda: _worker(stage, QUEUE, url, slots), lambda: stage.evict(QUEUE), **more)
        for key, payload in chaos.jobs().items():
            stage.send(QUEUE, payload, key=key)
        chaos.rages()
        _told("the embedded broker", chaos)
