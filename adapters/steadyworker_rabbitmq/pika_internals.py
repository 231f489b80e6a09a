"""
Every use of pika's private parts, each with its reason. A developer checks all of them against each new version of pika.

The code is written for pika 1.4.1 to 1.4.4.
The code serves the I/O thread, and the short blocking connections of `connection.visit`.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pika import BlockingConnection, SelectConnection, data, frame, spec
from pika.channel import Channel

UNREADABLE = "sw-hop"
"""
The header for the reason why the adapter cannot read a message's other headers.

The runner expects a number in this header.
If the header is a text, the runner makes the message a dead letter, with the text as the reason.
"""

_METHOD_FRAME = b"\x01"
_HEADER_FRAME = 2
_FRAME = struct.Struct(">BHL")
_HEADER = struct.Struct(">HHQ")
_FLAGS, _SIZE = struct.Struct(">H"), struct.Struct(">I")
_FLOATS = {b"f": struct.Struct(">f"), b"d": struct.Struct(">d")}


class PikaConnection(SelectConnection):  # type: ignore[misc]  # pika has no type hints
    """
    A connection that survives unreadable headers, reports the cause of a TLS refusal, and sends at once.

    Headers: pika ends the connection if it cannot read a header (a time beyond the year 9999, tables nested too deep).
    The broker would deliver the message again, and the message would end each later connection too.
    This class gives such a message a key and a reason, and leaves out the message's other headers.
    pika also cuts each float to a whole number (19.99 to 19); this class reads floats again, with their fractions.

    TLS 1.3: a broker checks the client's certificate only after the client's half of the handshake.
    If the broker refuses the certificate, the client's first write fails on a closed socket, and pika reports that failed write.
    The TLS alert with the true reason has arrived before, and is still unread; this class reads and reports this alert.

    Sending: pika writes only after the loop reports that the socket accepts bytes, although a socket nearly always accepts bytes.
    This wait costs one more turn of the loop, and two system calls, between each job and the next.
    This class writes bytes at once.
    """

    def _read_frame(self) -> Any:
        inner: Any = super()
        buffer: bytes = inner.__self__._frame_buffer  # noqa: SLF001
        try:
            end, found = inner._read_frame()  # noqa: SLF001
            if isinstance(found, frame.Header) and found.properties.headers:
                found.properties.headers = _headers(buffer)
            return end, found  # noqa: TRY300 - an error of `_headers` is also an error of unreadable headers
        except Exception as error:
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
            with suppress(OSError):  # pika's own write below gets the same error, and pika handles it
                data = data[transport._sock.send(data) :]  # noqa: SLF001
        if data:
            inner._adapter_emit_data(data)  # noqa: SLF001

    def _proto_connection_lost(self, error: BaseException | None) -> None:
        inner: Any = super()
        transport: Any = inner.__self__._transport  # noqa: SLF001
        alert = _last_alert(transport._sock) if isinstance(error, OSError) and transport is not None else None  # noqa: SLF001
        inner._proto_connection_lost(alert or error)  # noqa: SLF001


def _headers(header_frame: bytes) -> dict[str, Any]:
    """Return the headers in the bytes of a header frame that pika has found valid."""
    offset = _FRAME.size + _HEADER.size
    (flags,) = _FLAGS.unpack_from(header_frame, offset)
    offset += _FLAGS.size
    for flag in (spec.BasicProperties.FLAG_CONTENT_TYPE, spec.BasicProperties.FLAG_CONTENT_ENCODING):
        if flags & flag:  # this property is a short text before the headers
            offset += 1 + header_frame[offset]
    return _table(header_frame, offset)[0]


def _table(encoded: bytes, offset: int) -> tuple[dict[str, Any], int]:
    table: dict[str, Any] = {}
    offset, end = _extent(encoded, offset)
    while offset < end:
        name, offset = data.decode_short_string(encoded, offset)
        table[name], offset = _value(encoded, offset)
    return table, offset


def _value(encoded: bytes, offset: int) -> tuple[Any, int]:
    """Return the value that pika would return; if the value is a float, return it with its fraction."""
    match encoded[offset : offset + 1]:
        case b"f" | b"d" as kind:
            number = _FLOATS[kind]
            return number.unpack_from(encoded, offset + 1)[0], offset + 1 + number.size
        case b"F":
            return _table(encoded, offset + 1)
        case b"A":
            values = []
            offset, end = _extent(encoded, offset + 1)
            while offset < end:
                value, offset = _value(encoded, offset)
                values.append(value)
            return values, offset
        case _:
            other: tuple[Any, int] = data.decode_value(encoded, offset)
            return other


def _extent(encoded: bytes, offset: int) -> tuple[int, int]:
    """Return the offsets of the beginning and the end of the content of a table or a list."""
    (size,) = _SIZE.unpack_from(encoded, offset)
    return offset + _SIZE.size, offset + _SIZE.size + size


def _last_alert(connected: object) -> ssl.SSLError | None:
    """Return the last TLS alert of a peer that closed the connection, or None."""
    if isinstance(connected, ssl.SSLSocket):
        try:
            connected.recv(1)  # this read does not block
        except ssl.SSLError as error:
            return error if "ALERT" in (error.reason or "") else None
        except OSError:
            return None
    return None


def received(connection: BlockingConnection) -> int:
    """Return how many bytes the broker has sent; pika itself reports a message only when the whole message has arrived."""
    inner: Any = connection
    count: int = inner._impl.bytes_received  # noqa: SLF001
    return count


def abort(connection: SelectConnection, error: Exception) -> None:
    """
    End a connection without waiting for the broker, which might not reply.

    pika then calls `on_close` or `on_open_error` with the error.
    pika's own `close()` would wait for a reply without limit.
    pika's heartbeat checker ends connections in the same way as this function.
    """
    inner: Any = connection
    inner._terminate_stream(error)  # noqa: SLF001


def cancel(channel: Channel, consumer_tag: str, cancelled: Callable[[], None]) -> None:
    """
    Cancel a consumer. When the broker has replied, pika calls `cancelled`.

    Until then, the consumer's callback receives deliveries.
    pika's own `basic_cancel` would reject these deliveries, and a rejected message counts towards the queue's delivery limit.
    """
    inner: Any = channel

    def answered(_: object) -> None:
        inner._cleanup_consumer_ref(consumer_tag)  # noqa: SLF001
        cancelled()

    inner._rpc(  # noqa: SLF001
        spec.Basic.Cancel(consumer_tag=consumer_tag), answered, [(spec.Basic.CancelOk, {"consumer_tag": consumer_tag})]
    )


def sent_something_else(connection: SelectConnection) -> bool:
    """
    Return whether a connection failed to open because the peer sent something that is not AMQP 0-9-1.

    An AMQP broker's first byte is the first byte of a method frame.
    A broker of another AMQP version replies with a header; pika removes this header from the buffer, but counts the header's bytes.
    Call this function in `on_open_error`, because pika clears the buffer and the count right after that callback.
    """
    inner: Any = connection
    return bool(inner.bytes_received) and inner.frames_received == 0 and inner._frame_buffer[:1] != _METHOD_FRAME  # noqa: SLF001
