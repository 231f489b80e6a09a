"""The renderer: Arrow columns become the texts of `values.py`, whatever types a column mixes, and sums stay exact."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportError, ExportRejected, Interrupt
from steadyworker.exports.formats import Csv, JsonLines
from steadyworker.exports.render import PLAIN, BadValue, Notation, cells
from steadyworker.exports.rows import RowExport
from steadyworker.exports.sources import Source, column_of, plain_column
from steadyworker.exports.totals import Totals
from steadyworker.exports.values import text
from tests.exports.kit import FakeServices

ZONES = ["Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Africa/Monrovia", "Australia/Lord_Howe"]
VALUES = (
    st.none()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.decimals(places=2, allow_nan=False, allow_infinity=False)
    | st.decimals()
    | st.dates()
    | st.datetimes()
    | st.datetimes(min_value=datetime(2, 1, 1), timezones=st.sampled_from([UTC, timezone(timedelta(hours=-3))]))  # noqa: DTZ001 - the strategy adds the zone
    | st.times()
    | st.uuids()
)


def texts(column: Any, notation: Notation = PLAIN) -> list[str | None]:
    """The texts of a column."""
    found: list[str | None] = cells(column, notation, lambda shown, _: shown).to_pylist()
    return found


@given(st.lists(VALUES, max_size=20))
def test_a_column_of_any_values_has_the_texts_of_its_values(values: list[Any]) -> None:
    assert texts(column_of(values)) == [None if value is None else text(value) for value in values]


@given(
    st.lists(st.floats() | st.none(), max_size=20)
    | st.lists(st.decimals(places=9, allow_nan=False, allow_infinity=False) | st.none(), max_size=20)
)
def test_a_column_of_one_type_has_the_texts_of_its_values(values: list[Any]) -> None:
    assert texts(column_of(values)) == [None if value is None else text(value) for value in values]


@pytest.mark.parametrize("zone", ZONES)
@given(st.lists(st.integers(-62_000_000_000_000_000, 250_000_000_000_000_000), max_size=5), st.integers(0, 300))
def test_a_moment_has_the_offset_that_python_gives_it(zone: str, micros: list[int], year: int) -> None:
    """Also in the hours in which the offset changes."""
    changes = [int(datetime(1800 + year, month, 28, 1, tzinfo=UTC).timestamp()) * 1_000_000 for month in (3, 10)]
    moments = pa.array([*micros, *changes, *(change + 3_599_999_999 for change in changes)], pa.timestamp("us", "UTC"))
    expected = [value.astimezone(ZoneInfo(zone)) for value in moments.to_pylist()]
    shown = texts(moments, Notation(moments="%d.%m.%Y %H:%M:%S.%f", zone=zone))
    assert shown == [f"{at:%d.%m}.{at.year:04d} {at:%H:%M:%S.%f}" for at in expected]
    offsets = texts(moments, Notation(moments="%f%z", zone=zone))
    assert [(shown or "")[6:].replace("Z", "+00:00") for shown in offsets] == [
        at.isoformat(timespec="microseconds")[26:] for at in expected
    ]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("%Y-%m-%dT%H:%M:%S.%f%z", "2024-03-31T02:30:00.000001Z"),
        ("%Y%m%d", "20240331"),
        ("%H:%M %d.%m.%Y", "02:30 31.03.2024"),
        ("%Y-%Y", "2024-2024"),
        ("100%% %z%%z", "100% Z%z"),
        ("x", "x"),
        ("é%m%z%zé", "é03ZZé"),
    ],
)
def test_a_pattern_is_cut_from_the_moments_text(pattern: str, expected: str) -> None:
    column = pa.array([datetime(2024, 3, 31, 2, 30, 0, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC"))
    assert texts(column, Notation(moments=pattern)) == [expected, None]


NUMBERS = [0, 1, None, 99]
MOMENTS = [datetime(2024, 3, 31, 2, 30), None, datetime(1, 1, 1)]  # noqa: DTZ001 - without a zone, on purpose


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([0.1, 1e-8, 16_777_216, float("nan"), None], pa.float32()), ["0.1", "1.0E-8", "1.6777216E7", "NaN", None]),
        (pa.array([2**64 - 1, None], pa.uint64()), [str(2**64 - 1), None]),
        (pa.array(["a", None], pa.large_string()), ["a", None]),
        (pa.array(["a", None], pa.string_view()), ["a", None]),
        (pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        (pa.array([Decimal("1E-8"), Decimal("-0.5")], pa.decimal128(20, 8)), ["0.00000001", "-0.50000000"]),
        (pa.array([Decimal(10) ** 50], pa.decimal256(60, 2)), ["1" + "0" * 50 + ".00"]),
        (pa.array([date(1, 1, 1)], pa.date64()), ["0001-01-01"]),
        (pa.array([1], pa.timestamp("s", "Europe/Berlin")), ["1970-01-01T00:00:01.000000Z"]),
        (pa.array([60], pa.time32("s")), ["00:01:00.000000"]),
        (pa.array([1_000], pa.time64("ns")), ["00:00:00.000001"]),
        (pa.array([UUID(int=1).bytes], pa.uuid()), [str(UUID(int=1))]),
        (pa.nulls(2, pa.list_(pa.int64())), [None, None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_an_arrow_column_of_each_type_has_a_text(column: Any, expected: list[str | None]) -> None:
    assert texts(plain_column("a", column)) == expected


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([b"raw"]), "Column 'a': .*got bytes"),
        (pa.array([[1]]), "Column 'a': .*got list"),
        (pa.array([1], pa.duration("s")), "Column 'a': .*got timedelta"),
        (pa.array([b"\xff"]).view(pa.string()), "Column 'a': .*UTF"),
        (pa.array([1], pa.time64("ns")), "Column 'a': .*would lose data"),
    ],
)
def test_an_arrow_column_without_a_text_is_refused(column: Any, says: str) -> None:
    with pytest.raises(ExportRejected, match=says):
        plain_column("a", column)


def test_a_bad_value_of_a_mixed_column_has_its_own_index() -> None:
    column = column_of(["a", 1, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2)))])
    with pytest.raises(BadValue, match="between year 1 and 9999") as failed:
        texts(column)
    assert failed.value.index == 2


def of(values: list[Any], kind: Any) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, kind)], ["n"])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 2**63 - 1),
        (pa.uint64(), 2**64 - 1),
        (pa.decimal128(38, 2), Decimal("9" * 36 + ".99")),
        (pa.decimal256(76, 4), Decimal("-" + "9" * 72 + ".9999")),
    ],
)
def test_a_sum_with_more_digits_than_its_column_is_exact(kind: Any, value: Any) -> None:
    totals = Totals(("n",), {"n": "sum"}, (), Csv(decimal_comma=True, delimiter=";").texts)
    for _ in range(3):
        totals.add(of([value, None] * 20_000, kind))
    expected = str(Context(prec=200).multiply(Decimal(value), Decimal(60_000)))
    assert [(total.rows, total.sums["n"]) for total in totals.result()] == [(120_000, expected)]


def test_a_sum_keeps_the_scale_of_each_groups_numbers() -> None:
    rows = [("a", Decimal("1.5")), ("b", Decimal("1.50")), ("a", 2), ("b", None), ("c", None), ("d", 10**40)]
    batch = pa.RecordBatch.from_arrays([column_of(values) for values in zip(*rows, strict=True)], names=["g", "n"])
    totals = Totals(("g", "n"), {"n": "sum"}, ("g",), Csv().texts)
    totals.add(batch)
    assert [total.sums["n"] for total in totals.result()] == ["3.5", "1.50", "0", "1" + "0" * 40]


def test_an_interrupt_in_a_sum_loses_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """TERM can come at any line: the rows that wait are summed once, by the call that ends."""
    totals = Totals(("n",), {"n": "sum"}, (), Csv().texts)
    totals.add(of([1, 2, 3], pa.int64()))
    with monkeypatch.context() as patched:
        patched.setattr(Totals, "_add", lambda *_: (_ for _ in ()).throw(Interrupt("shutdown")))
        with pytest.raises(Interrupt):
            totals.result()
    assert [(total.rows, total.sums["n"]) for total in totals.result()] == [(3, "6")]


def test_a_chunk_ends_by_the_size_of_its_texts() -> None:
    long = "x" * (1 << 20)
    chunks = [len(chunk) for chunk in Source([(long,)] * 40, ("a",), SystemClock(), lambda: 50_000)]
    assert max(chunks) <= 16
    assert sum(chunks) == 40


def test_a_chunk_of_wide_rows_ends_by_the_number_of_their_values() -> None:
    columns = [str(number) for number in range(200)]
    chunks = Source([tuple(range(200))] * 6_000, columns, SystemClock(), lambda: 50_000)
    assert max(map(len, chunks)) == 2_500


def test_batches_are_cut_where_a_position_is_due_and_small_ones_are_joined() -> None:
    batches = [of(list(range(rows)), pa.int64()) for rows in (20_000, 600, 600, 600)]
    chunks = list(Source(batches, ("n",), SystemClock(), lambda: 15_000))
    assert [[part.num_rows for part in chunk] for chunk in chunks] == [[15_000], [5_000], [600, 600], [600]]


def test_rows_and_batches_in_one_source_are_all_written(tmp_path: Path) -> None:
    rows = [(1,), of([2, 3], pa.int64()), (4,), of([5], pa.int32()), pa.table({"n": [6, 7]})]
    RowExport(rows, columns=("n",)).write(FakeServices(tmp_path / "l"), tmp_path / "n.csv", totals={"n": "sum"})
    assert (tmp_path / "n.csv").read_text() == "n\n1\n2\n3\n4\n5\n6\n7\n"


def test_nested_and_binary_columns_are_written_to_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {
            "raw": [b"\xff", None],
            "list": [[1], None],
            "of": [{"a": "x"}, None],
            "f": pa.array([0.1, None], pa.float32()),
        }
    )
    RowExport(table.to_reader()).write(FakeServices(tmp_path / "l"), tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == table.to_pylist()


@pytest.mark.parametrize("form", [Csv(), JsonLines()])
def test_a_batch_of_no_rows_is_no_row(tmp_path: Path, form: Any) -> None:
    batches = [of([], pa.int64()), of([1], pa.int64()), of([], pa.int64())]
    made = RowExport(batches, columns=("n",)).write(FakeServices(tmp_path / "l"), tmp_path / "n", format=form)
    assert made.rows == 1


def test_an_export_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExportError, match=r"pip install 'steadyworker\[exports\]'"):
        RowExport([(1,)], columns=("n",)).write(FakeServices(tmp_path / "l"), tmp_path / "n.csv")


def test_an_export_that_cannot_resume_is_written_in_large_chunks(tmp_path: Path) -> None:
    services = FakeServices(tmp_path / "l")
    RowExport([(number,) for number in range(40_000)], columns=("n",), save_rows=2_000).write(
        services, tmp_path / "n.csv"
    )
    assert [done for done in services.beats if done] == [16_384, 32_768, 40_000, 40_000]
