"""An owner's lock is proof: free means dead, and nothing else does."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.owners import OwnerLock, boot_id, is_dead, lock_path, new_owner_id, sweep


def test_an_owner_id_names_host_and_boot_and_is_never_given_twice() -> None:
    host, boot, _ = new_owner_id().split("/")
    assert (host, boot) == (socket.gethostname(), boot_id())
    assert len({new_owner_id() for _ in range(100)}) == 100


def test_an_owner_lives_while_its_lock_is_held(tmp_path: Path) -> None:
    owner = new_owner_id()
    lock = OwnerLock(tmp_path / "made" / "on demand", owner)
    directory = tmp_path / "made" / "on demand"
    assert not is_dead(directory, owner)
    lock.release()
    lock.release()
    assert is_dead(directory, owner)
    assert is_dead(directory, owner), "proof is not used up by asking"
    with pytest.raises(ValueError, match="released"):
        _ = lock.fd


def test_two_who_ask_at_once_do_not_take_each_other_for_the_owner(tmp_path: Path) -> None:
    owner = new_owner_id()
    OwnerLock(tmp_path, owner).release()
    with lock_path(tmp_path, owner).open("rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert is_dead(tmp_path, owner)


def test_no_file_is_no_proof(tmp_path: Path) -> None:
    assert not is_dead(tmp_path, new_owner_id())
    assert not is_dead(tmp_path / "never made", new_owner_id())


def test_another_machine_cannot_be_judged_from_here(tmp_path: Path) -> None:
    elsewhere = "another-host/00000000-0000-0000-0000-000000000000/1"
    OwnerLock(tmp_path, elsewhere).release()
    assert not is_dead(tmp_path, elsewhere)


def test_an_owner_of_an_earlier_boot_of_this_machine_is_dead(tmp_path: Path) -> None:
    before = f"{socket.gethostname()}/00000000-0000-0000-0000-000000000000/1"
    OwnerLock(tmp_path, before).release()
    assert is_dead(tmp_path, before)


def test_a_container_of_another_name_on_this_machine_is_judged_by_its_lock(tmp_path: Path) -> None:
    neighbour = f"another-container/{boot_id()}/1"
    lock = OwnerLock(tmp_path, neighbour)
    assert not is_dead(tmp_path, neighbour)
    lock.release()
    assert is_dead(tmp_path, neighbour)


@pytest.mark.parametrize("owner", ["", "me", "a/b", "../../etc/passwd", "/"])
def test_an_odd_owner_id_is_no_path_and_no_proof(tmp_path: Path, owner: str) -> None:
    assert not is_dead(tmp_path, owner)
    assert lock_path(tmp_path, owner).parent == tmp_path or owner == ""


def test_a_sweep_removes_the_free_and_keeps_the_held_and_the_needed(tmp_path: Path) -> None:
    held, needed, free = new_owner_id(), new_owner_id(), new_owner_id()
    lock = OwnerLock(tmp_path, held)
    OwnerLock(tmp_path, needed).release()
    OwnerLock(tmp_path, free).release()
    sweep(tmp_path, lambda _owners: [needed])
    assert set(tmp_path.iterdir()) == {lock_path(tmp_path, held), lock_path(tmp_path, needed)}
    lock.release()
    sweep(tmp_path / "never made", lambda _owners: [])


def test_a_sweep_asks_the_ledger_for_many_owners_at_once(tmp_path: Path) -> None:
    """One question for each owner would keep the ledger from every claim."""
    owners = {new_owner_id() for _ in range(450)}
    for owner in owners:
        OwnerLock(tmp_path, owner).release()
    asked: list[Sequence[str]] = []

    def holding(some: Sequence[str]) -> list[str]:
        asked.append(some)
        return []

    sweep(tmp_path, holding)
    assert [len(some) for some in asked] == [200, 200, 50]
    assert {owner for some in asked for owner in some} == owners
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_never_takes_a_lock_from_one_that_is_being_made(tmp_path: Path) -> None:
    """Between making the file and locking it a sweep may remove it; the maker notices."""
    stop = Event()

    def sweep_on() -> None:
        while not stop.is_set():
            sweep(tmp_path, lambda _owners: [])

    with ThreadPoolExecutor(1) as pool:
        sweeping = pool.submit(sweep_on)
        try:
            for _ in range(300):
                lock = OwnerLock(tmp_path, new_owner_id())
                assert os.path.samestat(lock.path.stat(), os.fstat(lock.fd))
                assert not is_dead(tmp_path, lock.owner)
                lock.release()
        finally:
            stop.set()
        sweeping.result(10)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerUnavailable, match="make its directory writable"):
        OwnerLock(tmp_path / "file" / "owners", new_owner_id())
