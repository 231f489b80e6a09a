"""One moment of PostgreSQL for all that an export reads, and nothing of it left when the job has ended, however it did."""

from __future__ import annotations

import os
import signal
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from steadyworker.errors import ExportError, ExportRejected, Interrupt
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from tests.conftest import Eventually
from tests.exports.spark.jdbckit import BLOCKED, connections, fill, sleeping, table
from tests.exports.spark.sparkkit import LiveServices

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

RUNS, RANGES, ACCOUNTS = 4, 16, 4000
WITHIN = 60.0


def test_sums_are_exact_beside_two_writers_that_move_money(
    sources: SparkService, database: str, tmp_path: Path
) -> None:
    """Within one table, and between two: both are read in the same moment, by 17 connections."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE accounts (id int PRIMARY KEY, amount numeric(12,2) NOT NULL)")
        connection.execute("CREATE TABLE pots (id int PRIMARY KEY, amount numeric(12,2) NOT NULL)")
        connection.execute("INSERT INTO accounts SELECT n, 1000 FROM generate_series(1, %s) n", (ACCOUNTS,))
        connection.execute("INSERT INTO pots VALUES (1, 0), (2, 0)")
    stop, moves = threading.Event(), [0, 0]

    def move(pot: int) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            while not stop.wait(0.002):
                with connection.transaction():
                    first, last = (moves[pot] * 37 + pot) % ACCOUNTS + 1, ACCOUNTS - moves[pot] * 41 % ACCOUNTS
                    connection.execute("UPDATE accounts SET amount = amount - 3 WHERE id = %s", (first,))
                    connection.execute("UPDATE accounts SET amount = amount + 2 WHERE id = %s", (last,))
                    connection.execute("UPDATE pots SET amount = amount + 1 WHERE id = %s", (pot + 1,))
                moves[pot] += 1

    writers = [threading.Thread(target=move, args=(pot,)) for pot in range(2)]
    for writer in writers:
        writer.start()
    try:
        export = SparkExport(
            "SELECT id, amount FROM accounts UNION ALL SELECT -id, amount FROM pots",
            tables={
                "accounts": table(database, "accounts", partition_by="id", partitions=RANGES),
                "pots": table(database, "pots"),
            },
            order_by=("id",),
        )
        sums, snapshots = [], set()
        for run in range(RUNS):
            before = sum(moves)
            made = export.write(
                LiveServices(sources, uid=f"run-{run}"), tmp_path / f"{run}.csv", totals={"amount": "sum"}
            )
            assert sum(moves) > before, "money was moved meanwhile"
            sums.append((made.rows, made.totals[0].sums["amount"]))
            snapshots.add(made.snapshot)
    finally:
        stop.set()
        for writer in writers:
            writer.join(WITHIN)
    assert sums == [(ACCOUNTS + 2, str(Decimal(ACCOUNTS * 1000).quantize(Decimal("0.01"))))] * RUNS
    assert len(snapshots) == RUNS


class Background:
    """An export in a thread, to be interrupted."""

    def __init__(self, service: SparkService, source: Jdbc, to: Path, query: str, params: dict[str, Any]) -> None:
        self._interrupt = threading.Event()
        self.services = LiveServices(service, uid="blocked", on_check=self._check)
        self._export = SparkExport(query, tables={"payments": source}, order_by=("id",), params=params)
        self._to, self.ended = to, ""
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _check(self) -> None:
        if self._interrupt.is_set():
            raise Interrupt("cancelled")

    def _work(self) -> None:
        try:
            self._export.write(self.services, self._to)
        except (Interrupt, ExportError) as error:
            self.ended = f"{type(error).__name__} {error}"

    def interrupt(self) -> None:
        """As when somebody cancels the job; returns when its process is free."""
        self._interrupt.set()
        self.services.wake()
        self._thread.join(WITHIN)
        assert not self._thread.is_alive()


PARAMS = {
    "merchant": "o'b\\",
    "least": Decimal("12.50"),
    "since": datetime(2024, 1, 5),  # noqa: DTZ001 - the column has no zone
    "day": date(2024, 1, 1),
    "instant": datetime(2024, 1, 2, tzinfo=UTC),
}
WHERE = "WHERE merchant <> :merchant AND amount >= :least AND paid_at >= :since AND (day > :day) AND instant > :instant"
PUSHED = ["'o''b\\'", "12.50", "2024-01-05 00:00:00", "2024-01-01", "2024-01-02 00:00:00"]


@pytest.mark.parametrize("when", ["read", "plan"])
def test_a_cancelled_job_leaves_no_query_behind_and_the_next_one_runs(
    sources: SparkService, database: str, tmp_path: Path, eventually: Eventually, when: str
) -> None:
    """While its ranges wait for their first rows: both cores; and while a lock keeps its table from being understood."""
    fill(database, 1000)
    small = SparkExport("SELECT id FROM payments", tables={"payments": table(database)}, order_by=("id",))
    small.write(LiveServices(sources), tmp_path / "warm.csv")
    host = sources._hosts[0].process.pid
    blocked = "SELECT *, paid_at::date AS day, paid_at::timestamptz AS instant, slowly(id) AS x FROM payments"
    source = table(database, blocked, partition_by="id", partitions=4)
    with psycopg.connect(database) as lock:
        if when == "plan":
            lock.execute("LOCK TABLE payments IN ACCESS EXCLUSIVE MODE")
        job = Background(sources, source, tmp_path / "out.csv", f"SELECT id, x FROM payments {WHERE}", PARAMS)
        if when == "plan":
            eventually(lambda: "active" in {state for _, state, _, _ in connections(database)}, within=WITHIN)
        else:
            eventually(lambda: len(sleeping(database)) > 1, within=WITHIN)
            assert all(value in query for value in PUSHED for query in sleeping(database)), "bound values reach it"
            names = {name for name, _, _, _ in connections(database)}
            assert len(names) == 1
            assert names.pop().startswith("steadyworker blocked-1-")
        job.interrupt()
        assert job.ended.startswith("Interrupt")
        eventually(lambda: not connections(database), within=WITHIN)
    small.write(LiveServices(sources, uid="next"), tmp_path / "next.csv")
    assert sources._hosts[0].process.pid == host, "it did not have to be killed"
    assert not (tmp_path / "out.csv").exists()


def test_a_range_that_fails_takes_the_others_queries_with_it_and_an_answer_has_a_limit(
    sources: SparkService, database: str, tmp_path: Path, eventually: Eventually
) -> None:
    fill(database, 1000)
    broken = "SELECT id, CASE WHEN id >= 400 THEN (1 / (id - id))::text ELSE slowly(id) END AS x FROM payments"
    cases: list[tuple[Jdbc, type[ExportError], str]] = [
        (table(database, broken, partition_by="id", partitions=2), ExportRejected, r"\(rejected\): .*division by zero"),
        (table(database, BLOCKED, statement_timeout=1.0), ExportError, r"\(job\): .*statement timeout"),
    ]
    for source, kind, says in cases:
        with pytest.raises(kind, match=says):
            SparkExport("SELECT * FROM t", tables={"t": source}, order_by=("id",)).write(
                LiveServices(sources), tmp_path / "out.csv"
            )
        eventually(lambda: not connections(database), within=WITHIN)


def test_a_host_that_is_killed_takes_its_queries_and_its_moment_with_it(
    sources: SparkService, database: str, tmp_path: Path, eventually: Eventually
) -> None:
    fill(database, 1000)
    job = Background(
        sources,
        table(database, BLOCKED, partition_by="id", partitions=2),
        tmp_path / "out.csv",
        "SELECT * FROM payments",
        {},
    )
    eventually(lambda: sleeping(database), within=6 * WITHIN)
    os.kill(sources._hosts[0].process.pid, signal.SIGKILL)
    job.interrupt()
    eventually(lambda: not connections(database), within=WITHIN)
    assert job.ended.startswith("Interrupt")
