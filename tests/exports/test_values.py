"""Values survive: what came in is what other readers read, and each text is the one that the rules name."""

from __future__ import annotations

import csv
import enum
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.errors import ExportError
from steadyworker.exports.formats import Csv, Format, JsonLines
from steadyworker.exports.rows import RowExport
from steadyworker.exports.values import float_text, text
from tests.exports.kit import FakeServices

NASTY = [
    "plain", "", " ", "  blanks  ", "a,b", 'q"uote', '"', '""', "\\", '\\"', "l1\nl2", "l1\r\nl2", "cr\rx", "\n", ",",
    "=cmd|' /C calc'!A0", "'=cmd", "+1", "-1", "@sum", "\ttab", "1E-8", "#hash", "null", "NULL", "é😀", "\u2028x",
    "\x85", "\x0b", "\x7f", "a;b", "\ufeffbom", "0001-01-01", "9" * 400,
]  # fmt: skip
"""Texts that some writer or reader of CSV gets wrong."""


class Colour(enum.StrEnum):
    RED = "red"


class Shape(str, enum.Enum):  # noqa: UP042 - which StrEnum is not: its str() is "Shape.ROUND"
    ROUND = "round"


class Code(enum.IntEnum):
    OK = 7


class Float64(float):
    """As NumPy's, whose repr says its type."""

    def __repr__(self) -> str:
        return f"np.float64({float.__repr__(self)})"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-(10**30), "-1" + "0" * 30),
        (Code.OK, "7"),
        (Colour.RED, "red"),
        (Shape.ROUND, "round"),
        (Float64(1.5), "1.5"),
        (Float64(1e-8), "1.0E-8"),
        (Float64("inf"), "Infinity"),
        (Decimal("1E-8"), "0.00000001"),
        (Decimal("0E-8"), "0.00000000"),
        (Decimal("-0.00"), "0.00"),
        (Decimal("1E+3"), "1000"),
        (Decimal("12345678901234567890123456789.012345678"), "12345678901234567890123456789.012345678"),
        (1.5, "1.5"),
        (0.1, "0.1"),
        (-0.0, "-0.0"),
        (1e-8, "1.0E-8"),
        (1.25e-5, "1.25E-5"),
        (0.001, "0.001"),
        (0.0009, "9.0E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (1e22, "1.0E22"),
        (-1.7976931348623157e308, "-1.7976931348623157E308"),
        (5e-324, "5.0E-324"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (date(1, 1, 1), "0001-01-01"),
        (datetime(1, 1, 1), "0001-01-01T00:00:00.000000"),  # noqa: DTZ001 - without a zone, on purpose
        (datetime(2024, 3, 31, 2, 30, 0, 1, timezone(timedelta(hours=2))), "2024-03-31T00:30:00.000001Z"),
        (datetime(2024, 3, 31, tzinfo=UTC), "2024-03-31T00:00:00.000000Z"),
        (time(2, 30), "02:30:00.000000"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ("=1", "=1"),
    ],
)
def test_each_value_has_one_text(value: object, expected: str) -> None:
    assert text(value) == expected


@given(st.floats(allow_nan=False))
def test_a_float_reads_back_equal_with_the_fewest_digits(value: float) -> None:
    shown = float_text(value)
    assert float(shown) == value
    digits = Decimal(repr(value)).normalize().as_tuple().digits
    assert value in {float("inf"), float("-inf")} or Decimal(shown).normalize().as_tuple().digits == digits


@pytest.mark.parametrize("value", [b"raw", [1], {"a": 1}, object(), None])
def test_values_without_one_text_are_refused(value: object) -> None:
    with pytest.raises(ExportError, match=f"got {type(value).__name__}"):
        text(value)


def test_a_moment_outside_of_utcs_years_is_refused() -> None:
    with pytest.raises(ExportError, match="between year 1 and 9999"):
        text(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))))


class Collected(bytearray):
    """Takes what a writer writes."""

    def write(self, data: bytes | memoryview, /) -> int:
        self.extend(data)
        return len(data)


def written(form: Format, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> bytes:
    out = Collected()
    out.write(form.head(columns))
    writer = form.writer(out, columns)
    writer.write(writer.batch(rows, 0), 0)
    writer.finish()
    return bytes(out)


@pytest.mark.parametrize(
    ("form", "row", "expected"),
    [
        (Csv(), ["a", "b"], b"x,y\na,b\n"),
        (Csv(header=False), [None, ""], b',""\n'),
        (Csv(header=False, null="NULL"), [None, ""], b'NULL,""\n'),
        (Csv(header=False, null="NULL"), ["NULL", "NULLs"], b'"NULL",NULLs\n'),
        (Csv(header=False, null="-"), ["-", None], b'"\'-",-\n'),
        (Csv(header=False), ["cr\rx", "l\nf"], b'"cr\rx","l\nf"\n'),
        (Csv(header=False), ['q"', " b "], b'"q""", b \n'),
        (Csv(header=False, delimiter=";"), ["a,b", "a;b"], b'a,b;"a;b"\n'),
        (Csv(header=False, delimiter="\t"), ["a,b", "a\tb"], b'a,b\t"a\tb"\n'),
        (Csv(header=False), ["=1", "-1"], b"'=1,'-1\n"),
        (Csv(header=False), [-1, Decimal("-1.5")], b"-1,-1.5\n"),
        (Csv(header=False), ["\t=,", "\r"], b'"\'\t=,","\'\r"\n'),
        (Csv(header=False), ["\0x", "a=1"], b"'\0x,a=1\n"),
        (Csv(header=False, guard_formulas=False), ["=1", "-1"], b"=1,-1\n"),
        (Csv(header=False), ["#a", "#b"], b"#a,#b\n"),
        (Csv(bom=True), ["a", "b"], b"\xef\xbb\xbfx,y\na,b\n"),
        (JsonLines(), [None, ""], b'{"x":null,"y":""}\n'),
        (JsonLines(), [Decimal("1E-8"), 1e-8], b'{"x":"0.00000001","y":1.0E-8}\n'),
        (JsonLines(), [True, float("nan")], b'{"x":true,"y":"NaN"}\n'),
        (JsonLines(), ['l\n"\x01', date(2024, 1, 2)], b'{"x":"l\\n\\"\\u0001","y":"2024-01-02"}\n'),
    ],
)  # fmt: skip
def test_the_exact_bytes(form: Format, row: list[object], expected: bytes) -> None:
    assert written(form, ("x", "y"), [row]) == expected


def test_one_column_of_nulls_has_no_blank_lines() -> None:
    assert written(Csv(header=False), ("x",), [[None], [""], ["a"]]) == b'""\n""\na\n'
    assert written(Csv(header=False, null="NULL"), ("x",), [[None], [""]]) == b'NULL\n""\n'


def test_a_header_that_would_run_as_a_formula_is_guarded() -> None:
    assert Csv().head(("=x", "a,b")) == b'\'=x,"a,b"\n'


@pytest.mark.parametrize("delimiter", ["", ",,", '"', "\n", "a", "1", ".", "-", "'", " "])
def test_delimiters_that_values_need_are_refused(delimiter: str) -> None:
    with pytest.raises(ExportError, match="Expected a delimiter"):
        Csv(delimiter=delimiter)


@pytest.mark.parametrize("null", ["a,b", '"', "\n"])
def test_a_null_text_that_would_need_quotes_is_refused(null: str) -> None:
    with pytest.raises(ExportError, match="Expected a null text"):
        Csv(null=null)


def exported(tmp_path: Path, name: str, rows: list[tuple[Any, ...]], form: Format) -> Path:
    out = tmp_path / name
    columns = tuple(f"c{number}" for number in range(len(rows[0])))
    RowExport(rows, columns=columns).write(FakeServices(tmp_path / "ledger"), out, format=form)
    return out


ROWS: list[tuple[Any, ...]] = [(number, value, NASTY[-1 - number]) for number, value in enumerate(NASTY)]
ROWS += [(len(NASTY), None, ""), (len(NASTY) + 1, "", None)]


def test_duckdb_reads_back_what_was_written(tmp_path: Path) -> None:
    """With NULL beside ""."""
    out = exported(tmp_path, "nasty.csv", ROWS, Csv(guard_formulas=False))
    with duckdb.connect() as connection:
        read = connection.execute(
            "SELECT * FROM read_csv(?, all_varchar=true, header=true, delim=',', quote='\"', escape='\"', "
            "auto_detect=false, allow_quoted_nulls=false, parallel=false, new_line='\\n', "
            "columns={'c0': 'VARCHAR', 'c1': 'VARCHAR', 'c2': 'VARCHAR'})",
            [str(out)],
        ).fetchall()
    assert read == [(str(number), one, other) for number, one, other in ROWS]


def test_pyarrow_reads_back_what_was_written(tmp_path: Path) -> None:
    """With NULL beside ""."""
    out = exported(tmp_path, "nasty.csv", ROWS, Csv(guard_formulas=False))
    table = pa_csv.read_csv(
        out,
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(("c0", "c1", "c2"), pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )
    assert [tuple(row.values()) for row in table.to_pylist()] == [(str(n), one, other) for n, one, other in ROWS]


def test_json_reads_back_what_was_written(tmp_path: Path) -> None:
    out = exported(tmp_path, "nasty.jsonl", ROWS, JsonLines())
    read = [tuple(json.loads(line).values()) for line in out.read_bytes().split(b"\n") if line]
    assert read == ROWS


TYPED: list[tuple[Any, ...]] = [
    (Decimal("1E-8"), date(1, 1, 1), datetime(1, 1, 1), True, 2**62),  # noqa: DTZ001
    (Decimal("123456789012345678901234567890.12345678"), date(9999, 12, 31), datetime(9999, 12, 31), False, -(2**62)),  # noqa: DTZ001
    (None, None, None, None, None),
]


@pytest.mark.parametrize("name", ["typed.csv", "typed.parquet"])
def test_numbers_and_dates_read_back_equal(tmp_path: Path, name: str) -> None:
    """38 digits, year 1, and `1E-8`; by DuckDB, with types."""
    out = tmp_path / name
    columns = ("d", "day", "at", "flag", "n")
    RowExport(TYPED, columns=columns).write(FakeServices(tmp_path / "ledger"), out)
    source = (
        "read_csv(?, header=true, auto_detect=false, delim=',', columns={'d': 'DECIMAL(38,8)', 'day': 'DATE', "
        "'at': 'TIMESTAMP', 'flag': 'BOOLEAN', 'n': 'BIGINT'})"
        if name.endswith("csv")
        else "read_parquet(?)"
    )
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT * FROM {source}", [str(out)]).fetchall() == TYPED
    if name.endswith("parquet"):
        assert [tuple(row.values()) for row in pq.read_table(out).to_pylist()] == TYPED


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.text("ab,;\"'\r\n =#"))))
def test_whatever_text_comes_python_reads_it_back(rows: list[tuple[str, str | None]]) -> None:
    data = written(Csv(guard_formulas=False, header=False), ("a", "b"), rows)
    read = csv.reader(data.decode().splitlines(keepends=True) if not data else _lines(data.decode()), strict=True)
    assert list(read) == [[one, other or ""] for one, other in rows]


def _lines(data: str) -> list[str]:
    """Lines as a file opened with newline="\\n" has them: a csv reader puts quoted line ends together again."""
    return [line + "\n" for line in data.split("\n")[:-1]]
