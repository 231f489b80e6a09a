"""
Finds out permissions and queue arguments by probes over AMQP.

Each probe uses a channel of its own, because a refusal closes the channel.
AMQP has no query for a permission or for a queue's arguments.
But a broker checks permissions first, then whether the request is possible, and only then carries it out.
So each probe sends an impossible request: a negative TTL, a priority that is not a number, a queue that cannot exist.
The broker's error shows whether the permission is there, and the broker changes nothing.
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
from steadyworker_rabbitmq.checks.management import Management, Unanswered
from steadyworker_rabbitmq.checks.policies import Policy, in_force
from steadyworker_rabbitmq.checks.queue_state import QueueState, QueueType, queue_type
from steadyworker_rabbitmq.errors import QueueUnavailable, closed_channel, is_down, is_missing, largest_body, translated
from steadyworker_rabbitmq.topology import Version, Wanted

REFUSED, PRECONDITION = 403, 406

_INEQUIVALENT = re.compile(r"inequivalent arg '(?P<name>[^']+)' .* but current is (?P<current>.+)$")
_CURRENT = re.compile(r"(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?$")
_FLAGS = ("durable", "auto_delete", "exclusive")
_MOST_ARGUMENTS = 30
DOWN = "rabbitmq.queue-node-down"
_UNREACHABLE = ("down", "stopped", "crashed", "minority")
"""The states of a queue in the management API that mean that it cannot be reached."""

_NOBODY = "amq.steadyworker-nobody"
"""A queue name that no client can declare: the prefix is reserved for the broker."""


class Broker:
    """
    One broker to probe; every method raises BrokerUnavailable if the connection is lost.

    A question about a queue that exists and cannot be reached raises QueueUnavailable, at once for each later question about it.
    Of a queue whose node is down, RabbitMQ 4.3 tells only after 85 s, so a check gives each question less time.
    A question without an answer ends its connection; the next one goes over a connection from `reopen`, if there is one.

    Attributes:
        product: "RabbitMQ", or the name of another AMQP 0-9-1 broker.
        version: The broker's version, as numbers.
        vhost: The virtual host.
        user: The user of the login; `USER` after a login by certificate, because AMQP does not report the user's name.
        heartbeat: The negotiated heartbeat in seconds; 0 for none.
        identity: Cluster name and virtual host: the same from every client, and after every restart.
        asks: True if there is a management API to query.
        unasked: Why the management API is no longer queried; None while the API works.
        unreadable: The reason why the policy of a queue without statistics is unknown; None if it is known.
        alarm: The reason of the broker's alarm, if it blocked a connection; else empty.
    """

    def __init__(
        self,
        connection: pika.BlockingConnection,
        management: Management | None,
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
        told: Mapping[str, Any] | None = inner.server_properties
        if told is None:
            raise _closed(self._place)
        self.product = str(told.get("product", "unknown"))
        self.version: Version = tuple(int(part) for part in re.findall(r"\d+", str(told.get("version", "")))[:3])
        self.vhost: str = inner.params.virtual_host
        self.user = str(getattr(inner.params.credentials, "username", "USER"))
        self.heartbeat = int(inner.params.heartbeat or 0)
        self.identity = f"{told.get('cluster_name', self._place)}:{self.vhost}"
        self.unasked: Unanswered | None = None
        self.unreadable: Unanswered | None = None
        self.asks = management is not None
        self._management = management
        self._policies: Sequence[Policy] | None = None

    def exists(self, name: str) -> bool:
        """Return whether the queue exists, even if it cannot be reached; needs no permission."""
        try:
            refused, _ = self._count(name)
        except QueueUnavailable as error:
            if error.id == DOWN:
                return True
            raise
        return refused is None or not is_missing(refused)

    def consumers(self, name: str) -> int:
        """Return the number of the queue's consumers; 0 if it does not exist; needs no permission."""
        refused, count = self._count(name)
        if refused is not None and not is_missing(refused):
            with translated(self._place):
                raise refused
        return count

    def _count(self, name: str) -> tuple[ChannelClosedByBroker | None, int]:
        counted = [0]

        def declare(channel: BlockingChannel) -> None:
            counted.append(channel.queue_declare(name, passive=True).method.consumer_count)

        return self._ask(f"whether queue {name!r} exists", declare, name), counted[-1]

    def declare(self, wanted: Wanted) -> ChannelClosedByBroker | None:
        """Declare the queue; return None if it now exists with these arguments, else the broker's refusal."""
        return self._declare(wanted.name, wanted.arguments, {"durable": True})

    def look(self, wanted: Wanted, *, redeclare: bool) -> QueueState | None:
        """
        Return the state of the queue, as far as the broker reports it; None if the queue does not exist.

        Raises QueueUnavailable if the queue exists, and the broker cannot reach it now.

        Without the management API and with `redeclare`, the probe declares the queue to learn its arguments.
        Each refusal names one argument that differs, with its present value.
        The probe uses this value in its next declaration, until no argument differs.
        A declaration never changes an existing queue.
        """
        if not self.exists(wanted.name):
            return None
        if wanted.name in self._away:
            raise self._away[wanted.name]
        if self._management is not None and self.unasked is None:
            try:
                if (told := self._management.queue(wanted.name)) is not None:
                    if told.state in _UNREACHABLE:
                        got = (
                            f"Expected queue {wanted.name!r} at {self._place} to be reachable, got: it is {told.state}."
                        )
                        raise QueueUnavailable(got, id=DOWN)
                    return self.with_policies(told)
            except Unanswered as error:
                self.unasked = error
        return self._learned(wanted) if redeclare else self._glimpsed(wanted.name)

    def with_policies(self, queue: QueueState) -> QueueState:
        """
        Return the same queue with the policies that apply to it; return it unchanged if they are known, or stay unknown.

        For a queue without statistics, the policies are computed from the list of all policies.
        """
        if queue.policy is not None or self._management is None or self.unasked is not None:
            return queue
        try:
            if self._policies is None:
                self._policies = self._management.policies()
            name, policy = in_force(self._policies, queue.name, queue.type or "classic")
        except Unanswered as error:
            self.unasked = error
            return queue
        except ValueError as error:
            self.unreadable = Unanswered(
                f"the check cannot read a pattern: {error}",
                "run `check` again a minute after the queues were made; the worker process does so itself.",
            )
            return queue
        return replace(queue, policy=policy, policy_name=name)

    def queue_type(self, name: str) -> QueueType | None:
        """Return the type of a queue; None without permission to read the queue, or if the broker's refusal does not show the type (before 4.3)."""
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
        """Return the broker's limit for a body if it is below this size in bytes; else None, and the probe costs as many bytes."""
        refused = self._publish(bytes(size))
        return None if refused is None else largest_body(refused)

    def _publish(self, body: bytes) -> ChannelClosedByBroker | None:
        """Publish a message to no queue; return the broker's refusal, or None."""

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

    def _glimpsed(self, name: str) -> QueueState:
        """
        Return the facts about an existing queue that an impossible declaration shows; this needs only the right to configure.

        A broker compares the flags first, then the type.
        The TTL makes the declaration impossible, so that it creates nothing if the queue no longer exists.
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
        return QueueState(
            name, durable=flags["durable"], auto_delete=flags["auto_delete"], type=self.queue_type(name) or type_
        )

    def _learned(self, wanted: Wanted) -> QueueState:
        arguments: dict[str, str | int | bool] = dict(wanted.arguments)
        flags = {"durable": True}
        for _ in range(_MOST_ARGUMENTS):
            refused = self._declare(wanted.name, arguments, flags)
            if refused is None:
                return QueueState(
                    wanted.name,
                    arguments,
                    durable=flags["durable"],
                    auto_delete=flags.get("auto_delete", False),
                    type=queue_type(arguments),
                )
            differs = _INEQUIVALENT.search(refused.reply_text)
            if differs is None:
                break
            name, current = differs["name"], _value(differs["current"])
            if name in _FLAGS:
                flags[name] = current == "true"
            elif current is None:
                arguments.pop(name, None)
            else:
                arguments[name] = current
        return self._glimpsed(wanted.name)

    def _ask(
        self, what: str, question: Callable[[BlockingChannel], object], queue: str = ""
    ) -> ChannelClosedByBroker | None:
        """Send a request on a new channel, about this queue if it is about one; return the broker's refusal, or None."""
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
        End the connection when an alarm blocks it: no question that follows would be answered before the end of the alarm.

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
        """End the connection, and raise QueueUnavailable, if the question in this context is not answered in time."""
        inner = _inner(self._open())
        silent = Silent(what)
        timer = inner._adapter_call_later(self._within, lambda: pika_internals.abort(inner, silent))  # noqa: SLF001 - the one timer that runs while pika waits
        try:
            yield
        except Silent as error:
            if error is not silent:
                raise
            got = f"Expected RabbitMQ at {self._place} to tell {what} within {self._within:g} s, got no answer."
            raise QueueUnavailable(got, id="rabbitmq.unanswered") from error
        finally:
            inner._adapter_remove_timeout(timer)  # noqa: SLF001


def _closed(place: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"Expected an open connection to RabbitMQ at {place}, got a closed one: connect again.")


def _inner(connection: pika.BlockingConnection) -> Any:
    """Return the connection that pika's blocking one hides, with the server's properties, and with timers that run while pika waits."""
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
    # The broker reports some values without their type; such a value is a number if it has only digits, because no text argument does.
    return int(value) if kind != "longstr" and re.fullmatch(r"-?\d+", value) else value
