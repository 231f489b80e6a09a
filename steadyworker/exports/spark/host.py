"""
The program of the Spark host, which `process.py` starts.
Its arguments are the parent's process id and, for Spark Connect, `connect`.

- The host's standard input and output carry the protocol.
  The host first moves both to other descriptors, and connects descriptor 1 to the log.
  So output of the JVM cannot break the protocol.
- The host leads a process session of its own (setsid).
  When the host ends, all processes of that session are killed, because the JVM's Python workers have another process group.
  The worker process removes the host's folder; if it died too, the next worker process here does (`process.reap_folders`).
- The host ends when its parent dies (PDEATHSIG, end of file), when its JVM dies, or at the command `stop`.
  The host also ends when its Spark Connect server has lost a job.
- The host starts Spark before any thread.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NoReturn

from steadyworker.exports.spark.connect import ConnectEngine
from steadyworker.exports.spark.engine import Engine
from steadyworker.exports.spark.protocol import (
    Cancel,
    Connect,
    Fatal,
    HostPong,
    HostReady,
    Message,
    PingHost,
    RunExport,
    decode_command,
    encode,
)
from steadyworker.exports.spark.query import first_line
from steadyworker.system.procfs import end_own_session
from steadyworker.text.redaction import redact

_PR_SET_PDEATHSIG = 1
_NICE = 5  # lower priority than the worker process, whose heartbeats must not wait for an export
_SPEAK = 1.0  # seconds in which `_outlive` reports the end of a JVM that no longer responds
_ENDS = {
    3: "ran out of memory: raise spark.driver.memory in spark_conf",  # from -XX:+ExitOnOutOfMemoryError
    -signal.SIGKILL: "was killed by SIGKILL, as the system does when memory is short: compare spark.driver.memory with the machine",
}


def die_with(parent: int) -> None:
    """Make this process die with its parent, and the JVM and the rest of their session with this process."""
    signal.signal(signal.SIGTERM, lambda *_: end_own_session())
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent has died before the call of prctl
        end_own_session()


class HostWire:
    """The host's side of the protocol: commands from stdin, and events to stdout, both on descriptors of their own."""

    def __init__(self) -> None:
        self.commands = os.fdopen(os.dup(0), "rb")
        self._events = os.fdopen(os.dup(1), "wb")
        self._turn = threading.Lock()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

    def send(self, message: Message) -> None:
        """Send a message to the parent; kill this process if the parent is gone."""
        try:
            with self._turn:
                self._events.write(encode(message))
                self._events.flush()
        except OSError:
            end_own_session()


def main() -> None:
    """Run until the command `stop`, or until the parent or the JVM is gone."""
    for other in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # the JVM inherits SIG_IGN
        signal.signal(other, signal.SIG_IGN)
    die_with(int(sys.argv[1]))
    os.nice(_NICE)
    wire = HostWire()
    try:
        engine = _engine(wire, sys.argv[2:])
    except Exception as error:  # noqa: BLE001 - any error at the start is sent to the parent, and ends this process
        wire.send(Fatal(redact(first_line(error))))
        end_own_session()

    def leave() -> NoReturn:
        if isinstance(engine, ConnectEngine):  # executors end with their driver, but a server's jobs do not
            engine.abandon()
        end_own_session()

    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=leave, name="leave").start())
    pings: queue.SimpleQueue[PingHost] = queue.SimpleQueue()
    stopping = threading.Event()
    threading.Thread(target=_answer, args=(engine, wire, pings), name="ping", daemon=True).start()
    if isinstance(engine, Engine):
        threading.Thread(target=_outlive, args=(engine, wire, stopping), name="outlive", daemon=True).start()
    wire.send(HostReady({"pyspark": engine.version}))
    for line in wire.commands:
        match decode_command(line):
            case RunExport() as run:
                engine.run(run)
            case Cancel(job):
                engine.cancel(job)
            case PingHost() as ping:
                pings.put(ping)
            case _:
                stopping.set()
                engine.stop()
                os._exit(0)  # exit at once, so that the parent does not read end of file long before the exit code
    leave()


def _engine(wire: HostWire, kind: list[str]) -> Engine | ConnectEngine:
    """Return the engine for the arguments of this process, ready for its first job."""

    def gone(why: str) -> NoReturn:
        if why:
            lost(why)
        time.sleep(_SPEAK)
        end_own_session()

    def lost(why: str) -> NoReturn:
        wire.send(Fatal(why))
        end_own_session()

    if kind != ["connect"]:
        engine = Engine(wire.send, gone)
        engine.warm_up(Path(tempfile.gettempdir(), "warm-up"))
        return engine
    command = decode_command(wire.commands.readline())
    assert isinstance(command, Connect), "the parent sends it first"
    return ConnectEngine(wire.send, lost, command)


def _answer(engine: Engine | ConnectEngine, wire: HostWire, pings: queue.SimpleQueue[PingHost]) -> None:
    """Reply to each ping after a round trip to Spark."""
    while True:
        pings.get()
        if engine.alive():
            wire.send(HostPong())


def _outlive(engine: Engine, wire: HostWire, stopping: threading.Event) -> None:
    """Report how the engine's JVM has died, and kill this process."""
    code = engine.outlive()
    if not stopping.is_set():
        end = f"was killed by signal {-code}" if code < 0 else f"ended by itself with exit code {code}"
        wire.send(Fatal(f"Spark's JVM {_ENDS.get(code, end)}"))
        end_own_session()
