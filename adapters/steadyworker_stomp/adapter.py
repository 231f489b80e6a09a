"""The adapter for ActiveMQ Classic and Artemis: it implements `steadyworker.adapter.Adapter` with one I/O thread and two connections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from steadyworker.adapter import (
    Capabilities,
    Delays,
    Delivery,
    Finding,
    OutgoingMessage,
    QueueSpec,
    Settings,
    Settle,
    Settled,
    Sink,
    Uncounted,
)
from steadyworker.findings import FindingTexts
from steadyworker.network.errors import Refused
from steadyworker.network.iothread import IoThread
from steadyworker.network.loop import PlainLoop
from steadyworker.network.preparation import Preparation
from steadyworker.network.settlement import OnSettled
from steadyworker.network.url import unencrypted
from steadyworker_stomp.checks.census import census, has_queue
from steadyworker_stomp.checks.findings import find
from steadyworker_stomp.connection import ask, visit
from steadyworker_stomp.consumer import Consumer
from steadyworker_stomp.deadletters import StompDeadLetters, patient
from steadyworker_stomp.declare import brief, prepare_at
from steadyworker_stomp.publisher import Publisher
from steadyworker_stomp.topology import check_names
from steadyworker_stomp.url import BrokerUrl, parse_url

_finding = FindingTexts("steadyworker_stomp")

_SILENT = 4.0
"""Heart-beats after which both brokers have noticed a dead consumer, with the tolerance that is recommended for Classic."""


class StompAdapter:
    """
    The adapter for one queue of one broker and one worker process; it connects at its first use.

    Args:
        url: The broker's URL (`url.py`).
        spec: The queue, and its dead-letter queue.
        settings: The operator's settings.

    Raises:
        ConfigError: The URL or a name is invalid for this broker.
    """

    def __init__(self, url: str, spec: QueueSpec, settings: Settings) -> None:
        check_names(spec)
        self._spec = spec
        self._settings = settings
        self._first = parse_url(url)
        self._preparation = Preparation(lambda: prepare_at(self._url, settings.topology, settings.clock))
        self._io = IoThread(f"stomp {spec.queue}", settings.clock, PlainLoop)
        forced = self._first.dialect
        self._consumer = Consumer(self._io, self._url, self._preparation, spec, settings, forced)
        self._publisher = Publisher(self._io, self._url, self._preparation, spec, settings, forced)

    def _url(self) -> BrokerUrl:
        """Return the current URL, because an operator can change the password at any time."""
        return self._first if self._settings.fresh_url is None else parse_url(self._settings.fresh_url())

    @property
    def capabilities(self) -> Capabilities:
        """
        The abilities of both brokers: exact delays, and a count of consumers, which a user without the right to it does not get.

        The adapter does not offer to reject a message (`rejects`), although a NACK moves it on Classic.
        Classic (5.18, 6.3) confirms a NACK also of a message that it cannot move, and then has it no longer; nor does it tell over STOMP where to.
        """
        return Capabilities(
            delays=Delays.EXACT,
            counts_consumers=True,
            counts_holders=True,
            forgets_consumers_within=_SILENT * self._first.heartbeat,
            max_body=self._settings.max_body,
            reports_name=False,
        )

    @property
    def last_turn(self) -> float | None:
        """The time (monotonic clock) of the I/O thread's last turn; None before `start`."""
        return self._io.last_turn if self._consumer.started else None

    def start(self, sink: Sink) -> None:
        """Start to consume."""
        self._consumer.start(sink)

    def prefetch(self, count: int) -> None:
        """Set the prefetch: the number of subscriptions."""
        self._consumer.prefetch(count)

    def publish(self, message: OutgoingMessage) -> None:
        """Return when the broker has sent a receipt for the message; raises PublishFailed or one of its subclasses, or ValueError."""
        self._publisher.publish(message)

    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        """Return when the broker has sent a receipt for the settlement; raises StaleDelivery or Unsettled."""
        return self._consumer.settle(delivery, how)

    def settle_async(self, delivery: Delivery, how: Settle, on_settled: OnSettled) -> None:
        """Settle as `settle` does, but return at once (`SettlesAsync`)."""
        self._consumer.settle_async(delivery, how, on_settled)

    def identity(self) -> str:
        """Return the hosts of the URL, because STOMP tells no name of the broker that stays the same."""
        return self._identity(self._first)

    def may_have_been(self, identity: str) -> bool:
        """Return whether that identity shares a host with this one, on any port: one port can be for TLS, another not."""
        theirs = {address.rpartition(":")[0] for address in identity.split(",")}
        return bool(theirs & {str(address).rpartition(":")[0] for address in self._first.addresses})

    @staticmethod
    def _identity(url: BrokerUrl) -> str:
        return ",".join(sorted(map(str, url.addresses)))

    def exists(self) -> bool:
        """Return whether the broker has the queue; True if the user has no right to ask."""
        url = brief(self._url())
        with ask(url, self._settings.clock) as visited:
            return has_queue(visited, self._spec.queue)

    def consumers(self) -> int | Uncounted:
        """Return the number of connections that consume the queue; Uncounted if the user has no right to ask."""
        url = brief(self._url())
        with ask(url, self._settings.clock) as visited:
            return census(visited, self._spec.queue)

    def findings(self, spec: QueueSpec) -> Sequence[Finding]:
        """Return the problems of this broker and these queues; raises BrokerUnavailable."""
        try:
            url = self._url()
            found = find(url, spec, self._settings, consuming=self._consumer.started)
        except Refused as error:
            if self._consumer.was_connected:
                raise  # after a first connect, a refusal can end; the caller checks again later
            refused = _finding("stomp.refused", error=error)
            return [replace(refused, id=error.id or refused.id)]
        if url.tls is None:
            found += unencrypted(url.addresses, "stomp+ssl:// in --broker")
        return found

    @contextmanager
    def dead_letters(self) -> Iterator[StompDeadLetters]:
        """Open the dead letters, on connections used only for them."""
        url, clock = self._url(), self._settings.clock
        hold, look = partial(visit, patient(url), clock), partial(visit, brief(url), clock)
        with StompDeadLetters(hold, look, self._spec, url.moved_to(self._spec.queue), self.publish, clock) as letters:
            yield letters

    def stop(self, within: float) -> None:
        """Release every delivery and close."""
        self._io.stop(within)
