"""
Real worker processes in the situations that `entries/steadyworker.toml` explains.

Each test starts worker processes, brings them into the situation, and holds three things together:
the line that the process writes, the entry that it names, and the sample that `samples/steadyworker.toml` has of such a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pika
import pytest

from steadyworker.adapter import OutgoingMessage, QueueSpec, Settings, Target
from steadyworker.clock import SystemClock, Times
from steadyworker.diagnosis.remedies import Remedies
from steadyworker.diagnosis.scan import Scanner
from steadyworker.ledger.base import State
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker_sqlite import SqliteAdapter
from tests.brokers.rabbitmq import Node, Vhost
from tests.diagnosis import sample_files
from tests.diagnosis.explaining import search
from tests.support.stage import MAIN, Processes, Stage, WorkerProcess, eventually

SAMPLES = sample_files.load()
JOBS = "tests.support.jobs"
ODD = "tests.diagnosis.own_jobs:Odd"
OF_A_CHILD = (
    "job_failed",
    "handle_result_ignored",
    "setup_failed",
    "teardown_failed",
    "report_ignored",
    "output_left_out",
)
"""Lines of children, which know no catalogue: they name the entry only."""

QUICK = {"scale": 20, "proof": False}
"""An owner is never provably dead, and its lease is over soon."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def explained(process: WorkerProcess, event: str, id_: str, **values: Any) -> dict[str, Any]:
    """Wait for this line; check that its entry explains it, gives the remedy in it, and has such a sample."""
    line = process.reports(event, **values)
    raw = next(text for text in process.log.read_text(encoding="utf-8").splitlines() if same(text, line))
    found = [seen.entry.id for seen in Scanner("worker.log", search()).whole([raw.encode()])]
    assert found == [id_]
    assert line.get("explain", id_) == id_
    if event in OF_A_CHILD:
        assert "remedy" not in line
    elif "what" not in line:  # a finding has its own remedy
        expected = Remedies()({name: value for name, value in line.items() if name != "remedy"})
        assert line.get("remedy", "") == expected
    if samples := [sample for sample in SAMPLES.get(id_, ()) if sample.origin == "SteadyWorker"]:
        assert shape(line) in [shape(json.loads(sample.text)) for sample in samples]
        test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
        assert test.partition("[")[0] in [sample.test for sample in samples]
    return line


def same(text: str, line: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(text) == line)
    except ValueError:
        return False


def shape(line: dict[str, Any]) -> tuple[object, ...]:
    """What is the same in each line of its kind."""
    return line["event"], line["level"], line.get("explain"), tuple(sorted(line))


def message(stage: Stage, queue: str, body: bytes, **headers: str) -> None:
    """Send a message as a foreign client does."""
    adapter = SqliteAdapter(stage.broker, QueueSpec(queue, f"{queue}.dead"), Settings())
    adapter.publish(OutgoingMessage(Target.WORK, body, headers))
    adapter.stop(1.0)


# --- A job --------------------------------------------------------------------------------------------------------------


def test_a_handler_that_raises(stage: Stage) -> None:
    stage.send("fails", {})
    process = stage.worker(f"{JOBS}:Fails")
    explained(process, "job_failed", "steadyworker.job-failed")
    line = explained(process, "job_settled", "steadyworker.dead-letter", settlement="dead-letter")
    assert line["level"] == "error"
    assert line["remedy"]


def test_a_wait_that_raises(stage: Stage) -> None:
    stage.send("waits", {})
    explained(stage.worker("tests.diagnosis.own_jobs:Waits"), "wait_failed", "steadyworker.wait-failed")


def test_a_result_that_means_nothing(stage: Stage) -> None:
    stage.send("odd", {"do": "return"})
    explained(stage.worker(ODD), "handle_result_ignored", "steadyworker.result-ignored")


def test_a_host_that_cannot_run_the_job(stage: Stage) -> None:
    stage.send("odd", {"do": "unfit"})
    process = stage.worker(ODD)
    process.ended(78)
    explained(process, "worker_stopped", "steadyworker.exit-config")


@pytest.mark.slow  # ten worker processes, one after the other
def test_a_job_that_is_interrupted_again_and_again(stage: Stage) -> None:
    stage.send("odd", {"do": "wait"})
    for number in range(10):
        process = stage.worker(ODD)
        stage.notes("starts", number + 1)
        process.terminate()
        process.ended(0)
    last = stage.processes[9]
    explained(last, "often_interrupted", "steadyworker.often-interrupted")
    restarted = stage.worker(ODD)
    assert restarted.reports("job_started")["redelivered_because"] == "released"


# --- A message ----------------------------------------------------------------------------------------------------------


def test_a_key_of_another_payload(stage: Stage) -> None:
    stage.send("steps", {"steps": 1})
    process = stage.worker(f"{JOBS}:Steps")
    stage.reaches("steps", State.DONE)
    message(stage, "steps", b'{"steps": 2}', **{"sw-job-key": "job"})
    line = explained(process, "delivery_rejected", "steadyworker.key-conflict")
    assert line["remedy"]


def test_a_header_that_cannot_be_read(stage: Stage) -> None:
    process = stage.worker(f"{JOBS}:Steps").started()
    message(stage, "steps", b"{}", **{"sw-job-key": "other", "sw-hop": "many"})
    explained(process, "delivery_rejected", "steadyworker.bad-header")


def test_a_task_of_celery_with_a_time(stage: Stage) -> None:
    """One line for all of them, and none for a task without a time."""
    process = stage.worker(f"{JOBS}:Steps").started()
    celery = {"lang": "py", "task": "shop.export"}
    times = [
        {"eta": "", "expires": ""},
        {"eta": "2026-12-24T18:00:00+00:00", "expires": ""},
        {"eta": "2026-12-25T18:00:00+00:00"},
    ]
    for number, dates in enumerate(times):
        message(stage, "steps", b'{"steps": 1}', **{"sw-job-key": f"task-{number}"}, **celery, **dates)
        stage.reaches("steps", State.DONE, f"task-{number}")
    line = explained(process, "headers_not_obeyed", "steadyworker.headers-not-obeyed")
    assert (line["key"], line["headers"]) == ("task-1", ["eta"])
    assert len(process.lines("headers_not_obeyed")) == 1


# --- Another worker process ---------------------------------------------------------------------------------------------


def test_a_worker_process_that_was_killed(stage: Stage) -> None:
    stage.send("steps", {"gate": "gate"})
    first = stage.worker(f"{JOBS}:Steps")
    stage.notes("waiting", 1)
    first.kill()
    second = stage.worker(f"{JOBS}:Steps")
    explained(second, "taken_over", "steadyworker.taken-over")
    assert second.reports("job_started")["redelivered_because"] == "worker-killed"


def test_a_message_that_is_gone_when_its_worker_process_is_killed(stage: Stage) -> None:
    stage.send("steps", {"gate": "gate"})
    first = stage.worker(f"{JOBS}:Steps", script=QUICK | {"silence": 3})
    stage.notes("waiting", 1)
    first.kill()
    stage.lose("steps")
    second = stage.worker(f"{JOBS}:Steps", script=QUICK | {"silence": 3})
    explained(second, "message_lost", "steadyworker.message-lost", state="running", fate="runs")
    assert second.reports("job_started")["redelivered_because"] == "message-lost"


def test_a_worker_process_that_was_frozen(stage: Stage) -> None:
    stage.send("steps", {"gate": "gate", "at": 4})
    first = stage.worker(f"{JOBS}:Steps", script=QUICK | {"silence": 3})
    stage.notes("waiting", 1)
    first.signal_all(signal.SIGSTOP)
    second = stage.worker(f"{JOBS}:Steps", script=QUICK | {"silence": 3})
    second.reports("taken_over")
    assert second.reports("job_started")["redelivered_because"] == "worker-lost"
    first.signal_all(signal.SIGCONT)
    explained(first, "fenced", "steadyworker.fenced")


def test_a_worker_process_that_stood_still_and_goes_on(stage: Stage) -> None:
    stage.send("steps", {"steps": 1})
    process = stage.worker(f"{JOBS}:Steps").started()
    stage.reaches("steps", State.DONE)  # the main thread watches by now
    process.send_signal(signal.SIGSTOP)
    time.sleep(7)  # it must stand still for longer than the 5 s that count as late
    process.send_signal(signal.SIGCONT)
    explained(process, "watchdog_late", "steadyworker.watchdog-late")


def test_a_delivery_that_is_lost_and_comes_again(stage: Stage) -> None:
    """The broker gives this consumer's messages back; the run goes on, and adopts the redelivery."""
    stage.send("steps", {"gate": "gate"})
    process = stage.worker(f"{JOBS}:Steps")
    stage.notes("waiting", 1)
    stage.evict("steps")
    explained(process, "delivery_lost", "embedded.evicted")
    explained(process, "adopted", "steadyworker.redelivered", redelivered_because="connection-lost")
    stage.open()
    stage.reaches("steps", State.DONE)


# --- RabbitMQ takes a message back, or has one without a key ------------------------------------------------------------


class Place(Processes):
    """Worker processes on one virtual host, and a ledger in a file."""

    def __init__(self, folder: Path, vhost: Vhost) -> None:
        path = folder / "ledger.db"
        ledger = SqliteLedger(path, clock=SystemClock(), times=Times())
        url = f"{vhost.url}?management=off"
        super().__init__(folder, ledger, broker_url=url, ledger_url=f"sqlite:{path}")
        self.vhost = vhost

    def environment(self, **settings: Any) -> dict[str, str]:
        return super().environment(**{"delays": "1", "ledger_reach": "host"} | settings)


@pytest.fixture
def place(tmp_path: Path, vhost: Vhost) -> Iterator[Place]:
    made = Place(tmp_path, vhost)
    yield made
    made.close()


ON_3_10 = pytest.mark.parametrize("rabbitmq_series", ["3.10"], indirect=True)


@ON_3_10
def test_a_delivery_that_the_broker_takes_back(rabbitmq_node: Node, place: Place) -> None:
    rabbitmq_node.set_delivery_timeout(2)
    place.send("steps", {"gate": "gate"})
    process = place.worker(f"{JOBS}:Steps")
    place.notes("waiting", 1)
    line = explained(process, "delivery_lost", "amqp.delivery-timeout")
    assert line["cause"].startswith("a job ran longer than the delivery timeout")
    explained(process, "adopted", "steadyworker.redelivered", redelivered_because="delivery-timeout")
    place.open()
    place.reaches("steps", State.DONE)


@ON_3_10
def test_a_login_that_is_refused(place: Place) -> None:
    wrong = place.vhost.url.replace(place.vhost.url.split(":")[2].partition("@")[0], "wrong")
    process = place.command("run", f"{JOBS}:Steps", broker=wrong)
    process.ended(78)
    explained(process, "startup_refused", "rabbitmq.login-refused")


@ON_3_10
def test_a_message_without_a_key(place: Place) -> None:
    place.send("strict", {})
    process = place.worker("tests.diagnosis.own_jobs:Strict")
    place.reaches("strict", State.DONE)
    with closing(pika.BlockingConnection(pika.URLParameters(place.vhost.url))) as connection:
        channel = connection.channel()
        eventually(lambda: process.lines("worker_started"), "started")
        channel.confirm_delivery()
        channel.basic_publish("", "strict", b"{}", mandatory=True)
    explained(process, "delivery_rejected", "steadyworker.no-key")


# --- The worker process itself ------------------------------------------------------------------------------------------


def test_a_setup_that_raises(stage: Stage) -> None:
    process = stage.worker(f"{JOBS}:Slow", env={"SLOW": "raise"})
    explained(process, "setup_failed", "steadyworker.setup-failed")
    process.ended(70)
    explained(process, "worker_stopped", "steadyworker.exit-software")


def test_a_teardown_that_raises(stage: Stage) -> None:
    process = stage.worker(ODD).started()
    stage.send("odd", {"do": "nothing"})
    stage.reaches("odd", State.DONE)
    process.terminate()
    explained(process, "teardown_failed", "steadyworker.teardown-failed")


def test_a_listener_that_raises(stage: Stage) -> None:
    stage.send("odd", {"do": "nothing"})
    process = stage._started([sys.executable, "-m", "tests.diagnosis.own_jobs", "raises"], stage.environment())
    explained(process, "listener_silenced", "steadyworker.listener-silenced")


def test_a_thread_that_is_left_behind(stage: Stage) -> None:
    stage.send("loose", {})
    process = stage.command("run", "tests.diagnosis.own_jobs:Loose", "--max-jobs", "1")
    explained(process, "threads_left_behind", "steadyworker.threads-left")


def test_a_guard_that_dies(stage: Stage) -> None:
    process = stage.worker(f"{JOBS}:Steps").started()
    stage.send("steps", {"gate": "gate"})
    stage.notes("waiting", 1)
    process.program("slots.guard_process").kill()
    explained(process, "guard_replaced", "steadyworker.guard-replaced")


def test_a_part_that_stands_still(stage: Stage) -> None:
    process = stage.worker(f"{JOBS}:Steps", script={"hang": "ledger.claim", "turn_limit": 3}, stop_within=5).started()
    stage.send("steps", {})
    explained(process, "part_stuck", "steadyworker.part-stuck")


def test_a_job_that_must_be_killed_at_the_stop(stage: Stage) -> None:
    stage.send("deaf", {})
    process = stage.worker(f"{JOBS}:Deaf", stop_within=4)
    stage.notes("starts", 1)
    process.terminate()
    process.ended(143)
    explained(process, "worker_stopped", "steadyworker.exit-killed")


def test_a_broker_that_is_away_for_too_long(stage: Stage) -> None:
    stage.send("steps", {})
    with stage.locked(stage.broker):
        process = stage.command("run", f"{JOBS}:Steps", "--give-up-after", "1")
        process.ended(69)
    explained(process, "worker_stopped", "steadyworker.exit-unavailable")


@pytest.mark.slow
def test_a_broker_that_is_away_from_the_start(stage: Stage) -> None:
    with stage.locked(stage.broker):
        process = stage.command("run", f"{JOBS}:Steps", "--give-up-after", "4")
        process.ended(69)
    explained(process, "backend_unreachable", "embedded.locked")
    # The check only reads, and a locked file without tables is to it as good as none.
    explained(process, "check_warning", "check.broker-unreachable")


def test_a_process_that_has_grown_too_large(stage: Stage) -> None:
    process = stage.command("run", f"{JOBS}:Steps", "--max-rss", "1 MiB")
    process.ended(75)
    explained(process, "worker_stopped", "steadyworker.exit-too-large")


# --- Findings, whose lines have what and remedy themselves ---------------------------------------------------------------


def test_a_setting_that_cannot_be_read(stage: Stage) -> None:
    process = stage.command("run", f"{JOBS}:Steps", stop_within="soon")
    process.ended(78)
    explained(process, "startup_refused", "config.wrong-value")


def test_a_worker_that_does_not_exist(stage: Stage) -> None:
    process = stage._started([sys.executable, str(MAIN), f"{JOBS}:Steps", f"{JOBS}:Twin"], stage.environment())
    process.ended(78)
    explained(process, "startup_refused", "config.two-workers")


def test_a_broker_at_which_nothing_listens(stage: Stage) -> None:
    """The remedy is in the text of the error, and the line does not repeat it."""
    process = stage.command("run", f"{JOBS}:Steps", "--give-up-after", "1", broker="amqp://127.0.0.1:1/")
    process.ended(69)
    line = explained(process, "backend_unreachable", "network.connection-refused")
    assert "remedy" not in line
    assert "check that the broker is up" in line["error"]


def test_a_ledger_that_is_locked(stage: Stage) -> None:
    process = stage.worker(f"{JOBS}:Steps").started()
    with stage.locked(stage.ledger_path):
        message(stage, "steps", b"{}", **{"sw-job-key": "other"})
        line = explained(process, "not_ready", "ledger.unreachable")
    eventually(lambda: process.lines("ready_again"), "ready again")
    assert line["part"] == "steps: ledger"


# --- Programs as jobs -----------------------------------------------------------------------------------------------------


def program(stage: Stage, script: str) -> WorkerProcess:
    stage.send("work", {})
    return stage.command("exec", "--queue", "work", "--max-jobs", "1", "--time-limit", "60", "--", "sh", "-c", script)


def test_a_program_that_writes_too_much(stage: Stage) -> None:
    process = program(stage, "yes 0123456789 | head -c 10000000")
    explained(process, "output_left_out", "steadyworker.output-left-out")


def test_a_program_whose_report_is_of_no_known_form(stage: Stage) -> None:
    process = program(stage, "echo nonsense >&3")
    explained(process, "report_ignored", "steadyworker.report-ignored")
