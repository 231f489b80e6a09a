"""
Conversion between RocketMQ's messages and SteadyWorker's headers; the same for both client libraries.

A message has a body, a tag, keys and properties, which are text.
The header `TAGS` has the message's tag. The header `KEYS` has the message's keys, separated by blanks. All other headers are properties.

- RocketMQ reserves some names, and cannot express some texts: an empty value, a control character.
  Such a header travels in the property `sw-rocketmq`, as JSON: `{"headers": {name: text}}`. So the header arrives as it was sent.
- The broker gives a copy a new id and time. So this property also has the id and the time of the original.
- An empty body travels as one NUL byte, which a property marks, because both client libraries refuse an empty body.
- A body that cannot be decompressed stays unchanged, and the header `sw-compression` names the compression. The message becomes a dead letter.
- Without a header `KEYS`, the job's key becomes the message's key, so that an operator can find the message in RocketMQ's own tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from steadyworker.adapter import Delivery, OutgoingMessage, Redelivered, Target
from steadyworker.network.headers import carried, restored
from steadyworker_rocketmq.names import (
    PROXY_PROPERTIES,
    PROXY_PROPERTIES_BYTES,
    is_system_property,
    problem_of_key,
    problem_of_tag,
)
from steadyworker_rocketmq.stored import Stored

EXACT, COMPRESSION = "sw-rocketmq", "sw-compression"
TAGS, KEYS = "TAGS", "KEYS"
_JOB_KEY = "sw-job-key"

HEADERS_BYTES = PROXY_PROPERTIES_BYTES - 512
"""The limit for all headers of a message. It is below a proxy's limit, because a later copy adds the id and the time of the original."""

_TIMES, _LATEST = ("at", "due"), 1e11
"""The times in `sw-rocketmq`, in seconds since 1970; the limit is the year 5138, and a larger number cannot be a time."""

_EMPTY = b"\0"
_UNSENDABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class WireMessage:
    """
    A message in a form that both client libraries can express.

    Attributes:
        body: The body, never empty.
        properties: The user's properties, with `sw-rocketmq`.
        tag: The tag, or None.
        keys: The keys.
    """

    body: bytes
    properties: Mapping[str, str]
    tag: str | None = None
    keys: tuple[str, ...] = ()

    def size(self) -> int:
        """Return the size of properties, tag and keys in bytes, by the proxy's way to count."""
        texts = (*self.properties, *self.properties.values(), self.tag or "", *self.keys)
        return sum(len(text.encode()) for text in texts)

    @property
    def original_id(self) -> str | None:
        """The id of the original if this message is a copy; otherwise None."""
        id_ = _packed(self.properties).get("id")
        return id_ if isinstance(id_, str) and id_ else None

    @property
    def key(self) -> str:
        """The key of the message's job. If there is no such key, the message's keys; if there are no keys, an empty text."""
        return self.properties.get(_JOB_KEY) or " ".join(self.keys)

    @property
    def due(self) -> float:
        """The time (seconds since 1970) at which the message becomes work; 0 if it is work at once."""
        due = _packed(self.properties).get("due")
        return float(due) if isinstance(due, int | float) else 0.0

    def copied(self, id_: str, sent_at: float | None) -> WireMessage:
        """
        Return a copy of the message that a proxy accepts. The copy has the id and the time of the original.

        A proxy can deliver another application's message, but refuse a copy of this message that a client sends.
        Such a message has empty texts, control characters, or too many headers.
        """
        delivery = delivery_of(0, "", "", self, id_, Redelivered.UNKNOWN, sent_at)
        wire = carried_wire(OutgoingMessage(Target.WORK, delivery.body, delivery.headers))
        packed = {"id": delivery.message_id, "at": delivery.sent_at} | _packed(wire.properties)
        return replace(wire, properties={**wire.properties, EXACT: json.dumps(packed)})

    def delayed(self, due: float) -> WireMessage:
        """Return the same message with the time at which it becomes work."""
        packed = _packed(self.properties) | {"due": due}
        return replace(self, properties={**self.properties, EXACT: json.dumps(packed)})


def wire_of(message: OutgoingMessage) -> WireMessage:
    """Return the message in a form that RocketMQ can express, at any size."""
    headers = dict(message.headers)
    tag = headers.pop(TAGS) if TAGS in headers and problem_of_tag(headers[TAGS]) is None else None
    keys = _keys(headers.get(KEYS, headers.get(_JOB_KEY, "")), one=KEYS not in headers)
    if " ".join(keys) == headers.get(KEYS):
        del headers[KEYS]  # Otherwise the header travels unchanged, because a library returns the keys in no order.
    properties: dict[str, str] = {}
    unsent: dict[str, str] = {}
    for name, text in headers.items():
        sent = properties if _travels(name, text) and len(properties) < PROXY_PROPERTIES - 1 else unsent
        sent[name] = text
    packed = {"headers": unsent, "id": message.message_id, "empty": not message.body}
    if packed := {name: value for name, value in packed.items() if value}:
        properties[EXACT] = json.dumps(packed)
    return WireMessage(message.body or _EMPTY, properties, tag, keys)


def fits(wire: WireMessage) -> bool:
    """Return whether the broker and a proxy accept these properties, including the properties that a later copy adds."""
    return len(wire.properties) <= PROXY_PROPERTIES and wire.size() <= HEADERS_BYTES


def carried_wire(message: OutgoingMessage) -> WireMessage:
    """Return the message in a form that the broker accepts. Headers that are too large for the properties are appended to the body."""

    def fit(headers: Mapping[str, str]) -> bool:
        return fits(wire_of(replace(message, headers=headers)))

    headers, body = carried(message.headers, message.body, fit)
    return wire_of(replace(message, headers=headers, body=body))


def delivery_of(
    epoch: int,
    id_: str,
    queue: str,
    wire: WireMessage,
    message_id: str,
    redelivered: Redelivered,
    sent_at: float | None,
) -> Delivery:
    """Convert a message to a Delivery. Never raise, because the broker would deliver the message again without end."""
    packed = _packed(wire.properties)
    headers = {name: text for name, text in wire.properties.items() if name != EXACT and not is_system_property(name)}
    if wire.tag:
        headers[TAGS] = wire.tag
    keys = " ".join(sorted(wire.keys))
    if keys and keys != wire.properties.get(_JOB_KEY):
        headers[KEYS] = keys
    unsent = packed.get("headers")
    if isinstance(unsent, dict):
        headers |= {name: text for name, text in unsent.items() if isinstance(text, str) and name != EXACT}
    every, body = restored(headers, b"" if packed.get("empty") is True and wire.body == _EMPTY else wire.body)
    at = packed.get("at", sent_at)
    compression = every.get(COMPRESSION)
    return Delivery(
        epoch=epoch,
        id=id_,
        queue=queue,
        body=body,
        headers=every,
        message_id=wire.original_id or message_id,
        redelivered=redelivered,
        sent_at=float(at) if isinstance(at, int | float) else sent_at,
        unreadable=None if compression is None else _unreadable(compression),
    )


def wire_of_stored(stored: Stored) -> WireMessage:
    """Convert a message that a broker has stored."""
    keys = tuple(key for key in stored.properties.get(KEYS, "").split(" ") if key)
    properties = {**stored.properties, **({COMPRESSION: stored.compression} if stored.compression else {})}
    return WireMessage(stored.body, properties, stored.properties.get(TAGS) or None, keys)


def _unreadable(compression: str) -> str:
    return f"expected a body without compression, or compressed by zlib and whole, got one with {compression[:40]!r}"


def _keys(text: str, *, one: bool) -> tuple[str, ...]:
    """Return the keys in this text, sorted; empty if one of them is invalid."""
    keys = sorted({text} if one else {*text.split(" ")})
    return tuple(keys) if all(problem_of_key(key) is None for key in keys) else ()


def _travels(name: str, text: str) -> bool:
    """Return whether a property can have this name and text unchanged."""
    if not name.strip() or not text.strip() or name == EXACT or is_system_property(name):
        return False
    return _UNSENDABLE.search(name) is None and _UNSENDABLE.search(text) is None


def _packed(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the table of `sw-rocketmq`; empty if this module did not write the text."""
    try:
        found = json.loads(properties.get(EXACT, "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if name not in _TIMES or _is_time(value)}


def _is_time(value: object) -> bool:
    """Return whether the value is a time. Python's JSON also reads Infinity, and whole numbers that are too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LATEST
