"""
Messages to systemd: the notify protocol of sd_notify(3), over a datagram socket.

The methods neither raise nor wait, because a service manager that receives nothing must not stop a job.
If the service manager's queue is full (net.unix.max_dgram_qlen, unix(7)), the Notifier sends READY=1 and STOPPING=1 again before a later message.
The caller passes the environment's variables, so that the worker process uses NOTIFY_SOCKET, and the slots' children do not.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

_MICROSECONDS = 1_000_000
_STATUS_CHARACTERS = 200


class Notifier:
    """
    A sender of this process's state to the service manager; without a service manager, the sender does nothing.

    The constructor reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from `environ`.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog_every = _watchdog_every(environ) if self._address is not None else None
        self._unsent: list[str] = []

    @property
    def listening(self) -> bool:
        """True if a service manager has named a socket for messages."""
        return self._address is not None

    @property
    def watchdog_every(self) -> float | None:
        """Seconds between two `watchdog()` calls: half of systemd's time limit, or None if systemd does not watch."""
        return self._watchdog_every

    def ready(self) -> None:
        """
        Report that the process runs.

        Call this method before any contact with the broker, so that a unit starts even while the broker is away.
        """
        self._unsent.append("READY=1")
        self._flush()

    def status(self, text: str) -> None:
        """Send one line for `systemctl status`."""
        self._send("STATUS=" + " ".join(text.split())[:_STATUS_CHARACTERS])

    def watchdog(self) -> None:
        """Report that every part of the process makes progress; without this report, systemd restarts the unit."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Report that the process has begun to stop."""
        self._unsent.append("STOPPING=1")
        self._flush()

    def extend_timeout(self, seconds: float) -> None:
        """Ask systemd to allow this many more seconds for the start or stop; call this method again before these seconds are over."""
        self._send(f"EXTEND_TIMEOUT_USEC={max(1, round(seconds * _MICROSECONDS))}")

    def _send(self, message: str) -> None:
        self._flush()
        self._sent(message)

    def _flush(self) -> None:
        """Send the changes of state that are still unsent; the caller itself repeats all other messages."""
        while self._unsent and self._sent(self._unsent[0]):
            del self._unsent[0]

    def _sent(self, message: str) -> bool:
        """Send a message; return False if the service manager's queue is full, or the service manager does not receive."""
        if self._address is None:
            return True
        with suppress(OSError, UnicodeError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | _CLOEXEC) as sender:
            sender.settimeout(0)
            sender.sendto(message.encode(), self._address)
            return True
        return False


_CLOEXEC: int = getattr(socket, "SOCK_CLOEXEC", 0)  # not on macOS, where there is no systemd either


def _address(path: str) -> str | None:
    """Return the socket's address, an abstract name (`@…`) or a path (`/…`); None for any other form, such as `vsock:…`."""
    if path.startswith("@"):
        return "\0" + path[1:]
    return path if path.startswith("/") else None


def _watchdog_every(environ: Mapping[str, str]) -> float | None:
    """Return half of systemd's watchdog time, in seconds, or None if systemd does not watch this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    with suppress(ValueError):
        microseconds = int(environ.get("WATCHDOG_USEC", ""))
        return microseconds / _MICROSECONDS / 2 if microseconds > 0 else None
    return None
