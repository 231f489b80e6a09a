"""
Runs a whole worker process in a test: the real runner, ledger rules and slots, with a broker and a ledger in memory.

::

    def test_a_dropped_connection_does_not_start_the_job_again(harness):
        h = harness(PaymentExports)
        key = h.send(PaymentExports, ExportRequest("m-17"))
        h.wait(key, until="checkpoint")
        h.drop_connection()
        h.wait(key, until="done")
        assert h.starts(key) == 1

Time is fake, so a test does not wait an hour for a retry after an hour.
`wait` moves time forward by itself, but only if nothing else can happen.
So `wait` never moves time while a handler runs.
`advance` always moves time forward, and does everything that becomes due in this time (renewals, retries, limits).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from steadyworker import payload as payloads
from steadyworker.adapter import QueueSpec
from steadyworker.clock import Times
from steadyworker.delivery import KEY, ROUND, OutgoingMessage, Target
from steadyworker.errors import start_in_seconds
from steadyworker.events import Checkpointed, Event, JobStarted, Listener
from steadyworker.ledger.base import JobId, Row, State
from steadyworker.lifecycle import Stage
from steadyworker.names import normal_key
from steadyworker.slots.process import ProcessSlot
from steadyworker.spec import WorkerSpec, payload_type, spec_of
from steadyworker.telemetry.event_log import log_events
from steadyworker.testing.broker import MemoryBroker
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker.testing.queues import QueuedMessage
from steadyworker.testing.scheduler import Turns
from steadyworker.testing.worker_process import NAMESPACE, WorkerProcess
from steadyworker.units import count_text
from steadyworker.worker import Worker

P = TypeVar("P")

Until = Literal["started", "checkpoint", "moving", "moved", "interrupted", "done", "dead", "settled"]

_FINAL = (State.DONE, State.DEAD)
_WARM_UP = 5.0


class Harness:
    """
    A started worker process for these Workers; `start` adds further worker processes.

    Args:
        workers: Worker classes; a test function can define them.
        adoption: True if a run adopts the redelivery of its own job. Jobs end in the same way without adoption.
        processes: True to run handlers in real child processes instead of threads. The machine's clock then measures the handlers' limits.

    Attributes:
        clock: The fake clock.
        broker: The in-memory broker, which can also produce faults.
        ledger: The in-memory ledger.
        events: The events of all worker processes so far.
        processes: The worker processes, in the order of their start; each has its own connection to the ledger, which a test can cut.

    Not thread-safe: everything except the handlers runs in the test's thread.
    A Harness does not call `on_dead`; a test can call this method itself.
    Log lines go to the standard library's logging, so that pytest's `caplog` contains them.
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
        self._killed: set[str] = set()
        self.ledger = MemoryLedger(self.clock, self._times, is_dead=self._killed.__contains__)
        self.events: list[Event] = []
        self.processes: list[WorkerProcess] = []
        self._turns = Turns(self.clock, self.broker, self.processes)
        self.start()

    # --- actions of a test ---

    def send(
        self,
        worker: type[Worker[P, Any]],
        payload: P,
        *,
        key: str | None = None,
        delay: float | timedelta | datetime | str = 0,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> str:
        """
        Send one job, as `Client.send` does, and return the job's key.

        Raises BadPayload, and ValueError for a wrong delay.
        """
        spec = self._specs[worker]
        name = normal_key(key) if key is not None else f"job-{len(self._queues) + 1}"
        own = {**(headers or {}), KEY: name}
        if spec.key_header is not None:
            own[spec.key_header] = name
        last = self.ledger.last_round(NAMESPACE, spec.queue, name)
        if again and last is not None:
            own[ROUND] = str(last + 1)
        body = payloads.encode(payload, payload_type(worker))
        wait = start_in_seconds(delay, self.clock.wall())
        self._queues[name] = spec.queue
        sender = self.broker.adapter(QueueSpec(spec.queue, spec.dead_letter_queue))
        sender.publish(
            OutgoingMessage(Target.LATER if wait else Target.WORK, body, own, wait, message_id=name, first=True)
        )
        return name

    def wait(self, key: str, until: Until | Callable[[], object] = "settled", timeout: float = 10.0) -> Row | None:
        """
        Run broker and worker processes until the job has reached `until`, and return its row.

        `until` is one of:

        - `started` or `checkpoint`: the first start or the first checkpoint of the job;
        - `settled`: the job is done or dead, and all its messages are acknowledged;
        - any other word: a state of the row;
        - a callable: it is called after each turn, until it returns something true.

        Fake time passes while nothing else can happen.
        `timeout` is in real seconds.

        Raises:
            AssertionError: The job did not reach `until` in time, or cannot reach it; the text describes the job's state.
        """
        id_ = self._id(key)

        def reached() -> object:
            return until() if callable(until) else self._reached(id_, until)

        self._turns.until(reached, lambda: self._description(id_, until), timeout)
        return self.job(key)

    def advance(self, seconds: float) -> None:
        """Move fake time forward by `seconds`, and do everything that becomes due in this time."""
        self._turns.advance(seconds)

    def drop_connection(self) -> None:
        """Cut the connection of every worker process to the broker, which delivers un-acknowledged messages again."""
        for process in self.processes:
            for adapter in process.adapters:
                self.broker.drop_connection(adapter)

    def redeliver(self, key: str) -> None:
        """Withdraw the job's message from its consumer and deliver it again, as a broker does after a delivery timeout."""
        self.broker.redeliver(normal_key(key), silent=False)

    def expire_lease(self, key: str) -> None:
        """
        Freeze the worker process that runs this job, and thaw it when another worker process has taken the job over.

        The first run goes on, but from now on the ledger refuses each of its requests.
        """
        frozen = next((process for process in self.processes if process.run_of(normal_key(key)) is not None), None)
        row = self.job(key)
        if frozen is None or row is None:
            raise LookupError(f"Expected the key of a running job, got {key!r}: wait until it is started.")
        frozen.freeze()
        if all(process.frozen or process.stopped for process in self.processes):
            self.start()
        for adapter in frozen.adapters:
            self.broker.drop_connection(adapter)
        self.advance(self._times.lease + self._times.margin + 1)
        self._turns.until(lambda: self._fence(key) != row.fence, lambda: self._description(row.id, "taken over"), 10.0)
        frozen.thaw()

    def kill_child(self, key: str) -> None:
        """Send SIGKILL to the child that runs this job; only with `processes=True`."""
        runs = (process.run_of(normal_key(key)) for process in self.processes)
        slot = next((run.slot for run in runs if run is not None), None)
        if slot is None:
            raise LookupError(f"Expected the key of a running job, got {key!r}: wait until it is started.")
        if not isinstance(slot, ProcessSlot) or slot.pid is None:
            raise TypeError("Expected a child process, got a thread, which cannot be killed: use processes=True.")
        os.kill(slot.pid, signal.SIGKILL)

    def kill(self, key: str) -> None:
        """
        Kill the worker process that runs this job, as SIGKILL or the kernel does if memory is short.

        The broker delivers the messages of this process again, and the ledger has the proof of its death, like a ledger on the same host.
        If no other worker process is left, another one starts.
        A handler in a thread cannot be killed, but its next Job call raises Interrupt, and the ledger refuses all its later writes.
        With `processes=True`, its child is killed too.
        """
        process = next((process for process in self.processes if process.run_of(normal_key(key)) is not None), None)
        if process is None:
            raise LookupError(f"Expected the key of a running job, got {key!r}: wait until it is started.")
        self._killed.add(process.owner)
        process.kill()
        if all(each.stopped for each in self.processes):
            self.start()

    def start(self) -> WorkerProcess:
        """
        Start another worker process, as on another host or in a deploy.

        Waits until each `setup` has returned or failed, for at most five real seconds.
        """
        process = WorkerProcess(
            f"harness/{len(self.processes) + 1}",
            list(self._specs.values()),
            self.broker,
            self.ledger,
            self.clock,
            emit=self._record,
            wake=self._turns.wake.set,
            adoption=self._adoption,
            processes=self._children,
        )
        self.processes.append(process)
        self._turns.warm_up(process, _WARM_UP)
        return process

    def stop(self) -> None:
        """
        Stop every worker process as a deploy does: draining, then interrupting, then by force.

        A second call is allowed.
        A job has half a second of real time in draining, and another half in interrupting.
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

    # --- results for a test ---

    def starts(self, key: str) -> int:
        """Return the number of started runs of this job, in all its rounds."""
        return sum(isinstance(event, JobStarted) for event in self.of(key))

    def of(self, key: str) -> list[Event]:
        """Return the events of this job."""
        return [event for event in self.events if event.key == normal_key(key)]

    def job(self, key: str) -> Row | None:
        """Return the job's row in the ledger (of its last round), or None."""
        return self.ledger.read(self._id(key))

    @property
    def dead(self) -> list[QueuedMessage]:
        """Every dead letter, with the reason in its headers."""
        return [message for spec in self._specs.values() for message in self.broker.dead(spec.queue)]

    @property
    def not_ready(self) -> dict[str, str]:
        """The reasons for which worker processes receive no message, by the name of the part; empty if there is no such reason."""
        running = (process for process in self.processes if not process.stopped)
        runners = (runner for process in running for runner in process.runners)
        return {part: cause.why for runner in runners for part, cause in runner.not_ready().items()}

    # --- the state of a job ---

    def _record(self, event: Event) -> None:
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

    def _messages(self, id_: JobId) -> list[QueuedMessage]:
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

    def _description(self, id_: JobId, until: object) -> str:
        """Return a description of the job's state, for the error of a failed wait."""
        row = self.job(id_.key)
        is_ = "unknown to the ledger" if row is None else f"{row.state} ({row.reason or 'no reason'}; {row.counters})"
        messages = len(self._messages(id_))
        return (
            f"Expected job {id_.key!r} to be {until}, but it is {is_}, after {count_text(self.starts(id_.key), 'start')}, "
            f"with {count_text(messages, 'message')} in the queue; not ready: {self.not_ready or 'nothing'}."
        )
