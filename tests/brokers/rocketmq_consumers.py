"""Foreign programs that consume from RocketMQ by its own clients, and hold one message at most: by locks at the brokers, or over gRPC at a proxy."""

from __future__ import annotations

import importlib
import json
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from steadyworker.network.url import Address as HostPort
from tests.brokers.place import Message
from tests.brokers.rocketmq import RocketMQ
from tests.brokers.rocketmq_witness import QueueAt, StoredMessage, Witness

KEY = "sw-job-key"
"""The property in which a foreign program names its job, as RocketMQ's message ids are made by its clients."""

INVISIBLE, SHORTEST = 60, 10
"""Seconds for which a proxy keeps what was received from others, and the fewest of them."""

RENEWED_EVERY = 5.0
PAUSE = 0.1
WITHIN = 60.0


class RocketmqConsumer(ABC):
    """A member of the queue's group, in a thread of its own, because a member that is silent is forgotten."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._changed = threading.Condition()
        self._held: Message | None = None
        self._asked = ""
        self._ended = self._open = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"consumer of {queue}", daemon=True)
        self._thread.start()
        self._wait(lambda: self._open)

    def take(self, within: float) -> Message | None:
        with self._changed:
            self._changed.wait_for(lambda: self._held or self._error, within)
            if self._error:
                raise self._error
            return self._held

    def ack(self) -> None:
        assert self._held, f"expected a message of {self.queue} to acknowledge: take one first"
        self._ask("ack")

    def give_back(self) -> None:
        self._ask("leave")
        self._thread.join(WITHIN)

    # --- what a driver does; in the thread ----------------------------------------------------------------------------

    @abstractmethod
    def _join(self) -> None:
        """Join the group."""

    @abstractmethod
    def _receive(self) -> Message | None:
        """Return a message, or None after at most a few seconds."""

    @abstractmethod
    def _renew(self) -> None:
        """Keep what is held, and the membership."""

    @abstractmethod
    def _settle(self, *, ack: bool) -> None:
        """Acknowledge what is held, or give it back."""

    @abstractmethod
    def _leave(self) -> None:
        """Leave the group, and close."""

    def _run(self) -> None:
        try:
            self._join()
            self._report(is_open=True)
            self._consume()
            self._leave()
        except Exception as error:  # noqa: BLE001 - it is raised where a message is taken
            with self._changed:
                self._error = error
        self._report(is_open=True, ended=True)

    def _consume(self) -> None:
        renewed = time.monotonic()
        while self._asked != "leave" or self._held:
            if self._asked and self._held:
                self._settle(ack=self._asked == "ack")
                with self._changed:
                    self._held = None
                    self._asked = "" if self._asked == "ack" else self._asked
                    self._changed.notify_all()
            elif not self._held:
                got = self._receive()
                with self._changed:
                    self._held = got
                    self._changed.notify_all()
            if time.monotonic() >= renewed + RENEWED_EVERY:
                renewed = time.monotonic()
                self._renew()
            with self._changed:
                self._changed.wait_for(lambda: self._asked, PAUSE)

    def _ask(self, what: str) -> None:
        with self._changed:
            self._asked = what
            self._changed.notify_all()
        self._wait(lambda: self._ended or not self._asked)
        if self._error:
            raise self._error

    def _report(self, *, is_open: bool, ended: bool = False) -> None:
        with self._changed:
            self._open, self._ended = is_open, ended
            self._changed.notify_all()

    def _wait(self, happened: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(happened, WITHIN), f"expected the consumer of {self.queue} to be done"
        if self._error:
            raise self._error


class DirectConsumer(RocketmqConsumer):
    """By the lock of the message's queue, at the brokers; over connections of its own, as a member is known by its connection."""

    def __init__(self, rocketmq: RocketMQ, queue: str) -> None:
        self._id = f"foreign@{secrets.token_hex(4)}"
        self._witness = Witness(rocketmq.name_servers[0], rocketmq.login, connection=self._id)
        self._locked: tuple[QueueAt, StoredMessage] | None = None
        super().__init__(queue)

    def _join(self) -> None:
        subscription = {"topic": self.queue, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
        group = {
            "groupName": self.queue,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [subscription],
        }
        body = json.dumps({"clientID": self._id, "consumerDataSet": [group], "producerDataSet": []}).encode()
        for broker in self._witness.brokers():
            self._witness.ask(broker.address, "HEART_BEAT", body=body)

    def _receive(self) -> Message | None:
        for queue in self._waiting():
            if not self._locks("LOCK_BATCH_MQ", queue):
                continue
            place = self._witness.consumed(queue, self.queue, self.queue) or self._witness.first(queue, self.queue)
            if found := self._witness.pull(queue, self.queue, place)[0]:
                self._locked = queue, found[0]
                return message_of(self.queue, found[0].body, found[0].properties)
            self._locks("UNLOCK_BATCH_MQ", queue)
        return None

    def _renew(self) -> None:
        self._join()
        if self._locked:
            self._locks("LOCK_BATCH_MQ", self._locked[0])

    def _settle(self, *, ack: bool) -> None:
        assert self._locked
        (queue, stored), self._locked = self._locked, None
        if ack:
            self._witness.set_consumed(queue, self.queue, self.queue, stored.offset + 1)
        self._locks("UNLOCK_BATCH_MQ", queue)

    def _leave(self) -> None:
        fields = {"clientID": self._id, "consumerGroup": self.queue}
        for broker in self._witness.brokers():
            self._witness.ask(broker.address, "UNREGISTER_CLIENT", fields)
        self._witness.close()

    def _waiting(self) -> Iterator[QueueAt]:
        """Yield the queues in which the group has not consumed all."""
        fields = {"consumerGroup": self.queue, "topic": self.queue}
        for broker in self._witness.brokers():
            for key, places in self._witness.table(broker.address, "GET_CONSUME_STATS", fields)["offsetTable"].items():
                if places["brokerOffset"] > places["consumerOffset"]:
                    yield QueueAt(broker, json.loads(key)["queueId"])

    def _locks(self, code: str, queue: QueueAt) -> bool:
        """Lock or unlock a queue; return whether it is locked now."""
        named = {"topic": self.queue, "brokerName": queue.broker.name, "queueId": queue.number}
        body = json.dumps({"consumerGroup": self.queue, "clientId": self._id, "mqSet": [named]}).encode()
        reply = self._witness.ask(queue.broker.address, code, body=body, reads="table").get("table") or {}
        return bool(reply.get("lockOKMQSet"))


class GrpcConsumer(RocketmqConsumer):
    """By its invisibility for others, at a proxy; what is given back comes again after ten seconds, a proxy's fewest."""

    def __init__(self, proxy: HostPort, queue: str) -> None:
        self._proxy = proxy
        self._received: list[Any] = []
        super().__init__(queue)

    def _join(self) -> None:
        library = importlib.import_module("rocketmq")  # its import opens a log file in the home directory
        configuration = library.ClientConfiguration(str(self._proxy), library.Credentials(), request_timeout=10)
        filters = {self.queue: library.FilterExpression()}
        self._consumer = library.SimpleConsumer(configuration, self.queue, filters, await_duration=5)
        self._consumer.startup()

    def _receive(self) -> Message | None:
        try:
            self._received = self._consumer.receive(1, INVISIBLE)
        except Exception as error:
            if "is null" not in str(error):  # a proxy does not know a client in its first second
                raise
        return next((message_of(self.queue, each.body, dict(each.properties)) for each in self._received), None)

    def _renew(self) -> None:
        for received in self._received:
            self._consumer.change_invisible_duration(received, INVISIBLE)

    def _settle(self, *, ack: bool) -> None:
        (received,) = self._received
        self._received = []
        if ack:
            self._consumer.ack(received)
        else:
            self._consumer.change_invisible_duration(received, SHORTEST)

    def _leave(self) -> None:
        self._consumer.shutdown()


def message_of(queue: str, body: bytes, properties: Mapping[str, str], *, given_up: bool = False) -> Message:
    """Return a message of this queue; RocketMQ does not know for certain whether it was delivered before."""
    return Message(queue, body, properties, properties.get(KEY), given_up=given_up)
