"""
The reason of a lost connection, as one of a few words, because a metric's label must not contain the cause's free text.

The causes are messages of `steadyworker.network.errors` and of the adapters; a test compares these messages with this table.
"""

from __future__ import annotations

import re

OTHER = "other"

_REASONS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("heartbeat", re.compile(r"no heartbeat|heart-?beat|silent", re.IGNORECASE)),
    ("tls", re.compile(r"no TLS|certificate|TLS handshake")),
    ("login", re.compile(r"no login|no access|a refusal")),
    ("timeout", re.compile(r"in time|timed out", re.IGNORECASE)),
    ("alarm", re.compile(r"alarm")),
    ("reset", re.compile(r"reset|broken pipe|refused|no route|unreachable|end of file|EOF|Transport", re.IGNORECASE)),
    ("closed_by_broker", re.compile(r"\(\d{3}\)|closed|shutdown|deleted|cancelled", re.IGNORECASE)),
)

REASONS = (*(reason for reason, _ in _REASONS), OTHER)
"""All reasons, in the order in which `reason_of` tries them."""


def reason_of(cause: str) -> str:
    """Return the reason (one of `REASONS`) for the cause of a lost connection."""
    return next((reason for reason, pattern in _REASONS if pattern.search(cause)), OTHER)
