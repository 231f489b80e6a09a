"""
The front half of the runner: from a delivery to the runner's action.

::

    Delivery ── identify ──→ Envelope ── decision table ──→ claim │ adopt │ defer │ acknowledge │ finish │ dead letter
                   │                          │
                   └── no key: `unkeyed.py`   └── no ledger, slot not warm, earlier run still in a slot: held

A delivery is *valid* until its epoch ends, the broker takes it back, or the runner settles it.
A *held* delivery waits, for example for the ledger or a slot.
After each change that can end such a wait, the runner decides again on all held deliveries.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from steadyworker.adapter import Delays, Lost
from steadyworker.delivery import KEY, QUEUE, REASON, WORKER, Delivery, OutgoingMessage, Redelivered, Settle, Target
from steadyworker.errors import LedgerUnavailable, MessageRefused
from steadyworker.events import Adopted, DeliveryDeferred, DeliveryRejected, DuplicateAcked
from steadyworker.ledger.base import Began, Claimed, Moving, Row, Verdict
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
    Replay,
    action_for,
)
from steadyworker.lifecycle import Stage
from steadyworker.names import normal_key
from steadyworker.runner import planning, report
from steadyworker.runner.envelope import (
    KEY_CONFLICT,
    Envelope,
    Unkeyed,
    Unreadable,
    header_text,
    identify,
    in_round,
    key_of,
    named_key,
    not_obeyed,
    of_queue,
    too_large,
)
from steadyworker.runner.redeliveries import RELEASED, REQUEUED, Redeliveries, cause_of
from steadyworker.runner.runs import Runs
from steadyworker.runner.settlement_plan import SettlementPlan
from steadyworker.runner.settler import NotRejected
from steadyworker.runner.state import Deps, PlanResult, RunnerState, Timers
from steadyworker.runner.turn import TurnWrites
from steadyworker.runner.unkeyed import UnkeyedMessages
from steadyworker.slots.base import Slot
from steadyworker.telemetry.logs import get_logger
from steadyworker.text.plain_text import as_unicode

_TRIES = 20
"""The largest number of consecutive decisions on a delivery whose claim the ledger refuses; the runner then holds the delivery."""


class Deliveries:
    """
    The deliveries of one Worker in this process.

    1. `connected`, `arrived`, `lost` and `plan_returned` keep the set of valid deliveries.
    2. `consider` decides on a delivery by the decision table, and acts.
    3. `reconsider` decides again on every held delivery.
    """

    def __init__(self, deps: Deps, state: RunnerState, runs: Runs, timers: Timers, writes: TurnWrites) -> None:
        self._deps = deps
        self._state = state
        self._runs = runs
        self._timers = timers
        self._writes = writes
        self._unkeyed = UnkeyedMessages(deps, state, runs, self.may_begin, self._begin_detached, self._decline)
        self._redeliveries = Redeliveries(deps.spec.key_header, deps.times.margin)
        self._epoch = -1
        self._asks_again = False
        self._obeys = True
        self._once = report.Once()
        self._log = get_logger("steadyworker.runner")

    # --- which deliveries are valid --------------------------------------------------------------------------------

    def connected(self, epoch: int) -> None:
        """Begin a new epoch: every delivery of an older epoch is lost."""
        gone = Lost(self._epoch, "a new connection replaced the old one")
        self._lose([each for each in self._valid() if each.epoch != epoch], gone)
        self._epoch = epoch

    def lost(self, signal: Lost) -> None:
        """Forget one delivery, or every delivery of an epoch."""
        lost = [each for each in self._valid() if each.epoch == signal.epoch and signal.id in (None, each.id)]
        self._lose(lost, signal)

    def arrived(self, delivery: Delivery) -> None:
        """Receive a delivery from the broker."""
        if delivery.epoch != self._epoch:
            return
        delivery = of_queue(delivery, self._deps.spec.queue)
        self._state.receive(delivery)
        self.consider(delivery)

    def plan_returned(self, result: PlanResult) -> None:
        """Receive a plan that was carried out, or stopped by an error; a delivery that was settled or rejected is no longer valid."""
        unkeyed = result.plan in self._unkeyed.plans
        if unkeyed and self._unkeyed.refused(result):
            return
        if result.run is None and isinstance(result.error, MessageRefused) and self._kept(result.plan, result.error):
            return
        self._runs.plan_returned(result)
        if result.error is not None and not isinstance(result.error, NotRejected):
            return
        self._state.settled(result.plan.settled_with)
        if unkeyed:
            self._unkeyed.over(result.plan)

    def _kept(self, plan: SettlementPlan, error: MessageRefused) -> bool:
        """
        Park a plan whose delayed copy the broker never accepts, and later decide again on the plan's delivery.

        Return False for a plan without a delayed copy.

        The job may run in another process, so its message must not become a dead letter.
        """
        if plan.message is None or plan.message.to is not Target.LATER:
            return False
        self._state.parked[plan] = str(error)
        self._unkeyed.plans.pop(plan, None)
        if (delivery := plan.delivery) is not None and self._once.is_first((delivery.epoch, delivery.id)):
            report.refused(delivery.queue, plan.message.headers.get(KEY, ""), error, report.HELD)

        def decide_again() -> None:
            del self._state.parked[plan]
            self._state.plans_without_run.remove(plan)
            self._state.reconsider(plan.delivery)

        self._timers.after(self._deps.times.defer_delay, decide_again)
        return True

    def _valid(self) -> list[Delivery]:
        return [each.delivery for each in self._state.valid.values() if each.delivery is not None]

    def _lose(self, lost: list[Delivery], signal: Lost) -> None:
        for delivery in lost:
            self._redeliveries.ended(delivery, cause_of(signal))
            self._runs.detached(delivery, signal)
        self._state.adopt_until = self._deps.clock.monotonic() + self._deps.times.adopt_window
        self._timers.after(self._deps.times.adopt_window, _turn)

    # --- the decision ----------------------------------------------------------------------------------------------

    def reconsider(self) -> None:
        """Decide again on every held delivery."""
        for delivery in self._state.pop_held():
            self.consider(delivery)

    def consider(self, delivery: Delivery) -> None:
        """Decide on a delivery by the decision table, and act."""
        if not self._state.is_valid(delivery):
            return
        if self._state.ledger_away:
            self._hold(delivery)
            return
        match identify(delivery, self._deps.namespace, self._deps.spec.key_header):
            case Unreadable(reason=reason):
                self._reject(delivery, reason)
            case Unkeyed():
                self._generate_key(delivery)
            case Envelope() as envelope:
                unseen = self._seems_new(envelope)
                if not (unseen and self._writes.open and self._claim_in_turn(envelope)):
                    self._decide(envelope, unseen=unseen)

    def _decide(self, envelope: Envelope, *, unseen: bool) -> None:
        """Decide on a keyed delivery; if it is `unseen`, first try to claim its job without a read of the row."""
        retry = self._deps.spec.retry
        for attempt in range(_TRIES):
            try:
                # Most messages are new, so the first claim expects no row; if the job has a row, the ledger refuses the claim.
                row = None if unseen and not attempt else self._deps.ledger.read(envelope.id)
                if conflict := envelope.conflict(None if row is None else row.uid):
                    self._reject(envelope.delivery, conflict, row)
                    return
                held_by = self.held_by(row)
                carried, max_losses, letter = envelope.carried, retry.max_losses, envelope.letter
                action = action_for(
                    row, envelope.hop, envelope.body_sha256, held_by, carried, max_losses, letter=letter
                )
                if self._act(envelope, row, action):
                    return
            except LedgerUnavailable as error:
                self._hold(envelope.delivery)
                self._runs.ledger_lost(str(error))
                return
        self._hold(envelope.delivery, self._deps.times.defer_delay)

    def _seems_new(self, envelope: Envelope) -> bool:
        """Return whether the message seems to be new, and a claim could begin at once."""
        return (
            envelope.delivery.redelivered is Redelivered.NO
            and envelope.hop == 0
            and not envelope.letter
            and not envelope.contradiction
            and not self._state.unreaped(envelope.id)
            and self.may_begin()
        )

    def may_begin(self) -> bool:
        """Return whether a new job could begin at once."""
        return (
            not self._state.closed
            and not self._state.ledger_away
            and not self._deps.quota.spent
            and self._state.free_slot() is not None
        )

    def held_by(self, row: Row | None) -> HeldBy:
        """Return the holder of this row, from the point of view of this process."""
        if row is None or row.owner is None:
            return HeldBy.GONE
        if row.owner != self._deps.owner:
            return HeldBy.GONE if row.lease_over else HeldBy.ALIVE
        run = self._state.by_fence.get(row.fence)
        if run is None or run.dropped:
            return HeldBy.LOST
        return HeldBy.DETACHED if run.delivery is None and self._deps.adoption else HeldBy.MINE

    def _act(self, envelope: Envelope, row: Row | None, action: Action) -> bool:
        """Carry the action out; return False if the ledger refused a write, so that the runner must decide again."""
        match action:
            case Claim():
                return self._claim(envelope, row, action)
            case Adopt():
                assert row is not None, "an adopted run has a row"
                run = self._state.by_fence[row.fence]
                self._runs.adopt(run, envelope.delivery)
                because = self._why_again(envelope, row)
                self._deps.emit(Adopted(**report.about(run.token, self._deps.clock), redelivered_because=because))
            case Defer(delay=delay):
                assert row is not None, "a deferred message has a row"
                self._defer(envelope, row, self._deps.times.defer_delay if delay is None else self._level(delay))
            case AckDuplicate(state=state):
                if row is not None:
                    about, because = report.about(row.token, self._deps.clock), self._why_again(envelope, row)
                    self._deps.emit(DuplicateAcked(**about, state=state.value, redelivered_because=because))
                self._settle(envelope.delivery, Settle.ACK)
            case KeyConflict():
                assert row is not None, "a key without a row has no conflict"
                self._deps.ledger.conflict(row.id)
                is_named = named_key(envelope.delivery, self._deps.spec.key_header) is not None
                explain = "" if is_named else "steadyworker.id-conflict"
                self._reject(envelope.delivery, KEY_CONFLICT, row, explain)
            case Replay():
                self._replay(envelope)
            case Finish() | LostTooOften():
                assert row is not None, "an unfinished settlement and a lost run have a row"
                return self.finish(envelope, row, action) is not None
        return True

    # --- the actions -----------------------------------------------------------------------------------------------

    def _claim(self, envelope: Envelope, row: Row | None, claim: Claim) -> bool:
        delivery = envelope.delivery
        if self._state.closed:
            self._give_back(delivery)
            return True
        if self._state.unreaped(envelope.id):
            self._hold(delivery)
            return True
        slot = self._state.free_slot()
        if slot is None:
            if self._state.warming():
                self._hold(delivery)
            else:
                self._decline(delivery)
            return True
        if not self._deps.quota.spend():
            self._give_back(delivery)
            return True
        return self._begin(envelope, row, claim, slot)

    def _claim_in_turn(self, envelope: Envelope) -> bool:
        """Add the claim of a job that seems to be new to the commit of this turn; return False if this fails."""
        slot, most, letter = self._state.free_slot(), self._deps.spec.retry.max_losses, envelope.letter
        hop, digest, carried = envelope.hop, envelope.body_sha256, envelope.carried
        claim = action_for(None, hop, digest, HeldBy.GONE, carried, most, letter=letter)
        if slot is None or not isinstance(claim, Claim) or envelope.conflict(None) or not self._deps.quota.spend():
            return False
        began, reserved = self._deps.clock.boottime(), self._state.reserved
        reserved.add(slot.id)

        def begin(result: Row | LedgerUnavailable | None) -> None:
            reserved.discard(slot.id)
            if isinstance(result, Row):
                self._start(envelope, None, claim, slot, result, began)
                return
            self._deps.quota.give_back()
            if result is None:
                self._decide(envelope, unseen=False)
            else:
                self._hold(envelope.delivery)
                self._runs.ledger_lost(str(result))

        self._writes.claim(self._claimed(envelope, None, claim, slot), begin)
        return True

    def _begin(self, envelope: Envelope, row: Row | None, claim: Claim, slot: Slot) -> bool:
        """Claim a job that the quota has counted, and begin its run; return False when the ledger refused the claim."""
        began = self._deps.clock.boottime()
        claimed = self.claim(envelope, row, claim, slot)
        if claimed is None:
            return False
        self._start(envelope, row, claim, slot, claimed, began)
        return True

    def _start(self, envelope: Envelope, row: Row | None, claim: Claim, slot: Slot, claimed: Row, began: float) -> None:
        """Begin the run of a claimed job; `row` is the row before the claim."""
        if row is not None and envelope.hop > row.hop + 1:
            self._runs.history_lost(claimed.token, f"the hops between {row.hop} and {envelope.hop} of the job")
        if self._obeys and (names := not_obeyed(envelope.delivery.headers)):
            self._obeys = False  # one line is enough
            about = {"key": envelope.id.key, "queue": envelope.id.queue, "headers": names}
            self._log.warning("headers_not_obeyed", **about, explain="steadyworker.headers-not-obeyed")
        because = self._why_again(envelope, row)
        self._runs.start(claimed, envelope, slot, began, lost=claim.lost, before=row, because=because)

    def claim(self, envelope: Envelope, row: Row | None, claim: Claim, slot: Slot) -> Row | None:
        """Claim a job that the quota has counted; if the ledger refuses the claim, return None, and stop counting the job."""
        claimed = None
        try:
            claimed = self._deps.ledger.claim(self._claimed(envelope, row, claim, slot))
        finally:
            if claimed is None:
                self._deps.quota.give_back()
        return claimed

    def _claimed(self, envelope: Envelope, row: Row | None, claim: Claim, slot: Slot) -> Claimed:
        owner, message, lost = self._deps.owner, self._deps.to_keep(envelope), envelope.from_ledger
        because = report.because(row, lost=claim.lost, from_ledger=lost)
        run = Began(slot.id, because, None if lost else envelope.delivery.epoch)
        return Claimed(envelope.id, row, owner, envelope.hop, envelope.body_sha256, claim.counters, message, run)

    def _why_again(self, envelope: Envelope, row: Row | None) -> str:
        if row is None and envelope.id.round == 0 and envelope.delivery.redelivered is Redelivered.NO:
            return ""  # the usual case, a message that comes for the first time
        return self._redeliveries.because(envelope, row, self._deps.owner)

    def _begin_detached(self, envelope: Envelope) -> None:
        """
        Claim a job whose message comes later, for a run that begins without a delivery.

        Do nothing if no slot is free, or if the quota is used up.
        Set the prefetch to 0 first: otherwise the broker could deliver a message for the slot of this run.
        """
        slot = self._state.free_slot()
        if slot is None or not self._deps.quota.spend():
            return
        self.pause()
        try:
            self._begin(envelope, None, Claim(envelope.carried), slot)
        except LedgerUnavailable as error:
            self._runs.ledger_lost(str(error))

    def _decline(self, delivery: Delivery) -> None:
        """Give back a delivery for which no slot is free, and take the slots of detached runs out of the prefetch."""
        self._state.adopt_until = 0.0
        self._give_back(delivery)

    def pause(self) -> None:
        """Set the prefetch to 0 until the end of this turn, so that the broker delivers no message for a slot that a run needs."""
        self._state.paused = True
        self._deps.adapter.prefetch(0)

    def _give_back(self, delivery: Delivery) -> None:
        """Release a delivery; set the prefetch to 0 first, so that the broker does not return the message to this process at once."""
        self.pause()
        self._release(delivery)

    def _release(self, delivery: Delivery) -> None:
        self._redeliveries.ended(delivery, RELEASED)
        self._settle(delivery, Settle.RELEASE)

    def _settle(self, delivery: Delivery, how: Settle) -> None:
        self._runs.carry_out(planning.settle_only(self._state.incoming(delivery), how))

    def _pass_on(self, delivery: Delivery, message: OutgoingMessage) -> None:
        self._runs.carry_out(planning.pass_on(self._state.incoming(delivery), message))

    def finish(self, envelope: Envelope, row: Row, action: Finish | LostTooOften) -> Row | None:
        """Take the job's settlement over, and finish it; return the job's row, or None if the ledger refused the take-over."""
        began, ledger, owner = self._deps.clock.boottime(), self._deps.ledger, self._deps.owner
        if isinstance(action, LostTooOften):
            owes = planning.owes_call(self._deps.spec, action.reason)
            owned = ledger.lose(row, owner, Verdict(Moving.DEAD, action.reason, action.counters, owes_call=owes))
        else:
            owned = ledger.take_over(row, owner)
        if owned is not None:
            self._runs.finish(owned, envelope, began)
        return owned

    def _defer(self, envelope: Envelope, row: Row, delay: float) -> None:
        if self._deps.adapter.capabilities.delays is Delays.NONE:
            self._hold(envelope.delivery, self._deps.times.defer_delay)
            return
        about, because = report.about(row.token, self._deps.clock), self._why_again(envelope, row)
        self._deps.ledger.deferred(row.id, planning.comes_in(delay, self._deps.adapter.capabilities))
        self._deps.emit(DeliveryDeferred(**about, delay=delay, redelivered_because=because))
        self._pass_on(envelope.delivery, planning.deferred(envelope, row.uid, delay))

    def _level(self, left: float) -> float:
        """
        Return the longest delay level that is not longer than `left` seconds.

        An adapter with delay levels rounds a delay up, so a delay of `left` seconds could become much longer.
        """
        return max((level for level in self._deps.adapter.capabilities.levels if level <= left), default=left)

    def _replay(self, envelope: Envelope) -> None:
        """Begin the next round with a dead letter that an operator moved to the work queue, as `dead replay` does."""
        next_round = structs.replace(envelope.id, round=envelope.id.round + 1)
        self._log.info("dead_letter_replayed", key=next_round.key, queue=next_round.queue, round=next_round.round)
        delivery = replace(envelope.delivery, headers=in_round(envelope.delivery.headers, next_round))
        self._redeliveries.ended(delivery, REQUEUED)
        self._state.receive(delivery)
        self.consider(delivery)

    def _generate_key(self, delivery: Delivery) -> None:
        if self._deps.spec.unkeyed == "reject":
            self._reject(delivery, "no-key: expected a message id or the header sw-job-key, got neither")
        elif (reason := too_large(delivery, self._deps.max_body)) is not None:
            self._reject(delivery, reason)
        else:
            self._unkeyed.replace(delivery)

    def _reject(self, delivery: Delivery, reason: str, row: Row | None = None, explain: str = "") -> None:
        """
        Make a dead letter of a delivery that has no row of its own, and emit the event.

        `row` is the row of another job with the same key.
        The event names the catalogue's entry of the reason, unless `explain` names another entry.
        A copy of an unshown delivery would lack the content, so the adapter rejects the original message.
        """
        given = key_of(delivery, self._deps.spec.key_header)
        key = normal_key(as_unicode(given)) if given else ""
        # If a broker cannot move an unshown message, the broker delivers the message again after each pause.
        if delivery.unshown is None or self._once.is_first(delivery.message_id or delivery.id):
            self._deps.emit(
                DeliveryRejected(
                    key=key,
                    queue=delivery.queue,
                    fence=0 if row is None else row.fence,
                    at=self._deps.clock.wall(),
                    reason=reason,
                    explain=explain or f"steadyworker.{reason.partition(':')[0]}",
                )
            )
        if delivery.unshown is not None:
            self._settle(delivery, Settle.REJECT)
            return
        theirs = {as_unicode(name): as_unicode(text) for name, text in delivery.headers.items()}
        ours = {QUEUE: delivery.queue, REASON: header_text(reason), WORKER: self._deps.worker}
        if key:  # the broker gives the copy another message id
            ours[KEY] = key
        self._pass_on(delivery, OutgoingMessage(Target.DEAD, delivery.body, theirs | ours))

    def _hold(self, delivery: Delivery, ask_again_in: float | None = None) -> None:
        """Keep a delivery for later; after a stop has begun, give the delivery back, because this process begins no more runs."""
        if self._state.stage >= Stage.DRAINING:
            self._give_back(delivery)
            return
        self._state.hold(delivery)
        if ask_again_in is not None and not self._asks_again:
            self._asks_again = True
            self._timers.after(ask_again_in, self._ask_again)

    def _ask_again(self) -> None:
        self._asks_again = False
        self._state.reconsider()

    def release_held(self) -> None:
        """Release every held delivery, because no slot can begin a run now."""
        for delivery in self._state.pop_held():
            self._release(delivery)


def _turn() -> None:
    """Do nothing; the timer that calls this causes a turn of the runner's loop, and the end of the turn sets the prefetch."""
