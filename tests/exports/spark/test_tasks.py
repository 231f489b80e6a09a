"""Whether a job moves: over made-up messages of a Spark Connect server, made-up processor times and real files, without Spark."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from steadyworker.clock import SystemClock
from steadyworker.exports.spark import engine
from steadyworker.exports.spark.connect import tasks_of
from steadyworker.exports.spark.protocol import ExportPlan, RunExport
from steadyworker.exports.spark.tasks import size_of


class Hand(SystemClock):
    """A clock that is moved by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def plan_at(parts: Path) -> ExportPlan:
    return ExportPlan(query="SELECT 1 AS id", tables={}, order_by=("id",), parts=str(parts))


class Server:
    """One job's messages and files, and a look at them each second."""

    def __init__(self, parts: Path, *, stuck_before: bool = False) -> None:
        self.parts, self.clock = parts, Hand()
        self.tasks = tasks_of(RunExport("job", plan_at(parts), 1.0, stuck_before), self.clock)

    def report(self, running: int, **stages: tuple[int, int]) -> None:
        """`s3=(1, 9)`: 1 of the 9 tasks of stage 3 are done."""
        self.tasks.record([(int(name[1:]), done, of) for name, (done, of) in stages.items() if done], running)

    def write(self, index: int, text: str = "row\n", folder: str = "") -> Path:
        path = self.parts / folder / f"part-{index:05d}-x-c000.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def poll(self) -> bool:
        self.clock.now += 1
        return self.tasks.poll()

    def still(self, seconds: int) -> str:
        """Poll for so long; return what `stuck` reports in the end, after nothing has ever moved."""
        for _ in range(seconds):
            assert not self.poll()
        return self.tasks.stuck()


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "parts")


def test_tasks_are_counted_once_skipped_stages_and_failed_attempts_never(server: Server) -> None:
    assert not (server.poll() and server.tasks.total)
    server.report(2, s0=(0, 5), s1=(3, 9))
    assert server.poll()
    assert (server.tasks.done, server.tasks.total) == (3, 9)
    server.report(2, s1=(2, 9), s2=(12, 10))
    assert server.poll()
    assert (server.tasks.done, server.tasks.total) == (13, 19)
    assert not server.poll()


def test_no_movement_of_tasks_in_flight_is_stuck_after_ten_times_the_limit(server: Server) -> None:
    server.report(2, s0=(3, 9))
    server.poll()
    assert server.still(9) == ""
    why = server.still(1)
    assert "nothing has moved for 10 s, neither a task nor a byte, with 3 of 9 tasks complete and 2 in flight" in why
    assert "the limit is 10 s" in why


def test_what_was_stuck_before_does_not_wait_for_ever(tmp_path: Path) -> None:
    """Its own tasks, which no cancel ends, may hold the cores that it waits for."""
    server = Server(tmp_path / "parts", stuck_before=True)
    server.report(0, s0=(3, 9))
    server.poll()
    assert server.still(9) == ""
    assert "the limit is 10 s" in server.still(1)


def test_a_stage_that_is_run_again_moves(server: Server) -> None:
    """Its executor was lost: it ends more tasks than it has, and as many are in flight all the time."""
    for done in range(8, 40):
        server.report(2, s0=(done, 9))
        assert server.poll()
        assert server.still(5) == ""
    assert (server.tasks.done, server.tasks.total) == (9, 9)


@pytest.mark.parametrize(
    ("local", "share", "stuck_at"),
    [(True, 0.02, 60), (True, 0.5, 600), (False, 0.02, 600), (False, 0.5, 600)],
    ids=["idle", "it computes", "idle in a cluster", "it computes in a cluster"],
)
def test_a_host_that_computes_or_is_in_a_cluster_gets_ten_times_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool, share: float, stuck_at: int
) -> None:
    """A few percent of a core are no evidence: a JVM that waits uses as much."""
    clock = Hand()
    tasks = engine.tasks_of(RunExport("job", plan_at(tmp_path), 60.0), local=local, clock=clock)
    monkeypatch.setattr("steadyworker.exports.spark.tasks.tree_cpu", lambda _: share * clock.now)
    assert tasks.poll()
    stuck = []
    for clock.now in range(5, 700, 5):
        assert not tasks.poll()
        if tasks.stuck():
            stuck.append(clock.now)
    assert stuck[0] == stuck_at


def test_a_process_that_stood_still_itself_blames_no_job(server: Server) -> None:
    server.report(2, s0=(3, 9))
    server.poll()
    server.clock.now += 3600
    assert server.still(5) == ""
    assert "nothing has moved for 10 s" in server.still(1)


def test_a_host_that_computes_still_does_so_after_this_process_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Hand()
    used = 0.0
    tasks = engine.tasks_of(RunExport("job", plan_at(tmp_path), 60.0), local=True, clock=clock)
    monkeypatch.setattr("steadyworker.exports.spark.tasks.tree_cpu", lambda _: used)
    assert tasks.poll()
    for _ in range(20):
        clock.now, used = clock.now + 5, used + 2.5
        assert not tasks.poll()
    clock.now, used = clock.now + 3600, used + 2.5
    for _ in range(12):
        assert not tasks.poll()
        assert tasks.stuck() == ""
        clock.now += 5
    assert not tasks.poll()
    assert "nothing has moved for 165 s" in tasks.stuck()


def test_looks_that_take_long_find_it_nonetheless(server: Server) -> None:
    """A folder far away: each second look is late, and late ones count as five seconds."""
    server.report(2, s0=(3, 9))
    server.poll()
    for _ in range(2):
        assert server.tasks.stuck() == ""
        server.clock.now += 7
        assert not server.tasks.poll()
    assert "nothing has moved for 10 s" in server.tasks.stuck()


def test_folders_that_come_and_go_are_counted_as_far_as_they_are_there(tmp_path: Path) -> None:
    """Those of attempts, which a cancel or a second attempt removes."""
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for number in range(20):
                (tmp_path / f"attempt_{number}" / "deep").mkdir(parents=True)
                (tmp_path / f"attempt_{number}" / "deep" / "part").write_text("x")
            for number in range(20):
                shutil.rmtree(tmp_path / f"attempt_{number}")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert max(size_of(tmp_path) for _ in range(500)) <= 20
    finally:
        stop.set()
        thread.join()


def test_a_job_that_waits_for_its_turn_is_not_stuck(server: Server) -> None:
    server.report(0, s0=(9, 9))
    server.poll()
    assert server.still(100) == ""
    server.report(1, s0=(9, 9))
    server.poll()
    assert server.still(9) == "", "what it waited does not count"
    assert server.still(1) != ""


def test_a_byte_on_its_way_into_a_part_is_movement(server: Server) -> None:
    server.report(2, s0=(3, 9))
    server.poll()
    for length in range(1, 30):
        server.write(4, "x" * length, folder="_temporary/0/_temporary/attempt_1")
        assert server.poll()
        assert server.still(3) == ""
