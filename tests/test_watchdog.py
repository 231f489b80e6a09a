"""Which part is stuck, from evidence, on a clock that the test moves."""

from __future__ import annotations

import logging

import pytest

from steadyworker.service.watchdog import Part, Watchdog
from steadyworker.testing.clock import FakeClock


class Turns:
    """Evidence that a test writes."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.at: float | None = clock.monotonic()

    def turn(self) -> None:
        self.at = self._clock.monotonic()

    def __call__(self) -> float | None:
        return self.at


class House:
    """A watchdog over two parts (10 s and 20 s), called every second."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.io, self.child = Turns(self.clock), Turns(self.clock)
        parts = [Part("io", self.io, 10), Part("child", self.child, 20)]
        self.watchdog = Watchdog(self.clock, parts)

    def seconds(self, count: int, *turning: Turns) -> list[tuple[str, ...]]:
        said = []
        for _ in range(count):
            self.clock.advance(1)
            for part in turning:
                part.turn()
            self.watchdog.check()
            said.append(self.watchdog.stuck)
        return said


def test_parts_that_turn_are_not_stuck() -> None:
    house = House()
    assert set(house.seconds(100, house.io, house.child)) == {()}


def test_each_part_is_stuck_after_its_own_limit_by_name() -> None:
    house = House()
    said = house.seconds(11, house.child)
    assert said[9] == ()
    assert said[10] == ("io",)
    assert house.seconds(10)[-1] == ("io",)
    assert house.seconds(11)[-1] == ("io", "child")


def test_a_part_without_a_reason_to_turn_is_not_stuck() -> None:
    """A broker that is down, a slot without a job."""
    house = House()
    house.io.at = None
    assert set(house.seconds(60, house.child)) == {()}


def test_a_process_that_stood_still_does_not_blame_its_parts(caplog: pytest.LogCaptureFixture) -> None:
    """After SIGCONT every part gets its limit again; one that then stays silent is stuck."""
    house = House()
    house.clock.advance(300)
    with caplog.at_level(logging.INFO, "steadyworker.service.watchdog"):
        house.watchdog.check()
        assert house.watchdog.stuck == ()
    assert [(record.message, vars(record)["late_s"]) for record in caplog.records] == [("watchdog_late", 299)]
    assert house.seconds(10, house.child)[-1] == ()
    assert house.seconds(1, house.child) == [("io",)]


def test_getting_stuck_and_recovering_are_logged_once_by_name(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    with caplog.at_level(logging.INFO, "steadyworker.service.watchdog"):
        house.seconds(15, house.child)
        house.seconds(3, house.child, house.io)
    assert [(record.message, vars(record)["part"]) for record in caplog.records] == [
        ("part_stuck", "io"),
        ("part_recovered", "io"),
    ]
    assert vars(caplog.records[0])["silent_s"] == 11.0


def test_the_verdict_is_there_before_its_line_is_written() -> None:
    """A logging handler of the user's can hang; the probes read the verdict meanwhile."""
    house = House()
    seen: list[tuple[str, ...]] = []

    class Reads(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(house.watchdog.stuck)

    handler, log = Reads(), logging.getLogger("steadyworker.service.watchdog")
    log.addHandler(handler)
    try:
        house.seconds(11, house.child)
    finally:
        log.removeHandler(handler)
    assert seen == [("io",)]
