"""What a handler has started ends with its worker process, before another one continues the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.ledger.base import State
from steadyworker.system.orphans import CHECKS, OrphanReaper
from tests.support.stage import Stage, eventually

WRITERS = "tests.service.guarded:Writers"
IN_THREADS = "tests.service.guarded:InThreads"


def left_of(worker: int, stage: Stage) -> list[psutil.Process]:
    """The processes that live with this worker process's number, and this stage's folder, in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()
            ours = (environment.get("STAGE_FOLDER"), environment.get("NUMBER")) == (str(stage.folder), str(worker))
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def writes(stage: Stage, run: int) -> None:
    """Wait until this run's subprocess writes."""
    eventually(lambda: str(run) in stage.lines("writes"), f"run {run} writes", report=stage.logs)


@pytest.mark.parametrize(
    ("target", "kills"),
    [
        (WRITERS, 4),
        (IN_THREADS, 2),
        pytest.param(WRITERS, 12, marks=pytest.mark.slow),
        pytest.param(IN_THREADS, 12, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(180)
def test_after_a_kill_no_subprocess_of_the_job_writes_beside_the_run_that_continues_it(
    stage: Stage, target: str, kills: int
) -> None:
    """The next worker process is there already, and takes the job over as soon as it may."""
    stage.send("writers", {"runs": kills})
    worker = stage.worker(target, env={"NUMBER": "0"})
    for run in range(kills):
        writes(stage, run)
        following = stage.worker(target, env={"NUMBER": str(run + 1)}).started()
        worker.kill()
        worker.wait()
        eventually(lambda run=run: not left_of(run, stage), "no process is left", within=5)  # type: ignore[misc]
        worker = following
    stage.reaches("writers", State.DONE)
    assert stage.lines("looks") == [f"{run} 0" for run in range(kills + 1)]


def test_a_guard_that_dies_is_replaced_and_its_successor_knows_every_session(stage: Stage) -> None:
    stage.send("writers", {"runs": 1})
    worker = stage.worker(WRITERS)
    writes(stage, 0)
    first = worker.program("slots.guard_process")
    first.kill()
    assert worker.reports("guard_replaced")["pid"] == first.pid
    assert worker.program("slots.guard_process").pid != first.pid
    worker.kill()
    worker.wait()
    stage.worker(WRITERS)
    stage.reaches("writers", State.DONE)
    assert stage.lines("looks") == ["0 0", "1 0"]


@pytest.mark.parametrize("target", [WRITERS, IN_THREADS])
def test_a_guard_ignores_signals_and_is_gone_after_a_stop(stage: Stage, target: str) -> None:
    worker = stage.worker(target, env={"NUMBER": "0"})
    stage.send("writers", {"runs": 0})
    stage.reaches("writers", State.DONE)
    guard = worker.program("slots.guard_process")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(guard.pid, number)
    time.sleep(0.1)
    assert guard.is_running()
    worker.terminate()
    assert worker.ended(0) < 5
    assert not left_of(0, stage)
    assert not worker.lines("guard_replaced")


def test_a_worker_process_that_inherits_an_ignored_sigchld_runs_its_jobs(stage: Stage) -> None:
    stage.send("waiting", {})
    worker = stage.worker("tests.service.guarded:Waiting", around=["env", "--ignore-signal=CHLD"])
    stage.reaches("waiting", State.DONE)
    assert stage.lines("codes") == ["1"]
    worker.terminate()
    worker.ended(0)


ADOPTS = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"


def test_a_worker_process_that_adopts_orphans_as_pid_1_does_leaves_no_zombie(stage: Stage) -> None:
    """PR_SET_CHILD_SUBREAPER makes it the parent of orphans, as being the first process of a container does."""
    stage.send("orphans", {})
    worker = stage.worker("tests.service.guarded:Orphans", around=[sys.executable, "-c", ADOPTS])
    stage.reaches("orphans", State.DEAD)
    orphans = [int(pid) for pid in stage.lines("orphans")]
    assert len(orphans) == 2
    eventually(lambda: not any(map(psutil.pid_exists, orphans)), "no zombie", within=10)
    worker.terminate()
    worker.ended(0)


@pytest.fixture(params=[False, True], ids=["in this session", "in its own"])
def dead(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process that was started here, and has ended with code 3."""
    with subprocess.Popen(["sh", "-c", "exit 3"], start_new_session=request.param) as process:
        eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "its end")
        yield process


def test_what_was_started_here_is_left_to_what_waits_for_it(dead: subprocess.Popen[bytes]) -> None:
    orphans = OrphanReaper(adopts=True)
    for _ in range(CHECKS - 1):
        orphans.reap()
    assert dead.wait() == 3


def test_a_process_that_inherits_no_orphan_never_reaps_what_was_started_here(dead: subprocess.Popen[bytes]) -> None:
    orphans = OrphanReaper()
    for _ in range(2 * CHECKS):
        orphans.reap()
    assert dead.wait() == 3


INHERITS = """
import ctypes, os, subprocess, time
from steadyworker.system.orphans import CHECKS, OrphanReaper

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
orphans, bystander = OrphanReaper(), subprocess.Popen(["true"])
for leads in ("", "setsid"):
    subprocess.run(["sh", "-c", f"{leads} sleep 0.1 & echo $!"], start_new_session=True, stdout=subprocess.DEVNULL)
time.sleep(0.5)
found = []
for _ in range(CHECKS):
    pids = [int(pid) for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split()]
    found.append(len(pids) - (bystander.pid in pids))
    orphans.reap()
pids = open(f"/proc/self/task/{os.getpid()}/children").read().split()
print(found[0], found[1], found[-1], pids == [str(bystander.pid)], bystander.wait())
"""


def test_an_orphan_that_leads_its_session_is_reaped_when_nothing_has_waited_for_it() -> None:
    """It looks like a process that was started here: only time separates them."""
    ended = subprocess.run([sys.executable, "-c", INHERITS], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout.split() == ["2", "1", "1", "True", "0"]


def test_an_orphan_in_this_session_is_reaped_too_where_no_handler_starts_children_there() -> None:
    """What a health check by `docker exec` leaves behind can be in the session of the first process."""
    program = INHERITS.replace("start_new_session=True, ", "").replace("reap()", "reap(own_session=True)")
    program = program.replace("pids == [str(bystander.pid)]", "pids")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    # Nothing waits for the bystander for so long, either: a worker process whose jobs are in threads does not ask for this.
    assert ended.stdout.split() == ["2", "2", "2", "[]", "0"]
