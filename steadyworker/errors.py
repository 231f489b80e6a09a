"""
Every exception that SteadyWorker raises or understands.

::

    BaseException
    ├── Interrupt                    raised *by* Job calls: the run must end (shutdown, cancelled, time-limit, fenced)
    └── Exception
        └── SteadyWorkerError
            ├── ConfigError          a setting, a check or a refused login: exit 78, carries its findings
            ├── SendError            a message may or may not have arrived: send again with the same key
            ├── BadPayload           a payload that does not decode: becomes the dead letter's reason
            ├── ExportError          an export that cannot be made
            │   └── TargetExists     the file that is there is another job's
            ├── Outcomes a handler raises
            │   ├── Retry            counts an attempt, comes again
            │   ├── Reject           dead letter, now
            │   └── Snooze           later, counts nothing
            ├── Adapter errors
            │   ├── BrokerUnavailable  not reached: tried again for ever
            │   ├── PublishFailed      not confirmed, may or may not be there: publish again
            │   │   └── TargetMissing  the queue that it names is not there, or is full
            │   ├── StaleDelivery      a delivery of an old epoch: cannot be settled
            │   └── Unsettled          a settlement whose fate is unknown: that epoch is over
            └── Ledger errors
                └── LedgerUnavailable  no answer: nothing is claimed, nothing is committed until it answers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

InterruptReason = Literal["shutdown", "cancelled", "time-limit", "fenced"]


class SteadyWorkerError(Exception):
    """The root of all that SteadyWorker raises on purpose."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check: what is wrong, and the remedy."""

    level: Literal["error", "warning"]
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} Remedy: {self.remedy}"


class ConfigError(SteadyWorkerError):
    """A setting or a check that no retry can heal; the process ends with exit code 78 (EX_CONFIG)."""

    def __init__(self, message: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


class SendError(SteadyWorkerError):
    """A message was not confirmed: it may or may not have arrived; send again with the same key."""


class BadPayload(SteadyWorkerError):
    """A payload that does not decode to what the Worker declares; its text names the field."""


class ExportError(SteadyWorkerError):
    """An export that cannot be made as it is asked for."""


class TargetExists(ExportError):
    """The target is there already, and another job made it."""


class Retry(SteadyWorkerError):
    """
    Raised by a handler: this attempt failed, try again.

    Args:
        reason: Why, for the log and the dead letter.
        delay: Seconds (or a timedelta) until the next attempt, instead of the policy's wait.
        fresh: Forget the checkpoint, and how far an export got: the next attempt starts from the beginning.
            A file that was exported stays.

    Raises:
        ValueError: A delay that is no finite time from 0 up; TypeError for what is no number at all.
    """

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None, fresh: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = None if delay is None else _wait(delay)
        self.fresh = fresh


class Reject(SteadyWorkerError):
    """Raised by a handler: this job can never succeed; a dead letter with this reason, now."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(SteadyWorkerError):
    """
    Raised by a handler: not yet; the job comes again after `delay` seconds and no counter moves.

    Raises:
        ValueError: A delay that is no finite time from 0 up; TypeError for what is no number at all.
    """

    def __init__(self, delay: float | timedelta) -> None:
        super().__init__(f"snoozed for {delay} s")
        self.delay = _wait(delay)


class Interrupt(BaseException):
    """
    Raised by Job calls in the handler's own thread when the run must end.

    Derives from BaseException because a handler's `except Exception` must not swallow a shutdown.
    `reason` is `shutdown`, `cancelled`, `time-limit` or `fenced`.
    """

    def __init__(self, reason: InterruptReason) -> None:
        super().__init__(reason)
        self.reason: InterruptReason = reason


class BrokerUnavailable(SteadyWorkerError):
    """The broker could not be reached or went away; the adapter tries again."""


class PublishFailed(SteadyWorkerError):
    """A copy was not confirmed: it may or may not be in the queue; publish it again."""


class TargetMissing(PublishFailed):
    """The queue that a copy was published to is missing, or full; the original stays un-acknowledged."""


class StaleDelivery(SteadyWorkerError):
    """A delivery of an earlier epoch was to be settled; the broker gave its message to someone else already."""


class Unsettled(SteadyWorkerError):
    """A settlement whose fate is unknown: its epoch ends, and the message either is gone or comes again."""


class LedgerUnavailable(SteadyWorkerError):
    """The ledger did not answer; a write that was under way may or may not have landed."""


def seconds(value: float | timedelta | None) -> float | None:
    """Turn what the edge accepts (seconds, or a timedelta) into seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def _wait(delay: float | timedelta) -> float:
    """A delay that a handler asks for: judged where it is raised, for nobody can wait for less than nothing, or for ever."""
    number = seconds(delay)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"Expected a delay in seconds or a timedelta, got {delay!r}.")
    if not 0 <= number < float("inf"):
        raise ValueError(f"Expected a delay from 0 seconds up, and not for ever, got {delay!r}.")
    return float(number)
