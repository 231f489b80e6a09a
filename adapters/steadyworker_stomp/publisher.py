"""
The publishing connection. It opens at its first use, and never consumes.

If the broker's flow control stops a publisher, the broker reads nothing more from this connection: no acknowledgement and no heart-beat.
So consuming and publishing use two connections.
The thread that publishes a message also writes it to the socket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from steadyworker.adapter import OutgoingMessage, QueueSpec, Settings, Target, check_size
from steadyworker.errors import (
    BrokerUnavailable,
    ConfigError,
    MessageRefused,
    NotPublished,
    PublishFailed,
    TargetFull,
)
from steadyworker.network import owed
from steadyworker.network.errors import Silent
from steadyworker.network.iothread import IoThread
from steadyworker.network.preparation import Preparation
from steadyworker_stomp.connection import StompLink
from steadyworker_stomp.dialects import CLASSIC, Dialect
from steadyworker_stomp.errors import BrokerError, is_full, is_too_large, unavailable
from steadyworker_stomp.messages import LINE_BYTES, frame_headers, frame_of, longest_line
from steadyworker_stomp.stomp_internals import StompConnection
from steadyworker_stomp.topology import queue_of
from steadyworker_stomp.url import StompUrl

_PATIENCE = 30.0
"""Seconds in which the socket must accept a message."""


@dataclass(slots=True, eq=False)
class _Flight:
    """A message that the broker has not confirmed yet; `alone` is True if there was no other such message at the same time."""

    alone: bool


class StompPublisher:
    """
    The publisher of one queue's messages.

    Any thread may call `publish` and `publish_many`. Only the I/O thread may call the other methods.

    Args:
        io: The I/O thread.
        url: Returns the current URL.
        preparation: Checks the broker; necessary only before a delayed message.
        spec: The queue.
        settings: The operator's settings.
    """

    def __init__(
        self,
        io: IoThread,
        url: Callable[[], StompUrl],
        preparation: Preparation[Dialect],
        spec: QueueSpec,
        settings: Settings,
    ) -> None:
        self._io = io
        self._preparation = preparation
        self._spec = spec
        self._settings = settings
        self._link = StompLink(io, url, settings.clock, _PATIENCE, self._up, _no_message, self._down)
        self._was_up = False
        self._waiting: list[Future[StompConnection]] = []
        self._lock = threading.Lock()
        self._flights: list[_Flight] = []
        io.members.append(self)

    def publish(self, message: OutgoingMessage) -> None:
        """
        Return when the broker has confirmed the message.

        Raises:
            TargetFull: The queue, or the broker's disk, is full.
            MessageRefused: The message is above the broker's limits.
            PublishFailed: The result is unknown, or the broker accepts no messages now.
            ValueError: A new message is over the limits.
        """
        (error,) = self.publish_many([message])
        if error is not None:
            raise error

    def publish_many(self, messages: Sequence[OutgoingMessage]) -> list[PublishFailed | None]:
        """Write all the messages, then wait for the receipts, with one time limit for all; errors as `publish` raises them."""
        for message in messages:
            self.check(message)
        try:
            connection = self._connected(messages)
        except NotPublished as error:
            return [error] * len(messages)
        frames = [self._frame(message, connection.dialect) for message in messages]
        flights = [self._begin_flight() for _ in frames]
        try:
            receipts = [connection.send(destination, body, headers) for _, destination, headers, body in frames]
            deadline = self._settings.clock.monotonic() + owed.ANSWER_WITHIN  # a write has a limit of its own
            return [
                self._confirmed(connection, receipt, queue, flight, deadline)
                for receipt, flight, (queue, *_) in zip(receipts, flights, frames, strict=True)
            ]
        finally:
            with self._lock:
                for flight in flights:
                    self._flights.remove(flight)

    def check(self, message: OutgoingMessage) -> None:
        """Check as `ChecksMessages.check_message` does."""
        if message.first:
            check_size("a body", len(message.body), self._settings.max_body)
            check_size(
                "a header line", longest_line(frame_headers(message, CLASSIC)), LINE_BYTES
            )  # as long for Artemis

    def _frame(self, message: OutgoingMessage, dialect: Dialect) -> tuple[str, str, Mapping[str, str], bytes]:
        """Return the queue of a message, its destination, its header lines and its body."""
        queue = queue_of(self._spec, message)
        return queue, dialect.destination(queue), *frame_of(message, dialect)

    def _begin_flight(self) -> _Flight:
        """Record a message that is under way. It shares the connection with all other messages under way."""
        with self._lock:
            for other in self._flights:
                other.alone = False
            self._flights.append(_Flight(alone=not self._flights))
            return self._flights[-1]

    def _confirmed(
        self, connection: StompConnection, receipt: Future[None], queue: str, flight: _Flight, deadline: float
    ) -> PublishFailed | None:
        """Return the error of a message, or None when the broker has confirmed the message."""
        try:
            receipt.result(max(0.0, deadline - self._settings.clock.monotonic()))
        except TimeoutError as error:
            if not receipt.done():
                silent = f"Expected a receipt from queue {queue!r} within {owed.ANSWER_WITHIN:g} s, got none"
                connection.abort(Silent("no receipt for a message"))
                return PublishFailed(
                    f"{silent}: check whether the broker is overloaded, or slows senders because its memory or disk is full. "
                    "The queue may have the message all the same."
                )
            return self._failed(queue, error, flight)
        except Exception as error:  # noqa: BLE001 - the result has the error
            return self._failed(queue, error, flight)
        return None

    def _connected(self, messages: Sequence[OutgoingMessage]) -> StompConnection:
        """Return an open connection; raise NotPublished if no connection opens in time."""
        try:
            if any(message.to is Target.LATER for message in messages):
                self._preparation.prepared()
            return self._io.ask(self._get_connection, owed.ANSWER_WITHIN)
        except TimeoutError:
            raise NotPublished(
                f"Expected a connection to publish to queue {queue_of(self._spec, messages[0])!r} within {owed.ANSWER_WITHIN:g} s, "
                "got none: check whether the broker runs, and can be reached."
            ) from None
        except (BrokerUnavailable, ConfigError) as error:
            raise NotPublished(str(error)) from error

    def _failed(self, queue: str, error: Exception, flight: _Flight) -> PublishFailed:
        failed = self._translated(queue, error, flight)
        failed.__cause__ = error
        return failed

    def _translated(self, queue: str, error: Exception, flight: _Flight) -> PublishFailed:
        if is_too_large(error) and flight.alone:  # the broker does not name the frame that it refuses
            return MessageRefused(
                f"Expected the queue {queue!r} to accept a message, got: {error}: raise wireFormat.maxFrameSize and "
                "wireFormat.maxDataLength on the broker's connector, or send a reference to the data.",
                id="stomp.frame-too-large",
            )
        if is_full(error):
            return TargetFull(
                f"Expected the queue {queue!r} to accept a message, got a refusal, because it is full ({error}): "
                "consume its messages, or raise the broker's limits."
            )
        if isinstance(error, BrokerError) and error.receipt:
            return NotPublished(
                f"Expected the queue {queue!r} to accept a message, got: {error}: see the broker's log."
            )
        return PublishFailed(
            f"Expected a receipt from queue {queue!r}, got: {unavailable(error, self._link.place)} "
            "The queue may have the message all the same."
        )

    # --- for the I/O thread ----------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """True if nothing is connected."""
        return self._link.is_closed

    def close(self, within: float) -> None:
        """Close the connection."""
        self._link.close(within)

    def fail(self, error: Exception) -> None:
        """End the connection because of an unexpected error."""
        self._link.abort(error)

    def _get_connection(self, answer: Future[StompConnection]) -> None:
        if (connection := self._link.connection) is not None:
            answer.set_result(connection)
        else:
            self._waiting.append(answer)
            self._link.open()

    def _up(self, connection: StompConnection) -> None:
        self._was_up = True
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer.set_result(connection)

    def _down(self, error: BrokerUnavailable) -> None:
        was_up, self._was_up = self._was_up, False
        if (
            was_up and self._waiting
        ):  # The messages wait for the next connection, because the lost connection was already unfit when they came.
            self._link.open()
            return
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer.set_exception(error)


def _no_message(headers: Mapping[str, str], body: bytes) -> None:
    """Ignore a message, because nothing is subscribed."""
