"""Jobs of one name at a Spark Connect server, one after the other, where the first takes its time to end: with a server of straw."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steadyworker.clock import SystemClock
from steadyworker.exports.spark import connect
from steadyworker.exports.spark.connect import ConnectEngine
from steadyworker.exports.spark.protocol import (
    Connect,
    ExportDone,
    ExportPlan,
    ExportStarted,
    JobEvent,
    RunExport,
    Stuck,
)
from steadyworker.exports.spark.remote import RemoteTasks
from tests.conftest import Eventually


class Straw:
    """A server whose operations no interrupt ends."""

    def __init__(self, _url: str) -> None:
        self.handlers: list[Any] = []

    def wait(self, _within: float) -> str:
        return "0"

    def attach(self, _name: str) -> Any:
        return SimpleNamespace(registerProgressHandler=self.handlers.append, addTag=lambda _: None, conf=self)

    def interrupt(self, _session: Any) -> bool:
        return True

    def set(self, *_: str) -> None: ...
    def try_out(self, _conf: Any) -> None: ...
    def clear(self, _session: Any, _name: str) -> None: ...
    def release(self, _session: Any) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """What each job waits for before it says that it is done, in order."""
    found: list[threading.Event] = []

    def write(_session: Any, run: RunExport, emit: Any, *_: Any) -> ExportDone:
        found.append(threading.Event())
        waits = found[-1]
        emit(ExportStarted(run.job, (("id", "bigint"),)))
        Path(run.plan.parts).mkdir(parents=True)
        Path(run.plan.parts, "part-00000-x-c000.txt").write_text("1\n")
        assert waits.wait(60)
        return ExportDone(run.job, (run.plan.parts,))

    monkeypatch.setattr(connect, "Server", Straw)
    monkeypatch.setattr(connect, "mark", lambda *_: SimpleNamespace(kill=lambda: None))
    monkeypatch.setattr(connect, "settle_in", lambda session: session)
    monkeypatch.setattr(connect, "probe", lambda *_: None)
    monkeypatch.setattr(connect, "write", write)
    monkeypatch.setattr(connect, "_POLL", 0.05)
    return found


class Hand(SystemClock):
    """A clock that is moved by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Bench:
    """An engine, what it is heard to say, and the looks of its watchers, whose clock is moved by hand."""

    def __init__(self, writing: list[threading.Event], folder: Path, eventually: Eventually) -> None:
        self.writing, self._folder, self._eventually = writing, folder, eventually
        self.received: list[JobEvent | Stuck] = []
        self.clock, self.looks = Hand(), 0
        self.engine = ConnectEngine(self.received.append, self._lost, Connect("sc://straw", {}, 1.0))

    def _lost(self, why: str) -> Any:
        raise AssertionError(why)

    def run(self, number: int) -> None:
        """A job, always of the same name, with a folder of its own."""
        parts = str(self._folder / f"{number}")
        plan = ExportPlan(query="SELECT 1 AS id", tables={}, order_by=("id",), parts=parts)
        self.engine.run(RunExport("job", plan, stuck_after=0.1))

    def kinds(self, since: int = 0) -> list[str]:
        return [type(event).__name__ for event in self.received[since:]]

    def expect(self, kind: str, since: int = 0) -> None:
        """Wait until it was said."""
        self._eventually(lambda: kind in self.kinds(since), within=30)

    def see(self) -> None:
        """Wait until what is there now was looked at."""
        before = self.looks
        self._eventually(lambda: self.looks >= before + 2, within=30)

    def only_one_runs(self) -> None:
        """Wait until all jobs but the newest have ended."""
        self._eventually(lambda: [one.name for one in threading.enumerate()].count("job") == 1, within=30)


@pytest.fixture
def bench(
    writing: list[threading.Event], tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> Bench:
    made = Bench(writing, tmp_path, eventually)

    class Watched(RemoteTasks):
        def __init__(self, run: RunExport) -> None:
            super().__init__(run, made.clock)

        def stuck(self) -> str:
            found = super().stuck()
            made.looks += 1
            return found

    monkeypatch.setattr(connect, "RemoteTasks", Watched)
    return made


@pytest.mark.long
def test_nothing_of_a_cancelled_job_reaches_the_next_one_of_its_name(bench: Bench, tmp_path: Path) -> None:
    """As after `stuck`: the service begins it again as soon as the first is told to have ended, which is before it has."""
    bench.run(1)
    bench.expect("ExportStarted")
    bench.engine.cancel("job")
    bench.expect("ExportFailed")
    before = len(bench.received)
    bench.run(2)
    bench.expect("ExportStarted", before)
    bench.writing[0].set()
    bench.only_one_runs()
    bench.writing[1].set()
    bench.expect("ExportDone", before)
    assert [kind for kind in bench.kinds(before) if kind != "ExportProgress"] == [
        "ExportStarted",
        "ExportDone",
    ]
    (last,) = [event for event in bench.received[before:] if isinstance(event, ExportDone)]
    assert last.parts == (str(tmp_path / "2"),)


def test_what_was_in_flight_when_an_operation_ended_is_not_waited_for(bench: Bench) -> None:
    """The client tells the last count again at its end (PySpark 4.3): a `Build` that asks twice may think in between."""
    bench.run(1)
    bench.expect("ExportStarted")
    server: Any = bench.engine._server
    (reported,) = server.handlers
    stages = [SimpleNamespace(stage_id=0, num_completed_tasks=3, num_tasks=9)]
    reported(stages, 2, "operation 1", done=True)
    bench.see()
    bench.clock.now += 3
    bench.see()
    assert "Stuck" not in bench.kinds(), "a second is granted"
    reported(stages, 2, "operation 2", done=False)
    bench.see()
    bench.clock.now += 3
    bench.expect("Stuck")
    assert bench.kinds().count("Stuck") == 1
    bench.writing[0].set()
