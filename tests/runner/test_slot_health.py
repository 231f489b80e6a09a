"""A slot that falls rests before it begins again, longer each time in a row; only its setup's failures end the process."""

from __future__ import annotations

from steadyworker.runner.slot_health import SlotHealth
from steadyworker.slots.base import Unready
from steadyworker.slots.child_process import STEADY
from steadyworker.testing.clock import FakeClock

BROKEN = Unready(0, "setup raised ValueError: no database")
FALLEN = Unready(0, "the child died just after its setup: SIGKILL", after_setup=True)


def test_each_fall_in_a_row_doubles_the_rest_up_to_thirty_seconds() -> None:
    slot_health = SlotHealth(FakeClock())
    assert [slot_health.unready(BROKEN) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert slot_health.setup_failures == 7


def test_a_child_that_dies_idle_again_and_again_rests_longer_though_its_setup_returns() -> None:
    """It would be started twice a second for ever; but the process does not end, for other slots may have jobs."""
    slot_health, rests = SlotHealth(FakeClock()), []
    for _ in range(4):
        slot_health.ready(0)
        rests.append(slot_health.unready(FALLEN))
    assert rests == [1, 2, 4, 8]
    assert slot_health.setup_failures == 0
    assert slot_health.causes == {0: FALLEN.reason}


def test_a_setup_that_returns_ends_the_row_of_its_failures() -> None:
    slot_health = SlotHealth(FakeClock())
    slot_health.unready(BROKEN)
    slot_health.unready(BROKEN)
    slot_health.ready(0)
    assert (slot_health.setup_failures, dict(slot_health.causes)) == (0, {})


def test_a_slot_that_stood_for_a_while_begins_anew() -> None:
    clock = FakeClock()
    slot_health = SlotHealth(clock)
    slot_health.unready(BROKEN)
    slot_health.unready(BROKEN)
    slot_health.ready(0)
    clock.advance(STEADY)
    assert slot_health.unready(BROKEN) == 1


def test_slots_are_judged_one_by_one() -> None:
    slot_health = SlotHealth(FakeClock())
    slot_health.unready(BROKEN)
    assert slot_health.unready(Unready(1, "no disk")) == 1
    assert slot_health.setup_failures == 1
