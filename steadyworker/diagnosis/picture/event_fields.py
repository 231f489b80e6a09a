"""
The fields of an event, as numbers and texts that are safe to keep and to show.

An event can come from a file that another program wrote, and its texts come from the traced connection.
So every field can be missing, be of another type, be huge, or be chosen to deceive the reader of a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice

from steadyworker.text.plain_text import plain_text, printable
from steadyworker.text.redaction import REDACTED, is_secret_name

Event = Mapping[str, object]

SIDES = ("client", "broker")
LONGEST_TEXT = 200
"""The largest number of characters of a text that are kept."""

_LONGEST_NAME = 60
_LONGEST_VALUE = 100
_MOST_DETAILS = 8
_LARGEST = 1e15
_MOST_FIELDS = 24
_DEPTH = 3
_BRIEF = 40
_SEARCHED = 4_000
"""The number of characters that are searched for secrets, which is far more than the kept characters."""

_SCALARS = frozenset({int, float, bool, type(None)})
_HEAD = frozenset({"t", "conn", "kind", "from", "name", "channel", "size", "id", "level", "what", "evidence", "remedy"})
_NESTED = ("headers", "properties")
_FIRST = (
    *("reply_code", "code", "reply_text", "text", "message", "queue", "delivery_tag", "consumer_tag", "multiple"),
    *("redelivered", "exchange", "routing_key", "destination", "subscription", "ack", "id"),
)
_QUIET = frozenset(
    {
        *("version_major", "version_minor", "locales", "locale", "mechanisms", "class_id", "method_id", "channel_id"),
        *("delivery_mode", "content_type"),
    }
)
"""The fields that do not matter for the course of a connection."""

_LABELS = {
    "delivery_tag": "tag",
    "consumer_tag": "consumer",
    "prefetch_count": "prefetch",
    "reply_code": "code",
    "reply_text": "text",
    "body_size": "body",
    "seen_as": "in the broker's log",
    "client_properties": "client",
    "server_properties": "server",
}


def text_of(value: object, limit: int = LONGEST_TEXT) -> str:
    """Return any value as one line without secrets, with an escape for each character that is invisible or reorders text."""
    if type(value) is str and value.isascii() and value.isprintable() and len(value) <= _BRIEF:
        return plain_text(value, limit)
    if isinstance(value, str):
        value = value[:_SEARCHED]
    safe = plain_text(value, limit)
    shown = printable(safe)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def is_light(event: Event) -> bool:
    """Return whether an event is small enough to be kept unchanged."""
    return len(event) <= _MOST_FIELDS and all(
        type(value) in _SCALARS
        or (type(value) is str and len(value) <= LONGEST_TEXT)
        or (
            type(value) is dict
            and len(value) <= _MOST_FIELDS
            and all(
                type(each) in _SCALARS or (type(each) is str and len(each) <= LONGEST_TEXT) for each in value.values()
            )
        )
        for value in event.values()
    )


def name_of(value: object) -> str:
    """Return the name of a frame, for display and counts; a long name is cut."""
    if type(value) is str and len(value) <= _LONGEST_NAME:
        return value
    return "" if value is None else text_of(value, _LONGEST_NAME)


def number_of(value: object) -> float | None:
    """Return a finite number of reasonable size; None for any other value."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return value if abs(value) <= _LARGEST else None
    return None


def count_of(value: object) -> int:
    """Return a number of things or bytes; 0 for any other value."""
    number = number_of(value)
    return int(number) if number and number > 0 else 0


def side_of(event: Event) -> str:
    """Return the sender of an event: `client` or `broker`, or `trace` if the trace itself has noticed the event."""
    side = event.get("from")
    return side if isinstance(side, str) and side in SIDES else "trace"


def fields_of(event: Event) -> Iterator[tuple[str, object]]:
    """Yield the fields that only this kind of event has; fields of a nested mapping count as the event's own fields."""
    for key, value in event.items():
        if key in _NESTED and isinstance(value, Mapping):
            yield from ((str(inner), each) for inner, each in value.items())
        elif key not in _HEAD:
            yield str(key), value


def field(event: Event, *names: str) -> object:
    """Return the first of these fields that the event, or a nested mapping in the event, has; otherwise None."""
    for name in names:
        if event.get(name) is not None:
            return event[name]
    for key in _NESTED:
        nested = event.get(key)
        if isinstance(nested, Mapping):
            for name in names:
                if nested.get(name) is not None:
                    value: object = nested[name]
                    return value
    return None


def details_of(event: Event) -> tuple[tuple[str, str], ...]:
    """
    Return the fields that only this kind of event has, as texts: `(("queue", "payments"), ("tag", "7"))`.

    The most important field is first.
    """
    given = [pair for pair in fields_of(event) if pair[0] not in _QUIET and pair[1] not in (None, False, "", {}, [])]
    given.sort(key=lambda pair: _FIRST.index(pair[0]) if pair[0] in _FIRST else len(_FIRST))
    return tuple((label(key), value_of(key, value)) for key, value in given[:_MOST_DETAILS])


def label(key: str) -> str:
    """Return the name of a field for people."""
    return _LABELS.get(key) or text_of(key, _LONGEST_NAME).replace("_", " ")


def value_of(key: str, value: object, limit: int = _LONGEST_VALUE, depth: int = 0) -> str:
    """Return the value of a field for people; the value of a secret is not shown."""
    if is_secret_name(key[-_LONGEST_NAME:]):
        return REDACTED
    if value is True:
        return "yes"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (Mapping, list, tuple)):
        if depth == _DEPTH:
            return "…"
        pairs = list(
            islice(value.items() if isinstance(value, Mapping) else (("", each) for each in value), _MOST_DETAILS)
        )
        inner = [f"{text_of(name, 40)} {value_of(str(name), each, 60, depth + 1)}".strip() for name, each in pairs]
        return text_of(", ".join(inner), limit)
    return text_of(value, limit)
