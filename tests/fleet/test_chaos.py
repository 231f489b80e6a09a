"""A minute of chaos on every broker: each job ends once, whatever becomes of its message."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.brokers.place import Place
from tests.faults.proxy import Proxy
from tests.fleet.kit import Fleet
from tests.fleet.lost import BRIEF, CHAOS, SLOTS, Chaos, place_in_file

SEEDS = range(5)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def on_one_host(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A fleet whose ledger is a file."""
    if place.namespace:
        monkeypatch.setenv("STEADYWORKER_NAMESPACE", place.namespace)
    with closing(place_in_file(place, tmp_path)) as made:
        yield made


def rages(fleet: Fleet, seed: int) -> dict[str, int]:
    """Send the jobs, let chaos rage, wait for all ends, and return the counts."""
    began = time.monotonic()
    with Proxy(fleet.place.address()) as proxy:
        url = fleet.place.url(through=proxy, heartbeat=5)
        chaos = Chaos(
            fleet,
            fleet.queue,
            lambda: fleet.worker(BRIEF, broker=url, concurrency=SLOTS, script=CHAOS),
            proxy.cut,
            seed,
        )
        fleet.send_all(chaos.jobs())
        chaos.rages()
        counts = chaos.ends()
    print(f"chaos {fleet.place.__class__.__name__} seed={seed} {counts} seconds={time.monotonic() - began:.0f}")
    return counts


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("place_kind", ["rocketmq5"], indirect=True)
def test_a_broker_that_loses_messages_of_killed_workers(on_one_host: Fleet, seed: int) -> None:
    """RocketMQ 5.4.0 by its proxy loses some in most of such minutes; they are told, and run from the ledger's copy."""
    rages(on_one_host, seed)
