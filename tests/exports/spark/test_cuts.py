"""Where a sort is cut: the order is Spark's own, its pieces are even, and where it is not to be had, Spark cuts it."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker.errors import ExportError
from steadyworker.exports.rows import RowExport
from steadyworker.exports.spark.build import Build
from steadyworker.exports.spark.cuts import SortCells, cut
from steadyworker.exports.spark.export import SparkExport, Value
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.exports.kit import FakeServices
from tests.exports.spark.sparkkit import LiveServices

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS, PIECES, BIG = 30_000, 40, 120_000
DRAW = random.Random(17)
BERLIN = "Europe/Berlin"


def keys(values: list[float | None]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.float64())])


def cell(key: float | None, cells: SortCells) -> int:
    """Which one a key belongs into."""
    return 0 if key is None else int(max(0.0, min(cells.count - 1.0, (key - cells.first) * cells.each)))


def share(values: list[float | None], cells: SortCells) -> float:
    """Of the heaviest cell."""
    at = [cell(value, cells) for value in values]
    return max(map(at.count, set(at))) / len(at)


def test_even_keys_are_cut_into_even_cells() -> None:
    values: list[float | None] = [DRAW.uniform(-5e9, 5e9) for _ in range(20_000)]
    cells = cut(keys(values), PIECES)
    assert cells is not None
    assert cells.count == 4 * PIECES
    assert share(values, cells) < 1 / PIECES


def test_a_few_days_far_away_do_not_make_one_cell_of_all_others() -> None:
    values: list[float | None] = [DRAW.gauss(1_700_000_000, 10_000_000) for _ in range(20_000)]
    values[:150] = [253_402_300_799.0] * 150
    values[150:300] = [-62_135_596_800.0] * 150
    cells = cut(keys(values), PIECES)
    assert cells is not None
    assert share(values, cells) < 3 / PIECES


@pytest.mark.parametrize(
    "values",
    [
        [5.0] * 1000,
        [*range(500), *[700.0] * 500],
        [*range(500), *[None] * 500],
        [None] * 1000,
        [10.0 ** DRAW.uniform(0, 12) for _ in range(1000)],
        [5e-324 * number for number in range(1000)],
    ],
    ids=["one value", "a heavy value", "half of them NULL", "all of them NULL", "powers of ten", "denormal"],
)
def test_keys_that_equal_cells_would_not_divide_are_left_to_spark(values: list[float | None]) -> None:
    assert cut(keys(values), PIECES) is None


def test_too_few_keys_show_nothing() -> None:
    assert cut(keys([*range(80)]), 15) is None
    assert cut(keys([*range(80)]), 16) is not None


FRAMES = """
from collections import Counter
from pyspark.sql import functions as F
from steadyworker.exports.spark.cuts import Key, ordered


def looked_at(spark, tables, params):
    # How the table is sorted, and in which order its rows come, part after part.
    spark.conf.set("spark.sql.session.timeZone", params["zone"])
    spark.conf.set("spark.sql.shuffle.partitions", str(params["pieces"]))
    if params["of"]:
        spark.conf.set(*params["of"].split("=", 1))
    rows = spark.sql(params["query"])
    rows = ordered(rows, [Key("key"), Key("id")], params["size"], params["pieces"])
    cells = int(spark.conf.get("spark.sql.shuffle.partitions"))
    parts = rows.select("id", F.spark_partition_id().alias("part")).collect()
    ids = [row["id"] for row in sorted(parts, key=lambda row: row["part"])]
    one = spark.sql(params["query"]).select("id", "key").coalesce(1).sortWithinPartitions("key", "id").select("id")
    expected = [row["id"] for row in one.collect()]
    said = rows._jdf.queryExecution().toString()
    by = "us" if "direct_shuffle_partition_id" in said else "Spark" if "rangepartitioning" in said else "nobody"
    heaviest = max(Counter(row["part"] for row in parts).values(), default=0)
    found = [cells, len({row["part"] for row in parts}), heaviest, ids == expected, len(ids), by]
    return spark.createDataFrame([(1, " ".join(map(str, found)))], "id INT, found STRING")
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a key of each kind: NULL, doubled, far away, and in no order."""
    draw = random.Random(4)
    around = datetime(2024, 3, 31, tzinfo=UTC)  # Berlin leaves out an hour of this day
    seconds = [draw.randrange(-200_000, 200_000) for _ in range(ROWS)]
    moments: list[datetime | None] = [
        around + timedelta(seconds=second, microseconds=draw.randrange(10**6)) for second in seconds
    ]
    moments[:30] = [datetime(1, 1, 1, tzinfo=UTC)] * 30
    moments[30:60] = [datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)] * 30
    holes = draw.sample(range(ROWS), 300)
    columns: dict[str, list[Any]] = {
        "small": [draw.randrange(-30_000, 30_000) for _ in range(ROWS)],
        "large": [draw.randrange(-(2**63), 2**63) for _ in range(ROWS)],
        "amount": [Decimal(draw.randrange(-(10**37), 10**37)).scaleb(-4) for _ in range(ROWS)],
        "day": [date(1900, 1, 1) + timedelta(days=draw.randrange(40_000)) for _ in range(ROWS)],
        "moment": moments,
        "local": [moment.replace(tzinfo=None) if moment else None for moment in moments],
        "text": [f"{draw.randrange(10**9)}" for _ in range(ROWS)],
        "real": [draw.gauss(0, 1) for _ in range(ROWS)],
        "heavy": [draw.choice((0, 0, 0, draw.randrange(10**6))) for _ in range(ROWS)],
    }
    for values in columns.values():
        for hole in holes:
            values[hole] = None
    kinds = {
        "small": pa.int16(),
        "large": pa.int64(),
        "amount": pa.decimal128(38, 4),
        "day": pa.date32(),
        "moment": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "text": pa.string(),
        "real": pa.float64(),
        "heavy": pa.int32(),
    }
    table = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            **{name: pa.array(columns[name], kind) for name, kind in kinds.items()},
        }
    )
    folder = tmp_path_factory.mktemp("keys")
    for part in range(4):
        pq.write_table(table.slice(part * ROWS // 4, ROWS // 4), folder / f"{part}.parquet")
    return folder


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More Parquet than one task is given: text that cannot be packed."""
    draw, folder = random.Random(9), tmp_path_factory.mktemp("big")
    at = datetime(2024, 1, 1)  # noqa: DTZ001 - the column has no zone
    for part in range(4):
        numbers = range(part, BIG, 4)
        times = [at + timedelta(seconds=draw.randrange(10**6)) if number % 50 else None for number in numbers]
        texts = [draw.randbytes(100).hex() for _ in numbers]
        table = {
            "id": pa.array(numbers, pa.int64()),
            "paid_at": pa.array(times, pa.timestamp("us")),
            "reference": texts,
        }
        pq.write_table(pa.table(table), folder / f"{part}.parquet")
    return folder


@pytest.fixture
def look(sources: SparkService, frames: Path, lake: Path, tmp_path: Path) -> Any:
    """Sort a query's rows by `key` in the host, and tell how it was done."""
    (frames / "sorted_frames.py").write_text(FRAMES)

    def ask(
        query: str, *, size: int = 60 << 20, of: str = "", zone: str = "UTC", pieces: int = PIECES
    ) -> dict[str, Any]:
        params: dict[str, Value] = {"query": query, "size": size, "of": of, "zone": zone, "pieces": pieces}
        export = SparkExport(Build("sorted_frames:looked_at"), tables={"t": lake}, params=params, order_by=("id",))
        export.write(LiveServices(sources), to := tmp_path / f"{len(list(tmp_path.iterdir()))}.csv")
        cells, parts, heaviest, right, rows, by = to.read_text().splitlines()[1].split(",")[1].split()
        return {
            "cells": int(cells),
            "parts": int(parts),
            "heaviest": int(heaviest),
            "right": right == "True",
            "rows": int(rows),
            "cut by": by,
        }

    return ask


WIDE = ", ".join(f"'' AS c{number}" for number in range(90))
"""Columns that make few rows as many bytes, in Spark's eyes, as 60 MB have."""


@pytest.mark.parametrize(
    "key",
    ["amount", "moment", *(pytest.param(key, marks=pytest.mark.slow) for key in ("small", "large", "day", "local"))],
)
def test_numbers_and_times_are_cut_by_a_sample_into_spark_s_own_order(look: Any, key: str) -> None:
    found = look(f"SELECT id, {key} AS key, {WIDE} FROM t", zone=BERLIN)
    assert found == found | {"right": True, "rows": ROWS, "cut by": "us", "cells": 4 * PIECES}
    assert 1 < found["parts"] < 4 * PIECES, "neighbours are put together by their bytes"
    assert found["heaviest"] < 3 * ROWS / found["parts"]


NOT_CUT = {
    # what is asked for, and the setting under which
    "text": (f"SELECT id, text AS key, {WIDE} FROM t", ""),
    "floats": (f"SELECT id, real AS key, {WIDE} FROM t", ""),
    "a heavy value": (f"SELECT id, heavy AS key, {WIDE} FROM t", ""),
    "groups": (f"SELECT id, min(large) AS key, {WIDE} FROM t GROUP BY id", ""),
    "a limit": (f"SELECT id, large AS key, {WIDE} FROM t ORDER BY large LIMIT 20000", ""),
    "a large join": (
        f"SELECT a.id, b.large AS key, {WIDE} FROM t a JOIN t b USING (id)",
        "spark.sql.autoBroadcastJoinThreshold=-1",
    ),
    "a full join": (
        f"SELECT t.id, small AS key, {WIDE} FROM t FULL JOIN VALUES (0), (1) AS n(n) ON t.id % 2 = n",
        "",
    ),
    "a join by merging": (
        f"SELECT /*+ MERGE(n) */ t.id, small AS key, {WIDE} FROM t JOIN VALUES (0), (1) AS n(n) ON t.id % 2 = n",
        "",
    ),
    "a query within": (f"SELECT id, small AS key, {WIDE} FROM t WHERE small < (SELECT max(small) FROM t)", ""),
    "not adaptive": (f"SELECT id, large AS key, {WIDE} FROM t", "spark.sql.adaptive.enabled=false"),
    "not put together": (
        f"SELECT id, large AS key, {WIDE} FROM t",
        "spark.sql.adaptive.coalescePartitions.enabled=false",
    ),
    "another count": (
        f"SELECT id, large AS key, {WIDE} FROM t",
        "spark.sql.adaptive.coalescePartitions.initialPartitionNum=7",
    ),
}
ALWAYS = {"text", "a heavy value", "a limit", "a large join", "not adaptive"}
"""One of each reason: a kind of key, its values, a query that has one piece already, a plan, and a setting."""


@pytest.mark.parametrize(
    ("query", "of"),
    [
        pytest.param(*asked, id=name, marks=[] if name in ALWAYS else [pytest.mark.slow])
        for name, asked in NOT_CUT.items()
    ],
)
def test_what_cannot_be_cut_so_is_cut_by_spark(look: Any, query: str, of: str) -> None:
    found = look(query, of=of)
    assert found["right"]
    assert found["cut by"] == ("nobody" if "LIMIT" in query else "Spark"), "what is limited is one piece already"
    assert found["cells"] == PIECES, "the setting is as it was"


def test_a_small_table_that_is_joined_and_rows_made_of_rows_are_cut_so(look: Any) -> None:
    small = (
        f"SELECT t.id, small AS key, {WIDE} FROM t JOIN VALUES (0, 'even'), (1, 'odd') AS n(n, name) ON t.id % 2 = n"
    )
    exploded = f"SELECT id, e AS key, {WIDE} FROM t LATERAL VIEW explode(array(small)) AS e"
    halves = " UNION ALL ".join(f"SELECT id, small AS key, {WIDE} FROM t WHERE id % 2 = {half}" for half in (0, 1))
    for query in (small, exploded, halves):
        found = look(query)
        assert found == found | {"right": True, "rows": ROWS, "cut by": "us"}


def test_few_rows_of_many_are_one_piece_and_none_are_none(look: Any) -> None:
    found = look("SELECT id, large AS key FROM t WHERE id % 100 = 3")
    assert found == found | {"cells": 1, "parts": 1, "right": True, "rows": ROWS // 100, "cut by": "Spark"}
    found = look("SELECT id, large AS key FROM t WHERE id < 0")
    assert found == found | {"cells": 1, "parts": 0, "right": True, "rows": 0, "cut by": "Spark"}


def test_rows_far_longer_than_thought_are_cut_all_the_same(look: Any) -> None:
    """Nobody knows how long a text is: what seems to be one piece may be thousands."""
    found = look("SELECT id, large AS key, text FROM t", size=8 << 20)
    assert found == found | {"right": True, "rows": ROWS, "cut by": "us", "cells": 4 * PIECES}
    for size in (700 << 20, 8 << 40):  # some keys are drawn, and none: the rows are few, and long
        found = look("SELECT id, large AS key, text AS Filter FROM t", size=size)
        assert found == found | {"right": True, "rows": ROWS, "cut by": "Spark", "cells": PIECES}


def test_of_very_many_pieces_nobody_knows_the_bytes(look: Any) -> None:
    """Spark keeps a mean of more than 2000 partitions, which says little of cells that are not even."""
    query = f"SELECT id, large AS key, {WIDE} FROM t WHERE large IS NOT NULL"
    assert look(query, pieces=500)["cells"] == 2000
    found = look(query, pieces=501)
    assert found == found | {"right": True, "cut by": "Spark", "cells": 501}


@pytest.mark.slow
def test_a_sample_far_larger_than_thought_is_left_to_spark(archive: Path, tmp_path: Path) -> None:
    """A driver takes 64 MB of results; this one takes 600 kB, and the keys have 770 that come of so well packed a file."""
    rows, draw = 3_000_000, random.Random(3)
    texts = [draw.randbytes(150_000).hex() if number < 60 else None for number in range(rows)]
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "text": pa.array(texts, pa.string())})
    (tmp_path / "packed").mkdir()
    pq.write_table(
        table, tmp_path / "packed" / "0.parquet", use_dictionary=False, column_encoding={"id": "DELTA_BINARY_PACKED"}
    )
    service = SparkService(SparkSettings(folder=archive, conf={"spark.driver.maxResultSize": "600k"}))
    try:
        export = SparkExport("SELECT * FROM packed", tables={"packed": tmp_path / "packed"}, order_by=("id",))
        made = export.write(LiveServices(service), tmp_path / "out.csv")
    finally:
        service.stop(10)
    assert made.rows == rows
    with (tmp_path / "out.csv").open() as file:
        assert file.readline() == "id,text\n"
        assert all(line.partition(",")[0] == str(number) for number, line in enumerate(file))


def test_the_file_equals_what_the_light_path_writes(warm: SparkService, big: Path, tmp_path: Path) -> None:
    """Out of more Parquet than one task is given."""
    export = SparkExport("SELECT * FROM lake", tables={"lake": big}, order_by=("paid_at", "id"))
    made = export.write(LiveServices(warm), tmp_path / "out.csv", totals={"id": "sum"})

    rows = [(row["id"], row["paid_at"], row["reference"]) for row in pq.read_table(big).to_pylist()]
    rows.sort(key=lambda row: (row[1] is not None, row[1] or datetime.min, row[0]))  # noqa: DTZ901 - no zone
    services = FakeServices(tmp_path / "ledger")
    light = RowExport(rows, columns=("id", "paid_at", "reference")).write(
        services, tmp_path / "light.csv", totals={"id": "sum"}
    )
    assert (made.rows, made.sha256, made.totals) == (light.rows, light.sha256, light.totals)


SPY = """
from pathlib import Path
from steadyworker.exports.spark import query


def watched(spark, tables, params):
    # The table, and how the export that it becomes is sorted.
    ordered = query.ordered

    def watch(*asked):
        query.ordered = ordered
        rows = ordered(*asked)
        Path(params["to"]).write_text(rows._jdf.queryExecution().toString())
        return rows

    query.ordered = watch
    return spark.table("lake")
"""


def test_an_export_is_cut_so(sources: SparkService, frames: Path, big: Path, tmp_path: Path) -> None:
    """The file is the same without: this alone, and the benchmark, would miss it."""
    (frames / "spying_frames.py").write_text(SPY)
    params: dict[str, Value] = {"to": str(tmp_path / "plan")}
    export = SparkExport(
        Build("spying_frames:watched"), tables={"lake": big}, params=params, order_by=("paid_at", "id")
    )
    assert export.write(LiveServices(sources), tmp_path / "out.csv").rows == BIG
    plan = (tmp_path / "plan").read_text()
    assert "direct_shuffle_partition_id" in plan
    assert "rangepartitioning" not in plan


def test_what_is_wrong_with_a_key_is_reported_as_ever(warm: SparkService, big: Path, tmp_path: Path) -> None:
    query = "SELECT CAST(reference AS BIGINT) AS id, reference FROM lake"
    export = SparkExport(query, tables={"lake": big}, order_by=("id",))
    with pytest.raises(ExportError, match=r"CAST_INVALID_INPUT.* cannot be cast to \"BIGINT\""):
        export.write(LiveServices(warm), tmp_path / "out.csv")
