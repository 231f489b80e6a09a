"""
The events that a worker process sends to listeners, as frozen records; a listener observes and can change nothing.

If a listener raises, the worker process logs this once and goes on: a listener never fails a job.
The class names below are a stable API: the log's `event` field has the same names in snake case.

`explain` is the id of the catalogue's entry that explains the event (`steadyworker explain --id ID`); empty if the cause is not known.
`redelivered_because` is a word of `REDELIVERED`: the reason why the broker delivered the message again; empty if the reason is not known.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

REDELIVERED = (
    "connection-lost",
    "delivery-timeout",
    "consumer-cancelled",
    "delivery-lost",
    "worker-killed",
    "worker-lost",
    "released",
    "requeued-by-operator",
    "message-lost",
)
"""
The reasons why a message comes again: the values of `redelivered_because`.

connection-lost: This process lost the connection on which it had the message.
delivery-timeout: The broker withdrew the message, because its job ran longer than the delivery timeout.
consumer-cancelled: The broker ended this process's consumer, for example because the queue's leader moved.
delivery-lost: This process lost this delivery alone; the log line `delivery_lost` has the cause.
worker-killed: The worker process that ran the job is dead.
worker-lost: The worker process that ran the job has not renewed its lease: the process is dead, frozen or cut off.
released: A worker process gave the message back, because the process stopped, or had no free slot.
requeued-by-operator: An operator has replayed a dead letter, or has moved it to the work queue.
message-lost: No message of the job came; the run uses the message that the ledger keeps.
"""


class Event(Struct, frozen=True, kw_only=True):
    """The base of all events: the job, its queue, its run, and the time (wall clock, seconds in UTC)."""

    key: str
    queue: str
    fence: int
    at: float


class JobStarted(Event, frozen=True, kw_only=True):
    """The start of a run."""

    attempt: int
    why: str
    redelivered_because: str = ""


class JobEnded(Event, frozen=True, kw_only=True):
    """The end of a run; its outcome is not yet in the ledger."""

    outcome: str
    reason: str
    seconds: float


class JobSettled(Event, frozen=True, kw_only=True):
    """The settlement of a run's message, with the outcome of the run and the job's counters."""

    settlement: str
    outcome: str
    reason: str
    attempts: int
    crashes: int
    losses: int
    interruptions: int
    settled: str
    seconds: float


class DeliveryLost(Event, frozen=True, kw_only=True):
    """The loss of a run's delivery, for example by a lost connection; the run goes on."""

    cause: str
    explain: str = ""


class Adopted(Event, frozen=True, kw_only=True):
    """The binding of a redelivery to its job's run, which is already under way."""

    redelivered_because: str = ""


class DeliveryDeferred(Event, frozen=True, kw_only=True):
    """A delivery whose message the runner published again with a delay, because another run has the message's job."""

    delay: float
    redelivered_because: str = ""


class DuplicateAcked(Event, frozen=True, kw_only=True):
    """A delivery that the runner acknowledged without a run, because the ledger shows that the message's job needs no run."""

    state: str
    redelivered_because: str = ""


class DeliveryRejected(Event, frozen=True, kw_only=True):
    """
    A delivery that the runner made a dead letter, without a run and without a change of the job's state.

    The reason is `no-key: …`, `bad-header: …`, `bad-payload: …`, or one of the following.
    With `key-conflict`, the key belongs to a job with another payload.
    With `key-conflict: …`, the headers name two jobs, and nothing proves that SteadyWorker made this copy.
    With `unshown: …`, the broker sent no content that the adapter can read.
    The broker then keeps the message, or moves the message to the broker's own dead letters.
    A process emits one event for such a message, however often the broker delivers it.
    `fence` is the fence of the job with this key, or 0; `key` is empty if the message has no key.
    """

    reason: str
    explain: str = ""


class TakenOver(Event, frozen=True, kw_only=True):
    """The take-over of a job whose owner is gone."""

    losses: int


class MessageLost(Event, frozen=True, kw_only=True):
    """
    A job whose message does not come again; the ledger's copy replaces the message.

    `unseen_for` are the seconds since the message was due, and `state` is the state in which the job waited for this message.
    `owner` is the worker process that had the job last, and `worker` is its host.
    `fate` is the action on the job: the job `runs`, its settlement is `finished`, the job is `dead`, or it is `left` for an operator.
    """

    unseen_for: float
    state: str
    fate: str
    owner: str = ""
    worker: str = ""
    why: str = ""


class Fenced(Event, frozen=True, kw_only=True):
    """
    A write that the ledger refused; the worker process ended the refused run.

    If the ledger went back in time, `lost` describes what the ledger has lost.
    If a later run has or had the job, `lost` is empty.
    If the reason of the refusal is not known, `explain` is `ledger.unreachable`.
    """

    write: str
    lost: str = ""
    explain: str = ""


class Checkpointed(Event, frozen=True, kw_only=True):
    """A checkpoint that is now durable."""

    size: int


Listener = Callable[[Event], None]
