"""
A broker, and the place that one test has there: what a test of any broker asks for, in words that name none.

A place is at one broker, and is closed after its test with all that is in it.
On RabbitMQ it is a virtual host; a broker without these has queue names that only this place uses.
So a test calls a queue by a name of its own, and asks `Place.queue` for the broker's.

What a broker does not have is told by data: `Place.abilities` and `Place.queue_kinds`.
A test that needs an ability is marked `needs(Ability.…)`, and a drill has `needs`; on a broker without it, neither is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol

from tests.faults.proxy import Proxy


class Ability(Enum):
    """Something that one broker has, and another does not."""

    AMQP = "speaks AMQP 0-9-1, as the other frameworks of the drills do"
    CANCELS = "ends the consumers of a queue that is deleted, and tells them"
    CLOSES_CONNECTIONS = "closes the connections of its clients, if its operator wants it"
    COUNTS_DELIVERIES = "tells with a message how often it was delivered before"
    COUNTS_HELD = "tells how many messages of a queue its consumers hold"
    DELIVERY_TIMEOUT = "ends a consumer that holds a message for too long"
    HEARTBEATS = "forgets a client that is silent for a time that its URL says"
    POLICIES = "has policies, and queues for retries that its operator can purge"
    REDELIVERS_AT_ONCE = "delivers a message again as soon as its consumer's connection ends"
    REMOTING = "speaks RocketMQ's own protocol, as rocketmq-client-python does in the drills"
    STOMP = "speaks STOMP, as stomp.py does in the drills"
    TLS = "has a listener for TLS, whose authority is in a file"


@dataclass(frozen=True)
class Depth:
    """How many messages a queue has, all counted at one moment; -1 each while the broker has not counted yet."""

    ready: int
    unacked: int
    total: int
    """All of them, with those that are on their way to another queue; 0 for an empty queue, and for no other."""


@dataclass(frozen=True)
class Message:
    """A message that was taken from a queue."""

    queue: str
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    """What its sender calls it, if it was sent by `Place.publish` with a key."""
    redelivered: bool | None = None
    """Whether the broker has delivered it before; None where the broker does not know."""
    deliveries: int | None = None
    """How often the broker has delivered it before; None where the broker does not count."""
    given_up: bool = False
    """Whether the broker itself made it a dead letter."""


class OwnBroker(Protocol):
    """A broker that no other test uses."""

    def start(self) -> None:
        """Start it, or start it again with what is on disk; returns when it takes connections."""
        ...

    def stop(self) -> None:
        """Stop it as its operator would; returns when it has ended."""
        ...

    def kill(self) -> None:
        """SIGKILL; what is not on disk is lost."""
        ...

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, and the broker answers nothing."""
        ...

    def thaw(self) -> None:
        """SIGCONT; harmless when it was not frozen."""
        ...

    def heal(self) -> None:
        """Bring it back from all that a test can do to it: it runs, can be reached, and has its usual settings."""
        ...


class Consumer(Protocol):
    """A foreign program that consumes a queue, and holds one message at most."""

    def take(self, within: float) -> Message | None:
        """Return the message that it holds; waits `within` seconds for one, and returns None if none came."""
        ...

    def ack(self) -> None:
        """Acknowledge the message that it holds, and go on consuming; returns when the broker has read that."""
        ...

    def give_back(self) -> None:
        """Stop consuming, and let the broker deliver the message that it holds again."""
        ...


class Place(Protocol):
    """
    One test's place at a broker.

    Every `queue` in an argument or an answer is the broker's name of it.
    """

    abilities: ClassVar[frozenset[Ability]]
    queue_kinds: ClassVar[tuple[str, ...]]
    """The kinds of durable queues for jobs, which `make_queue` makes."""
    farewell: ClassVar[str]
    """A pattern that finds, in the cause of a lost delivery, that the broker was stopped."""
    redelivers_within: ClassVar[float]
    """Seconds within which the messages of a killed worker come again; 0 for a broker that `REDELIVERS_AT_ONCE`."""
    hidden_for: ClassVar[float]
    """Seconds for which a message that a consumer has held may be missing from every count; 0 where it never is."""
    long_header: ClassVar[int]
    """The length of a header that a foreign program can send, and for which a copy with our own headers has no room."""

    @property
    def namespace(self) -> str | None:
        """The ledger's namespace for worker processes that reach the broker in several ways; None where it tells its own name."""
        ...

    @property
    def broker(self) -> OwnBroker | None:
        """The broker; None for one that is not ours to kill."""
        ...

    def stopped(self) -> AbstractContextManager[None]:
        """Have the broker stopped by its operator, who starts it again when the block ends; for an own broker only."""
        ...

    # --- How it is reached ---

    def address(self, *, through: Proxy | None = None, tls: bool = False) -> str:
        """
        Return the URL of this place without options, for a foreign program or for `Proxy`.

        A proxy in `through` is in front of the same listener, the plain one or that with TLS.
        """
        ...

    def url(self, *, heartbeat: int = 60, through: Proxy | None = None, tls: bool = False) -> str:
        """Return the URL for a worker process: `address` with the heartbeat in seconds, and the CA's file for TLS."""
        ...

    # --- Queues ---

    def queue(self, name: str) -> str:
        """Return the broker's name of the queue that the test calls so; a suffix may be added to either of them."""
        ...

    def make_queue(self, queue: str, kind: str = "") -> None:
        """Make a durable queue of one of `queue_kinds`, by default of the one that SteadyWorker makes."""
        ...

    def delete(self, queue: str) -> None:
        """Delete the queue with all that is in it, whether it is consumed or not."""
        ...

    def depths(self) -> Mapping[str, Depth]:
        """Return the depth of each queue of this place, as of some seconds ago; without `COUNTS_HELD`, none is `unacked`."""
        ...

    def ready(self) -> Mapping[str, int]:
        """
        Return how many messages each queue of this place has that no consumer holds, as of now.

        Without `COUNTS_HELD`, those that a consumer holds may be among them.
        """
        ...

    def consumers(self, queue: str) -> int:
        """
        Return how many consumers the queue has now; 0 for a queue that does not exist.

        A worker process is one, however many subscriptions it has.
        """
        ...

    def dead_letters(self, queue: str) -> int:
        """Return how many dead letters this work queue has now, in its own dead-letter queue or in the broker's."""
        ...

    def purge(self, queue: str) -> None:
        """Remove the messages of the queue that no consumer holds."""
        ...

    def drain(self) -> list[Message]:
        """Take every message out of every queue of this place, dead letters too, oldest first in each queue."""
        ...

    # --- Foreign programs ---

    def publish(
        self, queue: str, body: bytes, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """
        Send a persistent message as a foreign program does; returns when the broker has confirmed it.

        Its sender calls it `key`, in the way in which such programs name their messages to this broker.
        """
        ...

    def consumer(self, queue: str) -> AbstractContextManager[Consumer]:
        """Have a foreign program consume the queue while the block runs; at its end the program's connection is closed."""
        ...

    # --- Connections ---

    def connections(self) -> AbstractSet[str]:
        """
        Return the names of the connections to this place, or at least of those that consume from it.

        Our own are left out, and the broker may list one seconds late.
        """
        ...

    def close_connections(self) -> None:
        """
        Have the broker close these, as its operator would, and no others: other tests may use the broker.

        Where it has not `CLOSES_CONNECTIONS`, those through a proxy end as a broker's restart ends them.
        """
        ...

    def close(self) -> None:
        """Leave nothing behind at the broker, even if a test has left it dead or frozen."""
        ...


class Places(Protocol):
    """A broker that runs, at which each test has a place of its own."""

    @property
    def title(self) -> str:
        """The broker and its version, such as `RabbitMQ 4.3.6`."""
        ...

    @property
    def abilities(self) -> frozenset[Ability]:
        """Those of each of its places."""
        ...

    def open(self) -> Place:
        """Return a new place, which the caller closes."""
        ...
