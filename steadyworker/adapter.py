"""
The interface of every broker adapter.

An adapter imports this module, `steadyworker.errors`, `steadyworker.findings` and `steadyworker.names`.
An adapter for a file also imports `steadyworker.system.mounts` and `steadyworker.system.private`.
An adapter for a broker on a network also imports `steadyworker.network`.

An adapter is a package with a function `open_adapter(url, spec, settings) -> Adapter` in its `__init__.py`.
The entry-point group `steadyworker.adapters` maps each URL scheme to the adapter's package.
An adapter decides nothing about retries, has no access to the ledger, logs nothing and hides no error.
An adapter works if it passes `steadyworker.testing.conformance.AdapterSuite`.

Each adapter owns one I/O thread; only this thread uses the client library's consuming connection.
That thread sends all signals (`Connected`, `Delivered`, `Lost` …) to the sink, in order.
`SPI_VERSION` is the version of this interface, and is independent of the package's version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from steadyworker.clock import Clock, SystemClock
from steadyworker.delivery import Delivery, Headers, OutgoingMessage, Redelivered, Settle, Settled, Target
from steadyworker.depth import Depth
from steadyworker.errors import Finding, MessageRefused, PublishFailed, StaleDelivery, Unsettled

__all__ = [
    "SPI_VERSION",
    "Adapter",
    "Blocked",
    "Browsed",
    "Browses",
    "Capabilities",
    "ChecksMessages",
    "Clock",
    "Connected",
    "DeadLetters",
    "Delays",
    "Delivered",
    "Delivery",
    "Depth",
    "Finding",
    "Headers",
    "Lost",
    "OpenAdapter",
    "OutgoingMessage",
    "PublishesMany",
    "Purges",
    "QueueSpec",
    "Redelivered",
    "Renamable",
    "Settings",
    "Settle",
    "Settled",
    "SettlesAsync",
    "Signal",
    "Sink",
    "SystemClock",
    "Target",
    "Unblocked",
    "Unbrowsed",
    "Uncounted",
    "Undelivered",
    "Unreachable",
    "check_size",
]

SPI_VERSION = 1

DELAYS: tuple[float, ...] = (1, 2, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
"""The default delay levels in seconds; an adapter whose broker has delay levels rounds each delay up to the next level."""


class Delays(Enum):
    """The kinds of delay that a broker offers: any time, fixed levels, or none."""

    EXACT = "exact"
    LEVELS = "levels"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """
    The abilities of a broker, as data.

    The runner and `check` read this data, so their code depends on no broker's name.

    Attributes:
        delays: The kind of delay that the broker has.
        levels: The broker's delay levels in seconds, ascending; the adapter rounds other delays up to the next level.
        stable_ids: If a message has an id, the id stays the same in every redelivery.
        optional_ids: A sender can leave the id out, so a message can arrive without any key.
        counts_consumers: The broker can count the consumers of a queue.
            If the broker refuses to count them for this client, `consumers()` still returns Uncounted.
        counts_holders: While an adapter holds a delivery, the broker counts the adapter as a consumer, even if the prefetch is 0.
        most_consumers: The largest number of consumers that the broker counts for one adapter.
            Some brokers count a replaced consumer until all its deliveries are settled.
            For such a broker, the number is up to the queue's `concurrency`.
        forgets_consumers_within: Seconds after which the broker no longer counts a dead or frozen consumer
            (three heartbeats).
        redelivers_within: Seconds after which the broker delivers an un-acked message again, even if the connection is not lost.
        answers_within: Seconds in which the broker delivers a message that waits in the queue, if the prefetch allows another delivery.
            This is the time of two polls; if no delivery comes in this time, no message waits.
        reads_dead_letters: `dead_letters()` works.
        holds_dead_letters: A reader holds the dead letters, so that no other reader gets them.
            If False, two readers can read the same letters, as in a log.
            A letter that both readers replay is still one job.
        rejects: `settle` accepts `Settle.REJECT`: the broker itself moves the message to the Worker's dead-letter queue.
            The broker moves even a message that it would no longer accept from a sender.
            If the broker cannot move a message, the message is not lost.
        max_body: The largest body in bytes that the broker accepts, or None.
        loses_unacked: True if the broker delivers un-acked messages again as soon as the connection is lost.
            If False, deliveries outlive their connection: the `Connected` after an `Unreachable` has the same epoch as before.
        one_host: The broker serves one host only, so a ledger for one host is enough.
        reports_name: The broker reports a name that stays the same, and `identity()` returns this name.
            If False, `identity()` returns the addresses in the URL: each as `host:port`, sorted, separated by commas.
        system: The broker's name in traces: `messaging.system` in the semantic conventions of OpenTelemetry.
    """

    delays: Delays = Delays.EXACT
    levels: tuple[float, ...] = ()
    stable_ids: bool = True
    optional_ids: bool = False
    counts_consumers: bool = False
    counts_holders: bool = False
    most_consumers: int = 1
    forgets_consumers_within: float = 0.0
    redelivers_within: float = 0.0
    answers_within: float = 5.0
    reads_dead_letters: bool = True
    holds_dead_letters: bool = True
    rejects: bool = False
    max_body: int | None = None
    loses_unacked: bool = True
    one_host: bool = False
    reports_name: bool = True
    system: str = "unknown"


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The queue that an adapter serves, and the Worker's attributes that concern this queue."""

    queue: str
    dead_letter_queue: str
    concurrency: int = 1
    time_limit: float | None = None
    max_attempts: int = 5
    key_header: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """
    The operator's settings: topology policy, delay levels, size limit, and the consumer name that the broker sees.

    If `fresh_url` is set, it returns the broker's current URL, or raises ConfigError if the URL cannot be read.
    The adapter calls `fresh_url` before each connect, because an operator can change the password at any time.
    If `create` is False, the process only asks and sends: of all methods, only `publish` may create a broker that is a file.
    """

    topology: str = "declare"
    delays: Sequence[float] = DELAYS
    max_body: int = 1 << 20
    consumer: str = "steadyworker"
    fresh_url: Callable[[], str] | None = None
    create: bool = True
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True)
class Connected:
    """
    The success of a connect, with the epoch of the connection.

    If the epoch is new, all deliveries of earlier epochs are lost.
    If the epoch is the same as before an `Unreachable`, the broker is reachable again, and the deliveries stay valid.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """The delivery of a message by the broker."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Lost:
    """
    The loss of one delivery (`id`), or of all deliveries of an epoch (`id` is None); a lost delivery cannot be settled.

    `cause` is a text for people.
    `explain` is the id of the catalogue's entry that explains the cause; empty if the cause is not known.
    If `explain` ends with `.delivery-timeout` or `.consumer-cancelled`, this ending is also the reason why the message comes again.
    """

    epoch: int
    cause: str
    id: str | None = None
    explain: str = ""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The start of an alarm: until the alarm ends, the broker accepts no message; `explain` is as in `Lost`."""

    cause: str
    explain: str = ""


@dataclass(frozen=True, slots=True)
class Unblocked:
    """The end of an alarm: the broker accepts messages again."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """
    A failed attempt to reach the broker, or another reason why the adapter cannot serve the queue; the adapter keeps trying.

    `final` is True if no retry can help: the broker refused the credentials, virtual host, certificate or protocol.
    `explain` is as in `Lost`.
    """

    cause: str
    final: bool = False
    explain: str = ""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """
    A message that the adapter cannot deliver, because the delivery needs a copy that the broker never accepts.

    The adapter sends this signal once for each such message, and still delivers other messages.
    `key` is the job's key; if the message has no key, `key` is the message's id.
    `fate` is a text for people about what happens to the message.
    """

    key: str
    error: MessageRefused
    fate: str


Signal = Connected | Delivered | Lost | Blocked | Unblocked | Unreachable | Undelivered
Sink = Callable[[Signal], None]


@dataclass(frozen=True, slots=True)
class Uncounted:
    """
    The result of `consumers()` if the broker does not count the consumers of the queue for this client.

    Attributes:
        why: The cause, for people: a clause, such as "the user has no right to ask".
        remedy: The remedy for this cause: a clause that begins with a verb, and that "or" can follow.
    """

    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Browsed:
    """
    A message that a browse has found in the work queue; the message stays where it is.

    Attributes:
        headers: The headers, as in a Delivery; they can contain secrets, so no output may show them.
        message_id: The broker's stable id of the message, or None.
        sent_at: The time at which the message was sent, in seconds since 1970, or None if unknown.
        due: The time at which a delayed message is due, in seconds since 1970; None for a message that is ready.
    """

    headers: Headers
    message_id: str | None = None
    sent_at: float | None = None
    due: float | None = None


@dataclass(frozen=True, slots=True)
class Unbrowsed:
    """
    A part of the work queue that a browse cannot show, so a message that the browse has not found can still be there.

    Attributes:
        why: What the browse does not show, and the cause, for people: a clause, with the remedy if there is one.
    """

    why: str


class DeadLetters(Protocol):
    """
    The dead-letter queue, open for the time of one command.

    Iteration yields each dead letter once, oldest first, including letters that the broker itself put into the queue.
    If the broker `holds_dead_letters`, the reader holds these letters: no other reader gets them.
    A reader gets all letters or an error.
    If another reader holds some letters, the adapter raises LettersHeld, when the context opens or during the iteration.
    When the context ends, letters that were not dropped are in the queue as before.
    """

    def __iter__(self) -> Iterator[Delivery]:
        """
        Yield each dead letter once, and hold the letter until the caller drops it, or the context ends.

        Raises LettersHeld if another reader holds some of the letters, so that no reader mistakes a part of the letters for the whole queue.
        """
        ...

    def publish(self, message: OutgoingMessage) -> None:
        """Publish as `Adapter.publish` does, and return when the broker has the message."""
        ...

    def drop(self, delivery: Delivery) -> None:
        """Remove this dead letter; raise Unsettled if the result is unknown."""
        ...


class Adapter(Protocol):
    """The connection to one queue of one broker, for one worker process."""

    @property
    def capabilities(self) -> Capabilities:
        """
        The abilities of this broker; the same before and after `start`.

        Only `levels`, `counts_holders`, `most_consumers` and `rejects` may change when the adapter first connects, because they can
        depend on the broker's settings, or on the queue.
        """
        ...

    @property
    def last_turn(self) -> float | None:
        """
        The time (monotonic clock) of the I/O thread's last turn, or None before `start`.

        While the thread lives, it makes a turn at least every 5 s.
        """
        ...

    def start(self, sink: Sink) -> None:
        """
        Start the adapter's own I/O thread, which connects and stays connected; return at once.

        Every signal goes to `sink`.
        """
        ...

    def prefetch(self, count: int) -> None:
        """
        Set the prefetch: the largest number of un-settled deliveries of this epoch at any time; thread-safe.

        A prefetch of 0 stops new deliveries at once and closes nothing; un-settled deliveries stay valid.
        The prefetch starts at 0, and keeps its value through a reconnect.
        """
        ...

    def publish(self, message: OutgoingMessage) -> None:
        """
        Publish a message on a connection used only for publishing; works before `start`; thread-safe.

        Returns when the broker has confirmed the message (confirm, receipt, commit).
        Raises PublishFailed if it is unknown whether the broker has the message.
        Raises TargetMissing if the queue does not exist, and TargetFull if the queue is full and refuses the message.
        Raises MessageRefused if the broker would refuse this message at each later try, too; the error's `id` names the cause.
        Raises ValueError for a new message (`OutgoingMessage.first`) over the limits.
        The adapter itself never refuses a copy of a message that the broker accepted before, and cuts no header of the copy.
        """
        ...

    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        """
        Acknowledge, release or reject one delivery, and return whether the broker confirmed the settlement, or the adapter only sent it.

        An adapter rejects a delivery that is `unshown`, even if `how` is to acknowledge it.
        Thread-safe, and idempotent within the delivery's epoch.
        Raises StaleDelivery for a delivery of an earlier epoch, and then sends nothing to the broker.
        Raises Unsettled if the result is unknown; the delivery's epoch then ends at once, and the adapter sends `Lost`.
        """
        ...

    def identity(self) -> str:
        """
        Return the broker's identity, the same from every client and after every restart.

        Raises BrokerUnavailable.
        """
        ...

    def exists(self) -> bool:
        """
        Return whether the queue exists at the broker.

        Creates nothing, not even a broker that is a file.
        Raises BrokerUnavailable.
        """
        ...

    def consumers(self) -> int | Uncounted:
        """
        Return the number of the queue's consumers.

        If the broker does not count them for this client, return Uncounted, with the cause and the remedy.
        The broker counts an adapter as at most `most_consumers` consumers, even if the prefetch changes while the adapter holds deliveries.
        With prefetch 0, the adapter is a consumer only if the adapter holds a delivery and the broker `counts_holders`.
        Raises BrokerUnavailable if the broker does not respond.
        """
        ...

    def depth(self) -> Depth:
        """
        Return the numbers of messages and consumers that the broker reports for this queue.

        The call works before `start`, changes nothing, and creates nothing, not even a broker that is a file.
        It receives no message, so it never changes the number of a message's deliveries.
        Raises BrokerUnavailable if the broker does not respond, or refuses this client.
        """
        ...

    def findings(self, spec: QueueSpec) -> Sequence[Finding]:
        """
        Return the problems of this queue on this broker, each with its remedy.

        Changes nothing.
        Raises BrokerUnavailable.
        """
        ...

    def dead_letters(self) -> AbstractContextManager[DeadLetters]:
        """
        Open the dead letters of this queue on a connection used only for them; works before `start`.

        Raises LettersHeld, at once or during the iteration, while another reader holds some of the letters.
        """
        ...

    def stop(self, within: float) -> None:
        """
        Close everything within `within` seconds; the broker delivers un-settled messages again to the next consumer.

        A call is safe before `start`, a second time, and from any thread.
        """
        ...


@runtime_checkable
class SettlesAsync(Protocol):
    """An adapter that can settle without blocking a thread until the broker confirms."""

    def settle_async(
        self, delivery: Delivery, how: Settle, on_settled: Callable[[Settled | StaleDelivery | Unsettled], None]
    ) -> None:
        """
        Settle as `settle` does, but return at once.

        `on_settled` is called exactly once, from any thread, with the value that `settle` returns or the error that it raises.
        """
        ...


@runtime_checkable
class PublishesMany(Protocol):
    """An adapter that publishes many messages in little more time than one message."""

    def publish_many(self, messages: Sequence[OutgoingMessage]) -> Sequence[PublishFailed | None]:
        """
        Publish messages as `publish` does, in their order, and return when the result of each is known.

        The results are in the order of the messages: None if the broker has confirmed the message, otherwise the error of `publish`.
        The caller limits the batch to about 500 messages and 1 MiB, so the time limit of one message is enough for all.
        Raises ValueError before the first message, if a new message is over the limits.
        """
        ...


@runtime_checkable
class ChecksMessages(Protocol):
    """An adapter that knows limits of a message without the broker, so a sender can check many messages before it sends the first one."""

    def check_message(self, message: OutgoingMessage) -> None:
        """Raise ValueError if `publish` would raise it for this message; connect to no broker, and send nothing."""
        ...


@runtime_checkable
class Browses(Protocol):
    """
    An adapter for brokers that show messages without a delivery.

    An adapter must not receive messages and release them instead, because each delivery counts towards delivery limits.
    """

    def browse(self, limit: int) -> Iterator[Browsed | Unbrowsed]:
        """
        Yield at most `limit` messages of the work queue, in the order in which they are due.

        The call changes nothing: each message stays in its place, and no number of deliveries rises.
        A message that a consumer holds is left out, if the broker distinguishes such messages.
        If the browse leaves out any other message, it yields an `Unbrowsed` with the reason, after the messages.
        An `Unbrowsed` does not count as a message. After `limit` messages, none is necessary.
        Raises BrokerUnavailable, at once or during the iteration.
        """
        ...


@runtime_checkable
class Renamable(Protocol):
    """An adapter for brokers whose identity contains a name that an operator can change."""

    def may_have_been(self, identity: str) -> bool:
        """Return, without a request to the broker, whether the broker could have had that identity under an earlier name."""
        ...


@runtime_checkable
class Purges(Protocol):
    """An adapter that can delete the messages that wait in the work queue."""

    def purge(self) -> int:
        """
        Delete the messages of the work queue that the broker can deliver now, and that no consumer holds; return their number.

        Messages that consumers hold, delayed messages and dead letters stay.
        A queue that does not exist has no messages.
        Works before `start`.
        Raises BrokerUnavailable; messages may then be deleted.
        """
        ...


def check_size(what: str, size: int, limit: int) -> None:
    """Raise ValueError if `size`, in bytes, is over the broker's limit; `what` names the checked thing in the error's text."""
    if size > limit:
        raise ValueError(
            f"Expected {what} of at most {limit} bytes, got {size}: send a reference to the data, not the data."
        )


OpenAdapter = Callable[[str, QueueSpec, Settings], Adapter]
