"""
Totals by group, or of all rows; Arrow computes them from the parts.

Within a part, sums are decimals of at most 76 digits; the sums of all parts can have any length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal, Inexact, localcontext
from functools import partial
from pathlib import Path
from typing import Any

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.formats import Csv, Format
from steadyworker.exports.manifest import Total, in_order
from steadyworker.exports.sources import arrow
from steadyworker.exports.totals import MOST_GROUPS, refuse_groups
from steadyworker.exports.values import decimal_text

_SCALE = re.compile(r"decimal\(\d+,(\d+)\)")
_BLOCK = 16 << 20
_EXACT = Context(prec=200, traps=[Inexact])


class Groups:
    """
    The sums and counts of all parts, by group.

    Args:
        columns: The name and the Spark type of each column, in order.
        form: The format of the parts.
        by: Columns whose values make the groups; without such columns, all rows are one group.
        summed: Columns to sum, integers or decimals.

    Raises:
        ExportError: pyarrow is missing.
        ExportRejected: A column of `by` has floats or decimals, which have several texts for one value.
    """

    def __init__(
        self, columns: Sequence[tuple[str, str]], form: Format, by: Sequence[str], summed: Sequence[str]
    ) -> None:
        pa = arrow("totals")
        kinds = dict(columns)
        for name in by:
            if kinds[name].startswith(("float", "double", "decimal")):
                raise ExportRejected(
                    f"Expected text, integers or dates in {name!r} to group by, got {kinds[name]}: cast the column to text in the query."
                )
        self._by, self._summed, self._form = list(by), list(summed), form
        self._pa = pa
        scales = {name: int(match[1]) if (match := _SCALE.fullmatch(kinds[name])) else 0 for name in summed}
        self._wide = {name: pa.decimal256(76, scale) for name, scale in scales.items()}
        self._batches: Callable[[Path], Iterator[Any]] = (
            partial(_csv_batches, form, kinds, by, scales)
            if isinstance(form, Csv)
            else partial(_json_batches, kinds, by, scales)
        )
        self._sums: dict[tuple[str | None, ...], list[int | Decimal]] = {}

    def add(self, part: Path) -> None:
        """
        Add a part's rows; the part can be larger than the memory.

        Raises:
            ExportRejected: There are more than `MOST_GROUPS` groups.
        """
        if part.stat().st_size:
            for batch in self._batches(part):
                self.add_batch(batch)

    def add_batch(self, table: Any) -> None:
        """Add these rows (an Arrow batch)."""
        wide = self._pa.table(
            [self._shown(table[name]) for name in self._by]
            + [table[name].cast(kind) for name, kind in self._wide.items()],
            names=[f"by {number}" for number in range(len(self._by))]
            + [f"sum {number}" for number in range(len(self._wide))],
        )
        keys = wide.column_names[: len(self._by)]
        sums = wide.column_names[len(self._by) :]
        found = wide.group_by(keys, use_threads=False).aggregate([([], "count_all"), *((name, "sum") for name in sums)])
        columns = [found[name].to_pylist() for name in (*keys, "count_all", *(f"{name}_sum" for name in sums))]
        with localcontext(_EXACT):
            for row in zip(*columns, strict=True):
                self._add(tuple(row[: len(keys)]), row[len(keys) :])

    def _shown(self, column: Any) -> Any:
        """Return a column's values as the file shows them; values that were read as text are unchanged."""
        if self._pa.types.is_string(column.type):
            return column
        chunks = column.chunks if isinstance(column, self._pa.ChunkedArray) else [column]
        return self._pa.chunked_array([self._form.texts(chunk) for chunk in chunks], self._pa.string())

    def _add(self, group: tuple[str | None, ...], numbers: Sequence[int | Decimal | None]) -> None:
        before = self._sums.get(group, [0] * len(numbers))
        if group not in self._sums and len(self._sums) >= MOST_GROUPS:
            refuse_groups(self._by)
        self._sums[group] = [one if other is None else one + other for one, other in zip(before, numbers, strict=True)]

    def result(self, rows: int) -> tuple[Total, ...]:
        """
        Return the totals of all parts.

        Raises:
            ExportError: The number of rows that Arrow has found in the parts is not `rows`.
        """
        if not self._by:
            self._sums.setdefault((), [0] * (1 + len(self._summed)))
        counted = sum(int(count) for count, *_ in self._sums.values())
        if counted != rows:
            raise ExportError(
                f"Expected {rows} rows in Spark's parts, as in the file, got {counted} by another reader: "
                "the next run repeats the export."
            )
        return in_order(
            Total(
                by=dict(zip(self._by, group, strict=True)),
                rows=int(count),
                sums={name: _shown(value) for name, value in zip(self._summed, sums, strict=True)},
            )
            for group, (count, *sums) in self._sums.items()
        )


def _csv_batches(
    form: Csv, kinds: Mapping[str, str], by: Sequence[str], scales: Mapping[str, int], part: Path
) -> Iterator[Any]:
    import pyarrow.csv as pa_csv  # `arrow()` has checked that it is installed

    # A column that is both summed and grouped by is read as a number, and `_shown` converts it to the file's text.
    types = dict.fromkeys(by, arrow().string()) | {
        name: arrow().decimal128(38, scale) for name, scale in scales.items()
    }
    with pa_csv.open_csv(
        part,
        read_options=pa_csv.ReadOptions(column_names=list(kinds), use_threads=False, block_size=_BLOCK),
        parse_options=pa_csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pa_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[form.null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=list(kinds) == list(scales),  # a NULL is "" if its line has no other cell
            decimal_point="," if form.decimal_comma else ".",
        ),
    ) as batches:
        yield from batches


def _json_batches(
    kinds: Mapping[str, str],
    by: Sequence[str],
    scales: Mapping[str, int],
    part: Path,
) -> Iterator[Any]:
    import pyarrow.json as pa_json  # `arrow()` has checked that it is installed

    pa = arrow()
    plain = {
        "boolean": pa.bool_(),
        "tinyint": pa.int64(),
        "smallint": pa.int64(),
        "int": pa.int64(),
        "bigint": pa.int64(),
    }
    schema = pa.schema([(name, plain.get(kinds[name], pa.string())) for name in dict.fromkeys((*by, *scales))])
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    with pa_json.open_json(
        part, read_options=pa_json.ReadOptions(use_threads=False, block_size=_BLOCK), parse_options=options
    ) as batches:
        for batch in batches:
            yield pa.table(
                [
                    batch[name].cast(pa.decimal128(38, scales[name]))
                    if name in scales and name not in by
                    else batch[name]
                    for name in schema.names
                ],
                names=schema.names,
            )


def _shown(value: int | Decimal) -> str:
    return decimal_text(value) if isinstance(value, Decimal) else str(value)
