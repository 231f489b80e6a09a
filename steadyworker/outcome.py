"""
The end of a run (Outcome) and the action on its message (Settlement): two closed sets of frozen values.

Only `retry.decide` turns an Outcome into a Settlement.
Only `steadyworker/runner/settler.py` carries a Settlement out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Done:
    """The handler's normal return; `result` is the JSON text that the handler gave to `job.result`, or None."""

    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """
    A failure of the job itself (an exception, the time limit, a stall); such a failure counts as an attempt.

    `planned` is true if the handler asked for the next attempt by `Retry`, so that the log reports no failure.
    """

    reason: str
    error_class: str = ""
    delay: float | None = None
    fresh: bool = False
    planned: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """A job that can never succeed: it becomes a dead letter at once."""

    reason: str
    error_class: str = ""


@dataclass(frozen=True, slots=True)
class Snoozed:
    """A job that the handler put off for `delay` seconds; no counter changes."""

    delay: float


@dataclass(frozen=True, slots=True)
class Interrupted:
    """
    A run that the worker process ended (a deploy, a shutdown, a ledger outage); such a run does not count as an attempt.

    `unfit` is the reason why this host cannot run the Worker's jobs at all; empty for every other interruption.
    """

    unfit: str = ""


@dataclass(frozen=True, slots=True)
class Crashed:
    """
    The death of the job's process while its worker process lived.

    `cause` is the name of a signal, an exit code, or a limit.
    """

    cause: str


Outcome = Done | Failed | Rejected | Snoozed | Interrupted | Crashed


@dataclass(frozen=True, slots=True)
class Ack:
    """The order to acknowledge the message, because its job has ended."""


@dataclass(frozen=True, slots=True)
class Later:
    """The order to publish a copy with the next hop and a delay of `delay` seconds, and to acknowledge the message."""

    delay: float


@dataclass(frozen=True, slots=True)
class ToDeadLetter:
    """The order to publish a copy with the reason to the dead-letter queue, and to acknowledge the message."""

    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """The order to return the message to the broker unchanged; the checkpoint stays in the ledger."""


Settlement = Ack | Later | ToDeadLetter | Release


SNOOZED = "snoozed for "
"""The beginning of a snoozed job's reason."""

CANCELLED = "cancelled: "
"""The beginning of a cancelled job's reason."""


class JobState(StrEnum):
    """
    A job's state, as users see it.

    | state | meaning |
    |---|---|
    | `running` | a worker process runs the job |
    | `interrupted` | the worker process ended the run; the job waits for its next delivery |
    | `retrying` | a run failed or crashed; the job comes again after a delay |
    | `scheduled` | the handler raised `Snooze`; the job comes again after the delay in `Snooze` |
    | `done` | the handler returned |
    | `cancelled` | `Client.cancel` ended the job; its message is in the dead-letter queue |
    | `cancel-waiting` | the cancel came before any worker process received the job; if a message comes, the job does not run |
    | `dead` | the job failed for good; its message is in the dead-letter queue |

    For a key without a record in the ledger, `Client.status` returns one of these:

    | state | meaning |
    |---|---|
    | `queued` | the job's message waits in the queue |
    | `delayed` | the job's message is in the queue, and due later |
    | `unknown` | neither the ledger has a record, nor has a search found the message; `Client.status` explains what this can mean |
    """

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    RETRYING = "retrying"
    SCHEDULED = "scheduled"
    DONE = "done"
    CANCELLED = "cancelled"
    CANCEL_WAITING = "cancel-waiting"
    DEAD = "dead"
    QUEUED = "queued"
    DELAYED = "delayed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Counters:
    """
    The four counters of a job, which are independent, and the time of its first failure (wall clock, for people).

    | counter | counts |
    |---|---|
    | `attempts` | failures of the job itself |
    | `crashes` | deaths of the job's process while its worker process lived |
    | `losses` | runs that ended without an outcome, because their worker process died or froze |
    | `interruptions` | runs that the worker process ended |
    """

    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    interruptions: int = 0
    first_failed_at: float | None = None
