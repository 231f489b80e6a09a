"""
A whole worker process in a test: the real runner, ledger rules and slots, on a broker and a ledger in memory.

::

    def test_a_dropped_connection_does_not_start_the_job_again(harness):
        h = harness(PaymentExports)
        key = h.send(PaymentExports, ExportRequest("m-17"))
        h.wait(key, until="checkpoint")
        h.drop_connection()
        h.wait(key, until="done")
        assert h.starts(key) == 1

Time is fake, so that a retry after an hour costs a test nothing.
`wait` lets it pass by itself, but only while nothing else can happen: never while a handler runs.
`advance` lets it pass whatever happens, with all that falls due on the way (renewals, retries, limits).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeVar

from steadyworker import payload as payloads
from steadyworker.adapter import QueueSpec
from steadyworker.clock import Times
from steadyworker.delivery import KEY, ROUND, OutgoingMessage, Target
from steadyworker.errors import seconds
from steadyworker.events import Checkpointed, Event, JobStarted, Listener
from steadyworker.ledger.base import JobId, Row, State
from steadyworker.ledger.memory import MemoryLedger
from steadyworker.lifecycle import Stage
from steadyworker.names import normal_key
from steadyworker.slots.process import ProcessSlot
from steadyworker.spec import WorkerSpec, payload_type, spec_of
from steadyworker.telemetry.event_log import log_events
from steadyworker.testing.broker import MemoryBroker
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.queues import Message
from steadyworker.testing.scheduler import Turns
from steadyworker.testing.worker_process import NAMESPACE, WorkerProcess
from steadyworker.worker import Worker

P = TypeVar("P")

Until = Literal["started", "checkpoint", "moving", "moved", "interrupted", "done", "dead", "settled"]

_FINAL = (State.DONE, State.DEAD)
_WARM_UP = 5.0


class Harness:
    """
    One worker process for these Workers, started; more on request.

    Args:
        workers: Worker classes; they may be defined inside a test.
        adoption: Off, a redelivery never finds its way back to its run: every test passes without it too.
        processes: Handlers run in real child processes instead of threads; their limits run by the machine's clock.

    Attributes:
        clock: The fake clock.
        broker: The in-memory broker, with faults of its own.
        ledger: The in-memory ledger.
        events: Every event so far, of all worker processes.
        processes: The worker processes, the first one first; each has its own line to the ledger, to be cut.

    Not thread-safe: everything happens in the test's thread but the handlers.
    Log lines go to the standard library's logging: pytest's `caplog` has them.
    """

    def __init__(self, *workers: type[Worker[Any, Any]], adoption: bool = True, processes: bool = False) -> None:
        isolation = "process" if processes else "thread"
        self._specs = {worker: spec_of(worker, {"isolation": isolation}) for worker in workers}
        self._adoption = adoption
        self._children = processes
        self._times = Times()
        self._queues: dict[str, str] = {}
        self._listeners: list[Listener] = [log_events()]
        self.clock = FakeClock()
        self.broker = MemoryBroker(self.clock)
        self.ledger = MemoryLedger(self.clock, self._times)
        self.events: list[Event] = []
        self.processes: list[WorkerProcess] = []
        self._turns = Turns(self.clock, self.broker, self.processes)
        self.start()

    # --- what a test does ---

    def send(
        self,
        worker: type[Worker[P, Any]],
        payload: P,
        *,
        key: str | None = None,
        delay: float | timedelta = 0,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> str:
        """Send one job, as `Client.send` does, and answer its key; raises BadPayload."""
        spec = self._specs[worker]
        name = normal_key(key) if key is not None else f"job-{len(self._queues) + 1}"
        own = {**(headers or {}), KEY: name}
        if spec.key_header is not None:
            own[spec.key_header] = name
        last = self.ledger.last_round(NAMESPACE, spec.queue, name)
        if again and last is not None:
            own[ROUND] = str(last + 1)
        body = payloads.encode(payload, payload_type(worker))
        wait = seconds(delay) or 0.0
        self._queues[name] = spec.queue
        sender = self.broker.adapter(QueueSpec(spec.queue, spec.dead_letter_queue))
        sender.publish(
            OutgoingMessage(Target.LATER if wait else Target.WORK, body, own, wait, message_id=name, first=True)
        )
        return name

    def wait(self, key: str, until: Until | Callable[[], object] = "settled", timeout: float = 10.0) -> Row | None:
        """
        Let everything take its turns until the job is so far, and answer its row.

        `started` and `checkpoint` ask for the first of its kind; `settled` for a job that is done or dead, and whose
        every message is acknowledged; any other word for the row's state.
        A callable is asked again after each turn.
        Fake time passes while nothing else can happen; `timeout` is real, and only there for what never happens.

        Raises:
            AssertionError: It did not, or cannot any more; the text says how far everything is.
        """
        id_ = self._id(key)

        def reached() -> object:
            return until() if callable(until) else self._reached(id_, until)

        self._turns.until(reached, lambda: self._told(id_, until), timeout)
        return self.job(key)

    def advance(self, seconds: float) -> None:
        """Let this much fake time pass, with everything that falls due on the way."""
        self._turns.advance(seconds)

    def drop_connection(self) -> None:
        """Cut every worker process's connection to the broker: what is un-acknowledged comes again."""
        for process in self.processes:
            for adapter in process.adapters:
                self.broker.drop_connection(adapter)

    def redeliver(self, key: str) -> None:
        """Take the job's message from whoever holds it, as a broker does when a delivery times out; it comes again."""
        self.broker.redeliver(normal_key(key), silent=False)

    def expire_lease(self, key: str) -> None:
        """
        Freeze the worker process that runs this job until another one has taken the job over, and thaw it then.

        The first run goes on, and is refused whatever it asks for from now on.
        """
        frozen = next((process for process in self.processes if process.run_of(normal_key(key)) is not None), None)
        row = self.job(key)
        if frozen is None or row is None:
            raise LookupError(f"Expected a job that runs, but {key!r} does not: wait until it is started.")
        frozen.freeze()
        if all(process.frozen or process.stopped for process in self.processes):
            self.start()
        for adapter in frozen.adapters:
            self.broker.drop_connection(adapter)
        self.advance(self._times.lease + self._times.margin + 1)
        self._turns.until(lambda: self._fence(key) != row.fence, lambda: self._told(row.id, "taken over"), 10.0)
        frozen.thaw()

    def kill_child(self, key: str) -> None:
        """SIGKILL the child that runs this job; only with `processes=True`."""
        runs = (process.run_of(normal_key(key)) for process in self.processes)
        slot = next((run.slot for run in runs if run is not None), None)
        if slot is None:
            raise LookupError(f"Expected a job that runs, but {key!r} does not: wait until it is started.")
        if not isinstance(slot, ProcessSlot) or slot.pid is None:
            raise TypeError("Expected a child process, got a thread, which nobody can kill: use processes=True.")
        os.kill(slot.pid, signal.SIGKILL)

    def start(self) -> WorkerProcess:
        """
        Start a worker process beside those that run: another host's, or the one that a deploy starts.

        Waits, up to five real seconds, until each `setup` has returned or failed.
        """
        process = WorkerProcess(
            f"harness/{len(self.processes) + 1}",
            list(self._specs.values()),
            self.broker,
            self.ledger,
            self.clock,
            emit=self._heard,
            wake=self._turns.wake.set,
            adoption=self._adoption,
            processes=self._children,
        )
        self.processes.append(process)
        self._turns.warm_up(process, _WARM_UP)
        return process

    def stop(self) -> None:
        """
        Stop every worker process as a deploy does: draining, then cancelling, then by force; safe twice.

        A job has half a second of real time in each of the two.
        """
        running = [process for process in self.processes if not process.stopped]
        for process in running:
            if process.frozen:
                process.thaw()
        for stage, kill in ((Stage.DRAINING, False), (Stage.INTERRUPTING, False), (Stage.INTERRUPTING, True)):
            for process in running:
                process.enter(stage, kill=kill)
            if self._turns.finish(running, by_force=kill):
                break
        for process in running:
            process.close()

    # --- what a test looks at ---

    def starts(self, key: str) -> int:
        """How many runs of this job have begun, in all its rounds."""
        return sum(isinstance(event, JobStarted) for event in self.of(key))

    def of(self, key: str) -> list[Event]:
        """The events of this job."""
        return [event for event in self.events if event.key == normal_key(key)]

    def job(self, key: str) -> Row | None:
        """The job's row in the ledger (of its last round), or None."""
        return self.ledger.read(self._id(key))

    @property
    def dead(self) -> list[Message]:
        """Every dead letter, with why in its headers."""
        return [message for spec in self._specs.values() for message in self.broker.dead(spec.queue)]

    @property
    def not_ready(self) -> dict[str, str]:
        """Why no message is taken, by the name of the part, of all worker processes; empty when all is well."""
        running = (process for process in self.processes if not process.stopped)
        return {part: why for process in running for each in process.runners for part, why in each.not_ready().items()}

    # --- how far a job is ---

    def _heard(self, event: Event) -> None:
        self.events.append(event)
        for listener in self._listeners:
            listener(event)

    def _spec_of(self, key: str) -> WorkerSpec:
        queue = self._queues.get(normal_key(key))
        specs = [spec for spec in self._specs.values() if queue in (None, spec.queue)]
        if len(specs) != 1:
            raise LookupError(f"Expected the key of a job that was sent, got {key!r}: send it first.")
        return specs[0]

    def _id(self, key: str) -> JobId:
        name, queue = normal_key(key), self._spec_of(key).queue
        return JobId(NAMESPACE, queue, name, self.ledger.last_round(NAMESPACE, queue, name) or 0)

    def _fence(self, key: str) -> int:
        row = self.job(key)
        return 0 if row is None else row.fence

    def _messages(self, id_: JobId) -> list[Message]:
        every = self.broker.messages(id_.queue)
        return [each for each in every if id_.key in (each.message_id, normal_key(each.headers.get(KEY, "")))]

    def _reached(self, id_: JobId, until: Until) -> bool:
        row = self.ledger.read(self._id(id_.key))
        match until:
            case "started":
                return self.starts(id_.key) > 0
            case "checkpoint":
                return any(isinstance(event, Checkpointed) for event in self.of(id_.key))
            case "settled":
                under_way = any(process.has(row.fence) for process in self.processes) if row is not None else True
                return row is not None and row.state in _FINAL and not under_way and not self._messages(id_)
            case _:
                return row is not None and row.state == until

    def _told(self, id_: JobId, until: object) -> str:
        """How far everything is, for the report of a wait that failed."""
        row = self.job(id_.key)
        is_ = "unknown to the ledger" if row is None else f"{row.state} ({row.reason or 'no reason'}; {row.counters})"
        messages = len(self._messages(id_))
        return (
            f"Expected job {id_.key!r} to be {until}, but it is {is_}, after {self.starts(id_.key)} starts, "
            f"with {messages} messages in the queue; not ready: {self.not_ready or 'nothing'}."
        )
