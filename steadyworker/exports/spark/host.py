"""
The Spark host's process, started by `process.py` only, with PARENT and perhaps `connect` as arguments.

- Its standard input and output carry the protocol.  They are moved to other descriptors before anything else happens, and
  1 becomes 2 (the log): what the JVM prints cannot break the protocol.
- It leads a session of its own and ends together with all of it, and with its folder: when its parent dies (PDEATHSIG, end of file), when its
  JVM dies or its Connect server has forgotten its jobs, when it is told to.
- Spark is started before any thread is.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NoReturn

from steadyworker.exports.spark.backend import Backend
from steadyworker.exports.spark.connect import ConnectEngine
from steadyworker.exports.spark.engine import Engine
from steadyworker.exports.spark.protocol import (
    Cancel,
    Connect,
    Fatal,
    Message,
    Ping,
    Pong,
    Ready,
    Run,
    decode_command,
    encode,
)
from steadyworker.exports.spark.query import first_line
from steadyworker.system.procfs import end_own_session
from steadyworker.text.redaction import redact

_PR_SET_PDEATHSIG = 1
_NICE = 5  # behind the worker: a heartbeat takes a moment of a core, and an export takes all that it can get
# It waits for the lock that a living host holds; the JVM may write for a moment after that.
_BURY = """
import fcntl, os, shutil, sys, time
fcntl.flock(os.open(sys.argv[1] + "/lock", os.O_RDWR), fcntl.LOCK_EX)
for _ in range(20):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""


def die(*, unheard: bool = False) -> NoReturn:
    """
    End this process, the JVM, and all of their session; nothing here is worth a good-bye.

    The folder is the parent's to remove; where the parent is dead, a process that outlives this one does it.

    Args:
        unheard: The parent dies, but we may not have another yet: Linux closes its files before, and tells us of its death
            when the thread of it that made us ends, which need not be its last.
    """
    if unheard or os.getppid() != int(sys.argv[1]):
        folder = str(Path(tempfile.gettempdir()).parent)
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BURY, folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    end_own_session()  # Python workers of the JVM are in a process group of their own


def die_with(parent: int) -> None:
    """Arrange that this process dies when its parent does."""
    signal.signal(signal.SIGTERM, lambda *_: die(unheard=True))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before we asked
        die()


class Wire:
    """The two descriptors of the protocol."""

    def __init__(self) -> None:
        self.commands = os.fdopen(os.dup(0), "rb")
        self._events = os.fdopen(os.dup(1), "wb")
        self._turn = threading.Lock()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

    def send(self, message: Message) -> None:
        """Tell the parent; dies if there is none."""
        try:
            with self._turn:
                self._events.write(encode(message))
                self._events.flush()
        except OSError:
            die(unheard=True)


def main() -> None:
    """Run until told to stop, or until the parent or the JVM is gone."""
    for other in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # for the worker process; the JVM ignores them too
        signal.signal(other, signal.SIG_IGN)
    die_with(int(sys.argv[1]))
    os.nice(_NICE)
    wire = Wire()
    try:
        engine = _engine(wire, sys.argv[2:])
        engine.warm_up(Path(tempfile.gettempdir(), "warm-up"))
    except Exception as error:  # noqa: BLE001 - whatever keeps Spark from starting is told, and ends this process
        wire.send(Fatal(redact(first_line(error))))
        die()

    def leave() -> NoReturn:
        engine.abandon()
        die(unheard=True)

    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=leave, name="leave").start())
    pings: queue.SimpleQueue[int] = queue.SimpleQueue()
    stopping = threading.Event()
    threading.Thread(target=_answer, args=(engine, wire, pings), name="ping", daemon=True).start()
    threading.Thread(target=_outlive, args=(engine, stopping), name="outlive", daemon=True).start()
    wire.send(Ready(os.getpid(), dict(engine.versions)))
    for line in wire.commands:
        match decode_command(line):
            case Run() as run:
                engine.run(run)
            case Cancel(job):
                engine.cancel(job)
            case Ping(number):
                pings.put(number)
            case _:
                stopping.set()
                engine.stop()
                os._exit(0)  # at once: end of file, which tells the parent, must not come before the exit code
    leave()


def _engine(wire: Wire, kind: list[str]) -> Backend:
    """The engine that the parent asks for."""
    if kind != ["connect"]:
        return Engine(wire.send, die)

    def lost(why: str) -> NoReturn:
        wire.send(Fatal(why))
        die()

    command = decode_command(wire.commands.readline())
    assert isinstance(command, Connect), "the parent says it first"
    return ConnectEngine(wire.send, lost, command)


def _answer(engine: Backend, wire: Wire, pings: queue.SimpleQueue[int]) -> None:
    """Answer each ping after a round trip to Spark."""
    while True:
        number = pings.get()
        if engine.alive():
            wire.send(Pong(number))


def _outlive(engine: Backend, stopping: threading.Event) -> None:
    """Die with what there is no host without."""
    engine.outlive()
    if not stopping.is_set():
        die()
