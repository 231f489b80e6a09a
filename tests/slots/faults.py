"""
The walks of slots, in which a thread raises an exception at a chosen place.

No handler runs in a process slot's walk: the child is a `cat`, and a thread of the test sends its frames.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from steadyworker import Job, Worker
from steadyworker.clock import SystemClock
from steadyworker.link import SaveCheckpoint, Task
from steadyworker.outcome import Crashed, Done, Failed, Interrupted, Outcome, Rejected
from steadyworker.runner.state import Inbox
from steadyworker.slots import child_process, execute, frames, guard, process, runs, spawn, thread
from steadyworker.slots.base import Asked, Ended, Progressed, Slot, SlotEvent, Unready
from steadyworker.slots.frames import (
    Begin,
    Close,
    Hello,
    Ping,
    Pong,
    ProgressMade,
    Reply,
    RequestMade,
    RunEnded,
    SetupDone,
    SetupFailed,
    Stop,
    ToChild,
    Unpacker,
    packed,
    run_ended,
)
from steadyworker.slots.guard import Guard
from steadyworker.slots.process import ProcessSlot
from steadyworker.slots.spawn import NewChild
from steadyworker.slots.thread import ThreadSlot
from steadyworker.spec import spec_of
from tests.slots.tracer import Injected, InjectedBase, Place, Tracer

SILENCE = 10.0
"""Seconds without an event that count as silence."""

CANCEL_GRACE = 1.0
"""Seconds after which the runner kills a cancelled run that has not ended."""

_POLL = 0.01

TRACED = (process, child_process, runs, spawn, thread, frames, guard, execute)


class Children:
    """Starts processes in the place of children; each does what the body of its task names."""

    def __init__(self, cold: int = 0) -> None:
        self._cold = cold
        self._started: list[tuple[subprocess.Popen[bytes], socket.socket, socket.socket]] = []

    def start(self, *, lines: bool) -> NewChild:
        del lines
        ours, theirs = socket.socketpair()
        command = ["sh", "-c", 'trap "" TERM QUIT; exec cat']
        cat = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
        self._started.append((cat, theirs, ours))
        self._cold -= 1
        threading.Thread(target=self._serve, args=(cat, theirs, self._cold >= 0), daemon=True).start()
        return NewChild(cat, ours)

    def end(self) -> None:
        """Kill the children that a dead slot has left: the worker process would end with them."""
        for cat, theirs, ours in self._started:
            with suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)
            ours.close()
            cat.kill()
            cat.wait()

    def _serve(self, cat: subprocess.Popen[bytes], wire: socket.socket, cold: bool) -> None:
        unpacker: Unpacker[ToChild] = Unpacker(ToChild)
        task: Task | None = None
        assert cat.stdin is not None
        with suppress(OSError), wire, cat.stdin:  # the slot's end is closed
            while data := wire.recv(1 << 16):
                for frame in unpacker.feed(data):
                    match frame:
                        case Hello() if cold:
                            wire.sendall(packed(SetupFailed("it is cold")))
                            return
                        case Begin(task=task):
                            if (sent := self._begun(task)) is None:
                                return
                            wire.sendall(sent)
                        case Close():
                            return
                        case _:
                            wire.sendall(self._answer(frame, task))

    def _answer(self, frame: ToChild, task: Task | None) -> bytes:
        match frame:
            case Hello():
                return packed(SetupDone())
            case Ping():
                return packed(Pong())
            case Reply(fence=fence):
                return packed(run_ended(fence, Done()))
            case Stop(fence=fence, hard=True) if task is not None and b"obey" in task.body:
                return packed(run_ended(fence, Rejected("cancelled")))
            case _:
                return b""

    def _begun(self, task: Task) -> bytes | None:
        """The bytes that the child sends when its run begins; None if the child ends."""
        begun = packed(ProgressMade(task.fence, None, None, "begun"))
        match json.loads(task.body)["do"]:
            case "nothing":
                return packed(run_ended(task.fence, Done()))
            case "ask":
                return begun + packed(RequestMade(task.fence, 1, SaveCheckpoint(b"1")))
            case "obey" | "hang":
                return begun
            case "babble":
                return begun + b"\xff" * 100
            case "lie":
                return begun + packed(RunEnded(task.fence, "Delighted", {}))
            case _:
                return None


class Threaded(Worker[dict[str, str]]):
    """The handler of thread slots: it does what the payload names."""

    queue = "threaded"
    time_limit = 60
    isolation = "thread"
    released = threading.Event()
    hanging = threading.Event()
    cold = 0
    slow = 0

    def setup(self) -> None:
        cls = type(self)
        cls.cold -= 1
        cls.slow -= 1
        if cls.cold >= 0:
            raise ValueError("it is cold")
        if cls.slow >= 0:
            self.released.wait()

    def handle(self, job: Job[dict[str, str]]) -> None:
        job.progress(note="begun")
        match job.payload["do"]:
            case "ask":
                job.checkpoint(1)
            case "die":
                raise ValueError("boom")
            case "obey":
                while not self.released.wait(0.005):
                    job.check()
            case "hang":
                self.hanging.set()
                self.released.wait()


class Asynchronous(Worker[dict[str, str]]):
    """The same on an event loop."""

    queue = "asynchronous"
    time_limit = 60
    isolation = "thread"

    async def handle(self, job: Job[dict[str, str]]) -> None:
        job.progress(note="begun")
        if job.payload["do"] == "obey":
            Threaded.hanging.set()
            while not Threaded.released.is_set():  # noqa: ASYNC110 - a thread sets it
                await asyncio.sleep(0.005)


Act = Callable[[Slot, int], None]


def nothing(_slot: Slot, _fence: int) -> None:
    """Leave the run alone."""


def cancel(slot: Slot, fence: int) -> None:
    slot.interrupt(fence, "cancelled", hard=True)


def kill(slot: Slot, fence: int) -> None:
    slot.kill(fence, Failed("killed"))


def until_it_hangs(act: Act) -> Act:
    """Act once the handler is beyond its Job call, which would raise Interrupt; a fault can prevent that it gets there."""

    def later(slot: Slot, fence: int) -> None:
        Threaded.hanging.wait(1.0)
        Threaded.hanging.clear()
        act(slot, fence)

    return later


@dataclass(frozen=True)
class Step:
    """One run: what its handler does, what the runner does once the handler has begun, and the outcome without a fault."""

    do: str = "nothing"
    outcome: type[Outcome] = Done
    act: Act = nothing
    time_limit: float = 60.0
    stall_limit: float | None = None


@dataclass(frozen=True)
class Scenario:
    """A slot, and its runs; each scenario ends with two runs without trouble."""

    name: str
    steps: tuple[Step, ...] = ()
    worker: type[Worker[Any, Any]] = Threaded
    attributes: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    cold: int = 0
    """How many children, or threads, fail in their setup before one does not."""
    slow: int = 0
    """How many threads take too long for their setup before one does not."""
    sink_fails: bool = False
    """True if the slot fails by itself, when it reports the end of the first run."""
    stuck: bool = False
    """True if the scenario leaves a thread that has not ended: then the worker process ends with exit code 70."""

    @property
    def outcomes(self) -> list[type[Outcome]]:
        """The outcomes of all runs without a fault."""
        last = [] if self.stuck else [Done, Done]
        return [Crashed if self.sink_fails else Done, *(step.outcome for step in self.steps), *last]

    @property
    def unready(self) -> int:
        """How often the slot is unready without a fault."""
        return self.cold + self.slow + self.sink_fails

    def __str__(self) -> str:
        return self.name


class Walk:
    """What a runner does with a slot: start it again after `Unready`, run the jobs of a scenario, close it."""

    def __init__(self, slot: Slot, scenario: Scenario, tracer: Tracer) -> None:
        self.slot = slot
        self.scenario = scenario
        self.tracer = tracer
        self.inbox: Inbox[SlotEvent] = Inbox()
        self.ends: dict[int, Ended] = {}
        self.begun: list[int] = []
        self.unready = 0
        self.broken = False
        self._sink_fails = scenario.sink_fails

    def sink(self, event: SlotEvent) -> None:
        if self._sink_fails and isinstance(event, Ended):
            self._sink_fails = False
            raise ValueError("the sink failed")
        self.inbox.post(event)

    def until(
        self,
        reached: Callable[[], bool],
        act: Callable[[SlotEvent], None] = lambda _: None,
        cancelled: int | None = None,
    ) -> bool:
        """
        Receive events until this is true; return False if the worker process would end instead.

        Kill the cancelled run if nothing happens, as the runner does.
        """
        silent_since, killed = time.monotonic(), False
        while not reached():
            if not self.inbox:
                # A worker process ends when the runner's thread or a slot's thread has died, or a thread must be abandoned.
                self.broken = not self._turn() or self.slot.broken or (self.slot.stuck and not self.scenario.stuck)
                if self.broken:
                    return False
                silence = time.monotonic() - silent_since
                if silence > CANCEL_GRACE and cancelled is not None and not killed:
                    killed = True
                    self.slot.kill(cancelled, Rejected("cancelled"))
                if silence > SILENCE:
                    pytest.fail(f"silence: begun {self.begun}, ended {self.ends}, {self.unready}× unready")
                continue
            event, silent_since = self.inbox.pop(), time.monotonic()
            if isinstance(event, Unready):
                self.unready += 1
                self.slot.start(self.sink, self.inbox)
            if isinstance(event, Ended):
                self.ends.setdefault(event.fence, event)  # the runner ignores a second one
            act(event)
        return True

    def _turn(self) -> bool:
        """Wait for an event, and serve the slot; return False if that raises, because the runner's thread would die."""
        try:
            self.inbox.wait(_POLL)
        except (Injected, InjectedBase, ValueError):
            return False
        return True

    def run(self, fence: int, step: Step) -> bool:
        """Run a job on the warm slot."""

        def respond(event: SlotEvent) -> None:
            if isinstance(event, Asked):
                self.slot.reply(fence, event.id, True)
            if isinstance(event, Progressed) and event.note == "begun":
                step.act(self.slot, fence)

        if not self.until(lambda: self.slot.warm):
            return False
        body = json.dumps({"do": step.do}).encode()
        task = Task(
            key="k",
            queue="q",
            uid="u",
            fence=fence,
            attempt=1,
            body=body,
            time_limit=step.time_limit,
            stall_limit=step.stall_limit,
        )
        self.begun.append(fence)
        self.slot.run(task)
        return self.until(lambda: fence in self.ends, respond, fence if step.outcome is Rejected else None)

    def whole(self, noticed: Callable[[Walk], bool]) -> None:
        """Run all steps; each run must have ended, and a fault before the stop must be noticed."""
        try:
            self.slot.start(self.sink, self.inbox)
            steps = [Step(), *self.scenario.steps] + [Step()] * (0 if self.scenario.stuck else 2)
            if all(self.run(fence, step) for fence, step in enumerate(steps, 1)):
                self.until(lambda: not self.tracer.raised or noticed(self))
            if self.scenario.stuck and not self.broken:
                assert self.slot.stuck
        finally:
            Threaded.released.set()
            if self.broken:  # the runner's thread would be dead
                self.inbox.thread = _dead_thread()
            with suppress(
                Injected, InjectedBase
            ):  # the runner's thread would die of it, while the worker process stops
                self.slot.close(0.5)
            self.inbox.close()
            for thread in getattr(self.slot, "_abandoned", ()):
                thread.join(SILENCE)
            Threaded.released.clear()


def is_unready(walk: Walk) -> bool:
    return walk.unready > 0


def is_unready_or_an_outcome(walk: Walk) -> bool:
    """In the lines around a handler, an exception counts as the handler's own."""
    return is_unready(walk) or any(isinstance(end.outcome, Failed) for end in walk.ends.values())


PROCESS = (
    Scenario("jobs that end by themselves", (Step("ask"), Step("die", Crashed))),
    Scenario("a job that is cancelled", (Step("obey", Rejected, cancel),)),
    Scenario("a job that is killed", (Step("hang", Failed, kill),)),
    Scenario("a job at its time limit", (Step("hang", Failed, time_limit=0.1),)),
    Scenario("a job that stalls", (Step("hang", Failed, stall_limit=0.2),)),
    Scenario("a job above its memory limit", (Step("hang", Crashed),), attributes={"memory_limit": "1 KB"}),
    Scenario("a job that writes to the socket", (Step("babble", Crashed),)),
    Scenario("a job with an unknown outcome", (Step("lie", Crashed),)),
    Scenario("a child that is replaced after each job", attributes={"jobs_per_child": 1}),
    Scenario("a child whose setup fails", cold=1),
    Scenario("a slot that fails", sink_fails=True),
    Scenario("a child that is pinged", (Step("hang", Failed, time_limit=0.2),), arguments={"ping": 0.05}),
)

THREAD = (
    Scenario("jobs that end by themselves", (Step("ask"), Step("die", Failed))),
    Scenario("a job that is cancelled", (Step("obey", Rejected, cancel),)),
    Scenario("a job that is killed", (Step("obey", Failed, kill),)),
    Scenario("a job at its time limit", (Step("obey", Failed, time_limit=0.1),)),
    Scenario("a job that stalls", (Step("obey", Failed, stall_limit=0.2),)),
    Scenario("a setup that fails", cold=1),
    Scenario("a slot that fails", sink_fails=True),
    Scenario("a setup that takes too long", slow=1, arguments={"setup_limit": 0.5}, stuck=True),
    Scenario("a coroutine that is cancelled", (Step("obey", Rejected, until_it_hangs(cancel)),), worker=Asynchronous),
    Scenario(
        "a job that does not end", (Step("hang", Failed, until_it_hangs(kill)),), arguments={"grace": 0.05}, stuck=True
    ),
)


def walked(
    kind: str, body: str, scenario: Scenario, at: Place | None = None, error: type[BaseException] = Injected
) -> tuple[Walk, Tracer]:
    """Take a walk with a slot, one of whose threads raises at this place."""
    tracer = Tracer(TRACED, at, error)
    spec = spec_of(scenario.worker, {"memory_limit": None, "isolation": kind} | scenario.attributes)
    clock = SystemClock()
    watch = Guard((), clock)
    children = Children(scenario.cold)
    loops: list[asyncio.Runner] = []
    runner = asyncio.Runner

    def made() -> asyncio.Runner:
        loops.append(runner())
        return loops[-1]

    Threaded.cold, Threaded.slow = scenario.cold, scenario.slow
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "start_child", children.start)
        patch.setattr(Guard, "_started", _cat)
        patch.setattr(asyncio, "Runner", made)
        patch.setattr(child_process, "_TICK", 0.05)
        patch.setattr(child_process, "_STACKS_TIME", 0.05)
        patch.setattr(threading, "excepthook", lambda _arguments: None)  # the tests want threads that die
        make: Any = ProcessSlot if kind == "process" else ThreadSlot
        slot = make(0, spec, clock=clock, guard=watch, **scenario.arguments)
        setattr(slot, body, tracer.around(getattr(slot, body)))
        walk = Walk(slot, scenario, tracer)
        in_handlers_call = at is not None and any(file == execute.__file__ for file, *_ in at)
        logging.disable()  # pytest would keep each record, and all that its exception's frames hold
        try:
            walk.whole(is_unready_or_an_outcome if in_handlers_call else is_unready)
        finally:
            logging.disable(logging.NOTSET)
            watch.close()
            children.end()
            if (child := getattr(slot, "_child", None)) is not None:  # of a dead thread: its worker process would end
                child.end()
            for loop in loops:  # a fault in the slot's own lines leaves it open
                loop.close()
    return walk, tracer


def _cat(_guard: Guard) -> subprocess.Popen[bytes]:
    """Start a process in the place of the guard process."""
    return subprocess.Popen(["cat"], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _dead_thread() -> threading.Thread:
    thread = threading.Thread(target=threading.get_ident)
    thread.start()
    thread.join()
    return thread


def documented(end: Ended) -> bool:
    return isinstance(end.outcome, Done | Crashed | Interrupted | Failed | Rejected)
