"""How a worker process is seen from outside, over real sockets: `/livez`, `/readyz`, and systemd's notify protocol."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.ledger.base import State
from tests.support.probes import Manager, free_address, probe, ready
from tests.support.stage import Stage, eventually

STEPS = "tests.support.jobs:Steps"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path)
    yield made
    made.close()


def watched(manager: Manager) -> dict[str, str]:
    """What systemd gives to a unit with Type=notify and WatchdogSec=2."""
    return {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "2000000"}


def test_a_life_is_reported_to_systemd(stage: Stage, manager: Manager) -> None:
    stage.send("steps", {"gate": "gate", "steps": 1})
    process = stage.worker(STEPS, env=watched(manager))
    stage.notes("waiting", 1)
    eventually(lambda: manager.read().count("WATCHDOG=1") >= 3, "it is fed while a job runs")
    assert manager.received[0] == "READY=1"
    eventually(lambda: "STATUS=running, 1 running" in manager.read(), "its status")
    assert "STOPPING=1" not in manager.received
    process.terminate()
    eventually(lambda: "STOPPING=1" in manager.read(), "reported when the stop begins, not when it ends")
    manager.forget()
    eventually(lambda: "WATCHDOG=1" in manager.read(), "it is fed while it drains")
    extended = "more time for the stop"
    eventually(lambda: any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in manager.read()), extended)
    stage.open()
    process.ended(0)
    assert "STOPPING=1" not in manager.read(), "once"


def test_a_stuck_runner_starves_the_watchdog_and_fails_livez(stage: Stage, manager: Manager) -> None:
    """The ledger's call hangs for ever, in the runner's thread: the part is named, and the stop holds its budget all the same."""
    health = free_address()
    process = stage.worker(
        STEPS, script={"hang": "ledger.claim", "turn_limit": 3}, env=watched(manager), health=health, stop_within=5
    )
    ready(health)
    stage.send("steps", {})
    # A turn of the I/O thread writes to the disk, and can take as long on a busy machine; it ends, and the ledger's does not.
    eventually(lambda: probe(health, "livez") == (503, "stuck: runner of steps\n"), "unlive")
    process.reports("part_stuck", part="runner of steps")
    eventually(lambda: process.reports("stage_changed")["stage"] == "quiet", "a stuck part makes the process quiet")
    manager.forget()
    time.sleep(2.5)  # nothing is what is waited for
    assert "WATCHDOG=1" not in manager.read()
    process.terminate()
    assert process.ended(143) < 6


def test_a_broker_that_is_down_makes_a_process_unready_not_unlive(stage: Stage, manager: Manager) -> None:
    """A unit starts while its broker is down."""
    health = free_address()
    stage.send("steps", {"steps": 1})
    with stage.locked(stage.broker):
        process = stage.worker(STEPS, env=watched(manager), health=health)
        eventually(lambda: "READY=1" in manager.read(), "ready for systemd")
        eventually(lambda: "steps: broker: " in probe(health, "readyz")[1], "not ready")
        eventually(lambda: "locked" in probe(health, "readyz")[1], "with its reason")
        assert probe(health, "readyz")[0] == 503
        assert probe(health, "livez")[0] == 200
        eventually(lambda: "WATCHDOG=1" in manager.read(), "fed")
    eventually(lambda: probe(health, "readyz")[0] == 200, "ready by itself")
    stage.notes("starts", 1)
    process.terminate()
    process.ended(0)


def test_a_broker_that_is_frozen_keeps_no_signal_and_no_watchdog_waiting(stage: Stage, manager: Manager) -> None:
    """It accepts connections and sends nothing; each try waits 20 s, for every address of the broker."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        url = f"amqp://shop:x@127.0.0.1:{frozen.getsockname()[1]}/shop?management=off"
        process = stage.worker(STEPS, env=watched(manager), broker=url, ledger_reach="host")
        frozen.settimeout(30)
        connection, _ = frozen.accept()
        with connection:
            manager.forget()
            eventually(lambda: manager.read().count("WATCHDOG=1") >= 3, "it is fed while the process connects", 15)
            assert not process.lines("check_warning"), "it still tries for the first time"
            process.terminate()
            assert process.ended(0) < 5


@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_a_job_that_holds_the_gil_is_no_reason_to_restart_the_process(
    stage: Stage, manager: Manager, seconds: int
) -> None:
    """It holds the GIL of its child; the process itself reports to systemd (each 2 s at least), and answers each probe."""
    health = free_address()
    stage.send("greedy", {"seconds": seconds}, key="greedy")
    process = stage.worker("tests.support.jobs:Greedy", env=watched(manager), health=health)
    stage.notes("starts", 1)
    until = time.monotonic() + seconds - 1
    while time.monotonic() < until:
        manager.forget()
        assert probe(health, "livez")[0] == 200
        eventually(lambda: "WATCHDOG=1" in manager.read(), "fed", 2)
    assert stage.reaches("greedy", State.DONE, "greedy", seconds + 30).counters.crashes == 0
    process.terminate()
    process.ended(0)


def test_a_ledger_that_is_down_makes_a_process_unready_not_unlive(stage: Stage, manager: Manager) -> None:
    """The job that runs goes on, and is settled when the ledger is there again."""
    health = free_address()
    stage.send("steps", {"gate": "gate", "steps": 1})
    process = stage.worker(STEPS, env=watched(manager), health=health)
    stage.notes("waiting", 1)
    with stage.locked(stage.ledger_path):
        stage.open()
        eventually(lambda: "steps: ledger: " in probe(health, "readyz")[1], "not ready")
        assert probe(health, "livez")[0] == 200
        manager.forget()
        eventually(lambda: "WATCHDOG=1" in manager.read(), "fed")
    stage.reaches("steps", State.DONE)
    assert len(stage.lines("starts")) == 1
    eventually(lambda: probe(health, "readyz")[0] == 200, "ready by itself")
    process.terminate()
    process.ended(0)


def test_a_child_that_is_frozen_is_found_and_replaced_while_the_process_lives(stage: Stage) -> None:
    """By the time limit of its job (2 s); the next job runs in a new child."""
    health = free_address()
    process = stage.worker("tests.support.jobs:Hostile", health=health)
    ready(health)
    child = process.program("slots.child")
    stage.send("hostile", {"do": "until_checked"}, key="frozen")
    stage.notes("starts", 1)
    child.suspend()
    assert stage.reaches("hostile", State.DEAD, "frozen").reason == "exhausted"
    assert probe(health, "livez")[0] == 200
    stage.send("hostile", {"do": "nothing"}, key="next")
    stage.reaches("hostile", State.DONE, "next")
    assert process.program("slots.child").pid != child.pid
    process.terminate()
    process.ended(0)


def test_a_stage_is_a_reason_to_be_unready(stage: Stage) -> None:
    health = free_address()
    stage.send("steps", {"gate": "gate", "steps": 1})
    process = stage.worker(STEPS, health=health)
    stage.notes("waiting", 1)
    eventually(lambda: probe(health, "readyz") == (200, "ok\n"), "ready")
    process.terminate()
    eventually(lambda: probe(health, "readyz") == (503, "steps: stage: draining\n"), "unready")
    assert probe(health, "livez")[0] == 200
    stage.open()
    process.ended(0)


def test_a_duplicate_of_a_job_that_is_done_is_counted_with_the_run_that_did_it(stage: Stage) -> None:
    """The metric's exemplar is the fence of the run that did the job."""
    health = free_address()
    process = stage.worker(STEPS, health=health)
    stage.send("steps", {"steps": 1}, key="twice")
    fence = process.reports("job_settled")["fence"]
    stage.send("steps", {"steps": 1}, key="twice")
    assert process.reports("duplicate_acked")["fence"] == fence
    line = 'steadyworker_deliveries_unrun_total{action="duplicate_acked",queue="steps",state="done"} 1.0'
    eventually(lambda: line in probe(health, "metrics")[1], "counted", report=lambda: str(probe(health, "metrics")))
    process.terminate()


def test_a_worker_process_serves_what_it_does(stage: Stage) -> None:
    health = free_address()
    process = stage.command("run", "tests.support.jobs:Steps", health=health)
    ready(health)
    stage.send("steps", {"gate": "gate", "steps": 1})
    stage.notes("waiting", 1)

    def page() -> str:
        return probe(health, "metrics")[1]

    eventually(lambda: 'steadyworker_jobs_running{queue="steps"} 1.0' in page(), "one run", report=page)
    now = page()
    for line in ('steadyworker_connection_up{queue="steps"} 1.0', "steadyworker_ready 1.0", "steadyworker_alive 1.0"):
        assert line in now.splitlines()
    assert re.search(
        r'^steadyworker_ledger_call_duration_seconds_count{call="claim",failed="false"} 1\.0$', now, re.MULTILINE
    )
    (oldest,) = re.findall(r'^steadyworker_job_oldest_run_seconds{queue="steps"} (\S+)$', now, re.MULTILINE)
    assert float(oldest) > 0
    stage.open()
    done = 'steadyworker_jobs_settled_total{outcome="done",queue="steps",settlement="ack"} 1.0'
    eventually(lambda: done in page(), "settled", report=page)
    process.terminate()
    process.ended(0)


def test_of_two_worker_processes_one_measures_what_waits(stage: Stage) -> None:
    """The ledger has the numbers for every screen, and one process has them as metrics."""
    addresses = [free_address(), free_address()]
    processes = [stage.worker(STEPS, health=health) for health in addresses]
    for health in addresses:
        ready(health)
    for number in range(5):
        stage.send("steps", {"gate": "gate", "steps": 1}, key=f"k-{number}")

    def pages() -> str:
        return "".join(probe(health, "metrics")[1] for health in addresses)

    unacked = 'steadyworker_queue_messages{queue="steps",state="unacked"} 2.0'
    eventually(lambda: unacked in pages(), "two of them run", within=40, report=pages)
    assert pages().count('steadyworker_queue_messages{queue="steps",state="ready"} 3.0') == 1
    (measured,) = eventually(stage.ledger.facts.depths, "the record")
    assert (measured.queue, measured.depth.ready, measured.depth.unacked, measured.depth.consumers) == (
        "steps",
        3,
        2,
        2,
    )
    stage.open()
    for process in processes:
        process.terminate()
        process.ended(0)
