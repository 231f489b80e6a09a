"""Exact totals, computed while the rows are written: counts and sums per group; Arrow computes them of many rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow, localcontext
from typing import Any

from steadyworker.errors import ExportRejected
from steadyworker.exports.manifest import Total, in_order
from steadyworker.exports.render import plain_texts
from steadyworker.exports.sources import DIGITS, arrow, plain_column
from steadyworker.exports.values import decimal_text

_DIGITS = 200  # the most digits of a sum; a sum of values with 38 digits has far fewer digits
_WIDE = 76  # digits of Arrow's largest decimal
_TOGETHER = 32_768  # so many rows are summed at a time, whatever the size of the batches
_BYTES = 16 << 20  # or so many bytes of them
_ROOM = 5  # digits that a sum of so many rows can have more than its values
MOST_GROUPS = 10_000
"""The maximum number of groups of one export, because memory and manifest contain all groups."""


_Groups = dict[tuple[str | None, ...], list[int | Decimal]]


class Totals:
    """
    Counts and sums of rows, by group.

    Args:
        columns: The rows' columns.
        totals: The columns to sum, each with the function "sum".
        by: The columns to group by.
        texts: A function that returns the texts of an Arrow column in the file (`Format.texts`).

    Raises:
        ExportRejected: A column does not exist, or a function is not "sum".
            `add` and `result` also raise it, if there are more than `MOST_GROUPS` groups.
    """

    def __init__(
        self, columns: Sequence[str], totals: Mapping[str, str] | None, by: Sequence[str], texts: Callable[[Any], Any]
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
        self._texts = texts
        self._names, self._by = tuple(wanted), tuple(by)
        self._summed = [columns.index(column) for column in wanted]
        self._grouped = [columns.index(column) for column in by]
        self._context = Context(prec=_DIGITS, traps=[Inexact, InvalidOperation, Overflow])
        # One attribute, so that an Interrupt at any line leaves either the state before or the state after a computation.
        self._state: tuple[_Groups, list[Any]] = {}, []

    def add(self, batch: Any) -> None:
        """
        Count and sum the rows of this Arrow batch.

        Raises:
            ExportRejected: A value to sum is neither an integer nor a finite decimal, or a sum has more than 200 digits.
                A value to group by is a float or a decimal.
        """
        if not batch.num_rows or not (self._names or self._by):
            return
        places = (*self._grouped, *self._summed)
        names = [str(number) for number in range(len(places))]
        needed = arrow().RecordBatch.from_arrays([batch.column(place) for place in places], names=names)
        waiting = self._state[1]
        odd = any(map(arrow().types.is_union, needed.schema.types))
        if waiting and (odd or waiting[0].schema != needed.schema):
            waiting = self._computed()[1]
        waiting.append(needed)
        if odd or sum(each.num_rows for each in waiting) >= _TOGETHER or sum(each.nbytes for each in waiting) >= _BYTES:
            self._computed()

    def _number(self, name: str, column: Any) -> Any:
        """Return a column to sum as decimals whose sum has room, or as texts of numbers."""
        pa = arrow()
        column = column if pa.types.is_union(column.type) else plain_column(name, column)
        for child in _children(column):
            integer = pa.types.is_integer(child[1].type) or child[0] == DIGITS["int"]
            if not integer and not _is_decimal(child) and child[1].null_count < len(child[1]):
                raise ExportRejected(
                    f"Expected integers or decimals in {name!r}, got {_python(child)}: "
                    "totals are exact; cast the column to a decimal in the query."
                )
            if child[0] == DIGITS["Decimal"]:
                self._check_finite(name, child[1])
        kind = column.type
        if pa.types.is_null(kind) or column.null_count == len(column):
            return pa.nulls(len(column), pa.decimal128(38, 0))
        if pa.types.is_integer(kind):
            return column.cast(pa.decimal128(38, 0))
        if pa.types.is_decimal(kind):
            if kind.precision <= 38 - _ROOM:
                return column.cast(pa.decimal128(38, kind.scale))
            if kind.precision <= _WIDE - _ROOM:
                return column.cast(pa.decimal256(_WIDE, kind.scale))
        return plain_texts(column)

    def _check_finite(self, name: str, digits: Any) -> None:
        for shown in digits.to_pylist():
            if shown is not None and not shown[-1].isdigit():
                raise ExportRejected(
                    f"Expected finite numbers in {name!r} to sum, got {shown}: "
                    "exclude such rows in the query, or leave out this total."
                )

    def _computed(self) -> tuple[_Groups, list[Any]]:
        """Count and sum the rows that wait, and return the new state."""
        groups, waiting = self._state
        if not sum(batch.num_rows for batch in waiting):
            return self._state
        groups = {group: [*sums] for group, sums in groups.items()}
        if len(waiting) > 1:
            waiting = arrow().Table.from_batches(waiting).combine_chunks().to_batches()
        columns = waiting[0].columns
        made = [group_texts(*column, self._texts) for column in zip(self._by, columns, strict=False)]
        made += [self._number(*column) for column in zip(self._names, columns[len(made) :], strict=True)]
        table = arrow().table(made, names=[str(number) for number in range(len(made))])
        keys, names = table.column_names[: len(self._by)], table.column_names[len(self._by) :]
        texts = {name for name in names if arrow().types.is_string(table.schema.field(name).type)}
        wanted = [([], "count_all"), *((name, "sum") for name in names if name not in texts)]
        found = table.group_by(keys, use_threads=False).aggregate(wanted)
        with localcontext(self._context):
            try:
                self._add(groups, 0, found, keys, "count_all")
                for place, name in enumerate(names, 1):
                    if name in texts:
                        self._add(groups, place, table, keys, name)
                    else:
                        self._add(groups, place, found, keys, f"{name}_sum")
            except (Inexact, InvalidOperation, Overflow) as error:
                raise ExportRejected(
                    f"Expected sums of at most {_DIGITS} digits, got more: round in the query."
                ) from error
        self._state = groups, []
        return self._state

    def _add(self, groups: _Groups, place: int, table: Any, keys: Sequence[str], name: str) -> None:
        """Add this column's numbers to the sums of their groups."""
        for *key, number in zip(*(table[each].to_pylist() for each in (*keys, name)), strict=True):
            group = tuple(key)
            if group not in groups:
                self._begin(groups, group)
            if number is not None:
                groups[group][place] += _number(number) if isinstance(number, str) else number

    def _begin(self, groups: _Groups, group: tuple[str | None, ...]) -> None:
        """Add a group; raise ExportRejected for too many, because a retry would find the same groups."""
        if len(groups) >= MOST_GROUPS:
            raise ExportRejected(
                f"Expected at most {MOST_GROUPS:,} groups of totals by {', '.join(self._by)}, got more: "
                "remove the columns with many values from by=, or group in the query and export the groups."
            )
        groups[group] = self._zeros()

    def _zeros(self) -> list[int | Decimal]:
        return [0] * (1 + len(self._names))

    def result(self) -> tuple[Total, ...]:
        """Return the totals so far; an empty tuple if no totals were requested."""
        groups = self._computed()[0]
        if self._names and not self._by:
            groups = groups or {(): self._zeros()}
        return in_order(
            Total(
                by=dict(zip(self._by, group, strict=True)),
                rows=int(count),
                sums=dict(zip(self._names, map(_shown, sums), strict=True)),
            )
            for group, (count, *sums) in groups.items()
        )

    def include(self, totals: Sequence[Total]) -> None:
        """
        Add the totals that `result` returned for other rows.

        Raises:
            ExportRejected: There are more than `MOST_GROUPS` groups.
        """
        groups = self._computed()[0]
        for total in totals:
            group = tuple(total.by[column] for column in self._by)
            if group not in groups:
                self._begin(groups, group)
            numbers: list[int | Decimal] = [total.rows, *(Decimal(total.sums[name]) for name in self._names)]
            with localcontext(self._context):
                groups[group] = [one + other for one, other in zip(groups[group], numbers, strict=True)]


def group_texts(name: str, column: Any, texts: Callable[[Any], Any]) -> Any:
    """
    Return the texts of an Arrow column to group by; `texts` (`Format.texts`) makes each text once.

    Raises:
        ExportRejected: A value is a float or a decimal.
    """
    pa = arrow()
    column = column if pa.types.is_union(column.type) else plain_column(name, column)
    refused = [
        child
        for child in _children(column)
        if _is_decimal(child) or pa.types.is_floating(child[1].type)
        if child[1].null_count < len(child[1])
    ]
    if refused:  # 1, 1.0 and 1.00 are equal, but have three different texts
        raise ExportRejected(
            f"Expected text, integers or dates in {name!r} to group by, got {_python(refused[0])}: "
            "cast the column to text in the query."
        )
    if pa.types.is_union(column.type):
        return texts(column)
    found = column.dictionary_encode()
    return texts(found.dictionary).take(found.indices)


def _children(column: Any) -> list[tuple[str, Any]]:
    """Return the name and values of each child of a union; of another column, the column without a name."""
    if not arrow().types.is_union(column.type):
        return [("", column)]
    return [(column.type.field(number).name, column.field(number)) for number in range(column.type.num_fields)]


def _is_decimal(child: tuple[str, Any]) -> bool:
    return child[0] == DIGITS["Decimal"] or arrow().types.is_decimal(child[1].type)


def _python(child: tuple[str, Any]) -> str:
    """Return the name of the Python type of the values."""
    if child[0] == DIGITS["Decimal"]:
        return "Decimal"
    return next(type(value).__name__ for value in child[1].to_pylist() if value is not None)


def _number(shown: str) -> int | Decimal:
    return Decimal(shown) if "." in shown else int(shown)


def _shown(value: int | Decimal) -> str:
    return decimal_text(value) if isinstance(value, Decimal) else str(value)
