"""A slot whose events and turns a test serves, in the place of a runner."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any, TypeVar

import pytest

from steadyworker.clock import SystemClock
from steadyworker.link import Task
from steadyworker.runner.state import Inbox
from steadyworker.slots.base import Asked, Ended, Progressed, Ready, Slot, SlotEvent, Unready
from steadyworker.slots.process import ProcessSlot
from steadyworker.slots.thread import ThreadSlot
from steadyworker.spec import spec_of
from steadyworker.worker import load_worker

SLOT_ARGUMENTS = ("setup_limit", "ping", "silence", "grace", "held", "guard")

Kind = TypeVar("Kind", Asked, Ended, Progressed, Ready, Unready)

SOON = 5.0
"""Seconds: five times the second within which the contract wants a slot warm again."""


class Rig:
    """One slot and its events."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.inbox: Inbox[SlotEvent] = Inbox()
        self.received: list[SlotEvent] = []
        self._fences = itertools.count(1)

    def open(self) -> None:
        """Start the slot, without a wait for its setup."""
        self.slot.start(self.inbox.post, self.inbox)

    def start(self) -> Rig:
        """Start the slot, and wait until it is ready."""
        self.open()
        self.next(Ready)
        return self

    def close(self, within: float) -> None:
        self.slot.close(within)
        self.inbox.close()

    def begin(self, do: str = "nothing", **given: Any) -> int:
        """Begin a run, and return its fence."""
        fence = next(self._fences)
        limits = {
            name: given.pop(name, None) for name in ("time_limit", "stall_limit", "last_checkpoint", "export_state")
        }
        body = given.pop("body", None) or json.dumps({"do": do, **given}).encode()
        facts = {"key": "k", "queue": "q", "uid": "u", "fence": fence, "attempt": 1, "body": body}
        self.slot.run(Task(**facts, **limits))  # type: ignore[arg-type]
        return fence

    def event(self, within: float = 20.0) -> SlotEvent:
        """Return the next event, which `received` keeps."""
        by = time.monotonic() + within
        while not self.inbox:
            if time.monotonic() >= by:
                pytest.fail(f"nothing more within {within:g} s; received {self.received}")
            self.inbox.wait(by - time.monotonic())
        self.received.append(self.inbox.pop())
        return self.received[-1]

    def next(self, kind: type[Kind], within: float = 20.0) -> Kind:
        """Return the next event of this kind, after any events before it."""
        while True:
            event = self.event(within)
            if isinstance(event, kind):
                return event

    def ended(self, do: str = "nothing", **given: Any) -> Ended:
        """Run a job from its begin to its end, and grant every request."""
        return self.ended_of(self.begin(do, **given))

    def ended_of(self, fence: int) -> Ended:
        """Return the end of this run, and grant every request until then."""
        while True:
            event = self.event()
            if isinstance(event, Asked):
                self.slot.reply(fence, event.id, True)
            if isinstance(event, Ended):
                assert event.fence == fence
                return event

    def begun(self, do: str, **given: Any) -> int:
        """Begin a run, and wait until its handler reports progress."""
        fence = self.begin(do, **given)
        self.next(Progressed)
        return fence


def rig_of(target: str, kind: str, *, module: str = "tests.slots.workers", **given: Any) -> Rig:
    """A slot for a Worker of `workers.py`, or of another module; keywords are attributes of the Worker, or arguments of the slot."""
    arguments = {name: given.pop(name) for name in SLOT_ARGUMENTS if name in given}
    spec = spec_of(load_worker(f"{module}:{target}"), {"isolation": kind, "memory_limit": None, **given})
    if kind == "process":
        return Rig(ProcessSlot(0, spec, clock=SystemClock(), log_format="json", **arguments))
    return Rig(ThreadSlot(0, spec, clock=SystemClock(), **arguments))
