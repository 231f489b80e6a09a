"""
The messages between worker process and Spark host: one JSON object on each line, over two pipes.

::

    worker process                                host
    connect ───────────────────────────────────→ only if Spark is a Connect server
                          ←──────────────────── ready | fatal
    run ───────────────────────────────────────→
                          ←──────────────────── started, then progress, stuck
    cancel, ping ──────────────────────────────→
                          ←──────────────────── done | failed | pong
    stop ──────────────────────────────────────→ ends normally; at end of file it ends at once

`started` begins a submission: the parts of earlier submissions are invalid.
The child gets the same events (`as_event`): each event is a mapping with its `type`; in the last event, `end` is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.params import Param
from steadyworker.exports.tables import FileSource, Table
from steadyworker.text.plain_text import as_unicode_data


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """
    One export.

    Attributes:
        query: SQL with named parameter markers, or the `module:function` that builds the result (`build`).
        sums: The columns that the child sums; the host only checks their types, as of those in `by`.
        nested: True if the file can have nested and binary values.
        parts: The folder for the parts, a path or an `s3a://` URL, which must not exist.
        stage: True if the parts are in the folder of the setting `spark_stage`.
        session: The name (a UUID) of the run's session, by which a later run can end the session (`handle.py`).
        earlier: The names of earlier runs' sessions; Spark ends these sessions first.
        snapshots: The snapshots in which the job's first run has begun to read its tables (`catalogs.py`).
    """

    query: str
    build: bool = False
    tables: dict[str, FileSource | Jdbc | Table]
    params: dict[str, Param] = {}
    order_by: tuple[str, ...]
    sums: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    nested: bool = False
    parts: str
    stage: bool = False
    session: str = ""
    earlier: tuple[str, ...] = ()
    snapshots: dict[str, str] = {}


class Connect(msgspec.Struct, frozen=True, tag="connect", tag_field="type"):
    """
    The order to use a Spark Connect server, with settings for every session, and the seconds to wait for the server.

    The address can contain a token, so it is sent over the pipe, and not in an argument, variable or file.
    """

    url: str
    conf: dict[str, str]
    within: float


class RunExport(msgspec.Struct, frozen=True, tag="run", tag_field="type"):
    """
    The order to begin a job.

    Attributes:
        stuck_after: Seconds without progress after which the job is `stuck`; in a cluster, ten times as many.
        stuck_before: True if the job has begun before, and was stuck.
    """

    job: str
    plan: ExportPlan
    stuck_after: float = 60.0
    stuck_before: bool = False


class Cancel(msgspec.Struct, frozen=True, tag="cancel", tag_field="type"):
    """The order to end a job; the event `failed` follows, unless the job has ended by itself."""

    job: str


class PingHost(msgspec.Struct, frozen=True, tag="ping", tag_field="type"):
    """A check whether Spark responds; the host replies with `pong`."""


class StopHost(msgspec.Struct, frozen=True, tag="stop", tag_field="type"):
    """The order to end normally."""


class HostReady(msgspec.Struct, frozen=True, tag="ready", tag_field="type"):
    """The report that Spark has started."""

    versions: dict[str, str]


class Fatal(msgspec.Struct, frozen=True, tag="fatal", tag_field="type"):
    """The report that Spark did not start, or that the host has lost its JVM, its application in a cluster, or its Spark Connect server."""

    text: str


class ExportStarted(msgspec.Struct, frozen=True, tag="started", tag_field="type"):
    """
    The report that Spark has analysed the query.

    Attributes:
        columns: The names of the columns.
        sorted_by: The names of the columns by which Spark sorts.
        versions: The versions of the databases and of the user's code.
        where: The location of the job in a cluster, such as server and session.
        snapshots: The snapshots of tables of Iceberg and Delta, which each later submission and run must read.
    """

    job: str
    columns: tuple[str, ...]
    sorted_by: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    where: dict[str, str] = {}
    snapshots: dict[str, str] = {}


class ExportProgress(msgspec.Struct, frozen=True, tag="progress", tag_field="type"):
    """The report of another task or byte: the number of complete tasks, and of the tasks known so far."""

    job: str
    done: int
    total: int


class Stuck(msgspec.Struct, frozen=True, tag="stuck", tag_field="type"):
    """The report, once for each submission, that a job has had no progress for too long; only `SparkService` receives it."""

    job: str
    text: str


class ExportDone(msgspec.Struct, frozen=True, tag="done", tag_field="type"):
    """The report that all parts are written: their paths in the order of the rows, and the snapshots that Spark has read."""

    job: str
    parts: tuple[str, ...]
    snapshot: str | None = None


class ExportFailed(msgspec.Struct, frozen=True, tag="failed", tag_field="type"):
    """
    The report that the job did not succeed.

    `kind` is one of these:

    - `rejected`: a retry cannot succeed, as with an invalid query.
    - `query`: the query, a table or the user's function failed, and a retry can succeed.
    - `job`: the job failed while it ran.
    - `cancelled`: the job was cancelled, before the host began it or when the host died.
    - `host-died`: the host died during the job, at each submission.
    - `stuck`: the job had no progress, at each submission.
    - `unavailable`: Spark cannot start here.
    - `stopped`: the worker process stops.
    """

    job: str
    kind: str
    text: str


class HostPong(msgspec.Struct, frozen=True, tag="pong", tag_field="type"):
    """The reply to `ping`, after Spark has responded; while Spark waits for a place in a cluster, a report of its own."""


Command = Connect | RunExport | Cancel | PingHost | StopHost
JobEvent = ExportStarted | ExportProgress | ExportDone | ExportFailed
Message = HostReady | Fatal | JobEvent | Stuck | HostPong

_COMMANDS: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_MESSAGES: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode(message: Command | Message) -> bytes:
    """Return a message as one line; each lone surrogate in its texts becomes an escape, because UTF-8 cannot encode it."""
    try:
        line = msgspec.json.encode(message)
    except UnicodeEncodeError:
        line = msgspec.json.encode(as_unicode_data(msgspec.to_builtins(message)))
    return line + b"\n"


def decode_command(line: bytes) -> Command:
    """Return the command of a line; raise msgspec.MsgspecError if the line is not a command."""
    return _COMMANDS.decode(line)


def decode_message(line: bytes) -> Message:
    """Return the message of a line; raise msgspec.MsgspecError if the line is not a message."""
    return _MESSAGES.decode(line)


def as_event(event: JobEvent, **more: Any) -> dict[str, Any]:
    """Return the event in the form for the child."""
    return {**msgspec.to_builtins(event), "end": isinstance(event, ExportDone | ExportFailed), **more}


def from_event(event: Mapping[str, Any]) -> JobEvent:
    """Return the event from which `as_event` made this mapping."""
    found: JobEvent = msgspec.convert(event, JobEvent)
    return found
