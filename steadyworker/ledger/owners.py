"""
Owners, and the proof of an owner's death.

A worker process takes an owner id (`host/boot-id/random`).
For as long as it lives it holds an exclusive `flock` on a file of that name.
It passes the open descriptor to every slot child: the kernel frees the lock when the last of them is dead.
So whoever gets that lock has *proof*, and need not wait for a lease to end.

No file is no proof: a directory that somebody cleaned must not declare the living dead.
For the same reason the file of a dead owner stays until no row names it any longer (`sweep`).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from steadyworker.errors import LedgerUnavailable

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The id of this boot of this machine: the same in every container on it, another after each restart."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text(encoding="ascii").strip()
    # macOS, for development.
    said = subprocess.run(
        ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], check=True, capture_output=True, text=True
    )
    return said.stdout.strip().lower()


def new_owner_id() -> str:
    """A fresh owner id, `host/boot-id/random`; one for each worker process."""
    return f"{socket.gethostname()}/{boot_id()}/{secrets.token_hex(8)}"


class OwnerLock:
    """
    The lock that says that an owner lives.

    Held from construction until `release`, or until the last process that has `fd` is dead.

    Args:
        directory: Where owners of one ledger keep their locks; made when it is missing.
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
        The descriptor to pass to children, which keep the lock after this process is dead.

        Raises:
            ValueError: The lock was released.
        """
        if self._fd < 0:
            raise ValueError(f"Expected the owner lock {self.path} to be held, but it was released: make a new one.")
        return self._fd

    def release(self) -> None:
        """Give the lock up; it stays held while a child has it.  Safe twice."""
        if self._fd >= 0:
            os.close(self._fd)  # never LOCK_UN, which would free it for the children as well
            self._fd = -1


def lock_path(directory: Path, owner: str) -> Path:
    """Where an owner's lock lies."""
    return directory / quote(owner, safe="")


def is_dead(directory: Path, owner: str) -> bool:
    """
    Whether there is proof that this owner, and every child that it passed its lock to, is dead.

    True when its lock file is there and its lock is free.
    False is no proof of life: an owner of another machine, or one without a file, is judged by its lease alone.
    """
    host, _, rest = owner.partition("/")
    boot = rest.partition("/")[0]
    if boot != boot_id() and host != socket.gethostname():
        return False
    try:
        fd = os.open(lock_path(directory, owner), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that two who ask at once do not take each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def sweep(directory: Path, is_needed: Callable[[str], bool]) -> None:
    """Remove the locks of dead owners, but for those that are still needed as proof, and those that it may not remove."""
    try:
        locks = list(directory.iterdir())
    except OSError:
        return
    for lock in locks:
        with suppress(OSError):  # held, or removed by another
            _remove_free(lock, is_needed)


def _create(path: Path) -> int:
    """Open and lock the file; again when a sweep removed it between the two."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _remove_free(path: Path, is_needed: Callable[[str], bool]) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, fd) and not is_needed(unquote(path.name)):
            path.unlink()
    finally:
        os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
