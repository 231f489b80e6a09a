"""The schema of a text file or of a database table, in the notation of Spark's DDL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from steadyworker.errors import ExportRejected
from steadyworker.exports.sources import arrow

DATE = "CAST(strptime({}, '%Y-%m-%d') AS DATE)"
"""The expression for a date; a plain cast would cut the time from a text that has one."""

_MOST_DIGITS = 38
# For each type, the Arrow type to read it as, and DuckDB's expression for the column's value.
# pyarrow reads no date from JSON, and no moment with a zone from a text without one.
_TYPES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("STRING", "VARCHAR", "CHAR"), ("string", "{}")),
        **dict.fromkeys(("BIGINT", "LONG"), ("int64", "{}")),
        **dict.fromkeys(("INT", "INTEGER"), ("int32", "{}")),
        **dict.fromkeys(("SMALLINT", "SHORT"), ("int16", "{}")),
        **dict.fromkeys(("TINYINT", "BYTE"), ("int8", "{}")),
        **dict.fromkeys(("FLOAT", "REAL"), ("float", "{}")),
        "DOUBLE": ("double", "{}"),
        "BOOLEAN": ("bool", "{}"),
        "DATE": ("string", DATE),
        **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ"), ("string", "CAST({} AS TIMESTAMPTZ)")),
        "TIMESTAMP_NTZ": ("timestamp[us]", "{}"),
        **dict.fromkeys(("DECIMAL", "DEC", "NUMERIC"), ("", "{}")),
    }
)
_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*[:\s]\s*(\w+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)\s*)?(?:,|$)")


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """
    A column to read.

    Attributes:
        read: The Arrow type in which the column is read.
        sql: DuckDB's expression for the column's value; `{}` stands for what was read.
    """

    name: str
    read: Any
    sql: str = "{}"


def columns_of(schema: str) -> list[ReadColumn]:
    """
    Return the columns of a schema.

    Raises:
        ExportRejected: The schema is not DDL, or has a type that DuckDBExport does not read from text.
    """
    columns, text = [], schema.strip()
    while text:
        match = _COLUMN.match(text)
        kind = match[3].upper() if match else ""
        digits, after = (int(match[4] or 10), int(match[5] or 0)) if match else (0, 0)
        if match is None or kind not in _TYPES or not max(1, after) <= digits <= _MOST_DIGITS:
            raise ExportRejected(
                f'Expected a schema like "id BIGINT, amount DECIMAL(12,2)", got {schema!r:.200}: from {text[:40]!r} on, '
                f"use one of the types {', '.join(_TYPES)}; for lists and structs, use SparkExport or Parquet."
            )
        read, sql = _TYPES[kind]
        name = match[1].replace("``", "`") if match[1] else match[2]
        columns.append(
            ReadColumn(name, arrow().type_for_alias(read) if read else arrow().decimal128(digits, after), sql)
        )
        text = text[match.end() :].lstrip()
    return columns


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'
