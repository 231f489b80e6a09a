"""Runs of DuckDBExport: interrupted, cancelled, killed, without disk or memory; and what each leaves."""

from __future__ import annotations

import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from steadyworker.errors import ExportError, ExportRejected, Interrupt, InterruptReason
from steadyworker.exports import DuckDBExport, verify
from steadyworker.exports.stage import STAGES
from tests.exports.duckdb.killed import ROWS, export, spilled
from tests.exports.kit import FakeServices, killed

BY_DUCKDB = "tests.exports.duckdb.killed"
ENDLESS = "SELECT sum(hash(i)) AS id FROM range(1000000000000) AS t(i)"
"""Hours of work without a row."""


@dataclass
class Noted(FakeServices):
    """Services that keep the notes."""

    notes: list[str] = field(default_factory=list)

    def progress(self, done: float | None, total: float | None, note: str = "") -> None:
        super().progress(done, total, note)
        self.notes.append(note)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "duckdb"]


@pytest.mark.parametrize(("reason", "left"), [("shutdown", [STAGES]), ("cancelled", [])])
def test_an_interrupt_ends_duckdb_before_it_is_raised(tmp_path: Path, reason: InterruptReason, left: list[str]) -> None:
    out = tmp_path / "out" / "out.csv"
    seen: list[list[str]] = []

    def stop() -> None:
        seen.append(threads())
        raise Interrupt(reason)

    with pytest.raises(Interrupt, match=reason):
        DuckDBExport(ENDLESS, tables={}, order_by=("id",)).write(FakeServices(tmp_path / "ledger", on_check=stop), out)
    assert seen == [["duckdb"]]
    assert threads() == []
    assert [path.name for path in out.parent.iterdir()] == left
    assert list(out.parent.glob(".sw-stage/*/*/*/spill")) == []


def test_a_signal_that_raises_an_interrupt_reaches_the_main_thread_while_duckdb_works(tmp_path: Path) -> None:
    """As SIGTERM does in a child; the signal comes from another thread, when DuckDB has begun."""

    def stop(*_: object) -> None:
        raise Interrupt("shutdown")

    before = signal.signal(signal.SIGUSR1, stop)
    begun = threading.Event()
    main = threading.main_thread().ident or 0

    def send() -> None:
        begun.wait()
        signal.pthread_kill(main, signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(Interrupt, match="shutdown"):
            DuckDBExport(ENDLESS, tables={}, order_by=("id",)).write(
                FakeServices(tmp_path / "ledger", on_check=begun.set), tmp_path / "out.csv"
            )
    finally:
        begun.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert threads() == []


def test_an_interrupt_while_rows_are_written_ends_duckdb_too(tmp_path: Path) -> None:
    def stop() -> None:
        if (services.beats or [0])[-1]:
            raise Interrupt("shutdown")

    services = FakeServices(tmp_path / "ledger", on_check=stop)
    with pytest.raises(Interrupt):
        export(services, tmp_path / "out.csv")
    assert threads() == []
    assert spilled(tmp_path / "out.csv") == 0
    assert not (tmp_path / "out.csv").exists()


def test_a_sort_of_more_than_the_memory_uses_the_stage_and_reports_progress(tmp_path: Path) -> None:
    sizes: list[int] = []
    services = Noted(tmp_path / "ledger", on_check=lambda: sizes.append(spilled(tmp_path / "out.csv")))
    made = export(services, tmp_path / "out.csv")
    assert max(sizes) > 1_000_000
    assert any(note.startswith("DuckDB has done") for note in services.notes)
    assert made.rows == ROWS
    assert verify(tmp_path / "out.csv") == made
    with (tmp_path / "out.csv").open() as file:
        assert [int(line.partition(",")[0]) for line in list(file)[1:]] == list(range(ROWS))
    assert not (tmp_path / STAGES).exists()


def test_killed_in_the_sort_a_second_run_makes_the_same_bytes_and_one_file(tmp_path: Path) -> None:
    out = tmp_path / "out" / "out.csv"
    assert killed(out, tmp_path / "ledger", "sort", by=BY_DUCKDB).returncode == -signal.SIGKILL
    assert [path.name for path in out.parent.iterdir()] == [STAGES]
    assert spilled(out) > 0
    made = export(FakeServices(tmp_path / "ledger", fence=2), out)
    other = export(FakeServices(tmp_path / "other ledger"), tmp_path / "other.csv")
    assert (made.sha256, made.fence) == (other.sha256, 2)
    assert sorted(path.name for path in out.parent.iterdir()) == ["out.csv", "out.csv.manifest.json"]


def test_killed_before_the_link_the_second_run_computes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out" / "out.csv"
    assert killed(out, tmp_path / "ledger", "link-1", by=BY_DUCKDB).returncode == -signal.SIGKILL
    stage = next(out.parent.glob(".sw-stage/*/*/*"))
    assert sorted(path.name for path in stage.iterdir()) == ["data", "manifest.json"]
    made = export(FakeServices(tmp_path / "ledger", fence=2), out)
    assert made.fence == 1
    assert verify(out) == made


def test_a_full_disk_is_an_error_that_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out" / "out.csv"
    run = killed(out, tmp_path / "ledger", "file-size", by=BY_DUCKDB)
    assert (run.returncode, run.stderr) == (1, "")  # DuckDB reports what it was not given back when the process ends
    assert run.stdout.startswith("ExportError: Expected ")
    assert "free disk space" in run.stdout
    assert list(out.parent.iterdir()) == []


def test_too_little_memory_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    query = "SELECT 1 AS id, length(list(i)::VARCHAR) AS n FROM range(30000000) AS t(i)"
    with pytest.raises(ExportError, match=r"fit into 61\.0 MiB of memory .*raise memory_limit=") as raised:
        DuckDBExport(query, tables={}, order_by=("id",), memory_limit="64MB").write(
            FakeServices(tmp_path / "ledger"), tmp_path / "out.csv"
        )
    assert not isinstance(raised.value, ExportRejected)  # a retry on a larger machine helps
    assert list(tmp_path.glob("*")) == [tmp_path / "ledger"]


def test_a_total_that_does_not_exist_ends_the_query(tmp_path: Path) -> None:
    with pytest.raises(ExportRejected, match="got 'amount'"):
        DuckDBExport(ENDLESS, tables={}, order_by=("id",)).write(
            FakeServices(tmp_path / "ledger"), tmp_path / "out.csv", totals={"amount": "sum"}
        )
    assert threads() == []


def test_without_duckdb_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ExportError, match=r"pip install 'steadyworker\[duckdb\]'"):
        DuckDBExport("SELECT 1 AS id", tables={}, order_by=("id",)).write(
            FakeServices(tmp_path / "ledger"), tmp_path / "out.csv"
        )
