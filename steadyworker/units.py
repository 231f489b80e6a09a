"""Sizes, durations and counts in the form that people write: `2 GiB`, `1h 30m`, `3 jobs`."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_EXACT = 1e15  # a float of this size or more is no exact count
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BYTES = _DECIMAL | {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)
_LONGEST = 1e9  # the system's calls for waiting accept little more
_SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|sec|s|min|m|h|d)\s*", re.IGNORECASE)

EXPECTED = "Expected seconds, a timedelta, or a text such as '90s' or '1h 30m'"


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as `2 GiB`, `512MB`, `1.5g` or `1024`; raise ValueError for other texts."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"Expected a size such as '2 GiB' or '512 MB', got {text!r}.")
    return int(float(match[1]) * _BYTES[(match[2] or "").lower()])


def count_text(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, for people: `1 job`, `1,200 jobs`; `plural` is for an irregular noun."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size_text(size: int) -> str:
    """Return a number of bytes as text for people: `2.1 GiB`."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:  # noqa: PLR2004 - the next unit begins there
            return count_text(size, "byte") if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def span(seconds: float | None) -> str:
    """Return a duration for people, in its two largest units; "–" for None or an infinite duration."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    whole = max(0, round(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR:02} h"


def amount(value: float) -> str:
    """Return a number for people; whole numbers have no decimal point."""
    if not abs(value) < _EXACT:
        return f"{value:g}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def parse_seconds(value: Any) -> float:
    """
    Return the seconds in a number of any kind (int, Decimal, a number of numpy), a timedelta, or a text like `28`, `90s`, `1h 30m`.

    Raises ValueError for anything else, for negative numbers, and for numbers over 1e9, which is 31 years.
    """
    if isinstance(value, bool):
        raise ValueError(f"{EXPECTED}, got {value!r}.")  # noqa: TRY004 - one error for every wrong value
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        text = value.strip()
        if text and not _DURATION.sub("", text):
            value = sum(float(number) * _SECONDS[unit.lower()] for number, unit in _DURATION.findall(text))
    number = -1.0
    if hasattr(value, "__float__") or hasattr(value, "__index__") or (isinstance(value, str) and "_" not in value):
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)
    if not 0 <= number <= _LONGEST:
        raise ValueError(f"{EXPECTED}, got {value!r}.")
    return number
