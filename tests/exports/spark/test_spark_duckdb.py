"""The same query by Spark and by DuckDB gives the same bytes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker.exports.duckdb.export import DuckDBExport
from steadyworker.exports.formats import Csv, Format, Parquet
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.tables import Files
from tests.exports.kit import FakeServices
from tests.exports.spark.sparkkit import LiveServices
from tests.exports.spark.test_spark_formats import SCHEMA, nasty

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def both(warm: SparkService, folder: Path, name: str, query: str, form: Format | None = None, **given: Any) -> Manifest:
    """Export by both, compare the files, and return the manifest of Spark's."""
    by_spark = SparkExport(query, **given).write(LiveServices(warm), folder / f"spark-{name}", format=form)
    by_duckdb = DuckDBExport(query, **given).write(
        FakeServices(folder / "ledger"), folder / f"duckdb-{name}", format=form
    )
    assert (folder / f"spark-{name}").read_bytes() == (folder / f"duckdb-{name}").read_bytes()
    assert by_spark.sha256 == by_duckdb.sha256
    return by_spark


def test_nasty_values_in_the_order_of_each_kind_of_column(warm: SparkService, tmp_path: Path) -> None:
    """NULL, NaN, texts and moments as the first key; test_duckdb_values.py has the other formats."""
    columns = zip(*nasty(), strict=True)
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    pq.write_table(table, tmp_path / "nasty.parquet")
    for number, key in enumerate(('text, "quoted"', "float.ing DESC", "moment DESC", "instant", "number", "flag")):
        made = both(
            warm, tmp_path, f"{number}.csv", "SELECT * FROM nasty", Csv(),
            tables={"nasty": tmp_path / "nasty.parquet"}, order_by=(key, "id"),
        )  # fmt: skip
        assert made.rows == len(table)


@pytest.mark.parametrize("form", [Csv(), Parquet()])
def test_the_same_files_and_parameters(warm: SparkService, tmp_path: Path, form: Format) -> None:
    (tmp_path / "p.csv").write_text(
        "id,merchant,amount,paid_at\n"
        '3,"a, b",12345678901234567890.12,2024-03-31 02:30:00\n1,,0.10,2024-03-31T00:30:00.5+02:00\n2,x,,2023-01-01 00:00:00\n'
    )
    (tmp_path / "m.jsonl").write_text('{"name":"x","share":1.10}\n{"name":"a, b","share":0.12345678901234567890}\n')
    query = """
        SELECT p.id, p.merchant, p.amount, p.paid_at, m.share, :label AS label
        FROM p LEFT JOIN m ON m.name = p.merchant WHERE p.paid_at >= :since OR p.amount > :least
    """
    made = both(
        warm, tmp_path, f"out.{form.name}", query, form,
        tables={
            "p": Files(tmp_path / "p.csv", schema="id BIGINT, merchant STRING, amount DECIMAL(22,2), paid_at TIMESTAMP"),
            "m": Files(tmp_path / "m.jsonl", schema="name STRING, share DECIMAL(22,20)"),
        },
        order_by=("paid_at DESC", "id"),
        params={"label": "it's :since", "since": datetime(2024, 3, 30, 22, 30, tzinfo=UTC), "least": Decimal("100.5")},
    )  # fmt: skip
    assert made.rows == 2
