"""
Reads decimals exactly, or raises an error.

Spark's own readers silently round a value that has more digits than the schema.

So a DECIMAL column of CSV or JSON Lines is read as text.
In the same pass, an expression converts the text to a decimal, and raises an error for a value with other digits.
The expression also refuses `12,50`: Spark's reader takes each comma for a thousands separator, and would read 1250.

Some columns cannot be read as text: with the options `locale` or `mode`, and inside structs, arrays and maps.
A column of this kind is read with as many decimal places as possible, and compared with its value in the declared type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

from steadyworker.errors import ExportRejected
from steadyworker.exports.spark.result import WHOLE, column

_DIGITS = 38
_SPARE = 10  # extra decimal places that show a lost digit: no float has so many zeros before its noise
_EXPONENT = r"^[+-]?\d*\.?(\d*?)0*[eE]([+-]?\d{1,3})$"
_SHOWN = 100  # characters of a value that an error repeats


def exact(
    load: Callable[[str | StructType], DataFrame], schema: str, options: Mapping[str, str], place: str
) -> DataFrame:
    """
    Return a table with this schema; its decimals have every digit of the file.

    Args:
        load: A function that reads the table with a schema.
        schema: The user's schema, in DDL.
        options: The options of Spark's reader, such as `locale` and `mode`.
        place: The path of the table, for error messages.

    Raises:
        ExportRejected: A declared decimal has so many digits that rounding could not be detected.
    """
    frame = load(schema)
    fields = frame.schema.fields
    if not any(holds(field.dataType, DecimalType) for field in fields):
        return frame
    given = {name.lower(): value for name, value in options.items()}
    plain = "locale" not in given and given.get("mode", "").upper() == "FAILFAST"
    kinds = {field.name: _loose(field, place, plain=plain) for field in fields}
    read = load(StructType([StructField(field.name, kinds[field.name]) for field in fields]))
    return read.select(*(_checked(field, kinds[field.name], place).alias(field.name) for field in fields))


def holds(kind: DataType, what: type[DataType]) -> bool:
    """Return whether `kind` is the type `what`, or contains it."""
    match kind:
        case StructType():
            return any(holds(field.dataType, what) for field in kind.fields)
        case ArrayType():
            return holds(kind.elementType, what)
        case MapType():
            return holds(kind.keyType, what) or holds(kind.valueType, what)
        case _:
            return isinstance(kind, what)


def places(schema: StructType) -> dict[str, int]:
    """Return the number of digits after the point for each column of decimals or integers."""
    found = {field.name: field.dataType for field in schema.fields}
    return {
        name: kind.scale if isinstance(kind, DecimalType) else 0
        for name, kind in found.items()
        if isinstance(kind, DecimalType) or kind.typeName() in WHOLE
    }


def rounded(name: str, column: str, after: int, got: str, remedy: str) -> ExportRejected:
    """Return the error for a database value with more digits after the point than its declared type has."""
    return ExportRejected(
        f"Expected at most {after} digits after the point in column {column!r} of table {name!r}, as it is declared, "
        f"got {got:.{_SHOWN}}, which Spark would round: {remedy}."
    )


def _loose(field: StructField, place: str, *, plain: bool) -> DataType:
    """Return the type with which a column is read, so that no digit is lost."""
    return (
        StringType() if plain and isinstance(field.dataType, DecimalType) else _wide(field.dataType, field.name, place)
    )


def _wide(kind: DataType, name: str, place: str) -> DataType:
    match kind:
        case StructType():
            return StructType([StructField(field.name, _wide(field.dataType, name, place)) for field in kind.fields])
        case ArrayType():
            return ArrayType(_wide(kind.elementType, name, place))
        case MapType():
            return MapType(_wide(kind.keyType, name, place), _wide(kind.valueType, name, place))
        case DecimalType() if kind.precision > _DIGITS - _SPARE:
            raise ExportRejected(
                f"Expected decimals of at most {_DIGITS - _SPARE} digits in column {name!r} of {place}, got {_type_name(kind)}. "
                "Spark rounds such decimals silently if options= has a locale or mode, or if they are inside a struct, array or map: "
                f"declare DECIMAL({_DIGITS - _SPARE},{min(kind.scale, _DIGITS - _SPARE)}), or STRING."
            )
        case DecimalType():
            return DecimalType(_DIGITS, _DIGITS - kind.precision + kind.scale)
        case _:
            return kind


def _checked(field: StructField, read_as: DataType, place: str) -> Column:
    """Return the column with its declared type; the expression raises an error if a value does not fit."""
    value, kind = column(field.name), field.dataType
    if read_as == kind:
        return value
    if isinstance(read_as, StringType):
        assert isinstance(kind, DecimalType)  # only decimals are read as text
        return F.coalesce(_of_text(value, kind), F.when(value.isNotNull(), _error(field, value, place)))
    left = value.try_cast(kind)
    if isinstance(kind, DecimalType):
        same, shown = value.eqNullSafe(left.cast(read_as)), value.cast("string")
    else:  # compared as JSON, because maps cannot be compared
        shown = F.to_json(F.struct(value))
        same = shown == F.to_json(F.struct(left.cast(read_as).alias(field.name)))
    return F.when(same, left).otherwise(_error(field, shown, place))


def _of_text(value: Column, kind: DecimalType) -> Column:
    """Return the text's number, with or without an exponent; NULL if it is not a number, or has too many digits."""
    after = F.length(F.regexp_extract(value, _EXPONENT, 1)) - F.regexp_extract(value, _EXPONENT, 2).try_cast("int")
    fits = value.rlike(rf"^[+-]?\d*(\.\d{{0,{kind.scale}}}0*)?$") | (after <= kind.scale)
    return F.when(fits, value.try_cast(kind))


def _error(field: StructField, value: Column, place: str) -> Column:
    before = f"Expected {_type_name(field.dataType)} in column {field.name!r} of {place}, got "
    after = (
        ": declare as many digits as there are, or STRING, in its schema=, because Spark would round; "
        'for numbers with commas, set a locale such as options={"locale": "de-DE"}.'
    )
    return F.raise_error(F.concat(F.lit(before), F.substring(value, 1, _SHOWN), F.lit(after)))


def _type_name(kind: DataType) -> str:
    return kind.simpleString().upper()
