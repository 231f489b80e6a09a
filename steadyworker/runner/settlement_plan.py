"""
A settlement plan: the steps of one message's settlement, and the number of steps that are done.

::

    record ──→ publish ──→ confirm ──→ settle
    running    the retry   moving →    the original
    → done |   or dead     moved |     delivery
      moving   letter      dead

`planning.py` makes plans, `settler.py` carries them out.
If a process dies between two steps, the next owner can repeat the last step.
This is safe: a second record of the same run changes nothing, and if the broker delivers the original again, the row shows the outcome.

If the broker never accepts the dead letter, the broker itself moves the original::

    record ──→ reject ──→ confirm
    moving     the        moving →
    stays      original   dead

The confirm comes last: after the confirm, the runner acknowledges each redelivery of the job's message.
If the broker had not moved the original before the confirm, no message of the job would be left.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from steadyworker.delivery import Delivery, OutgoingMessage, Settle, Settled
from steadyworker.ledger.base import Ending, Token, Verdict
from steadyworker.outcome import Counters


class Step(Enum):
    """The steps of a settlement, in their order."""

    RECORD = "record"
    PUBLISH = "publish"
    CONFIRM = "confirm"
    SETTLE = "settle"


@dataclass(frozen=True, slots=True)
class RecordDone:
    """The order to record `done`."""


@dataclass(frozen=True, slots=True)
class RecordInterrupted:
    """The order to record `interrupted`, with these counters."""

    counters: Counters


Record = RecordDone | RecordInterrupted | Verdict


@dataclass(slots=True, eq=False)
class Incoming:
    """
    The one record of a message that the broker has delivered to this process, with the message's delivery.

    A run and its plan share a record, so a loss or an adoption changes the record and nothing else.

    Attributes:
        delivery: The delivery to settle; None after its loss, until a redelivery replaces it.
        held: True while the delivery waits for the ledger, for a slot, or for the end of an earlier run.
    """

    delivery: Delivery | None = None
    held: bool = False


@dataclass(slots=True, eq=False)
class SettlementPlan:
    """
    The steps of one message's settlement, and the number of steps that are done.

    Attributes:
        steps: The steps, in their order.
        incoming: The message to settle; the message's delivery can be lost or replaced at any moment.
        token: The claim under which the plan writes to the ledger; None for a plan that does not write to the ledger.
        record: The ledger's first entry about the outcome.
        end: How the run ended, which the ledger records for people with the first entry; None if it has recorded this before.
        message: The message to publish: a retry, a dead letter, or a deferred copy.
        how: The way to settle the delivery: acknowledge, release or reject it.
        at: The number of steps that are done.
        failures: The number of consecutive failures to publish.
        settled: The certainty of the settlement, once the delivery is settled.
        settled_with: The delivery that the plan settled.
        stale: True if `settled_with` could no longer be settled, so that the adapter sent nothing to the broker.
    """

    steps: tuple[Step, ...]
    incoming: Incoming
    token: Token | None = None
    record: Record | None = None
    message: OutgoingMessage | None = None
    how: Settle = Settle.ACK
    at: int = 0
    failures: int = 0
    settled: Settled | None = None
    settled_with: Delivery | None = None
    stale: bool = False
    end: Ending | None = None

    @property
    def delivery(self) -> Delivery | None:
        """The delivery to settle; None if it was lost."""
        return self.incoming.delivery

    @property
    def publishing(self) -> bool:
        """True while the next step, or the step under way, is to publish."""
        return self.steps[self.at : self.at + 1] == (Step.PUBLISH,)

    @property
    def surely_unsettled(self) -> bool:
        """True if the adapter has sent no settlement, so that the broker still has the message, and delivers it again."""
        return self.settled_with is None or self.stale
