"""What is still to be done for one message, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from steadyworker.delivery import (
    ATTEMPTS,
    CRASHES,
    ERROR_CLASS,
    ERROR_TEXT,
    FIRST_FAILED_AT,
    HOP,
    KEY,
    LOSSES,
    OWN_HEADERS,
    REASON,
    ROUND,
    UID,
    WORKER,
    Delivery,
    OutgoingMessage,
    Settle,
    Settled,
    Target,
)
from steadyworker.ledger.base import JobId, Moving, Token, Verdict
from steadyworker.outcome import Counters

_ERROR_CHARACTERS = 2000


class Step(Enum):
    """One step of a hand-over, in the order in which they are taken."""

    RECORD = "record"
    PUBLISH = "publish"
    CONFIRM = "confirm"
    SETTLE = "settle"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class RecordDone:
    """Record `done`."""


@dataclass(frozen=True, slots=True)
class RecordInterrupted:
    """Record `interrupted`, with these counters."""

    counters: Counters


Record = RecordDone | RecordInterrupted | Verdict


@dataclass(slots=True, eq=False)
class SettlementPlan:
    """
    What is still to be done for a message, and how far it is.

    `delivery` is the settle target now (None: adrift); an adopted redelivery replaces it at any moment.
    `settled_with` is the delivery that was settled in the end.
    """

    steps: tuple[Step, ...]
    delivery: Delivery | None
    token: Token | None = None
    record: Record | None = None
    message: OutgoingMessage | None = None
    how: Settle = Settle.ACK
    at: int = 0
    failures: int = 0
    settled: Settled | None = None
    settled_with: Delivery | None = None

    @property
    def step(self) -> Step | None:
        """The step to take next; None when it is over."""
        return self.steps[self.at] if self.at < len(self.steps) else None

    @property
    def recorded(self) -> bool:
        """The ledger has this hand-over's first word."""
        return Step.RECORD not in self.steps[self.at :]


def done(token: Token, delivery: Delivery | None) -> SettlementPlan:
    """The job is done: the ledger's word, then the ack."""
    return SettlementPlan((Step.RECORD, Step.SETTLE, Step.NOTE), delivery, token, RecordDone())


def interrupted(token: Token, delivery: Delivery | None, counters: Counters) -> SettlementPlan:
    """The run was ended by us: the ledger's word, then the message goes back."""
    return SettlementPlan((Step.RECORD, Step.SETTLE), delivery, token, RecordInterrupted(counters), how=Settle.RELEASE)


def moving(token: Token, delivery: Delivery | None, verdict: Verdict, message: OutgoingMessage) -> SettlementPlan:
    """A retry or a dead letter: `moving`, the copy, `moved` or `dead`, the ack."""
    steps = (Step.RECORD, Step.PUBLISH, Step.CONFIRM, Step.SETTLE, Step.NOTE)
    return SettlementPlan(steps, delivery, token, verdict, message)


def finish(token: Token, delivery: Delivery, message: OutgoingMessage) -> SettlementPlan:
    """A hand-over that its owner left at `moving`: all but the first word."""
    return SettlementPlan((Step.PUBLISH, Step.CONFIRM, Step.SETTLE, Step.NOTE), delivery, token, message=message)


def pass_on(delivery: Delivery, message: OutgoingMessage) -> SettlementPlan:
    """A copy instead of the original, with no word in the ledger: follow, stamp, or a message that nobody can read."""
    return SettlementPlan((Step.PUBLISH, Step.SETTLE), delivery, message=message)


def answer(delivery: Delivery, how: Settle = Settle.ACK) -> SettlementPlan:
    """Nothing but the settlement: the record has the answer, or the message goes back."""
    return SettlementPlan((Step.SETTLE,), delivery, how=how)


class Origin(Struct, frozen=True):
    """The message that copies are made of: its body, the user's headers, and which job and hop it is."""

    id: JobId
    hop: int
    body: bytes
    headers: Mapping[str, str] = {}

    def later(self, counters: Counters, delay: float, reason: str) -> OutgoingMessage:
        """The retry: one hop further, after `delay` seconds."""
        return OutgoingMessage(Target.LATER, self.body, self._with(self.hop + 1, counters, reason), delay)

    def dead(self, counters: Counters, reason: str, why: Mapping[str, str]) -> OutgoingMessage:
        """The dead letter, with why."""
        return OutgoingMessage(Target.DEAD, self.body, {**self._with(self.hop, counters, reason), **why})

    def _with(self, hop: int, counters: Counters, reason: str) -> dict[str, str]:
        theirs = {name: value for name, value in self.headers.items() if name not in OWN_HEADERS}
        ours = {
            KEY: self.id.key,
            ROUND: str(self.id.round),
            HOP: str(hop),
            ATTEMPTS: str(counters.attempts),
            CRASHES: str(counters.crashes),
            LOSSES: str(counters.losses),
            REASON: header_text(reason),
        }
        if counters.first_failed_at is not None:
            ours[FIRST_FAILED_AT] = f"{counters.first_failed_at:.3f}"
        return theirs | ours


def message_for(origin: Origin, verdict: Verdict, uid: str, worker: str) -> OutgoingMessage:
    """The copy that a verdict asks for: a retry, or a dead letter that carries why."""
    if verdict.target is Moving.RETRY:
        return origin.later(verdict.counters, verdict.delay, verdict.reason)
    why = {
        ERROR_CLASS: verdict.error_class,
        ERROR_TEXT: header_text(verdict.error_text),
        WORKER: worker,
        UID: uid,
    }
    return origin.dead(verdict.counters, verdict.reason, {name: value for name, value in why.items() if value})


def header_text(text: str) -> str:
    """Text for a header: one line, bounded."""
    line = " ".join(text.split())
    return line if len(line) <= _ERROR_CHARACTERS else line[: _ERROR_CHARACTERS - 1] + "…"
