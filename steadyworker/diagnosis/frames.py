"""
The items that a reader of one direction of a connection returns.

Every item has a place: the offset of its first byte in this direction, and its size in bytes.
A `Flaw` represents bytes that break the protocol.
After some flaws, the reader can read the next frame; an example is a value of an unknown type in a complete frame.
Such a flaw has the place of its frame; if the frame could be read, the frame follows the flaw as a separate item.
After all other flaws, the reader is blind: it no longer knows where a frame begins, and returns nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FLAWS: dict[str, str] = {
    "http": "HTTP where this protocol was expected",
    "tls": "TLS where this protocol was expected without it",
    "stomp": "STOMP where another protocol was expected",
    "amqp": "AMQP where another protocol was expected",
    "amqp-1.0": "the header of AMQP 1.0 where that of AMQP 0-9-1 was expected",
    "frame-too-large": "a frame that is larger than the agreed maximum",
    "frame-end": "another byte where the frame's end octet was expected",
    "frame-type": "a frame of a type that the protocol does not have",
    "bad-method": "a method that the protocol does not have, or with arguments that do not fit",
    "bad-table": "a table of which the lengths or the types of values are wrong",
    "bad-text": "a name that is no valid UTF-8",
    "interleaved": "frames of two messages mixed on one channel",
    "cut": "the end of the stream in the middle of a frame",
    "bad-frame": "a frame that breaks the rules of the protocol",
    "bad-escape": "an escape sequence that STOMP does not have",
    "unparsable": "bytes that could not be read",
}
"""The kinds of flaws, each with a text that names the bytes that were found."""

LONGEST_RAW = 64
"""The largest number of bytes that a `Flaw` shows."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item in one direction of a connection: the offset of its first byte, and its size in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ProtocolHeader(Item):
    """The 8 bytes that begin with `AMQP`; `second` is true if they are not the first bytes of this direction."""

    raw: bytes
    second: bool = False


@dataclass(frozen=True, slots=True)
class Method(Item):
    """A method with its arguments, such as `Basic.Deliver`."""

    channel: int
    name: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ContentHeader(Item):
    """The header of a message: the size of its body, and its properties."""

    channel: int
    body_size: int
    properties: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class BodyFrame(Item):
    """A part of a message's body; its bytes are not kept."""

    channel: int
    length: int


@dataclass(frozen=True, slots=True)
class Heartbeat(Item):
    """
    A heartbeat frame of AMQP, or one or more line ends between two frames of STOMP.

    Brokers also write a line end directly after each STOMP frame.
    It is an item of this class, too; by its offset, a conversation recognises it, and does not count it as a heartbeat.
    """

    channel: int = 0


@dataclass(frozen=True, slots=True)
class StompFrame(Item):
    """A STOMP frame with its headers and the size of its body; if a header is repeated, its first value counts."""

    command: str
    headers: Mapping[str, str]
    body_size: int


@dataclass(frozen=True, slots=True)
class RemotingFrame(Item):
    """
    A frame of RocketMQ's remoting protocol: a request, or the reply to the request with the same `opaque`.

    `code` is the code of the request or of the result; `language` and `version` are the sender's.
    `fields` has the fields that the reader knows.
    """

    code: int
    opaque: int
    flag: int
    language: str
    version: int
    remark: str
    fields: Mapping[str, str]
    body_size: int


@dataclass(frozen=True, slots=True)
class Flaw(Item):
    """Bytes that break the protocol: the kind (a key of `FLAWS`), a sentence, and at most `LONGEST_RAW` of the bytes."""

    kind: str
    what: str
    raw: bytes
