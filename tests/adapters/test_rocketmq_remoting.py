"""
Each request of `remoting.py`, on both lines of RocketMQ.

What the adapter reads is compared with what RocketMQ's own client reads, and what it makes is read by that client.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from steadyworker.clock import SystemClock
from steadyworker.network.errors import Silent
from steadyworker.network.url import Address
from steadyworker_rocketmq.remoting import READER, Login, Remoting, RemotingError, RocketmqBroker, TopicQueue
from steadyworker_rocketmq.stored import Stored
from tests.adapters.remoting_kit import remoting_at
from tests.brokers.fixtures import had
from tests.brokers.rocketmq import RocketMQ4, RocketMQ5, RocketMQNode
from tests.brokers.rocketmq_witness import BrokerAt, QueueAt, StoredMessage
from tests.support.stage import eventually

pytestmark = pytest.mark.slow

LINES = [
    pytest.param(kind, marks=[pytest.mark.xdist_group(f"rocketmq-{kind.LINE}"), pytest.mark.timeout(300)], id=kind.LINE)
    for kind in (RocketMQ4, RocketMQ5)
]
both = pytest.mark.parametrize("made", LINES, indirect=True)


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[RocketMQNode]:
    with had():
        node: RocketMQNode = request.param()
    with closing(node):
        yield node


@pytest.fixture
def node(made: RocketMQNode) -> RocketMQNode:
    made.heal()
    return made


@pytest.fixture
def remoting(node: RocketMQNode) -> Iterator[Remoting]:
    with remoting_at(node) as found:
        yield found


@pytest.fixture
def topic(node: RocketMQNode) -> Iterator[str]:
    """A name for topics and groups of this test alone."""
    name = f"test-{secrets.token_hex(4)}"
    yield name
    node.heal()
    node.remove(name)


@pytest.fixture
def queue(node: RocketMQNode, remoting: Remoting, topic: str) -> TopicQueue:
    """The one queue of a topic that exists."""
    node.make_topic(topic, 1, "NORMAL")
    (found,) = remoting.route(topic) or []
    return found


def same(messages: Sequence[Stored], witnessed: Sequence[StoredMessage]) -> bool:
    """Return whether the adapter has read what RocketMQ's own client reads."""
    assert len(messages) == len(witnessed)
    fields = [each.name for each in dataclasses.fields(StoredMessage)]
    return all(
        [getattr(message, name) for name in fields] == [getattr(other, name) for name in fields]
        for message, other in zip(messages, witnessed, strict=True)
    )


@both
def test_brokers_version_and_settings(node: RocketMQNode, remoting: Remoting) -> None:
    (broker,) = remoting.brokers()
    assert (broker, broker.address) == (RocketmqBroker("broker-a", node.broker_address), node.broker_address)
    assert node.witness.brokers() == [BrokerAt("broker-a", node.broker_address)]
    assert remoting.version(broker) == {"4": "4.9.7", "5": "5.4.0"}[node.LINE]
    assert node.witness.version(node.broker_address) == f"V{remoting.version(broker).replace('.', '_')}"
    settings = remoting.settings(broker)
    assert settings == node.witness.settings(node.broker_address)
    assert settings["messageDelayLevel"] == "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert (settings["fileReservedTime"], settings["maxMessageSize"]) == ("72", "4194304")


@both
def test_a_topic_is_made(node: RocketMQNode, remoting: Remoting, topic: str) -> None:
    """Its queues are there at once, and so are those of a second request for it."""
    (broker,) = remoting.brokers()
    assert remoting.route(topic) is None
    assert remoting.topic_type(topic) is None
    remoting.make_topic(topic, 3, "DELAY")
    assert remoting.route(topic) == [TopicQueue(broker, number) for number in range(3)]
    assert node.witness.route(topic) == [QueueAt(BrokerAt("broker-a", node.broker_address), at) for at in range(3)]
    assert remoting.topic_type(topic) == ("DELAY" if node.LINE == "5" else None)
    remoting.make_topic(topic, 4, "DELAY")
    assert remoting.route(topic) == [TopicQueue(broker, number) for number in range(4)]
    remoting.make_topic(f"{topic}-plain")
    assert len(remoting.route(f"{topic}-plain") or []) == len(node.witness.route(f"{topic}-plain") or []) == 16
    assert remoting.topic_type(f"{topic}-plain") == ("NORMAL" if node.LINE == "5" else None)


@both
def test_a_group_is_made(node: RocketMQNode, remoting: Remoting, topic: str) -> None:
    (broker,) = remoting.brokers()
    assert remoting.group(broker, topic) is None
    remoting.make_group(topic, 1_000_000)
    found = node.witness.groups(BrokerAt("broker-a", node.broker_address))[topic]
    assert found.items() >= {"groupName": topic, "retryMaxTimes": 1_000_000, "consumeEnable": True, "retryQueueNums": 1}.items()  # fmt: skip
    assert remoting.group(broker, topic) == found
    node.witness.make_group(topic, 7)
    assert (remoting.group(broker, topic) or {})["retryMaxTimes"] == 7
    assert remoting.group(broker, READER) is not None


@both
def test_offsets(node: RocketMQNode, remoting: Remoting, queue: TopicQueue, topic: str) -> None:
    remoting.make_group(topic, 5)
    (known,) = node.witness.route(topic) or []
    assert (remoting.first(queue, topic), remoting.end(queue, topic)) == (0, 0)
    for _ in range(3):
        node.send(topic)
    assert (remoting.first(queue, topic), remoting.end(queue, topic)) == (0, 3)
    assert remoting.consumed(queue, topic, topic) == (None if node.LINE == "5" else 0)
    remoting.set_consumed(queue, topic, topic, 2)
    assert remoting.consumed(queue, topic, topic) == node.witness.consumed(known, topic, topic) == 2
    node.witness.set_consumed(known, topic, topic, 3)
    assert remoting.consumed(queue, topic, topic) == 3
    unknown = TopicQueue(queue.broker, 7)
    assert (remoting.first(unknown, topic), remoting.end(unknown, topic)) == (0, 0)


@both
def test_messages_are_pulled(node: RocketMQNode, remoting: Remoting, queue: TopicQueue, topic: str) -> None:
    before = time.time()
    ids = [node.send(topic, b"\0%d" % number, {"KEYS": "k", "own": "ä €"}) for number in range(5)]
    messages, following = remoting.pull(queue, topic, READER, 0, most=2)
    assert [message.id for message in messages] == ids[:2]
    assert following == 2
    rest, following = remoting.pull(queue, topic, READER, following)
    assert [message.id for message in rest] == ids[2:]
    assert following == 5
    assert remoting.pull(queue, topic, READER, 5) == ([], 5)
    assert same([*messages, *rest], node.messages(topic))
    message = messages[1]
    assert (message.topic, message.queue, message.offset) == (topic, 0, 1)
    assert (message.body, message.reconsume_times) == (b"\0" + b"1", 0)
    assert message.properties.items() >= {"KEYS": "k", "own": "ä €"}.items()
    assert before - 1 < message.born_at <= time.time()
    assert before - 1 < message.stored_at < time.time() + 1
    assert message.born_host.startswith("127.0.0.1:")
    assert remoting.consumed(queue, topic, READER) in (None, 0)


@both
def test_what_the_adapter_sends(node: RocketMQNode, remoting: Remoting, queue: TopicQueue, topic: str) -> None:
    id_ = remoting.send(queue, topic, b"body", {"KEYS": "k", "own": "ä €"})
    (message,) = eventually(lambda: node.messages(topic), "the message")
    assert (message.id, message.body) == (id_, b"body")
    assert message.properties.items() >= {"KEYS": "k", "own": "ä €"}.items()
    assert same(remoting.pull(queue, topic, READER, 0)[0], [message])


@both
def test_a_pull_from_an_offset_that_is_none_names_where_to_go_on(
    node: RocketMQNode, remoting: Remoting, queue: TopicQueue, topic: str
) -> None:
    node.send(topic)
    assert remoting.pull(queue, topic, READER, 9) == ([], 1)
    assert remoting.pull(queue, topic, READER, -5) == ([], 0)


@both
def test_large_messages_come_in_several_pulls(
    node: RocketMQNode, remoting: Remoting, queue: TopicQueue, topic: str
) -> None:
    bodies = [bytes([number]) * (4 * 1024 * 1024 - 1000) for number in range(2)]
    for body in bodies:
        node.send(topic, body)
    found: list[bytes] = []
    offset = 0
    while offset < 2:
        messages, offset = remoting.pull(queue, topic, READER, offset)
        found += [message.body for message in messages]
    assert found == bodies


@both
def test_a_compressed_body_arrives_plain(node: RocketMQNode, remoting: Remoting, queue: TopicQueue, topic: str) -> None:
    (known,) = node.witness.route(topic) or []
    node.send_to(known, topic, zlib.compress(b"plain"), flags=1)
    ((message,), _) = remoting.pull(queue, topic, READER, 0)
    assert (message.body, message.compression) == (b"plain", "")
    assert same([message], node.messages(topic))


@both
def test_members(node: RocketMQNode, remoting: Remoting, queue: TopicQueue, topic: str) -> None:
    """A client that sends heartbeats is a member, until its connection ends."""
    places: list[Address | None] = [None, node.proxy_address] if isinstance(node, RocketMQ5) else [None]
    for place in places:
        assert remoting.members(topic, place) == []
    subscription = {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    consumer = {
        "groupName": topic,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    beat = json.dumps({"clientID": "me@1", "consumerDataSet": [consumer], "producerDataSet": []}).encode()
    for place in places:
        with remoting_at(node) as client:
            client.ask(place or queue.broker.address, 34, body=beat)
            assert remoting.members(topic, place) == ["me@1"]
            assert node.witness.members(topic, place or node.broker_address) == ["me@1"]
            remoting.make_topic(f"{topic}-more", 1)  # the client is told, and its connection goes on
            client.ask(place or queue.broker.address, 34, body=beat)
            assert remoting.members(topic, place) == ["me@1"]
        eventually(lambda: remoting.members(topic, place) == [], "no member", 30)  # noqa: B023 - called in this turn


@both
def test_refusals(node: RocketMQNode, remoting: Remoting, queue: TopicQueue, topic: str) -> None:
    missing = f"{topic}-missing"
    with pytest.raises(RemotingError) as refused:
        remoting.pull(queue, missing, READER, 0)
    assert refused.value.code == 17
    with pytest.raises(RemotingError) as refused:
        remoting.send(queue, topic, bytes(4 * 1024 * 1024 + 1), {})
    assert refused.value.code == 13
    with pytest.raises(RemotingError) as refused:
        remoting.make_topic("TBW102", 1)
    assert "java" not in str(refused.value)
    with pytest.raises(RemotingError) as refused:
        remoting.ask(queue.broker.address, 99_999)
    assert refused.value.code == 3
    with pytest.raises(RemotingError) as refused:
        remoting.set_consumed(queue, topic, topic, -1) if node.LINE == "5" else remoting.ask(queue.broker.address, 15)
    assert ".java" not in str(refused.value)


@both
def test_a_frozen_broker_is_silent_and_the_name_server_is_not(
    node: RocketMQNode, queue: TopicQueue, topic: str
) -> None:
    node.broker.freeze()
    with remoting_at(node, within=2) as remoting:
        with pytest.raises(Silent):
            remoting.end(queue, topic)
        assert remoting.route(topic) == [queue]
    node.broker.thaw()
    assert node.count(topic) == 0


@pytest.mark.parametrize("kind", LINES)
def test_logins(kind: type[RocketMQ4 | RocketMQ5]) -> None:
    """A wrong secret, an unknown user and no login are refused, and no text has a secret."""
    with had():
        node = kind(login=True)
    with closing(node):
        node.start()
        node.make_topic("work", kind="NORMAL")
        node.send("work", b"{}", {"own": "ä"})
        assert node.count("work") == 1
        broker = RocketmqBroker("broker-a", node.broker_address)
        for login in (Login("steadyworker", "wrong-secret"), Login("another", "wrong-secret"), None):
            with Remoting(node.name_servers, login, SystemClock()) as remoting:
                assert remoting.brokers() == [broker]  # a name server knows no logins
                with pytest.raises(RemotingError) as refused:
                    remoting.send(TopicQueue(broker, 0), "work", b"{}", {})
                assert re.search(r"secret|\.java", str(refused.value)) is None
                if isinstance(node, RocketMQ5):
                    with pytest.raises(RemotingError, match=r"signature|not found|null"):
                        remoting.members("group", node.proxy_address)
        assert node.count("work") == 1
