"""Exact totals, computed while the rows are written: counts and sums per group, kept as integers and decimals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow, localcontext
from typing import NoReturn

from steadyworker.errors import ExportRejected
from steadyworker.exports.manifest import Total, in_order
from steadyworker.exports.values import decimal_text

_DIGITS = 200  # the most digits of a sum; a sum of values with 38 digits has far fewer digits
_EXACT = (int, Decimal)
MOST_GROUPS = 10_000
"""The maximum number of groups of one export, because memory and manifest contain all groups."""


def refuse_groups(by: Sequence[str]) -> NoReturn:
    """Raise ExportRejected for more than `MOST_GROUPS` groups, because a retry would find the same groups."""
    raise ExportRejected(
        f"Expected at most {MOST_GROUPS:,} groups of totals by {', '.join(by)}, got more: "
        "remove the columns with many values from by=, or group in the query and export the groups."
    )


class Totals:
    """
    Counts and sums of rows, by group.

    Args:
        columns: The rows' columns.
        totals: The columns to sum, each with the function "sum".
        by: The columns to group by.
        text: A function that returns a value's text in the file (`Format.text`); the value is not None.

    Raises:
        ExportRejected: A column does not exist, or a function is not "sum".
            `add` and `result` also raise it, if there are more than `MOST_GROUPS` groups.
    """

    def __init__(
        self, columns: Sequence[str], totals: Mapping[str, str] | None, by: Sequence[str], text: Callable[[object], str]
    ) -> None:
        wanted = dict(totals or {})
        for column in (*wanted, *by):
            if column not in columns:
                raise ExportRejected(
                    f"Expected `totals` and `by` to name columns of this export ({', '.join(columns)}), got {column!r}: correct it."
                )
        for column, function in wanted.items():
            if function != "sum":
                raise ExportRejected(
                    f'Expected "sum" as total of {column!r}, got {function!r}: write "sum", or leave the column out.'
                )
        self._text = text
        self._names, self._by = tuple(wanted), tuple(by)
        self._summed = [columns.index(column) for column in wanted]
        self._grouped = [columns.index(column) for column in by]
        self._context = Context(prec=_DIGITS, traps=[Inexact, InvalidOperation, Overflow])
        self._groups: dict[tuple[object, ...], list[int | Decimal]] = {}
        self._restored: dict[tuple[str | None, ...], list[int | Decimal]] = {}

    def add(self, rows: Sequence[Sequence[object]]) -> None:
        """
        Count and sum these rows.

        Raises:
            ExportRejected: A value to sum is neither an integer nor a finite decimal, or a sum has more than 200 digits.
                A value to group by is a float or a decimal.
        """
        if not self._names and not self._by:
            return
        with localcontext(self._context):
            try:
                for row in rows:
                    self._add(row)
            except (Inexact, InvalidOperation, Overflow) as error:
                raise ExportRejected(
                    f"Expected sums of at most {_DIGITS} digits, got more: round in the query."
                ) from error

    def _add(self, row: Sequence[object]) -> None:
        group = tuple([row[index] for index in self._grouped])
        sums = self._groups.get(group)
        if sums is None:
            sums = self._new(group)
        sums[0] += 1
        for place, index in enumerate(self._summed, 1):
            value = row[index]
            if isinstance(value, _EXACT) and value is not True and value is not False:
                if isinstance(value, Decimal) and not value.is_finite():
                    raise ExportRejected(
                        f"Expected finite numbers in {self._names[place - 1]!r} to sum, got {value}: "
                        "exclude such rows in the query, or leave out this total."
                    )
                sums[place] += value
            elif value is not None:
                raise ExportRejected(
                    f"Expected integers or decimals in {self._names[place - 1]!r}, got {type(value).__name__}: "
                    "totals are exact; cast the column to a decimal in the query."
                )

    def _new(self, group: tuple[object, ...]) -> list[int | Decimal]:
        for column, value in zip(self._by, group, strict=True):
            if isinstance(value, (float, Decimal)):  # 1, 1.0 and 1.00 are equal, but have three different texts
                raise ExportRejected(
                    f"Expected text, integers or dates in {column!r} to group by, got {type(value).__name__}: "
                    "cast the column to text in the query."
                )
        if len(self._groups) >= MOST_GROUPS:
            refuse_groups(self._by)
        sums = self._groups[group] = [0] * (1 + len(self._summed))
        return sums

    def result(self) -> tuple[Total, ...]:
        """Return the totals so far; an empty tuple if no totals were requested."""
        merged = dict(self._restored)
        with localcontext(self._context):
            for group, sums in self._groups.items():
                shown = tuple(None if value is None else self._text(value) for value in group)
                merged[shown] = [
                    one + other for one, other in zip(merged.get(shown, [0] * len(sums)), sums, strict=True)
                ]
        if len(merged) > MOST_GROUPS:
            refuse_groups(self._by)
        if not merged and self._names and not self._by:
            merged[()] = [0] * (1 + len(self._names))
        return in_order(
            Total(
                by=dict(zip(self._by, shown, strict=True)),
                rows=int(count),
                sums=dict(zip(self._names, map(_shown, sums), strict=True)),
            )
            for shown, (count, *sums) in merged.items()
        )

    def restore(self, totals: Sequence[Total]) -> None:
        """Continue from the totals that `result` returned for earlier rows."""
        for total in totals:
            sums = [Decimal(total.sums[name]) for name in self._names]
            self._restored[tuple(total.by[column] for column in self._by)] = [total.rows, *sums]


def _shown(value: int | Decimal) -> str:
    return decimal_text(value) if isinstance(value, Decimal) else str(value)
