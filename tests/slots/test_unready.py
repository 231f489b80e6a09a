"""A slot that has ended: a run that comes too late, and a thread that cannot be started."""

from __future__ import annotations

import pytest

from steadyworker.outcome import Done, Interrupted
from steadyworker.slots.base import Ended, Unready
from tests.slots.conftest import MakeRig
from tests.support.limits import no_further_thread


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_run_for_a_slot_that_has_just_been_given_up_is_interrupted(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The runner finds the slot warm, claims the job in up to ten seconds, and then begins the run; its thread must survive."""
    monkeypatch.setenv("STEADYWORKER_TEST", "raise")
    slot = rig("Broken", kind)
    slot.open()
    slot.next(Unready)

    fence = slot.begin()

    ended = slot.next(Ended)
    assert (ended.fence, ended.outcome, ended.killed) == (fence, Interrupted(), False)


def test_a_slot_that_can_start_no_thread_is_unready_and_can_be_started_again(rig: MakeRig) -> None:
    """The runner's thread starts it again after each pause, and every job depends on that thread."""
    slot = rig("Modes", "thread")
    with no_further_thread():
        slot.open()
    unready = slot.next(Unready)
    assert (unready.reason, unready.after_setup) == ("a thread could not be started: can't start new thread", False)
    assert not slot.slot.broken
    assert slot.start().ended().outcome == Done()
