"""RocketMQ's two lines do what the tests of its adapter build on."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial

import grpc  # type: ignore[import-untyped]
import pytest

from steadyworker.adapter import OutgoingMessage, QueueSpec, Settings, Target
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from tests.brokers.fixtures import had
from tests.brokers.rocketmq import SHORT_LEVELS, RocketMQ4, RocketMQ5, RocketMQNode
from tests.brokers.rocketmq_witness import WitnessProgram
from tests.conftest import Eventually
from tests.faults.proxy import Proxy

pytestmark = pytest.mark.slow


def marked(*kinds: type[RocketMQNode]) -> list[object]:
    """Return the lines as parameters, each for one xdist worker."""
    marks = {kind: [pytest.mark.xdist_group(f"rocketmq-{kind.LINE}"), pytest.mark.timeout(300)] for kind in kinds}
    return [pytest.param(kind, marks=marks[kind], id=kind.LINE) for kind in kinds]


BOTH = marked(RocketMQ4, RocketMQ5)


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[RocketMQNode]:
    with had():
        node: RocketMQNode = request.param(delay_levels=SHORT_LEVELS if request.param is RocketMQ4 else None)
    with closing(node):
        yield node


@pytest.fixture
def node(made: RocketMQNode) -> RocketMQNode:
    made.heal()
    return made


@pytest.fixture
def topic(node: RocketMQNode) -> Iterator[str]:
    """The name of a topic of this test alone, which has one queue."""
    name = f"test-{secrets.token_hex(4)}"
    node.make_topic(name, kind="NORMAL")
    yield name
    node.heal()
    node.remove(name)


@pytest.mark.timeout(120)
def test_the_end_of_the_witness_is_no_silence_of_a_broker() -> None:
    """Both a question that waits and a later one fail at once, and not as a broker's time limit."""
    with had():
        program = WitnessProgram()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        question = {
            "address": f"127.0.0.1:{silent.getsockname()[1]}",
            "code": "GET_BROKER_CONFIG",
            "fields": {},
            "body": "",
            "reads": "",
            "connection": "",
            "user": "",
            "password": "",
        }
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(program.ask, question, 60)
            with silent.accept()[0]:
                program._process.kill()
                program._process.wait()
                for asked in (waiting.result, partial(program.ask, question, 60)):
                    with pytest.raises(AssertionError, match="the witness ended"):
                        asked()
    for pipe in (program._process.stdin, program._process.stdout):
        assert pipe
        with suppress(BrokenPipeError):
            pipe.close()
    program._guard.close()


@pytest.mark.parametrize("made", BOTH, indirect=True)
def test_a_message_is_sent_and_pulled(node: RocketMQNode, topic: str) -> None:
    id_ = node.send(topic, b"\0 a body", {"KEYS": "k-1", "own": "ä"})
    (message,) = node.messages(topic)
    assert (message.id, message.body, message.topic, message.offset) == (id_, b"\0 a body", topic, 0)
    assert message.properties.items() >= {"KEYS": "k-1", "own": "ä", "UNIQ_KEY": id_}.items()
    assert node.count(topic) == 1


@pytest.mark.parametrize("made", BOTH, indirect=True)
def test_a_killed_node_comes_back_with_its_messages(node: RocketMQNode, topic: str) -> None:
    ids = [node.send(topic, b"%d" % number) for number in range(3)]
    node.kill()
    assert not node.running
    assert node.pid == 0
    node.start()
    assert [message.id for message in node.messages(topic)] == ids
    ids.append(node.send(topic, b"3"))
    assert [message.id for message in node.messages(topic)] == ids


@pytest.mark.parametrize("made", BOTH, indirect=True)
def test_a_broker_that_is_killed_alone_comes_back_to_its_name_server(node: RocketMQNode, topic: str) -> None:
    id_ = node.send(topic)
    name_server = node.name_server.pid
    node.broker.kill()
    assert not node.running
    node.broker.start()
    assert node.name_server.pid == name_server
    assert [message.id for message in node.messages(topic)] == [id_]


@pytest.mark.parametrize("made", BOTH, indirect=True)
def test_each_part_is_frozen_alone(node: RocketMQNode, topic: str) -> None:
    node.broker.freeze()
    witness = node.witness_within(2)
    (broker,) = witness.brokers()  # the name server replies
    with pytest.raises(TimeoutError):
        witness.settings(broker.address)
    node.broker.thaw()
    node.send(topic)
    node.name_server.freeze()
    with pytest.raises(TimeoutError):
        witness.brokers()
    assert witness.version(broker.address) == {"4": "V4_9_7", "5": "V5_4_0"}[node.LINE]
    node.heal()
    assert node.count(topic) == 1


@pytest.mark.parametrize("made", BOTH, indirect=True)
def test_the_helpers_of_tests(node: RocketMQNode, topic: str, eventually: Eventually) -> None:
    """Topics and groups are found and removed by their prefix; what a transaction stores is counted."""
    node.witness.make_group(f"{topic}-group", 5)
    node.make_topic(f"%DLQ%{topic}-group")
    (queue,) = node.witness.route(topic) or []
    for _ in range(3):
        node.send(topic)
    assert node.waiting(topic, f"{topic}-group") == 3
    node.witness.set_consumed(queue, topic, f"{topic}-group", 2)
    assert node.waiting(topic, f"{topic}-group") == 1
    node.send(topic, b"half", {"TRAN_MSG": "true", "PGROUP": topic})
    assert eventually(lambda: node.half(topic)) == 1
    assert node.count(topic) == 3
    assert node.topics(topic) == [topic]
    assert node.topics(f"%DLQ%{topic}") == [f"%DLQ%{topic}-group"]
    assert node.groups(topic) == [f"{topic}-group"]
    node.remove(topic)
    assert node.topics(topic) == node.topics(f"%DLQ%{topic}") == node.groups(topic) == []
    assert node.count(topic) == 0


@pytest.mark.parametrize("made", marked(RocketMQ4), indirect=True)
def test_short_delay_levels(node: RocketMQNode, topic: str, eventually: Eventually) -> None:
    """An adapter reads them from the broker; by those of a broker as it is shipped, 2 s would be 5 s, which is number 2."""
    adapter = DirectAdapter(node.remoting_url, QueueSpec(topic, f"{topic}-dead"), Settings())
    adapter.publish(OutgoingMessage(Target.LATER, b"later", {}, 2.0))
    adapter.publish(OutgoingMessage(Target.LATER, b"later", {}, 4.0))
    adapter.stop(5.0)
    assert node.count(topic) == 0
    eventually(lambda: node.count(topic) == 2, within=30)
    waited = [message.stored_at - message.born_at for message in node.messages(topic)]
    assert 1.5 < waited[0] < 3.5 < waited[1] < 10


@pytest.mark.parametrize("made", marked(RocketMQ5), indirect=True)
def test_the_proxy_leads_a_client_back_to_the_address_at_which_it_was_reached(made: RocketMQ5, topic: str) -> None:
    """So a fault proxy between a client and the proxy sees all that the client does."""
    with Proxy(str(made.grpc_address)) as faults:
        route = routed(faults.port, topic)
        assert endpoint(faults.port) in route
        assert endpoint(made.grpc_address.port) not in route
    assert endpoint(made.grpc_address.port) in routed(made.grpc_address.port, topic)


def routed(port: int, topic: str) -> bytes:
    """Return a proxy's reply to the question for a topic's queues, as a gRPC client asks it."""
    asked = field(1, field(2, topic.encode())) + field(2, b"\x08\x01" + field(2, endpoint(port)))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        query = channel.unary_unary("/apache.rocketmq.v2.MessagingService/QueryRoute")
        metadata = (("x-mq-client-id", "test"), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.0.0"))
        reply: bytes = query(asked, timeout=30, metadata=metadata)
    return reply


def endpoint(port: int) -> bytes:
    """Return an address as protobuf: `{host = 1, port = 2}`, the port as a number of 3 bytes."""
    assert 1 << 14 <= port < 1 << 16
    return field(1, b"127.0.0.1") + bytes([0x10, port & 0x7F | 0x80, port >> 7 & 0x7F | 0x80, port >> 14])


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 1 << 7
    return bytes([number << 3 | 2, len(content)]) + content
