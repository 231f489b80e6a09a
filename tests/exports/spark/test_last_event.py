"""Each job in the Spark host has a last event, whatever a user's function raises: without it, its child waits until its time limit."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.formats import Csv
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.spark import connect, engine
from steadyworker.exports.spark.connect import ConnectEngine
from steadyworker.exports.spark.engine import Engine
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.protocol import (
    Connect,
    ExportFailed,
    ExportPlan,
    ExportProgress,
    ExportStarted,
    Fatal,
    RunExport,
    Stuck,
    decode_command,
    decode_message,
    encode,
)
from steadyworker.exports.spark.query import failed
from steadyworker.exports.tables import CommonTable, Files
from steadyworker.text.plain_text import LONGEST
from tests.slots.anything import Leaving, LeavingError, Nameless, RefusingError

LONE, SHOWN = "caf\udce9.csv", r"caf\udce9.csv"

ODD = """
import sys
from tests.slots.anything import LeavingError, Nameless, RefusingError


def surrogate(*_):
    raise ValueError("caf\\udce9.csv")


def nul(*_):
    raise ValueError("a\\0b")


def endless(*_):
    raise ValueError("x" * 3_000_000)


def secret(*_):
    raise ValueError("cannot reach postgresql://shop:hunter2@db")


def refusing(*_):
    raise RefusingError


def nameless(*_):
    raise Nameless


def leaving(*_):
    raise LeavingError


def leaves(*_):
    sys.exit(3)
"""
SAID = {
    "surrogate": ("query", r"odd_frames:surrogate failed at .*: ValueError: caf\\udce9.csv"),
    "nul": ("query", r"ValueError: a\\x00b"),
    "endless": ("query", "ValueError: xxxx"),
    "secret": ("query", r"postgresql://shop:\*\*\*@db"),
    "refusing": ("job", "refused"),
    "nameless": ("job", "."),
    "leaving": ("query", r"in leaving: LeavingError: <exception str\(\) failed>$"),
    "leaves": ("query", "SystemExit: 3"),
}


@pytest.fixture
def odd_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_frames.py").write_text(ODD)
    monkeypatch.syspath_prepend(str(tmp_path))


class Heard:
    """What the worker process hears of an engine: each event crosses the pipe as a line."""

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def emit(self, event: Any) -> None:
        self._said.put(decode_message(encode(event)))

    def last(self) -> ExportFailed:
        """Return the first event that ends a job."""
        while not isinstance(event := self._said.get(timeout=20), ExportFailed):
            pass
        return event


def with_a_driver(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose Spark is of straw; the user's function fails before Spark has to do anything."""
    session = MagicMock()
    session.sparkContext.master = "local[1]"
    session.sparkContext._jsc.sc.return_value.isStopped.return_value = False
    builder = MagicMock()
    builder.builder.getOrCreate.return_value = session
    session.newSession.return_value = session
    monkeypatch.setattr(engine, "SparkSession", builder)
    monkeypatch.setattr(engine, "SparkContext", MagicMock())
    monkeypatch.setattr(engine, "InheritableThread", threading.Thread)
    return Engine(heard.emit, lambda _: pytest.fail("the JVM is alive"))


def at_a_server(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> ConnectEngine:
    """An engine whose server is of straw."""
    monkeypatch.setattr(connect, "Server", MagicMock())
    monkeypatch.setattr(connect, "probe", lambda *_: None)
    return ConnectEngine(heard.emit, pytest.fail, Connect("sc://straw", {}, 1.0))


def plan(query: str, parts: Path) -> ExportPlan:
    return ExportPlan(query=query, build=True, tables={}, order_by=("id",), parts=str(parts))


@pytest.mark.usefixtures("odd_frames")
@pytest.mark.parametrize("made", [with_a_driver, at_a_server])
def test_whatever_a_build_raises_its_job_ends_and_the_next_one_runs(
    made: Callable[[Heard, pytest.MonkeyPatch], Engine | ConnectEngine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = Heard()
    host = made(heard, monkeypatch)
    for name, (kind, text) in SAID.items():
        host.run(RunExport(name, plan(f"odd_frames:{name}", tmp_path / "parts")))
        last = heard.last()
        assert (last.job, last.kind) == (name, kind), last
        assert re.search(text, last.text), last
        assert len(last.text) <= LONGEST


def test_no_job_begins_in_an_application_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is in the message; the host then ends, and the next one has a new application."""
    host: Any = with_a_driver(Heard(), monkeypatch)
    host._context._jsc.sc().isStopped.return_value = True
    host._context.applicationId = "app-17"
    monkeypatch.setattr(host, "_lost", pytest.fail)
    with pytest.raises(pytest.fail.Exception, match=r"the application app-17 at local\[1\] has ended"):
        host.run(RunExport("job", plan("odd_frames:surrogate", tmp_path / "parts")))


@pytest.mark.usefixtures("odd_frames")
def test_a_job_ends_although_its_databases_cannot_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    host = with_a_driver(heard, monkeypatch)
    databases = MagicMock()
    databases.return_value.redact = str
    databases.return_value.close.side_effect = OSError(28, "No space left on device")
    monkeypatch.setattr(engine, "Databases", databases)
    host.run(RunExport("job", plan("odd_frames:surrogate", tmp_path / "parts")))
    assert heard.last().kind == "query"


def test_a_table_of_postgresql_is_refused_at_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    host = at_a_server(heard, monkeypatch)
    tables: Any = {"t": Jdbc("postgresql://localhost/shop", "t")}
    host.run(RunExport("job", ExportPlan(query="TABLE t", tables=tables, order_by=("id",), parts=str(tmp_path))))
    last = heard.last()
    assert last.kind == "rejected"
    assert re.search("Jdbc table 't', got Spark Connect: the table's password would pass to a server", last.text)


def test_every_error_is_a_last_event() -> None:
    for error in (
        ExportError(LONE),
        ValueError(LONE),
        ValueError("x" * 17_000_000),
        ValueError("\0"),
        ExportError(Leaving()),
        RefusingError(),
        LeavingError(),
        Nameless(),
        SystemExit(RefusingError()),
        KeyboardInterrupt(),
    ):
        last = failed("job", error)
        assert decode_message(encode(last)) == last
        assert last.text
        assert len(last.text) <= LONGEST


def test_a_text_that_is_no_unicode_crosses_the_pipe_as_its_escape() -> None:
    for message in (Fatal(LONE), Stuck("job", LONE), ExportFailed("job", "job", LONE)):
        assert decode_message(encode(message)).text == SHOWN  # type: ignore[union-attr]
    begun = decode_message(encode(ExportStarted("job", (LONE,), (LONE,), {LONE: LONE})))
    assert begun == ExportStarted("job", (SHOWN,), (SHOWN,), {SHOWN: SHOWN})
    assert decode_message(encode(ExportProgress("job", 1, 2))) == ExportProgress("job", 1, 2)
    run = RunExport("job", plan(LONE, Path(LONE)))
    sent = decode_command(encode(run))
    assert isinstance(sent, RunExport)
    assert (sent.plan.query, sent.plan.parts) == (SHOWN, SHOWN)


@pytest.mark.parametrize(
    ("query", "tables", "params", "parts"),
    [
        (f"SELECT '{LONE}'", {}, {}, "parts"),
        ("SELECT * FROM t", {"t": Files(f"file:///{LONE}", format="csv")}, {}, "parts"),
        ("SELECT :file", {}, {"file": LONE}, "parts"),
        ("SELECT 1", {}, {}, LONE),
    ],
)
def test_an_export_with_a_text_that_is_no_unicode_is_refused_before_spark_gets_it(
    query: str, tables: dict[str, CommonTable], params: dict[str, str], parts: str
) -> None:
    """The escape of a parameter would be another parameter: rows that nobody asked for."""
    export = SparkExport(query, tables=tables, order_by=("id",), params=params)
    with pytest.raises(ExportRejected, match=r"Expected valid Unicode .*caf\\udce9\.csv"):
        export.plan(Csv(), (), (), Path(parts))
