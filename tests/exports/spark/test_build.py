"""`Build`: a function of the user's builds what is exported, in the Spark host."""

from __future__ import annotations

import hashlib
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from steadyworker.errors import ExportError
from steadyworker.exports.spark.build import Build
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.exports.spark.sparkkit import LiveServices, payment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FRAMES = """
import sys
from pyspark.sql import functions as F
from report_words import shout


@F.udf("string")
def loud(text):
    return shout(text)


class Reports:
    @staticmethod
    def payments(spark, tables, params):
        assert type(params["most"]).__name__ == "Decimal" and type(params["since"]).__name__ == "datetime"
        assert spark.table("payments").columns == tables["payments"].columns
        payments = tables["payments"].where((F.col("id") < params["count"]) & (F.col("amount") <= params["most"]))
        return payments.select("id", loud("merchant").alias("merchant"))


def broken(spark, tables, params):
    rows = tables["payments"]
    return shout(rows, 1 / 0)


def wrapped(spark, tables, params):
    try:
        return tables["absent"]
    except KeyError as error:
        raise ValueError("no payments of this month") from error


@F.udf("string")
def picky(number):
    try:
        return {}[number]
    except KeyError as error:
        raise ValueError(f"no name for {number}") from error


def unnamed(spark, tables, params):
    return spark.range(3).select("id", picky("id").alias("name"))


def leaves(spark, tables, params):
    sys.exit(3)


def misnamed(spark, tables, params):
    raise ValueError("no file caf\\udce9.csv")


class Leaving(ValueError):
    def __str__(self):
        sys.exit(4)


def unprintable(spark, tables, params):
    raise Leaving


def nothing(spark, tables, params):
    tables["payments"].count()


def untidy(spark, tables, params):
    # Leaves a view and a setting behind, and tells what those before it have left.
    left = [table.name for table in spark.catalog.listTables()] + [spark.conf.get("spark.sql.ansi.enabled")]
    spark.range(1).createOrReplaceTempView("leftover")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    return spark.createDataFrame([(1, " ".join(left))], "id INT, left STRING")


def unknown(spark, tables, params):
    return tables["payments"].select("missing")


number = 17
"""


@pytest.fixture(scope="module")
def reports(frames: Path) -> Path:
    """The user's modules."""
    (frames / "report_words.py").write_text("def shout(text):\n    return text.upper() + '!'\n")
    (frames / "report_broken.py").write_text("value = 1\nraise RuntimeError('not today')\n")
    (frames / "report_frames.py").write_text(FRAMES)
    return frames / "report_frames.py"


def test_a_function_builds_what_is_exported_with_a_function_of_pythons_in_it(
    sources: SparkService, reports: Path, payments: Path, tmp_path: Path
) -> None:
    export = SparkExport(
        Build("report_frames:Reports.payments"),
        tables={"payments": payments},
        params={"count": 50, "most": Decimal("5000.00"), "since": datetime(2024, 1, 5)},  # noqa: DTZ001 - no zone
        order_by=("id",),
    )
    made = export.write(LiveServices(sources), tmp_path / "out.csv")
    rows = [row for row in map(payment, range(50)) if row[3] <= Decimal("5000.00")]
    lines = ["id,merchant", *(f"{row[0]},{row[1].upper()}!" for row in rows)]
    assert (tmp_path / "out.csv").read_text().splitlines() == lines
    assert made.query == "report_frames:Reports.payments"
    assert made.versions["report_frames"] == f"sha256:{hashlib.sha256(reports.read_bytes()).hexdigest()}"
    assert made.parameters == {"count": 50, "most": "5000.00", "since": "2024-01-05T00:00:00"}


def test_what_a_function_cannot_do_is_reported_with_its_line(
    sources: SparkService, reports: Path, payments: Path, tmp_path: Path
) -> None:
    def line(text: str) -> int:
        return [line.strip() for line in FRAMES.splitlines()].index(text) + 1

    cases = [
        (
            "report_frames:broken",
            rf"report_frames:broken failed at {reports}:{line('return shout(rows, 1 / 0)')} in broken: ZeroDivisionError",
        ),
        (
            "report_frames:wrapped",
            r"in wrapped: ValueError: no payments of this month \(caused by KeyError: 'absent'\)$",
        ),
        ("report_frames:unnamed", r"\(job\): .*in picky: ValueError: no name for \d \(caused by KeyError: \d\)$"),
        ("report_frames:leaves", r"in leaves: SystemExit: 3"),
        ("report_frames:misnamed", r"in misnamed: ValueError: no file caf\\udce9\.csv$"),
        ("report_frames:unprintable", r"\(query\): .* in unprintable: Leaving: <exception str\(\) failed>$"),
        ("report_frames:nothing", r"Expected a DataFrame from report_frames:nothing, got NoneType"),
        ("report_frames:unknown", r"in unknown: AnalysisException: .*missing"),
        ("report_frames:absent", r"function absent in report_frames, got none"),
        ("report_frames:number", r"function number in report_frames, got int"),
        ("report_missing:payments", r"import of report_missing failed: ModuleNotFoundError"),
        (
            "report_broken:payments",
            r"import of report_broken failed at .*report_broken.py:2 in <module>: RuntimeError: not today",
        ),
    ]
    for name, says in cases:
        with pytest.raises(ExportError, match=says) as raised:
            SparkExport(Build(name), tables={"payments": payments}, order_by=("id",)).write(
                LiveServices(sources), tmp_path / "no.csv"
            )
        assert "\n" not in str(raised.value)
    assert SparkSettings(folder=tmp_path)  # the service lives on


def test_what_a_function_leaves_in_its_session_no_other_export_finds(
    sources: SparkService, reports: Path, tmp_path: Path
) -> None:
    """Sessions are made ahead, each for one export."""
    for number in range(4):
        out = tmp_path / f"{number}.csv"
        SparkExport(Build("report_frames:untidy"), tables={}, order_by=("id",)).write(LiveServices(sources), out)
        assert out.read_text() == "id,left\n1,true\n"
