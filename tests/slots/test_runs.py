"""The table of a thread slot's runs: a run is in it until its `Ended` is sent, and at most one run is present."""

from __future__ import annotations

from typing import Any

import pytest

from steadyworker.clock import SystemClock
from steadyworker.link import Task
from steadyworker.slots.base import Ended
from steadyworker.slots.thread import ThreadRun, ThreadRuns
from tests.conftest import Eventually
from tests.slots.conftest import MakeRig


def run(fence: int) -> ThreadRun:
    task = Task(key="k", queue="q", uid="u", fence=fence, attempt=1, body=b"")
    return ThreadRun(0, task, SystemClock(), lambda _run, _event: None)


def test_a_run_is_present_until_it_has_ended_and_in_the_table_until_its_end_is_sent() -> None:
    runs, first, second = ThreadRuns(), run(1), run(2)
    runs.add(first)
    assert (runs.present, runs.of(1), runs.of(2), runs.unsent) == (first, first, None, (first,))
    first.ended = True
    assert (runs.present, runs.of(1), runs.unsent) == (None, None, (first,))
    runs.add(second)
    assert (runs.present, runs.unsent) == (second, (first, second))
    runs.sent(1)
    assert runs.unsent == (second,)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_slot_refuses_a_second_run_and_keeps_no_run_that_has_ended(
    rig: MakeRig, kind: str, eventually: Eventually
) -> None:
    slot: Any = rig("Modes", kind).start()
    fence = slot.begun("until_checked")
    with pytest.raises(RuntimeError, match="got a second run"):
        slot.begin()
    slot.slot.interrupt(fence, "shutdown", hard=True)
    slot.next(Ended)
    if kind == "process":
        assert (slot.slot._waiting, slot.slot._child.run) == (None, None)
    else:
        eventually(lambda: slot.slot._runs.unsent == ())
