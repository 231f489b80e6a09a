"""
The publishing connection. It opens at its first use, and uses confirms and mandatory messages.

The connection only publishes.
During a memory or disk alarm, the broker does not read from a connection that publishes, so an ack on this connection would be stuck.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from pika import SelectConnection
from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic, BasicProperties
from typing_extensions import override

from steadyworker.adapter import Blocked, OutgoingMessage, Settings, Signal, Unblocked, check_size
from steadyworker.errors import (
    BrokerUnavailable,
    ConfigError,
    MessageRefused,
    NotPublished,
    PublishFailed,
    TargetFull,
    TargetMissing,
)
from steadyworker.network.iothread import IoThread, Member
from steadyworker.network.owed import ANSWER_WITHIN, Owed
from steadyworker.network.preparation import Preparation
from steadyworker_rabbitmq.connection import RabbitmqConnection
from steadyworker_rabbitmq.declare import PreparedQueues
from steadyworker_rabbitmq.errors import alarm_id, channel_id, closed_channel, is_refusal, largest_body
from steadyworker_rabbitmq.messages import HEADER_BYTES, carried, fits_id, properties_of, size_of
from steadyworker_rabbitmq.topology import Topology
from steadyworker_rabbitmq.url import RabbitmqUrl


@dataclass(slots=True, eq=False)
class _Outgoing:
    """One pending message; `returned` is the broker's text if the broker returned the message because the queue does not exist."""

    exchange: str
    routing_key: str
    properties: BasicProperties
    body: bytes
    confirmed: Future[None] = field(default_factory=Future)
    returned: str | None = None

    def fail(self, error: PublishFailed) -> None:
        if not self.confirmed.done():
            self.confirmed.set_exception(error)

    def result(self) -> PublishFailed | None:
        """Return the error, or None after a confirm; without either of them, the time is over, and nothing writes the message."""
        if self.confirmed.cancel():  # no connection has been ready to write the message
            return NotPublished(
                f"Expected a connection to publish to queue {self.routing_key!r} within {ANSWER_WITHIN:g} s, got none: "
                "check whether the broker runs, and can be reached."
            )
        if not self.confirmed.done():
            return PublishFailed(
                f"Expected a confirm from queue {self.routing_key!r} within {ANSWER_WITHIN:g} s, got none: "
                "check whether the broker is overloaded, or the queue has lost its majority. "
                "The queue may have the message all the same."
            )
        error = self.confirmed.exception()
        assert error is None or isinstance(error, PublishFailed), "`fail` accepts only such an error"
        return error


class RabbitmqPublisher(Member):
    """
    The publisher of one queue's messages.

    Any thread may call `publish` and `publish_many`; everything else is for the I/O thread.

    Args:
        io: The I/O thread.
        url: Returns the current URL.
        preparation: Creates or checks the queues.
        topology: Decides on the queue for each message.
        settings: The operator's settings.
        sink: Receives Blocked and Unblocked.
    """

    def __init__(
        self,
        io: IoThread,
        url: Callable[[], RabbitmqUrl],
        preparation: Preparation[PreparedQueues],
        topology: Topology,
        settings: Settings,
        sink: Callable[[Signal], None],
    ) -> None:
        self._io = io
        self._preparation = preparation
        self._topology = topology
        self._settings = settings
        self._send = sink
        self._link = RabbitmqConnection(
            io, url, f"{settings.consumer} publishes to {topology.work}", self._up, self._down
        )
        self._owed = Owed(io, self._link.abort)
        self._channel: Channel | None = None
        self._ready = False
        self._frame_max = 0
        self._blocked: str | None = None
        self._waiting: list[_Outgoing] = []
        self._in_flight: dict[int, _Outgoing] = {}
        self._written = 0
        io.members.append(self)

    def publish(self, message: OutgoingMessage) -> None:
        """Publish as `Adapter.publish` does; ValueError also means that AMQP cannot encode a header."""
        (error,) = self.publish_many([message])
        if error is not None:
            raise error

    def publish_many(self, messages: Sequence[OutgoingMessage]) -> list[PublishFailed | None]:
        """Publish as `PublishesMany.publish_many` does; ValueError also means that AMQP cannot encode a header."""
        batch = [self._checked(message) for message in messages]
        try:
            self._preparation.prepared()
            self._io.call(lambda: self._accept_all(batch))
        except (BrokerUnavailable, ConfigError) as error:
            unsent = NotPublished(str(error))
            unsent.__cause__ = error
            return [unsent] * len(batch)
        wait([outgoing.confirmed for outgoing in batch], ANSWER_WITHIN)
        return [outgoing.result() for outgoing in batch]

    def check(self, message: OutgoingMessage) -> None:
        """Check as `ChecksMessages.check_message` does."""
        self._checked(message)

    def _checked(self, message: OutgoingMessage) -> _Outgoing:
        message_id = message.message_id if message.message_id and fits_id(message.message_id) else str(uuid.uuid4())
        properties = properties_of(message, message_id, self._settings.clock.wall())
        size = size_of(properties)
        if message.first:
            check_size("a body", len(message.body), self._settings.max_body)
            check_size("headers", size, HEADER_BYTES)
        return _Outgoing(*self._topology.route(message), properties, message.body)

    # --- for the I/O thread ----------------------------------------------------------------------------------------

    @property
    @override
    def is_closed(self) -> bool:
        return self._link.is_closed

    @override
    def close(self, within: float) -> None:
        """Close the connection; abort the connection if it is blocked, because the broker then does not read from it."""
        self._link.close(0 if self._blocked else within)

    @override
    def fail(self, error: Exception) -> None:
        self._link.abort(error)

    def _accept_all(self, batch: Sequence[_Outgoing]) -> None:
        for outgoing in batch:
            self._accept(outgoing)

    def _accept(self, outgoing: _Outgoing) -> None:
        if self._blocked is not None:
            outgoing.fail(_not_sent(f"the broker accepts no messages for now ({self._blocked})"))
        elif self._channel is not None and self._ready:
            self._write(outgoing)
        else:
            self._waiting.append(outgoing)
            if (connection := self._link.connection) is None:
                self._link.open()
            elif self._channel is None:
                self._open_channel(connection)

    def _write(self, outgoing: _Outgoing) -> None:
        channel = self._channel
        assert channel is not None, "a channel is open"
        if not outgoing.confirmed.set_running_or_notify_cancel():
            return  # the caller gave up
        self._written += 1
        self._in_flight[self._written] = outgoing
        properties, outgoing.body = carried(outgoing.properties, outgoing.body, self._frame_max)
        channel.basic_publish(outgoing.exchange, outgoing.routing_key, outgoing.body, properties, mandatory=True)

    # --- connecting ------------------------------------------------------------------------------------------------

    def _up(self, connection: SelectConnection) -> None:
        connection.add_on_connection_blocked_callback(lambda _, frame: self._alarm(str(frame.method.reason)))
        connection.add_on_connection_unblocked_callback(lambda *_: self._alarm(None))
        self._frame_max = connection.params.frame_max
        self._open_channel(connection)

    def _open_channel(self, connection: SelectConnection) -> None:
        answered = self._owed.expect("channel.open")

        def ready(_: object) -> None:
            answered()
            self._ready, self._written = True, 0
            waiting, self._waiting = self._waiting, []
            for outgoing in waiting:
                self._accept(outgoing)

        def opened(channel: Channel) -> None:
            channel.add_on_return_callback(self._returned)
            channel.confirm_delivery(self._confirmed, callback=ready)

        self._channel = connection.channel(on_open_callback=opened)
        self._channel.add_on_close_callback(self._channel_closed)

    def _down(self, error: BrokerUnavailable) -> None:
        self._alarm(None)
        self._lose(str(error))

    def _channel_closed(self, _: Channel, reason: Exception) -> None:
        self._channel, self._ready = None, False
        self._owed.forgive()
        if self._link.connection is not None:  # otherwise `_down` has the better cause
            cause = closed_channel(reason)
            if (limit := largest_body(reason)) is not None:
                self._refuse_large(limit, MessageRefused(_refusal(cause), id=channel_id(reason)))
            elif is_refusal(reason):
                self._refuse_newest(cause)
            self._lose(cause)

    def _refuse_newest(self, cause: str) -> None:
        """
        Fail the newest message in flight, because the broker certainly does not have this message.

        The broker has refused one message (no permission), closed the channel, and read no message after the refused message.
        The broker does not name the refused message, so the broker could have accepted each older message.
        """
        if self._in_flight:
            _, newest = self._in_flight.popitem()
            newest.fail(NotPublished(_refusal(cause)))

    def _refuse_large(self, limit: int, refused: MessageRefused) -> None:
        """Fail the first message above the limit, and every later message, because the broker did not read the later messages."""
        large = [tag for tag, outgoing in self._in_flight.items() if len(outgoing.body) > limit]
        for tag in [tag for tag in self._in_flight if tag >= min(large, default=tag + 1)]:
            self._in_flight.pop(tag).fail(refused if tag in large else _not_sent(str(refused)))

    def _lose(self, cause: str) -> None:
        waiting, self._waiting = self._waiting, []
        in_flight, self._in_flight = self._in_flight, {}
        for outgoing in waiting:
            outgoing.fail(_not_sent(cause))
        for outgoing in in_flight.values():
            outgoing.fail(PublishFailed(f"Expected a confirm from the broker, got: {cause}"))

    # --- callbacks of the broker -----------------------------------------------------------------------------------

    def _alarm(self, reason: str | None) -> None:
        if reason is not None and self._blocked is None:
            cause = f"the broker accepts no messages ({reason}): free memory or disk space on the broker"
            self._send(Blocked(cause, alarm_id(reason)))
        elif reason is None and self._blocked is not None:
            self._send(Unblocked())
        self._blocked = reason

    def _returned(self, _: Channel, method: Basic.Return, properties: BasicProperties, __: bytes) -> None:
        """
        Mark a message that the broker returned because the queue does not exist; the broker's confirm for this message arrives next.

        If two pending messages have the same id, this method marks both, and both are later published again.
        """
        for outgoing in self._in_flight.values():
            if (outgoing.routing_key, outgoing.properties.message_id) == (method.routing_key, properties.message_id):
                outgoing.returned = f"{method.reply_text} ({method.reply_code})"

    def _confirmed(self, frame: Method[Basic.Ack | Basic.Nack]) -> None:
        answer = frame.method
        tags = (
            [tag for tag in self._in_flight if tag <= answer.delivery_tag] if answer.multiple else [answer.delivery_tag]
        )
        for outgoing in filter(None, (self._in_flight.pop(tag, None) for tag in tags)):
            queue = outgoing.routing_key
            if isinstance(answer, Basic.Nack):
                outgoing.fail(
                    TargetFull(
                        f"Expected the queue {queue!r} to accept a message, got a refusal, because it is full: "
                        "consume its messages, or raise its length limit."
                    )
                )
            elif outgoing.returned is not None:
                self._preparation.forget()
                outgoing.fail(TargetMissing(f"Expected the queue {queue!r}, got: {outgoing.returned}: create it."))
            else:
                outgoing.confirmed.set_result(None)


def _refusal(cause: str) -> str:
    return f"Expected the broker to accept a message, got a refusal: {cause}"


def _not_sent(cause: str) -> NotPublished:
    return NotPublished(f"Expected a broker to publish to, got: {cause}")
