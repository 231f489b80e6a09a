"""
The witness of RocketMQ's tests: what a broker has, asked by RocketMQ's own client and decoded by its own decoder.

So a fault in the adapter's reader of the protocol cannot hide from the tests.
`mqadmin` takes 4 s for a question; here, one Java runs for all questions of a test process (`RocketmqWitness.java`).
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache as once
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from steadyworker.network.url import Address as HostPort
from tests.brokers.maven import java, java_program
from tests.brokers.process import Guard

TOOLS = "TOOLS_CONSUMER"
"""The consumer group of RocketMQ's own tools, which every broker has."""

NO_TOPIC, NO_OFFSET = 17, 22
NO_MESSAGE, RETRY, MOVED = 19, 20, 21
"""Numbers of replies (`ResponseCode`)."""

READABLE = 4
LATE = 30.0
"""Seconds beyond the limit of a request after which the Java itself must have failed."""


class RefusalError(Exception):
    """A refusal of a server; `code` is one of `ResponseCode`."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"{remark} ({code})")
        self.code = code
        self.remark = remark


class Account(NamedTuple):
    """The login of the requests; two empty texts for none."""

    user: str
    password: str


@dataclass(frozen=True)
class BrokerAt:
    """A master, which is the same one at another address."""

    name: str
    address: HostPort = field(compare=False)


@dataclass(frozen=True)
class QueueAt:
    """One queue of a topic, at one broker."""

    broker: BrokerAt
    number: int


@dataclass(frozen=True)
class StoredMessage:
    """A message as a broker stores it; times are in seconds since 1970."""

    id: str
    topic: str
    queue: int
    offset: int
    body: bytes
    properties: Mapping[str, str]
    born_at: float
    stored_at: float
    reconsume_times: int
    born_host: str


def witness_folder() -> Path:
    """Return the folder of the Java program, and make it if need be; raises MissingError."""
    source = Path(__file__).with_name("RocketmqWitness.java")
    return java_program("rocketmq-witness", ("org.apache.rocketmq:rocketmq-client:5.4.0",), source)


class WitnessProgram:
    """The Java of this process; it ends when its input does, and thus with this process."""

    def __init__(self) -> None:
        program = witness_folder()
        self._guard = Guard("rocketmq-witness")
        folder = self._guard.folder
        options = ("-Xms16m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(str(java()), *options, f"-Duser.home={folder}"),
                    *("-cp", f"{program / 'classes'}:{program / 'lib'}/*", "RocketmqWitness"),
                ],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._guard.send("watch", self._process.pid)
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._has_ended = False
        threading.Thread(target=self._receive, name="rocketmq, witness", daemon=True).start()

    def ask(self, request: Mapping[str, object], within: float) -> dict[str, Any]:
        """
        Return the reply to a request; the Java itself ends it after `within` seconds.

        Raises AssertionError if the Java has ended, so that its end does not seem to be a broker that does not reply.
        """
        number = next(self._numbers)
        reply: Future[dict[str, Any]] = Future()
        line = json.dumps({**request, "id": number, "within": int(within * 1000)}).encode()
        with self._lock:
            if self._has_ended:
                raise self._end()
            self._waiting[number] = reply
            assert self._process.stdin
            with suppress(BrokenPipeError):  # `_receive` sees the end, too
                self._process.stdin.write(line + b"\n")
                self._process.stdin.flush()
        return reply.result(within + LATE)

    def _receive(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            reply = json.loads(line)
            self._waiting.pop(reply["id"]).set_result(reply)
        with self._lock:
            self._has_ended = True
            for waiting in self._waiting.values():
                waiting.set_exception(self._end())

    def _end(self) -> AssertionError:
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        return AssertionError("the witness ended", log)


@once
def witness_program() -> WitnessProgram:
    """Return the one Java of this process."""
    return WitnessProgram()


class Witness:
    """
    The questions of tests to one RocketMQ, and what foreign programs do there.

    Every method raises RefusalError if a server refuses, TimeoutError if it does not reply, and ConnectionError.

    Args:
        name_server: The name server.
        login: The login.
        within: The limit in seconds for each request.
        connection: The name of connections of its own, which are open until `close`; all others share theirs.
    """

    def __init__(self, name_server: HostPort, login: Account, within: float = 10.0, *, connection: str = "") -> None:
        self._name_server = name_server
        self._login = login
        self._within = within
        self._connection = connection

    def close(self) -> None:
        """Close connections of its own."""
        self._request({"code": "close"})

    def ask(
        self,
        address: HostPort,
        code: str | int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        allowed: Collection[int] = (),
        reads: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """
        Send a request, and return the reply.

        Args:
            address: The server.
            code: The request's number, or its name in `RequestCode`.
            fields: The fields.
            body: The body.
            allowed: Codes of replies that are no refusal.
            reads: What the reply's body is: `table`, `messages`, or bytes.
            properties: A message's properties, for the field of this name.
        """
        request = {
            "address": str(address),
            "code": str(code),
            "fields": dict(fields or {}),
            "body": base64.b64encode(body).decode(),
            "reads": reads,
            **({"properties": dict(properties)} if properties is not None else {}),
        }
        reply = self._request(request)
        error = reply.get("error", "")
        if "Timeout" in error:
            raise TimeoutError(reply["remark"])
        if "Connect" in error or "SendRequest" in error:
            raise ConnectionError(reply["remark"])
        assert not error, f"expected a reply of {address} to {code}, got {error}: {reply['remark']}"
        if reply["code"] not in (0, *allowed):
            raise RefusalError(reply["code"], reply["remark"])
        if "body" in reply:
            reply["body"] = base64.b64decode(reply["body"])
        return reply

    def table(self, address: HostPort, code: str, fields: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the table in a reply's body; empty if the body is."""
        return self.ask(address, code, fields, reads="table").get("table") or {}

    # --- What there is ------------------------------------------------------------------------------------------------

    def brokers(self) -> list[BrokerAt]:
        """Return the masters that the name server knows, sorted by name."""
        known = self.table(self._name_server, "GET_BROKER_CLUSTER_INFO").get("brokerAddrTable") or {}
        masters = {name: data["brokerAddrs"].get("0") for name, data in known.items()}
        return [BrokerAt(name, _address(address)) for name, address in sorted(masters.items()) if address]

    def topics(self) -> list[str]:
        """Return the topics that the name server knows."""
        return sorted(self.table(self._name_server, "GET_ALL_TOPIC_LIST_FROM_NAMESERVER").get("topicList") or ())

    def route(self, topic: str) -> list[QueueAt] | None:
        """Return the readable queues of a topic; None if there is no such topic."""
        reply = self.ask(
            self._name_server, "GET_ROUTEINFO_BY_TOPIC", {"topic": topic}, allowed=(NO_TOPIC,), reads="table"
        )
        if reply["code"] == NO_TOPIC:
            return None
        brokers = {
            data["brokerName"]: BrokerAt(data["brokerName"], _address(data["brokerAddrs"][min(data["brokerAddrs"])]))
            for data in reply["table"]["brokerDatas"]
        }
        return [
            QueueAt(brokers[data["brokerName"]], number)
            for data in sorted(reply["table"]["queueDatas"], key=lambda data: str(data["brokerName"]))
            if data["perm"] & READABLE
            for number in range(data["readQueueNums"])
        ]

    def groups(self, broker: BrokerAt) -> dict[str, dict[str, Any]]:
        """Return the consumer groups of a broker, each with its settings."""
        found: dict[str, dict[str, Any]] = self.table(broker.address, "GET_ALL_SUBSCRIPTIONGROUP_CONFIG")[
            "subscriptionGroupTable"
        ]
        return found

    def settings(self, broker: HostPort) -> dict[str, str]:
        """Return the settings of a broker."""
        text = self.ask(broker, "GET_BROKER_CONFIG")["body"].decode()
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def version(self, broker: HostPort) -> str:
        """Return the version of a broker, such as `V5_4_0`, which each of its replies has."""
        return str(self.ask(broker, "GET_BROKER_CONFIG")["version"])

    def members(self, group: str, at: HostPort) -> list[str]:
        """Return the ids of a group's members at a broker, or at a proxy's remoting port."""
        try:
            reply = self.ask(at, "GET_CONSUMER_LIST_BY_GROUP", {"consumerGroup": group}, reads="table")
        except RefusalError as error:  # RocketMQ reports so that there is none; its code is the general one
            if "no consumer for this group" in error.remark or '"consumerGroupInfo" is null' in error.remark:
                return []
            raise
        return sorted(reply["table"]["consumerIdList"])

    def addresses(self, group: str, at: HostPort) -> dict[str, str]:
        """Return the address of each member of a group."""
        try:
            found = self.table(at, "GET_CONSUMER_CONNECTION_LIST", {"consumerGroup": group}).get("connectionSet")
        except RefusalError:  # there is none; the code differs from part to part
            return {}
        return {each["clientId"]: each["clientAddr"] for each in found or ()}

    def first(self, queue: QueueAt, topic: str) -> int:
        """Return the offset of the first message that the broker still has."""
        return int(self._ask_queue("GET_MIN_OFFSET", queue, topic)["fields"]["offset"])

    def end(self, queue: QueueAt, topic: str) -> int:
        """Return the offset that the next message will have."""
        return int(self._ask_queue("GET_MAX_OFFSET", queue, topic)["fields"]["offset"])

    def count(self, topic: str) -> int:
        """Return how many messages the topic has, consumed or not; 0 for one that does not exist."""
        return sum(self.end(queue, topic) - self.first(queue, topic) for queue in self.route(topic) or [])

    def consumed(self, queue: QueueAt, topic: str, group: str) -> int | None:
        """Return the offset of the first message that the group has not consumed; None if it has never consumed."""
        fields = {"consumerGroup": group, "setZeroIfNotFound": "false"}
        reply = self._ask_queue("QUERY_CONSUMER_OFFSET", queue, topic, fields, allowed=(NO_OFFSET,))
        return None if reply["code"] == NO_OFFSET else int(reply["fields"]["offset"])

    def pull(self, queue: QueueAt, topic: str, offset: int) -> tuple[list[StoredMessage], int]:
        """Return messages from this offset on, and the offset to go on with."""
        fields = {
            "consumerGroup": TOOLS,
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        reply = self._ask_queue(
            "PULL_MESSAGE", queue, topic, fields, allowed=(NO_MESSAGE, RETRY, MOVED), reads="messages"
        )
        return [_stored(each) for each in reply["messages"] if not reply["code"]], int(
            reply["fields"]["nextBeginOffset"]
        )

    def messages(self, queue: QueueAt, topic: str, offset: int | None = None) -> Iterator[StoredMessage]:
        """Yield the messages of a queue, from this offset on or from the first one."""
        place, end = self.first(queue, topic) if offset is None else offset, self.end(queue, topic)
        while place < end:
            found, following = self.pull(queue, topic, place)
            yield from found
            assert following > place, f"expected {topic} up to {end}, got it up to {place}"
            place = following

    # --- What an operator, and a foreign program, do ------------------------------------------------------------------

    def make_topic(self, name: str, queues: int = 16, kind: str | None = None) -> None:
        """Make or change a topic on every master; 4.9.7 ignores its type."""
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "perm": "6",
            "order": "false",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            **({"attributes": f"+message.type={kind}"} if kind else {}),
        }
        for broker in self.brokers():
            self.ask(broker.address, "UPDATE_AND_CREATE_TOPIC", fields)

    def make_group(self, name: str, attempts: int) -> None:
        """Make or change a consumer group on every master."""
        settings = {"groupName": name, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": attempts}
        for broker in self.brokers():
            self.ask(broker.address, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", body=json.dumps(settings).encode())

    def set_consumed(self, queue: QueueAt, topic: str, group: str, offset: int) -> None:
        """Set the offset of the first message that the group has not consumed."""
        self._ask_queue("UPDATE_CONSUMER_OFFSET", queue, topic, {"consumerGroup": group, "commitOffset": str(offset)})

    def send(self, queue: QueueAt, topic: str, body: bytes, properties: Mapping[str, str], flags: int = 0) -> None:
        """Send a message; `flags` are `MessageSysFlag`s."""
        fields = {
            "producerGroup": "foreign",
            "defaultTopic": topic,
            "defaultTopicQueueNums": "1",
            "sysFlag": str(flags),
            "flag": "0",
            "reconsumeTimes": "0",
            "unitMode": "false",
            "bornTimestamp": str(int(time.time() * 1000)),
        }
        self._ask_queue("SEND_MESSAGE", queue, topic, fields, body, properties=properties)

    def _request(self, request: Mapping[str, object]) -> dict[str, Any]:
        of_connection = {"connection": self._connection, "user": self._login.user, "password": self._login.password}
        return witness_program().ask({**request, **of_connection}, self._within)

    def _ask_queue(
        self,
        code: str,
        queue: QueueAt,
        topic: str,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        **more: Any,
    ) -> dict[str, Any]:
        named = {"topic": topic, "queueId": str(queue.number), **(fields or {})}
        return self.ask(queue.broker.address, code, named, body, **more)


def _address(text: str) -> HostPort:
    host, _, port = text.rpartition(":")
    return HostPort(host.removeprefix("[").removesuffix("]"), int(port))


def _stored(table: Mapping[str, Any]) -> StoredMessage:
    return StoredMessage(
        id=table["id"],
        topic=table["topic"],
        queue=table["queue"],
        offset=table["offset"],
        body=base64.b64decode(table["body"]),
        properties=table["properties"],
        born_at=table["bornAt"] / 1000,
        stored_at=table["storedAt"] / 1000,
        reconsume_times=table["reconsumeTimes"],
        born_host=table["bornHost"],
    )
