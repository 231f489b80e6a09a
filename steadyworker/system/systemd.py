"""
What is told to systemd: the notify protocol of sd_notify(3), over a datagram socket.

Nothing here raises and nothing waits: a service manager that does not listen must not stop a job.
The environment is given, never read; NOTIFY_SOCKET is not for the children of a slot.
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
    Tells the service manager how this process is; without one it does nothing.

    `environ` is asked for NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, once.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog_every = _watchdog_every(environ) if self._address is not None else None

    @property
    def listening(self) -> bool:
        """Whether a service manager asked to be told."""
        return self._address is not None

    @property
    def watchdog_every(self) -> float | None:
        """Seconds between two `watchdog()` calls, half of what systemd waits; None when it does not watch."""
        return self._watchdog_every

    def ready(self) -> None:
        """The process runs; said without waiting for the broker, so that a unit starts while its broker is down."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send("STATUS=" + " ".join(text.split())[:_STATUS_CHARACTERS])

    def watchdog(self) -> None:
        """Evidence that every part moves; the unit is restarted when it stays away."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The process stops, and will not come back to work."""
        self._send("STOPPING=1")

    def extend_timeout(self, seconds: float) -> None:
        """The start or stop under way needs so many seconds more from now; said again before they are over."""
        self._send(f"EXTEND_TIMEOUT_USEC={max(1, round(seconds * _MICROSECONDS))}")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        with suppress(OSError, UnicodeError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | _CLOEXEC) as sender:
            sender.settimeout(0)
            sender.sendto(message.encode(), self._address)


_CLOEXEC: int = getattr(socket, "SOCK_CLOEXEC", 0)  # not on macOS, where there is no systemd either


def _address(path: str) -> str | None:
    """`@` begins an abstract address, `/` a path; anything else (vsock:) is not for us."""
    if path.startswith("@"):
        return "\0" + path[1:]
    return path if path.startswith("/") else None


def _watchdog_every(environ: Mapping[str, str]) -> float | None:
    """Half the watchdog's time, when it is this process that systemd watches."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    with suppress(ValueError):
        microseconds = int(environ.get("WATCHDOG_USEC", ""))
        return microseconds / _MICROSECONDS / 2 if microseconds > 0 else None
    return None
