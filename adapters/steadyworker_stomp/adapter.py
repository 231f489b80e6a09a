"""The adapter for ActiveMQ Classic and Artemis. It implements `steadyworker.adapter.Adapter` with one I/O thread and two connections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from typing_extensions import override

from steadyworker.adapter import (
    Browsed,
    Browses,
    Capabilities,
    Delays,
    Depth,
    Finding,
    OutgoingMessage,
    PublishesMany,
    QueueSpec,
    Renamable,
    Settings,
    Unbrowsed,
    Uncounted,
)
from steadyworker.errors import PublishFailed
from steadyworker.findings import FindingTexts
from steadyworker.network.adapter import NetworkAdapter
from steadyworker.network.errors import Refused
from steadyworker.network.iothread import IoThread
from steadyworker.network.loop import PlainLoop
from steadyworker.network.preparation import Preparation
from steadyworker.network.url import has_host_of, identity_of, unencrypted
from steadyworker_stomp.browse import browse
from steadyworker_stomp.checks.census import census, has_queue
from steadyworker_stomp.checks.findings import find
from steadyworker_stomp.connection import ask, brief, visit
from steadyworker_stomp.consumer import StompConsumer
from steadyworker_stomp.deadletters import StompDeadLetters, patient
from steadyworker_stomp.declare import prepare_at
from steadyworker_stomp.depth import depth_of
from steadyworker_stomp.publisher import StompPublisher
from steadyworker_stomp.topology import check_names
from steadyworker_stomp.url import StompUrl, parse_url

_finding = FindingTexts("steadyworker_stomp")

_SILENT = 4.0
"""Heart-beats after which both brokers have noticed a dead consumer, with the tolerance that is recommended for Classic."""


class StompAdapter(NetworkAdapter[StompUrl, StompConsumer, StompPublisher], PublishesMany, Renamable, Browses):
    """
    The adapter that one worker process uses for one queue of one broker. The adapter connects at its first use.

    Args:
        url: The broker's URL, as the README explains it.
        spec: The queue, and its dead-letter queue.
        settings: The operator's settings.

    Raises:
        ConfigError: The URL or a name is invalid for this broker.
    """

    def __init__(self, url: str, spec: QueueSpec, settings: Settings) -> None:
        check_names(spec)
        super().__init__(url, parse_url, settings)
        self._spec = spec
        self._preparation = Preparation(lambda: prepare_at(self._url, settings.topology, settings.clock))
        self._io = IoThread(f"stomp {spec.queue}", settings.clock, PlainLoop)
        self._consumer = StompConsumer(self._io, self._url, self._preparation, spec, settings)
        self._publisher = StompPublisher(self._io, self._url, self._preparation, spec, settings)

    @override
    def publish_many(self, messages: Sequence[OutgoingMessage]) -> Sequence[PublishFailed | None]:
        return self._publisher.publish_many(messages)

    @property
    @override
    def capabilities(self) -> Capabilities:
        """
        The abilities of both brokers: exact delays, and a count of consumers if the user has the right to count.

        The adapter does not offer to reject a message (`rejects`). After a NACK, Classic moves a message to its dead letters.
        But if Classic (5.18, 6.3) cannot move the message, Classic still confirms the NACK, and loses the message.
        Classic also does not report over STOMP where it moves a message.
        """
        return Capabilities(
            system="activemq",
            delays=Delays.EXACT,
            counts_consumers=True,
            counts_holders=True,
            forgets_consumers_within=_SILENT * self._first.heartbeat,
            max_body=self._settings.max_body,
            reports_name=False,
        )

    @override
    def identity(self) -> str:
        """Return the hosts of the URL, because over STOMP a broker reports no name that stays the same."""
        return identity_of(self._first.addresses)

    @override
    def may_have_been(self, identity: str) -> bool:
        return has_host_of(self._first.addresses, identity)

    @override
    def exists(self) -> bool:
        """Return whether the broker has the queue; True if the user has no right to ask."""
        with ask(self._url(), self._settings.clock) as visited:
            return has_queue(visited, self._spec.queue)

    @override
    def consumers(self) -> int | Uncounted:
        """Return the number of connections that consume the queue; Uncounted if the user has no right to ask."""
        with ask(self._url(), self._settings.clock) as visited:
            return census(visited, self._spec.queue)

    @override
    def depth(self) -> Depth:
        """Return the numbers of messages and consumers, as far as the broker reports them to this user (`depth.py`)."""
        return depth_of(self._url(), self._spec, self._settings.clock)

    @override
    def browse(self, limit: int) -> Iterator[Browsed | Unbrowsed]:
        """
        Yield messages.

        Classic also shows the messages that consumers hold, and never delayed ones.
        Artemis shows at most its first 200 ready messages.
        """
        return browse(self._url(), self._spec, limit, self._settings.clock)

    @override
    def findings(self, spec: QueueSpec) -> Sequence[Finding]:
        try:
            url = self._url()
            found = find(url, spec, self._settings, consuming=self._consumer.started)
        except Refused as error:
            if self._consumer.was_connected:
                raise  # After a first connect, the cause of a refusal can end. So the caller checks again later.
            refused = _finding("stomp.refused", error=error)
            return [replace(refused, id=error.id or refused.id)]
        if url.tls is None:
            found += unencrypted(url.addresses, "stomp+ssl:// in --broker")
        return found

    @contextmanager
    @override
    def dead_letters(self) -> Iterator[StompDeadLetters]:
        url, clock = self._url(), self._settings.clock
        hold, ask_once = partial(visit, patient(url), clock), partial(visit, brief(url), clock)
        with StompDeadLetters(
            hold, ask_once, self._spec, url.moved_to(self._spec.queue), self.publish, clock
        ) as letters:
            yield letters
