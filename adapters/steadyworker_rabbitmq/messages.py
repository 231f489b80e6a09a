"""
AMQP properties to our headers, and back.

Our headers are text; AMQP's have types, and a message has properties beside them.
Both survive a message's way through a worker (retry, follow, dead letter, replay):

- Each header is shown as text: numbers, booleans and lists as JSON, bytes as the UTF-8 that they should be.
- What text cannot say travels along in one more header, `sw-amqp`, from the delivery to the copy, and never reaches the broker:
  the exact value of each header that is no text, and the properties in `_KEPT`.
  A header whose text was changed on the way is published as that text.
- A text that is no UTF-8 (a name, an id, a property) is shown with its bytes in hexadecimal (`backslashreplace`), and travels on so;
  a message whose headers cannot be shown at all has nothing but the reason, so that it is a dead letter.
- What the broker wrote for itself (`x-death` and its like) is shown, and is not published again:
  4.x believes an `x-delivery-count` of a client's, and what it counts is not what we count.
- `CC` and `BCC` are not published either, or a retry would go to other queues as well;
  nor `expiration`, which would drop a copy that waits, nor `user_id`, which names who published first.

Floats have no way back in pika and stay text.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pika.exceptions import AMQPError
from pika.spec import Basic, BasicProperties

from steadyworker.adapter import Delivery, OutgoingMessage, Redelivered
from steadyworker_rabbitmq.pika_internals import UNREADABLE

EXACT = "sw-amqp"
HEADER_BYTES = 64 << 10
"""All properties and headers of a new message together; they travel in one frame, and grow on the way."""

_KEPT = ("content_type", "content_encoding", "priority", "correlation_id", "reply_to", "type", "app_id")
_PERSISTENT = 2
_OVERHEAD = 64
"""Bytes of a header frame beside the properties: 7 of the frame, 1 of its end, 12 of the class and the body's size; with room."""

_SHORT_STRING = 255
_BROKERS_OWN = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count", "x-opt-")
_NEVER = ("CC", "BCC", EXACT)
_OURS, _WORDY = "sw-", ("sw-reason", "sw-error")
_TABLE, _BYTES, _TIME, _DECIMAL = "table", "bytes", "time", "decimal"


def delivery_of(
    epoch: int, queue: str, method: Basic.Deliver | Basic.GetOk, properties: BasicProperties, body: bytes
) -> Delivery:
    """What the broker handed over, in our words; whatever it is, it raises nothing: it would come again for ever."""
    try:
        shown = _shown(properties)
    except (TypeError, ValueError, RecursionError) as error:
        shown = {UNREADABLE: f"unreadable: {type(error).__name__}"}
    return Delivery(
        epoch=epoch,
        id=str(method.delivery_tag),
        queue=queue,
        body=body,
        headers=shown,
        message_id=_plain(properties.message_id) or None,
        redelivered=Redelivered.YES if method.redelivered else Redelivered.NO,
        sent_at=None if properties.timestamp is None else float(properties.timestamp),
    )


def _shown(properties: BasicProperties) -> dict[str, str]:
    headers = {
        name: value
        for given, value in (properties.headers or {}).items()
        if (name := _plain(given)) not in _NEVER and fits_id(name)
    }
    shown = {name: _text(value) for name, value in headers.items()}
    exact = {name: _packed(value) for name, value in headers.items() if not isinstance(value, str)}
    given = {name: _plain(value) for name in _KEPT if (value := getattr(properties, name)) is not None}
    kept = {name: value for name, value in given.items() if not isinstance(value, str) or fits_id(value)}
    if exact or kept:
        shown[EXACT] = json.dumps({"headers": exact, "properties": kept})
    return shown


def _plain(value: Any) -> Any:
    """The same without bytes; pika answers them in the place of a text that is no UTF-8."""
    match value:
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {_plain(name): _plain(each) for name, each in value.items()}
        case _:
            return value


def properties_of(message: OutgoingMessage, message_id: str, now: float) -> BasicProperties:
    """The properties that a copy is published with: persistent, sent now."""
    exact, kept = _exact(message.headers.get(EXACT))
    headers: dict[str, Any] = {
        name: exact[name] if name in exact and _text(exact[name]) == text else text
        for name, text in message.headers.items()
        if name not in _NEVER and not name.startswith(_BROKERS_OWN)
    }
    return BasicProperties(
        headers=headers, delivery_mode=_PERSISTENT, message_id=message_id, timestamp=int(now), **kept
    )


def size_of(properties: BasicProperties) -> int:
    """
    Bytes of the header frame; it must fit into one frame.

    Raises ValueError for what AMQP cannot say: a name of over 255 bytes, a lone surrogate.
    """
    try:
        return sum(map(len, properties.encode())) + _OVERHEAD
    except AMQPError as error:
        raise ValueError(
            f"Expected header names of at most {_SHORT_STRING} bytes, got: {error}: shorten them."
        ) from error


def fitted(properties: BasicProperties, limit: int) -> BasicProperties:
    """
    The same, with its longest texts cut until it fits into a frame: a copy is never refused for what it grew by.

    Where names alone are too long, the longest of those headers goes; ours stay, for they say which job it is.
    """
    headers: dict[str, Any] = dict(properties.headers or {})
    theirs = {name for name in headers if not name.startswith(_OURS) or name in _WORDY}
    while theirs and size_of(properties) > limit:
        longest = max(theirs, key=lambda name: len(_text(headers[name])))
        if text := _text(headers[longest]):
            headers[longest] = text[: len(text) // 2]
        else:
            theirs.remove(longest := max(theirs, key=len))
            del headers[longest]
        properties.headers = headers
    return properties


def fits_id(message_id: str) -> bool:
    """Whether this can be an AMQP message id."""
    return len(message_id.encode("utf-8", "surrogatepass")) <= _SHORT_STRING


def _text(value: object) -> str:  # noqa: PLR0911 - one case per type
    match value:
        case str():
            return value
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case None:
            return ""
        case bool() | int():
            return json.dumps(value)
        case list() | dict():
            return json.dumps(_plain(value), default=_text)
        case datetime():
            return value.isoformat()
        case _:
            return str(value)


def _packed(value: object) -> object:  # noqa: PLR0911 - one case per type
    """As JSON that says which type it was."""
    match value:
        case bytes():
            return {_BYTES: base64.b64encode(value).decode("ascii")}
        case datetime():
            return {_TIME: int(value.timestamp())}
        case Decimal():
            return {_DECIMAL: str(value)}
        case list():
            return [_packed(each) for each in value]
        case dict():
            return {_TABLE: {_plain(name): _packed(each) for name, each in value.items()}}
        case float():
            return str(value)
        case _:
            return value


def _unpacked(value: Any) -> object:
    match value:
        case {"bytes": str(text)}:
            return base64.b64decode(text)
        case {"time": int(seconds)}:
            return datetime.fromtimestamp(seconds, UTC)
        case {"decimal": str(text)}:
            return Decimal(text)
        case {"table": dict(table)}:
            return {name: _unpacked(each) for name, each in table.items()}
        case list():
            return [_unpacked(each) for each in value]
        case _:
            return value


def _exact(text: str | None) -> tuple[Mapping[str, object], Mapping[str, Any]]:
    """What `delivery_of` wrote; nothing for what somebody else did."""
    try:
        found = json.loads(text or "{}")
        headers = {name: _unpacked(value) for name, value in found.get("headers", {}).items()}
        return headers, {name: value for name, value in found.get("properties", {}).items() if name in _KEPT}
    except (ValueError, ArithmeticError, AttributeError, TypeError, binascii.Error, OverflowError, OSError):
        return {}, {}
