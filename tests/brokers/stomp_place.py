"""A test's place at ActiveMQ, Classic or Artemis: queue names that no other place uses, as STOMP has no virtual hosts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar
from urllib.parse import urlsplit

from tests.brokers.place import Ability, Depth, Message
from tests.brokers.stomp_broker import StompBroker
from tests.brokers.stomp_client import Frame, StompClient
from tests.brokers.stomp_node import StompNode
from tests.faults.proxy import Proxy

KEY = "sw-job-key"
"""The header in which a foreign program names its job, as STOMP's brokers make message ids of their own."""

SOONEST = 0.05
"""Seconds for a look that does not wait: a message that is there has arrived by then."""

SCHEDULER = "/topic/ActiveMQ.Scheduler.Management"
ANSWERS = "/temp-queue/scheduled"


class StompConsumer:
    """A subscription that has one message at a time, on a connection of its own."""

    def __init__(self, client: StompClient, queue: str) -> None:
        self._client, self._queue = client, queue
        self._frame: Frame | None = None
        client.subscribe(queue)

    def take(self, within: float) -> Message | None:
        if not self._frame:
            try:
                self._frame = self._client.message(max(within, SOONEST))
            except TimeoutError:
                return None
        return _message(self._queue, self._frame)

    def ack(self) -> None:
        assert self._frame, f"expected a message of {self._queue} to acknowledge: take one first"
        frame, self._frame = self._frame, None
        self._client.ack(frame)

    def give_back(self) -> None:
        self._frame = None
        self._client.unsubscribe()


class StompPlace:
    """Queues whose names begin with the same letters; a message that waits in the scheduler counts as ready in its queue."""

    abilities: ClassVar[frozenset[Ability]] = frozenset(
        {
            Ability.CLOSES_CONNECTIONS,
            Ability.COUNTS_HELD,
            Ability.HEARTBEATS,
            Ability.REDELIVERS_AT_ONCE,
            Ability.STOMP,
            Ability.TLS,
        }
    )
    queue_kinds: ClassVar[tuple[str, ...]] = ("",)
    farewell: ClassVar[str] = r"closed the connection|Connection reset|stopped"
    redelivers_within: ClassVar[float] = 0.0
    hidden_for: ClassVar[float] = 0.0
    long_header: ClassVar[int] = 10_100  # of a line of 10,240 bytes, of which a copy uses 10,000

    def __init__(self, broker: StompBroker) -> None:
        self._stomp = broker
        self._prefix = f"place-{secrets.token_hex(4)}-"
        self._own: set[str] = set()
        """The connections of this place's own consumers."""

    @property
    def broker(self) -> StompNode | None:
        return self._stomp if isinstance(self._stomp, StompNode) else None

    @property
    def namespace(self) -> str:
        """As `Place`: a broker is known by its address, and a proxy has another one on this host."""
        return urlsplit(self._stomp.url).netloc.rpartition("@")[2]

    @contextmanager
    def stopped(self) -> Iterator[None]:
        assert self.broker, "expected a node of our own to stop"
        self.broker.stop()
        try:
            yield
        finally:
            self.broker.start()

    # --- How it is reached ---

    def address(self, *, through: Proxy | None = None, tls: bool = False) -> str:
        address = self._stomp.tls_url if tls else self._stomp.url
        return through.through(address) if through else address

    def url(self, *, heartbeat: int = 60, through: Proxy | None = None, tls: bool = False) -> str:
        ca = f"&cafile={self._stomp.ca_file}" if tls else ""
        return f"{self.address(through=through, tls=tls)}?heartbeat={heartbeat}{ca}"

    # --- Queues ---

    def queue(self, name: str) -> str:
        return self._prefix + name

    def make_queue(self, queue: str, kind: str = "") -> None:
        """As `Place`: a subscription makes it."""
        assert not kind, f"expected no kind of queue, as ActiveMQ has one only, got {kind!r}"
        with self._stomp.client() as client:
            client.subscribe(queue)
            client.unsubscribe()
            client.disconnect()

    def delete(self, queue: str) -> None:
        """As `Place`; Classic deletes no queue that is consumed, so its consumers' connections are closed first."""
        self._stomp.close_connections_of(self._stomp.connections(queue).get(queue, frozenset()))
        self._stomp.delete_queue(queue)
        self._unschedule(queue)

    def depths(self) -> Mapping[str, Depth]:
        scheduled = (
            self._scheduled()
        )  # first, so that a message that comes meanwhile is counted twice, and not overlooked
        found: dict[str, Depth] = {}
        for queue, counts in self._stomp.all_counts(self._prefix).items():
            waiting = counts.waiting + counts.scheduled
            waiting += sum(_origin(frame) == queue for frame in scheduled)
            found[queue] = Depth(waiting, counts.delivering, waiting + counts.delivering)
        return found

    def ready(self) -> Mapping[str, int]:
        return {queue: depth.ready for queue, depth in self.depths().items()}

    def consumers(self, queue: str) -> int:
        return len(self._stomp.connections(queue).get(queue, ()))

    def dead_letters(self, queue: str) -> int:
        return self._stomp.depth(f"{queue}.dead") + self._stomp.dead(queue)

    def purge(self, queue: str) -> None:
        self._stomp.purge(queue)
        self._unschedule(queue)

    def drain(self) -> list[Message]:
        """As `Place`; the broker's own letters of these queues come last, in a queue of this place."""
        letters = self.queue("letters-of-the-broker")
        self._stomp.move_dead(self._prefix, letters)
        found: list[Message] = []
        for queue in self._stomp.all_counts(self._prefix):
            self._stomp.deliver_scheduled(queue)
            found += [replace(message, given_up=queue == letters) for message in self._taken(queue)]
        found += [_message(_origin(frame), frame) for frame in self._scheduled()]
        self._unschedule(self._prefix)
        return found

    def _taken(self, queue: str) -> Iterator[Message]:
        while count := self._stomp.depth(queue):
            with self._stomp.client() as client:
                client.subscribe(queue)
                for _ in range(count):
                    frame = client.message()
                    client.ack(frame)
                    yield _message(queue, frame)
                client.unsubscribe()
                client.disconnect()

    # --- Classic's scheduler, a store of its own; Artemis has scheduled messages in their queues ---

    def _scheduled(self) -> list[Frame]:
        """Return the messages to this place's queues that wait in Classic's scheduler."""
        if self._stomp.is_artemis:
            return []
        with self._stomp.client() as client:
            client.send_frame("SUBSCRIBE", {"destination": ANSWERS, "id": "scheduled", "ack": "auto"}, receipt=True)
            asked = {"destination": SCHEDULER, "reply-to": ANSWERS, "AMQ_SCHEDULER_ACTION": "BROWSE"}
            client.send_frame("SEND", asked)
            client.send_frame("SEND", {"destination": ANSWERS})  # comes after all answers
            found: list[Frame] = []
            while "scheduledJobId" in (frame := client.message()).headers:
                found += [frame] if _origin(frame).startswith(self._prefix) else []
            return found

    def _unschedule(self, prefix: str) -> None:
        """Remove the messages to these queues from Classic's scheduler."""
        if found := [frame for frame in self._scheduled() if _origin(frame).startswith(prefix)]:
            with self._stomp.client() as client:
                for frame in found:
                    asked = {"AMQ_SCHEDULER_ACTION": "REMOVE", "scheduledJobId": frame.headers["scheduledJobId"]}
                    client.send_frame("SEND", {"destination": SCHEDULER, **asked}, receipt=True)

    # --- Foreign programs ---

    def publish(
        self, queue: str, body: bytes, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        with self._stomp.client() as client:
            client.send(queue, body, {**(headers or {}), **({KEY: key} if key else {})})

    @contextmanager
    def consumer(self, queue: str) -> Iterator[StompConsumer]:
        with self._stomp.client() as client:
            self._own.add(client.connected.headers["session"])
            yield StompConsumer(client, queue)

    # --- Connections ---

    def connections(self) -> AbstractSet[str]:
        """As `Place`: those that consume, as the broker does not tell where the others send."""
        found = self._stomp.connections(f"{self._prefix}*").values()
        return frozenset().union(*found) - self._own

    def close_connections(self) -> None:
        self._stomp.close_connections_of(self.connections())

    def close(self) -> None:
        self._stomp.remove_queues(self._prefix)
        self._unschedule(self._prefix)


def _origin(frame: Frame) -> str:
    """Return the queue to which a scheduled message was sent."""
    return frame.headers.get("original-destination", "").removeprefix("/queue/")


def _message(queue: str, frame: Frame) -> Message:
    redelivered = True if frame.headers.get("redelivered") == "true" else None  # neither broker knows it for certain
    return Message(queue, frame.body, frame.headers, frame.headers.get(KEY), redelivered)


@dataclass(frozen=True)
class StompPlaces:
    """An ActiveMQ that runs."""

    broker: StompBroker

    @property
    def abilities(self) -> frozenset[Ability]:
        return StompPlace.abilities

    @property
    def title(self) -> str:
        name, _, version = self.broker.server.split()[0].partition("/")
        return f"{'Artemis' if 'Artemis' in name else 'ActiveMQ Classic'} {version}"

    def open(self) -> StompPlace:
        return StompPlace(self.broker)
