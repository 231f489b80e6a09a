"""What the tests of both ledgers share: small worker processes, what they are asked for, and what they report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from steadyworker.ledger.base import Ending, JobId, Ledger, State
from steadyworker.testing.conformance.ledger_attempts import begun
from steadyworker.testing.conformance.ledger_fixtures import DEAD_END

JOB = JobId("shop", "exports", "m-17")
"""The job of which the actors race for the row."""

ROOT = Path(__file__).parents[2]

Actor = Callable[..., "subprocess.Popen[str]"]


def started(temporary: Path, part: str, *arguments: object) -> subprocess.Popen[str]:
    """Start an actor that plays this part, with a folder for its temporary files."""
    command = [sys.executable, str(Path(__file__).with_name("actors.py")), part, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line that this actor writes."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def request(process: subprocess.Popen[str], words: str) -> None:
    """Send this actor a line."""
    assert process.stdin is not None
    process.stdin.write(f"{words}\n")
    process.stdin.flush()


def one_wins_each_time(actor: Actor, place: object, ledger: Ledger) -> None:
    """Let two processes race for a row: each version of it is claimed once at most, and the versions make one line."""
    racers = [actor("race", place, name) for name in ("a", "b")]
    assert [line(racer) for racer in racers] == ["ready", "ready"]
    wins: list[list[tuple[int, int]]] = []
    for racer in racers:
        request(racer, "go")
    for racer in racers:
        out, _ = racer.communicate(timeout=100)
        assert racer.returncode == 0
        wins.append([(int(seen), int(won)) for seen, won in map(str.split, out.splitlines())])
    assert all(wins), "both won some"
    versions = sorted(wins[0] + wins[1])
    assert [seen for seen, _ in versions] == [0, *(won for _, won in versions[:-1])]
    row = ledger.read(JOB)
    assert row is not None
    assert row.fence == versions[-1][1]


SECRET_CHECKPOINT = b'{"to":"amqp://user:canary-secret@host/"}'
SAFE_CHECKPOINT = b'{"to":"amqp://user:***@host/"}'
"""What an attempt keeps of it."""


def leave_a_checkpoint(ledger: Ledger, value: bytes) -> None:
    """Let a job die with this checkpoint, and begin its next round."""
    first = begun(ledger)
    assert ledger.checkpoint(first.token, value)
    assert ledger.moving(first.token, DEAD_END, Ending("failed", checkpoint=value))
    assert ledger.moved(first.token)
    begun(ledger, replace(JOB, round=1))


class Commits:
    """What actors that live job after job have reported as committed, until each of them was killed."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[State, int]] = {}

    @property
    def highest(self) -> int:
        """The highest fence of all."""
        return max(fence for _, fence in self._latest.values())

    def read(self, process: subprocess.Popen[str], lines: int) -> None:
        """Read so many reports of an actor."""
        for _ in range(lines):
            self._note(line(process))

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill an actor, and read what it has reported before its death."""
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        for words in process.stdout:  # `communicate` would begin behind what `readline` has read, within a line
            self._note(words)
        process.wait(30)

    def are_in(self, ledger: Ledger) -> None:
        """Assert that the ledger has each of them, or what came after it."""
        order = list(State)
        for key, (state, fence) in self._latest.items():
            row = ledger.read(replace(JOB, key=key))
            assert row is not None
            assert order.index(row.state) >= order.index(state)
            assert row.fence >= fence

    def _note(self, words: str) -> None:
        key, state, fence = words.split()
        self._latest[key] = (State(state), int(fence))
