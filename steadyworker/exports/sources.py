"""
The rows of a user's source, plain rows, a cursor or Arrow batches, as chunks and as Arrow columns.

A chunk ends after 16,384 rows, a fifth of a second or about 16 MiB.
It also ends after 500,000 values, and where the next position is due, but not before 1,000 rows.
Arrow batches of less than 1,000 rows are joined, and larger ones are cut.

Values of one type become an array of one type; values of several types become a union with a child for each type.
Numbers without room in Arrow's types, and decimals of different scales, become children of digits (`DIGITS`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import chain, islice
from operator import itemgetter
from typing import Any
from uuid import UUID

from steadyworker.clock import Clock
from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.values import decimal_text

DIGITS = {"int": "digits of an int", "Decimal": "digits of a Decimal"}
"""For two Python types, the name of a union's child that has numbers as their texts, because no Arrow type has room for them."""

_FEW_ROWS, _MANY_ROWS = 1_000, 16_384
_VALUES = 500_000  # of a chunk, because a value of Python can have 100 bytes
_CHUNK_SECONDS = 0.2  # after this time a chunk ends, even if it has few rows
_CHUNK_BYTES = 16 << 20
_MEASURED = 15  # after so many rows, the length of the next one is measured
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALIASES = {str: "string", bool: "bool", float: "float64", date: "date32"}
_MOST_DIGITS = 38
_ODD = (ExportRejected, ValueError, TypeError, OverflowError)  # pyarrow's errors are ValueErrors or TypeErrors
_KINDS = (str, bool, int, float, Decimal, datetime, date, time, UUID)  # a bool is an int too, and a datetime a date


def arrow(purpose: str = "an export") -> Any:
    """
    Import pyarrow and return it.

    Args:
        purpose: The feature that needs pyarrow, for the error message.

    Raises:
        ExportError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: ICN001 - its own name is clearer than "pa"
        import pyarrow.compute
    except ImportError as error:
        raise ExportError(f"Expected pyarrow for {purpose}, got none: pip install 'steadyworker[exports]'.") from error
    return pyarrow


class Source:
    """
    An iterable of rows or Arrow batches, in chunks: lists of rows, or lists of batches of the same types.

    The iteration raises ExportRejected for an item that is neither a row nor a batch.
    The writers raise this error for a row with too few or too many values.

    Args:
        items: The user's rows.
        columns: The names of the columns.
        clock: The clock that ends chunks of a slow source.
        room: A function that returns how many rows may come until the next position is saved.
    """

    def __init__(self, items: Iterable[Any], columns: Sequence[str], clock: Clock, room: Callable[[], int]) -> None:
        self._items, self._columns, self._clock, self._room = items, columns, clock, room

    def __iter__(self) -> Iterator[list[Any]]:
        due = self._clock.monotonic() + _CHUNK_SECONDS
        items = iter(self._items)
        more = list(islice(items, 1))
        while more:
            chunks = self._batches if _is_batch(more[0]) else self._rows
            more = yield from chunks(chain(more, items), due)

    def _rows(self, items: Iterator[Any], due: float) -> Generator[list[Any], None, list[Any]]:
        """Yield chunks of rows, until an item is a batch; return this batch."""
        now = self._clock.monotonic
        chunk: list[Any] = []
        size, full, known = 0, False, None
        most = self._most()
        for item in items:
            if type(item) is not known:
                if _is_batch(item):
                    if chunk:
                        yield chunk
                    return [item]
                known = type(item)
            if not len(chunk) & _MEASURED:
                size += (_MEASURED + 1) * sum([len(value) for value in item if isinstance(value, str)])
                full = size >= _CHUNK_BYTES
            chunk.append(item if known is tuple else tuple(item))  # a copy, because some sources reuse one list
            if full or len(chunk) >= most or now() >= due:
                yield chunk
                chunk, size, full, due = [], 0, False, now() + _CHUNK_SECONDS
                most = self._most()
        if chunk:
            yield chunk
        return []

    def _batches(self, items: Iterator[Any], due: float) -> Generator[list[Any], None, list[Any]]:
        """Yield chunks of batches, until an item is a row; return this row."""
        now = self._clock.monotonic
        chunk: list[Any] = []
        for item in items:
            batch = _is_batch(item)
            if chunk and (not batch or item.schema.types != chunk[0].schema.types):
                yield chunk
                chunk = []
            if not batch:
                return [item]
            for part in [part for whole in _whole(item) for part in self._parts(whole)]:
                chunk.append(part)
                if sum(each.num_rows for each in chunk) >= _FEW_ROWS or now() >= due:
                    yield chunk
                    chunk, due = [], now() + _CHUNK_SECONDS
        if chunk:
            yield chunk
        return []

    def _most(self) -> int:
        """Return the most rows of the next chunk, by their width, and by the rows until the next position."""
        return min(_MANY_ROWS, max(_FEW_ROWS, min(_VALUES // len(self._columns), self._room())))

    def _parts(self, batch: Any) -> Iterator[Any]:
        """Cut a batch at the next position, after 16,384 rows, and by its size."""
        most = max(1, _CHUNK_BYTES * batch.num_rows // max(1, batch.nbytes))
        first = 0
        if not batch.num_rows:
            yield batch  # its types are the types of a Parquet file
        while first < batch.num_rows:
            part = batch.slice(first, min(most, self._most()))
            yield part
            first += part.num_rows


def _whole(item: Any) -> Iterable[Any]:
    """Return the batches of a table; a batch is returned itself."""
    batches: Iterable[Any] = item.to_batches() if hasattr(item, "to_batches") else [item]
    return batches


def _is_batch(item: object) -> bool:
    """Return whether the item is an Arrow batch; raise ExportRejected if it is neither a batch nor a row."""
    if hasattr(item, "schema") and hasattr(item, "columns"):
        return True
    if isinstance(item, (str, bytes, Mapping)) or not hasattr(item, "__getitem__") or not hasattr(item, "__len__"):
        raise ExportRejected(
            f"Expected rows as tuples or lists, or Arrow record batches, got {type(item).__name__}: "
            "turn a mapping into a tuple of its values, in the columns' order."
        )
    return False


def columns_of(items: Any) -> tuple[str, ...]:
    """
    Return the columns of a DB-API cursor or an Arrow reader.

    Raises:
        ExportRejected: `items` is neither a cursor nor a reader, or has no columns.
    """
    if hasattr(items, "schema"):
        names = list(items.schema.names)
    else:
        names = [column[0] for column in getattr(items, "description", None) or ()]
    if not names:
        raise ExportRejected(
            f"Expected a cursor that has executed its query, or an Arrow reader, got {type(items).__name__}: "
            'name the columns, RowExport(rows, columns=("id", "amount")).'
        )
    check_columns(names)
    return tuple(names)


def check_columns(columns: Sequence[str]) -> None:
    """
    Check the names of columns.

    Raises:
        ExportRejected: There are no names, two names are equal, or a name is not text.
    """
    names = tuple(columns)
    text = not isinstance(columns, str) and all(isinstance(name, str) for name in names)
    if not text or not names or len(set(names)) < len(names):
        raise ExportRejected(f"Expected columns with different names, got {columns!r}: name each column once.")


def renamed(columns: Sequence[str], header: Mapping[str, str]) -> list[str]:
    """
    Return the columns' names in a file's header; `header` has the other names, by column.

    Raises:
        ExportRejected: `header` names a column that does not exist, or gives two columns the same name.
    """
    names = [header.get(name, name) for name in columns]
    if header.keys() - {*columns} or len(set(names)) < len(names):
        raise ExportRejected(
            f"Expected `header` to rename only columns of this export ({', '.join(columns)}), each to a different name, "
            f"got {dict(header)!r}: correct it."
        )
    return names


def columns_in(chunk: Sequence[Any], columns: Sequence[str]) -> tuple[bool, list[Any]]:
    """
    Return whether a chunk has Arrow batches, and its columns: lists of arrays, or lists of values.

    Raises:
        ExportRejected: A row or batch has too few or too many values.
    """
    batches = bool(chunk) and hasattr(chunk[0], "schema")
    width = len(columns)
    for row in [batch.columns for batch in chunk] if batches else chunk if {*map(len, chunk)} - {width} else ():
        if len(row) != width:
            raise ExportRejected(f"Expected rows of {width} values, one per column, got {len(row)}: {row!r:.200}")
    if batches:
        return True, [[batch.column(place) for batch in chunk] for place in range(width)]
    # `zip(*chunk)` would make an iterator for each row, which the garbage collector visits.
    return False, [list(map(itemgetter(place), chunk)) for place in range(width)]


def loose(chunk: Sequence[Any], columns: Sequence[str], first: int) -> Any:
    """
    Return a chunk as one batch of columns that `render.py` converts to text; `first` is the number of its first row, for errors.

    Raises:
        ExportRejected: A value has no text; the message names its column and, for plain rows, its row.
    """
    batches, given = columns_in(chunk, columns)
    made = [
        _joined(name, column) if batches else _checked(name, column, first)
        for name, column in zip(columns, given, strict=True)
    ]
    return arrow().RecordBatch.from_arrays(made, names=list(columns))


def _joined(name: str, arrays: Sequence[Any]) -> Any:
    plain = [plain_column(name, array) for array in arrays]
    if len(plain) == 1:
        return plain[0]
    pa = arrow()
    if len({str(array.type) for array in plain}) == 1 and not pa.types.is_union(plain[0].type):
        return pa.concat_arrays(plain)
    return _checked(name, [value for array in arrays for value in array.to_pylist()], None)


def plain_column(name: str, column: Any) -> Any:
    """
    Return an Arrow column with one of the types that `render.texts` converts, and with valid text.

    Raises:
        ExportRejected: A value has no text, such as a time with nanoseconds.
    """
    pa = arrow()
    types, kind = pa.types, plain_type(column.type)
    if types.is_time(kind) or types.is_date(kind):
        kind = pa.time64("us") if types.is_time(kind) else pa.date32()
    numbers = types.is_integer(kind) or types.is_decimal128(kind) or types.is_decimal256(kind)
    floats = types.is_float32(kind) or types.is_float64(kind)
    others = types.is_boolean(kind) or types.is_null(kind) or types.is_string(kind)
    times = types.is_timestamp(kind) or types.is_time(kind) or types.is_date(kind)
    if not (numbers or floats or others or times):
        return _checked(name, column.to_pylist(), None)
    try:
        column = column if column.type == kind else column.cast(kind)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise ExportRejected(
            f"Column {name!r}: expected values that Python can represent, but {error}. Cast the column in the query."
        ) from error
    if types.is_string(kind):
        check_text(name, column)
    return column


def plain_type(kind: Any) -> Any:
    """Return the plain form of an Arrow type: one type for all texts, microseconds, and integers with a sign, as Spark reads them."""
    pa = arrow()
    types, made = pa.types, kind
    if types.is_dictionary(kind):
        made = plain_type(kind.value_type)
    elif types.is_large_string(kind) or types.is_string_view(kind):
        made = pa.string()
    elif types.is_large_binary(kind) or types.is_binary_view(kind):
        made = pa.binary()
    elif types.is_timestamp(kind):
        made = pa.timestamp("us", kind.tz and "UTC")
    elif types.is_uint64(kind):
        made = pa.decimal128(20, 0)
    elif types.is_unsigned_integer(kind):
        made = {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}[kind.bit_width]
    elif types.is_map(kind):
        made = pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    elif types.is_struct(kind):
        made = pa.struct([(field.name, plain_type(field.type)) for field in kind])
    elif types.is_list(kind) or types.is_large_list(kind):
        made = pa.list_(plain_type(kind.value_type))
    return made


def check_text(name: str, column: Any) -> None:
    """
    Check that the text in an Arrow column is UTF-8, which Arrow and Spark do not check when they read Parquet, and that decimals fit.

    Raises:
        ExportRejected: The column has other bytes, or a decimal of more digits than its type, as DuckDB's HUGEINT can have.
    """
    try:
        column.validate(full=True)
    except arrow().ArrowInvalid as error:
        raise ExportRejected(
            f"Column {name!r}: expected text in UTF-8 and decimals that fit their type, got another value ({error}): "
            "convert it in the query, for example bytes to base64 or with Spark's make_valid_utf8, and a number to text."
        ) from error


def _checked(name: str, values: Sequence[object], first: int | None) -> Any:
    """Return the column; name the row of a value without text, if the rows are counted."""
    try:
        return column_of(values)
    except _ODD as failed:
        for number, value in enumerate(values, first or 0):
            try:
                column_of([value])
            except _ODD as error:
                where = f"Column {name!r}" if first is None else f"Row {number}, column {name!r}"
                raise ExportRejected(f"{where}: {error}") from error
        raise ExportRejected(f"Column {name!r}: {failed}") from failed


def column_of(values: Sequence[object]) -> Any:
    """
    Return Python values as an Arrow array; a union if the values have several types.

    Raises:
        ExportRejected: A value has a type without a text.
        ValueError: A text is not Unicode.
    """
    pa = arrow()
    if isinstance(next((value for value in values if value is not None), None), str):
        with suppress(pa.ArrowException, UnicodeEncodeError):
            made = pa.array(values)  # pyarrow infers text only if all values are text or NULL
            if pa.types.is_string(made.type):
                return made
    kinds = {_kind_of(kind) for kind in set(map(type, values)) - {type(None)}}
    if not kinds:
        return pa.nulls(len(values))
    if len(kinds) > 1:
        return _of_several(values)
    kind = kinds.pop()
    made = _of_one(kind, values)
    if made is None and kind is Decimal:
        codes, places = pa.array(bytes(len(values)), pa.int8()), pa.array(range(len(values)), pa.int32())
        return pa.UnionArray.from_dense(codes, places, [_child(DIGITS["Decimal"], values)], [DIGITS["Decimal"]])
    return _of_several(values) if made is None else made


def _kind_of(kind: type) -> type:
    for known in _KINDS:
        if issubclass(kind, known):
            return known
    raise ExportRejected(
        f"Expected text, a number, a date, a time or None, got {kind.__name__}: "
        "turn it into one of these in the query (bytes into base64 or hex, lists and mappings into JSON)."
    )


def _of_one(kind: type, values: Sequence[Any]) -> Any:
    """Return an array of one type; None if the values need several, or digits."""
    pa = arrow()
    if kind in _ALIASES:
        return pa.array(values, _ALIASES[kind])
    if kind is int:
        with suppress(OverflowError):
            return pa.array(values, pa.int64())
        return None
    if kind is Decimal:
        return _decimals(values)
    if kind is UUID:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return _moments(values) if kind is datetime else _times(values)


def _times(values: Sequence[Any]) -> Any:
    """Return times as an array; as their texts, if one has a zone."""
    pa = arrow()
    if any(value.tzinfo for value in values if value is not None):
        return pa.array([None if value is None else value.isoformat("microseconds") for value in values], pa.string())
    return pa.array(values, pa.time64("us"))


def _moments(values: Sequence[Any]) -> Any:
    """Return moments as an array; None if only some of them have a zone."""
    pa = arrow()
    zones = {value.tzinfo is not None for value in values if value is not None}
    if zones == {False}:
        return pa.array(values, pa.timestamp("us"))
    if zones != {True}:
        return None
    return zoned_moments(values)


def zoned_moments(values: Sequence[Any]) -> Any:
    """Return moments with a zone as an array in UTC; Python subtracts faster than pyarrow asks for offsets."""
    pa = arrow()
    since = [None if value is None else value - _EPOCH for value in values]
    return pa.array(since, pa.duration("us")).view(pa.timestamp("us", "UTC"))


def _decimals(values: Sequence[Any]) -> Any:
    """Return decimals of one scale as an array; None for other decimals, whose texts an array would change."""
    pa = arrow()
    one = next(value for value in values if value is not None)
    scale = one.as_tuple().exponent
    if not isinstance(scale, int) or not -_MOST_DIGITS <= scale <= 0:  # NaN and the infinities have a letter
        return None
    there = [value for value in values if value is not None]
    if not all(map(one.same_quantum, there)):
        return None
    try:
        return pa.array(values, pa.decimal128(_MOST_DIGITS, -scale))
    except pa.ArrowInvalid:
        return None  # more digits


def _of_several(values: Sequence[Any]) -> Any:
    """Return a union with a child for each type; NULL is in the first child."""
    pa = arrow()
    buckets: dict[str, list[Any]] = {}
    places: dict[str, int] = {}
    codes, offsets = [], []
    for value in values:
        name = next(iter(buckets), "") if value is None else _bucket(value)
        bucket = buckets.setdefault(name, [])
        codes.append(places.setdefault(name, len(places)))
        offsets.append(len(bucket))
        bucket.append(value)
    children = [_child(name, bucket) for name, bucket in buckets.items()]
    return pa.UnionArray.from_dense(pa.array(codes, pa.int8()), pa.array(offsets, pa.int32()), children, list(buckets))


def _bucket(value: Any) -> str:
    kind = _kind_of(type(value))
    if kind is Decimal or (kind is int and not -(1 << 63) <= value < 1 << 63):
        return DIGITS[kind.__name__]
    return kind.__name__ + (" with a zone" if kind in {datetime, time} and value.tzinfo is not None else "")


def _child(name: str, values: Sequence[Any]) -> Any:
    pa = arrow()
    if name == DIGITS["Decimal"]:
        return pa.array([None if value is None else decimal_text(value) for value in values], pa.string())
    if name == DIGITS["int"]:
        return pa.array([None if value is None else int.__repr__(value) for value in values], pa.string())
    return column_of(values)
