"""
What a delivery is, before anyone asks the ledger: which job, which hop, which counters it carries.

A message that cannot be read so far is never lost: it goes to the dead-letter queue with its reason.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from msgspec import Struct

from steadyworker.delivery import ATTEMPTS, CRASHES, FIRST_FAILED_AT, HOP, KEY, LOSSES, ROUND, Delivery, Headers
from steadyworker.ledger.base import JobId
from steadyworker.names import normal_key
from steadyworker.outcome import Counters
from steadyworker.runner.settlement_plan import Origin

_LARGEST = 1_000_000
_DIGITS = 7


class Envelope(Struct, frozen=True):
    """A delivery that says which job it is."""

    delivery: Delivery
    origin: Origin
    body_sha256: bytes
    carried: Counters

    @property
    def id(self) -> JobId:
        """The job."""
        return self.origin.id


@dataclass(frozen=True, slots=True)
class Unkeyed:
    """A delivery without any stable id: it needs a stamp."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A delivery whose own headers make no sense; `reason` names the header."""

    delivery: Delivery
    reason: str


def identify(delivery: Delivery, namespace: str, key_header: str | None) -> Envelope | Unkeyed | Unreadable:
    """Read key, round, hop and counters from the headers (contract §4, Keys)."""
    headers = delivery.headers
    key = (headers.get(key_header) if key_header else None) or headers.get(KEY) or delivery.message_id
    if not key:
        return Unkeyed(delivery)
    try:
        id_ = JobId(namespace, delivery.queue, normal_key(key), _number(headers, ROUND))
        hop = _number(headers, HOP)
        carried = Counters(
            attempts=_number(headers, ATTEMPTS),
            crashes=_number(headers, CRASHES),
            losses=_number(headers, LOSSES),
            first_failed_at=_moment(headers, FIRST_FAILED_AT),
        )
    except ValueError as error:
        return Unreadable(delivery, str(error))
    origin = Origin(id_, hop, delivery.body, headers)
    return Envelope(delivery, origin, hashlib.sha256(delivery.body).digest(), carried)


def too_large(delivery: Delivery, limit: int) -> str | None:
    """Why a body is never run, or even stamped: it is over the limit."""
    if delivery.size <= limit:
        return None
    return f"bad-payload: expected at most {limit} bytes, got {delivery.size}"


def _number(headers: Headers, name: str) -> int:
    text = headers.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS and int(text) <= _LARGEST):
        msg = f"bad-header: {name}: expected a whole number from 0 to {_LARGEST}, got {text[:40]!r}"
        raise ValueError(msg)
    return int(text)


def _moment(headers: Headers, name: str) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    try:
        moment = float(text)
    except ValueError:
        moment = -1.0
    if not 0 <= moment < 1e11:  # noqa: PLR2004 - the year 5138: whatever is beyond is no time of day
        msg = f"bad-header: {name}: expected seconds since 1970, got {text[:40]!r}"
        raise ValueError(msg)
    return moment
