"""
The decoder of the messages that a broker returns for a pull. The bytes have the layout of the broker's commit log.

This layout is in `MessageDecoder` and `MessageSysFlag` of RocketMQ 4.9.7 and 5.4.0. All numbers are big-endian.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from steadyworker.network.errors import Foreign

LARGEST_BODY = 1 << 24
"""The largest decompressed body in bytes, so that a small message cannot fill the memory. It is also the largest frame."""

_MAGIC, _MAGIC_2 = 0xDAA320A7, 0xDAA320AB
"""The marks of the two layouts. The topic's length has one byte in the first layout, and two bytes in the second."""

_COMPRESSED, _BORN_HOST_V6, _STORE_HOST_V6 = 0x1, 0x10, 0x20
_COMPRESSION, _ZLIB = 0x700, "zlib"
_COMPRESSIONS = {0x000: _ZLIB, 0x100: "lz4", 0x200: "zstd", 0x300: _ZLIB}

_HEAD = struct.Struct(
    ">IIIiiqqiq"
)  # size, magic, checksum, queue, flag, offset, place in the commit log, sysFlag, born at
_TIMES = struct.Struct(">iq")  # times consumed again, place of the prepared transaction
_LONG, _INT, _SHORT = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">H")

_PAIR, _END = "\x01", "\x02"
"""The separators of the properties: between name and text, and after each pair."""


@dataclass(frozen=True, slots=True)
class Stored:
    """
    A message in the form that a broker stores.

    Attributes:
        id: The id from the producer (property `UNIQ_KEY`). Without this property, the message's place in the broker's store, and the time of storing.
            The time is necessary, because a broker that is replaced at the same address uses the places again.
        topic: The topic that has the message, such as `%DLQ%group`.
        queue: The queue's number.
        offset: The message's place in the queue.
        body: The body, decompressed if `compression` is empty.
        compression: Empty, or the compression that `body` still has. This module decompresses only valid zlib.
        properties: The properties, including system properties.
        born_at: The time at which the producer sent the message, in seconds since 1970.
        stored_at: The time at which the broker stored the message, in seconds since 1970.
        reconsume_times: The number of times that a consumer has sent the message back.
        born_host: The producer's address and port.
        log_offset: The message's place in the broker's store, which is larger for each later message of this broker.
    """

    id: str
    topic: str
    queue: int
    offset: int
    body: bytes = field(repr=False)
    compression: str
    properties: Mapping[str, str] = field(repr=False)
    born_at: float
    stored_at: float
    reconsume_times: int
    born_host: str
    log_offset: int = 0


def stored_messages(data: bytes) -> list[Stored]:
    """Decode the body of a reply to a pull; raises Foreign if the body is something else."""
    messages: list[Stored] = []
    place = 0
    while place < len(data):
        try:
            message, place = _message(data, place)
        except (struct.error, ValueError) as error:
            raise Foreign(f"a stored message that cannot be read, at byte {place} of {len(data)}") from error
        messages.append(message)
    return messages


def properties_of(text: str) -> dict[str, str]:
    """Return the properties in this text. Leave out parts that are not a name and a text, in the same way as RocketMQ's own clients."""
    pairs = (part.partition(_PAIR) for part in text.split(_END))
    return {name: value for name, separator, value in pairs if separator}


def text_of(properties: Mapping[str, str]) -> str:
    """Return the properties as text; raises ValueError if a name or text contains a separator."""
    for name, value in properties.items():
        if not name or {_PAIR, _END} & {*name, *value}:
            raise ValueError(f"Expected a property without \\x01 and \\x02, got {name!r}: encode its text.")
    return "".join(f"{name}{_PAIR}{value}{_END}" for name, value in properties.items())


def _message(data: bytes, start: int) -> tuple[Stored, int]:
    """Decode the message that begins at `start`; return the message, and the position of the next message."""
    size, magic, _, queue, _, offset, log_offset, flags, born_at = _HEAD.unpack_from(data, start)
    if magic not in (_MAGIC, _MAGIC_2) or not _HEAD.size < size <= len(data) - start:
        raise ValueError
    reader = _MessageReader(data, start + _HEAD.size, start + size)
    born_host, _ = reader.host(v6=bool(flags & _BORN_HOST_V6))
    (stored_at,) = reader.unpack(_LONG)
    _, store_host = reader.host(v6=bool(flags & _STORE_HOST_V6))
    reconsume_times, _ = reader.unpack(_TIMES)
    body = reader.read(*reader.unpack(_INT))
    topic = reader.read(*(reader.unpack(_SHORT) if magic == _MAGIC_2 else reader.read(1)))
    properties = properties_of(reader.read(*reader.unpack(_SHORT)).decode("utf-8", "replace"))
    body, compression = _decompressed(body, flags)
    return Stored(
        id=properties.get("UNIQ_KEY") or f"{store_host.hex()}{log_offset & ~(-1 << 64):016x}".upper() + f"-{stored_at}",
        topic=topic.decode("utf-8", "replace"),
        queue=queue,
        offset=offset,
        body=body,
        compression=compression,
        properties=properties,
        born_at=born_at / 1000,
        stored_at=stored_at / 1000,
        reconsume_times=reconsume_times,
        born_host=born_host,
        log_offset=log_offset,
    ), start + size


@dataclass(slots=True)
class _MessageReader:
    """The unread rest of one message. Every method raises ValueError or struct.error if the rest is too short."""

    data: bytes
    place: int
    end: int

    def read(self, count: int) -> bytes:
        if not 0 <= count <= self.end - self.place:
            raise ValueError
        self.place += count
        return self.data[self.place - count : self.place]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.read(form.size))

    def host(self, *, v6: bool) -> tuple[str, bytes]:
        """Return a host with its port, and its bytes."""
        raw = self.read(20 if v6 else 8)
        host = socket.inet_ntop(socket.AF_INET6 if v6 else socket.AF_INET, raw[:-4])
        return f"[{host}]:{_INT.unpack(raw[-4:])[0]}" if v6 else f"{host}:{_INT.unpack(raw[-4:])[0]}", raw


def _decompressed(body: bytes, flags: int) -> tuple[bytes, str]:
    """Return the body, and the compression that it still has. A body that is invalid or too large stays unchanged."""
    if not flags & _COMPRESSED:
        return body, ""
    compression = _COMPRESSIONS.get(flags & _COMPRESSION, "an unknown compression")
    if compression != _ZLIB:
        return body, compression
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(body, LARGEST_BODY)
    except zlib.error:
        return body, _ZLIB
    return (plain, "") if stream.eof else (body, _ZLIB)
