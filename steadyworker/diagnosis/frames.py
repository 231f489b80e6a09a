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
class Flaw(Item):
    """Bytes that break the protocol: the kind, a sentence, and at most `LONGEST_RAW` of the bytes."""

    kind: str
    what: str
    raw: bytes
