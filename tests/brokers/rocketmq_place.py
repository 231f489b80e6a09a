"""
A test's place at RocketMQ: topics and groups whose names no other place uses.

Queues are counted by what their groups have not consumed.
At the brokers, a message that a member holds is one of these; at a proxy it soon is not, and no request reports it (`hidden_for`).
"""

from __future__ import annotations

import itertools
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from steadyworker.network.url import Address as HostPort
from tests.brokers.place import Ability, Depth, Message
from tests.brokers.rocketmq import VERSIONS, RocketMQ5, RocketMQNode
from tests.brokers.rocketmq_consumers import KEY, DirectConsumer, GrpcConsumer, RocketmqConsumer, message_of
from tests.brokers.rocketmq_front import Front
from tests.brokers.rocketmq_witness import NO_TOPIC, BrokerAt, QueueAt, StoredMessage, Witness
from tests.faults.proxy import Proxy

MOST_ATTEMPTS = 1_000_000
"""The deliveries of a group that a test makes, as a worker makes one."""

DELAY_LEVELS = (1, 5, 10, 30, *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)))
"""The seconds of each delay level of a broker as it is shipped."""

OFFSETS = re.compile(r'"brokerOffset":(-?\d+),"consumerOffset":(-?\d+)')
SCHEDULE, WHEEL = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
PAUSE = 0.1
LATE = 3.0
"""Seconds for which a delayed message is still counted after its time, as its topic does not have it at once."""

MARK = "sw-dropped"
"""The property by which `dead drop` names a letter that it drops."""

DEAD, LATER = "-dead", "-later"


class RocketmqPlace(ABC):
    """
    Topics whose names begin with the same letters, at one node.

    A message that waits for its time counts as ready in its queue.
    """

    abilities: ClassVar[frozenset[Ability]] = frozenset()
    queue_kinds: ClassVar[tuple[str, ...]] = ("",)
    farewell: ClassVar[str] = ""  # no delivery is lost when the broker is stopped
    redelivers_within: ClassVar[float]
    hidden_for: ClassVar[float]
    long_header: ClassVar[int] = 20_000  # of 32,767 bytes, of which a proxy accepts 16,384

    queues: ClassVar[int] = 16
    """The queues of a topic that a test makes."""

    def __init__(self, node: RocketMQNode) -> None:
        self.node = node
        self.prefix = f"place-{secrets.token_hex(4)}-"
        self._proxies: list[Proxy] = []
        self._own: set[str] = set()
        """The ids of this place's own consumers."""
        self._drained: dict[tuple[str, QueueAt], int] = {}
        """The places up to which this place has drained a queue."""
        self.wait_for_broker()
        self._delayed = _Delayed(node.witness, self.prefix)

    @property
    def broker(self) -> RocketMQNode:
        return self.node

    @property
    def namespace(self) -> str:
        """As `Place`; a broker is known by its address, and a proxy has another one on this host."""
        return urlsplit(self.url()).netloc

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.node.stop()
        try:
            yield
        finally:
            self.node.start()

    def wait_for_broker(self) -> None:
        """Return when the name server knows the broker: after its own restart, that takes up to 10 s."""
        deadline = time.monotonic() + 60
        while not self.node.witness.brokers():
            assert time.monotonic() < deadline, "expected a broker that the name server knows"
            time.sleep(PAUSE)  # a name server reports no event when a broker registers

    # --- How it is reached ---

    @abstractmethod
    def address(self, *, through: Proxy | None = None, tls: bool = False) -> str: ...

    @abstractmethod
    def url(self, *, heartbeat: int = 60, through: Proxy | None = None, tls: bool = False) -> str: ...

    @abstractmethod
    def _consumer(self, queue: str) -> RocketmqConsumer: ...

    @abstractmethod
    def _members_at(self) -> HostPort:
        """Return the server that knows the members of groups."""

    # --- Queues ---

    def queue(self, name: str) -> str:
        """As `Place`; a topic's name has no dots."""
        return self.prefix + name.replace(".", "-")

    def make_queue(self, queue: str, kind: str = "") -> None:
        assert not kind, f"expected no kind of queue, as RocketMQ has one only, got {kind!r}"
        witness = self.node.witness
        witness.make_topic(queue, 1 if queue.endswith(DEAD) else self.queues, "NORMAL")
        witness.make_group(queue, MOST_ATTEMPTS)
        for each in witness.route(queue) or []:
            witness.set_consumed(each, queue, queue, 0)

    def delete(self, queue: str) -> None:
        for topic in (queue, *self._retries(queue, self.node.topics("%RETRY%"))):
            self.node.delete_topic(topic)
        self.node.delete_group(queue)
        self._delayed.forget(queue)

    def depths(self) -> Mapping[str, Depth]:
        """As `Place`; a message whose time has just come may be counted twice, and is not overlooked."""
        found: dict[str, int] = {}
        delayed = self._delayed.waiting()
        topics = self.node.topics()
        for queue in topics:
            if queue.startswith(self.prefix):
                counts = [self._waiting(each, queue) for each in (queue, *self._retries(queue, topics))]
                found[queue] = sum(counts) + sum(each.topic == queue for each in delayed)
        return {queue: Depth(count, 0, count) for queue, count in found.items()}

    def ready(self) -> Mapping[str, int]:
        return {queue: depth.ready for queue, depth in self.depths().items()}

    def consumers(self, queue: str) -> int:
        return len(self.node.witness.members(queue, self._members_at()))

    def dead_letters(self, queue: str) -> int:
        return len(self._letters(f"%DLQ%{queue}", f"{queue}{DEAD}"))

    def purge(self, queue: str) -> None:
        self._skip(queue, queue, *self._retries(queue, self.node.topics("%RETRY%")))
        self._delayed.forget(queue)

    def drop_revived(self, queue: str) -> None:
        """Lose what a proxy's consumer held, was revived after it was killed, and waits: the group's place is set behind it."""
        self._skip(queue, *self._retries(queue, self.node.topics("%RETRY%")))

    def _skip(self, group: str, *topics: str) -> None:
        witness = self.node.witness
        for topic in topics:
            for each in witness.route(topic) or []:
                witness.set_consumed(each, topic, group, witness.end(each, topic))

    def drain(self) -> list[Message]:
        """As `Place`, once what a consumer held is seen again."""
        time.sleep(self.hidden_for)
        found: dict[str, Message] = {}
        topics = self.node.topics()
        for queue in [topic for topic in topics if topic.startswith(self.prefix)]:
            given_up = f"%DLQ%{queue}"
            for topic in (queue, *self._retries(queue, topics), *({given_up} & {*topics})):
                kept = topic.endswith(DEAD) or topic == given_up
                for each, stored in self._letters(topic) if kept else self._rest(topic, queue):
                    message = message_of(queue, stored.body, stored.properties, given_up=topic == given_up)
                    found[stored.id] = message
                    self._drained[topic, each] = stored.offset + 1
        for late in self._delayed.waiting():
            found.setdefault(late.stored.id, message_of(late.topic, late.stored.body, late.stored.properties))
        self._delayed.forget(self.prefix)
        return [*found.values()]

    def _retries(self, queue: str, topics: list[str]) -> list[str]:
        """Return the topics of which a proxy also receives for this queue: what was invisible goes there."""
        forms = (f"%RETRY%{queue}_{queue}", f"%RETRY%{queue}+{queue}")
        return [topic for topic in topics if topic in forms]

    def _waiting(self, topic: str, group: str) -> int:
        """Return how many messages of a topic neither the group nor this place has consumed."""
        if topic.endswith(DEAD):
            return len(self._letters(topic))
        witness = self.node.witness
        queues = witness.route(topic) or []
        if any((topic, queue) in self._drained for queue in queues):
            return sum(witness.end(queue, topic) - self._begin(queue, topic, group) for queue in queues)
        count = 0
        for broker in {queue.broker for queue in queues}:
            fields = {"consumerGroup": group, "topic": topic}
            reply = witness.ask(broker.address, "GET_CONSUME_STATS", fields, allowed=(NO_TOPIC,))
            places = OFFSETS.findall(reply["body"].decode())
            count += sum(int(end) - int(at) for end, at in places)
        return count

    def _letters(self, *topics: str) -> list[tuple[QueueAt, StoredMessage]]:
        """Return the dead letters of these topics that no mark has dropped."""
        found = {
            f"{topic}/{queue.broker.name}/{queue.number}/{stored.offset}/{stored.id}": (queue, stored)
            for topic in topics
            for queue, stored in self._rest(topic)
        }
        marks = {stored.properties.get(MARK) for _, stored in found.values()}
        return [pair for place, pair in found.items() if place not in marks and MARK not in pair[1].properties]

    def _begin(self, queue: QueueAt, topic: str, group: str) -> int:
        """Return the offset of the first message that neither the group nor this place has consumed."""
        witness = self.node.witness
        consumed = witness.consumed(queue, topic, group) if group else None
        first = witness.first(queue, topic) if consumed is None else consumed
        return max(first, self._drained.get((topic, queue), 0))

    def _rest(self, topic: str, group: str = "") -> list[tuple[QueueAt, StoredMessage]]:
        """Return what neither the group nor this place has consumed, oldest first in each queue."""
        return [
            (queue, stored)
            for queue in self.node.witness.route(topic) or []
            for stored in self.node.witness.messages(queue, topic, self._begin(queue, topic, group))
        ]

    # --- Foreign programs ---

    def publish(
        self, queue: str, body: bytes, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """As `Place`; a key is also RocketMQ's own key of a message."""
        self.node.send(queue, body, {**(headers or {}), **({KEY: key, "KEYS": key} if key else {})})

    @contextmanager
    def consumer(self, queue: str) -> Iterator[RocketmqConsumer]:
        before = {*self._clients(queue)}
        made = self._consumer(queue)
        deadline = time.monotonic() + 30
        while not (new := {*self._clients(queue)} - before):  # a proxy knows it after its first words
            assert time.monotonic() < deadline, f"expected a member of {queue}"
            time.sleep(PAUSE)
        self._own |= new
        try:
            yield made
        finally:
            made.give_back()

    # --- Connections ---

    def connections(self) -> AbstractSet[str]:
        """As `Place`: those that consume, by client and address, as the broker does not report the others."""
        found = [client for group in self.node.groups(self.prefix) for client in self._clients(group).items()]
        return {f"{id_} {address}" for id_, address in found if id_ not in self._own}

    def _clients(self, group: str) -> dict[str, str]:
        """Return the address of each member of a group."""
        return self.node.witness.addresses(group, self._members_at())

    def close_connections(self) -> None:
        for proxy in self._proxies:
            proxy.close()

    def close(self) -> None:
        self.node.heal()
        self.node.remove(self.prefix)


class DirectPlace(RocketmqPlace):
    """For the driver for brokers; a worker process behind a proxy reaches name server and broker through it."""

    abilities: ClassVar[frozenset[Ability]] = frozenset({Ability.REMOTING})
    redelivers_within: ClassVar[float] = 65.0  # the lock of a queue, and a search
    hidden_for: ClassVar[float] = 0.0
    queues: ClassVar[int] = 128  # a worker holds one message of each at most

    def __init__(self, node: RocketMQNode) -> None:
        super().__init__(node)
        self._front = Front(node)
        self._numbers = itertools.count()

    def address(self, *, through: Proxy | None = None, tls: bool = False) -> str:
        """As `Place`: that of a port for both name server and broker, which a proxy needs."""
        assert not tls, "expected no TLS: this driver has none"
        address = f"rocketmq://127.0.0.1:{self._front.port}"
        if not through:
            return address
        self._front.serve(through)
        if through not in self._proxies:
            self._proxies.append(through)
        return through.through(address)

    def url(self, *, heartbeat: int = 60, through: Proxy | None = None, tls: bool = False) -> str:
        """As `Place`; RocketMQ has no heartbeat to set, and without a proxy there is nothing between worker and broker."""
        assert heartbeat
        return self.address(through=through, tls=tls) if through else self.node.remoting_url

    def publish(
        self, queue: str, body: bytes, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """As `Place`; to the queues in turn, because a message waits for those before it in its queue."""
        properties = {**(headers or {}), **({KEY: key, "KEYS": key} if key else {})}
        queues = self.node.witness.route(queue)
        assert queues, f"expected the topic {queue}, got none"
        self.node.send_to(queues[next(self._numbers) % len(queues)], queue, body, properties)

    def _consumer(self, queue: str) -> RocketmqConsumer:
        return DirectConsumer(self.node, queue)

    def _members_at(self) -> HostPort:
        return self.node.broker_address

    def close(self) -> None:
        self._front.close()
        super().close()


class GrpcPlace(RocketmqPlace):
    """For the driver for proxies."""

    LONGEST_INVISIBLE = 15

    redelivers_within: ClassVar[float] = 20.0
    hidden_for: ClassVar[float] = 20.0

    node: RocketMQ5

    def address(self, *, through: Proxy | None = None, tls: bool = False) -> str:
        assert not tls, "expected no TLS: the proxy's certificate has no authority"
        address = f"rocketmq+grpc://{self.node.grpc_address}"
        if not through:
            return address
        if through not in self._proxies:
            self._proxies.append(through)
        return through.through(address)

    def url(self, *, heartbeat: int = 60, through: Proxy | None = None, tls: bool = False) -> str:
        """
        As `Place`; three heartbeats are the time after which a silent worker's messages come again.

        A proxy accepts 10 s or more, and no test waits for more than 15 s.
        """
        invisible = min(max(10, 3 * heartbeat), self.LONGEST_INVISIBLE)
        options = f"namesrv={self.node.name_servers[0]}&members={self.node.proxy_address}&invisible={invisible}"
        return f"{self.address(through=through, tls=tls)}?{options}"

    def _consumer(self, queue: str) -> RocketmqConsumer:
        return GrpcConsumer(self.node.grpc_address, queue)

    def _members_at(self) -> HostPort:
        return self.node.proxy_address


@dataclass(frozen=True)
class _Late:
    """A message that waits at the broker until it is due, and the topic to which it goes then."""

    topic: str
    due: float
    stored: StoredMessage


class _Delayed:
    """
    The messages of one place that wait at the broker for their time.

    4.x has a queue for each delay level, and 5.x a log of all that wait as well; both only grow, so each is read once.
    """

    def __init__(self, witness: Witness, prefix: str) -> None:
        self._witness = witness
        self._prefix = prefix
        self._found: list[_Late] = []
        self._places = {
            (topic, queue): witness.end(queue, topic)
            for broker in witness.brokers()
            for topic, queue in self._queues(broker)
        }

    def waiting(self) -> list[_Late]:
        for (topic, queue), at in self._places.items():
            offset, end = at, self._witness.end(queue, topic)
            while offset < end:
                pulled, following = self._witness.pull(queue, topic, offset)
                self._found += filter(None, map(self._late, pulled))
                if following <= offset:
                    break
                offset = following
            self._places[topic, queue] = offset
        self._found = [each for each in self._found if each.due > time.time() - LATE]
        return self._found

    def forget(self, prefix: str) -> None:
        """Leave out what goes to these topics: no request removes it from the broker."""
        self._found = [each for each in self._found if not each.topic.startswith(prefix)]

    @staticmethod
    def _queues(broker: BrokerAt) -> Iterator[tuple[str, QueueAt]]:
        for number in range(len(DELAY_LEVELS)):
            yield SCHEDULE, QueueAt(broker, number)
        yield WHEEL, QueueAt(broker, 0)  # empty on 4.x

    def _late(self, stored: StoredMessage) -> _Late | None:
        properties = stored.properties
        topic = properties.get("REAL_TOPIC", "")
        if not topic.startswith(self._prefix):
            return None
        if stored.topic == WHEEL:
            return _Late(topic, int(properties["TIMER_OUT_MS"]) / 1000, stored)
        return _Late(topic, stored.stored_at + DELAY_LEVELS[stored.queue], stored)


@dataclass(frozen=True)
class RocketmqPlaces:
    """A RocketMQ that runs, for one of the drivers."""

    node: RocketMQNode
    place: type[DirectPlace | GrpcPlace]

    @property
    def abilities(self) -> frozenset[Ability]:
        return self.place.abilities

    @property
    def title(self) -> str:
        return f"RocketMQ{' proxy' * (self.place is GrpcPlace)} {VERSIONS[self.node.LINE]}"

    def open(self) -> DirectPlace | GrpcPlace:
        return self.place(self.node)


ROCKETMQ_KINDS: Mapping[str, type[DirectPlace | GrpcPlace]] = {"rocketmq-4.9": DirectPlace, "rocketmq-5.4": GrpcPlace}
"""What drills and benchmarks run on: the driver for brokers on 4.9.7, and that for proxies on 5.4.0."""
