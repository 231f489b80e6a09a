"""
How the processes that share a broker file know of one another, without a server: three small things in a folder beside it.

| file | is |
|---|---|
| `<name>.lock` | locked (`flock`) for as long as its process lives: the kernel frees it, whatever killed that process |
| its content | the *stamp*: when its owner's I/O thread last turned, by CLOCK_BOOTTIME; a frozen process holds its lock, but goes stale |
| `<name>.bell` | a FIFO: who has published writes one byte, and a consumer that waits wakes at once; no polling, no idle cost |
"""

from __future__ import annotations

import fcntl
import os
import select
import uuid
from contextlib import suppress
from pathlib import Path

_STAMP_BYTES = 32


class Presence:
    """
    One consumer's presence in the folder: alive from the moment this is made until `close`, or until the process is dead.

    Args:
        folder: The folder beside the broker file; made when it is missing.
        stamp: Seconds by CLOCK_BOOTTIME, or None for one that never stamps and is never judged by silence.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path, stamp: float | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = uuid.uuid4().hex
        self._lock = folder / f"{self.name}.lock"
        self._bell = folder / f"{self.name}.bell"
        self._lock_fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._bell_fd = -1
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stamp is not None:
                self.stamp(stamp)
            os.mkfifo(self._bell, 0o666)
            # Opened for writing too, so that it never reads "end of file" when a ringer closes it.
            self._bell_fd = os.open(self._bell, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._bell_fd, select.POLLIN)

    def stamp(self, now: float) -> None:
        """Say that the I/O thread turns."""
        os.pwrite(self._lock_fd, f"{now:.3f}".encode().ljust(_STAMP_BYTES), 0)

    def wait(self, seconds: float) -> None:
        """Wait until the bell rings, or that long; one answer to all the rings since the last wait."""
        if self._poll.poll(max(0.0, seconds) * 1000):
            with suppress(BlockingIOError):  # another thread's wait has heard it
                os.read(self._bell_fd, 4096)

    def ring(self) -> None:
        """Wake our own `wait`; thread-safe."""
        with suppress(BlockingIOError):  # full: it rings already
            os.write(self._bell_fd, b"!")

    def close(self) -> None:
        """Be gone; safe twice."""
        fds, self._lock_fd, self._bell_fd = (self._lock_fd, self._bell_fd), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
        self._bell.unlink(missing_ok=True)
        self._lock.unlink(missing_ok=True)


def is_gone(folder: Path, name: str, silent_since: float) -> bool:
    """
    Whether the presence of that name is over: its lock is free, or its stamp is older than `silent_since` (CLOCK_BOOTTIME).

    No answer counts as alive: what cannot be proven is not said.
    """
    try:
        fd = os.open(folder / f"{name}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # it left in good order, or somebody who had proof removed it
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two who ask at once do not see one another
    except OSError:
        stamp = os.pread(fd, _STAMP_BYTES, 0).strip()
        return bool(stamp) and float(stamp) < silent_since
    else:
        return True
    finally:
        os.close(fd)


def remove(folder: Path, name: str) -> None:
    """Remove what a gone presence left behind; one that was only frozen keeps its lock, on a file that nobody sees."""
    with suppress(OSError):
        (folder / f"{name}.bell").unlink(missing_ok=True)
        (folder / f"{name}.lock").unlink(missing_ok=True)


def ring(folder: Path, name: str) -> None:
    """Ring somebody's bell; nobody there is nobody to wake."""
    with suppress(OSError):
        fd = os.open(folder / f"{name}.bell", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, b"!")
        finally:
            os.close(fd)
