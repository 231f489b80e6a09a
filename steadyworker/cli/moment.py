"""A moment in the past as an option: `yesterday`, `2h` ago, or a date."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

import click

from steadyworker.clock import SystemClock
from steadyworker.units import parse_seconds


def moment(_ctx: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Return a wall-clock time: `today`, `yesterday`, a duration before now, or an ISO date or time in the local time zone."""
    if text is None:
        return None
    now = SystemClock().wall()
    days = {"today": 0, "yesterday": 1}.get(text)
    if days is not None:
        midnight = datetime.fromtimestamp(now).astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        return (midnight - timedelta(days=days)).timestamp()
    with suppress(ValueError):
        return now - parse_seconds(text)
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).astimezone().timestamp()
    raise click.BadParameter(
        f"Expected `today`, `yesterday`, a duration such as 2h, or a date such as 2026-01-31, got {text!r}."
    )
