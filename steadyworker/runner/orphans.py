"""
The jobs whose message is lost: the runner finds these jobs in the ledger, and runs each job with the message that the ledger keeps.

An *orphan* is an unfinished job of which no message has come, although a message was due (`Ledger.orphans`).
The decision table treats an orphan like a message, so an orphan starts its job only if its message would start the job.
If the message comes after all, the runner treats this message like any second message of a job.

What makes "no message has come" true
-------------------------------------
A late message is not always lost: perhaps no worker process consumed, the queue is long, or the ledger or the broker did not respond.
So a runner acts on an orphan only if all of these conditions hold:

1. For `orphan_after` seconds, the runner could consume, the broker was reachable, and the ledger granted each renewal of the runner's leases.
   So after an outage or a suspend, each living owner renews its leases before another runner takes the owner's jobs over.
2. The runner has asked for a message for a while, and received none, so no message waits in the queue.
3. A slot is free, and `--max-jobs` allows one more job.

In a queue that is never empty, the second condition never holds.
After an hour, such an orphan therefore gets the next free slot: the runner lowers the prefetch by one, and waits for the slot.
The runner does so only if another message has come since the orphan's message was due.
Otherwise the orphan's own message can be the next message in the queue, for example if each job in the only slot needs hours.
After each search, one orphan gets a slot in this way, so that many orphans do not starve the queue.
If the queue is empty, the next orphan gets a slot as soon as a slot is free, and no message has come for a while.
"""

from __future__ import annotations

import math

from steadyworker.adapter import Capabilities
from steadyworker.clock import Times
from steadyworker.errors import LedgerUnavailable
from steadyworker.events import MessageLost
from steadyworker.ledger.base import Claimed, Hindrance, Moving, Orphan, Row, State, Verdict
from steadyworker.ledger.rules import Claim, Finish, LostTooOften, action_for
from steadyworker.runner import report
from steadyworker.runner.deliveries import Deliveries
from steadyworker.runner.envelope import Envelope, envelope_of
from steadyworker.runner.planning import owes_call
from steadyworker.runner.runs import Runs
from steadyworker.runner.state import Deps, RunnerState, Timers

MESSAGE_LOST = "message-lost"
"""The value of `redelivered_because` for the run of an orphan."""

_MOST = 16
"""The largest number of orphans that the ledger returns for one question."""

_LEFT_EVERY = 600.0
"""Seconds between two questions for the orphans that no worker process runs by itself."""

_MOST_LEFT = 100


def orphan_after(times: Times, broker: Capabilities) -> float:
    """
    Return the seconds without a message after which a job is an orphan.

    This time is at least as long as a take-over, as two deferrals, and as the broker's own redelivery.
    """
    return max(
        times.orphan_after,
        times.lease + times.margin,
        2 * times.defer_delay,
        broker.forgets_consumers_within,
        broker.redelivers_within,
    )


class Orphans:
    """
    The search for orphans of one Worker.

    1. `renewed`, `delivered` and `turn` keep the evidence: the time since which this runner would have received each message.
    2. A timer asks the ledger for orphans, and acts on them.
    3. `reserved` is the number of slots that the prefetch leaves to orphans.
    """

    def __init__(self, deps: Deps, state: RunnerState, runs: Runs, deliveries: Deliveries, timers: Timers) -> None:
        self._deps = deps
        self._state = state
        self._runs = runs
        self._deliveries = deliveries
        self._timers = timers
        self.reserved = 0
        self._more = self._asks_soon = False
        self._steady_since: float | None = None
        self._asking_since: float | None = None
        self._delivered_at = self._resumed_at = -math.inf
        self._last_renewal = -math.inf
        self._report_left_at = 0.0
        self._once = report.Once()

    def start(self) -> None:
        """Begin to ask the ledger."""
        self._timers.after(self._deps.times.orphan_poll, self._search_regularly)

    # --- the evidence ----------------------------------------------------------------------------------------------

    def renewed(self, began: float, *, granted: bool) -> None:
        """
        Note a renewal of all leases that began at this boot time; a gap between two renewals ends the evidence.

        `granted` is True if no run lost its lease.
        The ledger also refuses to renew a run that has just ended; this is no loss.
        """
        if not granted or began - self._last_renewal > self._longest_gap():
            self._steady_since = None
        self._last_renewal = began

    def delivered(self) -> None:
        """Note that the broker has delivered a message, so other messages can wait in the queue."""
        self._asking_since = None
        self._delivered_at = self._deps.clock.monotonic()

    def resumed(self) -> None:
        """Note the end of a pause: a message that waited in the paused queue was not late."""
        self._resumed_at = self._deps.clock.monotonic()

    def turn(self, prefetch: int, *, able: bool) -> None:
        """Note, at the end of a turn, whether the runner is `able` to accept messages, and whether the runner asks for a message."""
        now = self._deps.clock.monotonic()
        if not able:
            self._steady_since = None
        elif self._steady_since is None:
            self._steady_since = now
        if not able or len(self._state.valid) >= prefetch:
            self._asking_since = None
        elif self._asking_since is None:
            self._asking_since = now
        if self._more and not self._asks_soon and self._state.free_slot() is not None:
            self._asks_soon = True
            self._timers.after(self._deps.adapter.capabilities.answers_within, self._search_soon)

    def _longest_gap(self) -> float:
        return 2 * self._deps.times.renew + self._deps.times.call_timeout

    def _steady(self, after: float) -> bool:
        """Return whether this runner would have received each message that came within the last `after` seconds."""
        since, clock = self._steady_since, self._deps.clock
        # If the last renewal is older, the machine was suspended just now.
        renewed = clock.boottime() - self._last_renewal <= self._longest_gap()
        return since is not None and renewed and clock.monotonic() - since > after

    def _nothing_waits(self) -> bool:
        """Return whether this runner has asked for a message for `answers_within` seconds, and received none."""
        since = self._asking_since
        enough = self._deps.adapter.capabilities.answers_within
        return since is not None and self._deps.clock.monotonic() - since >= enough

    # --- the search ------------------------------------------------------------------------------------------------

    def _search_regularly(self) -> None:
        self._timers.after(self._deps.times.orphan_poll, self._search_regularly)
        self._search()

    def _search_soon(self) -> None:
        self._asks_soon = False
        self._search()

    def _search(self) -> None:
        self._more = False
        after = orphan_after(self._deps.times, self._deps.adapter.capabilities)
        if not self._steady(after):
            self.reserved = 0
            return
        try:
            self._act_on_all(after)
            self._report_left(after)
        except LedgerUnavailable as error:
            self._runs.ledger_lost(str(error))

    def _act_on_all(self, after: float) -> None:
        """
        Act on the orphans for which the conditions hold; note whether more orphans wait only for a slot (`more`).

        If only the settlement of an orphan is left, the orphan needs no slot, and the runner reserves no slot for it.
        """
        reserved, self.reserved = self.reserved, 0
        found = self._orphans(after, _MOST, stranded=False)
        if not self._steady(after):
            # The machine was suspended during the call, and the leases of other owners ended meanwhile.
            return
        for orphan in found:
            long, waits = self._is_passed_over(orphan), not self._nothing_waits()
            settles = orphan.row.state is State.MOVING or (
                waits and long and self._sent_again_as(orphan.row) is not None
            )
            if (waits and not (long and (reserved or settles))) or not self._act_on(orphan):
                self.reserved = int(long)
                self._more = long or not waits
                return
            if waits and not settles:
                return
        self._more = len(found) == _MOST

    def _is_passed_over(self, orphan: Orphan) -> bool:
        """
        Return whether the orphan's message is an hour late, and another message has come since the orphan's message was due.

        The time before the end of a pause does not count, because messages of a paused queue wait without being late.
        """
        now = self._deps.clock.monotonic()
        late = min(orphan.unseen_for, now - self._resumed_at)
        return late > self._deps.times.orphan_reserve and orphan.unseen_for > now - self._delivered_at

    def _orphans(self, after: float, limit: int, *, stranded: bool) -> list[Orphan]:
        deps = self._deps
        return list(deps.ledger.orphans(deps.namespace, deps.spec.queue, after, limit, stranded=stranded))

    def _act_on(self, orphan: Orphan) -> bool:
        """Act on one orphan by the decision table; return False if the orphan needs a slot and no slot is free."""
        deps, row = self._deps, orphan.row
        if self._state.unreaped(row.id):
            return True
        if (last := self._sent_again_as(row)) is not None:
            self._end(orphan, f"no message of it came, and the job was sent again as round {last}")
            return True
        message = deps.ledger.message(row.id)
        if message is None:
            # The job's verdict is a dead letter: `Ledger.orphans` returns no other job without a message here.
            self._end(orphan, f"{Hindrance.NO_MESSAGE.value}, so it has no dead letter")
            return True
        envelope = envelope_of(row, message)
        held_by = self._deliveries.held_by(row)
        match action_for(row, envelope.hop, envelope.body_sha256, held_by, row.counters, deps.spec.retry.max_losses):
            case Claim() as claim:
                return self._run(orphan, envelope, claim)
            case Finish() | LostTooOften() as action:
                owned = self._deliveries.finish(envelope, row, action)
                if owned is not None:
                    self._report(orphan, "dead" if owned.target is Moving.DEAD else "finished")
        return True

    def _sent_again_as(self, row: Row) -> int | None:
        """Return the last round of the job's key if this round is later than the row's round, otherwise None."""
        last = self._deps.ledger.last_round(row.id.namespace, row.id.queue, row.id.key)
        return last if last is not None and last > row.id.round else None

    def _run(self, orphan: Orphan, envelope: Envelope, claim: Claim) -> bool:
        deps, row = self._deps, orphan.row
        slot = self._state.free_slot()
        if slot is None or not self._deliveries.may_begin() or not deps.quota.spend():
            return False
        self._deliveries.pause()
        began = deps.clock.boottime()
        claimed = self._deliveries.claim(envelope, row, claim, slot)
        if claimed is not None:
            self._report(orphan, "runs")
            self._runs.start(claimed, envelope, slot, began, lost=claim.lost, before=row, because=MESSAGE_LOST)
        return True

    def _end(self, orphan: Orphan, why: str) -> None:
        """
        Record that a job is dead, without a run and without a dead letter; if the job already has a verdict, keep this verdict.

        Do nothing while messages wait in the queue: the only copy of the job's message can be among them.
        The runner would acknowledge that message as a duplicate of a dead job, and so lose it.
        """
        if not self._nothing_waits():
            return
        ledger, row, owner = self._deps.ledger, orphan.row, self._deps.owner
        if row.state is State.MOVING:
            owned = ledger.take_over(row, owner)
        else:
            owned = ledger.claim(Claimed(row.id, row, owner, row.hop, row.body_sha256 or b"", row.counters))
        if owned is None:
            return
        judged = row.state is State.MOVING and row.target is Moving.DEAD
        verdict = Verdict(Moving.DEAD, why, row.counters, owes_call=owes_call(self._deps.spec, why))
        if (judged or ledger.moving(owned.token, verdict)) and ledger.moved(owned.token):
            self._report(orphan, "dead", why)

    def _report_left(self, after: float) -> None:
        """
        Report once each orphan that only an operator may start.

        Do nothing while messages wait in the queue, because the orphan's own message can be among them.
        """
        now = self._deps.clock.monotonic()
        if now < self._report_left_at or not self._nothing_waits():
            return
        self._report_left_at = now + _LEFT_EVERY
        for orphan in self._orphans(after, _MOST_LEFT, stranded=True):
            if self._once.is_first((orphan.row.uid, orphan.row.fence)) and orphan.hindrance is not None:
                self._report(orphan, "left", why=orphan.hindrance.value)

    def _report(self, orphan: Orphan, fate: str, why: str = "") -> None:
        row = orphan.row
        self._deps.emit(
            MessageLost(
                **report.about(row.token, self._deps.clock),
                unseen_for=round(orphan.unseen_for, 1),
                state=row.state.value,
                fate=fate,
                owner=row.owner or "",
                worker=row.worker,
                why=why,
            )
        )
