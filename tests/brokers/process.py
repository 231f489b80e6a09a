"""A broker's process: started in a folder of its own, frozen, killed, stopped; gone when the tests are, however they end."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache as once
from itertools import cycle
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.brokers import guard
from tests.brokers.guard import end, family
from tests.brokers.install import cache
from tests.support.stage import eventually

STARTED_WITHIN = 120.0
"""Seconds for a broker that boots in 3 s on an idle machine."""

FROZEN_WITHIN = 10.0
"""Seconds from a SIGSTOP until no thread runs."""

STOPPED_WITHIN = 30.0

BLOCK = 200
"""Ports that one process may give at a time."""


class BrokerError(Exception):
    """A broker did not do what was asked: the message has the end of its log."""


def free_ports(count: int) -> list[int]:
    """
    Return loopback ports on which no process listens now, and which no other process of the tests is given.

    A Java takes seconds from here to its first listener, and keeps its ports while it is down.
    """
    ports: set[int] = set()
    for port in _ports():
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                ports.add(port)
        if len(ports) == count:
            break
    return list(ports)


@once
def _ports() -> Iterator[int]:
    """
    Return the ports of this process, one after the other without end: a block that it locks as long as it lives.

    They lie below Linux' ephemeral range (32768 and up): while a broker is down, no client's own end can take its port.
    """
    folder = cache() / "ports"
    folder.mkdir(exist_ok=True)
    for start in random.sample(range(20_000, 32_000, BLOCK), 12_000 // BLOCK):
        lock = os.open(folder / str(start), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return cycle(range(start, start + BLOCK))
    raise BrokerError(f"every block of ports is locked in {folder}: end test runs that were left behind")


class Guard:
    """One folder and the processes that work in it; both are gone after `close`, and after this process's death."""

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"steadyworker-{name}-"))
        self.folder.chmod(0o755)  # some servers refuse root, and run as a user who must get through
        self._guard = subprocess.Popen(
            [sys.executable, guard.__file__], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        self.send("remove", self.folder)

    def send(self, word: str, value: object) -> None:
        assert self._guard.stdin
        self._guard.stdin.write(f"{word} {value}\n")
        self._guard.stdin.flush()

    def close(self) -> None:
        """Kill what still runs and remove the folder."""
        self._guard.communicate()


class Server:
    """
    A server's main process and its descendants.

    Its output is appended to `log`.
    `start` returns when `ready` answers true; every signal reaches the whole family.
    """

    def __init__(
        self,
        guard: Guard,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        log: Path,
        ready: Callable[[], bool],
    ) -> None:
        self.command, self.environment, self.log = list(command), dict(environment), log
        self._guard, self._ready = guard, ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The main process; 0 while there is none."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, or start it again with the same data; does nothing when it runs."""
        if self.running:
            return
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self.command,
                cwd=self._guard.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._guard.send("watch", self.pid)
        deadline = time.monotonic() + STARTED_WITHIN
        while not self._ready():
            if not self.running:
                raise self.error(f"ended with {self._process.returncode} while it started")
            if time.monotonic() > deadline:
                self.kill()
                raise self.error(f"did not answer within {STARTED_WITHIN:g} s of its start")
            time.sleep(0.05)

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        """Stop it as its operator would, and return when it has ended."""
        if not self._process or not self.running:
            return
        self.thaw()
        self._process.send_signal(sign)
        try:
            self._process.wait(STOPPED_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self.error(f"outlived {sign.name} by {STOPPED_WITHIN:g} s") from None
        self._guard.send("forget", self.pid)
        self._process = None

    def kill(self) -> None:
        """SIGKILL to all of it at once; returns when no process is left."""
        if not self._process:
            return
        end(self._family())
        self._process.wait()
        self._guard.send("forget", self.pid)
        self._process = None

    def freeze(self) -> None:
        """
        SIGSTOP: its sockets stay open, and nobody answers.

        The other threads go on until the thread that takes the signal gets a core; return when all of them are stopped.
        """
        frozen = self._family()
        for process in frozen:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        eventually(lambda: not any(_runs(process.pid) for process in frozen), "all threads are stopped", FROZEN_WITHIN)

    def thaw(self) -> None:
        """SIGCONT; harmless when it was not frozen."""
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def error(self, what: str) -> BrokerError:
        """What went wrong, with the end of the log."""
        log = self.log.read_text(encoding="utf-8", errors="replace")[-2000:] if self.log.exists() else "(no log)"
        return BrokerError(f"{Path(self.command[0]).name} {what}; its log {self.log} ends:\n{log}")

    def _family(self) -> list[psutil.Process]:
        return family(self.pid) if self.running else []


def listens(port: int) -> bool:
    """Return whether something accepts connections at this port of this machine."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class Served:
    """What a test does to a broker of one server: each call acts on its process and all that this has started."""

    _server: Server

    @property
    def pid(self) -> int:
        """The main process; 0 while it is down."""
        return self._server.pid

    @property
    def running(self) -> bool:
        return self._server.running

    def start(self) -> None:
        """Start it, or start it again with its data; returns when it accepts connections."""
        self._server.start()

    def stop(self) -> None:
        """SIGTERM: it closes its connections and ends."""
        self._server.stop()

    def kill(self) -> None:
        """SIGKILL; `start` brings it back with what was on disk."""
        self._server.kill()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, and nobody replies."""
        self._server.freeze()

    def thaw(self) -> None:
        """SIGCONT; harmless when it was not frozen."""
        self._server.thaw()


def _runs(pid: int) -> bool:
    """Whether a thread of this process runs, or waits for what would let it run."""
    states = []
    for thread in Path("/proc", str(pid), "task").glob("*/stat"):
        with suppress(OSError):
            states.append(thread.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][0])
    return any(state in "RS" for state in states)
