"""
What every broker adapter promises: all that an adapter author imports, with `steadyworker.errors` and `steadyworker.names`.

An adapter is a package whose face has `open_adapter(url, spec, settings) -> Adapter`, found by the entry-point group
`steadyworker.adapters` under its URL scheme.  It decides nothing about retries, knows no ledger, logs nothing and
swallows nothing.  `steadyworker.testing.conformance.AdapterSuite` is the definition of "works".

Each adapter owns one I/O thread; nothing else touches the client that consumes.  Signals come from that thread, in order.
This interface is versioned apart: `SPI_VERSION`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from steadyworker.clock import Clock, SystemClock
from steadyworker.delivery import Delivery, Headers, OutgoingMessage, Redelivered, Settle, Settled, Target
from steadyworker.errors import Finding, StaleDelivery, Unsettled

__all__ = [
    "SPI_VERSION",
    "Adapter",
    "Blocked",
    "Capabilities",
    "Clock",
    "Connected",
    "DeadLetters",
    "Delays",
    "Delivered",
    "Delivery",
    "Finding",
    "Headers",
    "Lost",
    "OpenAdapter",
    "OutgoingMessage",
    "QueueSpec",
    "Redelivered",
    "Settings",
    "Settle",
    "Settled",
    "SettlesAsync",
    "Signal",
    "Sink",
    "SystemClock",
    "Target",
    "Unblocked",
    "Unreachable",
]

SPI_VERSION = 1

DELAYS: tuple[float, ...] = (1, 2, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
"""The ladder of delays, in seconds, that adapters with levels round up to (contract §3)."""


class Delays(Enum):
    """How a broker delays a message: by the second, by a ladder of levels, or not at all."""

    EXACT = "exact"
    LEVELS = "levels"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """
    What this broker can and cannot do, as data: the runner and `check` read it, nobody asks which broker it is.

    Attributes:
        delays: How delays are made; `longest_delay` is the longest in seconds, or None for no limit.
        levels: The delays in seconds that a broker with levels makes, ascending; others are rounded up to the next of them.
        counts_deliveries: The broker counts attempts itself, and may dead-letter by that count.
        stable_ids: Each message has an id that stays the same in every redelivery.
        counts_consumers: `consumers()` can be answered.
        forgets_consumers_within: Seconds after which a consumer that died or froze is not counted any more (three heartbeats).
        reads_dead_letters: `dead_letters()` can be answered.
        max_body: The largest body in bytes that the broker takes, or None.
        loses_unacked: What a lost connection does to un-acked messages: True when they come again at once.
        one_host: The broker reaches one host only, so a ledger that reaches one host is enough.
        delivery_timeout: Seconds after which the broker takes an un-settled delivery back, or None for never.
        delivery_limit: Hand-overs of one message after which the broker gives it up, or None for no limit.
    """

    delays: Delays = Delays.EXACT
    longest_delay: float | None = None
    levels: tuple[float, ...] = ()
    counts_deliveries: bool = False
    stable_ids: bool = True
    counts_consumers: bool = False
    forgets_consumers_within: float = 0.0
    reads_dead_letters: bool = True
    max_body: int | None = None
    loses_unacked: bool = True
    one_host: bool = False
    delivery_timeout: float | None = None
    delivery_limit: int | None = None


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The queue that an adapter is opened for, and what the Worker says of it."""

    queue: str
    dead_letter_queue: str
    concurrency: int = 1
    time_limit: float | None = None
    max_attempts: int = 5
    key_header: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """
    What the operator sets: topology policy, the delay ladder, the size limit, who we are to the broker.

    `fresh_url`, where there is one, answers the broker's URL as it is now: to be asked before each connect, as passwords
    are rotated; raises ConfigError when it cannot be read.
    """

    topology: str = "declare"
    delays: Sequence[float] = DELAYS
    max_body: int = 1 << 20
    consumer: str = "steadyworker"
    fresh_url: Callable[[], str] | None = None
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True)
class Connected:
    """A new epoch begins; deliveries of every earlier one are lost."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message was handed over."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Lost:
    """One delivery (`id`), or every delivery of an epoch (`id` None), is no longer valid; `cause` is for people."""

    epoch: int
    cause: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    """The broker takes no publishes for now (an alarm)."""

    cause: str


@dataclass(frozen=True, slots=True)
class Unblocked:
    """The broker takes publishes again."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """
    The broker cannot be reached; the adapter keeps trying.

    `final` says that no retry can heal it (credentials, virtual host, certificate or protocol refused).
    """

    cause: str
    final: bool = False


Signal = Connected | Delivered | Lost | Blocked | Unblocked | Unreachable
Sink = Callable[[Signal], None]


class DeadLetters(Protocol):
    """
    The dead-letter queue, held open for one command.

    Iterating yields *held* deliveries, the broker's own dead letters too, oldest first, each once; they go back when the context ends.
    """

    def __iter__(self) -> Iterator[Delivery]:
        """Each dead letter once, held until it is dropped or the context ends."""
        ...

    def publish(self, message: OutgoingMessage) -> None:
        """As `Adapter.publish`: returns when the broker has it."""
        ...

    def drop(self, delivery: Delivery) -> None:
        """Remove this dead letter; raises Unsettled when its fate is unknown."""
        ...


class Adapter(Protocol):
    """One queue of one broker, consumed by one worker process."""

    @property
    def capabilities(self) -> Capabilities:
        """What this broker can do; the same before and after `start`."""
        ...

    @property
    def last_turn(self) -> float | None:
        """When (monotonic) the I/O thread last did a turn of its own work: at least every 5 s while it lives; None before `start`."""
        ...

    def start(self, sink: Sink) -> None:
        """Begin to connect, in the adapter's own I/O thread, and keep connected; returns at once; every signal goes to `sink`."""
        ...

    def prefetch(self, count: int) -> None:
        """
        Set the window: at most `count` deliveries of this epoch may be un-settled at any time; thread-safe.

        0 means that no new one comes, at once, without closing anything; what is un-settled stays as it is.
        Begins at 0, and keeps its value through a reconnect.
        """
        ...

    def publish(self, message: OutgoingMessage) -> None:
        """
        Hand a copy to the broker on a connection of its own; works before `start`; thread-safe.

        Returns when the broker has it (confirm, receipt, commit).
        Raises PublishFailed when that is unknown, TargetMissing when the queue is not there.
        Raises ValueError for a new message (`OutgoingMessage.first`) over the limits; a copy of one that was taken is never refused.
        """
        ...

    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        """
        Acknowledge or release one delivery, and say how much is known of it; thread-safe, idempotent within its epoch.

        Raises StaleDelivery for a delivery of an old epoch, without telling the broker anything.
        Raises Unsettled when the fate is unknown; that epoch then ends at once, with `Lost`.
        """
        ...

    def identity(self) -> str:
        """Which broker this is, the same from every client and after every restart; raises BrokerUnavailable."""
        ...

    def consumers(self) -> int | None:
        """
        How many consumers the queue has, or None where the broker cannot count; raises BrokerUnavailable.

        An adapter is at most one of them, and none while its window is 0.
        """
        ...

    def findings(self, spec: QueueSpec) -> Sequence[Finding]:
        """What is wrong between this broker and that queue, each with its remedy; changes nothing; raises BrokerUnavailable."""
        ...

    def dead_letters(self) -> AbstractContextManager[DeadLetters]:
        """The dead letters of this queue, on a connection of their own; works before `start`."""
        ...

    def stop(self, within: float) -> None:
        """
        Close everything within that many seconds; what is un-settled comes again, to whoever consumes next.

        Safe in any order: before `start`, twice, from any thread.
        """
        ...


@runtime_checkable
class SettlesAsync(Protocol):
    """An adapter whose broker answers a settlement later, and which need not hold a thread until then."""

    def settle_async(
        self, delivery: Delivery, how: Settle, on_settled: Callable[[Settled | StaleDelivery | Unsettled], None]
    ) -> None:
        """As `settle`, but returns at once: `on_settled` is called exactly once, from any thread, with what `settle` answers or raises."""
        ...


OpenAdapter = Callable[[str, QueueSpec, Settings], Adapter]
