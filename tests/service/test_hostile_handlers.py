"""The worst that handlers do, through one whole worker process that outlives them all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from steadyworker.ledger.base import State
from steadyworker.ledger.lease import QUIET
from steadyworker.outcome import Counters
from tests.support.probes import free_address, probe, ready
from tests.support.stage import Stage, WorkerProcess, eventually

JOBS = "tests.support.jobs"
SOON = 5.0
"""Seconds: five times the second within which the next message has to start."""


@dataclass(frozen=True)
class House:
    """One worker process for the whole module, as it was after its start."""

    stage: Stage
    process: WorkerProcess
    health: str


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    stage, health = Stage(tmp_path_factory.mktemp("hostile")), free_address()
    process = stage.worker(f"{JOBS}:Hostile", f"{JOBS}:HostileAsync", f"{JOBS}:Hungry", health=health).started()
    ready(health)
    yield House(stage, process, health)
    process.terminate()
    process.ended(0)
    stage.close()


FAILED, CRASHED = Counters(attempts=1), Counters(crashes=1)
ENDINGS = [
    # do, counter, the dead letter's reason and the error's text; None: it is done
    ("hold_gil", FAILED, "exhausted", "time-limit"),
    ("hang_in_c", FAILED, "exhausted", "time-limit"),
    ("deaf", FAILED, "exhausted", "time-limit"),
    ("swallows", FAILED, "exhausted", "time-limit"),
    ("segfault", CRASHED, "crash-loop: SIGSEGV", ""),
    ("kill_itself", CRASHED, "crash-loop: SIGKILL", ""),
    ("leave_silently", CRASHED, "crash-loop: exit 0", ""),
    ("babble", CRASHED, "crash-loop: the child wrote invalid bytes to its socket", ""),
    ("system_exit", FAILED, "exhausted", "3"),
    ("keyboard_interrupt", FAILED, "exhausted", "KeyboardInterrupt"),
    ("generator", FAILED, "exhausted", "nothing ran: handle returned a generator"),
    ("awaitable", FAILED, "exhausted", "nothing ran: handle returned a coroutine"),
    ("fork_and_return", Counters(), None, ""),
    ("fork_and_raise", Counters(), None, ""),
    ("print_much", Counters(), None, ""),
]


@pytest.mark.parametrize(("do", "counters", "reason", "text"), ENDINGS, ids=[ending[0] for ending in ENDINGS])
def test_a_hostile_handler_ends_as_promised_and_the_next_starts_at_once(
    house: House, do: str, counters: Counters, reason: str | None, text: str
) -> None:
    ends(house, "hostile", do, counters, reason, text)


def test_an_async_handler_that_blocks_its_loop_is_killed(house: House) -> None:
    ends(house, "hostile-async", "block", FAILED, "exhausted", "time-limit")


def test_a_handler_that_eats_memory_is_killed(house: House) -> None:
    ends(house, "hungry", "eat_memory", CRASHED, "crash-loop: memory-limit: ", "")


def ends(house: House, queue: str, do: str, counters: Counters, reason: str | None, text: str) -> None:
    stage = house.stage
    stage.send(queue, {"do": do}, key=do)
    stage.send(queue, {"do": "nothing"}, key=f"after-{do}")
    row = stage.reaches(queue, State.DONE if reason is None else State.DEAD, do)
    ended = time.monotonic()
    eventually(lambda: f"after-{do} 1 0" in stage.lines("starts"), "the next message starts")
    assert time.monotonic() - ended < SOON
    first_failed = row.counters.first_failed_at
    assert row.counters == Counters(counters.attempts, counters.crashes, first_failed_at=first_failed)
    assert row.reason.startswith(reason or "")
    assert text in row.error_text
    stage.reaches(queue, State.DONE, f"after-{do}")
    assert stage.lines("starts").count(f"{do} 1 0") == 1
    assert house.process.poll() is None, "the worker process lives"


def test_probes_are_answered_while_a_handler_holds_the_gil(house: House) -> None:
    house.stage.send("hostile", {"do": "hold_gil"}, key="probed")
    eventually(lambda: "probed 1 0" in house.stage.lines("starts"), "it runs")
    answers = []
    while house.stage.row("hostile", "probed").state is State.RUNNING:  # type: ignore[union-attr]
        answers.append((probe(house.health, "livez")[0], probe(house.health, "readyz")[0]))
        time.sleep(0.05)
    assert set(answers) == {(200, 200)}
    assert house.stage.reaches("hostile", State.DEAD, "probed").error_text == "time-limit"


class TestSetup:
    """What `setup` does is not the job's fault: nothing is claimed, and three failures in a row are an exit code."""

    @pytest.mark.parametrize(
        ("how", "shown"),
        [
            ("raise", "setup raised ValueError: no database"),
            ("exit", "setup raised SystemExit: 1"),
            ("die", "the child died before it was ready: SIGKILL"),
            ("hang", "setup took more than 3 s"),
        ],
    )
    def test_three_failures_in_a_row_end_the_worker_process(self, stage: Stage, how: str, shown: str) -> None:
        health, script = free_address(), {"setup_limit": 3} if how == "hang" else {}
        stage.send("slow", {})
        process = stage.worker(f"{JOBS}:Slow", env={"SLOW": how}, script=script, health=health)
        (owner,) = eventually(stage.ledger.owners, "registered", report=process.log_end)
        assert [name.removesuffix(QUIET) != name for name in owner.queues] == [True], "it is no consumer"
        eventually(lambda: shown in probe(health, "readyz")[1], "not ready", report=process.log_end)
        process.ended(70)
        assert f"setup failed 3 times in a row: {shown}" in process.reports("stage_changed", stage="draining")["reason"]
        assert stage.row("slow") is None
        assert stage.ledger.owners() == []
        assert stage.ready("slow") == 1
        assert stage.lines("starts") == []
