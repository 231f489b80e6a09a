"""What `steadyworker show` prints of the end of a run, in each way in which a run can die; recorded by a real worker process."""

from __future__ import annotations

import re
import signal

import pytest
from click.testing import CliRunner

from steadyworker.cli import verbs
from steadyworker.ledger.base import State
from tests.support.stage import Stage, eventually

INDENT = " " * 17
FRAME = re.compile(r'(?: {2}File ".*/(tests/.*)", line \d+,? in (\w+))')


def story(stage: Stage, queue: str, key: str, *options: str) -> list[str]:
    """Return the lines that `show` prints of a job, without the times at their beginnings."""
    done = CliRunner().invoke(verbs, ["show", queue, key, *options], env=stage.environment())
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def ended(lines: list[str]) -> tuple[str, list[str]]:
    """Return the text of the entry of the last end, and the lines of the traceback below it."""
    (at,) = (number for number, line in enumerate(lines) if re.match(r".{17}run 1 (crashed|failed|lost)", line))
    below = lines[at + 1 :]
    traceback = [line for line in below if line.startswith(INDENT)]
    assert below[: len(traceback)] == traceback
    return lines[at][17:], [line[17:] for line in traceback]


def own_frames(traceback: list[str]) -> list[str]:
    """Return the functions of the tests' own files in a traceback, in its order."""
    return [found[2] for line in traceback if (found := FRAME.fullmatch(line.rstrip()))]


@pytest.mark.parametrize(
    ("worker", "queue", "do", "text", "first", "last", "functions"),
    [
        ("Dying", "dying", "kill_itself", r"crashed after .*: SIGKILL; peak memory [\d.]+ MiB", "", "", []),
        (
            *("Dying", "dying", "eat_memory", r"crashed after .*: memory-limit: .*; peak memory [\d.]+ MiB"),
            *(r"Current thread 0x[0-9a-f]+ \(most recent call first\):", "", ["eat_memory", "handle", "handle"]),
        ),
        (
            *("Dying", "dying", "segfault", r"crashed after .*: SIGSEGV; peak memory [\d.]+ MiB"),
            *("Fatal Python error: Segmentation fault", "", ["segfault", "handle", "handle"]),
        ),
        (
            *("DyingAsync", "dying-async", "", r"failed after .*: ValueError: boom; peak memory [\d.]+ MiB"),
            *(r"Traceback \(most recent call last\):", "ValueError: boom", ["handle", "far_away"]),
        ),
        (
            *("DyingThread", "dying-thread", "raises", r"failed after .*: ValueError: boom"),
            *(r"Traceback \(most recent call last\):", "ValueError: boom", ["handle", "raises"]),
        ),
    ],
    ids=["killed", "out of memory", "native crash", "async", "thread"],
)
def test_the_story_of_a_job_has_the_end_of_its_run(
    stage: Stage, worker: str, queue: str, do: str, text: str, first: str, last: str, functions: list[str]
) -> None:
    stage.send(queue, {"do": do})
    process = stage.worker(f"tests.service.dying:{worker}")
    stage.reaches(queue, State.DEAD)
    lines = story(stage, queue, "job")
    end, traceback = ended(lines)
    assert re.fullmatch(rf"run 1 {text}", end)
    assert re.fullmatch(first, "".join(traceback[:1]))
    assert own_frames(traceback) == functions
    assert traceback[-1:] == [last] or not last
    process.terminate()
    process.ended(0)


def test_a_run_whose_worker_process_is_killed_is_lost_and_the_next_one_says_so(stage: Stage) -> None:
    """No code runs after SIGKILL, so the next worker process records the end, without a traceback."""
    stage.send("dying", {"do": "sleep"})
    first = stage.worker("tests.service.dying:Dying")
    stage.notes("starts", 1)
    first.signal_all(signal.SIGKILL)
    stage.worker("tests.service.dying:Dying")
    stage.notes("starts", 2)
    eventually(lambda: any("run 2 began" in line for line in story(stage, "dying", "job")), "the second run")
    lines = story(stage, "dying", "job")
    end, traceback = ended(lines)
    assert re.fullmatch(r"run 1 lost after \d+ s", end)
    assert traceback == []
    assert any("run 2 began: taken over from a lost worker process; " in line for line in lines)
