"""
Moves headers behind the body of their message if the broker has no room for these headers.

A copy has more headers than its original message, and some brokers have less room for headers than other brokers.
No header is cut, because any header can be the header that names the job.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from steadyworker.delivery import OWN_HEADERS, REASON

BEHIND = "sw-behind"
"""
The header with the size of the body in bytes, if other headers are behind the body.

The headers behind the body are a JSON object.
"""

_OF_THE_JOB = frozenset(OWN_HEADERS) - {REASON}

_PLAIN = frozenset({"", "identity", "utf-8", "utf8", "us-ascii", "ascii", "binary"})


def carried(
    headers: Mapping[str, Any],
    body: bytes,
    fit: Callable[[Mapping[str, Any]], bool],
    packed: Callable[[Any], Any] = str,
) -> tuple[dict[str, Any], bytes]:
    """
    Return headers that `fit` accepts, and the body with all other headers behind it.

    `restored` is the inverse.
    The longest headers move first.
    The headers that describe the job move last, so that a broker's tools show them.
    `packed` returns a value in a form that JSON can express.
    A sender's own header `BEHIND` always moves, so that `restored` does not mistake a message of the sender for a message of `carried`.
    """
    if BEHIND not in headers and fit(headers):
        return dict(headers), body
    texts = {name: json.dumps(packed(value)) for name, value in headers.items()}
    order = sorted(headers, key=lambda name: (name != BEHIND, name in _OF_THE_JOB, -len(name) - len(texts[name])))

    def without(count: int) -> dict[str, Any]:
        moved = {*order[:count]}
        return {name: value for name, value in headers.items() if name not in moved} | {BEHIND: str(len(body))}

    count = bisect_left(range(len(order)), 1, lo=BEHIND in headers, key=lambda count: fit(without(count)))
    moved = {name: json.loads(texts[name]) for name in order[:count]}
    return without(count), body + json.dumps(moved).encode()


def restored(
    headers: Mapping[str, Any], body: bytes, unpacked: Callable[[Any], Any] = str
) -> tuple[Mapping[str, Any], bytes]:
    """
    Return all headers and the body of a message that `carried` made.

    Any other message stays as it is.
    `unpacked` is the inverse of the `packed` that was given to `carried`.
    """
    size = headers.get(BEHIND)
    if not (isinstance(size, str) and size.isascii() and size.isdigit() and len(size) < len(str(1 << 63))):
        return headers, body
    try:
        moved = json.loads(body[int(size) :])
        found = {name: unpacked(value) for name, value in moved.items()}
    except (ValueError, AttributeError, TypeError, ArithmeticError, RecursionError, OSError):
        return headers, body
    return found | {name: value for name, value in headers.items() if name != BEHIND}, body[: int(size)]


def encoding_of(named: str | None) -> str | None:
    """Return the content encoding that a sender names, or None if this encoding only means plain text or plain bytes (Celery names utf-8)."""
    return None if (named or "").strip().lower() in _PLAIN else named
