"""
Determines permissions and the state of queues by probes over AMQP.

Each probe uses a channel of its own, because a refusal closes the channel.
AMQP has no query for a permission, or for the arguments of a queue.
But a broker first checks permissions, then whether the request is possible, and only then executes the request.
So each probe sends an impossible request: a negative TTL, a priority that is not a number, a queue that cannot exist.
The broker's error shows whether the user has the permission, and the broker changes nothing.
RabbitMQ 3.10 and 4.3 behave in this way, and the patterns below match the texts of their errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from steadyworker.errors import BrokerUnavailable
from steadyworker.network.errors import Silent
from steadyworker.network.owed import ANSWER_WITHIN
from steadyworker_rabbitmq import pika_internals
from steadyworker_rabbitmq.checks.limits import CONSUMER_TIMEOUTS
from steadyworker_rabbitmq.checks.management import ManagementApi, Unanswered
from steadyworker_rabbitmq.checks.queue_state import UNREACHABLE, Difference, ExistingQueue, QueueType, queue_type
from steadyworker_rabbitmq.depth import Counts, QueueCount, refused_count
from steadyworker_rabbitmq.errors import QueueUnavailable, closed_channel, is_down, is_missing, largest_body, translated
from steadyworker_rabbitmq.topology import PlannedQueue, Version

REFUSED, PRECONDITION = 403, 406

_INEQUIVALENT = re.compile(r"inequivalent arg '(?P<name>[^']+)' .* but current is (?P<current>.+)$")
_CURRENT = re.compile(r"(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?$")
_FLAGS = {"durable": True, "auto_delete": False, "exclusive": False}
"""The planned flags of each queue."""
DOWN = "rabbitmq.queue-node-down"

_NOBODY = "amq.steadyworker-nobody"
"""A queue name that no client can declare: the prefix is reserved for the broker."""


class BrokerProbe:
    """
    One broker to probe; every method raises BrokerUnavailable if the connection is lost.

    A question about an existing queue that the broker cannot reach raises QueueUnavailable.
    Each later question about the same queue raises QueueUnavailable at once.
    RabbitMQ 4.3 reports only after 85 s that the node of a queue is down, so a check gives each question less time.
    If the broker does not reply to a question in time, the probe ends the connection.
    The next question then uses a connection from `reopen`, if `reopen` was given.

    Attributes:
        product: "RabbitMQ", or the name of another AMQP 0-9-1 broker.
        version: The broker's version, as numbers.
        vhost: The virtual host.
        user: The user of the login; `USER` after a login by certificate, because AMQP does not report the user's name.
        heartbeat: The negotiated heartbeat in seconds; 0 for none.
        identity: Cluster name and virtual host. Every client receives the same identity, also after a restart of the broker.
        asks: True if there is a management API to query.
        unasked: The reason why the probe no longer queries the management API; None while the API works.
        alarm: The reason of the broker's alarm, if an alarm blocked a connection; otherwise empty.
    """

    def __init__(
        self,
        connection: pika.BlockingConnection,
        management: ManagementApi | None,
        *,
        within: float = ANSWER_WITHIN,
        reopen: Callable[[], pika.BlockingConnection] | None = None,
    ) -> None:
        inner = _inner(connection)
        self.alarm = ""
        self._connection = connection
        self._within = within
        self._reopen = reopen
        self._away: dict[str, QueueUnavailable] = {}
        self._place = f"{inner.params.host}:{inner.params.port}"
        properties: Mapping[str, Any] | None = inner.server_properties
        if properties is None:
            raise _closed(self._place)
        self.product = str(properties.get("product", "unknown"))
        self.version: Version = tuple(int(part) for part in re.findall(r"\d+", str(properties.get("version", "")))[:3])
        self.vhost: str = inner.params.virtual_host
        self.user = str(getattr(inner.params.credentials, "username", "USER"))
        self.heartbeat = int(inner.params.heartbeat or 0)
        self.identity = f"{properties.get('cluster_name', self._place)}:{self.vhost}"
        self.unasked: Unanswered | None = None
        self.asks = management is not None
        self._management = management

    def exists(self, name: str) -> bool:
        """
        Return whether the queue exists, even if the broker cannot reach it.

        The call needs no permission. But RabbitMQ 4.3 refuses a user without any right on the queue, and the result is then True.
        """
        try:
            refused, _ = self._count(name)
        except QueueUnavailable as error:
            if error.id == DOWN:
                return True
            raise
        return refused is None or not is_missing(refused)

    def count(self, names: Sequence[str]) -> Counts:
        """
        Count the ready messages and the consumers of these queues.

        A question without an answer ends the connection, so its error is also the error of all later queues.
        """
        counts: dict[str, QueueCount | BrokerUnavailable] = {}
        for name in names:
            counts[name] = self._counted(name)
            if not self._connection.is_open:
                return {**dict.fromkeys(names, counts[name]), **counts}
        return counts

    def _counted(self, name: str) -> QueueCount | BrokerUnavailable:
        try:
            refused, count = self._count(name)
        except QueueUnavailable as error:
            return error
        return count if refused is None else refused_count(name, refused)

    def _count(self, name: str) -> tuple[ChannelClosedByBroker | None, QueueCount]:
        counted = [QueueCount(0, 0)]

        def declare(channel: BlockingChannel) -> None:
            method = channel.queue_declare(name, passive=True).method
            counted.append(QueueCount(method.message_count, method.consumer_count))

        return self._ask(f"whether queue {name!r} exists", declare, name), counted[-1]

    def declare(self, planned: PlannedQueue) -> ChannelClosedByBroker | None:
        """Declare the queue; return None if the queue now exists with these arguments; otherwise return the broker's refusal."""
        return self._declare(planned.name, planned.arguments, {"durable": True})

    def queue(self, planned: PlannedQueue, *, redeclare: bool) -> ExistingQueue | None:
        """
        Return the state of the queue, as far as the broker reports it; None if the queue does not exist.

        Raises QueueUnavailable if the queue exists, and the broker cannot reach it now.

        If there is no management API and `redeclare` is True, the probe declares the queue.
        A declaration never changes an existing queue.
        The broker accepts the declaration if the queue has the planned arguments; otherwise its refusal names one difference.
        """
        name = planned.name
        if not self.exists(name):
            return None
        if name in self._away:
            raise self._away[name]
        if self._management is not None and self.unasked is None:
            try:
                if (queue := self._management.queue(name)) is not None:
                    if queue.state in UNREACHABLE:
                        got = f"Expected queue {name!r} at {self._place} to be reachable, got: it is {queue.state}."
                        raise QueueUnavailable(got, id=DOWN)
                    return queue
            except Unanswered as error:
                self.unasked = error
        if not redeclare:
            return self._glimpsed(name)
        if (refused := self.declare(planned)) is None:
            return ExistingQueue.as_planned(planned)
        queue = self._glimpsed(name)
        if (named := _INEQUIVALENT.search(refused.reply_text)) is None:
            return queue
        argument, current = named["name"], named["current"]
        expected = {**_FLAGS, **planned.arguments}.get(argument)
        actual = current == "'true'" if argument in _FLAGS else _value(current)
        return replace(queue, difference=Difference(argument, expected, actual))

    def queue_type(self, name: str) -> QueueType | None:
        """
        Return the type of a queue.

        The result is None if the user may not read the queue, or if the broker's refusal does not show the type (before 4.3).
        """
        refused = self._consume(name)
        if self.version < CONSUMER_TIMEOUTS or refused is None or refused.reply_code != PRECONDITION:
            return None
        named = re.search(r"of queue type rabbit_(\w+)_queue", refused.reply_text)
        return queue_type({"x-queue-type": named[1]}) if named else "quorum"

    def may_configure(self, name: str) -> bool:
        """Return whether the user may declare a queue of this name."""
        refused = self._declare(name, {"x-message-ttl": -1}, {"durable": True})
        return refused is None or refused.reply_code != REFUSED

    def may_consume(self, name: str) -> bool:
        """Return whether the user may read a queue of this name."""
        refused = self._consume(name)
        return refused is None or refused.reply_code != REFUSED or "exclusive" in refused.reply_text

    def may_publish(self) -> bool:
        """Return whether the user may write to the default exchange, which routes to every queue."""
        refused = self._publish(b"")
        return refused is None or refused.reply_code != REFUSED

    def limit_below(self, size: int) -> int | None:
        """
        Return the broker's limit for a body if the limit is below `size` bytes; otherwise None.

        The probe sends a body of `size` bytes.
        """
        refused = self._publish(bytes(size))
        return None if refused is None else largest_body(refused)

    def _publish(self, body: bytes) -> ChannelClosedByBroker | None:
        """Publish a message that reaches no queue; return the broker's refusal, or None if the broker accepts the message."""

        def publish(channel: BlockingChannel) -> None:
            self._watch(channel.connection)
            channel.confirm_delivery()
            try:
                channel.basic_publish("", _NOBODY, body, mandatory=True)
            except UnroutableError:
                return

        return self._ask("whether the broker accepts a message", publish)

    def _consume(self, name: str) -> ChannelClosedByBroker | None:
        impossible: dict[str, Any] = {"x-priority": "none"}
        if self.version >= CONSUMER_TIMEOUTS:
            impossible = {"x-consumer-timeout": -1}
        return self._ask(
            f"whether the user may consume from {name!r}",
            lambda channel: channel.basic_consume(name, lambda *_: None, arguments=impossible),
            name,
        )

    def _declare(
        self, name: str, arguments: Mapping[str, Any], flags: Mapping[str, bool]
    ) -> ChannelClosedByBroker | None:
        return self._ask(
            f"how queue {name!r} is declared",
            lambda channel: channel.queue_declare(name, arguments=dict(arguments), **flags),
            name,
        )

    def _glimpsed(self, name: str) -> ExistingQueue:
        """
        Return the facts that an impossible declaration shows about an existing queue.

        The declaration needs only the right to configure.
        The broker compares the flags first, so its refusals always show the flags.
        The refusals show the type only if the broker refuses no other argument before the type.
        The TTL makes the declaration impossible, so the broker creates nothing if the queue no longer exists.
        """
        flags = {"durable": True, "auto_delete": False}
        type_ = None
        for _ in _FLAGS:
            refused = self._declare(name, {"x-queue-type": "classic", "x-message-ttl": -1}, flags)
            differs = _INEQUIVALENT.search(refused.reply_text) if refused is not None else None
            if differs is None:
                break
            if differs["name"] in flags:
                flags[differs["name"]] = differs["current"] == "'true'"
                continue
            if differs["name"] == "x-queue-type":
                type_ = queue_type({"x-queue-type": _value(differs["current"])})
            break
        return ExistingQueue(
            name, durable=flags["durable"], auto_delete=flags["auto_delete"], type=self.queue_type(name) or type_
        )

    def _ask(
        self, what: str, question: Callable[[BlockingChannel], object], queue: str = ""
    ) -> ChannelClosedByBroker | None:
        """
        Send a request on a new channel, and return the broker's refusal, or None.

        `queue` is the queue that the request is about; empty if the request is about no queue.
        """
        if queue in self._away:
            raise self._away[queue]
        try:
            with translated(self._place), self._bounded(what):
                channel = self._open().channel()
                try:
                    question(channel)
                except ChannelClosedByBroker as refused:
                    if is_down(refused):
                        got = f"Expected queue {queue!r} at {self._place}, got: {closed_channel(refused)}."
                        raise QueueUnavailable(got, id=DOWN) from refused
                    return refused
                channel.close()
                return None
        except QueueUnavailable as error:
            self._away[queue] = error
            raise

    def _open(self) -> pika.BlockingConnection:
        if not self._connection.is_open:
            if self._reopen is None:
                raise _closed(self._place)
            self._connection = self._reopen()
        return self._connection

    def _watch(self, connection: pika.BlockingConnection) -> None:
        """
        End the connection when an alarm blocks it, because the broker would reply to no further question before the alarm ends.

        An alarm blocks only a connection that publishes.
        """
        inner = _inner(connection)

        def blocked(_: object, frame: Any) -> None:
            self.alarm = str(frame.method.reason)
            alarm = Silent(f"an alarm ({self.alarm})", "pika.blocked-timeout")
            inner._adapter_call_later(0, lambda: pika_internals.abort(inner, alarm))  # noqa: SLF001 - not while pika reads

        inner.add_on_connection_blocked_callback(blocked)

    @contextmanager
    def _bounded(self, what: str) -> Iterator[None]:
        """End the connection, and raise QueueUnavailable, if the broker does not reply in time to the question in this context."""
        inner = _inner(self._open())
        silent = Silent(what)
        timer = inner._adapter_call_later(self._within, lambda: pika_internals.abort(inner, silent))  # noqa: SLF001 - only this kind of timer runs while pika waits
        try:
            yield
        except Silent as error:
            if error is not silent:
                raise
            got = f"Expected RabbitMQ at {self._place} to report {what} within {self._within:g} s, got no answer."
            raise QueueUnavailable(got, id="rabbitmq.unanswered") from error
        finally:
            inner._adapter_remove_timeout(timer)  # noqa: SLF001


def _closed(place: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"Expected an open connection to RabbitMQ at {place}, got a closed one: connect again.")


def _inner(connection: pika.BlockingConnection) -> Any:
    """
    Return the inner connection of pika's blocking connection.

    Only the inner connection has the server's properties, and timers that run while pika waits.
    """
    hidden: Any = connection
    return hidden._impl  # noqa: SLF001


def _value(text: str) -> str | int | bool | None:
    """Parse the current value in an inequivalence error: `none`, `'classic'`, `the value '7' of type 'signedint'`."""
    found = _CURRENT.match(text)
    if found is None:
        return None
    value, kind = found["value"], found["type"]
    if kind == "bool":
        return value == "true"
    # The broker reports some values without a type. A value of digits is then a number, because no text argument has only digits.
    return int(value) if kind != "longstr" and re.fullmatch(r"-?\d+", value) else value
