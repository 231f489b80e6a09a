"""
Conversion between STOMP frames and SteadyWorker's headers.

STOMP headers are text, like SteadyWorker's. But STOMP and the brokers reserve some names, and STOMP cannot express some texts.

- A header with a reserved name, or with such a text, travels in the header `sw-stomp`, as JSON: `{"headers": {name: text}}`.
  So the header arrives as it was sent, and no header of a message can become a part of the frame.
- A foreign sender's own properties (`_PROPERTIES`: correlation id, reply address and similar) appear as headers.
  A Delivery also has them in `sw-stomp`, so that a retry or dead letter has them as properties again.
- Headers that the broker adds (`_AMQ_…`, `original-destination`) appear in a Delivery, but are not published again.
- `priority` appears only if it is not 4, because brokers add the priority 4 to each message without a priority.
- `expires` is not published again, because the broker would drop a copy that waits.
- Classic closes the connection after a header line of more than 10 KiB. So the longest headers of a copy travel at the end of the copy's body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from steadyworker.adapter import Delivery, Headers, OutgoingMessage, Target
from steadyworker.network.headers import carried, encoding_of, restored
from steadyworker_stomp.dialects import Dialect

EXACT = "sw-stomp"
LINE_BYTES = 10_000
"""The largest header line in bytes. Classic's limit is 10 KiB (`maxHeaderLength`), and the difference is for the broker's escapes."""

_MOST_HEADERS = 900
"""The largest number of headers: Classic's limit is 1000, and a broker adds some."""

_FRAME = frozenset(
    {
        *("ack", "browser", "content-length", "destination", "heart-beat", "host", "id", "login", "message"),
        *("message-id", "passcode", "receipt", "receipt-id", "selector", "server", "session", "subscription"),
        *("transaction", "version", "accept-version", "transformation", "transformation-error", "redelivered"),
        *("timestamp", "persistent", "expires", "destination-type", "subscription-type", "amqMessageId"),
        "scheduledJobId",
    }
)
_PROPERTIES = frozenset(
    {"content-type", "correlation-id", "priority", "reply-to", "type", "JMSXGroupID", "JMSXGroupSeq"}
)
_BROKERS_PREFIXES = ("AMQ_", "_AMQ_", "_HQ_", "JMSX", "__AMQ", "JMS")
_BROKERS_OWN = frozenset(
    {"original-destination", "originalExpiration", "originalDeliveryMode", "dlqDeliveryFailureCause"}
)
_HIDDEN = _FRAME | {EXACT}
_PLAIN_NAME = re.compile(r"[!-9;-\[\]-~]+")  # visible ASCII without colon and backslash
_UNSENDABLE = re.compile("[\0\ud800-\udfff]")  # characters that end a frame, or that UTF-8 cannot express
_DELAY = "AMQ_SCHEDULED_DELAY"
_DEFAULT_PRIORITY = ("priority", "4")


def delivery_of(epoch: int, queue: str, dialect: Dialect, headers: Mapping[str, str], body: bytes) -> Delivery:
    """Convert a MESSAGE frame to a Delivery. Never raise, because the broker would deliver the message again without end."""
    every, body = restored(headers, body)
    theirs = {name: text for name, text in every.items() if name not in _HIDDEN and (name, text) != _DEFAULT_PRIORITY}
    packed = _table(every.get(EXACT), "headers")
    properties = {name: text for name, text in theirs.items() if name in _PROPERTIES and name not in packed}
    own = sorted(name for name in theirs if _is_brokers(name) and name not in packed)
    shown = theirs | packed
    if properties or own:
        shown[EXACT] = json.dumps({"properties": properties, "brokers": dict.fromkeys(own, "")})
    return Delivery(
        epoch=epoch,
        id=headers.get("ack", ""),
        queue=queue,
        body=body,
        headers=shown,
        message_id=dialect.message_id(headers),
        redelivered=dialect.redelivered(headers),
        sent_at=sent_at(headers),
        brokers_own=frozenset(own),
        origin=dialect.origin_of(headers),
        unshown=dialect.unshown(headers, body),
        encoding=encoding_of(every.get("content-encoding")),
    )


def frame_headers(message: OutgoingMessage, dialect: Dialect) -> dict[str, str]:
    """Return the headers of the SEND frame for this message, of any size."""
    return {**_content(message.headers), **_orders(message, dialect)}


def frame_of(message: OutgoingMessage, dialect: Dialect) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a SEND frame that the brokers accept. Headers that are too long are at the end of the body."""
    orders = _orders(message, dialect)
    headers, body = carried(_content(message.headers), message.body, lambda some: fits({**some, **orders}))
    return {**headers, **orders}, body


def _content(headers: Headers) -> dict[str, str]:
    """Return the headers of a message in a form that a frame can have."""
    properties = _table(headers.get(EXACT), "properties")
    own = {name for name in _table(headers.get(EXACT), "brokers") if _is_brokers(name)}
    theirs = {name: text for name, text in headers.items() if name != EXACT and name not in own}
    packed = {
        name: text
        for name, text in theirs.items()
        if not _travels(name, text) and not (properties.get(name) == text and _is_property(name, text))
    }
    found = {name: text for name, text in theirs.items() if name not in packed}
    if packed:
        found[EXACT] = json.dumps({"headers": packed})
    return found


def _orders(message: OutgoingMessage, dialect: Dialect) -> Mapping[str, str]:
    """Return the headers that make the broker delay, keep and route a message."""
    if message.to is Target.LATER and message.delay > 0:
        return {_DELAY: str(max(1, round(message.delay * 1000))), **dialect.sent}
    return dialect.sent


def fits(headers: Mapping[str, str]) -> bool:
    """Return whether the brokers accept these headers of a frame."""
    return len(headers) <= _MOST_HEADERS and all(_line(name, text) <= LINE_BYTES for name, text in headers.items())


def longest_line(headers: Mapping[str, str]) -> int:
    """Return the size in bytes of the longest header line."""
    return max((_line(name, text) for name, text in headers.items()), default=0)


def _line(name: str, text: str) -> int:
    escapes = sum(map(text.count, "\\\n\r:"))
    return len(name.encode()) + len(text.encode("utf-8", "replace")) + escapes + 2


def _travels(name: str, text: str) -> bool:
    """Return whether a frame can have this header unchanged."""
    reserved = name in _FRAME or name in _PROPERTIES or _is_brokers(name)
    return not reserved and _PLAIN_NAME.fullmatch(name) is not None and _UNSENDABLE.search(text) is None


def _is_property(name: str, text: str) -> bool:
    """Return whether a frame can have this header as a property of the message."""
    return name in _PROPERTIES and _UNSENDABLE.search(text) is None


def _is_brokers(name: str) -> bool:
    return name in _BROKERS_OWN or (name.startswith(_BROKERS_PREFIXES) and name not in _PROPERTIES)


def sent_at(headers: Mapping[str, str]) -> float | None:
    """Return the time at which a message was sent, in seconds since 1970; None if it has no time."""
    text = headers.get("timestamp", "")
    return int(text) / 1000 if text.isdecimal() and text != "0" else None


def _table(text: str | None, name: str) -> dict[str, str]:
    """Return the table `name` of `sw-stomp`; empty if this module did not write the text."""
    try:
        found: Any = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    table = found.get(name) if isinstance(found, dict) else None
    if not isinstance(table, dict):
        return {}
    return {key: value for key, value in table.items() if isinstance(value, str) and key != EXACT}
