"""
Output of the verbs: a table on a terminal, plain columns elsewhere, JSON Lines on request.

Control characters in text from a message or a job are shown as escapes, so that they cannot move the cursor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import REDACTED, is_secret_name, redact
from steadyworker.units import count_text

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_EXACT = 1e15  # a float of this size or more is no exact count
_PADDING = 3  # characters between two columns on a terminal


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; `styles` maps a cell's text to its colour on a terminal."""

    title: str
    right: bool = False
    styles: dict[str, str] | None = None


def json_line(value: Any) -> None:
    """
    Print a JSON value on one line of standard output.

    A lone surrogate in a text (from a file's name that is not UTF-8) is printed as its JSON escape.
    """
    try:
        click.echo(msgspec.json.encode(value).decode())
    except UnicodeEncodeError:
        click.echo(json.dumps(msgspec.to_builtins(value)))


def without_secrets(value: Any) -> Any:
    """Return JSON data without the secrets in its texts, and without the values of names such as `password`."""
    if isinstance(value, Mapping):
        return {name: REDACTED if is_secret_name(name) else without_secrets(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return redact(value) if isinstance(value, str) else value


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """
    Print rows under their titles.

    On a terminal the rows are coloured; elsewhere they are padded with spaces, and never cut or wrapped.
    The table is always wide enough for the titles; a narrower terminal wraps its lines.
    """
    console = Console()
    if console.is_terminal:
        console.width = max(console.width, sum(len(column.title) + _PADDING for column in columns))
        console.print(framed(columns, rows))
    else:
        for line in _padded([[column.title for column in columns], *rows]):
            click.echo(line)


def framed(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> Table:
    """
    Return the table for a terminal.

    A cell that is not text, such as a progress bar, is shown unchanged.
    """
    framed_table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column in columns:
        framed_table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        framed_table.add_row(*(_cell(column, cell) for column, cell in zip(columns, row, strict=True)))
    return framed_table


def _cell(column: Column, cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    return Text(printable(cell), style=(column.styles or {}).get(cell, ""))


def _padded(rows: Sequence[Sequence[str]]) -> list[str]:
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*shown, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]


def tries(attempts: int, crashes: int, losses: int) -> str:
    """Return the three counters that limit a job's runs, for people: `5 attempts, 1 crash, 0 losses`."""
    return ", ".join(
        (count_text(attempts, "attempt"), count_text(crashes, "crash", "crashes"), count_text(losses, "loss", "losses"))
    )


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


def ago(seconds: float | None) -> str:
    """Return the age of an event for people, such as "5 min 03 s ago"; "–" for None."""
    return "–" if seconds is None else f"{span(seconds)} ago"


def instant(wall: float | None) -> str | None:
    """
    Return a wall-clock time as ISO 8601 in UTC.

    Return None for a number outside the range of times, because another program's timestamp can be in milliseconds or nanoseconds.
    """
    if wall is None:
        return None
    try:
        return datetime.fromtimestamp(wall, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # the number's size decides which error is raised
        return None


def amount(value: float) -> str:
    """Return a number for people; whole numbers have no decimal point."""
    if not abs(value) < _EXACT:
        return f"{value:g}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
