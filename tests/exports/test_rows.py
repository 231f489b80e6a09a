"""RowExport: positions, resuming, interrupts, and what it refuses."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportRejected, Interrupt
from steadyworker.exports.formats import Csv, JsonLines
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.parquet import Parquet
from steadyworker.exports.rows import RowExport
from steadyworker.exports.stage import STAGES, ExportTarget, stages
from steadyworker.exports.totals import Totals
from steadyworker.exports.verifying import verify
from steadyworker.exports.xlsx import Xlsx
from tests.exports.kit import BY, COLUMNS, TOTALS, FakeServices, Payments, killed, payment, undisturbed


def interrupted(tmp_path: Path, at: int, **options: Any) -> FakeServices:
    """Run 1, told to stop when this many rows are written."""

    def stop() -> None:
        if (services.beats[-1] or 0) >= at:
            raise Interrupt("shutdown")

    services = FakeServices(tmp_path / "ledger", on_check=stop)
    with pytest.raises(Interrupt, match="shutdown"):
        Payments().export(**options).write(services, tmp_path / "out" / "payments.csv", totals=TOTALS, by=BY)
    return services


def test_killed_at_the_third_position_it_goes_on_at_that_row(tmp_path: Path) -> None:
    """A real process, a real SIGKILL; the file is byte for byte that of an undisturbed run."""
    out, ledger = tmp_path / "out" / "payments.csv", tmp_path / "ledger"
    assert killed(out, ledger, "position-3").returncode == -signal.SIGKILL
    assert [path.name for path in out.parent.iterdir()] == [STAGES]
    source = Payments()
    manifest = source.export().write(FakeServices(ledger, fence=2), out, totals=TOTALS, by=BY)
    assert source.starts == [6_000]
    expected = undisturbed(tmp_path)
    assert (manifest.sha256, manifest.rows, manifest.totals) == (expected.sha256, 10_000, expected.totals)
    assert verify(out) == manifest


@pytest.mark.parametrize("name", ["payments.csv", "payments.jsonl"])
def test_interrupted_and_resumed_again_and_again(tmp_path: Path, name: str) -> None:
    """Every run ends after its second saved position, until one gets through."""
    out, ledger = tmp_path / "out" / name, tmp_path / "ledger"

    def run(fence: int) -> tuple[list[int], Manifest | None]:
        def stop() -> None:
            if len(services.saved) >= 2:
                raise Interrupt("shutdown")

        services = FakeServices(ledger, fence=fence, on_check=stop)
        source = Payments()
        try:
            return source.starts, source.export().write(services, out, totals=TOTALS, by=BY)
        except Interrupt:
            return source.starts, None

    runs = [run(fence) for fence in (1, 2, 3)]
    assert [starts for starts, _ in runs] == [[0], [6_000], [10_000]]
    assert [manifest and manifest.sha256 for _, manifest in runs] == [None, None, undisturbed(tmp_path, name).sha256]
    assert stages(ExportTarget.of(out), "uid-1") == []  # what earlier runs left unfinished is gone too


def test_an_interrupt_saves_the_very_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steadyworker.exports.sources._MANY_ROWS", 4_000)
    services = interrupted(tmp_path, at=4_000, save_rows=10**9, save_seconds=10**9)
    assert [position.rows for position in services.positions()] == [4_000]
    source = Payments()
    resumed = FakeServices(tmp_path / "ledger", fence=2)
    manifest = source.export(save_rows=10**9, save_seconds=10**9).write(
        resumed, tmp_path / "out" / "payments.csv", totals=TOTALS, by=BY
    )
    assert source.starts == [4_000]
    assert manifest.sha256 == undisturbed(tmp_path).sha256


def test_an_interrupt_in_the_middle_of_a_chunk_keeps_the_position_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TERM raises Interrupt between any two lines: half a chunk is in the file, and no position is saved of it."""
    add = Totals.add
    calls = 0

    def interrupted_add(self: Totals, rows: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Interrupt("shutdown")
        add(self, rows)

    monkeypatch.setattr(Totals, "add", interrupted_add)
    services = FakeServices(tmp_path / "ledger")
    out = tmp_path / "out" / "payments.csv"
    with pytest.raises(Interrupt):
        Payments().export().write(services, out, totals=TOTALS, by=BY)
    assert [position.rows for position in services.positions()] == [2_000]
    monkeypatch.undo()
    source = Payments()
    manifest = source.export().write(FakeServices(tmp_path / "ledger", fence=2), out, totals=TOTALS, by=BY)
    assert source.starts == [2_000]
    assert manifest.sha256 == undisturbed(tmp_path).sha256


def test_a_ledger_that_refuses_the_last_position_does_not_hide_the_interrupt(tmp_path: Path) -> None:
    def stop() -> None:
        (services.ledger / "fence").write_text("2")
        raise Interrupt("cancelled")

    services = FakeServices(tmp_path / "ledger", on_check=stop)
    with pytest.raises(Interrupt):
        Payments().export().write(services, tmp_path / "payments.csv")
    assert services.saved == []


@pytest.mark.long
@pytest.mark.parametrize(
    "harm",
    [lambda data: data.write_bytes(b"?" + data.read_bytes()[1:]), lambda data: os.truncate(data, 100), Path.unlink],
    ids=["damaged", "cut short", "removed"],
)
def test_earlier_bytes_that_are_not_what_was_saved_are_not_used(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    interrupted(tmp_path, at=3_000)
    out = tmp_path / "out" / "payments.csv"
    harm(stages(ExportTarget.of(out), "uid-1")[0].data)
    source = Payments()
    manifest = source.export().write(FakeServices(tmp_path / "ledger", fence=2), out, totals=TOTALS, by=BY)
    assert source.starts == [0]
    assert manifest.sha256 == undisturbed(tmp_path).sha256


@pytest.mark.parametrize(
    ("name", "options", "arguments"),
    [
        ("payments.csv", {"columns": ("a", *COLUMNS[1:])}, {}),
        ("payments.csv", {"parameters": {"merchant": "m-2"}}, {}),
        ("payments.csv", {}, {"format": Csv(delimiter=";")}),
        ("payments.csv", {}, {"totals": {}}),
        ("others.csv", {}, {}),
    ],
)
def test_a_request_that_changed_starts_from_the_first_row(
    tmp_path: Path, name: str, options: dict[str, Any], arguments: dict[str, Any]
) -> None:
    interrupted(tmp_path, at=3_000)
    source = Payments()
    export = RowExport(source, **{"columns": COLUMNS, "description": "payments", **options})
    export.write(
        FakeServices(tmp_path / "ledger", fence=2),
        tmp_path / "out" / name,
        **{"totals": TOTALS, "by": BY, **arguments},
    )
    assert source.starts == [0]


def test_a_handle_of_another_kind_is_not_used(tmp_path: Path) -> None:
    services = FakeServices(tmp_path / "ledger")
    services.save_export_state(b'{"application": "spark-17"}')
    source = Payments(3)
    source.export().write(services, tmp_path / "payments.csv")
    assert source.starts == [0]


@pytest.mark.long
def test_totals_of_more_groups_than_the_handle_holds_are_not_resumed(tmp_path: Path) -> None:
    services = FakeServices(tmp_path / "ledger")
    manifest = Payments().export().write(services, tmp_path / "payments.csv", totals=TOTALS, by=("id",))
    assert services.positions() == [] or max(len(value or b"") for value in services.saved) < 65_536
    assert len(manifest.totals) == 10_000
    assert verify(tmp_path / "payments.csv") == manifest


@pytest.mark.long
def test_more_than_ten_thousand_groups_are_rejected(tmp_path: Path) -> None:
    """A column with a value for each row would fill the memory, and make a manifest as long as the file."""
    services = FakeServices(tmp_path / "ledger")
    with pytest.raises(ExportRejected, match="at most 10,000 groups of totals by id, got more: remove the columns"):
        Payments(10_001).export().write(services, tmp_path / "payments.csv", totals=TOTALS, by=("id",))
    assert not (tmp_path / "payments.csv").exists()


def test_groups_that_a_later_run_adds_are_counted_too(tmp_path: Path) -> None:
    first, second = (Totals(("id",), {}, ("id",), Csv().texts) for _ in range(2))

    def batch(*numbers: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array(numbers)], ["id"])

    first.add(batch(*range(6_000)))
    second.include(first.result())
    second.add(batch(*range(5_000, 10_000)))
    assert len(second.result()) == 10_000
    second.add(batch(10_000))
    with pytest.raises(ExportRejected, match="at most 10,000 groups"):
        second.result()


def test_groups_that_were_saved_are_the_groups_that_go_on(tmp_path: Path) -> None:
    """Negative numbers, dates, NULL and guarded text: a group that comes back out of a handle is not a second group."""

    def rows(start: int) -> Iterator[tuple[Any, ...]]:
        groups = [(-5, None), (date(2024, 1, 1), "=x"), (None, "'=x"), ("-5", True)]
        return ((*groups[number % 4], number) for number in range(start, 4_000))

    def stop() -> None:
        if len(services.saved) == 1:
            raise Interrupt("shutdown")

    export = RowExport(rows, columns=("a", "b", "n"), save_rows=1_000)
    services = FakeServices(tmp_path / "ledger", on_check=stop)
    out = tmp_path / "groups.csv"
    with pytest.raises(Interrupt):
        export.write(services, out, totals={"n": "sum"}, by=("a", "b"))
    manifest = export.write(FakeServices(tmp_path / "ledger", fence=2), out, totals={"n": "sum"}, by=("a", "b"))
    whole = export.write(FakeServices(tmp_path / "other"), tmp_path / "whole.csv", totals={"n": "sum"}, by=("a", "b"))
    assert manifest.totals == whole.totals
    assert len(manifest.totals) == 4
    assert verify(out) == manifest


def test_a_file_that_is_done_leaves_the_position_of_the_next_one_alone(tmp_path: Path) -> None:
    """A job of two exports, killed in the second: its next run answers the first, and resumes the second."""
    out, ledger = tmp_path / "out", tmp_path / "ledger"

    def stop() -> None:
        if services.beats[-1] == 4_000:
            raise Interrupt("shutdown")

    services = FakeServices(ledger)
    Payments(3).export().write(services, out / "first.csv")
    services.on_check = stop
    with pytest.raises(Interrupt):
        Payments().export().write(services, out / "second.csv")
    first, second = Payments(3), Payments()
    again = FakeServices(ledger, fence=2)
    first.export().write(again, out / "first.csv")
    second.export().write(again, out / "second.csv")
    assert (first.starts, second.starts) == ([], [4_000])


def test_a_row_that_its_source_uses_again_is_written_as_it_was(tmp_path: Path) -> None:
    def rows() -> Iterator[list[int]]:
        row = [0]
        for number in range(3):
            row[0] = number
            yield row

    RowExport(rows(), columns=("n",)).write(FakeServices(tmp_path / "ledger"), tmp_path / "n.csv")
    assert (tmp_path / "n.csv").read_text() == "n\n0\n1\n2\n"


def test_parameters_are_answered_as_the_manifest_has_them(tmp_path: Path) -> None:
    """Whatever JSON lacks is text; a value that it cannot hold at all is no reason to fail when all rows are written."""
    parameters = {"of": Decimal("1.50"), "day": date(2024, 1, 1), "ids": (1, 2), "shop": Path("a/b")}
    manifest = Payments(3).export(parameters=parameters).write(FakeServices(tmp_path / "ledger"), tmp_path / "p.csv")
    assert manifest.parameters == {"of": "1.50", "day": "2024-01-01", "ids": [1, 2], "shop": "a/b"}
    assert verify(tmp_path / "p.csv") == manifest


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([1_700_000_000_000_000_001], pa.timestamp("ns")), "Column 'at': .*would lose data"),
        (pa.array([1_700_000_000_000_000_001], pa.timestamp("ns", "Europe/Berlin")), "Column 'at': .*would lose data"),
        (pa.array([2**62], pa.timestamp("us")), "Row 0, column 'at': .*out of range"),
    ],
)
def test_moments_that_python_cannot_hold_are_refused_not_rounded(tmp_path: Path, column: Any, says: str) -> None:
    batch = pa.record_batch([column], ["at"])
    with pytest.raises(ExportRejected, match=says):
        RowExport([batch], columns=("at",)).write(FakeServices(tmp_path / "ledger"), tmp_path / "at.csv")


def test_whole_microseconds_of_a_nanosecond_column_are_exported(tmp_path: Path) -> None:
    column = pa.array([1_700_000_000_000_001_000, None], pa.timestamp("ns", "Europe/Berlin"))
    RowExport([pa.record_batch([column], ["at"])], columns=("at",)).write(
        FakeServices(tmp_path / "ledger"), tmp_path / "at.csv"
    )
    assert (tmp_path / "at.csv").read_text() == 'at\n2023-11-14T22:13:20.000001Z\n""\n'


def test_an_iterable_is_exported_but_never_resumed(tmp_path: Path) -> None:
    services = FakeServices(tmp_path / "ledger")
    export = RowExport(map(payment, range(10_000)), columns=COLUMNS, save_rows=1_000)
    assert export.write(services, tmp_path / "payments.csv").rows == 10_000
    assert services.positions() == []


def test_parquet_starts_from_its_first_row(tmp_path: Path) -> None:
    out = tmp_path / "payments.parquet"
    first = FakeServices(tmp_path / "ledger", on_check=lambda: (_ for _ in ()).throw(Interrupt("shutdown")))
    with pytest.raises(Interrupt):
        Payments().export().write(first, out)
    source = Payments()
    manifest = source.export().write(FakeServices(tmp_path / "ledger", fence=2), out, totals=TOTALS, by=BY)
    assert (first.positions(), source.starts) == ([], [0])
    table = pq.read_table(out)
    assert [tuple(row.values()) for row in table.to_pylist()] == [payment(number) for number in range(10_000)]
    assert verify(out) == manifest


ZONED, NAIVE = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1)  # noqa: DTZ001
CHANGED: list[tuple[object, object, str]] = [
    (ZONED, NAIVE, r"timestamp\[us, tz=UTC\]"),
    (NAIVE, ZONED, r"timestamp\[us\]"),
    (NAIVE, date(2024, 1, 1), r"timestamp\[us\]"),
    (NAIVE, 5, r"timestamp\[us\]"),
    (date(2024, 1, 1), NAIVE, "date32"),
    (date(2024, 1, 1), 5, "date32"),
    (time(12), time(12, tzinfo=UTC), "time64"),
    (1, 1.99, "int64"),
    (1, Decimal("1.99"), "int64"),
    (1, True, "int64"),
    (True, 1, "bool"),
    (0.5, Decimal("0.12345678901234567891"), "double"),
    ("a", b"b", "string"),
    ([1], [1, 1.99], "list<item: int64>"),
    ({"a": 1}, {"a": Decimal("1.99")}, "struct<a: int64>"),
    ([{"a": [NAIVE]}], [{"a": [None, ZONED]}], "list<item: struct"),
]


@pytest.mark.parametrize(("first", "other", "kind"), CHANGED, ids=str)
def test_a_value_that_parquet_would_change_is_refused_with_its_row(
    tmp_path: Path, first: object, other: object, kind: str
) -> None:
    """After the first chunk, whose values set the type; pyarrow would cut 1.99 to 1, and take a naive moment for one in UTC."""
    rows = [(number, None if number % 3 else first) for number in range(20_000)]
    export = RowExport([*rows, (20_000, other)], columns=("id", "value"))
    with pytest.raises(ExportRejected, match=f"Row 20000, column 'value': expected a value of type {kind}"):
        export.write(FakeServices(tmp_path / "ledger"), tmp_path / "out.parquet")
    whole = RowExport([*rows, (20_000, first)], columns=("id", "value"))
    whole.write(FakeServices(tmp_path / "ledger"), tmp_path / "fine.parquet")
    assert pq.read_table(tmp_path / "fine.parquet")["value"].to_pylist() == [*(value for _, value in rows), first]


def test_a_slow_source_is_read_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a row each quarter of a second, progress and checks do not wait for a thousand of them."""

    class SlowClock(SystemClock):
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = SlowClock()

    def rows(start: int) -> Iterator[tuple[int]]:
        for number in range(start, 4):
            clock.now += 0.25
            yield (number,)

    monkeypatch.setattr("steadyworker.exports.rows.SystemClock", lambda: clock)
    services = FakeServices(tmp_path / "ledger")
    RowExport(rows, columns=("id",), save_seconds=0.5).write(services, tmp_path / "slow.csv")
    assert services.beats[:4] == [1, 2, 3, 4]
    assert [position.rows for position in services.positions()] == [2, 4]


@pytest.mark.parametrize("form", [Csv(), JsonLines(), Parquet(), Xlsx()])
def test_arrow_batches_give_the_same_file_as_rows(tmp_path: Path, form: Any) -> None:
    payments = [payment(number) for number in range(3_000)]
    schema = pa.schema(
        [("id", pa.int32()), ("m", pa.string()), ("c", pa.string()), ("s", pa.string()), ("a", pa.decimal128(12, 2))]
    )
    table = pa.table([pa.array(column) for column in zip(*payments, strict=True)], names=list("abcde"))
    table = table.rename_columns(schema.names).cast(schema)
    services = FakeServices(tmp_path / "ledger")
    by_batch = RowExport(table.to_batches(700), columns=COLUMNS).write(
        services, tmp_path / "a", format=form, totals=TOTALS
    )
    by_row = RowExport(payments, columns=COLUMNS).write(services, tmp_path / "b", format=form, totals=TOTALS)
    assert (by_batch.rows, by_batch.totals) == (by_row.rows, by_row.totals)
    if form.name == "parquet":
        assert pq.read_schema(tmp_path / "a").types == schema.types  # the batches' types, not guessed ones
    else:
        assert by_batch.sha256 == by_row.sha256


@pytest.mark.parametrize("name", ["none.csv", "none.jsonl", "none.parquet", "none.xlsx"])
def test_no_rows_are_a_whole_file_too(tmp_path: Path, name: str) -> None:
    manifest = RowExport([], columns=COLUMNS).write(FakeServices(tmp_path / "ledger"), tmp_path / name, totals=TOTALS)
    assert manifest.rows == 0
    assert [(total.rows, total.sums) for total in manifest.totals] == [(0, {"amount": "0"})]
    assert verify(tmp_path / name) == manifest


@pytest.mark.parametrize("odd", [{"description": "\udcff"}, {"parameters": {"file": "\udcff"}}])
def test_a_text_that_is_no_unicode_is_refused_before_the_first_row(tmp_path: Path, odd: dict[str, Any]) -> None:
    asked: list[int] = []

    def rows(start: int) -> list[tuple[str]]:
        asked.append(start)
        return [("a",)]

    export = RowExport(rows, columns=("a",), **odd)
    with pytest.raises(ExportRejected, match=r"Expected valid Unicode .*udcff"):
        export.write(FakeServices(tmp_path / "ledger"), tmp_path / "out" / "payments.csv")
    assert not asked


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(1, "a"), (2,)], "Expected rows of 2 values, one per column, got 1"),
        ([{"a": 1, "b": 2}], "got dict"),
        (["ab"], "got str"),
        ([7], "got int"),
        ([(1, "a"), (2, b"raw")], r"Row 1, column 'b': Expected text.*got bytes"),
        ([(1, ["list"])], r"Row 0, column 'b': .*got list"),
        ([(1, "\udcff")], r"Row 0, column 'b': .*surrogates not allowed"),
    ],
)
def test_rows_that_cannot_be_written_are_named(tmp_path: Path, rows: Iterable[Any], says: str) -> None:
    out = tmp_path / "out" / "payments.csv"
    with pytest.raises(ExportRejected, match=says):
        RowExport(rows, columns=("a", "b")).write(FakeServices(tmp_path / "ledger"), out)
    assert [path.name for path in out.parent.iterdir()] == [".sw-stage"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"totals": {"fee": "sum"}}, "got 'fee'"),
        ({"by": ("country",)}, "got 'country'"),
        ({"totals": {"amount": "avg"}}, 'Expected "sum"'),
        ({"format": "csv"}, "as format, got 'csv'"),
        ({"totals": {"merchant": "sum"}}, "Expected integers or decimals in 'merchant', got str"),
        ({"by": ("amount",)}, "to group by, got Decimal"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ExportRejected, match=says):
        Payments(3).export().write(FakeServices(tmp_path / "ledger"), tmp_path / "payments.csv", **arguments)
    assert not (tmp_path / "payments.csv").exists()


def test_a_name_without_a_format_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ExportRejected, match=r"ends in \.csv, \.jsonl, \.parquet or \.xlsx, got 'payments\.txt'"):
        Payments(3).export().write(FakeServices(tmp_path / "ledger"), tmp_path / "out" / "payments.txt")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity")])
def test_a_sum_of_what_is_no_number_is_refused(tmp_path: Path, value: Decimal) -> None:
    with pytest.raises(ExportRejected, match=f"finite numbers in 'a' to sum, got {value}"):
        RowExport([(value,)], columns=("a",)).write(
            FakeServices(tmp_path / "ledger"), tmp_path / "a.csv", totals={"a": "sum"}
        )


@pytest.mark.parametrize("columns", [(), ("a", "a"), "ab", (1, 2), (None,)])
def test_columns_have_different_names(columns: Any) -> None:
    with pytest.raises(ExportRejected, match="different names"):
        RowExport([], columns=columns)


def test_the_manifest_describes_the_file(tmp_path: Path) -> None:
    export = Payments(21).export(parameters={"merchant": "m-1"})
    manifest = export.write(FakeServices(tmp_path / "ledger"), tmp_path / "payments.csv", totals=TOTALS, by=BY)
    assert (manifest.uid, manifest.key, manifest.fence, manifest.name) == ("uid-1", "payments-17", 1, "payments.csv")
    assert (manifest.query, manifest.parameters) == ("payments", {"merchant": "m-1"})
    assert manifest.bytes == (tmp_path / "payments.csv").stat().st_size
    assert sum(total.rows for total in manifest.totals) == 21
    total = sum((payment(number)[4] for number in range(21)), Decimal(0))
    assert sum(Decimal(total.sums["amount"]) for total in manifest.totals) == total
    assert [tuple(total.by.values()) for total in manifest.totals] == sorted(
        {(payment(number)[2], payment(number)[3]) for number in range(21)}
    )


def test_a_cursor_or_an_arrow_reader_names_its_columns(tmp_path: Path) -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE payments (id INTEGER PRIMARY KEY, amount INTEGER, note TEXT)")
        database.executemany("INSERT INTO payments VALUES (?, ?, ?)", [(n, n * 7, f"n {n}") for n in range(5_000)])
        query = "SELECT id, amount AS cents, note FROM payments WHERE id >= ? ORDER BY id"
        export = RowExport(lambda start: database.execute(query, (start,)), save_rows=1_000)
        services = FakeServices(tmp_path / "ledger", on_progress=lambda done: interrupt(done or 0))

        def interrupt(done: float) -> None:
            if done >= 3_000 and services.fence == 1:
                raise Interrupt("shutdown")

        with pytest.raises(Interrupt):
            export.write(services, tmp_path / "out.csv", totals={"cents": "sum"})
        again = FakeServices(tmp_path / "ledger", fence=2)
        made = export.write(again, tmp_path / "out.csv", totals={"cents": "sum"})
        assert min(beat or 0 for beat in again.beats) >= 3_000, "it went on, and did not begin again"
        rows = database.execute(query, (0,)).fetchall()
    assert made.columns == ("id", "cents", "note")
    assert made.totals[0].sums == {"cents": str(sum(n * 7 for n in range(5_000)))}
    assert (tmp_path / "out.csv").read_text() == "id,cents,note\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)

    table = pa.table({"id": [1, 2], "note": ["a", None]})
    read = RowExport(table.to_reader()).write(FakeServices(tmp_path / "l"), tmp_path / "arrow.jsonl")
    assert read.columns == ("id", "note")
    assert (tmp_path / "arrow.jsonl").read_text() == '{"id":1,"note":"a"}\n{"id":2,"note":null}\n'
    for rows_without in ([(1,)], iter([(1,)])):
        with pytest.raises(ExportRejected, match="name the columns"):
            RowExport(rows_without).write(FakeServices(tmp_path / "l"), tmp_path / "x.csv")
