"""
The envelope of a delivery: its job, its hop, and the counters in its headers.

The runner reads the envelope before it reads the ledger.
`kept` turns a delivery into the message that the ledger keeps, and `delivery_of` turns this message into a delivery.
A message with invalid headers is never lost: it goes to the dead-letter queue with the reason.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import msgspec
from msgspec import Struct

from steadyworker.delivery import (
    ATTEMPTS,
    CRASHES,
    DEAD_HEADERS,
    FIRST_FAILED_AT,
    HOP,
    KEY,
    LOSSES,
    OWN_HEADERS,
    QUEUE,
    REASON,
    ROUND,
    UID,
    WORKER,
    Delivery,
    Headers,
    Redelivered,
)
from steadyworker.ledger.base import JobId, KeptMessage, Row, State
from steadyworker.names import PLAIN_KEY, normal_key
from steadyworker.outcome import Counters
from steadyworker.text.plain_text import as_unicode, surrogate_in

LARGEST_NUMBER = 10**15 - 1
"""The largest counter, hop or round in a header: no job reaches this number, and every ledger can store this number plus 1."""

_LONGEST_TEXT = 2000
_LATEST = 1e11  # the year 5138: a larger number cannot be a time


_ABOUT_A_JOB = frozenset((*OWN_HEADERS, *DEAD_HEADERS)) - {KEY}
_OF_A_COPY = frozenset((HOP, ROUND, UID, WORKER))

BAD_HEADER = "bad-header"
"""The beginning of the reason of a dead letter whose headers cannot be read."""

KEY_CONFLICT = "key-conflict"
"""The beginning of the reason of a dead letter whose key belongs to another job."""

BAD_PAYLOAD = "bad-payload"
"""The beginning of the reason of a dead letter whose body cannot be read."""

OF_THE_LEDGER = -1
"""The epoch of a delivery that `delivery_of` makes from a kept message; no connection has this epoch."""

UNSHOWN = "unshown"
"""The beginning of the reason of a message whose content only the broker has."""


class Envelope(Struct, frozen=True):
    """
    A delivery whose job is known.

    Attributes:
        uid: The uid of the job's row, if the message carries this uid.
        letter: True if the message is this job's own dead letter, which an operator moved here unchanged.
        contradiction: The reason to doubt that the message belongs to this job; empty without a doubt.
            Only the right `uid` removes the doubt.
    """

    delivery: Delivery
    id: JobId
    hop: int
    body_sha256: bytes
    carried: Counters
    uid: str | None = None
    letter: bool = False
    contradiction: str = ""

    def conflict(self, uid: str | None) -> str:
        """Return why the message cannot belong to the job of the row with this uid (None without a row), or ""."""
        if self.uid is not None and self.uid == uid:
            return ""
        if self.letter and uid is not None and not self.contradiction:
            return f"{KEY_CONFLICT}: expected a dead letter of this job, got one with another {UID}"
        return self.contradiction

    @property
    def from_ledger(self) -> bool:
        """True if the message is the ledger's copy, because the job's own message is lost."""
        return self.delivery.epoch == OF_THE_LEDGER


@dataclass(frozen=True, slots=True)
class Unkeyed:
    """A delivery without a key or a stable message id: the runner must generate a key, or reject the message."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A delivery with invalid `sw-…` headers, with headers of invalid Unicode, or with a body that the adapter cannot read or did not receive."""

    delivery: Delivery
    reason: str


class _KeptFacts(Struct, frozen=True, omit_defaults=True):
    """The facts of a delivery besides its body; the decoder ignores facts that only a later version knows."""

    headers: dict[str, str] = {}
    message_id: str | None = None
    sent_at: float | None = None
    size: int = -1
    brokers_own: tuple[str, ...] = ()
    origin: str | None = None
    encoding: str | None = None


_FACTS_ENCODER = msgspec.json.Encoder()
_FACTS_DECODER = msgspec.json.Decoder(_KeptFacts)


def identify(delivery: Delivery, namespace: str, key_header: str | None) -> Envelope | Unkeyed | Unreadable:
    """
    Read key, round, hop and counters from the headers.

    `key_of` explains which header has the key.
    """
    headers = delivery.headers
    if delivery.unshown is not None:
        return Unreadable(delivery, f"{UNSHOWN}: {delivery.unshown}")
    try:
        "".join((*headers, *headers.values(), delivery.message_id or "")).encode()
    except UnicodeEncodeError:
        return Unreadable(delivery, f"{BAD_HEADER}: {_not_unicode(delivery)}")
    if delivery.unreadable is not None:
        return Unreadable(delivery, f"{BAD_PAYLOAD}: {delivery.unreadable}")
    key = key_of(delivery, key_header)
    if not key:
        return Unkeyed(delivery)
    try:
        key = key if PLAIN_KEY.fullmatch(key) else normal_key(key)
        id_ = JobId(namespace, delivery.queue, key, number_of(headers, ROUND))
        hop = number_of(headers, HOP)
        carried = Counters(
            attempts=number_of(headers, ATTEMPTS),
            crashes=number_of(headers, CRASHES),
            losses=number_of(headers, LOSSES),
            first_failed_at=moment_of(headers, FIRST_FAILED_AT),
        )
    except ValueError as error:
        return Unreadable(delivery, f"{BAD_HEADER}: {error}")
    uid = headers.get(UID)
    # If a message without a row became a dead letter, this letter has no uid, and counts as an ordinary message.
    letter = uid is not None and WORKER in headers
    digest = hashlib.sha256(delivery.body).digest()
    return Envelope(delivery, id_, hop, digest, carried, uid, letter, _contradiction(headers, key, key_header))


def envelope_of(row: Row, message: KeptMessage) -> Envelope:
    """
    Turn the message that the ledger keeps into the envelope of the message for which this unfinished job waits.

    A `moved` job waits for its retry, and any other job waits for the message of its last claim.
    """
    hop = row.hop + 1 if row.state is State.MOVED else row.hop
    delivery = delivery_of(message, row.id.queue)
    if hop > 0:
        ours = facts_of(row.id, hop, row.uid, row.counters, row.reason)
        delivery = replace(delivery, headers=without_facts(delivery.headers) | ours)
    digest = row.body_sha256 or hashlib.sha256(message.body).digest()
    return Envelope(delivery, row.id, hop, digest, row.counters, row.uid)


def kept(delivery: Delivery) -> KeptMessage:
    """
    Return what the ledger keeps of this delivery, so that the job does not depend on the broker's copy.

    The ledger keeps the whole delivery, except its epoch, its id, and the mark of a redelivery.
    These three belong to one delivery only.
    """
    facts = _KeptFacts(
        headers=dict(delivery.headers),
        message_id=delivery.message_id,
        sent_at=delivery.sent_at,
        size=-1 if delivery.size == len(delivery.body) else delivery.size,
        brokers_own=tuple(sorted(delivery.brokers_own)),
        origin=delivery.origin,
        encoding=delivery.encoding,
    )
    return KeptMessage(delivery.body, _FACTS_ENCODER.encode(facts))


def delivery_of(message: KeptMessage, queue: str) -> Delivery:
    """Return the kept message as a delivery that no broker has made, so nothing can settle it."""
    facts = _FACTS_DECODER.decode(message.facts)
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


def names_of(id: JobId, hop: int, uid: str) -> dict[str, str]:
    """Return the headers that identify a copy as this job's message."""
    return {KEY: id.key, QUEUE: id.queue, ROUND: str(id.round), HOP: str(hop), UID: uid}


def facts_of(id: JobId, hop: int, uid: str, counters: Counters, reason: str) -> dict[str, str]:
    """Return the headers that describe the job in a retry or a dead letter."""
    facts = {
        **names_of(id, hop, uid),
        ATTEMPTS: str(counters.attempts),
        CRASHES: str(counters.crashes),
        LOSSES: str(counters.losses),
        REASON: header_text(reason),
    }
    if counters.first_failed_at is not None:
        facts[FIRST_FAILED_AT] = f"{counters.first_failed_at:.3f}"
    return facts


def header_text(text: str) -> str:
    """Return text that fits a header: one line of at most 2,000 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else line[: _LONGEST_TEXT - 1] + "…"


def of_queue(delivery: Delivery, queue: str) -> Delivery:
    """
    Return the delivery as a message of this queue; the delivery changes only if `sw-queue` names another queue.

    Round, hop, counters and cause of another queue's job do not apply here, so they are removed; the key stays.
    """
    if delivery.headers.get(QUEUE, queue) == queue:
        return delivery
    return replace(delivery, headers=without_facts(delivery.headers))


def not_obeyed(headers: Headers) -> list[str]:
    """
    Return the headers by which Celery would delay or drop this message, if Celery has sent it.

    The headers are `eta` and `expires` of Celery's message protocol, version 2.
    If a task has no such time, Celery leaves the header empty.
    """
    return [name for name in ("eta", "expires") if headers.get(name)] if "task" in headers else []


def without_facts(headers: Headers) -> dict[str, str]:
    """Return the headers without SteadyWorker's facts about a job, but with the job's key."""
    return {name: text for name, text in headers.items() if name not in _ABOUT_A_JOB}


def in_round(headers: Headers, id: JobId) -> dict[str, str]:
    """Return the headers of the first message of this job's round: the user's headers, and our headers that name the job."""
    return without_facts(headers) | {KEY: id.key, QUEUE: id.queue, ROUND: str(id.round)}


def too_large(delivery: Delivery, limit: int) -> str | None:
    """Return the reason to reject a body over the limit, or None if the body fits."""
    if delivery.size <= limit:
        return None
    return f"{BAD_PAYLOAD}: expected at most {limit} bytes, got {delivery.size}"


def for_handler(headers: Headers) -> dict[str, str]:
    """
    Return the headers for the handler: the sender's headers, and the headers in which SteadyWorker describes the job.

    Any other header that begins with `sw-` is the adapter's own data for the next copy of the message.
    The uid is left out, because the uid proves that a message belongs to the job.
    A handler can send its headers on in another message, which does not belong to the job.
    """
    return {
        name: value
        for name, value in headers.items()
        if not name.startswith("sw-") or name == KEY or (name in _ABOUT_A_JOB and name != UID)
    }


def key_of(delivery: Delivery, key_header: str | None) -> str | None:
    """
    Return the key, as the headers have it.

    The key of a sender's message is the header `key_header`, if the Worker names such a header.
    Otherwise the key is `sw-job-key`, or without this header, the broker's stable message id.
    Each copy that SteadyWorker makes has its key in `sw-job-key`.
    """
    return named_key(delivery, key_header) or delivery.message_id


def named_key(delivery: Delivery, key_header: str | None) -> str | None:
    """Return the key that a header names; None if only the message's id can be the key."""
    headers = delivery.headers
    theirs = headers.get(key_header) if key_header else None
    if headers.get(KEY) and not _OF_A_COPY.isdisjoint(headers):
        theirs = None
    return theirs or headers.get(KEY)


def number_of(headers: Headers, name: str, largest: int = LARGEST_NUMBER) -> int:
    """Return a counter from a header, or 0 without this header; raise ValueError for a value that is not from 0 to `largest`."""
    text = headers.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(largest)) and int(text) <= largest):
        raise ValueError(f"{name}: expected a whole number from 0 to {largest}, got {text[:40]!r}")
    return int(text)


def moment_of(headers: Headers, name: str) -> float | None:
    """Return the time in a header, or None without this header; raise ValueError if the time is not in seconds since 1970."""
    text = headers.get(name)
    if text is None:
        return None
    try:
        moment = float(text)
    except ValueError:
        moment = -1.0
    if not 0 <= moment < _LATEST:
        raise ValueError(f"{name}: expected seconds since 1970, got {text[:40]!r}")
    return moment


def _contradiction(headers: Headers, key: str, key_header: str | None) -> str:
    """Return a reason if the sender's key header names another job than `key` does; every copy keeps the sender's header unchanged."""
    theirs = headers.get(key_header) if key_header else None
    if not theirs or normal_key(theirs) == key:
        return ""
    return (
        f"{KEY_CONFLICT}: expected {key_header} and {KEY} to name one job, got {normal_key(theirs)!r} and {key!r}, "
        f"and no {UID} of the second"
    )


def _not_unicode(delivery: Delivery) -> str:
    """Return the name of the header that is not valid Unicode, and the place of the fault."""
    for name, value in {**delivery.headers, "the message id": delivery.message_id or ""}.items():
        for text in (name, value):
            if (place := surrogate_in(text)) is not None:
                return f"{as_unicode(name)[:40]}: expected valid Unicode, got a lone surrogate at {place}"
    raise AssertionError("one of them is not")
