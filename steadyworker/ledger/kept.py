"""
The message of a job, as the ledger keeps it, so that the job does not depend on the broker's copy.

The ledger keeps a whole delivery, except what belongs to one delivery only: its epoch, its id, and the mark of a redelivery.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from steadyworker.delivery import Delivery, Redelivered
from steadyworker.ledger.base import KeptMessage

OF_THE_LEDGER = -1
"""The epoch of a delivery that the ledger has made of a kept message; no connection has this epoch."""


class _Facts(Struct, frozen=True, omit_defaults=True):
    """The facts of a delivery besides its body; facts that only a later version knows are ignored."""

    headers: dict[str, str] = {}
    message_id: str | None = None
    sent_at: float | None = None
    size: int = -1
    brokers_own: tuple[str, ...] = ()
    origin: str | None = None
    encoding: str | None = None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Facts)


def kept(delivery: Delivery) -> KeptMessage:
    """Return what the ledger keeps of this delivery."""
    facts = _Facts(
        headers=dict(delivery.headers),
        message_id=delivery.message_id,
        sent_at=delivery.sent_at,
        size=-1 if delivery.size == len(delivery.body) else delivery.size,
        brokers_own=tuple(sorted(delivery.brokers_own)),
        origin=delivery.origin,
        encoding=delivery.encoding,
    )
    return KeptMessage(delivery.body, _ENCODER.encode(facts))


def delivery_of(message: KeptMessage, queue: str) -> Delivery:
    """Return the kept message as a delivery that no broker has made, so nothing can settle it."""
    facts = _DECODER.decode(message.facts)
    return Delivery(
        epoch=OF_THE_LEDGER,
        id="",
        queue=queue,
        body=message.body,
        headers=facts.headers,
        message_id=facts.message_id,
        redelivered=Redelivered.UNKNOWN,
        sent_at=facts.sent_at,
        size=facts.size,
        brokers_own=frozenset(facts.brokers_own),
        origin=facts.origin,
        encoding=facts.encoding,
    )
