"""The log of a program's output: by line, and never more than a log should hold."""

from __future__ import annotations

from typing import Any

from steadyworker.telemetry.output_log import BURST, LONGEST_LINE, RATE, OutputLog
from steadyworker.testing.clock import FakeClock


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.entries.append((event, fields))

    warning = info

    def lines(self) -> list[str]:
        return [fields["line"] for event, fields in self.entries if event == "output"]


def opened() -> tuple[OutputLog, Lines, FakeClock]:
    log, clock = Lines(), FakeClock()
    return OutputLog(log, clock), log, clock


def test_each_line_is_a_line_of_the_log_with_its_stream_and_without_passwords() -> None:
    output, log, _ = opened()
    output.lines("stdout", [b"rows: 17"])
    output.lines("stderr", [b"connecting to postgresql://shop:hunter2@db"])
    output.lines("stderr", [b"  "])
    assert log.entries[0] == ("output", {"stream": "stdout", "line": "rows: 17"})
    assert log.entries[1][1]["line"] == "connecting to postgresql://shop:***@db"
    assert len(log.entries) == 2
    assert output.last == b"connecting to postgresql://shop:hunter2@db"


def test_a_program_that_writes_without_end_fills_no_log() -> None:
    """100 MB: the first 256 KiB and the last 20 lines are logged, and the number of the others."""
    output, log, _ = opened()
    line = b"x" * 1000
    for number in range(100_000):
        output.lines("stdout", [b"%d %s" % (number, line)])
    output.close()
    shown = log.lines()
    assert sum(map(len, shown)) < BURST + 21 * 1100
    assert shown[-1].startswith("99999 ")
    ((_, left_out),) = [entry for entry in log.entries if entry[0] == "output_left_out"]
    assert left_out["lines"] + len(shown) == 100_000


def test_a_program_that_writes_little_for_hours_is_logged_whole() -> None:
    output, log, clock = opened()
    line = b"x" * RATE
    for _ in range(3600):
        output.lines("stdout", [line[:LONGEST_LINE]])
        clock.advance(1)
    output.close()
    assert len(log.lines()) == 3600
    assert not [entry for entry in log.entries if entry[0] == "output_left_out"]


def test_what_is_left_out_is_counted_before_the_next_line() -> None:
    output, log, clock = opened()
    for _ in range(BURST // 1000 + 10):
        output.lines("stdout", [b"x" * 1000])
    clock.advance(5)
    output.lines("stdout", [b"too early"])
    clock.advance(11)
    output.lines("stdout", [b"again"])
    assert [entry[0] for entry in log.entries[-2:]] == ["output_left_out", "output"]
    assert log.entries[-2][1]["lines"] == 11
