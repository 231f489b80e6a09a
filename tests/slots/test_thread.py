"""What a thread slot cannot promise, and what it reports instead."""

from __future__ import annotations

import threading

import pytest

from steadyworker.outcome import Done, Failed, Interrupted
from steadyworker.slots.base import Ended, Unready
from tests.conftest import Eventually
from tests.slots.conftest import MakeRig
from tests.slots.kit import SOON


def test_a_handler_without_job_calls_is_abandoned_and_the_slot_is_stuck(rig: MakeRig) -> None:
    slot = rig(kind="thread", grace=0.1).start()
    ended = slot.ended("sleep", time_limit=0.3)
    assert (ended.outcome, ended.killed) == (Failed("time-limit"), True)
    assert slot.slot.stuck
    assert not slot.slot.warm


def test_a_killed_handler_that_makes_a_job_call_is_not_abandoned(rig: MakeRig) -> None:
    slot = rig(kind="thread").start()
    fence = slot.begun("until_progress_raises")
    slot.slot.kill(fence, Failed("stalled"))
    ended = slot.next(Ended)
    assert (ended.outcome, ended.killed) == (Failed("stalled"), True)
    assert not slot.slot.stuck
    assert slot.ended().outcome == Done()


def test_a_stalled_handler_is_interrupted_and_ends(rig: MakeRig) -> None:
    slot = rig(kind="thread").start()
    assert slot.ended("until_checked", stall_limit=0.2).outcome == Failed("stalled")
    assert slot.ended().outcome == Done()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "setup raised ValueError: no database"),
        ("exit", "setup raised SystemExit: 1"),
        ("hang", "setup took more than 0.3 s"),
    ],
)
def test_a_setup_that_fails_is_not_the_jobs_fault(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch, how: str, reason: str
) -> None:
    monkeypatch.setenv("STEADYWORKER_TEST", how)
    slot = rig("Broken", kind="thread", setup_limit=0.3)
    slot.open()
    slot.begin()
    events = [slot.event(), slot.event()]  # in this order, unless `setup` failed before the run was begun
    assert [event.outcome for event in events if isinstance(event, Ended)] == [Interrupted()]
    assert [event.reason for event in events if isinstance(event, Unready)] == [reason]
    assert slot.slot.stuck == (how == "hang")
    monkeypatch.delenv("STEADYWORKER_TEST")
    slot.start()
    assert slot.ended().outcome == Done()


def test_fifty_slots_leave_no_thread_behind(rig: MakeRig, eventually: Eventually) -> None:
    threads = threading.active_count()
    for number in range(50):
        slot = rig(kind="thread").start()
        if number % 5 == 0:
            slot.begun("until_checked")
        slot.close(0.1 if number % 5 == 0 else SOON)
    eventually(lambda: threading.active_count() <= threads)
