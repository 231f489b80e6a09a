"""
Owners, and the proof of an owner's death.

A worker process has an owner id (`host/boot-id/random`).
While the worker process lives, it holds an exclusive `flock` on a file that has the owner id as its name.
The worker process passes the open descriptor to every slot child and to the guard.
The kernel frees the lock when all these processes are dead.
So a process that gets the lock has *proof* that these processes are dead, and need not wait for the end of the lease.

A missing file is not a proof, because living owners would count as dead if someone emptied the directory.
The file of a dead owner stays while this owner is registered, or a row names it (`sweep`), because a missing file proves nothing.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import subprocess
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from steadyworker.errors import LedgerUnavailable
from steadyworker.system.private import FILE, make_private_folder

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BATCH = 200


def boot_id() -> str:
    """Return the id of this machine's boot: all containers on the machine have the same id, and each restart gives a new id."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text(encoding="ascii").strip()
    # macOS, for development.
    printed = subprocess.run(
        ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], check=True, capture_output=True, text=True
    )
    return printed.stdout.strip().lower()


def new_owner_id() -> str:
    """Return a new owner id, `host/boot-id/random`; each worker process has its own id."""
    return f"{socket.gethostname()}/{boot_id()}/{secrets.token_hex(8)}"


def host_of(owner: str) -> str:
    """Return the host in an owner id."""
    return owner.partition("/")[0]


class OwnerLock:
    """
    The lock that shows that an owner lives.

    This process holds the lock from construction until `release`; the children that have `fd` hold the lock until they are dead.

    Args:
        directory: The directory of the owner locks of one ledger; created if it is missing.
        owner: An id from `new_owner_id`.

    Raises:
        LedgerUnavailable: The directory or the file cannot be written.
    """

    def __init__(self, directory: Path, owner: str) -> None:
        self.owner = owner
        self.path = lock_path(directory, owner)
        try:
            self._fd = _create(self.path)
        except OSError as error:
            raise LedgerUnavailable(
                f"Expected to write the owner lock {self.path}, got {error.strerror}: make its directory writable."
            ) from error

    @property
    def fd(self) -> int:
        """
        The descriptor to pass to children, which keep the lock after the death of this process.

        Raises:
            ValueError: The lock was released.
        """
        if self._fd < 0:
            raise ValueError(f"Expected the owner lock {self.path} to be held, but it was released: make a new one.")
        return self._fd

    def release(self) -> None:
        """Close this process's descriptor, but leave the lock to its children; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)  # LOCK_UN would also free the children's lock
            self._fd = -1


def lock_path(directory: Path, owner: str) -> Path:
    """Return the path of an owner's lock."""
    return directory / quote(owner, safe="")


def is_dead(directory: Path, owner: str) -> bool:
    """
    Return whether there is proof that this owner, and every child with the owner's lock, is dead.

    True means that the owner's lock file exists and its lock is free.
    False does not prove that the owner lives.
    For an owner of another machine, or an owner without a file, only the lease counts.
    """
    host, _, rest = owner.partition("/")
    boot = rest.partition("/")[0]
    if host != socket.gethostname() and boot != boot_id():  # in this order, because the boot's id is in a file
        return False
    try:
        return _is_free(lock_path(directory, owner))
    except OSError:
        return False


def sweep(directory: Path, holding: Callable[[Sequence[str]], Collection[str]]) -> None:
    """
    Remove the locks of dead owners, except locks that are still needed as proof, or that this process is not allowed to remove.

    `holding` receives at most 200 owners at a time, and returns the owners that are registered, or that rows still name.
    The result of `holding` stays true, because a dead owner neither registers nor claims rows.
    """
    try:
        locks = [file for file in directory.iterdir() if not file.name.startswith(".")]  # a file of `sqlite.trust`
    except OSError:
        return
    dead = []
    for lock in locks:
        with suppress(OSError):  # removed by another process
            if _is_free(lock):
                dead.append(lock)
    for start in range(0, len(dead), _BATCH):
        batch = {unquote(lock.name): lock for lock in dead[start : start + _BATCH]}
        needed = holding(list(batch))
        for owner, lock in batch.items():
            if owner not in needed:
                with suppress(OSError):  # held, or removed by another process
                    _remove_free(lock)


def remove_own(directory: Path, owner: str) -> None:
    """Remove the lock of this process's owner; call this function after a normal end, when no row names the owner."""
    with suppress(OSError):  # a later sweep removes it
        lock_path(directory, owner).unlink(missing_ok=True)


def _create(path: Path) -> int:
    """Open and lock the file; start again if a sweep has removed the file between these two steps."""
    make_private_folder(path.parent)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _remove_free(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, fd):
            path.unlink()
    finally:
        os.close(fd)


def _is_free(path: Path) -> bool:
    """Return whether no process holds the lock; raise OSError if the file is missing or cannot be read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # This lock is shared, so that two processes that check at the same time do not mistake each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
