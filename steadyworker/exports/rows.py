"""
`RowExport`: rows streamed into a file in the job's own process, resumable at a saved position.

A position is the number of rows and bytes so far, the SHA-256 of these bytes, and the totals of these rows.
When the bytes are on disk, the export saves its position in the job's export state, and never in the user's checkpoint.
A job that exports several files has only one position, which is for the current file.
`Retry(fresh=True)` clears the position.
An export into several files, into a bucket, or in a format with an index at its end, has no position, and starts from the first row.
The next run copies the saved bytes from the earlier stage into its own stage, and hashes them again.
Then it continues at the saved row.
If the saved bytes are missing or differ, the next run starts from the first row.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportError, Interrupt, SteadyWorkerError
from steadyworker.export import Services
from steadyworker.exports.hashed import HashedFile
from steadyworker.exports.manifest import Manifest, Total, plain, valid_unicode
from steadyworker.exports.output import ExportOutput
from steadyworker.exports.s3.address import S3
from steadyworker.exports.several import FilesWriting, Split
from steadyworker.exports.sources import Source, check_columns, columns_of
from steadyworker.exports.stage import drop_incomplete, stage_of, sync_folder
from steadyworker.exports.writing import FileWriting

_HANDLE_BYTES = 60_000  # the ledger accepts 64 KiB; a position with too many groups (more than about 500) is not saved


class Position(msgspec.Struct, frozen=True, kw_only=True, tag="rows"):
    """
    The saved position of a `RowExport`, stored in the export state.

    Attributes:
        target: `ExportTarget.digest` of the current file; a job can export several files, but has one export state.
        asked: The hash of the request; an export with a changed request starts from the first row.
        fence: The fence of the run that wrote the bytes; it is part of the stage's path.
        rows: The number of rows that are saved.
        bytes: The number of bytes that are saved, from the start of the stage's file.
        sha256: The SHA-256 of the saved bytes.
        totals: The totals of the saved rows.
    """

    target: str
    asked: str
    fence: int
    rows: int
    bytes: int
    sha256: str
    totals: tuple[Total, ...] = ()


@dataclass(frozen=True)
class RowExport:
    """
    An export of rows from any Python source: a cursor, a generator, Arrow batches.

    Args:
        rows: An iterable of rows: tuples or lists of one value per column, or Arrow record batches.
            A DB-API cursor that has executed its query, and an Arrow reader, are such iterables.
            A callable `rows(start)` is accepted too: it returns such an iterable, from row number `start` on.
            An interrupted export can resume only if `rows` is a callable.
            The callable must return the same rows in the same order each time: sort by a unique key.
        columns: The names of the columns, in order; by default the names in the cursor or the reader.
        description: A description of the rows, for the manifest; by default the callable's name.
        parameters: The parameters of the rows, for the manifest; they must not contain a credential.
        expected: The expected number of rows, if known; only for the progress display.
        save_rows: The number of rows after which a position is saved.
        save_seconds: The seconds after which a position is saved, even before `save_rows` rows.

    Raises:
        ExportError: Two columns have the same name, a name is not text, or there are no columns.
    """

    rows: Iterable[Any] | Callable[[int], Iterable[Any]]
    _: KW_ONLY
    columns: Sequence[str] | None = None
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    expected: int | None = None
    save_rows: int = 50_000
    save_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.columns is not None:
            check_columns(self.columns)

    def write(
        self,
        services: Services,
        to: str | os.PathLike[str] | S3,
        *,
        format: Any = None,
        totals: Mapping[str, str] | None = None,
        by: Sequence[str] = (),
        if_exists: str = "fail",
        split_rows: int | None = None,
        split_bytes: int | None = None,
        partition_by: Sequence[str] = (),
    ) -> Manifest:
        """
        Make the file or the folder of files, whole or not at all, and return its manifest.

        Raises:
            TargetExists: Another job's file is at the target.
            ExportRejected: A value, path, format or total is invalid.
            ExportError: The export is not possible now.
            Interrupt: The run must end; the position is saved.
        """
        split = Split.of(split_rows, split_bytes, partition_by)
        output = ExportOutput(services, to, SystemClock(), format=format, totals=totals, by=by, split=split)
        if self.columns is not None:
            output.check(self.columns)  # before the first row
        with valid_unicode():
            asked = msgspec.json.encode(
                [self.columns, output.form.options(), totals, by, self.description, plain(self.parameters)],
                order="sorted",
            )
        run = _RowRun(self, output, hashlib.sha256(asked).hexdigest()[:16])
        return output.publish(run.write, if_exists=if_exists)


class _RowRun:
    """One run of one export, in its stage."""

    def __init__(self, export: RowExport, output: ExportOutput, asked: str) -> None:
        self._export, self._output, self._asked = export, output, asked
        self._services, self._clock = output.services, output.clock
        self._writing: FileWriting | FilesWriting  # set when the columns are known
        self._restored: tuple[Total, ...] = ()
        self._resumable = (
            output.place.resumable and output.form.resumable and output.split is None and callable(export.rows)
        )
        self._rows = self._saved_rows = 0
        self._saved_at = self._clock.monotonic()
        self._whole = True  # False while a chunk is half written: SIGTERM can raise Interrupt at any line

    def write(self) -> Manifest:
        """Write `stage.data`, durably, and return its manifest."""
        self._target, self._stage = self._output.target, self._output.stage
        if self._resumable:
            with self._begin() as out:
                self._stream(out)
        else:
            drop_incomplete(self._target, self._services.uid, self._services.fence)
            self._stream(None)
        export = self._export
        described = export.description or getattr(export.rows, "__qualname__", type(export.rows).__name__)
        return self._output.manifest(described, export.parameters)

    def _begin(self) -> HashedFile:
        """Open the stage's file; it starts with the bytes that an earlier run saved, if they are intact."""
        position = self._position()
        if position is not None:
            out = HashedFile(self._stage.data)
            try:
                with stage_of(self._target, self._services.uid, position.fence).data.open("rb") as earlier:
                    out.copy(
                        earlier, position.bytes, lambda: self._beat(position.rows, "copying the rows that are done")
                    )
            except (FileNotFoundError, ExportError):
                pass  # the earlier file is gone or too short, so its hash differs
            if out.sha256 == position.sha256:
                self._restored = position.totals
                self._rows = self._saved_rows = position.rows
                return out
            out.close()
            self._stage.data.unlink()
        drop_incomplete(self._target, self._services.uid, self._services.fence)
        return HashedFile(self._stage.data)

    def _position(self) -> Position | None:
        """Return the position that an earlier run saved for the same export, or None."""
        handle = self._services.export_state()
        if not handle:
            return None
        try:
            position = msgspec.json.decode(handle, type=Position)
        except msgspec.MsgspecError:
            return None  # the state belongs to another kind of export
        return position if (position.target, position.asked) == (self._target.digest, self._asked) else None

    def _stream(self, out: HashedFile | None) -> None:
        """Write all rows; the file `out` has the rows of an earlier run already."""
        rows = self._export.rows
        items = rows(self._rows) if callable(rows) else rows
        columns = self._export.columns if self._export.columns is not None else columns_of(items)
        source = Source(items, columns, self._clock, self._room)
        with self._output.writing(columns, out=out, rows=self._rows, totals=self._restored) as self._writing:
            try:
                for chunk in source:
                    self._put(out, chunk)
                self._beat(self._rows)
            except Interrupt:
                if self._whole:
                    with suppress(OSError, SteadyWorkerError):  # otherwise the earlier position stays valid
                        self._save(out)
                raise

    def _put(self, out: HashedFile | None, chunk: Sequence[Any]) -> None:
        self._whole = False
        self._writing.add(chunk)
        self._rows = self._writing.rows
        self._whole = True
        self._beat(self._rows)
        now = self._clock.monotonic()
        if self._rows - self._saved_rows >= self._export.save_rows or now - self._saved_at >= self._export.save_seconds:
            self._save(out)

    def _room(self) -> int:
        """Return how many rows may come until the next position is saved."""
        return self._saved_rows + self._export.save_rows - self._rows if self._resumable else sys.maxsize

    def _beat(self, rows: int, note: str = "") -> None:
        self._services.progress(rows, self._export.expected, note)
        self._services.check()

    def _save(self, out: HashedFile | None) -> None:
        """
        Write the bytes to disk, save the position in the ledger, and remove the stages of earlier runs, in this order.

        In another order, a killed run could leave a position without its bytes.
        """
        if out is None or self._rows == self._saved_rows:
            return
        self._whole = False
        self._writing.flush()
        self._whole = True
        out.sync()
        sync_folder(self._stage.path)
        position = msgspec.json.encode(
            Position(
                target=self._target.digest,
                asked=self._asked,
                fence=self._stage.fence,
                rows=self._rows,
                bytes=out.bytes,
                sha256=out.sha256,
                totals=self._output.totals.result(),
            )
        )
        if len(position) <= _HANDLE_BYTES:
            self._services.save_export_state(position)
            drop_incomplete(self._target, self._services.uid, self._stage.fence)
        self._saved_rows, self._saved_at = self._rows, self._clock.monotonic()
