"""
What worker process and Spark host say to each other: one JSON object a line, on descriptors of their own.

::

    worker process                                host
    connect ───────────────────────────────────→ only if Spark is a Connect server
                          ←──────────────────── ready | fatal
    run ───────────────────────────────────────→
                          ←──────────────────── started, then progress and part in any order, stuck
    cancel, ping ──────────────────────────────→
                          ←──────────────────── done | failed | pong
    stop ──────────────────────────────────────→ ends in good order; end of file: ends at once

`started` begins a submission, also the second one of the same run, or the parts of one anew: those that came before it are void.
A child is told the same events (`as_event`); each is a mapping with its `type`, and `end` is true in the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from steadyworker.exports.patterns import DATE, MOMENT, UTC
from steadyworker.exports.spark.params import Param


class Source(msgspec.Struct, frozen=True, kw_only=True, tag="files", tag_field="kind"):
    """A table of the query: where its files are and how they are read (`tables.py` explains)."""

    path: str
    format: str
    schema: str | None = None
    options: dict[str, str] = {}


class Database(msgspec.Struct, frozen=True, kw_only=True, tag="database", tag_field="kind"):
    """
    A table of the query that a database has (`jdbc.py` explains); never with a credential, only with where one is found.

    Attributes:
        system: `postgresql` or `sqlite`.
        place: `host:port/database`, or the path of the file.
        user: Who logs in; as the system says without.
        password_env: The environment variable that has the password,
        password_file: or the file.
        properties: Of the driver's, like `sslmode`.
        relation: What stands after FROM.
        partition_by: The column that cuts the read into ranges.
        partitions: How many of them; found by the rows that the database expects without.
        schema: Columns and their Spark types, where the driver's are not to be taken.
        fetch_rows: Rows of one answer.
        statement_timeout: Seconds for one answer.
    """

    system: Literal["postgresql", "sqlite"]
    place: str
    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    properties: dict[str, str] = {}
    relation: str
    partition_by: str | None = None
    partitions: int | None = None
    schema: str | None = None
    fetch_rows: int
    statement_timeout: float


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """How a row becomes a line: the format's name, and the options of `formats.Csv` that are not the head's."""

    form: str = "csv"
    delimiter: str = ","
    null: str = ""
    guard_formulas: bool = True
    decimal_comma: bool = False
    dates: str = DATE
    moments: str = MOMENT
    zone: str = UTC


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """
    One export.

    Attributes:
        query: SQL, with named parameter markers; or the `module:function` that builds the result.
        build: Whether it is the latter.
        tables: Name to source.
        params: Name to value.
        order_by: Columns of the result, ascending.
        sums: Columns whose exact sums are wanted.
        lines: How a row becomes a line.
        parts: A folder that is not there: the parts' files are written into it.
        session: Names what Spark has of this run (a UUID), so that a later run can end it; stored before Spark hears of it.
            After a run was stuck it has another one, which is stored when it has begun.
        earlier: The same of runs that came before: whatever still runs of them is ended first.
    """

    query: str
    build: bool = False
    tables: dict[str, Source | Database]
    params: dict[str, Param] = {}
    order_by: tuple[str, ...]
    sums: tuple[str, ...] = ()
    lines: Lines
    parts: str
    session: str = ""
    earlier: tuple[str, ...] = ()


class Connect(msgspec.Struct, frozen=True, tag="connect", tag_field="type"):
    """
    Use this Spark Connect server.

    By the pipe and not by an argument, variable or file: the address may hold a token.

    Attributes:
        url: `sc://host:port/;name=value;…`.
        conf: Settings for every session.
        within: Seconds to wait for a server that does not answer.
    """

    url: str
    conf: dict[str, str]
    within: float


class Run(msgspec.Struct, frozen=True, tag="run", tag_field="type"):
    """
    Begin a job.

    Attributes:
        stuck_after: It is `stuck` when nothing of it has moved for so many seconds, or much longer if its tasks are long.
        stuck_before: How often it was.
    """

    job: str
    plan: Plan
    stuck_after: float = 60.0
    stuck_before: int = 0


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
    """
    The query is understood.

    Attributes:
        columns: (name, Spark type) of each.
        snapshot: Which moment of its databases it reads.
        versions: Of the databases, and of the user's code.
        where: How to find the job in a cluster.
    """

    job: str
    columns: tuple[tuple[str, str], ...]
    snapshot: str | None = None
    versions: dict[str, str] = {}
    where: dict[str, str] = {}


class Progress(msgspec.Struct, frozen=True, tag="progress", tag_field="type"):
    """
    Something has moved: a task, a row or a byte.

    Attributes:
        done: Tasks that are complete.
        total: Tasks known so far.
        rows: Rows in complete parts; None where Spark does not tell.
        rate: Rows a second, where there is evidence of it.
        left: Seconds until all parts are written, once that can be told.
    """

    job: str
    done: int
    total: int
    rows: int | None
    rate: float | None = None
    left: float | None = None


class Stuck(msgspec.Struct, frozen=True, tag="stuck", tag_field="type"):
    """Nothing has moved for so long that nothing will: the log has what every thread of Spark here does.  Said once; nobody but the service hears it."""

    job: str
    text: str


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

    `kind` is `rejected` (no retry can make it), `query` (it cannot be understood, or asks for what cannot be), `job` (it failed while it ran), `cancelled`,
    `host-died`, `stuck` (nothing moved any longer, each time that it was begun), `unavailable` (Spark cannot start here) or
    `stopped` (the worker process stops).
    """

    job: str
    kind: str
    text: str


class Pong(msgspec.Struct, frozen=True, tag="pong", tag_field="type"):
    """The JVM answered."""

    number: int


Command = Connect | Run | Cancel | Ping | Stop
JobEvent = Started | Progress | Part | Done | Failed
Message = Ready | Fatal | JobEvent | Stuck | Pong

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


def parts_of(folder: str | Path, job: str, submission: int) -> Path:
    """Where the parts of one try are; what else it writes has a name that begins so, and a dash."""
    return Path(folder, f"{job}-{submission}")


def as_event(event: JobEvent, **more: Any) -> dict[str, Any]:
    """The event as a child is told it."""
    return {**msgspec.to_builtins(event), "end": isinstance(event, Done | Failed), **more}


def from_event(event: Mapping[str, Any]) -> JobEvent:
    """What `as_event` made, in the child."""
    found: JobEvent = msgspec.convert(event, JobEvent)
    return found
