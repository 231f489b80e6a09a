"""An export into several files: a folder that appears with all its files and their manifest, or not at all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker import Job, Worker
from steadyworker.errors import ExportError, ExportRejected, Interrupt, InterruptReason, TargetExists
from steadyworker.exports import several
from steadyworker.exports.formats import Csv, Format, JsonLines
from steadyworker.exports.manifest import Manifest, Total
from steadyworker.exports.parquet import Parquet
from steadyworker.exports.rows import RowExport
from steadyworker.exports.stage import STAGES
from steadyworker.exports.verifying import verify
from steadyworker.exports.xlsx import Xlsx
from steadyworker.outcome import Done
from steadyworker.testing import run_one
from tests.exports.kit import BY, COLUMNS, TOTALS, FakeServices, Payments, killed, payment


def written(folder: Path, rows: Any, columns: tuple[str, ...], **options: Any) -> Manifest:
    services = FakeServices(folder / "ledger")
    return RowExport(rows, columns=columns).write(services, folder / "out", **{"format": Csv(), **options})


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_rows_are_divided_into_files_whose_manifest_is_in_the_folder(tmp_path: Path) -> None:
    made = written(tmp_path, map(payment, range(10)), COLUMNS, split_rows=4, totals=TOTALS, by=("currency",))
    assert made.files is not None
    assert [(file.name, file.rows) for file in made.files] == [
        ("part-00001.csv", 4),
        ("part-00002.csv", 4),
        ("part-00003.csv", 2),
    ]
    assert names(tmp_path / "out") == ["_manifest.json", *(file.name for file in made.files)]
    RowExport(map(payment, range(10)), columns=COLUMNS).write(FakeServices(tmp_path / "ledger"), tmp_path / "one.csv")
    lines = [(tmp_path / "out" / file.name).read_text().splitlines() for file in made.files]
    assert [each[0] for each in lines] == [",".join(COLUMNS)] * 3
    assert [line for each in lines for line in each[1:]] == (tmp_path / "one.csv").read_text().splitlines()[1:]
    for total in made.totals:
        parts = [each for file in made.files for each in file.totals if each.by == total.by]
        assert sum(each.rows for each in parts) == total.rows
        assert sum(Decimal(each.sums["amount"]) for each in parts) == Decimal(total.sums["amount"])
    assert verify(tmp_path / "out") == Manifest.load(tmp_path / "out/_manifest.json") == made
    assert (made.rows, made.name) == (10, "out")


STRANGER = """
import hashlib, json, pathlib
folder = pathlib.Path("out")
manifest = json.loads((folder / "_manifest.json").read_text())
rows = 0
for file in manifest["files"]:
    data = (folder / file["name"]).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])
    rows += data.count(b"\\n") - 1
assert rows == manifest["rows"] == sum(file["rows"] for file in manifest["files"])
print(rows)
"""


def test_ten_lines_of_a_strangers_python_read_the_manifest(tmp_path: Path) -> None:
    written(tmp_path, map(payment, range(10)), COLUMNS, split_rows=4)
    assert len(STRANGER.strip().splitlines()) == 10
    run = subprocess.run([sys.executable, "-ISc", STRANGER], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("10\n", "")


@pytest.mark.parametrize(
    "form", [Csv(), Csv(compression="gzip"), JsonLines(compression="zstd"), Parquet(), Xlsx()], ids=str
)
def test_files_of_each_format_are_read_back(tmp_path: Path, form: Format) -> None:
    rows = [(at, None if at < 5 else f"text {at}", Decimal(at).scaleb(-2)) for at in range(10)]
    made = written(tmp_path, rows, ("n", "t", "amount"), format=form, split_rows=3, totals={"amount": "sum"}, by=("t",))
    assert made.files is not None
    assert len(made.files) == 4
    assert verify(tmp_path / "out").rows == 10
    ending = {"gzip": ".gz", "zstd": ".zst", None: ""}[form.compression]
    assert made.files[0].name == f"part-00001.{form.name}{ending}"
    if form.name == "parquet":  # the first files have no text, but its type
        schemas = {str(pq.read_schema(tmp_path / "out" / file.name)) for file in made.files}
        assert len(schemas) == 1
        assert "t: string" in schemas.pop()


def test_a_file_ends_with_the_block_that_reaches_its_size_whatever_the_batches(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array(range(30_000)), "t": pa.array([f"text {at}" for at in range(30_000)])})
    found = []
    for at, items in enumerate(
        (table.to_batches(700), table.to_batches(9_973), [tuple(row.values()) for row in table.to_pylist()])
    ):
        made = written(tmp_path / str(at), items, ("n", "t"), split_bytes=110_000)
        assert made.files is not None
        found.append([(file.rows, file.sha256) for file in made.files])
        assert [file.bytes >= 110_000 for file in made.files] == [True] * (len(made.files) - 1) + [False]
    assert found[0] == found[1] == found[2]
    assert [rows for rows, _ in found[0]] == [8_000, 8_000, 8_000, 6_000]


ODD = ["harbour books", "a/b", "..", "", "ü", "__null__", None, "%", "a=b", "x" * 20]


def test_each_partition_has_a_safe_name_and_its_rows(tmp_path: Path) -> None:
    rows = [(at, ODD[at % len(ODD)], date(2024, 1, 1 + at % 2)) for at in range(100)]
    made = written(tmp_path, rows, ("n", "merchant", "day"), partition_by=("merchant", "day"))
    assert made.files is not None
    shown = ["harbour%20books", "a%2Fb", "..", "", "%C3%BC", "%5F_null__", "__null__", "%25", "a%3Db", "x" * 20]
    wanted = {
        f"merchant={shown[at]}/day=2024-01-0{1 + at % 2}/part-00001.csv": (ODD[at], f"2024-01-0{1 + at % 2}")
        for at in range(len(ODD))
    }
    assert {file.name: tuple(file.partition.values()) for file in made.files} == wanted
    assert [file.name for file in made.files] == sorted(wanted)
    for file in made.files:
        lines = (tmp_path / "out" / file.name).read_text().splitlines()[1:]
        merchant, day = wanted[file.name]
        assert [int(line.split(",")[0]) for line in lines] == [
            n for n, name, at in rows if (name, str(at)) == (merchant, day)
        ]
    assert verify(tmp_path / "out") == made


def test_duckdb_reads_the_partitions(tmp_path: Path) -> None:
    rows = [(at, f"m-{at % 3}", at * 7) for at in range(30)]
    written(tmp_path, rows, ("n", "merchant", "cents"), format=Parquet(), partition_by=("merchant",))
    query = f"SELECT merchant, count(*), sum(cents) FROM read_parquet('{tmp_path}/out/*/*.parquet', hive_partitioning=true) GROUP BY 1 ORDER BY 1"
    with duckdb.connect() as connection:
        found = connection.execute(query).fetchall()
    assert found == [(f"m-{each}", 10, sum(at * 7 for at in range(each, 30, 3))) for each in range(3)]


def test_of_many_partitions_few_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are not sorted: the file without rows for the longest time is closed, and its partition gets another one."""
    monkeypatch.setattr(several, "_OPEN_PLAIN", 2)
    most = 0
    new_file = several.FilesWriting._new_file

    def counted(self: several.FilesWriting, partition: Any) -> Any:
        nonlocal most
        most = max(most, len(self._open) + 1)
        return new_file(self, partition)

    monkeypatch.setattr(several.FilesWriting, "_new_file", counted)
    batches = [pa.record_batch({"n": [at], "m": [f"m-{'aabbccab'[at]}"]}) for at in range(8)]
    made = RowExport((batch for batch in batches), columns=("n", "m"))
    monkeypatch.setattr("steadyworker.exports.sources._FEW_ROWS", 1)  # each batch is a chunk
    found = made.write(FakeServices(tmp_path / "ledger"), tmp_path / "out", format=Csv(), partition_by=("m",))
    assert found.files is not None
    assert [(file.name, file.rows) for file in found.files] == [
        ("m=m-a/part-00001.csv", 2),
        ("m=m-a/part-00002.csv", 1),
        ("m=m-b/part-00001.csv", 2),
        ("m=m-b/part-00002.csv", 1),
        ("m=m-c/part-00001.csv", 2),
    ]
    assert most == 2
    assert verify(tmp_path / "out").rows == 8


def test_a_column_of_values_of_several_types_is_divided_too(tmp_path: Path) -> None:
    rows = [(at, (1, "x", None, date(2024, 1, 1), Decimal("1.5"))[at % 5], "ab"[at % 2]) for at in range(20)]
    made = written(tmp_path, rows, ("n", "odd", "m"), partition_by=("m",), split_rows=7)
    assert made.files is not None
    assert [file.rows for file in made.files] == [7, 3, 7, 3]
    lines = [line for file in made.files for line in (tmp_path / "out" / file.name).read_text().splitlines()[1:]]
    assert sorted(lines) == sorted(f"{n},{'' if odd is None else odd},{m}" for n, odd, m in rows)


NUMBERS: tuple[tuple[int, Any], ...] = (
    (1, Decimal("-1.5")),
    (2, Decimal("2.25")),
    (1, Decimal("NaN")),
    (2, -(2**70)),
    (1, Decimal("-1E+3")),
    (2, "=x"),
    (1, None),
)


@pytest.mark.parametrize(
    "form", [Csv(), Csv(delimiter=";", decimal_comma=True), JsonLines()], ids=["csv", "comma", "jsonl"]
)
@pytest.mark.parametrize("split", [{"split_rows": 3}, {"partition_by": ("id",)}, {"split_bytes": 1}], ids=str)
def test_numbers_of_several_kinds_are_the_same_in_several_files_as_in_one(
    tmp_path: Path, form: Format, split: dict[str, Any]
) -> None:
    rows = sorted(NUMBERS, key=lambda row: row[0]) if "partition_by" in split else NUMBERS
    written(tmp_path, rows, ("id", "number"), format=form, **split)
    (tmp_path / "alone").mkdir()
    written(tmp_path / "alone", rows, ("id", "number"), format=form)
    head = form.head(("id", "number"))
    parts = [path.read_bytes().removeprefix(head) for path in sorted((tmp_path / "out").rglob("part-*"))]
    assert head + b"".join(parts) == (tmp_path / "alone" / "out").read_bytes()


def test_decimals_of_several_scales_are_numbers_and_summed_in_several_files(tmp_path: Path) -> None:
    rows = [(1, Decimal("-1.5")), (2, Decimal("2.25")), (3, 2**70)]
    made = written(tmp_path, rows, ("id", "number"), format=Xlsx(), split_rows=2, totals={"number": "sum"})
    assert [Decimal(total.sums["number"]) for total in made.totals] == [2**70 + Decimal("0.75")]
    (sheet,) = openpyxl.load_workbook(tmp_path / "out/part-00001.xlsx").worksheets
    assert [row[1].value for row in sheet.iter_rows(min_row=2)] == [-1.5, 2.25]


def test_no_rows_are_one_file_or_no_partition(tmp_path: Path) -> None:
    one = written(tmp_path / "one", [], ("a",), split_rows=5, totals={"a": "sum"})
    assert names(tmp_path / "one/out") == ["_manifest.json", "part-00001.csv"]
    none = written(tmp_path / "none", [], ("a",), partition_by=("a",))
    assert (one.rows, none.files) == (0, ())
    assert verify(tmp_path / "one/out").rows == verify(tmp_path / "none/out").rows == 0


def test_what_cannot_be_divided_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"split_rows": 0}, "split_rows of at least 1, got 0"),
        ({"split_bytes": -1}, "split_bytes of at least 1, got -1"),
        ({"partition_by": ("b",)}, r"partition_by to name columns of this export \(a\), got 'b'"),
        ({"partition_by": ("a", "a")}, "each column once in partition_by"),
    ]
    for options, words in refused:
        with pytest.raises(ExportRejected, match=words):
            written(tmp_path, [(1,)], ("a",), **options)
    with pytest.raises(ExportRejected, match="Expected text, integers or dates in 'a' to group by, got float"):
        written(tmp_path, [(1.5,)], ("a",), partition_by=("a",))
    with pytest.raises(ExportRejected, match="folder name of at most 255 bytes for a partition, got 256"):
        written(tmp_path, [("x" * 254,)], ("a",), partition_by=("a",))
    with pytest.raises(ExportRejected, match=r"File a=x/part-00001\.xlsx: Row 0, column 'b': .* in a cell of XLSX"):
        written(tmp_path, [("x", "y" * 40_000)], ("a", "b"), partition_by=("a",), format=Xlsx())
    monkeypatch.setattr(several, "MOST_FILES", 3)
    with pytest.raises(ExportRejected, match="at most 3 files in one export, got more at row 0: raise split_rows"):
        written(tmp_path, [(at,) for at in range(4)], ("a",), split_rows=1)
    with pytest.raises(ExportRejected, match="got more at row 0: sort the rows by the columns of partition_by"):
        written(tmp_path, [(at,) for at in range(4)], ("a",), partition_by=("a",))
    monkeypatch.setattr(several, "_GROUPS", 1)
    with pytest.raises(ExportRejected, match="at most 1 groups of totals in all files"):
        written(tmp_path, [(at,) for at in range(2)], ("a",), split_rows=1, by=("a",))
    assert not (tmp_path / "out").exists()


# --- all or nothing ----------------------------------------------------------------------------------------------------


def split(tmp_path: Path, services: FakeServices, source: Payments | None = None, **options: Any) -> Manifest:
    export = (source or Payments()).export()
    return export.write(
        services,
        tmp_path / "out/payments",
        **{"format": Csv(), "split_rows": 4_000, "totals": TOTALS, "by": BY, **options},
    )


def visible(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "out").iterdir())


def folders(tmp_path: Path, *uid: str) -> list[Path]:
    """A folder for each process that was killed before a step, in order, and one for the process that was not."""
    assert killed(tmp_path / "out", tmp_path / "ledger", "folders", *uid).returncode == 0
    return sorted((path for path in tmp_path.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_killed_before_each_step_the_folder_is_whole_or_absent(tmp_path: Path) -> None:
    """Real processes and SIGKILL, before each fsync, rename and replace; then another run completes the export."""
    expected = split(tmp_path / "undisturbed", FakeServices(tmp_path / "undisturbed/ledger"))
    seen = []
    for here in folders(tmp_path):
        there = (here / "out/payments").exists()
        if there:
            assert verify(here / "out/payments").files == expected.files
        source = Payments()
        made = split(here, FakeServices(here / "ledger", fence=2), source)
        assert (made.files, made.totals, made.sha256) == (expected.files, expected.totals, expected.sha256)
        assert verify(here / "out/payments") == made
        assert {name.split("/")[0] for name in names(here / "out")} == {"payments"}, "no file is left in a stage"
        seen.append((source.starts, there))
    assert len(seen) > 10
    assert seen[0] == ([0], False)
    assert seen[-1] == ([], True)
    assert ([], False) in seen
    assert seen == sorted(seen, key=lambda each: (each[0] == [], each[1])), "first it computes again, then it publishes"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_killed_while_it_replaces_the_folder_of_an_earlier_job(tmp_path: Path) -> None:
    seen = set()
    for here in folders(tmp_path, "uid-1"):
        seen.add(verify(here / "out/payments").uid if (here / "out/payments").exists() else "none")
        services = FakeServices(here / "ledger", fence=2)
        made = split(here, services, Payments(3), split_rows=1, if_exists="replace-own")
        assert (made.uid, made.rows, len(made.files or ())) == ("uid-1", 3, 3)
        assert verify(here / "out/payments") == made
        assert {name.split("/")[0] for name in names(here / "out")} == {"payments"}
    assert seen == {"uid-0", "none", "uid-1"}


def test_a_second_run_returns_the_manifest_and_another_job_is_refused(tmp_path: Path) -> None:
    first = split(tmp_path, FakeServices(tmp_path / "ledger"))
    source = Payments()
    assert split(tmp_path, FakeServices(tmp_path / "ledger", fence=2), source) == first
    with pytest.raises(TargetExists, match="was made by job uid-1"):
        split(tmp_path, FakeServices(tmp_path / "other ledger", uid="uid-2"), source)
    with pytest.raises(TargetExists, match="is not a regular file"):
        source.export().write(
            FakeServices(tmp_path / "other ledger", uid="uid-2"), tmp_path / "out/payments", format=Csv()
        )
    assert source.starts == []
    (tmp_path / "out/payments/part-00002.csv").unlink()
    with pytest.raises(TargetExists, match=r"was changed after this job made it: .* got files of other sizes"):
        split(tmp_path, FakeServices(tmp_path / "ledger", fence=3), source)


@pytest.mark.parametrize("what", ["a file", "a link", "an empty folder", "a full folder"])
def test_nothing_of_another_program_is_replaced(tmp_path: Path, what: str) -> None:
    out = tmp_path / "out/payments"
    out.parent.mkdir()
    if what == "a file":
        out.write_text("theirs")
    elif what == "a link":
        out.symlink_to(tmp_path)
    else:
        out.mkdir()
        if what == "a full folder":
            (out / "theirs").touch()
    for if_exists in ("fail", "replace-own"):
        with pytest.raises(TargetExists):
            split(tmp_path, FakeServices(tmp_path / "ledger"), if_exists=if_exists)
    assert visible(tmp_path) == ["payments"]


def test_of_two_runs_at_the_rename_one_publishes_and_both_return_its_manifest(tmp_path: Path) -> None:
    found: list[Manifest] = []

    def take_over() -> None:
        found.append(split(tmp_path, FakeServices(tmp_path / "ledger", fence=2)))

    with pytest.raises(Interrupt, match="fenced"):  # the first run saves its state too late
        split(tmp_path, FakeServices(tmp_path / "ledger", on_leave=take_over))
    assert found == [verify(tmp_path / "out/payments")]
    assert visible(tmp_path) == ["payments"]


def test_a_folder_that_appears_before_the_rename_is_not_replaced(tmp_path: Path) -> None:
    def theirs() -> None:
        (tmp_path / "out/payments").mkdir()
        (tmp_path / "out/payments/theirs").touch()

    with pytest.raises(TargetExists, match="has no manifest of a SteadyWorker job"):
        split(tmp_path, FakeServices(tmp_path / "ledger", on_leave=theirs))
    assert names(tmp_path / "out/payments") == ["theirs"]


@pytest.mark.parametrize("reason", ["cancelled", "shutdown"])
def test_an_interrupted_export_starts_again_and_a_cancelled_one_leaves_nothing(
    tmp_path: Path, reason: InterruptReason
) -> None:
    def stop(done: float | None) -> None:
        if done and done >= 6_000:
            raise Interrupt(reason)

    with pytest.raises(Interrupt):
        split(tmp_path, FakeServices(tmp_path / "ledger", on_progress=stop))
    assert visible(tmp_path) == ([] if reason == "cancelled" else [STAGES])
    source = Payments()
    assert split(tmp_path, FakeServices(tmp_path / "ledger", fence=2), source).rows == 10_000
    assert source.starts == [0]
    assert visible(tmp_path) == ["payments"]


def test_a_job_exports_a_folder(tmp_path: Path) -> None:
    class Splits(Worker[dict[str, str]]):
        queue = "splits"
        time_limit = 60

        def handle(self, job: Job[dict[str, str]]) -> None:
            job.export(
                Payments(10).export(), to=f"{tmp_path}/out/", format=Csv(), split_rows=5, partition_by=["currency"]
            )

    assert run_one(Splits, {}).outcome == Done()
    assert len(verify(tmp_path / "out").files or ()) == 3


# --- verify ------------------------------------------------------------------------------------------------------------


def change(out: Path) -> None:
    file = out / "part-00002.csv"
    file.write_bytes(file.read_bytes().replace(b"paid", b"paiD", 1))


def forge(**changes: Any) -> Callable[[Path], None]:
    def forged(out: Path) -> None:
        path = out / "_manifest.json"
        path.write_bytes(msgspec.structs.replace(Manifest.load(path), **changes).dump())

    return forged


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda out: (out / "part-00002.csv").unlink(), "got no such file"),
        (change, r"part-00002\.csv: expected SHA-256"),
        (lambda out: shutil.copy(out / "part-00002.csv", out / "part-00009.csv"), r"expected no file part-00009\.csv"),
        (forge(rows=11), "expected 11 rows in all files, got 10"),
        (forge(bytes=1), "expected 1 bytes in all files, got"),
        (forge(sha256="0" * 64), "of the list of files"),
        (
            forge(totals=(Total(rows=9, sums={"amount": "0"}),)),
            "expected rows to be 9, got 10; expected amount to be 0, got",
        ),
    ],
    ids=["lost", "changed", "added", "rows", "bytes", "list", "totals"],
)
def test_verify_finds_what_differs(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    written(tmp_path, map(payment, range(10)), COLUMNS, split_rows=4, totals=TOTALS)
    spoil(tmp_path / "out")
    with pytest.raises(ExportError, match=words):
        verify(tmp_path / "out")


def test_verify_compares_the_whole_with_the_source(tmp_path: Path) -> None:
    written(tmp_path, [(1, "a"), (2, "b"), (3, "a")], ("n", "m"), partition_by=("m",), totals={"n": "sum"})
    assert verify(tmp_path / "out", source=[(3, 6)]).rows == 3
    with pytest.raises(ExportError, match="expected n to be 7, got 6"):
        verify(tmp_path / "out", source=[(3, 7)])
