"""`SparkExport` over real Spark: the file, its totals, what is refused, what is cancelled."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker.errors import ExportError, ExportRejected, Interrupt
from steadyworker.exports.formats import Csv
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.rows import RowExport
from steadyworker.exports.spark.build import Build
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.stage import STAGES
from steadyworker.exports.tables import Files, Table
from steadyworker.exports.verifying import verify
from tests.exports.kit import FakeServices
from tests.exports.spark.sparkkit import (
    BIG,
    COLUMNS,
    ORDER,
    QUERY,
    LiveServices,
    payment,
    session,
    session_cpu,
    used,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SINCE = datetime(2024, 1, 5)  # noqa: DTZ001 - the column has no zone
ENDLESS = "SELECT sum(hash(id)) AS id FROM range(1000000000000)"


def ask(service: SparkService, query: str, to: Path, order: str = "id", **tables: Table) -> tuple[Manifest, list[str]]:
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
    light = RowExport(rows, columns=COLUMNS).write(
        FakeServices(tmp_path / "ledger"), tmp_path / "light.csv", totals={"amount": "sum"}, by=("currency", "status")
    )
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "light.csv").read_bytes()
    assert (made.rows, made.sha256, made.bytes, made.totals) == (light.rows, light.sha256, light.bytes, light.totals)
    assert made.parameters == {"m": "m-3", "most": "9000.00", "since": "2024-01-05T00:00:00"}
    assert {"pyspark", "python"} <= set(made.versions)
    assert verify(tmp_path / "out.csv") == made


def test_parts_are_joined_in_order_and_only_real_progress_is_reported(
    warm: SparkService, payments: Path, tmp_path: Path
) -> None:
    services = LiveServices(warm)
    made = SparkExport(QUERY, tables={"payments": payments}, order_by=ORDER).write(
        services, tmp_path / "out.csv", totals={"amount": "sum"}
    )
    kinds = services.kinds()
    assert kinds.index("started") < kinds.index("done") == len(kinds) - 1
    assert kinds.count("started") == 1
    assert len(services.beats) == len(set(services.beats)) + sum(
        a == b for a, b in zip(services.beats, services.beats[1:], strict=False)
    )
    assert made.rows == 60_000
    assert made.totals[0].sums == {"amount": str(sum((payment(n)[3] for n in range(60_000)), Decimal(0)))}
    assert not list(tmp_path.glob(".sw-stage/**/part-*")), "the parts are gone"


NASTY = [
    None,
    "",
    " ",
    "  blanks around  ",
    'say "hi"',
    '"',
    '""',
    "a,b",
    "a;b",
    "line\nend",
    "line\r\nend",
    "cr\r",
    "=cmd|' /C calc'!A0",
    "+49 30 1",
    "-1",
    "@SUM(A1)",
    "\ttab",
    "\rcr",
    "\0nul",
    "#comment",
    "\\backslash\\",
    'back\\"slash',
    "ümläut",
    "😀 emoji",
    "NULL",
    "1E-8",
    "007",
    "\x1f",
]


@pytest.mark.parametrize(
    "form",
    [
        Csv(),
        Csv(delimiter=";", null="NULL", bom=True, guard_formulas=False),
        Csv(delimiter="\t", header=False, null="-1"),
    ],
)
def test_nasty_values_become_the_same_bytes_as_by_the_light_path(warm: SparkService, tmp_path: Path, form: Csv) -> None:
    numbers = [Decimal("1E-8"), Decimal(0), None, Decimal("-0.00000001"), Decimal("9" * 28 + ".99999999")]
    floats = [0.0, -0.0, 1.5, 1e-8, 1e7, 12345678.9, 9999999.0, 1e-3, 9.5e-4, float("nan"), float("inf"), None, 1e22]
    moments = [
        datetime(1, 1, 1),  # noqa: DTZ001 - the column has no zone
        datetime(2024, 3, 31, 2, 30, 0, 123456),  # noqa: DTZ001
        None,
        datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
    ]
    instants = [datetime(2024, 10, 27, 0, 30, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), None]
    rows = [
        (
            number,
            text,
            numbers[number % len(numbers)],
            floats[number % len(floats)],
            moments[number % len(moments)],
            instants[number % len(instants)],
            [date(1, 1, 1), date(2024, 2, 29), None][number % 3],
            [True, False, None][number % 3],
            [2**63 - 1, -(2**63), None][number % 3],
        )
        for number, text in enumerate(NASTY)
    ]
    schema = pa.schema(
        [
            ("id", pa.int32()),
            ('text, "quoted"', pa.string()),
            ("number", pa.decimal128(38, 8)),
            ("float.ing", pa.float64()),
            ("moment", pa.timestamp("us")),
            ("instant", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("flag", pa.bool_()),
            ("big", pa.int64()),
        ]
    )
    table = pa.table([pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)], schema=schema)
    (tmp_path / "source").mkdir()
    pq.write_table(table, tmp_path / "source" / "nasty.parquet")
    typed = [table.column("number").to_pylist(), rows]
    light_rows = [(*row[:2], typed[0][n], *row[3:]) for n, row in enumerate(rows)]

    made = SparkExport("SELECT * FROM nasty", tables={"nasty": tmp_path / "source"}, order_by=("id",)).write(
        LiveServices(warm), tmp_path / "out.csv", format=form
    )
    RowExport(light_rows, columns=schema.names).write(FakeServices(tmp_path / "l"), tmp_path / "light.csv", format=form)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "light.csv").read_bytes()
    assert made.rows == len(NASTY)
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
    _, lines = ask(warm, "SELECT * FROM t", tmp_path / "text.csv", t=tmp_path / "csv")
    assert lines[1:] == ["10,'+49,'-0.1,2024-03-31 02:30:00.5,3", "2,007,12.50,2024-03-31 02:30:00,3"]
    schema = "id BIGINT, code STRING, amount DECIMAL(12,2), at TIMESTAMP_NTZ"
    _, lines = ask(warm, "SELECT * FROM t", tmp_path / "typed.csv", t=Files(tmp_path / "csv", schema=schema))
    assert lines[1:] == ["2,007,12.50,2024-03-31T02:30:00.000000,3", "10,'+49,-0.10,2024-03-31T02:30:00.500000,3"]


def test_json_lines_keep_decimals_exact_and_a_schema_is_taken_at_its_word(warm: SparkService, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"id": 1, "amount": 0.10}\n{"id": 2, "amount": 12345678901234567.89}\n')
    _, lines = ask(warm, "SELECT id, amount FROM t", tmp_path / "a.csv", t=tmp_path / "t.jsonl")
    assert lines[1:] == ["1,0.10", "2,12345678901234567.89"]
    schema = Files(tmp_path / "t.jsonl", schema="id STRING, amount DECIMAL(20,3)")
    _, lines = ask(warm, "SELECT id, amount FROM t", tmp_path / "b.csv", t=schema)
    assert lines[1:] == ["1,0.100", "2,12345678901234567.890"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELEKT 1 AS id", r"rejected.*\[PARSE_SYNTAX_ERROR\]"),
        ("SELECT nothing AS id FROM payments", r"rejected.*nothing"),
        ("SELECT id, id FROM payments", r"different names, got id twice"),
        ("SELECT amount FROM payments", r"order_by.*\(amount\), got 'id'"),
        ("SELECT id, array(1) AS list FROM payments", r"column 'list', got array<int>"),
        ("SELECT id, 1 / (id - 7) AS x FROM payments", r"rejected.*DIVIDE_BY_ZERO"),
        ("SELECT id FROM payments WHERE merchant = :missing", r"rejected.*missing"),
    ],
)
def test_a_query_that_cannot_be_is_reported_in_one_line_of_sparks(
    warm: SparkService, payments: Path, tmp_path: Path, query: str, says: str
) -> None:
    with pytest.raises(ExportRejected, match=says) as raised:
        ask(warm, query, tmp_path / "out.csv", payments=payments)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out.csv").exists()


def test_what_an_export_cannot_be_is_refused(warm: SparkService, payments: Path, tmp_path: Path) -> None:
    def export(to: str = "out.csv", query: str = QUERY, table: Table = payments, **options: Any) -> None:
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


def test_a_cancelled_export_leaves_no_stage_although_spark_writes_into_it(
    warm: SparkService, tmp_path: Path, eventually: Any
) -> None:
    """Spark's tasks end a moment after their caller; a folder that they have made again is removed behind them."""
    stages, written = tmp_path / STAGES, list[int]()

    def interrupt(_event: Mapping[str, Any]) -> None:
        size = used(stages)
        if size > 1 << 20:
            written.append(size)
            raise Interrupt("cancelled")

    services = LiveServices(warm, uid="cancelled", on_event=interrupt)
    query = "SELECT id, sha2(CAST(id AS STRING), 256) AS hash FROM range(0, 12000000, 1, 60)"
    with pytest.raises(Interrupt):
        SparkExport(query, tables={}, order_by=("id",)).write(services, tmp_path / "out.csv")
    assert written
    eventually(lambda: not warm._hosts[0].calls, within=30)
    host = warm._hosts[0].process.pid

    def is_over() -> bool:
        return is_idle(host) and not stages.exists()

    eventually(is_over, within=30)  # a Java that waits for a core seems idle, too
    assert all(is_over() for _ in range(5)), "the folder was made again"
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_of_the_job_answers_with_the_file_that_is_there(
    warm: SparkService, payments: Path, tmp_path: Path
) -> None:
    export = SparkExport(QUERY + " WHERE id < 100", tables={"payments": payments}, order_by=ORDER)
    made = export.write(LiveServices(warm), tmp_path / "out.csv")
    again = LiveServices(warm, fence=2)
    assert export.write(again, tmp_path / "out.csv") == made
    assert again.events == [], "Spark was not asked"
    assert hashlib.sha256((tmp_path / "out.csv").read_bytes()).hexdigest() == made.sha256
