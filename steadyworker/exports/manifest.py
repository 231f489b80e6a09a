"""
What is told about an exported file: `FILE.manifest.json` beside it, made once and never changed.

A redelivered job is answered from it, `steadyworker verify FILE` re-reads the file against it.
It never holds a credential: an export puts its query and its parameters there, and no connection.
"""

from __future__ import annotations

import builtins
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from steadyworker.clock import Clock
from steadyworker.errors import ExportError

SCHEMA = 1


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """
    The totals of one group of rows; an export without `by` has one group, of all rows.

    Attributes:
        by: Column to value, as text in the way that the file has it, without quotes; None is NULL.
        rows: How many rows the group has.
        sums: Column to its exact sum, as a plain decimal (never with an exponent).
            NULLs are passed over; the sum of nothing is "0".
    """

    by: dict[str, str | None] = {}
    rows: int
    sums: dict[str, str] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one committed export is.

    Attributes:
        schema: Version of this record.
        uid: The job that made the file: drawn when the ledger first saw it, so that a key used again is told apart.
        key: The job's key.
        fence: The run that wrote the bytes; a later run of the same job may have linked them.
        name: The file's name when it was made.
        query: What was asked: a query, or the description of where rows come from.
        parameters: The query's parameters.
        snapshot: Which moment of the source was read, where the source can say.
        columns: The file's columns, in order.
        rows: Rows, without header.
        totals: One `Total` per group, sorted by group; empty when no totals were asked for.
        bytes: Size of the file.
        sha256: Its SHA-256, in hex digits.
        format: The format's `name` and its options.
        versions: Tool to version.
        timings: Step to seconds; of the run that wrote the bytes.
        created_at: When it was made, ISO 8601 in UTC; for people.
    """

    schema: int = SCHEMA
    uid: str
    key: str
    fence: int
    name: str
    query: str
    parameters: dict[str, Any] = {}
    snapshot: str | None = None
    columns: tuple[str, ...]
    rows: int
    totals: tuple[Total, ...] = ()
    bytes: int
    sha256: str
    format: dict[str, Any]
    versions: dict[str, str] = {}
    timings: dict[str, float] = {}
    created_at: str

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """
        Read a manifest.

        Raises:
            ExportError: No such file, not a manifest, or one of a newer schema.
        """
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise ExportError(
                f"Expected a manifest at {path}, got {error.strerror}: was the file made by job.export?"
            ) from error
        except msgspec.MsgspecError as error:
            raise ExportError(
                f"Expected a manifest at {path}, got what is none ({error}): something else wrote it."
            ) from error
        if manifest.schema > SCHEMA:
            raise ExportError(
                f"Expected a manifest of schema up to {SCHEMA} at {path}, got {manifest.schema}: upgrade steadyworker."
            )
        return manifest

    def dump(self) -> builtins.bytes:
        """The manifest as indented JSON with a line end: people read it, too."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def in_order(totals: Iterable[Total]) -> tuple[Total, ...]:
    """Sort totals by the text of their groups, NULL first: the same rows give the same manifest in whatever order."""
    return tuple(sorted(totals, key=lambda total: [(value is not None, value or "") for value in total.by.values()]))


def plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as a manifest reads them back: what JSON has no notation for is text."""
    told: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(parameters, enc_hook=str))
    return told


def timestamp(clock: Clock) -> str:
    """The wall clock as a manifest records it."""
    return datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="seconds")


def versions(*distributions: str) -> dict[str, str]:
    """Versions of Python, of SteadyWorker and of these distributions, as a manifest records them."""
    return {"python": platform.python_version()} | {name: _version(name) for name in ("steadyworker", *distributions)}


def _version(distribution: str) -> str:
    """The installed version; "unknown" for a checkout that is run without being installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
