"""What happens to the parts of RocketMQ, and to the members of a group, in the middle of a job: the job runs once, or is taken over."""

from __future__ import annotations

import signal
import time

import pytest

from tests.brokers.place import OwnBroker, Place
from tests.brokers.process import Server
from tests.brokers.rocketmq import RocketMQ5
from tests.brokers.rocketmq_place import RocketmqPlace
from tests.fleet.kit import LIGHT, SOON, STEADY, Fleet
from tests.support.stage import WITHIN, eventually

DIRECT, GRPC = "rocketmq4", "rocketmq5"
BOTH = pytest.mark.parametrize("place_kind", [DIRECT, GRPC], indirect=True)

pytestmark = pytest.mark.slow


@pytest.fixture
def rocketmq(place: Place, own_broker: OwnBroker) -> RocketmqPlace:
    """The place, whose node's parts are to be killed and frozen; they are healed after the test."""
    assert isinstance(place, RocketmqPlace)
    assert place.broker is own_broker
    return place


@pytest.mark.parametrize(
    ("place_kind", "part"),
    [(DIRECT, "broker"), (DIRECT, "name_server"), (GRPC, "broker"), (GRPC, "proxy"), (GRPC, "name_server")],
    indirect=["place_kind"],
)
def test_a_part_that_is_killed_and_comes_back_in_mid_job_starts_nothing_again(
    rocketmq: RocketmqPlace, fleet: Fleet, part: str
) -> None:
    """
    A second worker waits for what the broker forgets; what comes again is answered from the record, or waits for the run.

    One job ends while the part is down, and one after it; the next jobs go on as if nothing had been.
    Of these, one may lie behind the job that runs, in its queue, and so wait for its end.
    """
    fleet.send_all({"during": {"gate": "during"}, "after": {"gate": "after"}})
    workers = [fleet.worker(LIGHT, concurrency=2, script=SOON)]
    fleet.notes("starts", 2)
    workers.append(fleet.worker(LIGHT, concurrency=2, script=SOON).started())
    down: Server = getattr(rocketmq.node, part)
    down.kill()
    if part != "name_server":  # nobody asks it meanwhile
        workers[0].reports("not_ready")
    fleet.open("during")
    fleet.notes("ends", 1)
    down.start()
    rocketmq.wait_for_broker()
    fleet.send_all({"next": {}, "last": {}})
    fleet.notes("ends", 2)
    fleet.open("after")
    fleet.ends_clean("during", "after", "next", "last")
    assert sorted(fleet.lines("starts")) == ["after 1", "during 1", "last 1", "next 1"]


@BOTH
def test_a_name_server_that_is_down_at_the_start_is_waited_for(rocketmq: RocketmqPlace, fleet: Fleet) -> None:
    fleet.send_all({"job": {}})
    rocketmq.node.name_server.kill()
    worker = fleet.worker(LIGHT)
    eventually(lambda: worker.lines("backend_unreachable") or worker.lines("not_ready"), "no broker", report=fleet.logs)
    assert worker.poll() is None
    rocketmq.node.heal()
    fleet.ends_clean("job")
    assert fleet.lines("starts") == ["job 1"]


@BOTH
def test_a_job_outlasts_invisibility_and_lock_while_members_come_and_go(rocketmq: RocketmqPlace, fleet: Fleet) -> None:
    """
    A group that rebalances would start a running message again, with RocketMQ's own clients.

    One of the short jobs may lie behind the long one, in its queue.
    """
    fleet.send_all({"long": {"gate": "gate"}})
    fleet.worker(LIGHT, concurrency=2, script=SOON)
    fleet.notes("starts", 1)
    began = time.monotonic()
    comes = fleet.worker(LIGHT, concurrency=2, script=SOON).started()
    fleet.send_all({f"short-{number}": {} for number in range(8)})
    fleet.notes("ends", 7)
    comes.terminate()
    comes.ended(0)
    fleet.worker(LIGHT, concurrency=2, script=SOON).started()
    eventually(lambda: time.monotonic() > began + 1.2 * rocketmq.redelivers_within, "a long job", within=120)
    fleet.open()
    fleet.ends_clean("long", *(f"short-{number}" for number in range(8)))
    assert sorted(fleet.lines("starts")) == sorted(["long 1", *(f"short-{number} 1" for number in range(8))])
    assert fleet.logged("delivery_lost") == []


@BOTH
def test_a_worker_that_is_killed_in_mid_job_is_taken_over_once(rocketmq: RocketmqPlace, fleet: Fleet) -> None:
    fleet.send_all({"job": {}})
    first = fleet.worker(STEADY)
    fleet.notes("waiting", 1)
    second = fleet.worker(STEADY).started()
    first.signal_all(signal.SIGKILL)
    first.wait()
    second.reports("taken_over", within=WITHIN + rocketmq.redelivers_within)
    fleet.notes("starts", 2)
    fleet.open()
    fleet.ends_clean("job", losses=1)
    assert fleet.lines("starts") == ["job 0", "job 10"]


@BOTH
def test_a_part_that_is_frozen_for_less_than_the_lock_costs_nothing(rocketmq: RocketmqPlace, fleet: Fleet) -> None:
    """The broker's own process stands still for 12 s, and another worker waits for the message."""
    fleet.send_all({"job": {"gate": "gate"}})
    fleet.worker(LIGHT, script=SOON)
    fleet.notes("starts", 1)
    fleet.worker(LIGHT, script=SOON).started()
    rocketmq.node.broker.freeze()
    frozen = time.monotonic()
    eventually(lambda: time.monotonic() > frozen + 12, "12 s")
    rocketmq.node.broker.thaw()
    fleet.open()
    fleet.ends_clean("job")
    assert fleet.lines("starts") == ["job 1"]


@pytest.mark.parametrize("place_kind", [GRPC], indirect=True)
def test_proxy_and_broker_that_are_killed_in_turn(rocketmq: RocketmqPlace, fleet: Fleet) -> None:
    """The broker first, and the proxy after it, in one job."""
    node = rocketmq.node
    assert isinstance(node, RocketMQ5)
    fleet.send_all({"job": {"gate": "gate"}})
    worker = fleet.worker(LIGHT, script=SOON)
    fleet.notes("starts", 1)
    for number, part in enumerate((node.broker, node.proxy), 1):
        part.kill()
        worker.reports("not_ready", number)
        part.start()
        worker.reports("ready_again", number)
    fleet.open()
    fleet.ends_clean("job")
    assert fleet.lines("starts") == ["job 1"]
