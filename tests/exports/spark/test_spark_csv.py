"""CSV as a source, over real Spark: cells are where the header says, and as they were written, or the export fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.tables import Files
from tests.exports.spark.sparkkit import lines

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_names_that_spark_makes_up_are_no_contradiction(warm: SparkService, tmp_path: Path) -> None:
    """The first column of a data frame's index has none."""
    (tmp_path / "t.csv").write_text(",id,id2\n7,1,x\n")
    assert lines(warm, Files(tmp_path / "t.csv"), tmp_path / "out.csv") == ["_c0,id,id2", "7,1,x"]


def test_a_broken_line_is_found_whatever_the_query_asks_for(warm: SparkService, tmp_path: Path) -> None:
    table = Files(tmp_path / "t.csv", schema="id BIGINT, amount DECIMAL(12,2), note STRING")
    for broken in ("2,5.00", "2,5.00,x,y", '2,5.00,"a\n3"'):
        (tmp_path / "t.csv").write_text(f"id,amount,note\n1,4.00,n\n{broken}\n")
        with pytest.raises(ExportRejected, match=r"\(rejected\)"):
            lines(warm, table, tmp_path / "out.csv", "SELECT id, amount FROM t")
    (tmp_path / "t.csv").write_text('id,note,city,amount\n7,"",", Berlin",5.00\n8,"",",,x",6.00\n')
    found = lines(warm, Files(tmp_path / "t.csv"), tmp_path / "out.csv", "SELECT id, city, amount FROM t")
    assert found == ["id,city,amount", '7,", Berlin",5.00', '8,",,x",6.00']


def test_bytes_that_are_no_utf8_are_reported_and_read_in_the_given_encoding(warm: SparkService, tmp_path: Path) -> None:
    file, schema = tmp_path / "t.csv", "id BIGINT, name STRING"
    file.write_bytes("id,name\n1,Müller\n".encode("windows-1252"))
    for table in (Files(file), Files(file, schema=schema)):
        with pytest.raises(ExportError, match=r'CSV in UTF-8 in .*t\.csv, got other bytes: .*"encoding"'):
            lines(warm, table, tmp_path / "no.csv")
    for number, given in enumerate((None, schema)):
        said = Files(file, schema=given, options={"encoding": "windows-1252"})
        assert lines(warm, said, tmp_path / f"{number}.csv") == ["id,name", "1,Müller"]
    file.write_bytes("id,Betr\xe4ge\n1,2\n".encode("latin-1"))
    with pytest.raises(ExportError, match="got other bytes"):
        lines(warm, Files(file), tmp_path / "no.csv")
    file.write_text("id,name\n1,M\ufffdller\n", encoding="utf-8")
    assert lines(warm, Files(file), tmp_path / "kept.csv") == ["id,name", "1,M\ufffdller"]


def test_an_empty_cell_is_null_and_a_quoted_one_is_text(warm: SparkService, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('"id","text","amount","none"\n"1","","1.50",""\n"2",,"",\n3,x,,\n')
    assert lines(warm, Files(tmp_path / "t.csv"), tmp_path / "out.csv") == [
        "id,text,amount,none",
        '1,"",1.50,""',
        '2,,"",',
        "3,x,,",
    ]
    told = Files(tmp_path / "t.csv", schema="id BIGINT, text STRING, amount DECIMAL(12,2), none STRING")
    assert lines(warm, told, tmp_path / "told.csv") == ["id,text,amount,none", "1,,1.50,", "2,,,", "3,x,,"]
