"""The base of adapters for brokers on a network: one I/O thread, a consumer and a publisher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import override

from steadyworker.adapter import (
    Adapter,
    ChecksMessages,
    Delivery,
    OutgoingMessage,
    Settings,
    Settle,
    Settled,
    SettlesAsync,
    Sink,
)
from steadyworker.network.consumer import Consumer
from steadyworker.network.iothread import IoThread
from steadyworker.network.settlement import OnSettled


class Publishes(Protocol):
    """The interface of a publisher."""

    def publish(self, message: OutgoingMessage) -> None:
        """Publish as `Adapter.publish` does."""
        ...

    def check(self, message: OutgoingMessage) -> None:
        """Check as `ChecksMessages.check_message` does."""
        ...


AUrl = TypeVar("AUrl")
AConsumer = TypeVar("AConsumer", bound=Consumer[Any, Any])
APublisher = TypeVar("APublisher", bound=Publishes)


class NetworkAdapter(Adapter, ChecksMessages, SettlesAsync, Generic[AUrl, AConsumer, APublisher]):
    """
    The base class, which passes each call on to the consumer, the publisher or the I/O thread.

    The subclass creates these three parts.

    Args:
        url: The broker's URL.
        parse: A function that parses such a URL; raises ConfigError.
        settings: The operator's settings.
    """

    _io: IoThread
    _consumer: AConsumer
    _publisher: APublisher

    def __init__(self, url: str, parse: Callable[[str], AUrl], settings: Settings) -> None:
        self._first = parse(url)
        self._parse = parse
        self._settings = settings

    def _url(self) -> AUrl:
        """Read and return the current URL; an operator can change the password at any time."""
        return self._first if self._settings.fresh_url is None else self._parse(self._settings.fresh_url())

    @property
    @override
    def last_turn(self) -> float | None:
        return self._io.last_turn if self._consumer.started else None

    @override
    def start(self, sink: Sink) -> None:
        self._consumer.start(sink)

    @override
    def prefetch(self, count: int) -> None:
        self._consumer.prefetch(count)

    @override
    def publish(self, message: OutgoingMessage) -> None:
        self._publisher.publish(message)

    @override
    def check_message(self, message: OutgoingMessage) -> None:
        self._publisher.check(message)

    @override
    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        return self._consumer.settle(delivery, how)

    @override
    def settle_async(self, delivery: Delivery, how: Settle, on_settled: OnSettled) -> None:
        self._consumer.settle_async(delivery, how, on_settled)

    @override
    def stop(self, within: float) -> None:
        self._io.stop(within)
