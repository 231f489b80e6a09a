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

from steadyworker.adapter import Adapter, SettlesAsync
from steadyworker.delivery import Delivery, Settled
from steadyworker.errors import LedgerUnavailable, PublishFailed, StaleDelivery, SteadyWorkerError, Unsettled
from steadyworker.ledger.base import Ledger, Token, Verdict
from steadyworker.runner.settlement_plan import RecordDone, RecordInterrupted, SettlementPlan, Step
from steadyworker.runner.state import Deps, PlanResult, Run


class Refused(SteadyWorkerError):
    """The ledger refused a write: someone else holds the job, and the run must be dropped."""


@dataclass(frozen=True, slots=True)
class Settler:
    """Carries hand-overs out, one step after the other; stateless, so that any number of threads may share it."""

    ledger: Ledger
    adapter: Adapter
    soon: SettlesAsync | None = None

    def advance(self, plan: SettlementPlan, answered: Callable[[], None] | None = None) -> bool:
        """
        Go on where it stopped, until it is over; answers whether it is.

        It is not when an adapter that settles soon has begun to: `answered` is called, from any thread, when the broker
        has answered, and only the note is left.

        Raises Refused, LedgerUnavailable or PublishFailed from the step that stopped it.
        A settlement that can no longer be made is not an error: the ledger answers the redelivery.
        """
        while (step := plan.step) is not None:
            delivery = plan.delivery  # read once: the end of its epoch may take it away at any moment
            if step is Step.SETTLE and self.soon is not None and answered is not None and delivery is not None:
                self._settle_async(self.soon, plan, delivery, answered)
                return False
            getattr(self, _STEPS[step])(plan)
            plan.at += 1
        return True

    def waits(self, plan: SettlementPlan) -> bool:
        """Whether what is left of it waits for a broker, and so wants a thread of its own."""
        left = plan.steps[plan.at :]
        return Step.PUBLISH in left or (self.soon is None and Step.SETTLE in left)

    def _record(self, plan: SettlementPlan) -> None:
        token, record = _owned(plan), plan.record
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

    def _publish(self, plan: SettlementPlan) -> None:
        assert plan.message is not None, "a hand-over with a publish step has a copy"
        try:
            self.adapter.publish(plan.message)
        except SteadyWorkerError:
            raise
        except Exception as error:
            # One message that an adapter cannot say must not end the process, and the next one, and the next.
            raise PublishFailed(
                f"Expected the adapter to publish a copy, got {type(error).__name__}: {error}"
            ) from error

    def _confirm(self, plan: SettlementPlan) -> None:
        if not self.ledger.moved(_owned(plan)):
            raise Refused(step_name(Step.CONFIRM))

    def _settle(self, plan: SettlementPlan) -> None:
        delivery = plan.delivery
        if delivery is None:
            return
        plan.settled_with = delivery
        try:
            plan.settled = self.adapter.settle(delivery, plan.how)
        except (StaleDelivery, Unsettled):
            plan.settled = None

    @staticmethod
    def _settle_async(
        soon: SettlesAsync, plan: SettlementPlan, delivery: Delivery, answered: Callable[[], None]
    ) -> None:
        plan.settled_with = delivery

        def told(answer: Settled | StaleDelivery | Unsettled) -> None:
            plan.settled = answer if isinstance(answer, Settled) else None
            plan.at += 1
            answered()

        soon.settle_async(delivery, plan.how, told)

    def _note(self, plan: SettlementPlan) -> None:
        if plan.settled is None:
            return
        try:
            self.ledger.settled(_owned(plan), plan.settled is Settled.CONFIRMED)
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


def _owned(plan: SettlementPlan) -> Token:
    assert plan.token is not None, "a hand-over that writes to the ledger has a token"
    return plan.token


class Carrier:
    """
    Carries hand-overs out, one step after the other, and posts how far each came.

    Args:
        parts: The runner's.
        post: Takes `HandedOver`, from any thread.
    """

    def __init__(self, deps: Deps, post: Callable[[PlanResult], None]) -> None:
        self._settler = Settler(
            deps.ledger, deps.adapter, deps.adapter if isinstance(deps.adapter, SettlesAsync) else None
        )
        self._submit = deps.submit
        self._post = post

    def carry(self, plan: SettlementPlan, run: Run | None) -> None:
        """Begin with it, or go on where it stopped."""

        def told(error: Exception | None = None) -> None:
            self._post(PlanResult(plan, run, error))

        def work() -> None:
            try:
                if self._settler.advance(plan, told):
                    told()
            except (Refused, LedgerUnavailable, PublishFailed) as error:
                told(error)

        if self._settler.waits(plan):
            self._submit(work)
        else:
            work()  # two changes of thread less, and a thread that has claimed may as well record

    def note(self, plan: SettlementPlan) -> None:
        """Take the last step of one whose settlement the broker has answered; nobody waits for it."""
        self._settler.advance(plan)
