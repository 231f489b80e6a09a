"""A dead letter as a person sees it: one `DeadLetter` for each job, with all the facts that the job's letters carry."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from steadyworker.adapter import Delivery
from steadyworker.delivery import (
    ATTEMPTS,
    CRASHES,
    DEAD_HEADERS,
    ERROR_CLASS,
    ERROR_TEXT,
    FIRST_FAILED_AT,
    LOSSES,
    REASON,
    ROUND,
    UID,
    WORKER,
    Headers,
)
from steadyworker.ledger.base import KeptMessage, Row
from steadyworker.names import normal_key
from steadyworker.runner.envelope import KEY_CONFLICT, delivery_of, key_of, moment_of, number_of, of_queue
from steadyworker.system.spool import Spool
from steadyworker.text.plain_text import as_unicode

_ANY_NUMBER = 10**18 - 1
_NAMED = 5

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """
    One job in a dead-letter queue, with all the facts that its letters carry.

    Attributes:
        key: The job's key; a letter without a key gets `unkeyed-`, its body's digest and a number.
        round: The number of times that this job was replayed or sent again.
        reason: The cause of the dead letter; empty if the broker put the letter here and gave no reason.
        ours: True if SteadyWorker made the message a dead letter.
            If False, the broker did so, and only `body` and `headers` are certain.
        size: The body's length in bytes, even if `body` itself is left out.
        digest: The body's SHA-256, even if `body` itself is left out; empty if the body did not arrive whole.
        unshown: The reason why the content did not arrive, although the broker has it; such a letter is neither replayed nor dropped.
        copies: The number of letters of this job in the queue; 0 if the letter is gone, and the ledger has kept the job's message.
        first_failed_at, sent_at: Wall-clock times, for people.
    """

    key: str
    round: int
    queue: str
    body: bytes
    size: int
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    error_class: str = ""
    error: str = ""
    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    first_failed_at: float | None = None
    sent_at: float | None = None
    worker: str = ""
    uid: str = ""
    copies: int = 1
    ours: bool = True
    keyed: bool = True
    unshown: str = ""
    digest: bytes = b""

    @property
    def gone(self) -> bool:
        """True if the queue has no letter of this job, so that the message is the ledger's copy."""
        return not self.copies

    @property
    def whole(self) -> bool:
        """True if `body` is complete."""
        return self.size == len(self.body)

    @property
    def is_conflict(self) -> bool:
        """True if the letter's key belongs to another job."""
        return self.reason == KEY_CONFLICT or self.reason.startswith(f"{KEY_CONFLICT}: expected ")

    def conflicts_with(self, row: Row | None) -> bool:
        """Return whether the letter's key belongs to another job: the job of this row, which has another body."""
        known = None if row is None else row.body_sha256
        return self.is_conflict or bool(known and self.digest and known != self.digest)


class Copies(NamedTuple):
    """
    A dead letter without its body, the deliveries that are its copies, and the body's place (None if the body was not kept).

    The body is elsewhere because a reader reads all letters before it uses the first, and a queue can be larger than the memory.
    """

    letter: DeadLetter
    deliveries: list[Delivery]
    body: tuple[int, int] | None

    def whole(self, bodies: Spool) -> DeadLetter:
        """Return the letter with its body, as far as the adapter has the body."""
        return self.letter if self.body is None else replace(self.letter, body=bodies.read(self.body))


def kept_letter(row: Row, message: KeptMessage) -> DeadLetter:
    """Return the dead letter of a job whose letter is gone, as the ledger knows it."""
    return DeadLetter(
        key=row.id.key,
        round=row.id.round,
        queue=row.id.queue,
        body=message.body,
        size=len(message.body),
        headers=delivery_of(message, row.id.queue).headers,
        reason=row.reason,
        error_class=row.error_class,
        error=row.error_text,
        attempts=row.counters.attempts,
        crashes=row.counters.crashes,
        losses=row.counters.losses,
        first_failed_at=row.counters.first_failed_at,
        sent_at=row.ended_at,
        worker=row.worker,
        uid=row.uid,
        copies=0,
        digest=row.body_sha256 or b"",
    )


def unshown_text(letters: Sequence[DeadLetter]) -> str:
    """Return an error about letters whose content did not arrive."""
    names = ", ".join(letter.key for letter in letters[:_NAMED]) + (", …" if len(letters) > _NAMED else "")
    return (
        f"Expected dead letters whose content arrived, got {len(letters)} without it ({names}): {letters[0].unshown}. "
        "The broker has the content: move or remove such a letter with the broker's console."
    )


def folded(
    held: Iterable[Delivery],
    queue: str,
    key_header: str | None,
    keep: Callable[[DeadLetter], tuple[int, int] | None],
) -> list[Copies]:
    """
    Return one letter per job, with the deliveries that are its copies, in the order of the first copies.

    `keep` stores the body of each letter that it chooses, and returns the body's place.
    """
    found: dict[tuple[str, int, str, bool], Copies] = {}
    unkeyed: Counter[str] = Counter()
    for delivery in held:
        letter = _letter(delivery, queue, key_header)
        if not letter.keyed:  # two letters without a key are two jobs, even if their bodies are equal
            unkeyed[letter.key] += 1
            letter = replace(letter, key=f"{letter.key}-{unkeyed[letter.key]}")
        identity = (letter.key, letter.round, mark(letter, key_header), letter.is_conflict)
        bare = replace(letter, body=b"")
        first, deliveries, body = found.get(identity) or Copies(bare, [], keep(letter))
        deliveries.append(replace(delivery, body=b"", headers={}, size=delivery.size))
        richest = bare if bare.ours and not first.ours else first  # our letter has more facts than the broker's letter
        found[identity] = Copies(richest, deliveries, body)
    return [copies._replace(letter=replace(copies.letter, copies=len(copies.deliveries))) for copies in found.values()]


def _letter(delivery: Delivery, queue: str, key_header: str | None) -> DeadLetter:
    given = of_queue(delivery, queue).headers
    headers = {as_unicode(name): as_unicode(text) for name, text in given.items()}
    key = key_of(replace(delivery, headers=headers), key_header)
    return DeadLetter(
        key=normal_key(key) if key else f"unkeyed-{_digest(delivery.body)}",
        round=_readable(_any_number, headers, ROUND, 0),
        queue=queue,
        body=delivery.body,
        size=delivery.size,
        headers=headers,
        reason=headers.get(REASON, ""),
        error_class=headers.get(ERROR_CLASS, ""),
        error=headers.get(ERROR_TEXT, ""),
        attempts=_readable(_any_number, headers, ATTEMPTS, 0),
        crashes=_readable(_any_number, headers, CRASHES, 0),
        losses=_readable(_any_number, headers, LOSSES, 0),
        first_failed_at=_readable(moment_of, headers, FIRST_FAILED_AT, None),
        sent_at=delivery.sent_at,
        worker=headers.get(WORKER, ""),
        uid=headers.get(UID, ""),
        # If the broker moved a retry copy here, the copy does not have these headers.
        ours=not headers.keys().isdisjoint(DEAD_HEADERS),
        keyed=bool(key),
        unshown=delivery.unshown or "",
        digest=hashlib.sha256(delivery.body).digest() if delivery.size == len(delivery.body) else b"",
    )


def mark(letter: DeadLetter, key_header: str | None) -> str:
    """
    Return a digest that distinguishes letters of one key.

    The digest covers the body, and for a key conflict also the other key that the sender gave.
    """
    theirs = letter.headers.get(key_header or "", "")
    other = theirs if letter.is_conflict and theirs and normal_key(theirs) != letter.key else ""
    return _digest(letter.body + other.encode())


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:12]


def _any_number(headers: Headers, name: str) -> int:
    """Return the header's number without an upper limit: a letter with too large a number still shows its round."""
    return number_of(headers, name, _ANY_NUMBER)


def _readable(read: Callable[[Headers, str], Value], headers: Headers, name: str, otherwise: Value) -> Value:
    """Return a header's value, or `otherwise` if the value is invalid, because any sender can write any header."""
    try:
        return read(headers, name)
    except ValueError:
        return otherwise
