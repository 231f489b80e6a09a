"""
The front half of the runner: from a delivery to what the ledger says to do with it.

::

    Delivery ── identify ──→ Arrival ── read, answer ──→ claim │ adopt │ follow │ answer │ finish │ dead letter
                   │                        │
                   └── no key: stamp        └── ledger away, slot not ready, earlier run not reaped: held

A delivery is *valid* until its epoch ends, the broker takes it back, or it is settled.
A delivery that is held is looked at again, from the top, whenever something that it may wait for has changed.
"""

from __future__ import annotations

import uuid

from steadyworker.adapter import Delays, Lost
from steadyworker.delivery import KEY, REASON, WORKER, Delivery, OutgoingMessage, Redelivered, Settle, Target
from steadyworker.errors import LedgerUnavailable
from steadyworker.events import Adopted, DeliveryDeferred, DuplicateAcked
from steadyworker.ledger.base import Claimed, Moving, Row, Verdict
from steadyworker.ledger.rules import (
    AckDuplicate,
    Action,
    Adopt,
    Claim,
    Defer,
    Finish,
    HeldBy,
    KeyConflict,
    LostTooOften,
    answer,
)
from steadyworker.lifecycle import Stage
from steadyworker.runner import report, settlement_plan
from steadyworker.runner.envelope import Envelope, Unkeyed, Unreadable, identify, too_large
from steadyworker.runner.runs import Runs
from steadyworker.runner.state import Deps, Phase, Timers
from steadyworker.telemetry.logs import get_logger

_TRIES = 20
"""A claim that is refused is decided again; that often in a row means that the delivery had better wait a moment."""


class Deliveries:
    """
    What to do with each delivery.

    1. `arrived`, `lost`, `connected` keep what is valid.
    2. `consider` takes a delivery through the decision table, and acts.
    3. `reconsider` does so again with everything that is held.
    """

    def __init__(self, deps: Deps, runs: Runs, timers: Timers) -> None:
        self.valid: dict[tuple[int, str], Delivery] = {}
        self.held: list[Delivery] = []
        self.stage = Stage.RUNNING
        self.offers_end = 0.0
        self.shut = False
        self._epoch = -1
        self._asks_again = False
        self._deps = deps
        self._runs = runs
        self._timers = timers
        self._log = get_logger("steadyworker.runner")

    # --- what is valid ---------------------------------------------------------------------------------------------

    def connected(self, epoch: int) -> None:
        """A new epoch begins: every delivery of an older one is lost."""
        self._lose([key for key in self.valid if key[0] != epoch], "a new connection replaced the old one")
        self._epoch = epoch

    def lost(self, signal: Lost) -> None:
        """One delivery, or a whole epoch, is no longer valid."""
        gone = [key for key in self.valid if key[0] == signal.epoch and signal.id in (None, key[1])]
        self._lose(gone, signal.cause)

    def arrived(self, delivery: Delivery) -> None:
        """A message was handed over."""
        if delivery.epoch != self._epoch:
            return
        self.valid[delivery.epoch, delivery.id] = delivery
        self.consider(delivery)

    def is_valid(self, delivery: Delivery | None) -> bool:
        """Whether this delivery can still be settled."""
        return delivery is not None and self.valid.get((delivery.epoch, delivery.id)) is delivery

    def settled(self, delivery: Delivery) -> None:
        """It is settled, or can no longer be."""
        if self.is_valid(delivery):
            del self.valid[delivery.epoch, delivery.id]

    def _lose(self, keys: list[tuple[int, str]], cause: str) -> None:
        for key in keys:
            self._runs.detached(self.valid.pop(key), cause)
        self.held = [delivery for delivery in self.held if self.is_valid(delivery)]
        self.offers_end = self._deps.clock.monotonic() + self._deps.times.adopt_window
        self._timers.after(self._deps.times.adopt_window, _turn)  # the window shrinks then

    # --- the decision ----------------------------------------------------------------------------------------------

    def reconsider(self) -> None:
        """Look again at everything that is held."""
        held, self.held = self.held, []
        for delivery in held:
            self.consider(delivery)

    def consider(self, delivery: Delivery) -> None:
        """Take one delivery through the decision table, from the top, and act."""
        if not self.is_valid(delivery):
            return
        if self._runs.ledger_away:
            self._hold(delivery)
            return
        match identify(delivery, self._deps.namespace, self._deps.spec.key_header):
            case Unreadable(reason=reason):
                self._dead(delivery, dict(delivery.headers), reason)
            case Unkeyed():
                self._generate_key(delivery)
            case Envelope() as envelope:
                self._decide(envelope)

    def _decide(self, envelope: Envelope) -> None:
        retry, unseen = self._deps.spec.retry, self._looks_new(envelope)
        for attempt in range(_TRIES):
            try:
                # Most messages are new: a claim that expects no row is refused where there is one.
                row = None if unseen and not attempt else self._deps.ledger.read(envelope.id)
                action = answer(
                    row, envelope.origin.hop, envelope.body_sha256, self._who(row), envelope.carried, retry.max_losses
                )
                if self._act(envelope, row, action):
                    return
            except LedgerUnavailable as error:
                self._hold(envelope.delivery)
                self._runs.ledger_lost(str(error))
                return
        self._hold(envelope.delivery, self._deps.times.defer_delay)

    def _looks_new(self, envelope: Envelope) -> bool:
        """Whether nothing speaks of an earlier delivery, and nothing here is in the way of a claim."""
        return (
            envelope.delivery.redelivered is Redelivered.NO
            and envelope.origin.hop == 0
            and self.stage is Stage.RUNNING
            and not self._deps.quota.spent
            and not self._runs.unreaped(envelope.id)
            and self._runs.free_slot() is not None
        )

    def _who(self, row: Row | None) -> HeldBy:
        if row is None or row.owner is None:
            return HeldBy.GONE
        if row.owner != self._deps.owner:
            return HeldBy.GONE if row.lease_over else HeldBy.ALIVE
        run = self._runs.by_fence.get(row.fence)
        if run is None or run.phase is Phase.DROPPED:
            return HeldBy.LOST
        return HeldBy.DETACHED if run.delivery is None and self._deps.adoption else HeldBy.MINE

    def _act(self, envelope: Envelope, row: Row | None, action: Action) -> bool:
        """Carry the action out; False when the ledger refused, so that it must be decided again."""
        match action:
            case Claim():
                return self._claim(envelope, row, action)
            case Adopt():
                assert row is not None, "what is adopted has a row"
                run = self._runs.by_fence[row.fence]
                self._runs.adopt(run, envelope.delivery)
                self._deps.emit(Adopted(**report.about(run.token, self._deps.clock)))
            case Defer(delay=delay):
                self._defer(envelope, row, self._deps.times.defer_delay if delay is None else self._level(delay))
            case AckDuplicate(state=state):
                if row is not None:
                    self._deps.emit(DuplicateAcked(**report.about(row.token, self._deps.clock), state=state.value))
                self._runs.pass_on(settlement_plan.answer(envelope.delivery))
            case KeyConflict():
                self._dead(envelope.delivery, dict(envelope.origin.headers), "key-conflict")
            case Finish():
                assert row is not None, "what is finished has a row"
                began = self._deps.clock.boottime()
                return self._finish(envelope, self._deps.ledger.take(row, self._deps.owner), began)
            case LostTooOften(counters=counters, reason=reason):
                assert row is not None, "what was lost has a row"
                began, verdict = self._deps.clock.boottime(), Verdict(Moving.DEAD, reason, counters)
                return self._finish(envelope, self._deps.ledger.lose(row, self._deps.owner, verdict), began)
        return True

    # --- the actions -----------------------------------------------------------------------------------------------

    def _claim(self, envelope: Envelope, row: Row | None, claim: Claim) -> bool:
        delivery = envelope.delivery
        if self.stage is not Stage.RUNNING:
            self._give_back(delivery)
            return True
        if self._runs.unreaped(envelope.id):
            self._hold(delivery)
            return True
        slot = self._runs.free_slot()
        if slot is None:
            if self._runs.warming():
                self._hold(delivery)
            else:
                self.offers_end = 0.0
                self._give_back(delivery)
            return True
        if not self._deps.quota.take():
            self._give_back(delivery)
            return True
        began = self._deps.clock.boottime()
        claimed = None
        try:
            claimed = self._deps.ledger.claim(
                Claimed(envelope.id, row, self._deps.owner, envelope.origin.hop, envelope.body_sha256, claim.counters)
            )
        finally:
            if claimed is None:
                self._deps.quota.give_back()
        if claimed is None:
            return False
        if row is not None and envelope.origin.hop > row.hop + 1:
            hops = {"hop": envelope.origin.hop, "known": row.hop}
            self._log.warning("ledger_lost_history", key=envelope.id.key, queue=envelope.id.queue, **hops)
        self._runs.start(claimed, envelope, slot, began, lost=claim.lost, before=row)
        return True

    def _give_back(self, delivery: Delivery) -> None:
        """Another's turn: the window is shut first, so that the message does not come straight back."""
        self.shut = True
        self._deps.adapter.prefetch(0)
        self._runs.pass_on(settlement_plan.answer(delivery, Settle.RELEASE))

    def _finish(self, envelope: Envelope, row: Row | None, began: float) -> bool:
        if row is None:
            return False
        self._runs.finish(row, envelope, began)
        return True

    def _defer(self, envelope: Envelope, row: Row | None, delay: float) -> None:
        if self._deps.adapter.capabilities.delays is Delays.NONE:
            self._hold(envelope.delivery, self._deps.times.defer_delay)
            return
        if row is not None:
            self._deps.emit(DeliveryDeferred(**report.about(row.token, self._deps.clock), delay=delay))
        message = OutgoingMessage(
            Target.LATER, envelope.delivery.body, {**envelope.delivery.headers, KEY: envelope.id.key}, delay
        )
        self._runs.pass_on(settlement_plan.pass_on(envelope.delivery, message))

    def _level(self, left: float) -> float:
        """The longest delay that is over before `left` is: rounded up to a level, a copy that came early would be late in the end."""
        return max((level for level in self._deps.adapter.capabilities.levels if level <= left), default=left)

    def _generate_key(self, delivery: Delivery) -> None:
        if self._deps.spec.unkeyed == "reject":
            self._dead(
                delivery, dict(delivery.headers), "no-key: expected a message id or the header sw-job-key, got neither"
            )
            return
        if (reason := too_large(delivery, self._deps.max_body)) is not None:
            self._dead(delivery, dict(delivery.headers), reason)
            return
        stamped = OutgoingMessage(Target.WORK, delivery.body, {**delivery.headers, KEY: uuid.uuid4().hex})
        self._runs.pass_on(settlement_plan.pass_on(delivery, stamped))

    def _dead(self, delivery: Delivery, headers: dict[str, str], reason: str) -> None:
        """A dead letter of a delivery that has no row of its own."""
        headers |= {REASON: settlement_plan.header_text(reason), WORKER: self._deps.worker}
        self._runs.pass_on(settlement_plan.pass_on(delivery, OutgoingMessage(Target.DEAD, delivery.body, headers)))

    def _hold(self, delivery: Delivery, ask_again_in: float | None = None) -> None:
        """Keep it for later, unless a stop has begun: nothing here will run it any more."""
        if self.stage >= Stage.DRAINING:
            self._give_back(delivery)
            return
        self.held.append(delivery)
        if ask_again_in is not None and not self._asks_again:
            self._asks_again = True
            self._timers.after(ask_again_in, self._ask_again)

    def _ask_again(self) -> None:
        self._asks_again = False
        self.reconsider()

    def release_held(self) -> None:
        """Give back everything that is held: no slot is left to run it."""
        held, self.held = self.held, []
        for delivery in held:
            self._runs.pass_on(settlement_plan.answer(delivery, Settle.RELEASE))


def _turn() -> None:
    """Nothing but a turn of the runner's loop, which sets the window."""
