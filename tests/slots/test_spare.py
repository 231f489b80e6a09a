"""A child that is started before anybody knows what for: taken once, by who finds it as a new one would be, or gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.ledger.owners import OwnerLock, is_dead, new_owner_id
from steadyworker.outcome import Done
from steadyworker.slots.base import Ready
from steadyworker.slots.process import ProcessSlot
from steadyworker.slots.spare import Spare
from tests.conftest import Eventually
from tests.slots.conftest import MakeRig
from tests.slots.kit import Rig

pytestmark = pytest.mark.processes

Children = Callable[[], set[int]]


@pytest.fixture
def children() -> Children:
    """Asks for this process's children but for those that were there before: brokers of other tests."""

    def now() -> set[int]:
        return {child.pid for child in psutil.Process().children()}

    before = now()
    return lambda: now() - before


def pid_of(slot: Rig) -> int | None:
    assert isinstance(slot.slot, ProcessSlot)
    return slot.slot.pid


def test_the_first_slot_takes_it_and_the_next_one_starts_its_own(rig: MakeRig, children: Children) -> None:
    with Spare() as spare:
        (reserved,) = children()
        first, second = rig(spare=spare).start(), rig(spare=spare).start()
    assert pid_of(first) == reserved
    assert pid_of(second) != reserved
    assert first.ended().outcome == second.ended().outcome == Done()
    assert len(children()) == 2


def test_the_child_that_replaces_it_is_a_new_one(rig: MakeRig, children: Children) -> None:
    with Spare() as spare:
        (reserved,) = children()
        slot = rig(spare=spare).start()
    assert pid_of(slot) == reserved
    slot.ended("kill_itself")
    slot.next(Ready)
    assert pid_of(slot) != reserved


def test_one_that_has_died_is_not_taken(rig: MakeRig, eventually: Eventually, children: Children) -> None:
    with Spare() as spare:
        (reserved,) = children()
        os.kill(reserved, signal.SIGKILL)
        eventually(lambda: psutil.Process(reserved).status() == psutil.STATUS_ZOMBIE)
        assert rig(spare=spare).start().ended().outcome == Done()
    assert reserved not in children()


@pytest.mark.parametrize("changed", ["environment", "working directory"])
def test_one_that_a_module_has_left_behind_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str, children: Children
) -> None:
    """An imported module may change what a child inherits."""
    with Spare() as spare:
        if changed == "environment":
            monkeypatch.setenv("SET_BY_A_MODULE", "1")
        else:
            monkeypatch.chdir(tmp_path)
        assert spare.take() is None
        assert children() == set()


def test_one_that_nobody_takes_is_gone_in_the_end(children: Children) -> None:
    with Spare() as spare:
        assert len(children()) == 1
    assert children() == set()
    spare.close()
    assert spare.take() is None


def test_a_child_holds_its_owners_lock_to_its_end(rig: MakeRig, tmp_path: Path) -> None:
    """Whoever starts it: the lock, which the child got with Hello, is free when the last child is dead."""
    owner = new_owner_id()
    lock = OwnerLock(tmp_path, owner)
    with Spare() as spare:
        slot, other = rig(spare=spare, held=[lock.fd]).start(), rig(held=[lock.fd]).start()
    lock.release()
    for each in (slot, other):
        assert not is_dead(tmp_path, owner)
        each.slot.close(5)
    assert is_dead(tmp_path, owner)


def test_a_daemon_that_a_job_has_started_does_not_hold_its_owners_lock(
    rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may live for months, and is no run of the job."""
    monkeypatch.setenv("STEADYWORKER_TEST", str(tmp_path))
    owner = new_owner_id()
    lock = OwnerLock(tmp_path, owner)
    slot = rig(held=[lock.fd]).start()
    lock.release()
    assert slot.ended("leave_daemons").outcome == Done()
    slot.slot.close(5)
    daemons = daemons_of(tmp_path)
    try:
        assert len(daemons) == 2
        assert is_dead(tmp_path, owner)
    finally:
        for daemon in daemons:
            daemon.kill()


def daemons_of(folder: Path) -> list[psutil.Process]:
    """The processes that this test's folder is in the environment of, but for this one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("STEADYWORKER_TEST") == str(folder) and process.pid != os.getpid():
                found.append(process)
    return found
