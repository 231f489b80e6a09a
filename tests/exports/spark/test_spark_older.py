"""The second lane: what must hold on every version of Spark, on the newest and on 4.1."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from tests.exports.spark.sparkkit import LiveServices

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

LANES = [pytest.param(name, marks=pytest.mark.xdist_group(f"spark {name}")) for name in ("warm", "older")]
AMOUNTS = [Decimal(f"{number}9999999999999999999.{'9' * 18}") for number in (9, 9, 9, 9, 9, 9, 9, 8)]


@pytest.fixture
def lane(request: pytest.FixtureRequest) -> SparkService:
    """A warm service of the version that the test names."""
    service: SparkService = request.getfixturevalue(request.param)
    return service


@pytest.mark.parametrize("lane", LANES, indirect=True)
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_sum_of_more_than_38_digits_is_exact(lane: SparkService, tmp_path: Path, suffix: str) -> None:
    """DECIMAL(38,18): Spark itself can neither hold the sum nor say so on each version."""
    table = pa.table({"id": range(len(AMOUNTS)), "d": pa.array(AMOUNTS, pa.decimal128(38, 18))})
    pq.write_table(table, tmp_path / "t.parquet")
    export = SparkExport("SELECT * FROM t", tables={"t": tmp_path / "t.parquet"}, order_by=("id",))
    made = export.write(LiveServices(lane), tmp_path / f"out.{suffix}", totals={"d": "sum", "id": "sum"})
    total = made.totals[0]
    assert (made.rows, total.rows, total.by) == (8, 8, {})
    assert total.sums == {"d": "789999999999999999999.999999999999999992", "id": "28"}
