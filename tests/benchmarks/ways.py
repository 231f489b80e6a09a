"""
Jobs that do nothing, taken from one queue in four ways: `python -m tests.benchmarks.ways bare|thread|process|memory JOBS`.

Each prints the seconds from the first job to the settlement of the last one.
`bare` is what the queue itself costs: receive and acknowledge, without ledger, slots and logs.
`memory` is what the runtime itself costs: thread slots, with queue and ledger in memory, and without logs.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

from steadyworker import run
from steadyworker.adapter import Delivered, OutgoingMessage, QueueSpec, Settle, Signal, Target
from steadyworker.backends.opening import open_adapter_for
from steadyworker.clock import SystemClock, Times
from steadyworker.config import resolve as config
from steadyworker.events import Event, JobSettled, JobStarted
from steadyworker.runner.runner import Runner
from steadyworker.runner.state import Deps
from steadyworker.service.pool import SettlePool
from steadyworker.slots.thread import ThreadSlot
from steadyworker.spec import spec_of
from steadyworker.testing.broker import MemoryBroker
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.benchmarks.noop import SLOTS, Processes, Threads

_CLOCK = SystemClock()


class Watch:
    """A listener that measures from the first start to the last settlement."""

    def __init__(self) -> None:
        self.first = self.last = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case JobStarted():
                self.first = self.first or _CLOCK.monotonic()
            case JobSettled():
                self.last = _CLOCK.monotonic()


def bare(jobs: int) -> float:
    """Receive and acknowledge, with as many deliveries at a time as there are slots elsewhere."""
    adapter = open_adapter_for(Threads.queue, config.load({}, os.environ, Path.cwd()))
    signals: SimpleQueue[Signal] = SimpleQueue()
    adapter.start(signals.put)
    adapter.prefetch(SLOTS)
    done, first = 0, 0.0
    while done < jobs:
        match signals.get(timeout=30):
            case Delivered(delivery=delivery):
                first = first or _CLOCK.monotonic()
                adapter.settle(delivery, Settle.ACK)
                done += 1
            case _:
                pass
    seconds = _CLOCK.monotonic() - first
    adapter.stop(5)
    return seconds


def runtime(worker: type[Threads | Processes], jobs: int) -> float:
    """The same by a whole worker process."""
    watch = Watch()
    run(worker, max_jobs=jobs, listeners=[watch])
    return watch.last - watch.first


def memory(jobs: int) -> float:
    """The runner and its threads, between a queue and a ledger in memory."""
    spec, watch, settled, hands = spec_of(Threads), Watch(), threading.Semaphore(0), SettlePool(SLOTS + 1, "hands")

    def emit(event: Event) -> None:
        watch(event)
        if isinstance(event, JobSettled):
            settled.release()

    broker = MemoryBroker(_CLOCK)
    adapter = broker.adapter(QueueSpec(spec.queue, spec.dead_letter_queue, SLOTS))
    slots = [ThreadSlot(number, spec, clock=_CLOCK) for number in range(SLOTS)]
    ledger, times = MemoryLedger(_CLOCK, Times()), Times()
    runner = Runner(
        Deps(spec, "bench", "host/boot/bench", "bench", ledger, adapter, slots, _CLOCK, times, emit, hands.submit)
    )
    for number in range(jobs):
        adapter.publish(OutgoingMessage(Target.WORK, b'{"number": %d}' % number, {}))
    thread = threading.Thread(target=runner.run)
    runner.start()
    thread.start()
    while len(runner.state.ready_slots) < SLOTS or runner.not_ready():  # until the first window is open
        broker.pump()
    for _ in range(jobs):
        broker.pump()
        assert settled.acquire(timeout=30)
    runner.end()
    thread.join()
    for slot in slots:
        slot.close(1)
    hands.stop(1)
    return watch.last - watch.first


def main() -> None:
    """Measure one way, and print it."""
    how, jobs = sys.argv[1], int(sys.argv[2])
    match how:
        case "bare":
            print(bare(jobs))
        case "memory":
            print(memory(jobs))
        case _:
            print(runtime(Threads if how == "thread" else Processes, jobs))


if __name__ == "__main__":
    main()
