"""A slot that falls rests before it begins again, longer each time in a row; only its setup's failures end the process."""

from __future__ import annotations

from steadyworker.runner.slot_health import Standings
from steadyworker.slots.base import Unready
from steadyworker.slots.child_state import STEADY
from steadyworker.testing.clock import FakeClock

BROKEN = Unready(0, "setup raised ValueError: no database")
FALLEN = Unready(0, "the child died just after its setup: SIGKILL", stood=True)


def test_each_fall_in_a_row_doubles_the_rest_up_to_thirty_seconds() -> None:
    standings = Standings(FakeClock())
    assert [standings.unready(BROKEN) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert standings.setup_failures == 7


def test_a_child_that_dies_idle_again_and_again_rests_longer_though_its_setup_returns() -> None:
    """It would be started twice a second for ever; but the process does not end, for other slots may have jobs."""
    standings, rests = Standings(FakeClock()), []
    for _ in range(4):
        standings.ready(0)
        rests.append(standings.unready(FALLEN))
    assert rests == [1, 2, 4, 8]
    assert standings.setup_failures == 0
    assert standings.causes == {0: FALLEN.reason}


def test_a_setup_that_returns_ends_the_row_of_its_failures() -> None:
    standings = Standings(FakeClock())
    standings.unready(BROKEN)
    standings.unready(BROKEN)
    standings.ready(0)
    assert (standings.setup_failures, dict(standings.causes)) == (0, {})


def test_a_slot_that_stood_for_a_while_begins_anew() -> None:
    clock = FakeClock()
    standings = Standings(clock)
    standings.unready(BROKEN)
    standings.unready(BROKEN)
    standings.ready(0)
    clock.advance(STEADY)
    assert standings.unready(BROKEN) == 1


def test_slots_are_judged_one_by_one() -> None:
    standings = Standings(FakeClock())
    standings.unready(BROKEN)
    assert standings.unready(Unready(1, "no disk")) == 1
    assert standings.setup_failures == 1
