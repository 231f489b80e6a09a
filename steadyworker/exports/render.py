r"""
Arrow columns to text: the texts of the values here, the cells of each format in its own file, and lines of cells to bytes.

The texts are those of the table in `values.py`; a decimal has all digits of its column's scale, and a float of 32 bits the fewest that such a float needs.
`sources.py` gives columns of these types only, and refuses all other values.
A column that has values of several types is a union; each of its children is rendered by itself.
`Notation` has the options that change a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, auto
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Protocol, cast
from zoneinfo import ZoneInfo

from steadyworker.errors import ExportRejected
from steadyworker.exports.patterns import DATE, MOMENT, offset_text, slices
from steadyworker.exports.patterns import UTC as UTC_NAME
from steadyworker.exports.sources import DIGITS, arrow, loose
from steadyworker.exports.values import PLAIN_BELOW, PLAIN_FROM, decimal_text, float_text

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # of the years 1 and 9999, counted from 1970
_DAY = 86_400_000_000  # microseconds
_HOUR = _DAY // 24
_END = (1 << 31) - 1  # a place after the end of each text
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Out(Protocol):
    """An output for bytes: a file that is written from start to end."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Write all these bytes."""
        ...


class TextKind(Enum):
    """The kind of a column's values, which sets the quotes of a cell."""

    TEXT = auto()
    INTEGER = auto()
    BOOLEAN = auto()
    DECIMAL = auto()
    FLOAT = auto()
    TIME = auto()


_DIGITS = MappingProxyType({DIGITS["int"]: TextKind.INTEGER, DIGITS["Decimal"]: TextKind.DECIMAL})


@dataclass(frozen=True, slots=True)
class Notation:
    """
    The options that change the texts of values.

    Attributes:
        decimal_comma: True for a comma in decimals and floats.
        dates: The pattern of a date, in the notation of `patterns.py`.
        moments: The pattern of a date with a time.
        zone: The time zone to which moments with a zone are converted.
    """

    decimal_comma: bool = False
    dates: str = DATE
    moments: str = MOMENT
    zone: str = UTC_NAME


PLAIN = Notation()
"""The texts of the table in `values.py`."""


class BadValue(ExportRejected):
    """
    A value that has no text.

    Attributes:
        index: The number of the value in its column.
    """

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


class TextWriter:
    """
    A writer that writes each row as one line (`format.Writer`). The bytes of CSV and JSON Lines are made in `render`.

    Args:
        out: The output to write to.
        columns: The columns' names.
        notation: The options of texts.
        cell: A function that converts texts of one kind to cells, also NULL.
        starts: For each column, the text before its cell.
        between: The text between two cells.
        end: The text after the last cell, with the line end.
    """

    def __init__(
        self,
        out: Out,
        columns: Sequence[str],
        notation: Notation,
        cell: Callable[[Any, TextKind], Any],
        *,
        starts: Sequence[str],
        between: str,
        end: str,
    ) -> None:
        self._out, self._columns, self._notation, self._cell = out, columns, notation, cell
        self._starts, self._between, self._end = starts, between, end

    def batch(self, chunk: Sequence[Any], first: int) -> Any:
        """Return the chunk as one batch."""
        return loose(chunk, self._columns, first)

    def render(self, batch: Any, first: int) -> memoryview:
        """
        Return the bytes of this batch's lines; `first` is the number of its first row; any thread can call this.

        Raises:
            ExportRejected: A value has no text; the message names its row and column.
        """
        made = []
        for name, column, start in zip(self._columns, batch.columns, self._starts, strict=True):
            try:
                made.append(before(start, cells(column, self._notation, self._cell)))
            except BadValue as error:
                raise ExportRejected(f"Row {first + error.index}, column {name!r}: {error}") from error
        made[-1] = after(made[-1], self._end)
        return text_bytes(arrow().compute.binary_join_element_wise(*made, self._between))

    def write(self, batch: Any, first: int) -> None:
        """Write the rows of this batch; `first` is the number of its first row."""
        self._out.write(self.render(batch, first))

    def finish(self) -> None:
        """Do nothing, because nothing follows the last line."""

    def close(self) -> None:
        """Do nothing: the writer holds no resources."""


def before(text: str, texts: Any) -> Any:
    """Return the texts, each after this text; NULL stays NULL."""
    return arrow().compute.binary_replace_slice(texts, 0, 0, text) if text else texts


def after(texts: Any, text: str) -> Any:
    """Return the texts, each before this text; NULL stays NULL."""
    return arrow().compute.binary_replace_slice(texts, _END, _END, text)


def text_bytes(texts: Any) -> memoryview:
    """Return the bytes of all texts in a string array, one after the other: these are the array's own buffer."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return memoryview(b"")
    places = memoryview(offsets).cast("i")
    return memoryview(data)[places[texts.offset] : places[texts.offset + len(texts)]]


def has_any(texts: Any, characters: bytes) -> bool:
    """Return whether one of these ASCII characters is in the texts; this search costs much less than a search in each text."""
    data = bytes(text_bytes(texts))
    return len(data.translate(None, characters)) < len(data)


def cells(column: Any, notation: Notation, cell: Callable[[Any, TextKind], Any]) -> Any:
    """
    Return the cells of a column out of `sources.py`; NULL stays NULL, and `cell` converts texts of one kind to cells.

    Raises:
        BadValue: A value has no text; the error's index is the value's place in this column.
    """
    pa = arrow()
    if not pa.types.is_union(column.type):
        return cell(*texts(column, notation))
    starts, made = [0], []
    codes, offsets = column.type_codes, column.offsets
    for number in range(column.type.num_fields):
        child = column.field(number)
        digits = _DIGITS.get(column.type.field(number).name)
        try:
            if digits is None:
                made.append(cell(*texts(child, notation)))
            else:
                made.append(cell(_with_comma(child, notation) if digits is TextKind.DECIMAL else child, digits))
        except BadValue as error:
            index = list(zip(codes.to_pylist(), offsets.to_pylist(), strict=True)).index((number, error.index))
            raise BadValue(index, str(error)) from error
        starts.append(starts[-1] + len(child))
    places = pa.compute.add(pa.array(starts, pa.int32()).take(codes), offsets)
    return pa.concat_arrays([part.cast(pa.string()) for part in made]).take(places)


def plain_texts(column: Any) -> Any:
    """Return a column's texts in the notation of `values.py`; NULL stays NULL."""
    return cells(column, PLAIN, lambda texts, _: texts)


def texts(column: Any, notation: Notation) -> tuple[Any, TextKind]:
    """
    Return the texts of a column that is no union, and their kind; NULL stays NULL.

    Raises:
        BadValue: A moment is outside the years 1 to 9999.
    """
    pa = arrow()
    kind, types = column.type, pa.types
    made, shown = column, TextKind.TEXT
    if types.is_string(kind):
        pass
    elif types.is_integer(kind):
        made, shown = column.cast(pa.string()), TextKind.INTEGER
    elif types.is_boolean(kind) or types.is_null(kind):
        made, shown = column.cast(pa.string()), TextKind.BOOLEAN
    elif types.is_decimal(kind):
        made, shown = _with_comma(_decimals(column), notation), TextKind.DECIMAL
    elif types.is_floating(kind):
        made, shown = _with_comma(_floats(column), notation), TextKind.FLOAT
    elif types.is_timestamp(kind):
        made, shown = _moments(column, notation), TextKind.TIME
    elif types.is_date(kind):
        made, shown = _dates(column, notation), TextKind.TIME
    else:
        made, shown = column.cast(pa.string()), TextKind.TIME
    return made, shown


def _with_comma(column: Any, notation: Notation) -> Any:
    return arrow().compute.replace_substring(column, ".", ",") if notation.decimal_comma else column


def _decimals(column: Any) -> Any:
    pa = arrow()
    made = column.cast(pa.string())
    if 0 <= column.type.scale <= 6:  # noqa: PLR2004 - Arrow writes smaller numbers than 1E-6 with an exponent
        return made
    return _replaced(made, pa.compute.match_substring(made, "E"), lambda shown: decimal_text(Decimal(shown)))


def _floats(column: Any) -> Any:
    """Return Java's layout: Arrow writes the same digits, but `1` for `1.0`, and other exponents."""
    pa = arrow()
    kernels = pa.compute
    made = column.cast(pa.string())
    size = kernels.abs(column.cast(pa.float64()))
    whole = kernels.and_(kernels.equal(size, kernels.floor(size)), kernels.less(size, PLAIN_BELOW))
    found = kernels.min_max(size).as_py()
    if found["min"] is None:
        return made
    if kernels.any(whole).as_py():
        made = kernels.if_else(whole, after(made, ".0"), made)
    if found["min"] >= PLAIN_FROM and found["max"] < PLAIN_BELOW and not has_any(made, b"n"):
        return made
    odd = kernels.invert(kernels.and_(kernels.greater_equal(size, PLAIN_FROM), kernels.less(size, PLAIN_BELOW)))
    odd = kernels.and_(odd, kernels.not_equal(size, 0.0))
    return _replaced(made, odd, lambda shown: float_text(float(shown)))


def _replaced(made: Any, odd: Any, convert: Callable[[str], str]) -> Any:
    """Return the texts; the odd ones of them are converted by Python."""
    pa = arrow()
    odd = odd.fill_null(False)  # noqa: FBT003 - Arrow's signature
    if not pa.compute.any(odd).as_py():
        return made
    return pa.compute.replace_with_mask(made, odd, pa.array(map(convert, made.filter(odd).to_pylist()), pa.string()))


def _dates(column: Any, notation: Notation) -> Any:
    pa = arrow()
    _check_years(column.cast(pa.int32()), 1, "date")
    iso = column.cast(pa.string())
    return iso if notation.dates == DATE else _pieces(iso, notation.dates)


def _moments(column: Any, notation: Notation) -> Any:
    pa = arrow()
    zoned = column.type.tz is not None
    micros = column.cast(pa.int64())
    _check_years(micros, _DAY, "moment")
    offset: Any = ""
    if zoned and notation.zone == UTC_NAME:
        offset = "Z"
    elif zoned:
        seconds = offsets(micros, notation.zone)
        micros = pa.compute.add(micros, pa.compute.multiply(seconds, 1_000_000))
        found = seconds.dictionary_encode()
        shown = pa.array([offset_text(each) for each in found.dictionary.to_pylist()], pa.string())
        offset = shown.take(found.indices)
    return _pieces(micros.cast(pa.timestamp("us")).cast(pa.string()), notation.moments, offset)


def _pieces(iso: Any, pattern: str, offset: Any = "") -> Any:
    """Return the texts by a pattern, made from pieces of the texts in ISO 8601."""
    kernels = arrow().compute
    pieces = [offset if piece is None else piece for piece in slices(pattern)]
    places = [piece for piece in pieces if isinstance(piece, tuple)]
    if isinstance(offset, str) and all(one[1] <= other[0] for one, other in pairwise(places)):
        return _cut(iso, pieces)
    shown = [kernels.utf8_slice_codeunits(iso, *piece) if isinstance(piece, tuple) else piece for piece in pieces]
    return kernels.binary_join_element_wise(*shown, "")


def _cut(iso: Any, pieces: Sequence[str | tuple[int, int]]) -> Any:
    """Return texts of pieces that are in the order of ISO 8601: what is between two slices is replaced, the last one first."""
    last, text = _END, ""
    for piece in [*reversed(pieces), (0, 0)]:
        if isinstance(piece, str):
            text = piece + text
        else:
            iso = arrow().compute.binary_replace_slice(iso, piece[1], last, text)
            last, text = piece[0], ""
    return iso


def _check_years(units: Any, day: int, what: str) -> None:
    """Raise BadValue for the first number outside the years 1 to 9999; `day` is the number of a day's units."""
    kernels = arrow().compute
    found = kernels.min_max(units).as_py()
    low, high = _FIRST_DAY * day, (_LAST_DAY + 1) * day - 1
    if found["min"] is None or (low <= found["min"] and found["max"] <= high):
        return
    bad = kernels.or_(kernels.less(units, low), kernels.greater(units, high))
    index = kernels.index(bad, True).as_py()
    raise BadValue(
        index, f"Expected a {what} between year 1 and 9999, got one that is out of range: correct it in the query."
    )


def offsets(micros: Any, zone: str) -> Any:
    """
    Return the offset in a zone, in seconds, of each moment in microseconds since 1970 in UTC, as Python's zoneinfo gives it.

    Raises:
        BadValue: A moment has no year from 1 to 9999 in the zone.

    The offset is computed for each hour that occurs, not for each moment.
    Only within an hour in which the offset changes, it is computed for each moment.
    """
    pa = arrow()
    there = ZoneInfo(zone)

    def offset_at(moment: int) -> int | None:
        try:
            local = (_EPOCH + timedelta(microseconds=moment)).astimezone(there)
        except OverflowError:
            return None
        return int(cast("timedelta", local.utcoffset()).total_seconds())

    hours = pa.compute.floor_temporal(micros.cast(pa.timestamp("us")), unit="hour").cast(pa.int64()).dictionary_encode()
    both = [(offset_at(hour), offset_at(hour + _HOUR - 1)) for hour in hours.dictionary.to_pylist()]
    of_hours = pa.array([first if first == last else None for first, last in both], pa.int64())
    found = of_hours.take(hours.indices)
    missing = pa.compute.and_(micros.is_valid(), found.is_null())
    if not pa.compute.any(missing).as_py():
        return found
    each = [offset_at(moment) for moment in micros.filter(missing).to_pylist()]
    if None in each:
        index = pa.compute.indices_nonzero(missing)[each.index(None)].as_py()
        value = (_EPOCH + timedelta(microseconds=micros[index].as_py())).isoformat()
        raise BadValue(
            index, f"Expected a moment between year 1 and 9999 in {zone}, got {value}: correct it in the query."
        )
    return pa.compute.replace_with_mask(found, missing, pa.array(each, pa.int64()))
