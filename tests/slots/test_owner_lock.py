"""The owner's lock, which each child holds open until it ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.ledger.owners import OwnerLock, is_dead, new_owner_id
from steadyworker.outcome import Done
from tests.slots.conftest import MakeRig

pytestmark = pytest.mark.processes


def test_a_child_holds_its_owners_lock_to_its_end(rig: MakeRig, tmp_path: Path) -> None:
    """The child gets the lock with Hello; the lock is free when the last child is dead."""
    owner = new_owner_id()
    lock = OwnerLock(tmp_path, owner)
    slot, other = rig(held=[lock.fd]).start(), rig(held=[lock.fd]).start()
    lock.release()
    for each in (slot, other):
        assert not is_dead(tmp_path, owner)
        each.close(5)
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
    slot.close(5)
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
