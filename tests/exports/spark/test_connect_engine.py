"""Jobs of one name at a Spark Connect server, one after the other, where the first takes its time to end: with a server of straw."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steadyworker.exports.spark import connect
from steadyworker.exports.spark.connect import ConnectEngine
from steadyworker.exports.spark.protocol import Connect, Done, JobEvent, Lines, Part, Plan, Run, Started, Stuck
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

    def write(_session: Any, run: Run, emit: Any, *_: Any) -> Done:
        found.append(threading.Event())
        waits = found[-1]
        emit(Started(run.job, (("id", "bigint"),)))
        Path(run.plan.parts).mkdir(parents=True)
        Path(run.plan.parts, "part-00000-x-c000.txt").write_text("1\n")
        assert waits.wait(60)
        return Done(run.job, 1, {}, ())

    monkeypatch.setattr(connect, "Server", Straw)
    monkeypatch.setattr(connect, "mark", lambda *_: SimpleNamespace(kill=lambda: None))
    monkeypatch.setattr(connect, "settle_in", lambda session: session)
    monkeypatch.setattr(connect, "write", write)
    monkeypatch.setattr(connect, "_LOOK", 0.05)
    return found


@pytest.fixture
def heard() -> list[JobEvent | Stuck]:
    return []


@pytest.fixture
def engine(writing: list[threading.Event], heard: list[JobEvent | Stuck]) -> ConnectEngine:
    def lost(why: str) -> Any:
        raise AssertionError(why)

    return ConnectEngine(heard.append, lost, Connect("sc://straw", {}, 1.0))


def run(folder: Path, number: int, stuck_after: float = 60.0) -> Run:
    plan = Plan(query="SELECT 1 AS id", tables={}, order_by=("id",), lines=Lines(), parts=str(folder / f"{number}"))
    return Run("job", plan, stuck_after)


def kinds(heard: list[JobEvent | Stuck]) -> list[str]:
    return [type(event).__name__ for event in heard]


def test_nothing_of_a_cancelled_job_reaches_the_next_one_of_its_name(
    engine: ConnectEngine,
    writing: list[threading.Event],
    heard: list[JobEvent | Stuck],
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    """As after `stuck`: the service begins it again as soon as the first is told to have ended, which is before it has."""
    engine.run(run(tmp_path, 1))
    eventually(lambda: "Part" in kinds(heard), within=30)
    engine.cancel("job")
    eventually(lambda: "Failed" in kinds(heard), within=30)
    before = len(heard)
    engine.run(run(tmp_path, 2))
    eventually(lambda: "Part" in kinds(heard[before:]), within=30)
    writing[0].set()
    second = [event for event in heard[before:] if isinstance(event, Part)]
    eventually(lambda: not [one for one in threading.enumerate() if one.name == "job"][1:], within=30)
    writing[1].set()
    eventually(lambda: "Done" in kinds(heard), within=30)
    assert kinds(heard[before:]).count("Done") == 1
    assert "Failed" not in kinds(heard[before:])
    assert [Path(part.path or "").parent.name for part in second] == ["2"]


def test_a_part_that_was_written_again_makes_what_was_joined_void(
    engine: ConnectEngine,
    writing: list[threading.Event],
    heard: list[JobEvent | Stuck],
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    engine.run(run(tmp_path, 1))
    eventually(lambda: "Part" in kinds(heard), within=30)
    fresh = tmp_path / "fresh"
    fresh.write_text("1\n")
    fresh.replace(tmp_path / "1" / "part-00000-x-c000.txt")
    writing[0].set()
    eventually(lambda: "Done" in kinds(heard), within=30)
    assert [kind for kind in kinds(heard) if kind != "Progress"] == ["Started", "Part", "Started", "Done"]


def test_what_was_in_flight_when_an_operation_ended_is_not_waited_for(
    engine: ConnectEngine,
    writing: list[threading.Event],
    heard: list[JobEvent | Stuck],
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    """The client tells the last count again at its end (PySpark 4.3): a `Build` that asks twice may think in between."""
    engine.run(run(tmp_path, 1, stuck_after=0.05))
    eventually(lambda: "Part" in kinds(heard), within=30)
    server: Any = engine._server
    (told,) = server.handlers
    stages = [SimpleNamespace(stage_id=0, num_completed_tasks=3, num_tasks=9)]
    told(stages, 2, "operation 1", done=True)
    time.sleep(1.5)
    assert "Stuck" not in kinds(heard), "half a second is granted"
    told(stages, 2, "operation 2", done=False)
    eventually(lambda: "Stuck" in kinds(heard), within=30)
    assert kinds(heard).count("Stuck") == 1
    writing[0].set()
