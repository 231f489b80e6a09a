"""Every example runs: the payment exports from each kind of source, the move from raw pika, the example of a test."""

from __future__ import annotations

import csv
import re
import shutil
import sqlite3
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from steadyworker.exports import Manifest, verify
from tests.examples.conftest import EXAMPLES, Shell
from tests.examples.pages import Page

COLUMNS = ("id", "merchant", "paid_at", "amount", "currency", "status", "note")
ROWS = [
    (
        f"{'aA_'[number % 3]}{number:04}",
        "harbour-books" if number % 3 else "villa-rosa",
        f"2025-03-{number % 28 + 1:02} 10:00:00" if number % 50 else None,
        Decimal(number * 37 - 900) / 100,
        "EUR" if number % 2 else "CHF",
        "captured" if number % 5 else "refunded",
        (None, "plain", 'a "quoted", one', "007", "=1+1")[number % 5],
    )
    for number in range(300)
]
OF_MERCHANT = [row for row in ROWS if row[1] == "harbour-books"]


def parquet(folder: Path) -> str:
    """A folder for each half, as a data lake has them."""
    schema = pa.schema({name: pa.decimal128(18, 2) if name == "amount" else pa.string() for name in COLUMNS})
    for half, rows in (("a", ROWS[:150]), ("b", ROWS[150:])):
        (folder / f"lake/half={half}").mkdir(parents=True)
        table = pa.table(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)), schema=schema)
        pa_parquet.write_table(table, folder / f"lake/half={half}/part.parquet")
    return str(folder / "lake")


def csv_folder(folder: Path) -> str:
    """Two files; NULL is nothing between two delimiters."""
    (folder / "csv").mkdir()
    for name, rows in (("1.csv", ROWS[:100]), ("2.csv", ROWS[100:])):
        with (folder / "csv" / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(rows)
    return str(folder / "csv")


def sqlite(folder: Path) -> str:
    """A table whose amounts are text, because SQLite has no decimals."""
    db = sqlite3.connect(folder / "shop.db")
    with db:
        db.execute(f"CREATE TABLE paid ({', '.join(f'{name} TEXT' for name in COLUMNS)})")
        rows = [tuple(str(cell) if isinstance(cell, Decimal) else cell for cell in row) for row in ROWS]
        db.executemany(f"INSERT INTO paid VALUES ({', '.join('?' * len(COLUMNS))})", rows)
    db.close()
    return f"sqlite:{folder / 'shop.db'}#paid"


def postgresql(database: str) -> tuple[str, str]:
    """A table in a schema of its own, as the example takes it, and the password."""
    with psycopg.connect(database) as db:
        db.execute("CREATE SCHEMA shop")
        db.execute(
            "CREATE TABLE shop.paid (id text, merchant text, paid_at timestamp, amount numeric(18,2),"
            " currency text, status text, note text)"
        )
        with db.cursor().copy("COPY shop.paid FROM STDIN") as copy:
            for row in ROWS:
                copy.write_row(row)
    url = urlsplit(database)
    return f"postgresql://{url.username}@{url.hostname}:{url.port}{url.path}#shop.paid", url.password or ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shell's folder, with the example in it."""
    shutil.copy(EXAMPLES / "payment_exports.py", tmp_path)
    return tmp_path


def exported(folder: Path, shell: Shell, source: str, **environ: str) -> Manifest:
    shell(
        """worker=payment_exports:PaymentExports
        steadyworker send $worker '{"merchant": "harbour-books"}' --key march
        steadyworker run $worker --max-jobs 1
        steadyworker verify exports/march.csv""",
        PAYMENTS_SOURCE=source,
        **environ,
    )
    return verify(folder / "exports/march.csv")


def check(folder: Path, manifest: Manifest) -> None:
    """The file has the merchant's rows in order, each amount to the cent; the manifest has their totals."""
    with (folder / "exports/march.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    wanted = sorted(OF_MERCHANT, key=lambda row: (row[2] or "", row[0]))  # what was not paid comes first
    assert [row["id"] for row in found] == [row[0] for row in wanted]
    assert [Decimal(row["amount"]) for row in found] == [row[3] for row in wanted]
    assert [row["note"].removeprefix("'") for row in found] == [row[6] or "" for row in wanted]
    assert manifest.rows == len(wanted)
    for total in manifest.totals:
        group = [row for row in wanted if (row[4], row[5]) == (total.by["currency"], total.by["status"])]
        assert (total.rows, Decimal(total.sums["amount"])) == (len(group), sum(row[3] for row in group))


@pytest.mark.parametrize("source", [parquet, csv_folder, sqlite])
def test_payments_come_from(source: Callable[[Path], str], folder: Path, shell: Shell) -> None:
    check(folder, exported(folder, shell, source(folder)))


def test_payments_come_from_postgresql(database: str, folder: Path, shell: Shell) -> None:
    source, password = postgresql(database)
    check(folder, exported(folder, shell, source, PGPASSWORD=password))
    assert password not in (folder / "exports/march.csv.manifest.json").read_text()


@pytest.mark.spark
@pytest.mark.usefixtures("drivers")
@pytest.mark.timeout(600)
def test_above_the_threshold_spark_makes_the_same_bytes(
    archive: Path, database: str, folder: Path, shell: Shell
) -> None:
    (folder / "low.py").write_text(
        "import payment_exports\n\npayment_exports.SPARK_ABOVE = 10\n\n\n"
        "class Low(payment_exports.PaymentExports):\n    '''Its threshold is low.'''\n"
    )
    table, password = postgresql(database)
    places = {"lake": parquet(folder), "csv": csv_folder(folder), "table": table}
    script = "".join(
        f"""steadyworker send $WORKER '{{"merchant": "harbour-books", "source": "{place}"}}' --key {name}\n"""
        for name, place in places.items()
    )
    script += "steadyworker run $WORKER --max-jobs 3"
    shared = {"PGPASSWORD": password, "PARTITION_BY": "paid_at"}
    shell(
        script,
        **shared,
        WORKER="payment_exports:PaymentExports",
        PAYMENTS_OUT="streamed",
        STEADYWORKER_STATE_DIR=str(folder / "state-1"),
    )
    state = str(folder / "state-2")
    shell(script, **shared, WORKER="low:Low", PAYMENTS_OUT="exports", STEADYWORKER_STATE_DIR=state, within=500)
    for name in places:
        streamed, by_spark = verify(folder / f"streamed/{name}.csv"), verify(folder / f"exports/{name}.csv")
        assert ("pyspark" in streamed.versions, "pyspark" in by_spark.versions) == (False, True)
        assert (by_spark.sha256, by_spark.totals) == (streamed.sha256, streamed.totals)


def test_a_place_that_does_not_fit_is_a_dead_letter_with_this_reason(folder: Path, shell: Shell) -> None:
    (Path(parquet(folder)) / "_delta_log").mkdir()
    said = shell(
        """worker=payment_exports:PaymentExports
        steadyworker send $worker '{"merchant": "harbour-books"}' --key no-such-column
        steadyworker send $worker '{"merchant": "harbour-books", "source": "nowhere"}' --key no-such-place
        steadyworker send $worker '{"merchant": "harbour-books", "source": "lake"}' --key deltalake
        steadyworker run $worker --max-jobs 3
        steadyworker dead list $worker""",
        PAYMENTS_SOURCE=csv_folder(folder),
        AMOUNT_COLUMN="price",
    )
    assert "expected columns price in " in said
    assert "expected .parquet or .csv files, got none at nowhere" in said
    assert 'spark.read.format("delta").load(' in said


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_chained_job_goes_to_the_broker_that_the_flags_of_run_name(
    tmp_path: Path, shell: Shell, isolation: str
) -> None:
    """The recipe makes its own `Client()` in `setup`."""
    for name, text in (Page("README.md").files() | Page("examples/README.md").files()).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "broker.url").write_text("sqlite:queues.db")
    (tmp_path / "steadyworker.toml").write_text(f'[workers.Mails]\nisolation = "{isolation}"\n')
    here = "--broker-file broker.url --state-dir elsewhere"
    shell(
        f"""
        steadyworker send recipes:Mails '{{"to": "villa-rosa"}}' --key mail-1 {here}
        steadyworker run recipes:Mails --max-jobs 1 {here}
        steadyworker run exports:PaymentExports --max-jobs 1 --idle-exit 3 {here}
        """
    )
    assert (tmp_path / "out" / "mail-1.export" / "2.csv").read_text() == "villa-rosa,2\n"


def test_the_move_from_raw_pika(tmp_path: Path, shell: Shell) -> None:
    shutil.copy(EXAMPLES / "from_raw_pika.py", tmp_path)
    for day in ("1", "2"):  # the same merchant again on the second day
        shell(
            f"""steadyworker send from_raw_pika:PaymentExports '{{"merchant": "harbour-books"}}' --key harbour-books-{day}
            steadyworker run from_raw_pika:PaymentExports --max-jobs 1"""
        )
        assert verify(tmp_path / f"out/harbour-books-{day}.csv").rows == 20_000


def test_what_it_moves_from_is_a_program_of_sixty_lines() -> None:
    before = (EXAMPLES / "from_raw_pika.before.txt").read_text(encoding="utf-8")
    compile(before, "before.py", "exec")
    assert 55 <= len(before.splitlines()) <= 65


def test_the_example_of_a_test_passes(folder: Path, shell: Shell) -> None:
    shutil.copy(EXAMPLES / "test_payment_exports.py", folder)
    said = shell("python -m pytest -q test_payment_exports.py")
    assert re.search(r"^4 passed", said, re.MULTILINE)
