"""A live Spark service as a job's services, and small data to ask it about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from steadyworker.errors import Interrupt
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.rows import RowExport
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.tables import CommonTable
from tests.exports.kit import FakeServices

COLUMNS = ("id", "merchant", "paid_at", "amount", "currency", "status")
QUERY = "SELECT id, merchant, paid_at, amount, currency, status FROM payments"
ORDER = ("paid_at", "id")
SMALL_TASKS = {
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64k",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "64k",
}
CLUSTER = {
    **SMALL_TASKS,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "1",  # of two: another application runs beside it
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
}
"""The settings of an application at a standalone master."""

Made = Callable[..., SparkService]
Event = Mapping[str, Any]
BIG = "SELECT sum(hash(id)) AS id FROM range(0, 200000000000, 1, 20000)"
"""Minutes of work in small tasks."""


@dataclass
class LiveServices:
    """What a job offers its export: the real service, and a ledger that says yes."""

    service: SparkService
    uid: str = "uid-1"
    fence: int = 1
    key: str = "payments-17"
    queue: str = "exports"
    namespace: str = "test"
    on_event: Callable[[Mapping[str, Any]], None] = lambda _: None
    on_check: Callable[[], None] = lambda: None
    interrupt_at_once: bool = False
    stored: bytes | None = None
    saved: list[bytes] = field(default_factory=list)
    events: list[Mapping[str, Any]] = field(default_factory=list)
    beats: list[tuple[float | None, float | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _said: SimpleQueue[Mapping[str, Any]] = field(default_factory=SimpleQueue)

    def progress(self, done: float | None, total: float | None, note: str = "") -> None:
        self.beats.append((done, total))
        self.notes.append(note)
        self.on_check()

    def check(self) -> None:
        self.on_check()

    def export_state(self) -> bytes | None:
        return self.stored

    def save_export_state(self, value: bytes | None) -> None:
        self.stored = value
        self.saved.append(value or b"")

    def may_commit(self) -> None:
        pass

    def staged(self, folder: Path | str) -> None:
        pass

    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        return frozenset()

    def call(self, service: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        call = self.service.open(request, self.uid, self.fence, self._said.put)
        end = False
        try:
            if self.interrupt_at_once:
                raise Interrupt("cancelled")
            while not end:
                event = self._said.get(timeout=350)
                self.on_check()
                self.events.append(event)
                self.on_event(event)
                end = bool(event["end"])
                yield event
        finally:
            if not end:
                call.cancel()

    def wake(self) -> None:
        """Wake the export up, so that it calls `on_check`."""
        self._said.put({})

    def kinds(self) -> list[str]:
        """The types of the events so far."""
        return [event["type"] for event in self.events]


def export(services: LiveServices, payments: Path, to: Path) -> Manifest:
    """Export the payments, with a total."""
    made = SparkExport(QUERY, tables={"payments": payments}, order_by=ORDER)
    return made.write(services, to, totals={"amount": "sum"})


def lines(service: SparkService, table: CommonTable, to: Path, query: str = "SELECT * FROM t") -> list[str]:
    """Export a table `t`; return the lines of the file."""
    SparkExport(query, tables={"t": table}, order_by=("id",)).write(LiveServices(service), to)
    return to.read_text(encoding="utf-8").splitlines()


def light(to: Path, rows: Any, columns: Sequence[str] | None = None, **options: Any) -> Manifest:
    """Export these rows by the light path; its file has the bytes of the one at `to`."""
    beside = to.with_name(f"light-{to.name}")
    made = RowExport(rows, columns=columns).write(FakeServices(to.with_name("ledger")), beside, **options)
    assert to.read_bytes() == beside.read_bytes()
    return made


def at(kind: str, do: Callable[[], object]) -> Callable[[Event], None]:
    """Do something at the first event of a kind."""
    left = [do]

    def on_event(event: Event) -> None:
        if event["type"] == kind and left:
            left.pop()()

    return on_event


def session(leader: int) -> list[int]:
    """The processes of a session that live."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, _, _, sid = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(sid) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def used(folder: Path) -> int:
    """Bytes in a folder that others write into."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def session_cpu(leader: int) -> float:
    """Seconds of CPU that a session's processes have used."""
    ticks = 0
    for pid in session(leader):
        with suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def java_of(leader: int) -> int:
    """The JVM of a host."""
    for pid in session(leader):
        with suppress(OSError):  # what starts it has others for a moment
            if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                return pid
    raise StopIteration(leader)


def payment(number: int) -> tuple[int, str, datetime, Decimal, str, str]:
    """The payment with this number: always the same; times are not in the order of the numbers."""
    at = datetime(2024, 1, 1) + timedelta(seconds=number * 7919 % 31_000_003)  # noqa: DTZ001 - the column has no zone
    currency = ("EUR", "USD", "JPY")[number % 3]
    return (
        number,
        f"m-{number % 11}",
        at,
        Decimal(number * 7919 % 1_000_003).scaleb(-2),
        currency,
        ("paid", "refunded")[number % 7 == 0],
    )


def payments_folder(folder: Path, rows: int, files: int = 4) -> Path:
    """A Parquet folder of so many payments."""
    folder.mkdir(parents=True)
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("merchant", pa.string()),
            ("paid_at", pa.timestamp("us")),
            ("amount", pa.decimal128(12, 2)),
            ("currency", pa.string()),
            ("status", pa.string()),
        ]
    )
    for file in range(files):
        numbers = range(file, rows, files)
        columns = list(zip(*map(payment, numbers), strict=True))
        table = pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )
        pq.write_table(table, folder / f"part-{file}.parquet")
    return folder
