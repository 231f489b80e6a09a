"""After a reconnect, a run whose delivery is lost offers its prefetch, so that its own message can come home; another's may come first."""

from __future__ import annotations

import pytest

from tests.brokers.place import Ability
from tests.faults.proxy import Proxy
from tests.fleet.kit import LIGHT, Fleet
from tests.support.stage import eventually


@pytest.mark.also("classic")
@pytest.mark.needs(Ability.REDELIVERS_AT_ONCE)
def test_another_jobs_message_is_handed_over_once_and_given_back_once(fleet: Fleet) -> None:
    """
    The consumer is cancelled before the message is released, so that it does not come straight back: no hot loop.

    A foreign consumer, which may hold one message, keeps the run's own one from coming home.
    """
    place = fleet.place
    with Proxy(place.address()) as proxy:
        fleet.send_all({"mine": {"gate": "gate"}})
        worker = fleet.worker(
            LIGHT, broker=place.url(through=proxy), script={"times": {"adopt_window": 60.0}}, ledger_reach="host"
        )
        fleet.notes("starts", 1)
        with place.consumer(fleet.queue) as holder:
            proxy.cut()
            worker.reports("delivery_lost")
            eventually(lambda: holder.take(0.1), "the run's own message, held by another", report=fleet.logs)
            fleet.consumed_by(2)
            place.publish(fleet.queue, b'{"gate":"gate"}', key="other")
            fleet.consumed_by(1)
            with place.consumer(fleet.queue) as taker:
                other = eventually(lambda: taker.take(0.1), "the other's message", report=fleet.logs)
                assert other.key == "other"
                assert other.redelivered in (True, None)
                if Ability.COUNTS_DELIVERIES in place.abilities:
                    assert other.redelivered
                    assert other.deliveries == 1, "one delivery, whatever this version calls it"
                taker.give_back()
            holder.give_back()
        assert fleet.lines("starts") == ["mine 1"]
        fleet.open()
        fleet.ends_clean("mine", "other")
        assert fleet.lines("starts") == ["mine 1", "other 1"]
