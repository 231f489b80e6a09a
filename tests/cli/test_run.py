"""The whole way on the embedded broker, with nothing but commands: send, run, dead, replay, run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from steadyworker.actions.deadletters import DeadLetterQueue
from steadyworker.adapter import DeadLetters, Delivery, OutgoingMessage
from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.errors import Unsettled
from tests.cli.kit import Queues, Shell

_APP = '''
from dataclasses import dataclass
from pathlib import Path
from steadyworker import Job, Reject, Worker

@dataclass
class Request:
    merchant: str

class Exports(Worker[Request, int]):
    """Each run leaves a line; a merchant that is not there yet is a dead letter."""

    queue = "exports"
    time_limit = 60
    isolation = "thread"

    def handle(self, job: Job[Request, int]) -> None:
        with Path("runs").open("a") as runs:
            runs.write(f"{job.key} {job.attempt} {job.last_checkpoint}\\n")
        job.progress(1, 2)
        job.checkpoint(41)
        if not Path(job.payload.merchant).exists():
            raise Reject(f"no such merchant: {job.payload.merchant}")
'''

_OWN = """
from own import Exports as Those

class Exports(Those):
    isolation = "process"

    def handle(self, job):
        print("a line that must not go to another file")
        super().handle(job)
"""

_POOL = """
import time
from concurrent.futures import ThreadPoolExecutor
from steadyworker import Job, Worker

class Pooled(Worker):
    queue = "pooled"
    time_limit = 60
    isolation = "thread"

    def handle(self, job: Job) -> None:
        ThreadPoolExecutor(1, "busy").submit(time.sleep, 50)
        ThreadPoolExecutor(1, "idle").submit(abs, -1).result()
"""


@pytest.fixture
def town(shell: Shell) -> Shell:
    """A folder whose Worker writes down each of its runs."""
    (shell.folder / "app.py").write_text(_APP)
    return shell


def runs(town: Shell) -> list[str]:
    return (town.folder / "runs").read_text().splitlines()


def test_a_job_goes_from_send_to_done(town: Shell) -> None:
    (town.folder / "m-17").touch()
    assert town("send", "app:Exports", '{"merchant": "m-17"}', "--key", "k-1").code == 0
    ran = town("run", "app:Exports", "--max-jobs", "1", "--idle-exit", "20")
    assert ran.code == 0, ran.err
    assert runs(town) == ["k-1 1 None"]
    (job,) = town("jobs", "--json").records
    assert (job["key"], job["state"], job["attempts"]) == ("k-1", "done", 0)


def test_settings_may_be_in_a_file_of_any_name(town: Shell) -> None:
    (town.folder / "m-17").touch()
    (town.folder / "other.toml").write_text("max_jobs = 1\nidle_exit = 20\n")
    assert town("send", "app:Exports", '{"merchant": "m-17"}').code == 0
    ran = town("run", "app:Exports", "--config", "other.toml")
    assert ran.code == 0, ran.err
    assert len(runs(town)) == 1


def test_a_dead_letter_is_replayed_from_its_checkpoint(town: Shell) -> None:
    town("send", "app:Exports", '{"merchant": "m-17"}', "--key", "k-1")
    assert town("run", "app:Exports", "--max-jobs", "1", "--idle-exit", "20").code == 0
    (letter,) = town("dead", "show", "app:Exports", "--json").records
    assert (letter["key"], letter["reason"], letter["checkpoint"]) == ("k-1", "no such merchant: m-17", 41)
    (town.folder / "m-17").touch()
    assert town("dead", "replay", "app:Exports", "k-1").code == 0
    assert town("run", "app:Exports", "--max-jobs", "1", "--idle-exit", "20").code == 0
    assert runs(town) == ["k-1 1 None", "k-1 1 41"]
    assert [(job["round"], job["state"]) for job in town("jobs", "--json").records] == [(1, "done")]
    assert town("dead", "list", "app:Exports").out == ""


class Dying:
    """A reader of dead letters that dies between publish and removal."""

    def __init__(self, held: DeadLetters) -> None:
        self.held = held

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.held)

    def publish(self, message: OutgoingMessage) -> None:
        self.held.publish(message)

    def drop(self, delivery: Delivery) -> None:
        raise Unsettled("killed")


def test_a_replay_that_died_half_way_and_is_repeated_runs_the_job_once(town: Shell, queues: Queues) -> None:
    town("send", "app:Exports", '{"merchant": "m-17"}', "--key", "k-1")
    assert town("run", "app:Exports", "--max-jobs", "1", "--idle-exit", "20").code == 0
    (town.folder / "m-17").touch()
    exports = JobQueue("exports", "exports", None, object)
    with Connections(queues.options) as links:

        @contextmanager
        def letters() -> Iterator[DeadLetters]:
            with links.adapter(exports).dead_letters() as held:
                yield Dying(held)

        queue = DeadLetterQueue(letters, links.ledger(), links.namespace(exports), "exports")
        with pytest.raises(Unsettled):
            queue.replay()
    assert town("dead", "replay", "app:Exports", "k-1").code == 0
    assert town("run", "app:Exports", "--idle-exit", "2").code == 0
    assert runs(town) == ["k-1 1 None", "k-1 1 41"]


_OBSERVER = """
import json, os, stat
from pathlib import Path
from steadyworker import Job, Worker

class Observer(Worker):
    queue = "observed"
    time_limit = 60

    def handle(self, job: Job) -> None:
        job.checkpoint(1)
        state = Path(os.environ["STEADYWORKER_STATE_DIR"])
        seen = {str(path.relative_to(state)): stat.S_IMODE(path.lstat().st_mode) for path in state.rglob("*")}
        Path("rights.json").write_text(json.dumps(seen | {".": stat.S_IMODE(state.stat().st_mode)}))
"""


def test_the_state_is_private_while_a_job_runs_whatever_the_umask_permits(shell: Shell) -> None:
    (shell.folder / "observer.py").write_text(_OBSERVER)
    before = os.umask(0)
    try:
        assert shell("send", "observer:Observer", "{}", "--key", "k").code == 0
        assert shell("run", "observer:Observer", "--max-jobs", "1").code == 0
    finally:
        os.umask(before)
    rights = json.loads((shell.folder / "rights.json").read_text())
    assert {"ledger.db", "ledger.db-wal", "ledger.db-shm", "broker.db", "broker.db-wal", "broker.db-shm"} <= set(rights)
    assert any(name.endswith(".bell") for name in rights)
    assert {name: f"{mode:o}" for name, mode in rights.items() if mode & 0o077} == {}


def test_check_warns_of_state_that_others_can_read_and_changes_nothing(shell: Shell) -> None:
    assert shell("send", "app:Exports", '{"merchant": "m"}').code == 0
    broker = shell.state / "broker.db"
    broker.chmod(0o644)
    shell.state.chmod(0o775)
    done = shell("check", "app:Exports")
    assert done.code == 0
    assert "to be private, got the rights 644" in done.out.replace("\n", " ")
    assert "to be writable for one user, got the rights 775" in done.out.replace("\n", " ")
    assert broker.stat().st_mode & 0o777 == 0o644


def test_a_job_that_is_cancelled_in_advance_never_runs(town: Shell, queues: Queues) -> None:
    assert town("cancel", "app:Exports", "k-1", "--reason", "wrong month").code == 0
    town("send", "app:Exports", '{"merchant": "m-17"}', "--key", "k-1")
    assert town("run", "app:Exports", "--idle-exit", "2").code == 0
    assert not (town.folder / "runs").exists()
    (letter,) = town("dead", "list", "app:Exports", "--json").records
    assert letter["reason"] == "cancelled: wrong month"


def test_sent_again_runs_again(town: Shell) -> None:
    (town.folder / "m-17").touch()
    for again in ((), (), ("--again",)):
        town("send", "app:Exports", '{"merchant": "m-17"}', "--key", "k-1", *again)
        assert town("run", "app:Exports", "--idle-exit", "1").code == 0
    assert len(runs(town)) == 2


def test_modules_beside_the_workers_may_have_names_of_the_standard_library(town: Shell) -> None:
    """They stand for it nowhere, and are imported where the Worker imports them."""
    (town.folder / "m-17").touch()
    for name in ("queue", "socket", "json"):
        (town.folder / f"{name}.py").write_text("raise ImportError('this is no standard library')\n")
    (town.folder / "own.py").write_text(_APP)
    (town.folder / "app.py").write_text(_OWN)
    script = Path(sys.executable).with_name("steadyworker")
    for arguments in (
        ["send", "exports", '{"merchant": "m-17"}', "--key", "k-1"],
        ["run", "app:Exports", "--max-jobs", "1"],
    ):
        done = subprocess.run(
            [script, *arguments], cwd=town.folder, env=town.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert runs(town) == ["k-1 1 None"]


def test_a_pool_that_a_thread_slot_has_left_behind_does_not_outlive_the_worker_process(town: Shell) -> None:
    (town.folder / "app.py").write_text(_POOL)
    town("send", "pooled", "{}")
    began = time.monotonic()
    done = town("run", "app:Pooled", "--max-jobs", "1")
    assert time.monotonic() - began < 30
    assert done.code == 0
    assert "worker_stopped" in done.err
    (line,) = [line for line in done.err.splitlines() if "threads_left_behind" in line]
    assert json.loads(line)["threads"] == ["busy_0"]


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&-", pytest.param("0<&- 1>&- 2>&-", marks=pytest.mark.slow)])
def test_closed_standard_streams_are_no_obstacle(town: Shell, closed: str) -> None:
    (town.folder / "m-17").touch()
    (town.folder / "own.py").write_text(_APP)
    (town.folder / "app.py").write_text(_OWN)
    town("send", "exports", '{"merchant": "m-17"}', "--key", "k-1")
    command = f"{sys.executable} -m steadyworker run app:Exports --max-jobs 1 --idle-exit 20 {closed}"
    assert subprocess.run(command, shell=True, cwd=town.folder, env=town.environ, check=False).returncode == 0
    assert runs(town) == ["k-1 1 None"]
    (job,) = town("jobs", "--json").records
    assert (job["state"], job["attempts"], job["crashes"]) == ("done", 0, 0)


def test_a_setting_that_makes_no_sense_is_78(town: Shell) -> None:
    done = town("run", "app:Exports", "--stop-within", "soon")
    assert done.code == 78
    assert "--stop-within" in done.err


def test_term_ends_it_with_0(town: Shell) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "steadyworker", "run", "app:Exports"],
        cwd=town.folder,
        env=town.environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        began = time.monotonic()
        while "worker_started" not in process.stderr.readline():
            assert process.poll() is None
            assert time.monotonic() - began < 20
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(10) == 0
