"""One pending settlement, and the errors with which it can end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steadyworker.adapter import Delivery, Settle, Settled
from steadyworker.errors import StaleDelivery, Unsettled

OnSettled = Callable[[Settled | StaleDelivery | Unsettled], None]


@dataclass(frozen=True, slots=True, eq=False)
class Settlement:
    """One pending settlement; the epoch calls `on_settled` once, in the I/O thread."""

    delivery: Delivery
    how: Settle
    on_settled: OnSettled


def stale(delivery: Delivery) -> StaleDelivery:
    """Return the error for a delivery of an epoch that is over."""
    return StaleDelivery(
        f"Expected a delivery of the open connection, got one of epoch {delivery.epoch}, which is over: "
        "wait until the broker delivers its message again."
    )


def unsettled(cause: str) -> Unsettled:
    """Return the error for a settlement that was sent, but that the broker may not have received."""
    return Unsettled(
        f"Expected the broker to confirm a settlement, got: {cause}; "
        "if the settlement did not arrive, the message comes again."
    )
