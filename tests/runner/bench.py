"""A runner on a bench: its slots, its adapter and its clock are played, and a test drives it step by step."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any, cast

from steadyworker.adapter import Adapter, Capabilities, Connected, Delays, Delivered
from steadyworker.clock import Times
from steadyworker.delivery import KEY, Delivery, OutgoingMessage, Settle, Settled, Target
from steadyworker.errors import InterruptReason, TargetMissing
from steadyworker.events import Listener
from steadyworker.ledger.base import Claimed, JobId, Ledger, State, Token
from steadyworker.link import Task
from steadyworker.outcome import Counters, Outcome
from steadyworker.runner.runner import Runner, RunnerEvent
from steadyworker.runner.state import Deps
from steadyworker.slots.base import Ended, Ready, SlotPoll, SlotSink
from steadyworker.spec import spec_of
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.flaky_ledger import FlakyLedger
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.runner.kit import QUEUE, AnyWorker, worker

NAMESPACE = "bench"


class PlayedSlot:
    """A slot that the test makes warm, and whose runs the test ends."""

    stuck = broken = False
    last_turn = None

    def __init__(self, id: int) -> None:
        self.id = id
        self.up = False
        self.task: Task | None = None
        self.replies: list[tuple[int, object]] = []

    @property
    def warm(self) -> bool:
        return self.up and self.task is None

    def start(self, sink: SlotSink, poll: SlotPoll) -> None: ...

    def run(self, task: Task) -> None:
        self.task = task

    def reply(self, fence: int, id: int, answer: Any, *, refused: Any = None, end: bool = True) -> None:
        self.replies.append((id, refused or answer))

    def interrupt(self, fence: int, reason: InterruptReason, *, hard: bool) -> None: ...

    def kill(self, fence: int, outcome: Outcome) -> None: ...

    def stopping(self) -> None: ...

    def close(self, within: float) -> None: ...


class PlayedAdapter:
    """An adapter that records its calls."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.last_turn: float | None = None
        self.windows: list[int] = []
        self.settled: list[tuple[str, Settle]] = []
        self.published: list[OutgoingMessage] = []
        self.missing: set[Target] = set()

    def start(self, sink: Any) -> None: ...

    def prefetch(self, count: int) -> None:
        self.windows.append(count)

    def publish(self, message: OutgoingMessage) -> None:
        if message.to in self.missing:
            raise TargetMissing(f"Expected the {message.to.value} queue, but it is not there.")
        if message.to is Target.WORK and len(message.body) > 1 << 20:
            raise ValueError("Expected a smaller body.")
        self.published.append(message)

    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        self.settled.append((delivery.id, how))
        return Settled.CONFIRMED


class Bench:
    """A runner on a bench: everything around it is played, and settlement plans are carried out at once."""

    def __init__(
        self,
        cls: AnyWorker | None = None,
        *,
        slots: int = 1,
        delays: Delays = Delays.EXACT,
        adapter: PlayedAdapter | None = None,
        emit: Listener = lambda _event: None,
        submit: Callable[[Callable[[], None]], object] = lambda work: work(),
        **more: Any,
    ) -> None:
        self.clock = FakeClock()
        self.times = Times()
        self.real = MemoryLedger(self.clock, self.times)
        self.line = FlakyLedger(self.real)
        self.adapter = adapter or PlayedAdapter(Capabilities(delays=delays))
        self.slots = [PlayedSlot(number) for number in range(slots)]
        self._ids = itertools.count(1)
        deps = Deps(
            spec=spec_of(cls or worker(), {"isolation": "thread"}),
            namespace=NAMESPACE,
            owner="me",
            worker="me",
            ledger=cast(Ledger, self.line),
            adapter=cast(Adapter, self.adapter),
            slots=self.slots,
            clock=self.clock,
            times=self.times,
            emit=emit,
            submit=submit,
            **more,
        )
        self.runner = Runner(deps)
        self.handle(Connected(1), *(Ready(slot.id) for slot in self.slots))

    def handle(self, *happenings: RunnerEvent) -> None:
        for event in happenings:
            if isinstance(event, Ready):
                self.slots[event.slot].up = True
            if isinstance(event, Ended):
                self.slots[event.slot].task = None
            self.runner.handle(event)
            self.runner.drain_inbox()

    def deliver(self, key: str | None, body: bytes = b"{}", *, epoch: int = 1, **headers: str) -> Delivery:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        delivery = Delivery(epoch, f"d{next(self._ids)}", QUEUE, body, named | ({KEY: key} if key else {}))
        self.handle(Delivered(delivery))
        return delivery

    def elsewhere(self, key: str, owner: str = "another") -> Token:
        """Another worker process runs this job."""
        claim = Claimed(JobId(NAMESPACE, QUEUE, key), None, owner, 0, hashlib.sha256(b"{}").digest(), Counters())
        row = self.real.claim(claim)
        assert row is not None
        return row.token

    def ended(self, slot: int, outcome: Outcome, *, killed: bool = False) -> None:
        task = self.slots[slot].task
        assert task is not None
        self.handle(Ended(slot, task.fence, outcome, killed=killed))

    def tick(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.runner.tick()
        self.runner.drain_inbox()

    def state(self, key: str) -> State | None:
        row = self.real.read(JobId(NAMESPACE, QUEUE, key))
        return None if row is None else row.state
