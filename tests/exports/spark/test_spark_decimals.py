"""Declared decimals over real Spark: every digit that the source has is in the file, or the export fails and names the column."""

from __future__ import annotations

import json
import re
from pathlib import Path

import psycopg
import pytest

from steadyworker.errors import ExportError
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.tables import Files
from tests.exports.spark.jdbckit import connections, table
from tests.exports.spark.sparkkit import lines

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SCHEMA = "id BIGINT, amount DECIMAL(7,2)"
EXACT = {
    "1.50": "1.50",
    "-0.5000": "-0.50",
    "+12345.67": "12345.67",
    ".5": "0.50",
    "007.1": "7.10",
    "1.5E1": "15.00",
    "125e-2": "1.25",
    "1.250E+1": "12.50",
}
WRONG = ["10.005", "0.994999", "1.2345E1", "99999.995", "123456.7", "12,50", "1,234.50", "1e-3", "abc", " 1.5", "NaN"]


@pytest.mark.parametrize(("suffix", "wrong"), [("csv", WRONG), ("jsonl", WRONG[::4])])
def test_a_declared_decimal_has_every_digit_that_is_written(
    warm: SparkService, tmp_path: Path, suffix: str, wrong: list[str]
) -> None:
    def written(values: list[str | None]) -> Files:
        file = tmp_path / f"t.{suffix}"
        if suffix == "csv":
            rows = [
                f"{number},{'' if value is None else chr(34) + value + chr(34)}" for number, value in enumerate(values)
            ]
            file.write_text("\n".join(["id,amount", *rows]) + "\n")
        else:
            file.write_text("".join(json.dumps({"id": n, "amount": value}) + "\n" for n, value in enumerate(values)))
        return Files(file, schema=SCHEMA)

    found = lines(warm, written([*EXACT, None]), tmp_path / "out.csv", "SELECT id, amount, typeof(amount) FROM t")
    assert [line.split(",")[1] for line in found[1:]] == [*EXACT.values(), ""]
    assert found[-1].endswith('"decimal(7,2)"')
    for value in wrong:
        with pytest.raises(ExportError) as raised:
            lines(warm, written(["1.00", value]), tmp_path / "no.csv")
        said = f"(rejected): Expected DECIMAL(7,2) in column 'amount' of {tmp_path}/t.{suffix}, got {value}: declare as many digits"
        assert said in str(raised.value)
    assert not (tmp_path / "no.csv").exists()


def test_numbers_of_json_are_read_as_they_are_written_and_those_inside_of_others_as_text(
    warm: SparkService, tmp_path: Path
) -> None:
    file = tmp_path / "t.jsonl"
    schema = "id BIGINT, amount DECIMAL(38,18), parts ARRAY<STRUCT<x: STRING, y: STRING>>, of MAP<STRING, STRING>"
    good = (
        '{"id": 1, "amount": 0.100000000000000001, "parts": [{"x": 1.250, "y": "a"}, {"x": null}], "of": {"k": 2.5}}\n'
    )
    query = "SELECT id, amount, CAST(parts[0].x AS DECIMAL(5,2)) AS x, of['k'] AS k FROM t"
    file.write_text(good + '{"id": 2}\n')
    found = lines(warm, Files(file, schema=schema), tmp_path / "out.csv", query)
    assert found == ["id,amount,x,k", "1,0.100000000000000001,1.25,2.5", "2,,,"]
    file.write_text(good.replace("0001,", "00015,"))
    with pytest.raises(ExportError, match=r"Expected DECIMAL.* in column 'amount' of .*: declare as many digits"):
        lines(warm, Files(file, schema=schema), tmp_path / "no.csv", query)
    for kind in ("ARRAY<STRUCT<x: DECIMAL(5,2), y: STRING>>", "MAP<STRING, DECIMAL(5,2)>"):
        with pytest.raises(
            ExportError, match=r"\(rejected\): Expected each DECIMAL of .*'parts', .*STRING in its place"
        ):
            lines(warm, Files(file, schema=f"id BIGINT, parts {kind}"), tmp_path / "no.csv", "SELECT id FROM t")


def test_numbers_of_json_that_no_decimal_holds_are_not_made_floats_in_silence(
    warm: SparkService, tmp_path: Path
) -> None:
    """Nobody has said what they are: 39 digits, or decimals that only 39 digits would hold together."""
    file = tmp_path / "t.jsonl"
    for amounts in (["1" * 39], ["1" * 30, "0." + "0" * 8 + "1"], ['{"x": 1e-39}'], ["[1, " + "2" * 40 + "]"]):
        file.write_text("".join(f'{{"id": {number}, "amount": {amount}}}\n' for number, amount in enumerate(amounts)))
        with pytest.raises(
            ExportError, match=r"to fit into one decimal of 38 digits, got others in 'amount'.*or STRING"
        ):
            lines(warm, Files(file), tmp_path / "no.csv", "SELECT id FROM t")
    file.write_text('{"id": 1, "amount": 1e3}\n')
    with pytest.raises(ExportError, match=r"got others in at least one column \(a number such as 1e3\): .*or STRING"):
        lines(warm, Files(file), tmp_path / "no.csv", "SELECT id FROM t")
    file.write_text('{"id": 1, "amount": 1e-30}\n{"id": 2, "amount": 12.5}\n')
    assert lines(warm, Files(file, schema="id BIGINT, amount DOUBLE"), tmp_path / "said.csv") == [
        "id,amount",
        "1,1.0E-30",
        "2,12.5",
    ]
    floats = Files(file, options={"prefersDecimal": "false"})
    assert lines(warm, floats, tmp_path / "floats.csv", "SELECT id, amount FROM t WHERE id = 2")[1:] == ["2,12.5"]
    assert lines(warm, Files(file), tmp_path / "out.csv", "SELECT id, amount FROM t")[1:] == [
        "1,0." + "0" * 29 + "1",
        "2,12.5" + "0" * 29,
    ]


def test_a_decimal_with_commas_is_refused_with_the_cast_that_reads_it_and_no_mode_makes_it_null(
    warm: SparkService, tmp_path: Path
) -> None:
    file = tmp_path / "t.csv"
    file.write_text("id;amount\n1;1.234,50\n2;0.5\n")
    options = {"sep": ";", "locale": "de-DE", "mode": "PERMISSIVE"}
    cast = "CAST(translate(amount, ',.', '.') AS DECIMAL(7,2))"
    with pytest.raises(ExportError, match=rf"got 1\.234,50: declare .*, {re.escape(cast)}\.$"):
        lines(warm, Files(file, schema=SCHEMA, options=options), tmp_path / "no.csv")
    file.write_text("id;amount\n1;1.234,50\n2;-0,5\n")
    texts = Files(file, options={"sep": ";"})
    found = lines(warm, texts, tmp_path / "out.csv", f"SELECT id, {cast} AS amount FROM t")
    assert found == ["id,amount", "1,1234.50", "2,-0.50"]


# --- databases --------------------------------------------------------------------------------------------------------


def refused(service: SparkService, source: Jdbc, to: Path, says: str) -> None:
    with pytest.raises(ExportError, match=says):
        lines(service, source, to)
    assert not to.exists()


def test_a_schema_that_has_fewer_digits_than_postgresql_is_held_to_its_values(
    sources: SparkService, database: str, tmp_path: Path
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(
            """CREATE TABLE good AS SELECT 1 AS id, 1.2300::numeric(20,4) AS fixed, 1.50::numeric AS free, 0.29::float8 AS float,
               '7.10' AS text, 3.0::numeric AS whole UNION ALL SELECT 2, NULL, NULL, NULL, NULL, NULL"""
        )
        connection.execute(
            """CREATE TABLE bad AS SELECT 1 AS id, 1.2345::numeric(20,4) AS fixed, 1.005::numeric AS free, 0.1::float8 + 0.2 AS float,
               '7.105' AS text, 3.5::numeric AS whole"""
        )
    schema = "fixed DECIMAL(20,2), free DECIMAL(20,2), float DECIMAL(20,2), text DECIMAL(20,2), whole BIGINT"
    found = lines(sources, table(database, "good", schema=schema), tmp_path / "out.csv")
    assert found == ["id,fixed,free,float,text,whole", "1,1.23,1.50,0.29,7.10,3", "2,,,,,"]
    cases = {"fixed": "1.2345", "free": "1.005", "float": "0.30000000000000004", "text": "7.105"}
    for name, got in cases.items():
        source = table(database, f"SELECT id, {name} FROM bad", schema=schema)
        said = rf"at most 2 digits after the point in column '{name}' of table 't', as it is declared, got {re.escape(got)}, "
        refused(sources, source, tmp_path / "no.csv", said + rf".*{name} DECIMAL\(38,{len(got) - 2}\)")
    whole = table(database, "SELECT id, whole FROM bad", schema=schema)
    refused(
        sources,
        whole,
        tmp_path / "no.csv",
        "at most 0 digits after the point in column 'whole' of table 't'.* got 3.5, ",
    )
    assert connections(database) == []
