"""
Conversion between AMQP properties and SteadyWorker's headers.

SteadyWorker's headers are text, but AMQP headers have types, and an AMQP message also has properties.
Types and properties survive when a worker publishes the message again (retry, deferral, dead letter, replay):

- A Delivery shows each header as text: numbers, booleans and lists become JSON, and bytes are decoded as UTF-8.
- A Delivery has one more header, `sw-amqp`, which has the values that text cannot express, for the next copy.
  `sw-amqp` has the properties in `_KEPT`, and the exact value of each sender's header that is not text.
  The adapter never publishes `sw-amqp`.
  If the text of a header has changed since the delivery, the adapter publishes the new text.
- If a name, an id or a property has bytes that are not UTF-8, a Delivery shows these bytes in hexadecimal (`backslashreplace`).
  The adapter then publishes the text in that form.
- If pika cannot read the headers at all, the only header is `sw-hop`, with the reason.
  The runner makes such a message a dead letter, because a hop must be a number.
- A Delivery shows the headers that the broker adds (`x-death` and similar), but the adapter does not publish them again.
  RabbitMQ 4.x would trust an `x-delivery-count` from the adapter, although the broker's own count differs.
- The adapter does not publish `CC` and `BCC` again, because they would send a retry to other queues too.
- The adapter does not publish the properties `expiration` and `user_id` again.
  `expiration` would drop a waiting copy.
  `user_id` names the first publisher, so RabbitMQ would refuse the copy if another user publishes it.

The adapter publishes floats as text, because pika cannot encode them; `pika_internals` makes pika read floats without rounding.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pika.exceptions import AMQPError
from pika.spec import Basic, BasicProperties

from steadyworker.adapter import Delivery, OutgoingMessage, Redelivered
from steadyworker.network.headers import carried as carried_headers
from steadyworker.network.headers import encoding_of, restored
from steadyworker_rabbitmq.pika_internals import UNREADABLE
from steadyworker_rabbitmq.topology import work_queue_of

EXACT = "sw-amqp"
HEADER_BYTES = 64 << 10
"""
The largest size in bytes of a new message's properties and headers.

They must fit into one frame, and each later copy adds some bytes.
"""

_KEPT = ("content_type", "content_encoding", "priority", "correlation_id", "reply_to", "type", "app_id")
_PERSISTENT = 2
_OVERHEAD = 64
"""
The bytes of a header frame besides the properties, rounded up to 64.

The frame has 7 bytes for its type, channel and size, 12 for class, weight and body size, and 1 for its end.
"""

_SHORT_STRING = 255
_BROKERS_OWN = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count", "x-opt-")
_NEVER = ("CC", "BCC", EXACT)
_TABLE, _BYTES, _TIME, _DECIMAL = "table", "bytes", "time", "decimal"


def delivery_of(
    epoch: int, queue: str, method: Basic.Deliver | Basic.GetOk, properties: BasicProperties, body: bytes
) -> Delivery:
    """
    Convert a message from the broker to a Delivery.

    This function never raises, because the broker would redeliver the message without end.
    """
    try:
        headers, whole = restored(properties.headers or {}, body, _unpacked)
        shown = _shown(properties, headers)
    except (TypeError, ValueError, RecursionError) as error:
        shown, whole = {UNREADABLE: f"unreadable: {type(error).__name__}"}, body
    return Delivery(
        epoch=epoch,
        id=str(method.delivery_tag),
        queue=queue,
        body=whole,
        headers=shown,
        message_id=_plain(properties.message_id) or None,
        redelivered=Redelivered.YES if method.redelivered else Redelivered.NO,
        sent_at=None if properties.timestamp is None else float(properties.timestamp),
        brokers_own=frozenset(name for name in shown if name.startswith(_BROKERS_OWN)),
        encoding=encoding_of(_plain(properties.content_encoding)),
    )


def _shown(properties: BasicProperties, every: Mapping[Any, Any]) -> dict[str, str]:
    headers = {name: value for given, value in every.items() if (name := _plain(given)) not in _NEVER and fits_id(name)}
    shown = {name: _text(value) for name, value in headers.items()}
    exact = {
        name: _packed(value)
        for name, value in headers.items()
        if not isinstance(value, str) and not name.startswith(_BROKERS_OWN)
    }
    given = {name: _plain(value) for name in _KEPT if (value := getattr(properties, name)) is not None}
    kept = {name: value for name, value in given.items() if not isinstance(value, str) or fits_id(value)}
    if exact or kept:
        shown[EXACT] = json.dumps({"headers": exact, "properties": kept})
    return shown


def _plain(value: Any) -> Any:
    """Return the value, with bytes decoded to text; pika returns bytes if a text is not UTF-8."""
    match value:
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {_plain(name): _plain(each) for name, each in value.items()}
        case _:
            return value


def origin_of(properties: BasicProperties) -> str | None:
    """
    Return the work queue from which the broker moved this dead letter, or None if the broker did not move it.

    The first entry of `x-death` is the broker's last move of the message.
    For a copy whose delay is over, this is the move out of the retry queue; the retry queue's name contains the work queue's name.
    """
    match _plain((properties.headers or {}).get("x-death")):
        case [{"queue": str(queue)}, *_]:
            return work_queue_of(queue)
        case _:
            return None


def properties_of(message: OutgoingMessage, message_id: str, now: float) -> BasicProperties:
    """Return the AMQP properties of this message; they mark the message as persistent, and have the time `now`."""
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
    Return the size in bytes of the header frame for these properties.

    Raises:
        ValueError: AMQP cannot encode the properties: a name is longer than 255 bytes, a text has a lone surrogate, or a number is too large.
    """
    try:
        return sum(map(len, properties.encode())) + _OVERHEAD
    except (AMQPError, struct.error, OverflowError, TypeError, AssertionError) as error:  # pika 1.4 raises all these
        raise ValueError(
            f"Expected header names of at most {_SHORT_STRING} bytes, and values that AMQP has types for, got: {error}: "
            "shorten them."
        ) from error


def carried(properties: BasicProperties, body: bytes, limit: int) -> tuple[BasicProperties, bytes]:
    """
    Return properties that fit into one frame, and the body to publish.

    Headers that do not fit are appended to this body (`network.headers`).
    """

    def fit(headers: Mapping[str, Any]) -> bool:
        properties.headers = headers
        return size_of(properties) <= limit

    properties.headers, body = carried_headers(properties.headers or {}, body, fit, _packed)
    return properties, body


def fits_id(message_id: str) -> bool:
    """Return whether the text fits into an AMQP message id."""
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
    """Return the value as JSON that keeps its type."""
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
    """
    Return the exact headers and properties that `delivery_of` stored in `text`.

    Both are empty if `delivery_of` did not write the text.
    """
    try:
        found = json.loads(text or "{}")
        headers = {name: _unpacked(value) for name, value in found.get("headers", {}).items()}
        return headers, {name: value for name, value in found.get("properties", {}).items() if name in _KEPT}
    except (ValueError, ArithmeticError, AttributeError, TypeError, binascii.Error, OverflowError, OSError):
        return {}, {}
