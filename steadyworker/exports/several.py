"""
An export into several files: a folder whose manifest lists them.

::

    OUT/march/                                      the target: absent, or renamed into place with all that is in it
        _manifest.json                              each file's name, rows, bytes, SHA-256 and totals
        part-00001.csv, part-00002.csv …            with `split_rows` or `split_bytes`
        merchant=m-17/status=paid/part-00001.csv    with `partition_by`, as Hive, Spark and DuckDB name them

A file ends after `split_rows` rows, or with the first 4,000 rows after which it has `split_bytes` bytes.
Only `split_rows` divides XLSX, because XlsxWriter makes a file after its last row.
Compressed bytes that wait in memory do not count yet.

A name that begins with `_` is no data for Spark, pyarrow and Hive.
A partition's value is in the folder's name and in the file.
In the name, all but letters, digits, `-`, `.`, `_` and `~` is percent-encoded, and NULL is `__null__`; the text `__null__` is `%5F_null__`.

At most 256 files are open at a time, and 32 if they are compressed or have an index at the end, because each needs memory.
Then the file without rows for the longest time is closed.
If its partition has rows again, they go to its next file.
So sort the rows by the partition's columns, or have few partitions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.formats import Format
from steadyworker.exports.hashed import HashedFile
from steadyworker.exports.manifest import ManifestFile
from steadyworker.exports.packed import SUFFIXES
from steadyworker.exports.render import plain_texts
from steadyworker.exports.sources import arrow
from steadyworker.exports.stage import make_folder, sync_folder
from steadyworker.exports.totals import Totals, group_texts
from steadyworker.exports.writing import THREADS, FileWriting, Ties, writing

MOST_FILES = 10_000
"""The maximum number of files of one export."""

# Files: an open Parquet file holds up to 65,536 rows, and an open compressed file some MiB.
_OPEN, _OPEN_PLAIN = 32, 256
_FEW = 1_000  # rows that wait for a file, because a kernel's call costs as much as many rows
_BLOCK = 4_000  # rows after which a file's size is measured, so that equal rows give equal files whatever the batches
_GROUPS = 100_000  # the most groups of totals of all files together, because the manifest lists them
_NAME_BYTES = 255
_NULL = "__null__"


@dataclass(frozen=True, slots=True)
class Split:
    """
    The rule by which the rows of an export are divided into files.

    Args:
        rows: The most rows of a file.
        bytes: The size after which a file ends.
        by: The columns whose values name the file's folder.

    Raises:
        ExportRejected: A limit is not positive, or a column is named twice.
    """

    rows: int | None = None
    bytes: int | None = None
    by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, limit in (("split_rows", self.rows), ("split_bytes", self.bytes)):
            if limit is not None and limit < 1:
                raise ExportRejected(f"Expected {name} of at least 1, got {limit}: correct it, or leave it out.")
        if len({*self.by}) < len(self.by):
            raise ExportRejected(f"Expected each column once in partition_by, got {list(self.by)}: correct it.")

    @classmethod
    def of(cls, rows: int | None, size: int | None, by: Sequence[str]) -> Split | None:
        """Return the rule of these arguments of `Job.export`; None for one file."""
        return None if rows is None and size is None and not by else cls(rows, size, tuple(by))

    def check(self, columns: Sequence[str], form: Format) -> None:
        """
        Check that the rows have the columns of the partition, and that the format's files have a size while they are written.

        Raises:
            ExportRejected: A column does not exist, or XLSX is divided by size.
        """
        if self.bytes is not None and form.name == "xlsx":
            raise ExportRejected(
                f"Expected no split_bytes for XLSX, because a file's size is known only at its end, got {self.bytes:,}: "
                "use split_rows."
            )
        for name in self.by:
            if name not in columns:
                raise ExportRejected(
                    f"Expected partition_by to name columns of this export ({', '.join(columns)}), got {name!r}: correct it."
                )


class FilesWriting:
    """
    Several files while their rows are written; it has the methods of `writing.FileWriting`.

    At the normal end of its `with` block, all files are complete and durable.

    Attributes:
        rows: The number of rows so far.
        ties: The count of equal neighbours.
        files: The complete files, in the order of their names at the end.

    Args:
        folder: The folder to make; its parent exists.
        form: The files' format.
        columns: The columns' names.
        totals: The counts and sums of all rows.
        split: The rule that divides the rows, whose `check` accepted format and columns.
        new_totals: A function that returns empty totals for a file.
        keys: The places of the columns by which the rows are sorted; the ties of these columns are counted.
    """

    def __init__(
        self,
        folder: Path,
        form: Format,
        columns: Sequence[str],
        totals: Totals,
        *,
        split: Split,
        new_totals: Callable[[], Totals],
        keys: Sequence[int] = (),
    ) -> None:
        make_folder(folder)
        self._folder, self._form, self._columns, self._totals = folder, form, columns, totals
        self._split, self._new_totals, self._pool = split, new_totals, ThreadPoolExecutor(THREADS, "render")
        self._places = [columns.index(name) for name in split.by]
        # This writer only converts chunks to batches, so that all files have the types of the first chunk.
        self._typed = form.writer(BytesIO(), columns)
        self._most = _OPEN_PLAIN if form.resumable else _OPEN
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}  # the last one had rows last
        self._numbers: dict[tuple[str | None, ...], int] = {}
        self._groups = 0
        self.rows, self.ties = 0, Ties(keys)
        self.files: list[ManifestFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._typed.close()
            while self._open:
                self._open.popitem()[1].abandon()
            self._pool.shutdown(cancel_futures=True)

    @property
    def bytes(self) -> int:
        """The size of the complete files together."""
        return sum(file.bytes for file in self.files)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the list of the complete files, as `ManifestFile.listing` gives it."""
        return hashlib.sha256(ManifestFile.listing(self.files)).hexdigest()

    def add(self, chunk: Sequence[Any]) -> None:
        """
        Write the rows of a chunk, a list of Arrow batches or of plain rows (`sources.Source`); some rows wait for the end.

        Raises:
            ExportRejected: The format cannot represent a value, or there are too many files.
        """
        batch = self._typed.batch(chunk, self.rows)
        self.ties.add(batch)
        for partition, part in self._parts(batch):
            at = 0
            while at < part.num_rows:
                file = self._file(partition)
                at += file.add(part, at)
                if file.full:
                    self._complete(partition)
        self.rows += batch.num_rows

    def flush(self) -> None:
        """Do nothing: the rows of an incomplete folder are of no use to a later run."""

    def _finish(self) -> None:
        """Complete all files; without rows and partitions, make one file without rows."""
        if not self.rows and not self._split.by:
            self._file(())
        for partition in [*self._open]:
            self._complete(partition)
        self.files.sort(key=lambda file: file.name)
        folders = {parent for file in self.files for parent in (self._folder / file.name).parents}
        for folder in {self._folder, *(each for each in folders if each.is_relative_to(self._folder))}:
            sync_folder(folder)

    def _parts(self, batch: Any) -> Iterator[tuple[tuple[str | None, ...], Any]]:
        """Yield the rows of each partition, in their order."""
        if not self._places or not batch.num_rows:
            yield (), batch
            return
        texts = [group_texts(self._columns[place], batch.column(place), plain_texts) for place in self._places]
        if len(texts) == 1 and len(texts[0].unique()) == 1:
            yield (texts[0][0].as_py(),), batch  # sorted rows, as most are
            return
        names = [str(number) for number in range(len(texts))]
        numbers = arrow().array(range(batch.num_rows), arrow().int32())
        table = arrow().table([*texts, numbers], names=[*names, "rows"])
        found = table.group_by(names, use_threads=False).aggregate([("rows", "list")])
        partitions = zip(*(found[name].to_pylist() for name in names), strict=True)
        for partition, places in zip(partitions, found["rows_list"].combine_chunks(), strict=True):
            yield partition, batch.take(places.values)

    def _file(self, partition: tuple[str | None, ...]) -> _OpenFile:
        """Return the partition's open file, now the last one in `_open`."""
        file = self._open.pop(partition, None)
        if file is None:
            if len(self._open) >= self._most:
                self._complete(next(iter(self._open)))
            file = self._new_file(partition)
        self._open[partition] = file
        return file

    def _new_file(self, partition: tuple[str | None, ...]) -> _OpenFile:
        if len(self.files) + len(self._open) >= MOST_FILES:
            raise ExportRejected(
                f"Expected at most {MOST_FILES:,} files in one export, got more at row {self.rows:,}: "
                + (
                    "sort the rows by the columns of partition_by, or leave out columns with many values."
                    if partition
                    else "raise split_rows or split_bytes."
                )
            )
        number = self._numbers[partition] = self._numbers.get(partition, 0) + 1
        names = [_safe(column, value) for column, value in zip(self._split.by, partition, strict=True)]
        name = "/".join([*names, f"part-{number:05}{_suffix(self._form)}"])
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return _OpenFile(path, name, partition, self._form, self._columns, self._new_totals(), self._split, self._pool)

    def _complete(self, partition: tuple[str | None, ...]) -> None:
        file = self._open.pop(partition)
        made = file.complete()
        self._totals.include(made.totals)
        self._groups += len(made.totals)
        if self._groups > _GROUPS:
            raise ExportRejected(
                f"Expected at most {_GROUPS:,} groups of totals in all files of one export, got more: "
                "make fewer files, or remove the columns with many values from by=."
            )
        self.files.append(made)


class _OpenFile:
    """One of several files while its rows are written."""

    def __init__(
        self,
        path: Path,
        name: str,
        partition: tuple[str | None, ...],
        form: Format,
        columns: Sequence[str],
        totals: Totals,
        split: Split,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._name, self._totals, self._split = name, totals, split
        self._partition = dict(zip(split.by, partition, strict=True))
        self._waiting: list[Any] = []  # batches of one schema
        self._rows = self._given = 0  # accepted, and handed to `_writing`
        self._out = HashedFile(path)
        self._body = ExitStack()
        self._writing: FileWriting = self._body.enter_context(writing(self._out, form, columns, totals, pool=pool))
        self.full = False

    def add(self, batch: Any, first: int) -> int:
        """Accept rows of the batch from its row `first` on, and return how many were accepted."""
        room = _BLOCK - self._rows % _BLOCK
        if self._split.rows is not None:
            room = min(room, self._split.rows - self._rows)
        count: int = min(room, batch.num_rows - first)
        if self._waiting and self._waiting[0].schema != batch.schema:
            self._hand_over()
        whole = count == batch.num_rows
        self._waiting.append(
            batch if whole else batch.take(arrow().array(range(first, first + count), arrow().int32()))
        )
        self._rows += count
        if count == room or self._rows - self._given >= _FEW:
            self._hand_over()
        if count == room:
            self.full = self._rows == self._split.rows
            if self._split.bytes is not None:
                self._writing.flush()
                self.full = self.full or self._out.bytes >= self._split.bytes
        return count

    def complete(self) -> ManifestFile:
        """Write what waits and the end of the file, durably, and return its entry in the manifest."""
        try:
            self._hand_over()
            with self._named():
                self._body.close()  # a normal end, so `writing` writes the end of the file
            self._out.sync()
        finally:
            self.abandon()
        return ManifestFile(
            name=self._name,
            partition=self._partition,
            rows=self._rows,
            bytes=self._out.bytes,
            sha256=self._out.sha256,
            totals=self._totals.result(),
        )

    def abandon(self) -> None:
        """Release the file; if it is not complete, it gets no end."""
        error = ExportError(f"{self._name} was not completed")
        with suppress(ExportError):
            self._body.__exit__(ExportError, error, None)
        self._out.close()

    def _hand_over(self) -> None:
        if self._waiting:
            waiting, self._waiting, self._given = self._waiting, [], self._rows
            with self._named():
                # Not converted again: the digits of a number would become a text.
                for batch in arrow().Table.from_batches(waiting).combine_chunks().to_batches():
                    self._writing.add_batch(batch)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file in an error, because its row is counted in the file."""
        try:
            yield
        except ExportRejected as error:
            raise ExportRejected(f"File {self._name}: {error}") from error


def _safe(column: str, value: str | None) -> str:
    """
    Return the name of a partition's folder.

    Raises:
        ExportRejected: The name has more than 255 bytes.
    """
    shown = _NULL if value is None else quote(value, safe="")
    name = f"{quote(column, safe='')}={'%5F' + shown[1:] if value == _NULL else shown}"
    if len(name) > _NAME_BYTES:
        raise ExportRejected(
            f"Expected a folder name of at most {_NAME_BYTES} bytes for a partition, got {len(name)} ({name!r:.100}…): "
            "shorten the value in the query, or leave its column out of partition_by."
        )
    return name


def _suffix(form: Format) -> str:
    endings = {compression: ending for ending, compression in SUFFIXES.items()}
    return f".{form.name}{endings[form.compression] if form.compression else ''}"
