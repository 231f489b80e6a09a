"""
Dead letters: the content of a dead-letter queue, the reason for each letter, and the two ways out of the queue.

A dead letter is the job's body and headers.
Its headers also carry the cause: reason, error, counters, first failure, worker.
Several letters of one job (made when a confirm was lost) are one `DeadLetter`, and each action applies to all of them.
The broker adds its own letters (expired, delivered too often); these carry fewer facts.
Work queues can share a dead-letter queue: each letter names its work queue, and letters of other work queues stay untouched.
A letter that names no work queue counts as a letter of the caller's queue.

| way out | order | after a crash between the steps |
|---|---|---|
| replay | publish to the work queue, confirmed → remove every copy | replay again: same key and round, so the job runs once |
| drop | remove every copy → delete the ledger's row | drop again |
"""

from __future__ import annotations

import difflib
import hashlib
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from steadyworker.adapter import DeadLetters, Delivery, OutgoingMessage, Target
from steadyworker.clock import Clock, SystemClock
from steadyworker.delivery import (
    ATTEMPTS,
    CRASHES,
    DEAD_HEADERS,
    ERROR_CLASS,
    ERROR_TEXT,
    FIRST_FAILED_AT,
    KEY,
    LOSSES,
    QUEUE,
    REASON,
    ROUND,
    UID,
    WORKER,
    Headers,
)
from steadyworker.errors import LettersHeld, SteadyWorkerError
from steadyworker.ledger.base import JobId, Ledger, Moving, Row, State, Wanted
from steadyworker.names import normal_key
from steadyworker.runner.envelope import KEY_CONFLICT, key_of, moment_of, number_of, of_queue, without_facts
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
        reason: The cause of the dead letter; empty if the broker put it here and gave no reason.
        ours: True if SteadyWorker made it a dead letter.
            Otherwise the broker made it one, and only `body` and `headers` are certain.
        size: The body's length in bytes, also when `body` itself was left out.
        unshown: The reason why the content did not arrive, although the broker has it; such a letter is neither replayed nor dropped.
        copies: The number of letters of this job in the queue.
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

    @property
    def whole(self) -> bool:
        """True if `body` is complete."""
        return self.size == len(self.body)

    @property
    def is_conflict(self) -> bool:
        """True if the job with this letter's key is another job."""
        return self.reason == KEY_CONFLICT or self.reason.startswith(f"{KEY_CONFLICT}: expected ")


@dataclass(frozen=True, slots=True)
class Replayed:
    """A dead letter (without its body) that went back to its work queue, with the key and the round that its job now has."""

    letter: DeadLetter
    key: str
    round: int


class Copies(NamedTuple):
    """
    A dead letter without its body, the deliveries that are its copies, and the place of the body; None if it was not kept.

    All letters of a queue are read before the first is used, and a queue can be larger than the memory.
    """

    letter: DeadLetter
    deliveries: list[Delivery]
    body: tuple[int, int] | None

    def whole(self, bodies: Spool) -> DeadLetter:
        """Return the letter with its body, as far as the adapter has it."""
        return self.letter if self.body is None else replace(self.letter, body=bodies.read(self.body))


class DeadLetterQueue:
    """
    The dead letters of one queue.

    Args:
        open_letters: `Adapter.dead_letters` of the adapter for the work queue.
        ledger: The ledger, with the checkpoints and the states of the jobs.
        namespace: The ledger's namespace for this broker.
        queue: The work queue's name.
        key_header: The header that holds a job's key, if the Worker names such a header.
        patience: The seconds to wait until another reader ends.
        clock: The clock that measures this wait.

    A queue has one reader at a time: each call waits up to `patience` seconds for another reader to end.
    `letters`, `replay` and `drop` can raise BrokerUnavailable, and LettersHeld after that time.
    All methods except `letters` can raise LedgerUnavailable.

    Attributes:
        others: For each of the other work queues, the number of its letters that the last call found and left alone.
        unshown: The letters that the last `replay` or `drop` of all letters left alone, because their content did not arrive.
    """

    def __init__(
        self,
        open_letters: Callable[[], AbstractContextManager[DeadLetters]],
        ledger: Ledger,
        namespace: str,
        queue: str,
        *,
        key_header: str | None = None,
        patience: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self._patience = patience
        self._clock = clock or SystemClock()
        self._open_letters = open_letters
        self._ledger = ledger
        self._namespace = namespace
        self._queue = queue
        self._key_header = key_header
        self.others: Counter[str] = Counter()
        self.unshown: list[DeadLetter] = []

    def letters(self, keys: Sequence[str] | None = None, *, bodies: bool = True) -> list[DeadLetter]:
        """
        Return all dead letters, or only the dead letters of these keys, oldest first.

        Without `bodies`, each letter's `body` is empty, so that a list of many letters takes little memory.

        Raises SteadyWorkerError for a key that has no dead letter.
        """
        if bodies:
            return list(self.read(keys))
        with self._opened(keys, None) as (_, chosen):
            return [copies.letter for copies in chosen]

    def read(self, keys: Sequence[str] | None = None) -> Iterator[DeadLetter]:
        """
        Yield what `letters` returns, with one body in memory at a time; the queue is closed before the first letter.

        Raises SteadyWorkerError for a key that has no dead letter.
        """
        with closing(Spool()) as bodies:
            with self._opened(keys, bodies) as (_, chosen):
                pass
            for copies in chosen:
                yield copies.whole(bodies)

    def row(self, letter: DeadLetter) -> Row | None:
        """Return the ledger's row of the letter's job, or None if the ledger has none."""
        return self._ledger.read(self._id(letter))

    def parked(self) -> list[Row]:
        """Return the rows of dead jobs whose messages are still in the work queue, because the broker refuses their dead letters."""
        moving = self._ledger.jobs(Wanted(self._namespace, self._queue, (State.MOVING,)))
        return [row for row, _ in moving if row.target is Moving.DEAD]

    def replay(
        self,
        keys: Sequence[str] | None = None,
        *,
        from_start: bool = False,
        each: Callable[[Replayed], None] = lambda _: None,
    ) -> list[Replayed]:
        """
        Put dead letters (all, or only these keys) back into the work queue, in the next round, with counters at zero.

        The new round starts from the old round's checkpoint; `from_start` deletes this checkpoint first.
        `replay` calls `each` with every letter, without its body, after the letter is published, confirmed and removed.
        A crash between publish and removal leaves the letter here.
        Replay it again: the second message has the same key and round, so the job still runs once.
        Three kinds of letter are special:

        - A letter that the *broker* put here, while its job in the ledger is unfinished, done or absent.
          This letter goes back unchanged, in the same round, so that a run that is still under way adopts it.
        - A key conflict: a letter whose payload is not that of the job with its key.
          It must not start from that job's checkpoint, so it gets a new key, made from the old key and the letter's body.
        - A letter without a key.
          This letter gets a new generated key at each replay.
          After a crash between publish and removal, the second replay makes a second job.

        Raises:
            SteadyWorkerError: A key has no dead letter or an unshown one, or a body is not complete; nothing was replayed.
            PublishFailed: The broker did not confirm the message; this letter and those after it stay.
        """
        replayed: list[Replayed] = []
        with closing(Spool()) as bodies, self._opened(keys, bodies) as (held, found):
            chosen = self._shown(found, keys)
            for letter, _, body in chosen:
                if body is not None and body[1] != letter.size:
                    got = f"{body[1]} of {letter.size} bytes"
                    remedy = "it is over the size limit, so drop it and send the job again with a smaller payload."
                    raise SteadyWorkerError(f"Expected the whole body of {letter.key}, got {got}: {remedy}")
            for copies in chosen:
                letter, deliveries = copies.letter, copies.deliveries
                message, result = self._again(copies.whole(bodies))
                result = replace(result, letter=letter)
                if from_start and result.round > letter.round:  # else a run may still use it
                    self._ledger.clear_checkpoint(self._id(letter))
                held.publish(message)
                for delivery in deliveries:
                    held.drop(delivery)
                each(result)
                replayed.append(result)
        return replayed

    def drop(
        self, keys: Sequence[str] | None = None, *, each: Callable[[DeadLetter], None] = lambda _: None
    ) -> list[DeadLetter]:
        """
        Remove dead letters (all, or only these keys) for good, and delete the ledger's records of their jobs.

        `drop` calls `each` with every letter, without its body, after its removal; afterwards the key is free again.

        Raises:
            SteadyWorkerError: A key has no dead letter, or an unshown one; nothing was dropped.
            Unsettled: The result of a removal is unknown; this letter can still be here, and the letters after it are.
        """
        with self._opened(keys, None) as (held, found):
            chosen = self._shown(found, keys)
            for letter, deliveries, _ in chosen:
                for delivery in deliveries:
                    held.drop(delivery)
                self._forget(letter)
                each(letter)
        return [copies.letter for copies in chosen]

    @contextmanager
    def _opened(self, keys: Sequence[str] | None, bodies: Spool | None) -> Iterator[tuple[DeadLetters, list[Copies]]]:
        """Open the queue and read all of it, its bodies into `bodies`; try again while another reader holds some letters."""
        deadline = self._clock.monotonic() + self._patience
        while True:
            with ExitStack() as stack:
                try:
                    held = stack.enter_context(self._open_letters())
                    chosen = self._chosen(held, keys, bodies)
                except LettersHeld:
                    if self._clock.monotonic() >= deadline:
                        raise
                else:
                    yield held, chosen
                    return
            threading.Event().wait(random.uniform(0.1, 0.5))  # noqa: S311 - so that two waiting readers do not collide again

    def _chosen(self, held: DeadLetters, keys: Sequence[str] | None, bodies: Spool | None) -> list[Copies]:
        wanted = {normal_key(key): key for key in keys or ()}
        self.others = Counter()
        every = _folded(
            self._own(held),
            self._queue,
            self._key_header,
            lambda letter: bodies.keep(letter.body) if bodies and (keys is None or letter.key in wanted) else None,
        )
        if keys is None:
            return every
        known = {copies.letter.key for copies in every}
        for key, asked in wanted.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "`steadyworker dead list` shows the keys."
                raise SteadyWorkerError(f"Expected the key of a dead letter of {self._queue}, got {asked!r}: {hint}")
        return [copies for copies in every if copies.letter.key in wanted]

    def _shown(self, chosen: list[Copies], keys: Sequence[str] | None) -> list[Copies]:
        """Return the letters without those that are unshown, which go to `unshown`; raise SteadyWorkerError if `keys` name one."""
        self.unshown = [copies.letter for copies in chosen if copies.letter.unshown]
        if self.unshown and keys is not None:
            raise SteadyWorkerError(unshown_text(self.unshown))
        return [copies for copies in chosen if not copies.letter.unshown]

    def _own(self, held: Iterable[Delivery]) -> Iterator[Delivery]:
        """Yield the letters that name this work queue or none; count the letters of other work queues."""
        for delivery in held:
            origin = delivery.origin or delivery.headers.get(QUEUE)
            if origin is None or origin == self._queue:
                yield delivery
            else:
                self.others[origin] += 1

    def _id(self, letter: DeadLetter) -> JobId:
        return JobId(self._namespace, self._queue, letter.key, letter.round)

    def _forget(self, letter: DeadLetter) -> None:
        if letter.is_conflict:  # the row under this key is another job's
            return
        row = self._ledger.read(self._id(letter))
        if row is not None and row.state is State.DEAD:
            # `forget` keeps a row with a checkpoint for the next round; a dropped job has no next round.
            self._ledger.clear_checkpoint(row.id)
            self._ledger.forget(row.id)

    def _again(self, letter: DeadLetter) -> tuple[OutgoingMessage, Replayed]:
        """Return the message that a replay publishes, and its description for the caller."""
        if not letter.keyed:
            return self._fresh(letter, uuid.uuid4().hex, 0)
        if letter.is_conflict:
            return self._fresh(letter, normal_key(f"{letter.key}.{_mark(letter, self._key_header)}"), 0)
        if not letter.ours:
            row = self._ledger.read(self._id(letter))
            if row is None or row.state is not State.DEAD:
                message = OutgoingMessage(
                    Target.WORK, letter.body, {**letter.headers, KEY: letter.key}, message_id=letter.key
                )
                return message, Replayed(letter, letter.key, letter.round)
        return self._fresh(letter, letter.key, letter.round + 1)

    def _fresh(self, letter: DeadLetter, key: str, round_: int) -> tuple[OutgoingMessage, Replayed]:
        headers = without_facts(letter.headers) | {KEY: key}
        if self._key_header is not None and normal_key(headers.get(self._key_header, "")) != key:
            headers[self._key_header] = key
        if round_:
            headers |= {QUEUE: self._queue, ROUND: str(round_)}
        return OutgoingMessage(Target.WORK, letter.body, headers, message_id=key), Replayed(letter, key, round_)


def unshown_text(letters: Sequence[DeadLetter]) -> str:
    """Return an error about letters whose content did not arrive."""
    names = ", ".join(letter.key for letter in letters[:_NAMED]) + (", …" if len(letters) > _NAMED else "")
    return (
        f"Expected dead letters whose content arrived, got {len(letters)} without it ({names}): {letters[0].unshown}. "
        "The broker has the content: move or remove such a letter with the broker's console."
    )


def _folded(
    held: Iterable[Delivery],
    queue: str,
    key_header: str | None,
    keep: Callable[[DeadLetter], tuple[int, int] | None],
) -> list[Copies]:
    """
    Return one letter per job, with the deliveries that are its copies, in the order of the first copies.

    `keep` stores the body of each letter that it chooses, and returns the body's place.
    """
    folded: dict[tuple[str, int, str, bool], Copies] = {}
    unkeyed: Counter[str] = Counter()
    for delivery in held:
        letter = _letter(delivery, queue, key_header)
        if not letter.keyed:  # equal bodies without a key are two jobs
            unkeyed[letter.key] += 1
            letter = replace(letter, key=f"{letter.key}-{unkeyed[letter.key]}")
        identity = (letter.key, letter.round, _mark(letter, key_header), letter.is_conflict)
        bare = replace(letter, body=b"")
        first, deliveries, body = folded.get(identity) or Copies(bare, [], keep(letter))
        deliveries.append(replace(delivery, body=b"", headers={}, size=delivery.size))
        told = bare if bare.ours and not first.ours else first  # our letter has more facts than the broker's letter
        folded[identity] = Copies(told, deliveries, body)
    return [copies._replace(letter=replace(copies.letter, copies=len(copies.deliveries))) for copies in folded.values()]


def _letter(delivery: Delivery, queue: str, key_header: str | None) -> DeadLetter:
    told = of_queue(delivery, queue).headers
    headers = {as_unicode(name): as_unicode(text) for name, text in told.items()}
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
        ours=not headers.keys().isdisjoint(DEAD_HEADERS),  # a retry copy that the broker moved here has none of them
        keyed=bool(key),
        unshown=delivery.unshown or "",
    )


def _mark(letter: DeadLetter, key_header: str | None) -> str:
    """Return what distinguishes letters of one key: the body, and the sender's key if that is another one."""
    theirs = letter.headers.get(key_header or "", "")
    other = theirs if letter.is_conflict and theirs and normal_key(theirs) != letter.key else ""
    return _digest(letter.body + other.encode())


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:12]


def _any_number(headers: Headers, name: str) -> int:
    """Return a number of any size, even one that the runner refuses as a bad header: the letter keeps its true round."""
    return number_of(headers, name, _ANY_NUMBER)


def _readable(read: Callable[[Headers, str], Value], headers: Headers, name: str, otherwise: Value) -> Value:
    """Return a header's value, or `otherwise` if it is invalid, because any sender can write any header."""
    try:
        return read(headers, name)
    except ValueError:
        return otherwise
