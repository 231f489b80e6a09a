"""What a child prints: each line is a line of the log, with the key of its job, and no print harms anything."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from steadyworker.outcome import Crashed, Done, Failed
from steadyworker.slots.base import Progressed, Ready
from steadyworker.telemetry.output_log import BURST
from tests.slots.conftest import MakeRig, Read
from tests.slots.kit import Rig


@pytest.fixture
def printing(rig: MakeRig) -> Rig:
    return rig("Printing", module="tests.slots.printing")


def test_every_way_to_print_is_a_line_with_the_key_of_its_job(printing: Rig, printed: Read) -> None:
    printing.start()
    assert printing.ended("everything").outcome == Done()
    lines = printed()
    assert lines[:2] == [(None, "stdout", "imported"), (None, "stdout", "set up")]
    assert [line for key, stream, line in lines if (key, stream) == ("k", "stdout")] == [
        "from print",
        "from write(1)",
        "from the C library",
        "from a subprocess",
        "\x1b[31mred\x1b[0m, 50 %",
        "100 %",
        "not \\xff UTF-8",
        "postgresql://shop:***@db",
        "half a line",
    ]
    assert [line for key, stream, line in lines if (key, stream) == ("k", "stderr")] == ["from stderr", "its error"]
    assert len(lines) == 2 + 9 + 2
    printing.slot.close(20)
    assert printed() == [(None, "stdout", "torn down")]


def test_a_job_that_prints_nothing_has_no_line_of_the_job_before(printing: Rig, printed: Read) -> None:
    printing.start()
    printed()
    printing.ended("everything")
    assert len(printed()) == 11
    printing.ended("nothing")
    assert printed() == []


def test_of_a_hundred_megabytes_each_line_is_logged_or_counted(
    printing: Rig, printed: Read, caplog: pytest.LogCaptureFixture
) -> None:
    printing.start()
    printed()
    assert printing.ended("much").outcome == Done()
    reports: list[Any] = [record.msg for record in caplog.records if record.msg["event"] == "output_left_out"]  # type: ignore[index]
    lines = [line for _, _, line in printed()]
    assert len(lines) + sum(report["lines"] for report in reports) == 100_000
    assert BURST // 1000 <= len(lines) < 2 * BURST // 1000
    assert [line[:9] for line in lines[-20:]] == [f"{number:09d}" for number in range(99_980, 100_000)]
    assert {report["key"] for report in reports} == {"k"}


@pytest.mark.parametrize(
    ("do", "cause", "last"),
    [
        ("half_then_die", "SIGABRT", ["a whole line", "half a li\nFatal Python error: Aborted"]),
        ("corrupt", "SIGABRT", ["double free", "Fatal Python error: Aborted"]),
        ("fatal", "SIGABRT", ["Fatal Python error: ", "what a C extension found", 'printing.py", line ']),
    ],
)
def test_the_last_words_of_a_child_that_dies_arrive_with_the_key(
    printing: Rig, printed: Read, do: str, cause: str, last: list[str]
) -> None:
    printing.start()
    printed()
    assert printing.ended(do).outcome == Crashed(cause)
    lines = printed()
    assert {(key, stream) for key, stream, _ in lines} == {("k", "stderr")}
    text = "\n".join(line for _, _, line in lines)
    assert [each for each in last if each not in text] == []
    printing.next(Ready)
    assert printing.ended("nothing").outcome == Done()


def test_the_half_line_of_a_killed_child_arrives(rig: MakeRig, printed: Read) -> None:
    slot = rig("HalfLine", module="tests.slots.printing").start()
    printed()
    fence = slot.begin("nothing")
    slot.next(Progressed)
    slot.slot.kill(fence, Failed("time-limit"))
    assert slot.ended_of(fence).outcome == Failed("time-limit")
    assert printed() == [("k", "stdout", "whole"), ("k", "stdout", "half")]


def test_a_daemon_that_keeps_the_pipes_open_delays_no_end(printing: Rig, printed: Read) -> None:
    printing.start()
    fence = printing.begin("leave_printer")
    pid = int(printing.next(Progressed).done or 0)
    assert printing.ended_of(fence).outcome == Done()
    try:
        printing.slot.close(20)
        assert (None, "stdout", "torn down") in printed()
    finally:
        os.kill(pid, signal.SIGKILL)
