"""
The settler carries settlement plans out; it is the only caller of `adapter.publish` and `adapter.settle`.

The settler settles a delivery once, as the last step, so that the ledger has the outcome before the broker deletes the message.
`settlement_plan.py` has the steps and their order.
"""

from __future__ import annotations

from collections.abc import Callable

from steadyworker.adapter import Adapter, SettlesAsync
from steadyworker.delivery import Delivery, OutgoingMessage, Settle, Settled
from steadyworker.errors import (
    LedgerUnavailable,
    MessageRefused,
    PublishFailed,
    StaleDelivery,
    SteadyWorkerError,
    Unsettled,
)
from steadyworker.ledger.base import Ledger, Token, Verdict
from steadyworker.runner.planning import comes_in
from steadyworker.runner.settlement_plan import RecordDone, RecordInterrupted, SettlementPlan, Step
from steadyworker.runner.state import PlanResult, Run


class WriteRefused(SteadyWorkerError):
    """A write that the ledger refused, because another worker process holds the job; the runner must drop the run."""


class NotRejected(SteadyWorkerError):
    """A rejection with an unknown result; if the broker did not move the message to the dead letters, the message comes again."""


class Settler:
    """
    The executor of settlement plans: on the runner's thread, or on a pool thread if a step must wait for the broker.

    Args:
        ledger: Records outcomes.
        adapter: Publishes messages and settles deliveries.
        submit: Runs a callable on a pool thread.
        post: Receives a `PlanResult` for each plan that ended, or that an error stopped; called from any thread.
    """

    def __init__(
        self,
        ledger: Ledger,
        adapter: Adapter,
        submit: Callable[[Callable[[], None]], object],
        post: Callable[[PlanResult], None],
    ) -> None:
        self._ledger = ledger
        self._adapter = adapter
        self._async = adapter if isinstance(adapter, SettlesAsync) else None
        self._submit = submit
        self._post = post

    def carry_out(self, plan: SettlementPlan, run: Run | None) -> None:
        """Carry out the steps that are left; `post` receives the result."""
        left = plan.steps[plan.at :]
        if Step.PUBLISH in left or (self._async is None and Step.SETTLE in left):
            self._submit(lambda: self._carry_out(plan, run))
        else:
            # No step waits for the broker, so the runner's thread carries out all steps, without two changes of thread.
            self._carry_out(plan, run)

    def _carry_out(self, plan: SettlementPlan, run: Run | None) -> None:
        try:
            if self.advance(plan, lambda: self._settled(plan, run)):
                self._post(PlanResult(plan, run, None))
        except (WriteRefused, NotRejected, LedgerUnavailable, PublishFailed) as error:
            self._post(PlanResult(plan, run, error))

    def _settled(self, plan: SettlementPlan, run: Run | None) -> None:
        """Go on after an asynchronous settlement, on a pool thread, because the adapter's thread must not wait for the ledger."""
        if plan.at < len(plan.steps):
            self._submit(lambda: self._carry_out(plan, run))
        else:
            self._post(PlanResult(plan, run, None))

    def advance(self, plan: SettlementPlan, on_settled: Callable[[], None]) -> bool:
        """
        Carry out the steps that are left, and return True when all are done.

        Returns False if the broker has not yet confirmed an asynchronous settlement.
        The adapter then calls `on_settled` once, from any thread, when the broker has replied.
        If a delivery can no longer be settled, this is no error: when the message comes again, the row shows the outcome.

        Raises WriteRefused, NotRejected, LedgerUnavailable or PublishFailed from the step that failed; `plan.at` stays at that step.
        """
        while plan.at < len(plan.steps):
            match plan.steps[plan.at]:
                case Step.RECORD:
                    self._record(plan)
                case Step.PUBLISH:
                    assert plan.message is not None, "a plan with a publish step has a message"
                    self._publish(plan.message)
                case Step.CONFIRM:
                    if plan.how is Settle.REJECT and plan.settled is not Settled.CONFIRMED:
                        raise NotRejected("confirm")
                    delay = 0.0 if plan.message is None else plan.message.delay
                    if not self._ledger.moved(_token(plan), comes_in(delay, self._adapter.capabilities)):
                        raise WriteRefused("confirm")
                case Step.SETTLE:
                    delivery = plan.delivery  # read once: another thread may set it to None at any moment
                    if delivery is not None and self._async is not None:
                        self._settle_async(self._async, plan, delivery, on_settled)
                        return False
                    if delivery is not None:
                        self._settle(plan, delivery)
            plan.at += 1
        return True

    def _record(self, plan: SettlementPlan) -> None:
        token = _token(plan)
        match plan.record:
            case RecordDone():
                granted = self._ledger.done(token, plan.end)
            case RecordInterrupted(counters=counters):
                granted = self._ledger.interrupted(token, counters, plan.end)
            case Verdict() as verdict:
                granted = self._ledger.moving(token, verdict, plan.end)
            case None:
                raise AssertionError("a plan with a record step has a record")
        if not granted:
            raise WriteRefused("record")

    def _publish(self, message: OutgoingMessage) -> None:
        try:
            self._adapter.publish(message)
        except SteadyWorkerError:
            raise
        except Exception as error:
            # If an adapter cannot encode a message, this process must not end: the message would end every later process, too.
            # The same message has the same error at each later try.
            kind = MessageRefused if isinstance(error, ValueError | TypeError) else PublishFailed
            raise kind(f"Expected the adapter to publish a message, got {type(error).__name__}: {error}") from error

    def _settle(self, plan: SettlementPlan, delivery: Delivery) -> None:
        plan.settled_with = delivery
        try:
            plan.settled = self._adapter.settle(delivery, plan.how)
        except (StaleDelivery, Unsettled) as error:
            plan.settled, plan.stale = None, isinstance(error, StaleDelivery)

    @staticmethod
    def _settle_async(
        adapter: SettlesAsync, plan: SettlementPlan, delivery: Delivery, on_settled: Callable[[], None]
    ) -> None:
        plan.settled_with = delivery

        def settled(result: Settled | StaleDelivery | Unsettled) -> None:
            plan.settled = result if isinstance(result, Settled) else None
            plan.stale = isinstance(result, StaleDelivery)
            plan.at += 1
            on_settled()

        adapter.settle_async(delivery, plan.how, settled)


def _token(plan: SettlementPlan) -> Token:
    assert plan.token is not None, "a plan that writes to the ledger has a token"
    return plan.token
