"""
An exception at each line of a slot's threads, one at a time: the runner learns of it, or the worker process ends with 70.

A clean walk records the lines; then each line raises once, in a slot of its own.
No handler runs here, so the child is a `cat`, and a thread of the test speaks for it.
"""

from __future__ import annotations

import ast
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger import lease
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.lease import Keeper
from steadyworker.link import Task
from steadyworker.outcome import Crashed, Done, Interrupted
from steadyworker.slots import child_state, process, spawn, thread
from steadyworker.slots.base import Ended, Ready, Slot, SlotEvent, Unready
from steadyworker.slots.frames import Begin, Close, Downward, Hello, Unpacker, Warm, over, packed
from steadyworker.slots.process import ProcessSlot
from steadyworker.slots.spare import Started
from steadyworker.slots.thread import ThreadSlot
from steadyworker.spec import WorkerSpec, spec_of
from tests.slots.workers import Modes

Line = tuple[str, int]

DEADLY = 2
"""The fence of the run that its child does not survive."""

SILENCE = 10.0
"""Seconds without a word that count as silence."""


class Injected(Exception):
    pass


def lines_that_may_raise(file: str) -> set[int]:
    """The lines of a file that call something, or enter a context: a plain assignment raises nothing."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    calls = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return calls | {node.lineno for node in ast.walk(tree) if isinstance(node, ast.With)}


class Tracer:
    """Records the lines of these files that a thread enters and that may raise; raises at one of them, once."""

    def __init__(self, files: set[str], at: Line | None = None) -> None:
        self.lines: dict[Line, None] = {}
        self._files = {file: lines_that_may_raise(file) for file in files}
        self._at = at
        self.raised = False

    def around(self, body: Callable[..., None]) -> Callable[..., None]:
        def traced(*arguments: Any) -> None:
            sys.settrace(self._enter)
            try:
                body(*arguments)
            finally:
                sys.settrace(None)

        return traced

    def _enter(self, frame: FrameType, event: str, _argument: object) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and frame.f_lineno in self._files[frame.f_code.co_filename]:
            line = (frame.f_code.co_filename, frame.f_lineno)
            self.lines[line] = None
            if line == self._at:
                self._at, self.raised = None, True
                raise Injected(f"{Path(line[0]).name}:{line[1]}")
        return self._line


def started() -> Started:
    """Start what looks like a child from outside: it warms up, ends runs as Done, and dies at Close, or in its second run."""
    ours, theirs = socket.socketpair()
    cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def speak() -> None:
        frames: Unpacker[Downward] = Unpacker(Downward)
        assert cat.stdin is not None
        with theirs, cat.stdin:
            while data := theirs.recv(1 << 16):
                for frame in frames.feed(data):
                    match frame:
                        case Hello():
                            theirs.sendall(packed(Warm()))
                        case Begin(task=task) if task.fence == DEADLY:
                            return
                        case Begin(task=task):
                            theirs.sendall(packed(over(task.fence, Done())))
                        case Close():
                            return

    def safely() -> None:
        with suppress(OSError):  # the slot's end is closed
            speak()

    threading.Thread(target=safely, daemon=True).start()
    return Started(cat, ours)


class Walk:
    """What a runner does with a slot: start it again after `Unready`, run three jobs, close it."""

    def __init__(self, slot: Slot, tracer: Tracer) -> None:
        self.slot = slot
        self.tracer = tracer
        self.said: queue.SimpleQueue[SlotEvent] = queue.SimpleQueue()
        self.ends: list[Ended] = []
        self.unready = 0
        self.broken = False

    def next(self) -> SlotEvent | None:
        """Return the next event, or None if a thread of the slot has died."""
        for _ in range(round(SILENCE / 0.02)):
            try:
                return self.said.get(timeout=0.02)
            except queue.Empty:
                self.broken = self.slot.broken
                if self.broken:
                    return None
        pytest.fail(f"silence: {self.ends}, {self.unready}× unready")

    def start(self) -> bool:
        """Warm up; return False if the slot is broken."""
        self.slot.start(self.said.put)
        while not isinstance(event := self.next(), Ready):
            if event is None:
                return False
            if isinstance(event, Unready):
                self.unready += 1
                self.slot.start(self.said.put)
        return True

    def run(self, fence: int) -> bool:
        """Run a job, and leave the slot warm; return False if it is broken."""
        body = b'{"do": "nothing"}'
        unready = self.unready
        self.slot.run(Task(key="k", queue="modes", uid="u", fence=fence, attempt=1, body=body, time_limit=60.0))
        while True:
            event = self.next()
            if event is None:
                return False
            if isinstance(event, Ended):
                self.ends.append(event)
                break
            if isinstance(event, Unready):
                self.unready += 1
        return self.start() if self.unready > unready or self.became_unready() else not self.broken

    def became_unready(self) -> bool:
        """Return whether the slot says that it has ended, rather than that it is warm again."""
        while not self.slot.warm:
            match self.next():
                case Unready():
                    self.unready += 1
                    return True
                case Ended() as event:  # for the second time: the runner ignores it
                    self.ends.append(event)
                case None:
                    return False
                case _:
                    pass
        return False

    def whole(self) -> None:
        """Take the whole way; each run must have ended, and a fault before the stop be noticed."""
        try:
            if self.start() and all(self.run(fence) for fence in (1, 2, 3)):
                assert {event.fence for event in self.ends} == {1, 2, 3}
            for event in self.ends:
                assert isinstance(event.outcome, Done | Crashed | Interrupted), event
            while self.tracer.raised and not self.unready and not self.broken:
                self.next()
        finally:
            self.slot.close(5.0)


def spec(kind: str) -> WorkerSpec:
    return spec_of(Modes, {"isolation": kind, "memory_limit": None})


def walked(kind: str, body: str, at: Line | None = None) -> tuple[Walk, Tracer]:
    """Walk with a slot, one of whose threads raises at this line."""
    files = {module.__file__ for module in (process, child_state, spawn, thread)}
    tracer = Tracer(cast(set[str], files), at)
    slot = (
        ProcessSlot(0, spec("process"), clock=SystemClock())
        if kind == "process"
        else ThreadSlot(0, spec("thread"), clock=SystemClock())
    )
    setattr(slot, body, tracer.around(getattr(slot, body)))
    walk = Walk(slot, tracer)
    walk.whole()
    return walk, tracer


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that die are what is looked for, and not a failure of the test."""
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)
    monkeypatch.setattr(process, "start", started)


@pytest.mark.long
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("kind", "body"), [("process", "_live"), ("thread", "_work"), ("thread", "_keep")])
def test_an_exception_at_any_line_of_a_slots_thread_is_unready_or_exit_70(kind: str, body: str) -> None:
    children = set(psutil.Process().children(recursive=True))
    clean, tracer = walked(kind, body)
    for _ in range(9):  # on a busy machine, a walk can be over before the traced thread has had its turn
        if len(tracer.lines) <= 5:
            clean, tracer = walked(kind, body)
    assert [type(event.outcome) for event in clean.ends] == [Done, Crashed if kind == "process" else Done, Done]
    assert clean.unready == 0
    assert len(tracer.lines) > 5
    for line in tracer.lines:
        walked(kind, body, line)
    assert set(psutil.Process().children(recursive=True)) <= children


class Away:
    """A ledger without jobs, and a holder without runs."""

    def __getattr__(self, name: str) -> Callable[..., tuple[()]]:
        return lambda *_arguments: ()


@pytest.mark.usefixtures("quiet")
def test_an_exception_at_any_line_of_the_ledgers_keeper_ends_its_thread_and_so_the_worker_process() -> None:
    def kept(at: Line | None) -> tuple[bool, Tracer]:
        """Return whether the keeper still turns after some turns."""
        times = Times().scaled(1000)
        keeper = Keeper(cast(Ledger, Away()), "me", "here", ["q"], [cast(lease.Holder, Away())], SystemClock(), times)
        tracer = Tracer({lease.__file__}, at)
        body = threading.Thread(target=tracer.around(keeper.run), daemon=True)
        body.start()
        body.join(0.1)
        turns = body.is_alive()
        keeper.end()
        body.join(SILENCE)
        return turns, tracer

    turns, clean = kept(None)
    assert turns
    assert len(clean.lines) > 5
    assert not [line for line in clean.lines if kept(line)[0]]
