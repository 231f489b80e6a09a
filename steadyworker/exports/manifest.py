"""
The manifest of an exported file: `FILE.manifest.json` next to it, written once and never changed.

An export into several files makes a folder; its manifest is `_manifest.json` in it, and lists each file.

If the job runs again, its export returns this manifest, and does not make the file again.
`steadyworker verify FILE` checks the file against its manifest.
An export stores its query and parameters in the manifest, but never its connection or a password.
"""

from __future__ import annotations

import builtins
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from steadyworker.clock import Clock
from steadyworker.errors import ExportError, ExportRejected
from steadyworker.export import Services
from steadyworker.text.versions import version

SCHEMA = 1


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """
    The totals of one group of rows; an export without `by` has one group, of all rows.

    Attributes:
        by: The group's value of each `by` column: its text in the file without quotes, or None for NULL.
        rows: The number of rows in the group.
        sums: The exact sum of each column, as a plain decimal (never with an exponent).
            NULLs are ignored; the sum of no values is "0".
    """

    by: dict[str, str | None] = {}
    rows: int
    sums: dict[str, str] = {}


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True):
    """
    One of several files of an export.

    Attributes:
        name: The file's path in the folder, with `/` between names.
        partition: The value of each column of the partition: its text, or None for NULL.
        rows: The number of rows, without the header line.
        bytes: The size of the file.
        sha256: The SHA-256 of the file, in hex digits.
        totals: The totals of the file's rows, as those of the whole export.
    """

    name: str
    partition: dict[str, str | None] = {}
    rows: int
    bytes: int
    sha256: str
    totals: tuple[Total, ...] = ()

    @staticmethod
    def listing(files: Iterable[ManifestFile]) -> builtins.bytes:
        """Return one line for each file, as `sha256sum` prints it."""
        return "".join(f"{file.sha256}  {file.name}\n" for file in files).encode()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """
    The description of one committed export.

    Attributes:
        schema: The version of the manifest's schema.
        uid: The uid of the job that made the file.
            The ledger generates a uid for each new row, so a later job with the same key has another uid.
        key: The job's key.
        queue: The queue of the job's message; keys are unique only within a queue of a namespace.
        namespace: The ledger's name for the queue's broker; a manifest of an earlier version has an empty `namespace` and `queue`.
        fence: The fence of the run that wrote the file's bytes; perhaps a later run of the job published the file.
        name: The file's name when it was made.
        query: The query, or the description of the rows' source.
        parameters: The query's parameters.
        snapshot: The snapshot of the source that the export read, if the source reports one.
        columns: The file's columns, in order.
        rows: The number of rows, without the header line.
        ties: The number of rows that have the values of the row before in all columns by which the export sorts.
            With 0, the order of the rows is unique, so that a second export of the same rows makes the same file.
            None if the export does not sort.
        totals: One `Total` per group, sorted by group; empty if no totals were requested.
        bytes: The size of the file, or of all files together.
        sha256: The SHA-256 of the file, in hex digits; of several files, the SHA-256 of their list (`ManifestFile.listing`).
        files: The files in the folder, sorted by name; None if the export made one file.
        format: The format's `name` and its options.
        versions: The version of each tool.
        timings: The seconds that each step took, in the run that wrote the file's bytes.
        limits: Sentences about what the target did not promise; empty for a path of this host, S3, Google Cloud and Azure.
        created_at: The time of creation, ISO 8601 in UTC; no code uses it.
    """

    schema: int = SCHEMA
    uid: str
    key: str
    queue: str = ""
    namespace: str = ""
    fence: int
    name: str
    query: str
    parameters: dict[str, Any] = {}
    snapshot: str | None = None
    columns: tuple[str, ...]
    rows: int
    ties: int | None = None
    totals: tuple[Total, ...] = ()
    bytes: int
    sha256: str
    files: tuple[ManifestFile, ...] | None = None
    format: dict[str, Any]
    versions: dict[str, str] = {}
    timings: dict[str, float] = {}
    limits: tuple[str, ...] = ()
    created_at: str

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """
        Read a manifest of this host.

        Raises:
            ExportError: The file does not exist, is not a manifest, or has a newer schema.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ExportError(
                f"Expected a manifest at {path}, got {error.strerror}: check that job.export made this file."
            ) from error
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: builtins.bytes, place: str) -> Manifest:
        """
        Return the manifest that these bytes are; `place` names them in an error.

        Raises:
            ExportError: They are not a manifest, or it has a newer schema.
        """
        try:
            manifest = msgspec.json.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise ExportError(f"Expected a manifest at {place}, got another file ({error}): move it away.") from error
        if manifest.schema > SCHEMA:
            raise ExportError(
                f"Expected a manifest of schema up to {SCHEMA} at {place}, got {manifest.schema}: upgrade steadyworker."
            )
        return manifest

    def dump(self) -> builtins.bytes:
        """Return the manifest as indented JSON with a line end, so that people can read it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def in_order(totals: Iterable[Total]) -> tuple[Total, ...]:
    """Return the totals sorted by the text of their groups, NULL first, so that the order of the rows has no effect."""
    return tuple(sorted(totals, key=lambda total: [(value is not None, value or "") for value in total.by.values()]))


def plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the parameters as the JSON values that `Manifest.load` reads; a value of another type becomes text.

    Raises:
        ExportRejected: A text has a lone surrogate.
    """
    with valid_unicode():
        values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(parameters, enc_hook=str))
    return values


@contextmanager
def valid_unicode() -> Iterator[None]:
    """Raise ExportRejected if the body of this `with` block encodes a text of an export that has a lone surrogate."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise ExportRejected(
            f"Expected valid Unicode in the query, parameters and paths of an export, got {error.object!r:.200}, which has a "
            f"lone surrogate at {error.start} (os.fsdecode makes it from bytes that are not UTF-8): decode the bytes with their own encoding."
        ) from error


def timestamp(clock: Clock) -> str:
    """Return the clock's wall time as ISO 8601 in UTC, for a manifest."""
    return datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="seconds")


def versions(*distributions: str) -> dict[str, str]:
    """Return the versions of Python, of SteadyWorker and of these distributions, for a manifest."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("steadyworker", *distributions)}


def same_key(manifest: Manifest, named: Manifest | Services) -> bool:
    """Return whether a job with the key of this job, in the same queue, has made the file."""
    made = manifest.namespace, manifest.queue, manifest.key
    return made == (named.namespace, named.queue, named.key)
