"""A consumer that the broker cancels, or refuses: never silently idle, and consuming again when it may."""

from __future__ import annotations

import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.brokers.place import Ability
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.faults.proxy import Proxy
from tests.fleet.kit import LIGHT, QUEUE, SOON, Fleet
from tests.support.stage import eventually


@pytest.mark.needs(Ability.CANCELS)
@pytest.mark.parametrize("topology", ["declare", "verify"])
def test_a_queue_that_is_deleted_under_a_run(fleet: Fleet, topology: str) -> None:
    """The run goes on without its message; the queue is made again, or waited for where it is not ours to make."""
    fleet.send_all({"job": {"gate": "gate"}})
    worker = fleet.worker(LIGHT, topology=topology)
    fleet.notes("starts", 1)
    fleet.place.delete(fleet.queue)
    assert "deleted" in worker.reports("delivery_lost")["cause"]
    if topology == "verify":
        assert f"'{fleet.queue}'" in worker.reports("not_ready", part=f"{fleet.queue}: broker")["why"]
        fleet.send_all({"next": {}})  # a sender declares what is missing
        worker.reports("ready_again", part=f"{fleet.queue}: broker")
    else:
        fleet.send_all({"next": {}})
    fleet.open()
    fleet.ends_clean("job", "next")
    assert fleet.lines("starts") == ["job 1", "next 1"]


def test_a_permission_that_is_taken_under_a_run(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    """Not ready, with the remedy; when it is granted again the run's message comes home, or is answered."""
    with Proxy(rabbitmq_place.address()) as proxy:
        fleet.send_all({"job": {"gate": "gate"}, "next": {}})
        worker = fleet.worker(LIGHT, broker=rabbitmq_place.url(through=proxy), script=SOON)
        fleet.notes("starts", 1)
        rabbitmq_place.permit(read=False)
        eventually(lambda: not _may_consume(rabbitmq_place), "permission taken")
        proxy.cut()  # an open channel remembers for a while what it was allowed
        assert "set_permissions" in worker.reports("not_ready", part="fleet: broker")["why"]
        rabbitmq_place.permit(read=True)
        worker.reports("ready_again", part="fleet: broker")
        fleet.open()
        fleet.ends_clean("job", "next")
        assert fleet.lines("starts") == ["job 1", "next 1"]


def _may_consume(place: RabbitmqPlace) -> bool:
    with place.channel() as channel:
        try:
            channel.basic_get(QUEUE)
        except ChannelClosedByBroker:
            return False
        return True
