"""
Finds the reason why the broker delivers a message again, if this process knows the reason.

Only the log uses this reason; no decision depends on it.

The row shows what other worker processes did, and this process remembers how its own deliveries ended.
"""

from __future__ import annotations

from collections.abc import Mapping

from steadyworker.adapter import Lost
from steadyworker.delivery import HOP, ROUND, Delivery, Redelivered
from steadyworker.ledger.base import Row, State
from steadyworker.runner.envelope import Envelope, key_of

RELEASED = "released"
REQUEUED = "requeued-by-operator"

_MOST = 1000
"""The largest number of ended deliveries that this process remembers; it forgets the oldest first."""

_Message = tuple[str | None, str | None, str | None]


def cause_of(signal: Lost) -> str:
    """Return why the lost deliveries come again, in a word of `steadyworker.events.REDELIVERED`."""
    name = signal.explain.rpartition(".")[2]
    if name in ("delivery-timeout", "consumer-cancelled"):
        return name
    return "connection-lost" if signal.id is None else "delivery-lost"


class Redeliveries:
    """
    The deliveries that this process no longer has, although no settlement has ended their messages.

    Args:
        key_header: The header that has the key; None for the usual header.
        margin: The seconds after the end of a lease (`Times.margin`).
            In this time, only the proof of the owner's death allows a take-over.
    """

    def __init__(self, key_header: str | None, margin: float) -> None:
        self._key_header = key_header
        self._margin = margin
        self._ended: dict[_Message, str] = {}

    def ended(self, delivery: Delivery, because: str) -> None:
        """Remember that this delivery ended, so that the broker delivers its message again."""
        message = self._message(delivery)
        self._ended.pop(message, None)
        self._ended[message] = because
        if len(self._ended) > _MOST:
            del self._ended[next(iter(self._ended))]

    def because(self, envelope: Envelope, row: Row | None, owner: str) -> str:
        """
        Return why this message comes again, in a word of `steadyworker.events.REDELIVERED`; empty if the reason is not known.

        `row` is the job's row before any action on this delivery, and `owner` is this process.
        """
        known = self._known(envelope.delivery) if self._ended else ""
        if row is None or row.hop < 0:
            return known or (REQUEUED if row is not None else "")
        if row.state is State.INTERRUPTED and row.fence:
            return known or RELEASED
        if row.state in (State.RUNNING, State.MOVING) and row.owner != owner and row.lease_over:
            return "worker-killed" if row.late_by <= self._margin else "worker-lost"
        return known

    def _known(self, delivery: Delivery) -> str:
        """Return why a delivery of this message ended, and forget it; a message that an operator moved need not have the broker's mark."""
        message = self._message(delivery)
        marked = delivery.redelivered is not Redelivered.NO or self._ended.get(message) == REQUEUED
        return self._ended.pop(message, "") if marked else ""

    def _message(self, delivery: Delivery) -> _Message:
        headers: Mapping[str, str] = delivery.headers
        return key_of(delivery, self._key_header), headers.get(ROUND), headers.get(HOP)
