"""systemd's notify protocol, against a socket that listens as systemd does."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from steadyworker.system.systemd import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A bound datagram socket, and what NOTIFY_SOCKET says of it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@steadyworker-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if name.startswith("@") else name)
        listener.settimeout(5)
        yield listener, name


def test_each_word_arrives_as_one_datagram(manager: tuple[socket.socket, str]) -> None:
    listener, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    assert notifier.listening
    notifier.ready()
    notifier.status("busy\nREADY=0\n with  m-17 " + "x" * 300)
    notifier.watchdog()
    notifier.extend_timeout(2.5)
    notifier.stopping()
    heard = [listener.recv(4096).decode() for _ in range(5)]
    assert heard[0] == "READY=1"
    assert heard[1].startswith("STATUS=busy READY=0 with m-17 xxx")
    assert len(heard[1]) == len("STATUS=") + 200
    assert heard[2:] == ["WATCHDOG=1", "EXTEND_TIMEOUT_USEC=2500000", "STOPPING=1"]


@pytest.mark.parametrize("name", ["", "/no/such/socket", "vsock:2:1234", "/" + "x" * 300])
def test_a_manager_that_does_not_listen_stops_nobody(name: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready()
    notifier.stopping()


def fill(address: str) -> int:
    """Send words from a new socket until it has no room; return how many it sent."""
    sent = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(BlockingIOError):
        sender.settimeout(0)
        while sent < 100_000:
            sender.sendto(b"x", address)
            sent += 1
    return sent


def test_a_manager_that_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    """A full socket drops what is told again and again, and keeps a change of state for later."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "full"))
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "full")})
        sent = 0
        while (
            more := fill(listener.getsockname())
        ) > 0:  # a sender's own buffer can be full before the listener's queue is
            sent += more
        notifier.ready()
        for _ in range(100):
            notifier.watchdog()
        notifier.stopping()
        listener.settimeout(0)
        read = [listener.recv(100) for _ in range(sent)]
        with pytest.raises(BlockingIOError):
            listener.recv(100)
        assert set(read) == {b"x"}
        notifier.watchdog()
        told = [listener.recv(100) for _ in range(3)]
        assert told == [b"READY=1", b"STOPPING=1", b"WATCHDOG=1"], (
            "a unit that is not told READY=1 is killed at its start"
        )


@pytest.mark.parametrize(
    ("environ", "every"),
    [
        ({"WATCHDOG_USEC": "180000000"}, 90.0),
        ({"WATCHDOG_USEC": "180000000", "WATCHDOG_PID": str(os.getpid())}, 90.0),
        ({"WATCHDOG_USEC": "180000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_in_its_time(environ: dict[str, str], every: float | None) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/run/systemd/notify"} | environ).watchdog_every == every
    assert Notifier(environ).watchdog_every is None
