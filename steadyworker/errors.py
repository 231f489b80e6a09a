"""
Every exception that SteadyWorker raises or handles.

::

    BaseException
    ├── Interrupt                    raised *by* Job calls: the run must end (shutdown, cancelled, time-limit, fenced)
    └── Exception
        └── SteadyWorkerError
            ├── ConfigError          a wrong setting, a failed check or a refused login: exit code 78, with findings
            │   └── NoLedger         no worker process has created the ledger that the settings name
            │       └── OlderLedger  no worker process has migrated the ledger to this version
            ├── UnknownQueue         neither the broker nor the ledger has a queue of this name
            ├── SendError            the broker did not confirm the message: send it again with the same key
            ├── BadPayload           the payload does not decode: the dead letter has the error as its reason
            ├── SourceUnavailable    the source database of `verify` is not reachable
            ├── ExportError          the export is not possible
            │   └── ExportRejected   no retry can make the export possible: the job becomes a dead letter at once
            │       └── TargetExists another job's file has this path
            ├── Outcomes that a handler raises
            │   ├── Retry            counts an attempt; the job comes again
            │   ├── Reject           the job becomes a dead letter at once
            │   ├── Snooze           counts nothing; the job comes again later
            │   └── HostUnfit        counts nothing; the worker process gives the job back, and ends with exit code 78
            ├── Adapter errors
            │   ├── BrokerUnavailable  the broker is not reachable: the adapter keeps trying
            │   │   └── LettersHeld        another reader holds some of the dead letters: read them again later
            │   ├── PublishFailed      the broker did not confirm the message, which may have arrived: publish it again
            │   │   └── NotPublished   the message was certainly not published: not sent, or not accepted by a queue
            │   │       ├── MessageRefused the broker never accepts this message, however often it is published
            │   │       ├── TargetMissing  the queue does not exist
            │   │       └── TargetFull     the queue refused the message, because it is full
            │   ├── StaleDelivery      the delivery is of an earlier epoch and cannot be settled
            │   └── Unsettled          the settlement's result is unknown: the epoch of the delivery ends
            └── Ledger errors
                └── LedgerUnavailable  the ledger does not respond: until it does, no job is claimed and nothing is committed
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Literal, get_args

from steadyworker.text.plain_text import plain_text
from steadyworker.units import parse_seconds

LONGEST_DELAY = 3650 * 86400.0
"""The longest delay in seconds: ten years, because some brokers and databases cannot express a later time."""

Level = Literal["error", "warning", "note"]
"""The levels of a finding, the most serious one first."""

Loss = Literal["jobs", "letters"]
"""The messages that a queue can lose: the messages of jobs, or dead letters."""

InterruptReason = Literal["shutdown", "cancelled", "time-limit", "fenced"]


class SteadyWorkerError(Exception):
    """
    The base class of all errors that SteadyWorker raises on purpose.

    Attributes:
        id: The entry of the catalogue that explains the cause (`steadyworker explain --id ID`); empty if the cause is not known.
    """

    id: str = ""

    def __init__(self, *args: object, id: str = "") -> None:
        super().__init__(*args)
        if id:
            self.id = id


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One result of a check: the problem and its remedy.

    A note is information for the operator, not a problem, and only `check` shows it.
    `id` names the entry of the catalogue that explains the problem (`steadyworker explain --id ID`).
    `loses` names the messages that the broker can lose by this problem; the checks add the consequence for the Worker's jobs.
    """

    level: Level
    what: str
    remedy: str
    id: str = field(kw_only=True)
    loses: Loss | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return f"{self.what} Remedy: {self.remedy}"


class ConfigError(SteadyWorkerError):
    """A wrong setting or failed check that no retry can repair; the process ends with exit code 78 (EX_CONFIG)."""

    def __init__(self, message: str, findings: Sequence[Finding] = (), *, id: str = "") -> None:
        super().__init__(message, id=id or (findings[0].id if findings else ""))
        self.findings = tuple(findings)


class NoLedger(ConfigError):
    """A ledger that does not exist; only a worker process creates a ledger, so this process knows nothing about any job."""

    def __init__(self, url: str, got: str) -> None:
        super().__init__(
            f"Expected the ledger {url}, which a worker process creates at its start, got {got}: "
            "set --ledger to the ledger of the workers, or start a worker first.",
            id="ledger.missing",
        )


class OlderLedger(NoLedger):
    """A ledger of an earlier version; only a worker process migrates a ledger, so this process knows nothing about any job."""

    def __init__(self, url: str, expected: int, got: int, version: str) -> None:
        ConfigError.__init__(
            self,
            f"Expected the ledger {url} to have schema {expected}, got schema {got}, of an earlier version: "
            f"start a worker of SteadyWorker {version}, which migrates the ledger in place.",
            id="ledger.older",
        )


class UnknownQueue(SteadyWorkerError):
    """The name of a queue that neither the broker nor the ledger has; the text gives similar names."""


class SendError(SteadyWorkerError):
    """
    One message, or several messages, that the broker did not confirm; send them again with the same keys.

    Attributes:
        confirmed: The keys whose messages the broker has confirmed, in the order of their jobs.
        unknown: The keys whose messages may or may not have arrived.
        unsent: The keys whose messages have certainly not arrived.
    """

    def __init__(
        self, *args: object, confirmed: Sequence[str] = (), unknown: Sequence[str] = (), unsent: Sequence[str] = ()
    ) -> None:
        super().__init__(*args)
        self.confirmed, self.unknown, self.unsent = tuple(confirmed), tuple(unknown), tuple(unsent)


class BadPayload(SteadyWorkerError):
    """A payload that does not decode to the Worker's payload type; the text names the field."""


class SourceUnavailable(SteadyWorkerError):
    """A database that did not respond when `steadyworker verify --source` compared a file with it."""


class ExportError(SteadyWorkerError):
    """An export that is not possible as requested."""


class ExportRejected(ExportError):
    """An export that no retry can make possible: the job becomes a dead letter at once, if the handler does not catch this."""


class TargetExists(ExportRejected):
    """A target file that another job has already made."""


class Retry(SteadyWorkerError):
    """
    A handler's request to count this attempt as failed and to try the job again.

    Args:
        reason: The reason, for the log and the dead letter: a text, an exception, or any object with a `str()`.
            The reason is cut to 2,000 characters, and `***` replaces passwords.
        delay: Seconds (or a timedelta, or a text such as "1m") until the next attempt, instead of the policy's wait.
        fresh: Delete the checkpoint and the state of exports: the next attempt starts from the beginning.
            An exported file stays.

    Raises:
        ValueError: The delay is below 0 seconds, over ten years, or no duration.
    """

    # Defaults for a subclass that does not call `super().__init__`.
    reason: str = ""
    delay: float | None = None
    fresh: bool = False

    planned: ClassVar[bool] = True
    """False in a subclass whose attempt the log reports as failed."""

    def __init__(
        self, reason: object = "", *, delay: float | timedelta | str | None = None, fresh: bool = False
    ) -> None:
        self.reason = plain_text(reason)
        super().__init__(self.reason)
        self.delay = None if delay is None else delay_in_seconds(delay)
        self.fresh = bool(fresh)


class Reject(SteadyWorkerError):
    """
    A handler's verdict that the job can never succeed: it becomes a dead letter with this reason at once.

    Args:
        reason: A text, an exception, or any object; its `str()` is the reason.
            The reason is cut to 2,000 characters, and `***` replaces passwords.
    """

    reason: str = ""

    def __init__(self, reason: object) -> None:
        self.reason = plain_text(reason)
        super().__init__(self.reason)


class Snooze(SteadyWorkerError):
    """
    A handler's request to put the job off: it comes again after `delay`, and no counter changes.

    Args:
        delay: Seconds, a timedelta, or a text such as "10m".

    Raises:
        ValueError: The delay is below 0 seconds, over ten years, or no duration.
    """

    delay: float | None = None

    def __init__(self, delay: float | timedelta | str) -> None:
        self.delay = delay_in_seconds(delay)
        super().__init__(f"snoozed for {self.delay:g} s")


class HostUnfit(SteadyWorkerError):
    """
    A handler's report that this host cannot run the Worker's jobs, because a program or a right is missing here.

    The worker process gives the job back, receives no other message, and ends with exit code 78 when its other runs have ended.
    The job's counters of attempts and crashes do not change.

    Args:
        reason: What is missing, for the log.
            The reason is cut to 2,000 characters, and `***` replaces passwords.
    """

    reason: str = ""

    def __init__(self, reason: object) -> None:
        self.reason = plain_text(reason)
        super().__init__(self.reason)


class Interrupt(BaseException):
    """
    An order to the handler to end its run, raised by Job calls in the handler's own thread.

    Interrupt derives from BaseException, because a handler's `except Exception` must not swallow a shutdown.
    `reason` is `shutdown`, `cancelled`, `time-limit` or `fenced`.
    """

    def __init__(self, reason: InterruptReason) -> None:
        super().__init__(reason)
        self.reason: InterruptReason = reason


class BrokerUnavailable(SteadyWorkerError):
    """A broker that could not be reached, or whose connection was lost; the adapter tries again."""


class LettersHeld(BrokerUnavailable):
    """Dead letters that cannot all be read now, because another reader holds some of them; nothing has changed."""


class PublishFailed(SteadyWorkerError):
    """A message that the broker did not confirm; publish it again, because it is unknown whether the queue has the message."""


class NotPublished(PublishFailed):
    """A message that is certainly not in the queue: the adapter did not send it, or no queue accepted it."""


class MessageRefused(NotPublished):
    """A message that the broker never accepts, even if the adapter publishes it again, because the message is above one of the broker's limits."""


class TargetMissing(NotPublished):
    """A message that was not published, because its queue is missing; the original message stays un-acknowledged."""


class TargetFull(NotPublished):
    """A message that was not published, because its queue is full; the original message stays un-acknowledged."""


class StaleDelivery(SteadyWorkerError):
    """An attempt to settle a delivery of an earlier epoch; the broker delivers its message again."""


class Unsettled(SteadyWorkerError):
    """A settlement with an unknown result: the epoch ends, and either the message is gone or the broker delivers it again."""


class LedgerUnavailable(SteadyWorkerError):
    """A ledger that did not respond; it is unknown whether a write under way was done."""

    id = "ledger.unreachable"


def by_level(finding: Finding) -> int:
    """Return a sort key for findings: errors first, notes last."""
    return get_args(Level).index(finding.level)


def number(what: str, value: object) -> float:
    """
    Return a number of any kind (int, Decimal, Fraction, a number of numpy) as a finite float.

    Raises TypeError for a value that is not a number, such as a text, and ValueError for a number that is not finite.
    """
    if not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"Expected {what} as a number, got {value!r}: convert it first, for example with float().")
    try:
        converted = float(value)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - checked above
    except OverflowError:
        converted = math.inf
    if not math.isfinite(converted):
        raise ValueError(f"Expected {what} as a finite number, got {value!r}: leave it out while it is unknown.")
    return converted


def delay_in_seconds(delay: object) -> float:
    """
    Return a delay in seconds, from seconds, a timedelta, or a text such as "1h".

    Raises ValueError for anything else, and for a delay of over ten years.
    """
    try:
        converted = parse_seconds(delay)
    except ValueError:
        converted = math.nan
    if not 0 <= converted <= LONGEST_DELAY:
        raise ValueError(
            f"Expected a delay of 0 seconds to ten years, a timedelta, or a text such as '1h 30m', got {delay!r}."
        )
    return converted


def start_in_seconds(delay: object, now: float) -> float:
    """
    Return the seconds until a job may start, from a delay as in `delay_in_seconds`, or from a datetime with a time zone.

    `now` is in seconds since 1970; a time in the past is 0 seconds away.
    Raises ValueError for a datetime without a time zone, and for every wrong delay.
    """
    if not isinstance(delay, datetime):
        return delay_in_seconds(delay)
    if delay.utcoffset() is None:
        raise ValueError(
            f"Expected a datetime with a time zone, got {delay!r}, which is another moment on each host: "
            "write datetime.now(timezone.utc) + …, or .astimezone()."
        )
    return delay_in_seconds(max(0.0, delay.timestamp() - now))
