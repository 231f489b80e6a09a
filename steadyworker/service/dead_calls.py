"""
Calls `on_dead` of the Workers of this process, for jobs that were given up.

The verdict that makes a job dead records in the ledger that a call is owed (`steadyworker.ledger.base.Verdict.owes_call`).
Any worker process of the queue reserves such a call by a lease, so a call outlives the death of the process that makes it.
A call has a slot of its own, so it delays no job; the slot exists only while calls are due.

| the call | what follows |
|---|---|
| returns | the call is no longer owed |
| raises, dies or takes longer than 60 s | a worker process repeats it after growing waits, at most five times in all |
| its worker process stops | another worker process repeats it at once |
| its worker process dies | another worker process repeats it when the lease is over |

A quiet process makes calls, because they need no message.
A process that drains makes calls only after a job has died in it, and ends after these calls, within its stop budget.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steadyworker.clock import Clock
from steadyworker.errors import LedgerUnavailable
from steadyworker.events import Event, JobSettled
from steadyworker.ledger.base import Ledger, OwedCall
from steadyworker.link import Task
from steadyworker.outcome import Done, Interrupted, Outcome
from steadyworker.runner import report
from steadyworker.runner.envelope import delivery_of, for_handler
from steadyworker.runner.state import Inbox
from steadyworker.slots.base import Asked, Ended, Slot, SlotEvent
from steadyworker.telemetry.logs import get_logger

LIMIT = 60.0
"""The time limit of one call, in seconds."""

LEASE = 90.0
"""Seconds for which a process reserves a call: the time limit, and time for the start of a slot and for the record."""

EVERY = 15.0
"""Seconds between two questions whether a call is due; the death of a job in this process is a question at once."""

WAITS = (10.0, 60.0, 300.0, 900.0)
"""Seconds until the next try, after the first try and each later one; after one try more than waits, the call is given up."""

_CLOSE_WITHIN = 5.0
_STEP = 0.5


@dataclass(frozen=True, slots=True)
class CalledQueue:
    """A queue whose Worker has an `on_dead`; `slot` makes a slot for calls."""

    namespace: str
    queue: str
    slot: Callable[[], Slot]


class DeadCalls:
    """
    The calls of one worker process, on a thread of their own.

    `start` starts the thread if a Worker has an `on_dead`; `stop` ends it.
    """

    def __init__(self, queues: Sequence[CalledQueue], ledger: Ledger, clock: Clock) -> None:
        self._queues = queues
        self._names = frozenset(each.queue for each in queues)
        self._ledger = ledger
        self._clock = clock
        self._log = get_logger("steadyworker.service")
        self._woken = threading.Event()
        self._calling = False
        self._draining = False
        self._stopping = False
        self._slot: Slot | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="calls of on_dead", daemon=True)

    def start(self) -> None:
        """Start the thread; do nothing if no Worker has an `on_dead`."""
        if self._queues:
            self._thread.start()

    def emit(self, event: Event) -> None:
        """Note the death of a job in this process, as a listener of its events."""
        if isinstance(event, JobSettled) and event.settlement == "dead-letter" and event.queue in self._names:
            self._woken.set()

    @property
    def busy(self) -> bool:
        """True while a call is under way, or may be owed for a job that died in this process."""
        return self._thread.is_alive() and (self._woken.is_set() or self._calling)

    def drain(self) -> None:
        """From now on, make calls only after a job has died in this process; any thread may call this."""
        self._draining = True

    def stop(self, within: float) -> None:
        """End the call under way, and the thread, in this many seconds; another process repeats an unfinished call."""
        with self._lock:
            self._stopping, slot = True, self._slot
        self._woken.set()
        if slot is not None:
            slot.close(within)
        if self._thread.is_alive():
            self._thread.join(_CLOSE_WITHIN)

    def _run(self) -> None:
        while not self._stopping:
            woken = self._woken.wait(EVERY)
            self._calling = True  # before the event is cleared, so that `busy` has no gap
            self._woken.clear()
            try:
                for each in self._queues:
                    if woken or not self._draining:
                        self._serve(each)
            except LedgerUnavailable:
                pass  # the calls stay owed, so a later turn makes them
            except Exception:  # noqa: BLE001 - a defect here must end no job of this process
                self._log.exception("on_dead_not_called", explain="steadyworker.on-dead-failed")
            finally:
                self._calling = False

    def _serve(self, queue: CalledQueue) -> None:
        """Make the calls of a queue that are due, one after the other, in one slot."""
        inbox: Inbox[SlotEvent] | None = None
        try:
            while not self._stopping and (call := self._ledger.next_call(queue.namespace, queue.queue, LEASE)):
                if call.tries > len(WAITS) + 1:  # its process died in the last try
                    self._give_up(call, "its worker process died")
                    continue
                task = self._task(call)
                if task is None:
                    continue
                if inbox is None:
                    inbox = Inbox()
                    inbox.thread = self._thread
                    if not self._open(queue, inbox):
                        self._ledger.end_call(call, again_in=0.0)
                        return
                self._record(call, self._outcome(task, inbox))
        finally:
            with self._lock:
                slot, self._slot = self._slot, None
            if slot is not None:
                slot.close(_CLOSE_WITHIN)
            if inbox is not None:
                inbox.close()

    def _open(self, queue: CalledQueue, inbox: Inbox[SlotEvent]) -> bool:
        """Start a slot; return False if this process stops."""
        with self._lock:
            if self._stopping:
                return False
            self._slot = slot = queue.slot()
        slot.start(inbox.post, inbox)
        return True

    def _task(self, call: OwedCall) -> Task | None:
        """Return the slot's input for a call; None if the job's row is gone."""
        row = self._ledger.read(call.id)
        if row is None:
            return None
        message = self._ledger.message(call.id)
        delivery = None if message is None else delivery_of(message, call.id.queue)
        return Task(
            key=row.id.key,
            round=row.id.round,
            queue=row.id.queue,
            namespace=row.id.namespace,
            uid=row.uid,
            fence=row.fence,
            attempt=max(1, row.counters.attempts),
            body=b"" if delivery is None else delivery.body,
            headers={} if delivery is None else for_handler(delivery.headers),
            last_checkpoint=row.checkpoint,
            sent_at=None if delivery is None else delivery.sent_at,
            time_limit=LIMIT,
            gave_up=row.reason,
        )

    def _outcome(self, task: Task, inbox: Inbox[SlotEvent]) -> Outcome:
        """Run one call to its end; the slot enforces the time limit, and always reports the end of a run."""
        slot = self._slot
        assert slot is not None, "a call has a slot"
        slot.run(task)
        give_up_at = self._clock.monotonic() + LEASE
        while self._clock.monotonic() < give_up_at:
            inbox.wait(_STEP)
            while inbox:
                match inbox.pop():
                    case Ended(outcome=outcome):
                        return outcome
                    case Asked(fence=fence, id=id):
                        slot.reply(fence, id, None, refused="fenced")  # the job has ended, so no request can be granted
                    case _:
                        pass
        slot.kill(task.fence, Interrupted())
        return Interrupted()

    def _record(self, call: OwedCall, outcome: Outcome) -> None:
        about = {"key": call.id.key, "queue": call.id.queue, "try": call.tries}
        if isinstance(outcome, Done):
            self._ledger.end_call(call)
            self._log.info("on_dead_called", **about)
        elif self._stopping:
            self._ledger.end_call(call, again_in=0.0)
        elif call.tries > len(WAITS):
            self._give_up(call, report.reason(outcome))
        else:
            again_in = WAITS[call.tries - 1]
            self._ledger.end_call(call, again_in=again_in)
            explain = "steadyworker.on-dead-failed"
            self._log.warning(
                "on_dead_again", **about, again_in=again_in, reason=report.reason(outcome), explain=explain
            )

    def _give_up(self, call: OwedCall, reason: str) -> None:
        self._ledger.end_call(call)
        about = {"key": call.id.key, "queue": call.id.queue, "tries": len(WAITS) + 1}
        self._log.error("on_dead_given_up", **about, reason=reason, explain="steadyworker.on-dead-failed")
