"""`SparkExport` over real Spark: the file, its totals, what is refused, what is cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from steadyworker.errors import ExportError, ExportRejected, Interrupt
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.spark.build import Build
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.stage import STAGES
from steadyworker.exports.tables import CommonTable, Files
from steadyworker.exports.verifying import verify
from tests.exports.spark.sparkkit import (
    BIG,
    COLUMNS,
    ORDER,
    QUERY,
    LiveServices,
    light,
    lines,
    payment,
    session,
    session_cpu,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SINCE = datetime(2024, 1, 5)  # noqa: DTZ001 - the column has no zone
ENDLESS = "SELECT sum(hash(id)) AS id FROM range(1000000000000)"


def ask(
    service: SparkService, query: str, to: Path, order: str = "id", **tables: CommonTable
) -> tuple[Manifest, list[str]]:
    """Export a query; the manifest and the file's lines."""
    made = SparkExport(query, tables=tables, order_by=(order,)).write(LiveServices(service), to)
    return made, to.read_text(encoding="utf-8").splitlines()


def test_the_file_is_sorted_and_whole_and_equals_what_the_light_path_writes(
    warm: SparkService, payments: Path, tmp_path: Path
) -> None:
    services = LiveServices(warm)
    export = SparkExport(
        QUERY + " WHERE merchant = :m AND amount < :most AND paid_at >= :since",
        tables={"payments": payments},
        order_by=ORDER,
        params={"m": "m-3", "most": Decimal("9000.00"), "since": SINCE},
    )
    made = export.write(services, tmp_path / "out.csv", totals={"amount": "sum"}, by=("currency", "status"))

    rows = [
        row
        for row in map(payment, range(60_000))
        if row[1] == "m-3" and row[3] < Decimal("9000.00") and row[2] >= SINCE
    ]
    rows.sort(key=lambda row: (row[2], row[0]))
    by_rows = light(tmp_path / "out.csv", rows, COLUMNS, totals={"amount": "sum"}, by=("currency", "status"))
    assert (made.rows, made.sha256, made.bytes, made.totals) == (
        by_rows.rows,
        by_rows.sha256,
        by_rows.bytes,
        by_rows.totals,
    )
    assert made.parameters == {"m": "m-3", "most": "9000.00", "since": "2024-01-05T00:00:00"}
    assert {"pyspark", "python"} <= set(made.versions)
    assert verify(tmp_path / "out.csv") == made


def test_one_column_distinguishes_null_from_nothing_and_groups_count_both(warm: SparkService, tmp_path: Path) -> None:
    made, lines = ask(warm, "SELECT * FROM VALUES ('b'), (NULL), ('a') AS t(x)", tmp_path / "one.csv", order="x")
    assert lines == ["x", '""', "a", "b"]
    assert made.rows == 3


def test_an_empty_result_is_a_header_with_a_manifest(warm: SparkService, payments: Path, tmp_path: Path) -> None:
    services = LiveServices(warm)
    made = SparkExport(QUERY + " WHERE id < 0", tables={"payments": payments}, order_by=ORDER).write(
        services, tmp_path / "none.csv", totals={"amount": "sum"}
    )
    assert (tmp_path / "none.csv").read_text() == ",".join(COLUMNS) + "\n"
    assert (made.rows, made.totals[0].sums) == (0, {"amount": "0"})


def test_csv_is_text_unless_a_schema_gives_it_types(warm: SparkService, tmp_path: Path) -> None:
    folder = tmp_path / "csv" / "month=3"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("id,code,amount,at\n2,007,12.50,2024-03-31 02:30:00\n")
    (folder / "b.csv").write_text("id,code,amount,at\n10,+49,-0.1,2024-03-31 02:30:00.5\n")
    assert lines(warm, tmp_path / "csv", tmp_path / "text.csv")[1:] == [
        "10,'+49,'-0.1,2024-03-31 02:30:00.5,3",
        "2,007,12.50,2024-03-31 02:30:00,3",
    ]
    schema = "id BIGINT, code STRING, amount DECIMAL(12,2), at TIMESTAMP_NTZ"
    assert lines(warm, Files(tmp_path / "csv", schema=schema), tmp_path / "typed.csv")[1:] == [
        "2,007,12.50,2024-03-31T02:30:00.000000,3",
        "10,'+49,-0.10,2024-03-31T02:30:00.500000,3",
    ]


def test_json_lines_keep_decimals_exact_and_a_schema_is_taken_at_its_word(warm: SparkService, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"id": 1, "amount": 0.10}\n{"id": 2, "amount": 12345678901234567.89}\n')
    query = "SELECT id, amount FROM t"
    assert lines(warm, tmp_path / "t.jsonl", tmp_path / "a.csv", query)[1:] == ["1,0.10", "2,12345678901234567.89"]
    schema = Files(tmp_path / "t.jsonl", schema="id STRING, amount DECIMAL(20,3)")
    assert lines(warm, schema, tmp_path / "b.csv", query)[1:] == ["1,0.100", "2,12345678901234567.890"]


def test_what_an_export_cannot_be_is_refused(warm: SparkService, payments: Path, tmp_path: Path) -> None:
    def export(to: str = "out.csv", query: str = QUERY, table: CommonTable = payments, **options: Any) -> None:
        SparkExport(query, tables={"payments": table}, order_by=("id",)).write(
            LiveServices(warm), tmp_path / to, **options
        )

    cases: list[tuple[Callable[[], None], str]] = [
        (lambda: export(table=tmp_path / "missing"), r"table 'payments', got .*missing, which does not exist"),
        (lambda: export(table=Files(payments, format="csv", schema="nonsense here now")), "rejected"),
        (lambda: export(totals={"amount": "max"}), r'Expected "sum"'),
        (lambda: export(totals={"merchant": "sum"}), r"integers or decimals in 'merchant', got string"),
        (lambda: export(totals={"amount": "sum"}, by=("amount",)), r"'amount' to group by"),
        (lambda: export(by=("nothing",)), "nothing"),
    ]
    for attempt, says in cases:
        with pytest.raises(ExportError, match=says) as raised:
            attempt()
        assert isinstance(raised.value, ExportRejected) == ("does not exist" not in says)
    with pytest.raises(ExportRejected, match="columns to sort by"):
        SparkExport(QUERY, tables={}, order_by=())
    assert not (tmp_path / "out.csv").exists()


def test_a_small_export_beside_a_big_one_starts_at_once(warm: SparkService, payments: Path, tmp_path: Path) -> None:
    """
    As fast as alone but for a task of its neighbour's at each step: never behind the whole of it.

    Counted in the neighbour's tasks, of which it has 20,000: a busy machine makes both slow.
    """
    small = QUERY + " WHERE id < 10"
    ask(warm, small, tmp_path / "alone.csv", payments=payments)
    begun, ended = threading.Event(), threading.Event()
    tasks: list[int] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event["type"] == "progress":
            tasks.append(event["done"])
            begun.set()

    def big() -> None:
        with pytest.raises(Interrupt):
            SparkExport(BIG, tables={}, order_by=("id",)).write(services, tmp_path / "big.csv")

    def stop() -> None:
        if ended.is_set():
            raise Interrupt("shutdown")

    services = LiveServices(warm, uid="big", on_event=on_event, on_check=stop)
    thread = threading.Thread(target=big)
    thread.start()
    assert begun.wait(60)
    before = tasks[-1]
    _, lines = ask(warm, small, tmp_path / "small.csv", payments=payments)
    meanwhile = tasks[-1] - before
    ended.set()
    services.wake()
    thread.join(60)
    assert len(lines) == 11
    assert meanwhile < 40, "what five seconds of two cores take"
    assert not (tmp_path / "big.csv").exists()


def spins(host: int) -> bool:
    """Whether a Python worker of this host has computed for a while."""
    for pid in session(host):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes() and int(fields[11]) > 50:
                return True
    return False


@pytest.mark.parametrize(
    "when",
    [
        *(pytest.param(when, marks=pytest.mark.slow) for when in ("open", "planning", "started")),
        "progress",
        "endless function",
    ],
)
def test_a_cancelled_export_gives_its_cores_back(
    warm: SparkService, payments: Path, tmp_path: Path, when: str, eventually: Any
) -> None:
    """The caller is free within a second and the cores within three; asserted at five times that."""
    ask(warm, QUERY + " WHERE id < 3", tmp_path / "warm.csv", payments=payments)
    host = warm._hosts[0].process.pid
    ended: list[float] = []
    # While it plans, Spark reads all of a CSV file without a schema: that is the progress before "started".
    awaited = {"planning": "progress", "endless function": "started"}.get(when, when)
    query: str | Build = ENDLESS + (" CROSS JOIN big" if when == "planning" else "")
    if when == "endless function":  # of Python's, in workers of its own
        query = Build("tests.exports.spark.frames:endless")
    (tmp_path / "big.csv").write_text("id\n" + "1234567\n" * (4 << 20 if when == "planning" else 1))

    def interrupt(event: Mapping[str, Any]) -> None:
        if event["type"] == awaited:
            if when == "endless function":
                eventually(lambda: spins(host), within=60)
            ended.append(time.monotonic())
            raise Interrupt("cancelled")

    services = LiveServices(warm, uid="cancelled", on_event=interrupt, interrupt_at_once=when == "open")
    began = time.monotonic()
    with pytest.raises(Interrupt):
        SparkExport(
            query,
            tables={"big": tmp_path / "big.csv"} if when == "planning" else {},
            order_by=("id",),
        ).write(services, tmp_path / "out.csv")
    asked = ended[0] if ended else began
    free = time.monotonic() - asked
    assert ("started" in services.kinds()) == (when not in ("open", "planning"))

    eventually(lambda: not warm._hosts[0].calls, within=15)
    eventually(lambda: is_idle(host), within=15)
    print(f"{when}: the caller was free after {free:.2f} s, the cores after {time.monotonic() - asked:.2f} s")
    assert free < 5
    assert warm._hosts[0].process.pid == host, "the host lives on"
    assert not (tmp_path / "out.csv").exists()
    assert not (tmp_path / STAGES).exists()


def is_idle(host: int) -> bool:
    """Whether a host and its JVM have used next to nothing for a moment."""
    before = session_cpu(host)
    time.sleep(0.3)
    return session_cpu(host) - before < 0.1
