"""
Totals by group, read by Arrow out of the parts that are joined: Spark can observe sums on the way to its writer, but no groups.

Sums are decimals of 76 digits within a part, and of any length over all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Context, Decimal, Inexact, localcontext
from pathlib import Path
from typing import Any

from steadyworker.errors import ExportError
from steadyworker.exports.formats import Csv
from steadyworker.exports.manifest import Total, in_order
from steadyworker.exports.values import decimal_text

_SCALE = re.compile(r"decimal\(\d+,(\d+)\)")
_EXACT = Context(prec=200, traps=[Inexact])


class Groups:
    """
    Adds parts up.

    Args:
        columns: (name, Spark type) of each, in order.
        form: How the parts are written.
        by: Columns whose values make the groups.
        summed: Columns to sum, integers or decimals.

    Raises:
        ExportError: No pyarrow; a group by numbers that are equal in several texts.
    """

    def __init__(self, columns: Sequence[tuple[str, str]], form: Csv, by: Sequence[str], summed: Sequence[str]) -> None:
        try:
            import pyarrow as pa
            import pyarrow.csv as pa_csv
        except ImportError as error:
            raise ExportError(
                "Expected pyarrow for totals by group, got no such module: pip install 'steadyworker[spark]'."
            ) from error
        kinds = dict(columns)
        for name in by:
            if kinds[name].startswith(("float", "double", "decimal")):
                raise ExportError(
                    f"Expected text, integers or dates in {name!r} to group by, got {kinds[name]}: cast the column to text in the query."
                )
        self._by, self._summed = list(by), list(summed)
        self._pa, self._csv = pa, pa_csv
        scales = {name: int(match[1]) if (match := _SCALE.fullmatch(kinds[name])) else 0 for name in summed}
        self._wide = {name: pa.decimal256(76, scale) for name, scale in scales.items()}
        self._read = pa_csv.ReadOptions(column_names=list(kinds), use_threads=False, block_size=16 << 20)
        self._parse = pa_csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True, ignore_empty_lines=False)
        # One column may be summed and grouped by: it is read as what is summed, and shown as its text is.
        types = dict.fromkeys(by, pa.string()) | {name: pa.decimal128(38, scale) for name, scale in scales.items()}
        self._convert = pa_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[form.null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        self._sums: dict[tuple[str | None, ...], list[int | Decimal]] = {}

    def add(self, part: Path) -> None:
        """Add a part's rows."""
        if not part.stat().st_size:
            return
        table: Any = self._csv.read_csv(
            part, read_options=self._read, parse_options=self._parse, convert_options=self._convert
        )
        wide = self._pa.table(
            [table[name] for name in self._by] + [table[name].cast(kind) for name, kind in self._wide.items()],
            names=[f"by {number}" for number in range(len(self._by))]
            + [f"sum {number}" for number in range(len(self._wide))],
        )
        keys = wide.column_names[: len(self._by)]
        sums = wide.column_names[len(self._by) :]
        found = wide.group_by(keys, use_threads=False).aggregate([([], "count_all"), *((name, "sum") for name in sums)])
        columns = [found[name].to_pylist() for name in (*keys, "count_all", *(f"{name}_sum" for name in sums))]
        with localcontext(_EXACT):
            for row in zip(*columns, strict=True):
                self._add(tuple(None if key is None else str(key) for key in row[: len(keys)]), row[len(keys) :])

    def _add(self, group: tuple[str | None, ...], numbers: Sequence[int | Decimal | None]) -> None:
        before = self._sums.get(group, [0] * len(numbers))
        self._sums[group] = [one if other is None else one + other for one, other in zip(before, numbers, strict=True)]

    def result(self) -> tuple[Total, ...]:
        """The totals of all parts."""
        return in_order(
            Total(
                by=dict(zip(self._by, group, strict=True)),
                rows=int(count),
                sums={name: _shown(value) for name, value in zip(self._summed, sums, strict=True)},
            )
            for group, (count, *sums) in self._sums.items()
        )


def check(totals: Sequence[Total], rows: int, sums: dict[str, str]) -> None:
    """
    Compare what was read out of the parts with what Spark observed on the way to them.

    Raises:
        ExportError: They differ.
    """
    with localcontext(_EXACT):
        found = {name: sum((Decimal(total.sums[name]) for total in totals), Decimal(0)) for name in sums}
    if sum(total.rows for total in totals) != rows or any(
        found[name] != Decimal(value) for name, value in sums.items()
    ):
        raise ExportError(
            f"Expected the totals that Spark counted, {rows} rows and sums {sums}, got {found} by group: the file is not what Spark wrote."
        )


def _shown(value: int | Decimal) -> str:
    return decimal_text(value) if isinstance(value, Decimal) else str(value)
