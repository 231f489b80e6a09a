"""Standard error is a pipe whose reader stands still: the jobs, the probes and the stop go on, and lost lines are counted."""

from __future__ import annotations

import json
import os
import pty
import termios
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest

from steadyworker.ledger.base import State
from tests.support.probes import free_address, probe, ready
from tests.support.stage import Stage, eventually

JOBS = "tests.support.jobs"


class Unread:
    """A pipe whose reader stands still until the test lets it read."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.text = b""
        self._thread = Thread(target=self._read, daemon=True)

    def fill(self) -> None:
        """Fill the pipe to its last byte; the worker process shares this end, so its mode is put back."""
        os.set_blocking(self.writer, False)
        for piece in (b"\n" * 4096, b"\n"):
            with suppress(BlockingIOError):
                while True:
                    os.write(self.writer, piece)
        os.set_blocking(self.writer, True)

    def read(self) -> None:
        """Let the reader return."""
        self._thread.start()

    def _read(self) -> None:
        while data := os.read(self.reader, 1 << 16):
            self.text += data

    def lines(self) -> list[dict[str, Any]]:
        """The whole lines that were read, without those of `fill`."""
        found = [line for line in self.text.split(b"\n")[:-1] if line.strip()]
        return [json.loads(line) for line in found]

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == event]

    def close(self) -> None:
        for end in (self.writer, self.reader):
            with suppress(OSError):
                os.close(end)


@pytest.fixture
def unread() -> Iterator[Unread]:
    pipe = Unread()
    yield pipe
    pipe.close()


def test_jobs_probes_and_the_stop_go_on_while_nobody_reads(stage: Stage, unread: Unread) -> None:
    health = free_address()
    stage.send("steps", {"gate": "gate", "steps": 3, "fail": 1})
    process = stage.worker(f"{JOBS}:Steps", health=health, output=unread.writer, stop_within=10)
    stage.notes("waiting", 1)
    unread.fill()
    stage.open()
    assert stage.reaches("steps", State.DONE).counters.attempts == 1, "a failed run, its traceback, a retry, a done run"
    assert stage.lines("starts") == ["job 1 0", "job 2 1"]
    stage.send("steps", {"steps": 2}, key="second")
    stage.reaches("steps", State.DONE, key="second")
    ready(health)
    assert probe(health, "livez") == (200, "ok\n")
    process.terminate()
    assert process.ended(0) < 10
    assert stage.ledger.owners() == [], "it is not unregistered"


def test_lines_for_which_there_is_no_room_are_counted_and_the_count_is_read_first(stage: Stage, unread: Unread) -> None:
    """The handler's process logs more than its backlog holds; each of its lines is read or counted."""
    health = free_address()
    stage.send("talkative", {"lines": 2000, "bytes": 3500, "gate": "gate"})
    process = stage.worker(f"{JOBS}:Talkative", health=health, output=unread.writer, stop_within=10)
    stage.notes("waiting", 1)
    unread.fill()
    stage.open()
    stage.reaches("talkative", State.DONE)
    ready(health)
    assert os.get_blocking(unread.writer), "the mode of a pipe that others share is left alone"
    unread.read()
    eventually(lambda: unread.events("log_lines_lost"), "the count")
    (lost,) = unread.events("log_lines_lost")
    process.terminate()
    process.ended(0)
    spoken = unread.events("spoken")
    assert lost["lines"] + len(spoken) == 2000
    assert lost["explain"] == "steadyworker.log-lines-lost"
    assert [line["number"] for line in spoken] == list(range(len(spoken))), "the oldest are kept, in their order"
    assert 1000 < len(spoken) < 1200, "4 MiB of 3.5 kB"
    before = unread.lines()[: unread.lines().index(lost)]
    assert len([line for line in before if line["event"] == "spoken"]) <= 1, "at most the line that was under way"
    assert unread.events("worker_stopped"), "and what comes later is read as ever"


def test_a_terminal_that_is_held_holds_nothing(stage: Stage) -> None:
    """Ctrl-S: the terminal's own end is stopped."""
    master, slave = pty.openpty()
    termios.tcflow(slave, termios.TCOOFF)
    stage.send("steps", {"steps": 2})
    process = stage.worker(f"{JOBS}:Steps", output=slave, stop_within=10)
    stage.reaches("steps", State.DONE)
    process.terminate()
    process.ended(0)
    for end in (master, slave):
        os.close(end)


def test_a_stop_is_in_time_although_a_logging_handler_of_the_user_hangs(stage: Stage, unread: Unread) -> None:
    """Its plain write holds each thread that logs: the runner first, and the main thread when the stop begins."""
    health = free_address()
    script = {"turn_limit": 3}
    process = stage.worker(
        f"{JOBS}:Steps",
        script=script,
        output=unread.writer,
        env={"OWN_HANDLER": "1"},
        health=health,
        stop_within=5,
    )
    ready(health)
    unread.fill()
    stage.send("steps", {"steps": 1})
    eventually(lambda: "stuck: runner of steps\n" in probe(health, "livez")[1], "unlive")
    process.terminate()
    assert process.ended(143) < 5 + 1 + 5


def test_what_python_prints_by_itself_is_a_line(stage: Stage) -> None:
    """A thread that dies, a destructor that raises, and a warning: none of them is a plain write."""
    stage.send("python-prints", {})
    process = stage.worker(f"{JOBS}:PythonPrints")
    stage.reaches("python-prints", State.DONE)
    assert process.reports("thread_failed", thread_name="own")["exception"].endswith("ValueError: password=***")
    assert process.reports("exception_ignored", where="function")["exception"].endswith("ValueError: in a destructor")
    lines = process.log.read_text().splitlines()
    (warned,) = [line for line in lines if '"logger":"py.warnings"' in line]
    assert "a warning of a library" in warned
    assert [line for line in lines if not line.startswith("{")] == []
