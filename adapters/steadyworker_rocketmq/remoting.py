"""
The requests of RocketMQ's remoting protocol that the client libraries cannot send: topics, groups, offsets, members, stored messages.

Codes and names of fields come from `RequestCode`, `ResponseCode` and the `…RequestHeader` classes.
They are the same in RocketMQ 4.9.7 and 5.4.0 unless a docstring names an exception. Every request was tried with both versions.
This client blocks, and uses plain TCP.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Self

from steadyworker.adapter import Clock
from steadyworker.network.errors import Foreign, Hop, Silent, at, at_hop, short
from steadyworker.network.owed import QUESTION_WITHIN
from steadyworker.network.url import Address
from steadyworker_rocketmq.frames import (
    RemotingConnection,
    RemotingReply,
    addresses_of,
    framed,
    of_kind,
    part,
    signature,
)
from steadyworker_rocketmq.hops import of_broker, of_members, of_name_servers
from steadyworker_rocketmq.stored import Stored, stored_messages, text_of

READER = "TOOLS_CONSUMER"
"""The consumer group with which RocketMQ's own tools pull. Every broker has this group, so a pull makes no new group."""

# RequestCode.
_SEND, _PULL, _QUERY_CONSUMED, _SET_CONSUMED, _MAKE_TOPIC = 10, 11, 14, 15, 17
_SETTINGS, _RUNTIME, _END, _FIRST, _MEMBERS = 26, 28, 30, 31, 38
_ROUTE, _CLUSTER, _MAKE_GROUP, _GROUPS, _TOPIC = 105, 106, 200, 201, 351

# ResponseCode.
_SUCCESS, _SYSTEM_ERROR, _NOT_SUPPORTED, _NO_TOPIC = 0, 1, 3, 17
_PULL_NOT_FOUND, _PULL_RETRY, _PULL_MOVED, _QUERY_NOT_FOUND = 19, 20, 21, 22

_V4_0_0_SNAPSHOT = 212
"""The number of 4.0.0's snapshot in `MQVersion`. Each version has two consecutive numbers, snapshot and release. Patch and minor go up to 9."""

# PermName, and PullSysFlag.
_READABLE, _WRITABLE, _READABLE_AND_WRITABLE = 4, 2, 6
_WITH_SUBSCRIPTION = 4

_MOST_QUEUES = 1 << 16
"""A number of queues that no topic reaches, so that a reply cannot fill the memory."""

_NO_MEMBER = re.compile('no consumer for this group|"consumerGroupInfo" is null')
"""Matches the remark of a broker or a proxy that knows no member of a group, because such a reply has only the general code."""

_LONGEST_REMARK = 2000
_TRACE = re.compile(
    r"[\s,]*(?:\bat\s+)?[\w$./]+\([\w$]+\.java:\d+\).*|\s*\bSee https?://\S+ for further details.*",
    re.DOTALL,
)
"""Matches the place in Java that raised the error, and the advice to read a page about other errors."""


@dataclass(frozen=True, slots=True)
class Login:
    """An access key and its secret."""

    user: str
    password: str = field(repr=False)


class RemotingError(Exception):
    """
    A refusal of a name server, broker or proxy.

    Attributes:
        code: The server's code (`ResponseCode`); 0 if the servers refused nothing, but no broker is known.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(f"{text} ({code})" if code else text)
        self.code = code


@dataclass(frozen=True, slots=True)
class RocketmqBroker:
    """
    One broker, which stays the same broker if its address changes.

    `address` is the address of the broker's master. Only `Remoting.brokers` sets `cluster`.
    """

    name: str
    address: Address = field(compare=False)
    cluster: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class TopicQueue:
    """One readable queue of a topic."""

    broker: RocketmqBroker
    number: int


class Remoting:
    """
    A client of name servers, and of the brokers that they name. It is a context manager, for one thread.

    While the client is open, it keeps one connection to each address. If the server has closed a connection, the client opens another.
    No request is sent twice, except to another name server.

    Every method raises RemotingError if a server refuses, and OSError if a server cannot be reached.
    It raises Silent if no reply arrives in time, and Foreign if the reply is of another protocol.
    Each of these errors has a `Hop`, so that a broker's error does not blame the name server that gave the broker's address.

    Args:
        name_servers: The name servers, which are asked in turn until one replies.
        login: Signs every request.
        clock: The clock.
        within: The limit in seconds for each request, including the connect.
        on_request: Called with each request of a server. By default, such requests are ignored.
    """

    def __init__(
        self,
        name_servers: Sequence[Address],
        login: Login | None,
        clock: Clock,
        within: float = QUESTION_WITHIN,
        on_request: Callable[[RemotingReply], None] = lambda _: None,
    ) -> None:
        self._name_servers = list(name_servers)
        self._login = login
        self._clock = clock
        self._within = within
        self._on_request = on_request
        self._open: dict[Address, RemotingConnection] = {}
        self._numbers = count(1)
        self._hops = dict.fromkeys(name_servers, of_name_servers(name_servers))
        self._last: Hop | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, Foreign | RemotingError):  # found in a reply after it was read
            at_hop(error, self._last)
        self.close()

    def close(self) -> None:
        """Close the connections. A later request opens them again."""
        while self._open:
            self._open.popitem()[1].close()

    # --- What there is -----------------------------------------------------------------------------------------------

    def brokers(self) -> list[RocketmqBroker]:
        """Return the masters that the name server knows, of every cluster, sorted by name."""
        table = part(self._ask_name_server(_CLUSTER).table(), "brokerAddrTable", dict)
        clusters = {name: part(of_kind(data, dict, "a broker"), "cluster", str) for name, data in table.items()}
        found = sorted(addresses_of(table.values()).items())
        return [
            self._with_hop(RocketmqBroker(name, each[0], clusters.get(name, ""))) for name, each in found if 0 in each
        ]

    def route(self, topic: str, *, writable: bool = False) -> list[TopicQueue] | None:
        """
        Return the readable queues of a topic, sorted by broker and number; None if there is no such topic.

        While a master is away, its queues are read from the slave with the lowest number.
        With `writable`, the method returns the queues to which a producer may send; all are at masters.
        """
        reply = self._ask_name_server(_ROUTE, {"topic": topic}, allowed=(_NO_TOPIC,))
        if reply.code == _NO_TOPIC:
            return None
        route = reply.table()
        found = addresses_of(part(route, "brokerDatas", list)).items()
        brokers = {name: each[0 if writable else min(each)] for name, each in found if not writable or 0 in each}
        queues: list[TopicQueue] = []
        for each in part(route, "queueDatas", list):
            data = of_kind(each, dict, "a queue")
            name = part(data, "brokerName", str)
            numbers = part(data, "writeQueueNums" if writable else "readQueueNums", int)
            if numbers + len(queues) > _MOST_QUEUES:
                raise Foreign(f"a reply with more than {_MOST_QUEUES} queues")
            if name in brokers and part(data, "perm", int) & (_WRITABLE if writable else _READABLE):
                broker = self._with_hop(RocketmqBroker(name, brokers[name]))
                queues += [TopicQueue(broker, number) for number in range(numbers)]
        return sorted(queues, key=lambda queue: (queue.broker.name, queue.number))

    def topic_type(self, topic: str) -> str | None:
        """Return the type of a topic (`message.type`), such as NORMAL; None if there is no such topic, and on 4.x, which has no types."""
        for broker in dict.fromkeys(queue.broker for queue in self.route(topic) or ()):
            reply = self.ask(broker.address, _TOPIC, {"topic": topic}, allowed=(_NOT_SUPPORTED, _NO_TOPIC))
            if reply.code == _SUCCESS:
                return part(part(reply.table(), "attributes", dict), "message.type", str) or "NORMAL"
        return None

    def group(self, broker: RocketmqBroker, name: str) -> Mapping[str, object] | None:
        """Return the settings of a consumer group at this broker; None if there is no such group."""
        groups = part(self.ask(broker.address, _GROUPS).table(), "subscriptionGroupTable", dict)
        return part(groups, name, dict) or None

    def settings(self, broker: RocketmqBroker) -> Mapping[str, str]:
        """Return the settings of this broker."""
        text = self.ask(broker.address, _SETTINGS).body.decode("utf-8", "replace")
        pairs = (line.partition("=") for line in text.splitlines())
        return {name: value for name, separator, value in pairs if separator}

    def version(self, broker: RocketmqBroker) -> str:
        """
        Return the version of this broker, such as 5.4.0; empty for a broker older than 4.0.0.

        Every reply has the version's number. The request for the version (28) fails on 4.9.7 in the first second after a start.
        """
        index, is_release = divmod(self.ask(broker.address, _SETTINGS).version - _V4_0_0_SNAPSHOT, 2)
        if index < 0:
            return ""
        number = ".".join(map(str, (4 + index // 100, index // 10 % 10, index % 10)))
        return number if is_release else f"{number}-SNAPSHOT"

    def runtime(self, broker: RocketmqBroker) -> Mapping[str, object]:
        """Return this broker's statistics of itself; empty if a 4.9.7 has just started, because it then refuses the request."""
        reply = self.ask(broker.address, _RUNTIME, allowed=(_SYSTEM_ERROR,))
        return part(reply.table(), "table", dict) if reply.code == _SUCCESS else {}

    def behind(self, broker: RocketmqBroker) -> int:
        """Return the number of bytes in this broker's log that are not in its queues yet; 0 if the broker does not report it."""
        behind = str(self.runtime(broker).get("dispatchBehindBytes"))
        return int(behind) if behind.isdecimal() else 0

    def members(self, group: str, at: Address | None = None) -> list[str]:
        """
        Return the ids of the members of a consumer group, sorted.

        A proxy in cluster mode knows its own clients. The brokers behind the proxy do not know these clients.

        Args:
            group: The group.
            at: The remoting port of a proxy. Without it, every master is asked.
        """
        found: set[str] = set()
        if at is not None:
            self._hops[at] = of_members(at)
        for address in (broker.address for broker in self._masters()) if at is None else (at,):
            reply = self.ask(address, _MEMBERS, {"consumerGroup": group}, allowed=(_SYSTEM_ERROR,))
            if reply.code == _SUCCESS:
                found.update(of_kind(id_, str, "a text") for id_ in part(reply.table(), "consumerIdList", list))
            elif _NO_MEMBER.search(reply.remark) is None:
                raise self._refusal(reply)
        return sorted(found)

    # --- What is made ------------------------------------------------------------------------------------------------

    def make_topic(self, name: str, queues: int = 16, kind: str | None = None) -> None:
        """
        Make or change a topic on every master. The masters register the topic at the name servers before they reply.

        Args:
            name: The topic.
            queues: The number of the topic's queues at each broker.
            kind: The topic's type, such as DELAY; 4.x ignores the type.
        """
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(_READABLE_AND_WRITABLE),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        if kind is not None:
            fields["attributes"] = f"+message.type={kind}"
        for broker in self._masters():
            self.ask(broker.address, _MAKE_TOPIC, fields)

    def make_group(self, name: str, attempts: int) -> None:
        """Make or change a consumer group on every master. A message is delivered 1 + `attempts` times at most."""
        settings = {"groupName": name, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": attempts}
        for broker in self._masters():
            self.ask(broker.address, _MAKE_GROUP, body=json.dumps(settings).encode())

    # --- Queues ------------------------------------------------------------------------------------------------------

    def first(self, queue: TopicQueue, topic: str) -> int:
        """Return the offset of the first message that the broker still has; 0 for an unknown queue."""
        return self._ask_queue(_FIRST, queue, topic).number("offset")

    def end(self, queue: TopicQueue, topic: str) -> int:
        """Return the offset that the next message will have; 0 for an unknown queue."""
        return self._ask_queue(_END, queue, topic).number("offset")

    def consumed(self, queue: TopicQueue, topic: str, group: str) -> int | None:
        """
        Return the offset of the first message that the group has not consumed; None if the group has never consumed.

        While the queue's first message is in the memory of a 4.x broker, the result is 0 instead of None. The group then begins at 0.
        """
        fields = {"consumerGroup": group, "setZeroIfNotFound": "false"}
        reply = self._ask_queue(_QUERY_CONSUMED, queue, topic, fields, allowed=(_QUERY_NOT_FOUND,))
        return None if reply.code == _QUERY_NOT_FOUND else reply.number("offset")

    def set_consumed(self, queue: TopicQueue, topic: str, group: str, offset: int) -> None:
        """Set the offset of the first message that the group has not consumed."""
        self._ask_queue(_SET_CONSUMED, queue, topic, {"consumerGroup": group, "commitOffset": str(offset)})

    def pull(self, queue: TopicQueue, topic: str, group: str, offset: int, most: int = 32) -> tuple[list[Stored], int]:
        """
        Return messages of a queue, and the offset of the next pull. This changes nothing, except that 5.x may make the group.

        The result can have fewer messages than `most`, or no messages if the broker has deleted them. Then pull again at the returned offset.
        At the end of the queue, the result has no messages, and the returned offset is equal to `offset`.
        """
        fields = {
            "consumerGroup": group,
            "queueOffset": str(offset),
            "maxMsgNums": str(most),
            "sysFlag": str(_WITH_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        empty = (_PULL_NOT_FOUND, _PULL_RETRY, _PULL_MOVED)
        reply = self._ask_queue(_PULL, queue, topic, fields, allowed=empty)
        return (stored_messages(reply.body) if reply.code == _SUCCESS else []), reply.number("nextBeginOffset")

    def send(self, queue: TopicQueue, topic: str, body: bytes, properties: Mapping[str, str]) -> str:
        """Send a message with `store`, and return the message's id: the property `UNIQ_KEY`, or a new id."""
        named = {"UNIQ_KEY": secrets.token_hex(16).upper(), **properties}
        self.store(queue, topic, body, named, {})
        return named["UNIQ_KEY"]

    def store(
        self, queue: TopicQueue, topic: str, body: bytes, properties: Mapping[str, str], fields: Mapping[str, str]
    ) -> RemotingReply:
        """
        Send a message to a queue, and return the reply when the broker has stored the message.

        If the call raises another error than RemotingError, it is unknown whether the broker has the message.

        Args:
            queue: The queue, at a master.
            topic: The topic.
            body: The body, which must not be empty.
            properties: The properties, including system properties such as `DELAY`.
            fields: Fields of the request that replace the fields for plain messages.

        Raises:
            ValueError: A property contains a separator.
        """
        plain = {
            "producerGroup": "steadyworker",
            "defaultTopic": topic,  # A broker that makes topics by itself (from TBW102) would make this topic with one queue.
            "defaultTopicQueueNums": "1",
            "sysFlag": "0",
            "bornTimestamp": str(int(self._clock.wall() * 1000)),
            "flag": "0",
            "properties": text_of(properties),
            "reconsumeTimes": "0",
            "unitMode": "false",
        }
        return self._ask_queue(_SEND, queue, topic, plain | dict(fields), body)

    # --- Requests ----------------------------------------------------------------------------------------------------

    def ask(
        self,
        address: Address,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        allowed: Collection[int] = (),
    ) -> RemotingReply:
        """Send a request to a server, and return the reply. The reply's code is 0 or one of `allowed`."""
        fields = dict(fields or {})
        if self._login is not None:
            fields["AccessKey"] = self._login.user
            fields["Signature"] = signature(fields, body, self._login.password)
        number = next(self._numbers)
        deadline = self._clock.monotonic() + self._within
        self._last = self._hops.get(address)
        with at(self._last):
            connection = self._connected(address, deadline)
            try:
                reply = connection.ask(number, framed(code, number, fields, body), deadline)
            except TimeoutError as error:
                raise Silent(f"no reply of {address} to request {code} within {self._within:g} s") from error
            finally:
                if number != connection.answered:
                    del self._open[address]
                    connection.close()
            if reply.code != _SUCCESS and reply.code not in allowed:
                raise self._refusal(reply)
        return reply

    def serve(self, address: Address, seconds: float) -> None:
        """Wait `seconds` for requests of a server, and pass them to `on_request`. The server must have had a request before."""
        self._open[address].serve(self._clock.monotonic() + seconds)

    def _ask_name_server(
        self, code: int, fields: Mapping[str, str] | None = None, allowed: Collection[int] = ()
    ) -> RemotingReply:
        """Ask the name servers in turn. The next call begins with the name server that replied."""
        failed: list[Exception] = []
        for server in list(self._name_servers):
            try:
                return self.ask(server, code, fields, allowed=allowed)
            except (OSError, Silent, Foreign) as error:
                failed.append(error)
                self._name_servers.append(self._name_servers.pop(0))
        if not failed:
            raise ValueError("Expected a name server, got none: name one.")
        # A wrong port is reported only if every port is wrong. Otherwise a later try can succeed.
        raise next((error for error in failed if not isinstance(error, Foreign)), failed[-1])

    def _ask_queue(
        self,
        code: int,
        queue: TopicQueue,
        topic: str,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        allowed: Collection[int] = (),
    ) -> RemotingReply:
        named = {"topic": topic, "queueId": str(queue.number), **(fields or {})}
        return self.ask(queue.broker.address, code, named, body, allowed)

    def _masters(self) -> list[RocketmqBroker]:
        masters = self.brokers()
        if not masters:
            raise RemotingError("the name server knows no broker", _SUCCESS)
        return masters

    def _with_hop(self, broker: RocketmqBroker) -> RocketmqBroker:
        """Return a broker, and remember that the name server gave the broker's address."""
        self._hops[broker.address] = of_broker(broker.name, broker.address, self._name_servers[0])
        return broker

    def _connected(self, address: Address, deadline: float) -> RemotingConnection:
        connection = self._open.get(address)
        if connection is not None and connection.is_closed():
            del self._open[address]
            connection.close()
            connection = None
        if connection is None:
            connection = self._open[address] = RemotingConnection(address, deadline, self._clock, self._on_request)
        return connection

    def _refusal(self, reply: RemotingReply) -> RemotingError:
        text = _TRACE.sub("", reply.remark[:_LONGEST_REMARK].encode("utf-8", "replace").decode())
        if self._login is not None and self._login.password:
            text = text.replace(self._login.password, "***")
        return RemotingError(short(text) or "a refusal without a reason", reply.code)
