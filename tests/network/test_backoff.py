"""The waits between two tries, for one client and for a fleet."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator

import pytest

from steadyworker.network.backoff import Backoff


def test_the_first_try_comes_soon_and_later_ones_spread() -> None:
    """Within 0.5 s of a cut; once refused, over 10 s, and then up to a limit that doubles to 60 s; each as wide as it may be."""
    bounds = [(0.0, 0.5), (0.0, 10.0), (10.0, 20.0), (20.0, 40.0), (30.0, 60.0), (30.0, 60.0)]
    drawn: list[list[float]] = [[] for _ in bounds]
    for _ in range(2000):
        backoff = Backoff()
        for number, waits in enumerate(drawn):
            waits.append(backoff.refused() if number else backoff.cut(useful=True))
    for (least, most), waits in zip(bounds, drawn, strict=True):
        assert least <= min(waits) < least + (most - least) * 0.02
        assert most - (most - least) * 0.02 < max(waits) <= most


def test_a_connection_of_use_is_missed_at_once_again() -> None:
    backoff = Backoff()
    for _ in range(10):
        backoff.refused()
    assert max(backoff.cut(useful=True) for _ in range(100)) <= 0.5


def test_a_connection_that_never_serves_is_tried_ever_more_rarely() -> None:
    """A broker that dies at each connect is left in peace."""
    waits = [[backoff.cut(useful=False) for _ in range(8)] for backoff in (Backoff() for _ in range(300))]
    assert max(each[0] for each in waits) <= 0.5
    assert sum(each[-1] for each in waits) / len(waits) > 20


FLEET, OUTAGES = 200, 20


@pytest.fixture
def _drawn_alike() -> Iterator[None]:
    """The same waits each time: what is asserted of chance is looked at once, and then stays as it is."""
    before = random.getstate()
    random.seed(200)
    yield
    random.setstate(before)


@pytest.mark.long
@pytest.mark.usefixtures("_drawn_alike")
@pytest.mark.parametrize("away", [0.6, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 60, 120, 300, 600])
def test_a_fleet_of_200_does_not_come_back_as_one(away: float) -> None:
    """
    All lose the broker at once; who tries while it is away is refused, and who tries when it is back stays.

    However long it was away, in no second from its return on does a fifth of the fleet try, and a minute sees all of it:
    not in one of 20 outages, and on average far from it.
    """
    together: list[float] = []
    for _ in range(OUTAGES):
        tries = sorted(_first_after(away) for _ in range(FLEET))
        assert tries[-1] <= 60
        assert _busiest_second(tries) < FLEET * 0.2
        together += tries
    assert _busiest_second(sorted(together)) < FLEET * OUTAGES * 0.125


def _first_after(away: float) -> float:
    """Seconds from the broker's return to one worker's next try."""
    backoff = Backoff()
    now = backoff.cut(useful=True)
    while now < away:
        now += backoff.refused()
    return now - away


def _busiest_second(tries: list[float]) -> int:
    """The most tries in any second; `tries` ascend."""
    return max(bisect_left(tries, first + 1) - number for number, first in enumerate(tries))
