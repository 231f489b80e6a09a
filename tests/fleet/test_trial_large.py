"""Messages as large as a broker allows, and with 100,000 headers: dead letters with a reason, which stop no process and no other job."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.ledger.base import State
from tests.brokers.place import OwnBroker, Place
from tests.brokers.rabbitmq import MEMORY, Node
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.brokers.stomp_place import StompPlace
from tests.fleet.kit import LIGHT, QUEUE, Fleet
from tests.support.stage import WorkerProcess, eventually

HEADERS = 100_000
RABBITMQ_MOST = 512 << 20
"""Bytes of a body that RabbitMQ takes at most, whatever it is told."""
LARGEST = [
    pytest.param("4.x", RABBITMQ_MOST - 1000, id="rabbitmq"),
    pytest.param("classic", 40_000_000, id="classic"),
    pytest.param("artemis", 20_000_000, id="artemis"),
    pytest.param("rocketmq4", 4_000_000, id="rocketmq4"),
    pytest.param("rocketmq5", 4_000_000, id="rocketmq5"),
]
"""Bytes of a body: the broker's limit, or what ActiveMQ takes with half a GiB of memory (Classic runs out of it at 95 MB)."""
SMALL = [f"small-{number}" for number in range(5)]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def roomy(own_broker: OwnBroker) -> Iterator[None]:
    """Have RabbitMQ take messages of 512 MiB, and give it memory for them."""
    if not isinstance(own_broker, Node):
        yield
        return
    before = own_broker.eval("persistent_term:get(max_message_size)")
    own_broker.eval(f"persistent_term:put(max_message_size, {RABBITMQ_MOST})")
    own_broker.eval(f"vm_memory_monitor:set_vm_memory_high_watermark({{absolute, {8 * MEMORY}}})")
    yield
    own_broker.eval(f"persistent_term:put(max_message_size, {before})")


def others_go_on(fleet: Fleet, worker: WorkerProcess, *starts: str) -> None:
    """Run five jobs that came after it, and the one that ran when it came; these others have started, too."""
    fleet.send_all({key: {} for key in SMALL})
    eventually(lambda: {*SMALL} <= {*fleet.lines("ends")}, "the small ones", 200, fleet.logs)
    assert worker.poll() is None
    fleet.open()
    eventually(lambda: "runs" in fleet.lines("ends"), "the first one", report=fleet.logs)
    assert sorted(fleet.lines("starts")) == sorted([*(f"{key} 1" for key in ["runs", *SMALL]), *starts])


@pytest.mark.parametrize(("place_kind", "size"), LARGEST, indirect=["place_kind"])
@pytest.mark.usefixtures("roomy")
def test_the_largest_message(place: Place, fleet: Fleet, size: int) -> None:
    fleet.send_all({"runs": {"gate": "gate"}})
    worker = fleet.worker(LIGHT, concurrency=2).started()
    fleet.notes("starts", 1)
    place.publish(fleet.queue, bytes(size), key="huge")
    others_go_on(fleet, worker)
    eventually(lambda: place.dead_letters(fleet.queue) == 1, "a dead letter", 200, fleet.logs)
    assert psutil.Process(worker.pid).memory_info().rss < 300_000_000 + 3 * size
    listed = fleet.command("dead", "list", fleet.queue, "--json")
    listed.ended(0)
    (letter,) = map(json.loads, listed.log_end().splitlines())
    assert (letter["key"], letter["bytes"]) == ("huge", size)
    assert letter["reason"] == f"bad-payload: expected at most 1048576 bytes, got {size}"


def test_100_000_headers(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    """AMQP 0-9-1 has one frame of 128 KiB for all of them, but a message of another protocol can have them."""
    fleet.send_all({"runs": {"gate": "gate"}})
    worker = fleet.worker(LIGHT, concurrency=2).started()
    fleet.notes("starts", 1)
    headers = {f"h{number}": "v" for number in range(HEADERS)}
    body = {
        "properties": {"message_id": "wide", "delivery_mode": 2, "headers": headers},
        "routing_key": QUEUE,
        "payload": json.dumps({"delays": [1.0]}),
        "payload_encoding": "string",
    }
    vhost = rabbitmq_place.vhost.name
    assert rabbitmq_place.rabbitmq.management("POST", f"exchanges/{vhost}/amq.default/publish", body)["routed"]
    fleet.reaches(QUEUE, State.DONE, "wide", 120)
    others_go_on(fleet, worker, "wide 1", "wide 2")
    fleet.empties()


@pytest.mark.parametrize(
    ("place_kind", "count"), [("classic", HEADERS), ("artemis", HEADERS // 5)], indirect=["place_kind"]
)
def test_as_many_headers_over_stomp(place: Place, fleet: Fleet, count: int) -> None:
    """Classic takes a thousand of a STOMP sender, and any number of its own management; Artemis refuses what its journal cannot hold."""
    assert isinstance(place, StompPlace)
    fleet.send_all({"runs": {"gate": "gate"}})
    worker = fleet.worker(LIGHT, concurrency=2).started()
    fleet.notes("starts", 1)
    headers = {f"h{number}": "v" for number in range(count)}
    stomp = place._stomp
    if stomp.is_artemis:
        place.publish(fleet.queue, b"{}", key="wide", headers=headers)
    else:
        named = f"destinationType=Queue,destinationName={fleet.queue}"
        (mbean,) = stomp.jolokia.search(f"org.apache.activemq:type=Broker,brokerName=*,{named}")
        send = "sendTextMessage(java.util.Map,java.lang.String,java.lang.String,java.lang.String)"
        stomp.jolokia.execute(mbean, send, headers, "{}", stomp.user, stomp.password)
    wide = fleet.notes("starts", 2, 120)[1]
    others_go_on(fleet, worker, wide)
    fleet.empties()
