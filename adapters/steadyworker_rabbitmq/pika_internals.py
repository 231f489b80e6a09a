"""
What pika keeps to itself and we cannot do without; all of it, with the reason, so that a new pika is read against this page.

Everything here is called by the I/O thread, and was read in pika 1.4.1 to 1.4.4.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pika import SelectConnection, frame, spec
from pika.channel import Channel

UNREADABLE = "sw-hop"
"""Where a message says that its headers could not be read: a number that is none, so that it is a dead letter, with this reason."""

_METHOD_FRAME = b"\x01"
_HEADER_FRAME = 2
_FRAME = struct.Struct(">BHL")
_HEADER = struct.Struct(">HHQ")


class Connection(SelectConnection):  # type: ignore[misc]  # pika says nothing of its types
    """
    A connection that survives headers which pika cannot read, hears why TLS was refused, and sends at once.

    Headers: a time beyond the year 9999, tables nested too deep.
    pika ends the connection on them, so that the message would come again, and end it again, for ever.
    Here such a message has a key and a reason, and nothing else of its headers.

    TLS 1.3: a broker judges our certificate when its half of the handshake is over, and our first bytes meet a closed socket.
    pika reports those; why it was closed was said before, and still waits to be read.

    Sending: pika waits for the loop to say that a socket takes bytes, which it nearly always does.
    That is one more turn of the loop, and two system calls, between each job and the next.
    """

    def _read_frame(self) -> Any:
        inner: Any = super()
        try:
            return inner._read_frame()  # noqa: SLF001
        except Exception as error:
            buffer: bytes = inner.__self__._frame_buffer  # noqa: SLF001
            kind, channel, size = _FRAME.unpack_from(buffer)
            end = _FRAME.size + size + 1
            if kind != _HEADER_FRAME or buffer[end - 1] != spec.FRAME_END:
                raise
            _, _, body_size = _HEADER.unpack_from(buffer, _FRAME.size)
            key = hashlib.sha256(buffer[_FRAME.size : end]).hexdigest()[:32]
            properties = spec.BasicProperties(
                headers={UNREADABLE: f"unreadable: {error}"}, message_id=f"unreadable-{key}"
            )
            return end, frame.Header(channel, body_size, properties)

    def _adapter_emit_data(self, data: bytes) -> None:
        inner: Any = super()
        transport: Any = inner.__self__._transport  # noqa: SLF001
        active = transport._state == transport._STATE_ACTIVE  # noqa: SLF001
        if active and type(transport._sock) is socket.socket and not transport._tx_buffers:  # noqa: SLF001
            with suppress(OSError):  # whatever is wrong, pika meets it again and knows what to do
                data = data[transport._sock.send(data) :]  # noqa: SLF001
        if data:
            inner._adapter_emit_data(data)  # noqa: SLF001

    def _proto_connection_lost(self, error: BaseException | None) -> None:
        inner: Any = super()
        transport: Any = inner.__self__._transport  # noqa: SLF001
        heard = _last_alert(transport._sock) if isinstance(error, OSError) and transport is not None else None  # noqa: SLF001
        inner._proto_connection_lost(heard or error)  # noqa: SLF001


def _last_alert(connected: object) -> ssl.SSLError | None:
    """What a peer that has closed its end of a TLS connection said last, where that was an alert."""
    if isinstance(connected, ssl.SSLSocket):
        try:
            connected.recv(1)  # it does not block
        except ssl.SSLError as error:
            return error if "ALERT" in (error.reason or "") else None
        except OSError:
            return None
    return None


def abort(connection: SelectConnection, error: Exception) -> None:
    """
    End a connection without asking the broker, who may not answer; `on_close` or `on_open_error` is called with the error.

    pika's own `close()` waits for an answer, for ever if need be; its heartbeat checker ends connections as this does.
    """
    inner: Any = connection
    inner._terminate_stream(error)  # noqa: SLF001


def cancel(channel: Channel, consumer_tag: str, cancelled: Callable[[], None]) -> None:
    """
    `basic.cancel`, with deliveries on their way still handed to the consumer's callback until `cancelled` is called.

    pika's `basic_cancel` rejects them, and a rejected message comes one step nearer to the queue's delivery limit.
    """
    inner: Any = channel

    def answered(_: object) -> None:
        inner._cleanup_consumer_ref(consumer_tag)  # noqa: SLF001
        cancelled()

    inner._rpc(  # noqa: SLF001
        spec.Basic.Cancel(consumer_tag=consumer_tag), answered, [(spec.Basic.CancelOk, {"consumer_tag": consumer_tag})]
    )


def spoke_something_else(connection: SelectConnection) -> bool:
    """
    Whether the peer of a connection that failed while it opened said something that was not AMQP 0-9-1.

    An AMQP broker's first byte is that of a method frame; another version's header is taken from the buffer and counted as bytes.
    Asked in `on_open_error`: pika forgets both right after it.
    """
    inner: Any = connection
    return bool(inner.bytes_received) and inner.frames_received == 0 and inner._frame_buffer[:1] != _METHOD_FRAME  # noqa: SLF001
