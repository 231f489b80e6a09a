"""
Presence files: with them, the processes that share a broker file detect and wake each other without a server.

| in the folder next to the broker file | meaning |
|---|---|
| `<name>.lock` | locked (`flock`) while its process lives; the kernel frees the lock, whatever ends the process |
| content of `<name>.lock` | the time of the I/O thread's last turn, by CLOCK_BOOTTIME; if this time is old, the process is frozen |
| the byte after the time | 0 while the consumer receives no messages, because its prefetch is 0; otherwise 1 |
| `<name>.bell` | a FIFO; when a publisher writes one byte, a waiting consumer wakes at once, without polling |
"""

from __future__ import annotations

import fcntl
import os
import select
import uuid
from contextlib import suppress
from pathlib import Path

from steadyworker.system.private import FILE, make_private_folder

_STAMP_BYTES = 32
_IDLE, _CONSUMING = b"0", b"1"


class Presence:
    """
    One consumer's presence in the folder. It is alive until `close` is called, or until its process is dead.

    Args:
        folder: The folder next to the broker file; created if it is missing.
        stamp: The present time by CLOCK_BOOTTIME. With None, the presence never writes a time, and never counts as frozen.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path, stamp: float | None) -> None:
        make_private_folder(folder)
        self.name = uuid.uuid4().hex
        self._lock = folder / f"{self.name}.lock"
        self._bell = folder / f"{self.name}.bell"
        self._lock_fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE)
        self._bell_fd = -1
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stamp is not None:
                self.stamp(stamp)
            os.mkfifo(self._bell, FILE)
            # Opened also for writing; otherwise a read would return "end of file" when a writer closes the FIFO.
            self._bell_fd = os.open(self._bell, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._bell_fd, select.POLLIN)

    def stamp(self, now: float) -> None:
        """Record the time of the I/O thread's turn."""
        os.pwrite(self._lock_fd, f"{now:.3f}".encode().ljust(_STAMP_BYTES), 0)

    def set_consuming(self, *, consuming: bool) -> None:
        """Record whether this consumer receives messages; before the first call, the consumer counts as receiving none."""
        os.pwrite(self._lock_fd, _CONSUMING if consuming else _IDLE, _STAMP_BYTES)

    def wait(self, seconds: float) -> None:
        """Wait for the bell, at most `seconds`; all rings since the last wait count as one ring."""
        if self._poll.poll(max(0.0, seconds) * 1000):
            with suppress(BlockingIOError):  # another thread's `wait` has read the byte
                os.read(self._bell_fd, 4096)

    def ring(self) -> None:
        """Wake the `wait` of this presence itself; thread-safe."""
        with suppress(BlockingIOError):  # the FIFO is full, so the bell already rings
            os.write(self._bell_fd, b"!")

    def close(self) -> None:
        """End the presence and remove its files; a second call does nothing."""
        fds, self._lock_fd, self._bell_fd = (self._lock_fd, self._bell_fd), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
        self._bell.unlink(missing_ok=True)
        self._lock.unlink(missing_ok=True)


def is_gone(folder: Path, name: str, silent_since: float) -> bool:
    """
    Return whether this presence is over.

    It is over if its file is missing, its lock is free, or its time is older than `silent_since` (CLOCK_BOOTTIME).
    A presence without a time is never too old. If this process cannot open the file, the presence counts as alive.
    """
    try:
        fd = os.open(folder / f"{name}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # the presence ended normally, or another process found the lock free and removed the file
    except OSError:
        return False
    try:
        # A shared lock: with exclusive locks, two processes that check at the same time would find each other's lock.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        stamp = os.pread(fd, _STAMP_BYTES, 0).strip()
        return bool(stamp) and float(stamp) < silent_since
    else:
        return True
    finally:
        os.close(fd)


def is_consuming(folder: Path, name: str) -> bool:
    """Return whether the consumer of this presence receives messages; False if its file cannot be read."""
    with suppress(OSError), (folder / f"{name}.lock").open("rb") as file:
        return file.read()[_STAMP_BYTES:] == _CONSUMING
    return False


def remove(folder: Path, name: str) -> None:
    """
    Remove the files of a presence that is over.

    If the process is only frozen, it still holds the lock, on a file that no longer has a name.
    """
    with suppress(OSError):
        (folder / f"{name}.bell").unlink(missing_ok=True)
        (folder / f"{name}.lock").unlink(missing_ok=True)


def ring(folder: Path, name: str) -> None:
    """Ring the bell of a presence; do nothing if the presence is over."""
    with suppress(OSError):
        fd = os.open(folder / f"{name}.bell", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, b"!")
        finally:
            os.close(fd)
