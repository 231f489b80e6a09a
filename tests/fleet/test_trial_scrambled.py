"""A middle box that duplicates and reorders bytes, as TCP never does: each connection ends with a cause, and each job starts once."""

from __future__ import annotations

import time

import pytest

from tests.brokers.place import Place
from tests.faults.proxy import Proxy
from tests.fleet.kit import LIGHT, SOON, Fleet
from tests.fleet.trials import HELD, JOBS, all_once
from tests.support.stage import eventually

ONE_IN = 25
"""Of so many parts, one arrives twice or in the wrong order; a connection takes some thirty to be opened."""
TURNS, PATIENCE = 16, 3.0
"""So often all connections are cut: after a wrong part, or after so many seconds, because a quiet connection has none."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("place_kind", ["4.x", "classic"], indirect=True)
def test_bytes_that_arrive_twice_or_in_the_wrong_order(place: Place, fleet: Fleet, seed: int) -> None:
    fleet.send_all(JOBS)
    with Proxy(place.address()) as proxy:
        url = place.url(through=proxy)
        workers = [fleet.worker(LIGHT, broker=url, concurrency=HELD // 2, script=SOON).started() for _ in range(2)]
        fleet.notes("starts", HELD)
        proxy.scramble(seed, ONE_IN)
        for turn in range(TURNS):
            if turn == TURNS // 2:
                fleet.open()
            wrong, until = proxy.scrambled, time.monotonic() + PATIENCE
            eventually(lambda: proxy.scrambled > wrong or time.monotonic() > until, "a wrong part")  # noqa: B023 - called here
            proxy.cut()
        assert proxy.scrambled >= TURNS // 4
        proxy.resume()
        all_once(fleet)
    for worker in workers:
        causes = [line["cause"] for line in worker.lines("delivery_lost")]
        causes += [line["why"] for line in worker.lines("not_ready")]
        assert causes
        assert "" not in causes
        assert "Traceback" not in worker.log.read_text()
