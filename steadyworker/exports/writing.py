"""
The way of an export's rows into its file, for every export: Arrow batches become bytes, which are hashed, and rows are counted and summed.

::

    chunk ──Writer.batch──→ batch ──┬─ rendered in two threads ──→ in order: compression, file, SHA-256
                                    └─ totals and ties, in the caller's thread

Equal rows give equal bytes, because each export writes with this module.
An export can write batches of any size, but memory holds several batches: batches of about 16 MiB are good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

from steadyworker.exports.format import Format, Writer, packed
from steadyworker.exports.render import Out, TextWriter
from steadyworker.exports.sources import arrow
from steadyworker.exports.totals import Totals

THREADS = 2
"""The number of threads that render, because Arrow's kernels work without the GIL."""

_AHEAD = 2 * THREADS  # the most batches that wait for their turn in the file


@contextmanager
def writing(
    out: Out,
    form: Format,
    columns: Sequence[str],
    totals: Totals,
    *,
    rows: int = 0,
    keys: Sequence[int] = (),
    pool: ThreadPoolExecutor | None = None,
) -> Iterator[FileWriting]:
    """
    Yield the writing of one file; at the normal end of the `with` block, all rows are in the file, with the bytes after them.

    Args:
        out: The output for the file's bytes, such as `HashedFile`.
        form: The file's format.
        columns: The columns' names.
        totals: The counts and sums of the rows.
        rows: The number of rows that `out` has already; without such rows, the file begins with the format's head.
        keys: The places of the columns by which the rows are sorted; the ties of these columns are counted.
        pool: The threads that render, if several files share them; otherwise the file has its own.

    Raises:
        ExportRejected: The format cannot represent a value, or the totals cannot sum it.
    """
    own = pool is None
    pool = pool or ThreadPoolExecutor(THREADS, "render")
    try:
        with packed(out, form) as body, closing(form.writer(body, columns)) as writer:
            if not rows:
                body.write(form.head(columns))
            made = FileWriting(body, writer, pool, totals, rows, Ties(keys))
            yield made
            made.flush()
            writer.finish()
    finally:
        if own:
            pool.shutdown(cancel_futures=True)


class FileWriting:
    """
    One file while its rows are written.

    Attributes:
        rows: The number of rows so far, with the rows that wait for `flush`.
        ties: The count of equal neighbours.
    """

    def __init__(
        self, body: Out, writer: Writer, pool: ThreadPoolExecutor, totals: Totals, rows: int, ties: Ties
    ) -> None:
        self._body, self._writer, self._pool, self._totals = body, writer, pool, totals
        self._waiting: deque[Future[memoryview]] = deque()
        self.rows, self.ties = rows, ties

    def add(self, chunk: Sequence[Any]) -> None:
        """
        Write the rows of a chunk, a list of Arrow batches or of plain rows (`sources.Source`); some batches can wait for `flush`.

        Raises:
            ExportRejected: The format cannot represent a value of this chunk, or of a chunk before; the message has the row's number.
        """
        self.add_batch(self._writer.batch(chunk, self.rows))

    def add_batch(self, batch: Any) -> None:
        """Write the rows of a batch that a writer of this format has made; raise as `add`."""
        if isinstance(self._writer, TextWriter):
            self._waiting.append(self._pool.submit(self._writer.render, batch, self.rows))
        else:
            self._writer.write(batch, self.rows)
        self._totals.add(batch)
        self.ties.add(batch)
        self.rows += batch.num_rows
        if len(self._waiting) > _AHEAD:
            self._body.write(self._waiting.popleft().result())

    def flush(self) -> None:
        """Return when `out` has the rows of all chunks, if the format has neither compression nor an index."""
        while self._waiting:
            self._body.write(self._waiting.popleft().result())


class Ties:
    """
    The number of rows that have the same values as the row before in all sort columns.

    If there is no such row, the order of the rows is unique, and a second run makes the same file.
    As in a sort, NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0.

    Attributes:
        count: The number so far.

    Args:
        keys: The places of the sort columns.
    """

    def __init__(self, keys: Sequence[int]) -> None:
        self._keys = keys
        self._last: list[Any] = []
        self.count = 0

    def add(self, batch: Any) -> None:
        """Compare neighbours in this batch, and its first row with the last row of the batch before."""
        if not self._keys or not batch.num_rows:
            return
        columns = [batch.column(place) for place in self._keys]
        last = batch.num_rows - 1
        if self._last:
            self.count += all(
                _equal(one, column.slice(0, 1))[0].as_py() for one, column in zip(self._last, columns, strict=True)
            )
        self._last = [
            column.take(arrow().array([last])) for column in columns
        ]  # a copy, because a slice keeps its batch
        places: Any = None
        for column in columns:  # each column only where all columns before it are equal
            if places is None:
                found = _equal(column.slice(0, last), column.slice(1))
                places = arrow().compute.indices_nonzero(found)
            else:
                next_ones = arrow().compute.add(places, arrow().scalar(1, places.type))
                places = places.filter(_equal(column.take(places), column.take(next_ones)))
            if not len(places):
                return
        self.count += len(places)


def _equal(one: Any, other: Any) -> Any:
    """Return for each place whether the values are equal."""
    pa = arrow()
    kernels, kind = pa.compute, one.type
    if pa.types.is_nested(kind) or pa.types.is_null(kind):  # Arrow compares no nested values
        return pa.array([a == b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], pa.bool_())
    equal = kernels.equal(one, other)
    if pa.types.is_floating(kind):
        equal = kernels.or_(equal, kernels.and_(kernels.is_nan(one), kernels.is_nan(other)))
    return kernels.coalesce(equal, kernels.and_(one.is_null(), other.is_null()))
