"""The failure for which the adapter was written: of many messages a third fails; nobody's name is too long, and nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from steadyworker.ledger.base import JobFilter, State
from tests.brokers.place import Place
from tests.brokers.rocketmq_place import RocketmqPlace
from tests.fleet.kit import LIGHT, Fleet
from tests.support.stage import eventually

COUNT = 1000


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place_kind", ["rocketmq4", "rocketmq5"], indirect=True)
def test_of_a_thousand_messages_a_third_fails_twice(place: Place, fleet: Fleet) -> None:
    """Each is done: the good ones after one start, the others after three; and no half message appears."""
    assert isinstance(place, RocketmqPlace)
    gave_up = place.node.gave_up()
    keys = [f"job-{number}" for number in range(COUNT)]
    failing = set(keys[::3])
    fleet.send_all({key: {"delays": [1.0, 1.0]} if key in failing else {} for key in keys})
    for _ in range(2):
        fleet.worker(LIGHT, concurrency=8)
    eventually(lambda: len(fleet.lines("ends")) >= COUNT, "every job", 800.0, report=fleet.logs)
    fleet.empties()
    assert Counter(fleet.lines("ends")) == Counter(keys)
    assert Counter(fleet.lines("starts")) == Counter(
        f"{key} {attempt}" for key in keys for attempt in ((1, 2, 3) if key in failing else (1,))
    )
    states = Counter(row.state for row, _ in fleet.ledger.jobs(JobFilter(queue=fleet.queue)))
    assert states == {State.DONE: COUNT}
    assert (place.node.half(fleet.queue), place.node.gave_up()) == (0, gave_up)
