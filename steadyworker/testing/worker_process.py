"""
One worker process of a Harness, which has all parts of a real worker process except threads, signals and exit code.

The Harness runs the turns of runners, keeper and settlements in the test's thread.
Only handlers run elsewhere: in the threads of their slots, or in real children.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from steadyworker.adapter import QueueSpec
from steadyworker.clock import SystemClock, Times
from steadyworker.events import Listener
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.lease import Keeper, registered_name
from steadyworker.lifecycle import Stage
from steadyworker.runner.runner import Runner, RunnerEvent
from steadyworker.runner.state import Deps, Phase, Run, Staged
from steadyworker.slots.base import Slot, SlotPoll, SlotSink, Unready
from steadyworker.slots.process import ProcessSlot
from steadyworker.slots.thread import ThreadSlot
from steadyworker.spec import WorkerSpec
from steadyworker.testing.broker import MemoryBroker
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.flaky_ledger import FlakyLedger
from steadyworker.testing.memory_adapter import MemoryAdapter

NAMESPACE = "harness"
_SOON = 1.0


class WorkerProcess:
    """
    One worker process.

    Attributes:
        ledger: The process's own connection to the ledger, which a test can cut.
        runners: The runners, one for each Worker.
        adapters: The adapters, one for each Worker, in the same order.
        frozen: True while the process does nothing, like a stopped process. The broker then delivers nothing to this process.
    """

    def __init__(
        self,
        owner: str,
        specs: Sequence[WorkerSpec],
        broker: MemoryBroker,
        ledger: Ledger,
        clock: FakeClock,
        *,
        emit: Listener,
        wake: Callable[[], None],
        adoption: bool,
        processes: bool,
    ) -> None:
        self.owner = owner
        self.ledger = FlakyLedger(ledger)
        self.frozen = False
        self.stopped = False
        self._clock = clock
        self._times = Times()
        self._submitted: deque[Callable[[], None]] = deque()
        self._windows: list[int] = []
        self.adapters: list[MemoryAdapter] = []
        self.runners: list[Runner] = []
        line = cast(Ledger, self.ledger)
        for spec in specs:
            adapter = broker.adapter(QueueSpec(spec.queue, spec.dead_letter_queue, spec.concurrency))
            deps = Deps(
                spec=spec,
                namespace=NAMESPACE,
                owner=owner,
                worker=owner,
                ledger=line,
                adapter=adapter,
                slots=[_slot(number, spec, clock, processes=processes) for number in range(spec.concurrency)],
                clock=clock,
                times=self._times,
                emit=emit,
                submit=self._submitted.append,
                hurry=self._hurry,
                adoption=adoption,
            )
            self.adapters.append(adapter)
            self.runners.append(_HarnessRunner(deps, wake))
        queues = [registered_name(NAMESPACE, spec.queue) for spec in specs]
        self._keeper = Keeper(line, owner, owner, queues, self.runners, clock, self._times)
        self._keeper_due = self._cancels_due = clock.monotonic()
        for runner in self.runners:
            runner.start()

    def turn(self) -> bool:
        """Do everything that is due now, without waiting; return whether anything was due."""
        if self.frozen or self.stopped:
            return False
        done = self._clock.monotonic() >= self._keeper_due
        if done:
            self._keeper.turn()
            self._keeper_due = self._clock.monotonic() + (_SOON if self._keeper.away else self._times.renew)
        if self._reads_cancels and self._clock.monotonic() >= self._cancels_due:
            self._keeper.read_orders()
            self._cancels_due = self._clock.monotonic() + self._times.cancel_poll
            done = True
        for runner in self.runners:
            done |= runner.drain_inbox() > 0 or runner.timers.next_in() == 0.0
            runner.tick()
        while self._submitted:
            self._submitted.popleft()()
            done = True
        return done

    @property
    def busy(self) -> bool:
        """True if another thread of the process works: a handler that does not wait for a reply, or a slot's `setup`."""
        return not (self.frozen or self.stopped) and any(
            _is_busy(slot, runner) for runner in self.runners for slot in runner.deps.slots
        )

    @property
    def warming(self) -> bool:
        """True if a slot's `setup` has neither returned nor failed."""
        return any(_is_warming(slot, runner) for runner in self.runners for slot in runner.deps.slots)

    @property
    def idle(self) -> bool:
        """True if nothing runs in the process, so that only a message can give the process work."""
        return (
            self.frozen
            or self.stopped
            or all(runner.idle and runner.not_ready().keys() <= {"stage"} for runner in self.runners)
        )

    @property
    def due_in(self) -> float:
        """The seconds until the next timer, renewal or read of the cancel marks."""
        timers = (runner.timers.next_in() for runner in self.runners)
        keeper = min(self._keeper_due, self._cancels_due) if self._reads_cancels else self._keeper_due
        return max(0.0, min(keeper - self._clock.monotonic(), *(due for due in timers if due is not None)))

    @property
    def _reads_cancels(self) -> bool:
        """True while the process reads cancel marks: jobs run here, and the ledger responds."""
        return not self._keeper.away and any(runner.tokens() for runner in self.runners)

    def run_of(self, key: str) -> Run | None:
        """Return the run of this job that is in a slot here and was not dropped, or None."""
        runs = (run for runner in self.runners for run in runner.state.by_fence.values())
        return next(
            (
                run
                for run in runs
                if run.token.id.key == key and run.slot is not None and run.phase is not Phase.DROPPED
            ),
            None,
        )

    def has(self, fence: int) -> bool:
        """Return whether the run of this fence, or its settlement, is in progress here."""
        return not self.stopped and any(fence in runner.state.by_fence for runner in self.runners)

    def freeze(self) -> None:
        """Stop all work until `thaw`, including renewals and replies; only handlers go on."""
        self.frozen = True
        self._windows = [adapter.consumer.window for adapter in self.adapters]
        for adapter in self.adapters:
            adapter.prefetch(0)

    def thaw(self) -> None:
        """Resume all work, with the prefetch that the process had before `freeze`."""
        self.frozen = False
        for adapter, window in zip(self.adapters, self._windows, strict=True):
            adapter.prefetch(window)

    def enter(self, stage: Stage, *, kill: bool = False) -> None:
        """Enter this stage at the next turn; `kill` ends the jobs that still run."""
        for runner in self.runners:
            runner.post(Staged(stage, kill=kill))

    @property
    def finished(self) -> bool:
        """True if the process is stopped, or if every runner has finished after the start of a stop."""
        return self.stopped or all(runner.finished for runner in self.runners)

    def close(self) -> None:
        """Close every part; un-settled messages are delivered to other consumers."""
        if self.stopped:
            return
        self.stopped = True
        for runner in self.runners:
            for slot in runner.deps.slots:
                slot.close(_SOON)
            runner.inbox.close()
        for adapter in self.adapters:
            adapter.stop(0.0)

    def _hurry(self) -> None:
        self._keeper_due = self._clock.monotonic()


class _HarnessRunner(Runner):
    """A runner that wakes the test's thread at each event."""

    def __init__(self, deps: Deps, wake: Callable[[], None]) -> None:
        self._wake = wake
        super().__init__(deps)

    def post(self, event: RunnerEvent) -> None:
        if isinstance(event, Unready):
            _slot_of(self.deps.slots, event.slot).down = True
        super().post(event)
        self._wake()


class _HarnessThread(ThreadSlot):
    """A thread slot that records whether it has failed since its last start."""

    down = False

    def start(self, sink: SlotSink, poll: SlotPoll) -> None:
        self.down = False
        super().start(sink, poll)


class _HarnessProcess(ProcessSlot):
    """A process slot that records whether it has failed since its last start."""

    down = False

    def start(self, sink: SlotSink, poll: SlotPoll) -> None:
        self.down = False
        super().start(sink, poll)


def _slot(number: int, spec: WorkerSpec, clock: FakeClock, *, processes: bool) -> Slot:
    """Return a new slot; a child process uses the machine's clock, because fake time does not reach it."""
    return (
        _HarnessProcess(number, spec, clock=SystemClock()) if processes else _HarnessThread(number, spec, clock=clock)
    )


def _slot_of(slots: Sequence[Slot], number: int) -> _HarnessThread | _HarnessProcess:
    return next(slot for slot in slots if isinstance(slot, (_HarnessThread, _HarnessProcess)) and slot.id == number)


def _run_in(slot: Slot, runner: Runner) -> Run | None:
    return next((run for run in runner.state.by_fence.values() if run.slot is slot), None)


def _is_warming(slot: Slot, runner: Runner) -> bool:
    given_up = slot.stuck or _slot_of([slot], slot.id).down
    return not given_up and not slot.warm and _run_in(slot, runner) is None


def _is_busy(slot: Slot, runner: Runner) -> bool:
    run = _run_in(slot, runner)
    return _is_warming(slot, runner) if run is None else not (slot.stuck or run.waiting)
