"""
Settle once, and last: the only caller of `adapter.publish` and `adapter.settle`.

The order is always the same (contract §3), with the ledger's word between the steps::

    record ──→ publish ──→ confirm ──→ settle ──→ note
    running    the copy,   moving →    the        known or
    → done |   confirmed   moved |     original   written
      moving               dead

A `HandOver` knows which of these steps it needs and how far it is; `advance` goes on where it stopped.
Each step may be repeated: the ledger refuses a second record, and answers the redelivery of what was not acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from steadyworker.adapter import Adapter, SettlesSoon
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
    Copy,
    Delivery,
    Settle,
    Settled,
    Target,
)
from steadyworker.errors import LedgerUnavailable, PublishFailed, StaleDelivery, SteadyWorkerError, Unsettled
from steadyworker.ledger.base import JobId, Ledger, Moving, Token, Verdict
from steadyworker.outcome import Counters

_ERROR_CHARACTERS = 2000


class Refused(SteadyWorkerError):
    """The ledger refused a write: someone else holds the job, and the run must be dropped."""


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
class HandOver:
    """
    What is still to be done for a message, and how far it is.

    `delivery` is the settle target now (None: adrift); an adopted redelivery replaces it at any moment.
    `settled_with` is the delivery that was settled in the end.
    """

    steps: tuple[Step, ...]
    delivery: Delivery | None
    token: Token | None = None
    record: Record | None = None
    copy: Copy | None = None
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


def done(token: Token, delivery: Delivery | None) -> HandOver:
    """The job is done: the ledger's word, then the ack."""
    return HandOver((Step.RECORD, Step.SETTLE, Step.NOTE), delivery, token, RecordDone())


def interrupted(token: Token, delivery: Delivery | None, counters: Counters) -> HandOver:
    """The run was ended by us: the ledger's word, then the message goes back."""
    return HandOver((Step.RECORD, Step.SETTLE), delivery, token, RecordInterrupted(counters), how=Settle.RELEASE)


def moving(token: Token, delivery: Delivery | None, verdict: Verdict, copy: Copy) -> HandOver:
    """A retry or a dead letter: `moving`, the copy, `moved` or `dead`, the ack."""
    steps = (Step.RECORD, Step.PUBLISH, Step.CONFIRM, Step.SETTLE, Step.NOTE)
    return HandOver(steps, delivery, token, verdict, copy)


def finish(token: Token, delivery: Delivery, copy: Copy) -> HandOver:
    """A hand-over that its owner left at `moving`: all but the first word."""
    return HandOver((Step.PUBLISH, Step.CONFIRM, Step.SETTLE, Step.NOTE), delivery, token, copy=copy)


def pass_on(delivery: Delivery, copy: Copy) -> HandOver:
    """A copy instead of the original, with no word in the ledger: follow, stamp, or a message that nobody can read."""
    return HandOver((Step.PUBLISH, Step.SETTLE), delivery, copy=copy)


def answer(delivery: Delivery, how: Settle = Settle.ACK) -> HandOver:
    """Nothing but the settlement: the record has the answer, or the message goes back."""
    return HandOver((Step.SETTLE,), delivery, how=how)


@dataclass(frozen=True, slots=True)
class Settler:
    """Carries hand-overs out, one step after the other; stateless, so that any number of threads may share it."""

    ledger: Ledger
    adapter: Adapter
    soon: SettlesSoon | None = None

    def advance(self, hand_over: HandOver, answered: Callable[[], None] | None = None) -> bool:
        """
        Go on where it stopped, until it is over; answers whether it is.

        It is not when an adapter that settles soon has begun to: `answered` is called, from any thread, when the broker
        has answered, and only the note is left.

        Raises Refused, LedgerUnavailable or PublishFailed from the step that stopped it.
        A settlement that can no longer be made is not an error: the ledger answers the redelivery.
        """
        while (step := hand_over.step) is not None:
            delivery = hand_over.delivery  # read once: the end of its epoch may take it away at any moment
            if step is Step.SETTLE and self.soon is not None and answered is not None and delivery is not None:
                self._settle_soon(self.soon, hand_over, delivery, answered)
                return False
            getattr(self, _STEPS[step])(hand_over)
            hand_over.at += 1
        return True

    def waits(self, hand_over: HandOver) -> bool:
        """Whether what is left of it waits for a broker, and so wants a thread of its own."""
        left = hand_over.steps[hand_over.at :]
        return Step.PUBLISH in left or (self.soon is None and Step.SETTLE in left)

    def _record(self, hand_over: HandOver) -> None:
        token, record = _owned(hand_over), hand_over.record
        match record:
            case RecordDone():
                granted = self.ledger.done(token)
            case RecordInterrupted(counters=counters):
                granted = self.ledger.interrupted(token, counters)
            case Verdict():
                granted = self.ledger.moving(token, record)
            case None:
                msg = "a hand-over with a record step has something to record"
                raise AssertionError(msg)
        if not granted:
            raise Refused(step_name(Step.RECORD))

    def _publish(self, hand_over: HandOver) -> None:
        assert hand_over.copy is not None, "a hand-over with a publish step has a copy"
        try:
            self.adapter.publish(hand_over.copy)
        except SteadyWorkerError:
            raise
        except Exception as error:
            # One message that an adapter cannot say must not end the process, and the next one, and the next.
            raise PublishFailed(
                f"Expected the adapter to publish a copy, got {type(error).__name__}: {error}"
            ) from error

    def _confirm(self, hand_over: HandOver) -> None:
        if not self.ledger.moved(_owned(hand_over)):
            raise Refused(step_name(Step.CONFIRM))

    def _settle(self, hand_over: HandOver) -> None:
        delivery = hand_over.delivery
        if delivery is None:
            return
        hand_over.settled_with = delivery
        try:
            hand_over.settled = self.adapter.settle(delivery, hand_over.how)
        except (StaleDelivery, Unsettled):
            hand_over.settled = None

    @staticmethod
    def _settle_soon(soon: SettlesSoon, hand_over: HandOver, delivery: Delivery, answered: Callable[[], None]) -> None:
        hand_over.settled_with = delivery

        def told(answer: Settled | StaleDelivery | Unsettled) -> None:
            hand_over.settled = answer if isinstance(answer, Settled) else None
            hand_over.at += 1
            answered()

        soon.settle_soon(delivery, hand_over.how, told)

    def _note(self, hand_over: HandOver) -> None:
        if hand_over.settled is None:
            return
        try:
            self.ledger.settled(_owned(hand_over), hand_over.settled is Settled.KNOWN)
        except LedgerUnavailable:
            return  # the row is only kept longer than it had to be


_STEPS: Mapping[Step, str] = {
    Step.RECORD: "_record",
    Step.PUBLISH: "_publish",
    Step.CONFIRM: "_confirm",
    Step.SETTLE: "_settle",
    Step.NOTE: "_note",
}


def step_name(step: Step) -> str:
    """The step's name, for people."""
    return step.value


def _owned(hand_over: HandOver) -> Token:
    assert hand_over.token is not None, "a hand-over that writes to the ledger has a token"
    return hand_over.token


class Origin(Struct, frozen=True):
    """The message that copies are made of: its body, the user's headers, and which job and hop it is."""

    id: JobId
    hop: int
    body: bytes
    headers: Mapping[str, str] = {}

    def later(self, counters: Counters, delay: float, reason: str) -> Copy:
        """The retry: one hop further, after `delay` seconds."""
        return Copy(Target.LATER, self.body, self._with(self.hop + 1, counters, reason), delay)

    def dead(self, counters: Counters, reason: str, why: Mapping[str, str]) -> Copy:
        """The dead letter, with why."""
        return Copy(Target.DEAD, self.body, {**self._with(self.hop, counters, reason), **why})

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


def hand_over_copy(origin: Origin, verdict: Verdict, uid: str, worker: str) -> Copy:
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
