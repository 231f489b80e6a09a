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

from steadyworker.adapter import Adapter, SettlesSoon
from steadyworker.delivery import Delivery, Settled
from steadyworker.errors import LedgerUnavailable, PublishFailed, StaleDelivery, SteadyWorkerError, Unsettled
from steadyworker.ledger.base import Ledger, Token, Verdict
from steadyworker.runner.settlement_plan import HandOver, RecordDone, RecordInterrupted, Step
from steadyworker.runner.state import HandedOver, Parts, Run


class Refused(SteadyWorkerError):
    """The ledger refused a write: someone else holds the job, and the run must be dropped."""


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


class Carrier:
    """
    Carries hand-overs out, one step after the other, and posts how far each came.

    Args:
        parts: The runner's.
        post: Takes `HandedOver`, from any thread.
    """

    def __init__(self, parts: Parts, post: Callable[[HandedOver], None]) -> None:
        self._settler = Settler(
            parts.ledger, parts.adapter, parts.adapter if isinstance(parts.adapter, SettlesSoon) else None
        )
        self._submit = parts.submit
        self._post = post

    def carry(self, hand_over: HandOver, run: Run | None) -> None:
        """Begin with it, or go on where it stopped."""

        def told(error: Exception | None = None) -> None:
            self._post(HandedOver(hand_over, run, error))

        def work() -> None:
            try:
                if self._settler.advance(hand_over, told):
                    told()
            except (Refused, LedgerUnavailable, PublishFailed) as error:
                told(error)

        if self._settler.waits(hand_over):
            self._submit(work)
        else:
            work()  # two changes of thread less, and a thread that has claimed may as well record

    def note(self, hand_over: HandOver) -> None:
        """Take the last step of one whose settlement the broker has answered; nobody waits for it."""
        self._settler.advance(hand_over)
