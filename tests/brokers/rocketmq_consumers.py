"""Foreign programs that consume from RocketMQ, and hold one message at most: by locks at the brokers, and over gRPC at a proxy."""

from __future__ import annotations

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from steadyworker.adapter import QueueSpec
from steadyworker.clock import SystemClock
from steadyworker_rocketmq.direct.member import Member, Taken
from steadyworker_rocketmq.errors import ProxyError, is_early
from steadyworker_rocketmq.grpc.client import Received, Session
from steadyworker_rocketmq.names import names_of
from steadyworker_rocketmq.url import parse_url
from tests.brokers.place import Message
from tests.brokers.rocketmq import RocketMQ

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
            self._tell(is_open=True)
            self._consume()
            self._leave()
        except Exception as error:  # noqa: BLE001 - it is raised where a message is taken
            with self._changed:
                self._error = error
        self._tell(is_open=True, ended=True)

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

    def _tell(self, *, is_open: bool, ended: bool = False) -> None:
        with self._changed:
            self._open, self._ended = is_open, ended
            self._changed.notify_all()

    def _wait(self, happened: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(happened, WITHIN), f"expected the consumer of {self.queue} to be done"
        if self._error:
            raise self._error


class DirectConsumer(RocketmqConsumer):
    """By the lock of the message's queue, at the brokers."""

    def __init__(self, rocketmq: RocketMQ, queue: str) -> None:
        names = names_of(QueueSpec(queue, f"{queue}.dead"), None)
        self._member = Member(rocketmq.remoting(), names, f"foreign@{secrets.token_hex(4)}", SystemClock())
        self._taken: list[Taken] = []
        super().__init__(queue)

    def _join(self) -> None:
        self._member.open()
        self._member.beat(joined=True)

    def _receive(self) -> Message | None:
        self._taken = self._member.take(1, ())
        return next((message_of(self.queue, each.message.body, each.message.properties) for each in self._taken), None)

    def _renew(self) -> None:
        self._member.beat(joined=True)
        self._member.keep(self._taken)

    def _settle(self, *, ack: bool) -> None:
        (taken,) = self._taken
        self._taken = []
        if ack:
            finished = self._member.finish(taken, in_doubt=False, go_on=False)
            assert finished
            assert finished.done
        else:
            self._member.free([taken.queue])

    def _leave(self) -> None:
        self._member.leave()
        self._member.close()


class GrpcConsumer(RocketmqConsumer):
    """By its invisibility for others, at a proxy; what is given back comes again after ten seconds, a proxy's fewest."""

    def __init__(self, url: str, queue: str) -> None:
        self._url = url
        self._received: list[Received] = []
        super().__init__(queue)

    def _join(self) -> None:
        self._session = Session(parse_url(self._url), self.queue, self.queue)

    def _receive(self) -> Message | None:
        try:
            self._received = self._session.receive(1, INVISIBLE)
        except ProxyError as error:
            if not is_early(error):
                raise
        return next((message_of(self.queue, each.wire.body, each.wire.properties) for each in self._received), None)

    def _renew(self) -> None:
        for received in self._received:
            self._session.renew(received, INVISIBLE)

    def _settle(self, *, ack: bool) -> None:
        (received,) = self._received
        self._received = []
        if ack:
            self._session.ack(received)
        else:
            self._session.renew(received, SHORTEST)

    def _leave(self) -> None:
        self._session.close()


def message_of(queue: str, body: bytes, properties: Mapping[str, str], *, given_up: bool = False) -> Message:
    """Return a message of this queue; RocketMQ does not know for certain whether it was delivered before."""
    return Message(queue, body, properties, properties.get(KEY), given_up=given_up)
