"""
Output of the verbs: a table on a terminal, plain columns elsewhere, JSON Lines on request.

Control characters in text from a message or a job are shown as escapes, so that they cannot move the cursor.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR
from itertools import chain, islice
from typing import Any

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steadyworker.text.plain_text import printable
from steadyworker.units import count_text, span

_PADDING = 3  # characters between two columns on a terminal
_GAP = 2  # characters between two columns of a screen
_TEXT_SHARE = 0.28  # the least part of a screen's width for the last column
_EMPTY = ("", "–")


@dataclass(frozen=True, slots=True)
class Column:
    """
    One column of a table.

    Attributes:
        title: The text above it.
        right: True if its cells are aligned to the right.
        styles: The colour on a terminal, by the first word of a cell.
        rank: A screen that is too narrow leaves out the columns of the highest rank first, but never one of rank 0.
        least: The width to which a narrow screen cuts the column; 0 if a screen never cuts it.
        most: The largest width on a screen.
    """

    title: str
    right: bool = False
    styles: dict[str, str] | None = None
    rank: int = 0
    least: int = 0
    most: int | None = None


_UNPRINTABLE = re.compile(r"[^ -~]+")
_BLOCK = 500
_DEEPEST = 100  # levels of JSON data, far below the limit of Python for a recursion
"""The number of rows that are printed together, so that a million rows need neither a million writes nor their memory."""


def json_line(value: Any) -> None:
    """
    Print a JSON value on one line of standard output.

    A character that is not printable, and a lone surrogate (from a file's name that is not UTF-8), are printed as their JSON escapes.
    """
    click.echo(_json_text(value))


def json_lines(values: Iterable[Any]) -> None:
    """Print JSON values as `json_line` does, some hundred lines at a time."""
    for block in _blocks(values):
        click.echo("\n".join(map(_json_text, block)))


def _json_text(value: Any) -> str:
    try:
        line = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        line = json.dumps(msgspec.to_builtins(value))
    return line if line.isprintable() else _UNPRINTABLE.sub(lambda run: json.dumps(run[0])[1:-1], line)


def _blocks(values: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(values)
    while block := list(islice(rest, _BLOCK)):
        yield block


def json_or_text(data: bytes | None) -> Any:
    """Return the data of a JSON text, or the text itself if it is no JSON, or is nested too deep; None for None."""
    if data is None:
        return None
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        value = msgspec.json.decode(data)
        if not _is_deep(value):
            return value
    return data.decode(errors="backslashreplace")


def _is_deep(value: Any) -> bool:
    """Return whether data is nested so deep that a recursion through it can fail."""
    level = [value]
    for _ in range(_DEEPEST):
        nested = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        if not (level := [inner for each in nested for inner in each]):
            return False
    return True


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
        padded(columns, rows)


def padded(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """
    Print rows under their titles as plain text, padded with spaces, and never cut or wrapped.

    The rows are printed while they are read, so a wide cell moves only the columns of its block of rows and of later blocks.
    """
    widths = [0] * len(columns)
    for block in _blocks(chain([[column.title for column in columns]], rows)):
        click.echo("\n".join(_padded(block, widths)))


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
    return Text(printable(cell), style=(column.styles or {}).get(cell.partition(" ")[0], ""))


def screen(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], width: int, details: Sequence[str] = ()
) -> Iterator[Text]:
    """
    Yield the lines of a table for a terminal of this width: the titles, and one line a row.

    A column that has no value, or for which there is no room, is left out; the last column gets the rest of the width.
    A text that does not fit into its cell ends with "…".
    If the last cell is cut, the row's text in `details` follows on the next line.
    """
    cells = [[_cell(column, cell) for column, cell in zip(columns, row, strict=True)] for row in rows]
    shown = [
        place
        for place, column in enumerate(columns)
        if not column.rank or any(row[place].plain not in _EMPTY for row in cells)
    ]
    natural: list[int] = [
        min(column.most or width, max(cell_len(column.title), *(row[place].cell_len for row in cells), 0))
        for place, column in enumerate(columns)
    ]

    widths = [min(column.least or wide, wide) for column, wide in zip(columns, natural, strict=True)]

    least_text = int(width * _TEXT_SHARE)

    def free() -> int:
        return width - sum(widths[place] + _GAP for place in shown[:-1]) - min(natural[shown[-1]], least_text)

    while free() < 0 and (rank := max(columns[place].rank for place in shown)):
        shown = [place for place in shown if columns[place].rank != rank or place == shown[-1]]
    for place in shown[:-1]:
        widths[place] += max(0, min(free(), natural[place] - widths[place]))
    last = shown[-1]
    widths[last] = max(least_text, width - sum(widths[place] + _GAP for place in shown[:-1]))
    titles = [Text(column.title, style="bold") for column in columns]
    for number, row in enumerate([titles, *cells]):
        line = Text(no_wrap=True)
        for place in shown:
            cell = row[place].copy()
            cell.truncate(widths[place], overflow="ellipsis")
            pad = widths[place] - cell.cell_len if place != last else 0
            line.append(" " * pad if columns[place].right else "")
            line.append_text(cell)
            line.append("" if place == last else " " * (_GAP + (0 if columns[place].right else pad)))
        line.rstrip()
        yield line
        if number and number <= len(details) and row[last].cell_len > widths[last]:
            yield Text(f"  {printable(details[number - 1])}", style="dim")


def _padded(rows: Sequence[Sequence[str]], widths: list[int]) -> list[str]:
    """Return the lines of these rows; `widths` become at least as wide as their cells."""
    shown = [row if "".join(row).isprintable() else [printable(cell) for cell in row] for row in rows]
    widths[:] = [max(width, *map(len, column)) for width, column in zip(widths, zip(*shown, strict=True), strict=True)]
    line = "  ".join(f"%-{width}s" for width in widths)
    return [(line % tuple(row)).rstrip() for row in shown]


CUT = "WHY is cut: -v prints the whole text on a line below"
"""The hint below a screen on which a text is cut."""


def print_screen(console: Console, lines: Iterator[Text]) -> None:
    """Print the lines of a screen; if a line is cut, print to standard error how to read the whole text."""
    cut = False
    for line in lines:
        cut = cut or line.plain.endswith("…")
        console.print(line, no_wrap=True, soft_wrap=True, highlight=False)
    if cut:
        click.echo(CUT, err=True)


def tries(attempts: int, crashes: int, losses: int) -> str:
    """Return the three counters that limit a job's runs, for people: `5 attempts, 1 crash, 0 losses`."""
    return ", ".join(
        (count_text(attempts, "attempt"), count_text(crashes, "crash", "crashes"), count_text(losses, "loss", "losses"))
    )


FAR = "far future"
"""The text for a time that is after the last year that a calendar can show."""


def local_time(wall: float) -> time.struct_time | None:
    """Return a wall-clock time in the local time zone, or None if no calendar shows it, such as the last hours of the year 9999 in Tokyo."""
    return _in_calendar(time.localtime, wall)


def _in_calendar(zone: Callable[[float], time.struct_time], wall: float) -> time.struct_time | None:
    # A long listing has several times a row, and `datetime` is far slower than these functions.
    try:
        found = zone(wall)
    except (ValueError, OverflowError, OSError):  # the number's size decides which error is raised
        return None
    return found if MINYEAR <= found.tm_year <= MAXYEAR else None


def clock_time(wall: float | None, now: float) -> str:
    """
    Return a wall-clock time for people, in the local time zone: `03:12` today, `26 Nov 03:12` in this year, otherwise `26 Nov 2024 03:12`.

    Return "–" for None.
    """
    if wall is None:
        return "–"
    then, today = local_time(wall), local_time(now)
    if then is None or today is None:
        return FAR if wall > now else "–"
    if then[:3] == today[:3]:
        return f"{then.tm_hour:02}:{then.tm_min:02}"
    return time.strftime("%d %b %H:%M" if then.tm_year == today.tm_year else "%d %b %Y %H:%M", then)


def ago(seconds: float | None) -> str:
    """Return the age of an event for people, such as "5 min 03 s ago"; "–" for None."""
    return "–" if seconds is None else f"{span(seconds)} ago"


def instant(wall: float | None) -> str | None:
    """
    Return a wall-clock time as ISO 8601 in UTC.

    Return None for a number outside the range of times, because another program's timestamp can be in milliseconds or nanoseconds.
    """
    found = None if wall is None else _in_calendar(time.gmtime, wall)
    if found is None:
        return None
    year, month, day, hour, minute, second, *_ = found
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
