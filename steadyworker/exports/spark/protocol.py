"""
What worker process and Spark host say to each other: one JSON object a line, on descriptors of their own.

::

    worker process                                host
                          ←──────────────────── ready | fatal
    run ───────────────────────────────────────→
                          ←──────────────────── started, then progress and part in any order
    cancel, ping ──────────────────────────────→
                          ←──────────────────── done | failed | pong
    stop ──────────────────────────────────────→ ends in good order; end of file: ends at once

`started` begins a submission, also the second one of the same run: whatever parts came before it are void.
A child is told the same events (`as_event`); each is a mapping with its `type`, and `end` is true in the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import msgspec

from steadyworker.errors import ExportError


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the query: where its files are and how they are read (`tables.py` explains)."""

    path: str
    format: str
    schema: str | None = None
    options: dict[str, str] = {}


class Param(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the query, with the type that JSON would lose."""

    type: str
    text: str | None = None


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """How a row becomes a line: the options of `formats.Csv` that are not the head's."""

    delimiter: str
    null: str
    guard_formulas: bool


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """
    One export.

    Attributes:
        query: SQL, with named parameter markers.
        tables: Name to source.
        params: Name to value.
        order_by: Columns of the result, ascending.
        sums: Columns whose exact sums are wanted.
        lines: How a row becomes a line.
        parts: A folder that is not there: the parts' files are written into it.
    """

    query: str
    tables: dict[str, Source]
    params: dict[str, Param] = {}
    order_by: tuple[str, ...]
    sums: tuple[str, ...] = ()
    lines: Lines
    parts: str


class Run(msgspec.Struct, frozen=True, tag="run", tag_field="type"):
    """Begin a job."""

    job: str
    plan: Plan


class Cancel(msgspec.Struct, frozen=True, tag="cancel", tag_field="type"):
    """End a job; `failed` of kind `cancelled` follows, unless it ended by itself."""

    job: str


class Ping(msgspec.Struct, frozen=True, tag="ping", tag_field="type"):
    """Ask whether the JVM answers."""

    number: int


class Stop(msgspec.Struct, frozen=True, tag="stop", tag_field="type"):
    """End in good order."""


class Ready(msgspec.Struct, frozen=True, tag="ready", tag_field="type"):
    """Spark is warm."""

    pid: int
    versions: dict[str, str]


class Fatal(msgspec.Struct, frozen=True, tag="fatal", tag_field="type"):
    """Spark did not start."""

    text: str


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="type"):
    """The query is understood; its columns are (name, Spark type)."""

    job: str
    columns: tuple[tuple[str, str], ...]


class Progress(msgspec.Struct, frozen=True, tag="progress", tag_field="type"):
    """Tasks that are complete, tasks known so far, and rows in complete parts; sent when one of them has moved."""

    job: str
    done: int
    total: int
    rows: int


class Part(msgspec.Struct, frozen=True, tag="part", tag_field="type"):
    """The task of this index is complete; it wrote this file, or none."""

    job: str
    index: int
    path: str | None
    bytes: int


class Done(msgspec.Struct, frozen=True, tag="done", tag_field="type"):
    """
    All parts are written.

    Attributes:
        rows: As Spark counted them on the way to the writer.
        sums: Column to exact sum, as plain decimal.
        parts: (index, path, bytes) of every file that is there now, in order.
    """

    job: str
    rows: int
    sums: dict[str, str]
    parts: tuple[tuple[int, str, int], ...]


class Failed(msgspec.Struct, frozen=True, tag="failed", tag_field="type"):
    """
    The job did not succeed.

    `kind` is `query` (it cannot be understood, or asks for what cannot be), `job` (it failed while it ran), `cancelled`,
    `host-died`, `unavailable` (Spark cannot start here) or `stopped` (the worker process stops).
    """

    job: str
    kind: str
    text: str


class Pong(msgspec.Struct, frozen=True, tag="pong", tag_field="type"):
    """The JVM answered."""

    number: int


Command = Run | Cancel | Ping | Stop
JobEvent = Started | Progress | Part | Done | Failed
Message = Ready | Fatal | JobEvent | Pong

_COMMANDS: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_MESSAGES: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode(message: Command | Message) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode_command(line: bytes) -> Command:
    """Raises msgspec.MsgspecError for what is none."""
    return _COMMANDS.decode(line)


def decode_message(line: bytes) -> Message:
    """Raises msgspec.MsgspecError for what is none."""
    return _MESSAGES.decode(line)


def as_event(event: JobEvent, **more: Any) -> dict[str, Any]:
    """The event as a child is told it."""
    return {**msgspec.to_builtins(event), "end": isinstance(event, Done | Failed), **more}


def from_event(event: Mapping[str, Any]) -> JobEvent:
    """What `as_event` made, in the child."""
    found: JobEvent = msgspec.convert(event, JobEvent)
    return found


def to_param(name: str, value: object) -> Param:
    """
    A parameter as the host gets it.

    Raises:
        ExportError: A type that Spark has no literal for.
    """
    match value:
        case None:
            return Param(type="null")
        case bool():
            return Param(type="bool", text=str(int(value)))
        case int() | float() | str() | Decimal():
            kind: Any = next(known for known in (int, float, str, Decimal) if isinstance(value, known))
            return Param(type=kind.__name__, text=kind.__str__(value))
        case datetime() | date():
            return Param(type="datetime" if isinstance(value, datetime) else "date", text=value.isoformat())
    raise ExportError(
        f"Expected text, a number, a date, a time or None as parameter {name!r}, got {type(value).__name__}: "
        "convert it, and the query can cast it back."
    )


def from_param(param: Param) -> object:
    """The value that `to_param` was given."""
    return None if param.text is None else _PARAMS[param.type](param.text)


_PARAMS: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {
        "bool": lambda text: text == "1",
        "int": int,
        "float": float,
        "str": str,
        "Decimal": Decimal,
        "datetime": datetime.fromisoformat,
        "date": date.fromisoformat,
    }
)
