"""
The messages without a key: the runner replaces each message by a copy with a generated key, and then acknowledges the original.

::

    Delivery without a key ──→ publish a copy with a key ──→ confirmed ──→ acknowledge the original
                                   │                                            │
                                   │ the work queue is full                     │ the delivery is lost before the
                                   ↓                                            ↓ acknowledgement is sent
                               publish the copy with a delay,               an equal message that the broker
                               and begin its job at once                    delivers again is acknowledged instead

**A full queue** accepts no copy, and senders can fill each place that becomes free.
The copy then waits in a retry queue, and its job begins at once, as a run without a delivery.
So every message in a full queue can run, and the broker has a copy before the runner acknowledges the original.
When the delay is over, the decision table defers, adopts or acknowledges the copy, like any redelivery.
If the job cannot begin now, the original stays in the full queue, because a retry queue has no length limit.

**A lost delivery** comes back if it was certainly not acknowledged, although the broker may already have the copy.
So the plan waits for the next redelivery of an equal message (same body, headers and time of sending), and settles this redelivery.
Equal messages are exchangeable: whichever message is settled, the number of jobs equals the number of messages.
If an acknowledgement was sent but not confirmed, the broker may have deleted the message.
If the plan then settled an equal message, that message could be lost, so the equal message gets its own key.
A message that comes back to another worker process, or after the death of this process, also gets another key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from steadyworker.adapter import Delays
from steadyworker.delivery import KEY, Delivery, OutgoingMessage, Redelivered, Target
from steadyworker.errors import TargetFull
from steadyworker.runner import planning
from steadyworker.runner.envelope import Envelope, identify
from steadyworker.runner.runs import Runs
from steadyworker.runner.settlement_plan import Incoming, SettlementPlan, Step
from steadyworker.runner.state import Deps, PlanResult, RunnerState

_WAITS = 600.0
"""The seconds for which the runner waits for an equal message, if a message without a key was lost before its settlement."""


@dataclass(frozen=True, slots=True)
class _Original:
    """The message that a plan replaces, with its first delivery, its fingerprint, and the time until which the plan waits for a redelivery."""

    delivery: Delivery
    fingerprint: bytes
    until: float


class UnkeyedMessages:
    """
    One Worker's plans that replace a message without a key, from the first publish to the acknowledgement.

    1. `replace` receives a delivery without a key.
    2. `refused` decides what happens if a full queue refused a copy.
    3. `over` receives a plan whose steps are done.

    Attributes:
        plans: The plans that `refused` and `over` accept, each with its original.

    Args:
        deps: The runner's dependencies.
        state: The state that the runner's parts share.
        runs: Carries plans out.
        may_begin: Returns whether a new job could begin now.
        begin: Claims a job, for a run that begins without a delivery.
        decline: Gives a delivery back, because no slot is free.
    """

    def __init__(
        self,
        deps: Deps,
        state: RunnerState,
        runs: Runs,
        may_begin: Callable[[], bool],
        begin: Callable[[Envelope], None],
        decline: Callable[[Delivery], None],
    ) -> None:
        self._deps = deps
        self._state = state
        self._runs = runs
        self._may_begin = may_begin
        self._begin = begin
        self._decline = decline
        self.plans: dict[SettlementPlan, _Original] = {}

    def replace(self, delivery: Delivery) -> None:
        """Publish a copy with a generated key, then acknowledge the delivery; publish nothing if a plan already waits for an equal message."""
        self._forget_old()
        digest = fingerprint(delivery)
        if delivery.redelivered is not Redelivered.NO and self._bind(delivery, digest):
            return
        keyed = OutgoingMessage(Target.WORK, delivery.body, {**delivery.headers, KEY: uuid.uuid4().hex})
        plan = planning.pass_on(self._state.incoming(delivery), keyed)
        self.plans[plan] = _Original(delivery, digest, self._deps.clock.monotonic() + _WAITS)
        self._runs.carry_out(plan)

    def refused(self, result: PlanResult) -> bool:
        """
        Decide what happens if the full work queue refused a copy; return False if the plan must publish it again later.

        | the job | what happens |
        |---|---|
        | can begin now | the copy goes to a retry queue |
        | can begin soon: only the ledger or a warming slot is missing | the plan publishes the copy again later (False) |
        | cannot begin | the original goes back to the full queue |
        """
        plan, message, delivery = result.plan, result.plan.message, result.plan.delivery
        if not isinstance(result.error, TargetFull) or delivery is None:
            return False
        if message is None or message.to is not Target.WORK or self._deps.adapter.capabilities.delays is Delays.NONE:
            return False
        if self._may_begin():
            plan.message = dataclasses.replace(message, to=Target.LATER, delay=self._deps.times.defer_delay)
            plan.steps = (Step.PUBLISH,)  # the acknowledgement follows when the job has begun
        elif self._may_begin_soon():
            return False
        else:
            plan.incoming = Incoming()
            self._decline(delivery)
        self._runs.retry(plan, None)
        return True

    def over(self, plan: SettlementPlan) -> None:
        """Receive a plan whose steps are done; if the plan's original is not yet acknowledged, plan the acknowledgement."""
        original = self.plans[plan]
        late = plan.delivery if plan.delivery is not plan.settled_with else None
        if not plan.surely_unsettled:
            del self.plans[plan]
            if late is not None:
                self._state.reconsider(late)
            return
        if plan.message is not None and plan.message.to is Target.LATER and Step.PUBLISH in plan.steps:
            self._begin_job(original.delivery, plan.message)
        plan.steps, plan.at, plan.incoming = (Step.SETTLE,), 0, self._state.incoming(late)
        plan.settled_with, plan.stale = None, False
        if late is not None:
            self._runs.carry_out(plan)

    def _bind(self, delivery: Delivery, digest: bytes) -> bool:
        """Let a plan that has lost its delivery settle this delivery; return False if no plan waits for an equal message."""
        for plan, original in self.plans.items():
            if plan.delivery is None and original.fingerprint == digest:
                self._state.bind(plan.incoming, delivery)
                if plan not in self._state.plans_without_run:
                    self._runs.carry_out(plan)
                return True
        return False

    def _forget_old(self) -> None:
        now = self._deps.clock.monotonic()
        for plan in [plan for plan, original in self.plans.items() if original.until < now]:
            if plan.delivery is None and plan not in self._state.plans_without_run:
                del self.plans[plan]

    def _may_begin_soon(self) -> bool:
        """Return whether a new job only waits for the ledger, or for a slot whose child is being replaced."""
        begins_jobs = not self._state.closed and not self._deps.quota.spent
        return begins_jobs and (self._state.ledger_away or self._state.warming())

    def _begin_job(self, delivery: Delivery, message: OutgoingMessage) -> None:
        """Begin the job of a delayed copy now, if that is possible; otherwise the job begins when the copy arrives."""
        keyed = dataclasses.replace(delivery, headers=message.headers)
        envelope = identify(keyed, self._deps.namespace, self._deps.spec.key_header)
        if isinstance(envelope, Envelope) and self._may_begin():
            self._begin(envelope)


def fingerprint(delivery: Delivery) -> bytes:
    """Return a digest of the sender's data (body, headers, time of sending), which is the same for each redelivery."""
    theirs = sorted((name, text) for name, text in delivery.headers.items() if name not in delivery.brokers_own)
    parts = [repr((delivery.sent_at, theirs)).encode("utf-8", "surrogatepass"), delivery.body]
    return b"".join(hashlib.sha256(part).digest() for part in parts)
