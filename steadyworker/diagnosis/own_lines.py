"""
Reads the fields of SteadyWorker's own lines: what happened, and what to do.

A line of the log that names an entry of the catalogue has both facts, so the entry need not repeat them.
A record has a line of JSON in the console's form, but without quotes around a text with spaces.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

_WHAT = ("what", "cause", "error", "why", "reason")
_SHOWN = ("remedy", "queue", "part", "limit")
_NAMES = (
    *(*_WHAT, *_SHOWN, "explain", "logger", "key", "fence", "at", "level", "timestamp", "event", "title", "id"),
    *("attempt", "state", "settlement", "outcome", "attempts", "crashes", "losses", "interruptions", "settled"),
    *("seconds", "delay", "redelivered_because", "size", "write", "times", "target", "slot", "worker", "pid", "code"),
    *("hop", "known", "late_s", "silent_s", "limit_s", "threads", "listener", "line", "lines", "type", "folder"),
    *("job", "log", "calls", "reasons", "exit_code", "stage", "kill", "exception"),
)
_FIELD = re.compile(rf"(?<![\w.])(?P<name>{'|'.join(_NAMES)})=")


def groups_of(text: str) -> Mapping[str, str]:
    """
    Return the values from the fields of SteadyWorker's own line for the texts of the entry.

    The values are `what`, `remedy`, `queue`, and `message`, which is the job's key.
    """
    fields: dict[str, str] = {}
    places = list(_FIELD.finditer(text))
    ends = [*(place.start() for place in places[1:]), len(text)]
    for place, end in zip(places, ends, strict=False):
        value = text[place.end() : end].partition("\n")[0].strip()
        fields.setdefault(place["name"], _unquoted(value))
    found = {name: fields[name] for name in _SHOWN if fields.get(name)}
    if what := next((fields[name] for name in _WHAT if fields.get(name)), ""):
        found["what"] = what
    if fields.get("key"):
        found["message"] = fields["key"]
    return found


def _unquoted(value: str) -> str:
    """Return a text as it was before the console put it into quotes."""
    if value[:1] not in ("'", '"'):
        return value
    try:
        return str(ast.literal_eval(value))
    except (SyntaxError, ValueError):
        return value
