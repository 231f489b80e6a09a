"""The headers of a message in the broker file."""

from __future__ import annotations

import json

from steadyworker.adapter import Headers

UNREADABLE = "sw-hop"
"""
The header that gets the reason if a message's headers are unreadable, because any program can write to the file.

The runner expects a number in this header, so a text makes the message a dead letter with this reason.
"""


def headers_of(text: str) -> Headers:
    """Return a message's headers as text; raise nothing, because the broker would redeliver such a message without end."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {UNREADABLE: f"unreadable: {error}"}
    if not isinstance(found, dict):
        return {UNREADABLE: f"unreadable: expected a JSON object, got {type(found).__name__}"}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}
