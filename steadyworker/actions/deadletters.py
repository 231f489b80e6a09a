"""
Dead letters: the content of a dead-letter queue, the reason for each letter, and the two ways out of the queue.

A dead letter has the body and the headers of the job's message.
The letter's headers also carry the cause: reason, error, counters, first failure, worker.
If a confirm was lost, a job can have several letters.
These copies are one `DeadLetter`, and each action applies to all of them.
The broker adds its own letters (expired, delivered too often), which carry fewer facts.
Work queues can share a dead-letter queue: each letter names its work queue, and letters of other work queues stay untouched.
A letter that names no work queue counts as a letter of the caller's queue.

A letter can be *gone*: another tool has dropped it, or the dead-letter queue was purged or deleted.
The ledger keeps the message of a dead job, so such a job can still be shown, replayed and dropped.

| way out | order | after a crash between the steps |
|---|---|---|
| replay | write the next round's row → publish to the work queue, confirmed → remove every copy → delete the old row | replay again: same key and round, so the job runs once |
| drop | remove every copy → delete the ledger's rows | drop again; without a kept message, `forget` |

A replay deletes the old row only if the broker has confirmed the settlement of the old round's message.
Otherwise the broker could deliver that message again, so the old row stays.
If a crash ended the replay of a letter that is gone, do not repeat it: a worker process starts the next round from the ledger.
"""

from __future__ import annotations

import difflib
import random
import shlex
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain

from steadyworker.adapter import DeadLetters, Delivery, OutgoingMessage, Target
from steadyworker.clock import Clock, SystemClock
from steadyworker.delivery import (
    KEY,
    QUEUE,
    ROUND,
)
from steadyworker.errors import LedgerUnavailable, LettersHeld, SteadyWorkerError
from steadyworker.ledger.base import JobId, Ledger, Row
from steadyworker.names import normal_key
from steadyworker.outcome import JobState
from steadyworker.runner.dead_jobs import DeadJobs
from steadyworker.runner.envelope import without_facts
from steadyworker.runner.letters import Copies, DeadLetter, folded, mark, unshown_text
from steadyworker.system.spool import Spool


@dataclass(frozen=True, slots=True)
class Replayed:
    """A dead letter (without its body) that went back to the work queue, with the key and the round that the job now has."""

    letter: DeadLetter
    key: str
    round: int


class DeadLetterQueue:
    """
    The dead letters of one queue.

    Args:
        open_letters: `Adapter.dead_letters` of the adapter for the work queue.
        ledger: The ledger, with the checkpoints and the states of the jobs.
        namespace: The ledger's namespace for this broker.
        queue: The work queue's name.
        key_header: The header that holds a job's key, if the Worker names such a header.
        max_body: The size in bytes of the largest body that the ledger copies.
        keep_message: The Worker's attribute, or None if the Worker is not known.
            With None, the ledger keeps the message of a replay if the ledger has kept the job's message before.
        patience: The longest time, in seconds, to wait for the end of another reader.
        clock: The clock that measures this wait, and dates the message of a replay.

    A queue has one reader at a time: each call waits up to `patience` seconds for another reader to end.
    `letters`, `replay` and `drop` can raise BrokerUnavailable, and LettersHeld after that time.
    All methods can raise LedgerUnavailable, except `letters` without keys.

    Attributes:
        others: For each other work queue, the number of its letters that the last call found, and did not change.
        unshown: The letters that the last `replay` or `drop` of all letters did not change, because their content did not arrive.
        gone: The dead jobs for which the last call found no letter; `kept` yields them.
        selected: The number of letters that the last `replay` or `drop` had to handle; letters that are gone count when they are handled.
    """

    def __init__(
        self,
        open_letters: Callable[[], AbstractContextManager[DeadLetters]],
        ledger: Ledger,
        namespace: str,
        queue: str,
        *,
        key_header: str | None = None,
        max_body: int = 1 << 20,
        keep_message: bool | None = None,
        patience: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self._patience = patience
        self._clock = clock or SystemClock()
        self._open_letters = open_letters
        self._jobs = DeadJobs(ledger, namespace, queue, max_body, keep_message=keep_message)
        self._queue = queue
        self._key_header = key_header
        self.others: Counter[str] = Counter()
        self.unshown: list[DeadLetter] = []
        self.gone: list[JobId] = []
        self.selected = 0

    def letters(self, keys: Sequence[str] | None = None, *, bodies: bool = True) -> list[DeadLetter]:
        """
        Return all dead letters, or only the dead letters of these keys, oldest first; letters that are gone are left out.

        Without `bodies`, each letter's `body` is empty, so that a list of many letters takes little memory.

        Raises SteadyWorkerError for a key that has no dead letter.
        """
        if bodies:
            return list(self._whole(keys))
        with self._opened(keys, None) as (_, chosen):
            return [copies.letter for copies in chosen]

    def read(self, keys: Sequence[str] | None = None) -> Iterator[DeadLetter]:
        """
        Close the queue, then yield the letters of `letters`, and after them the letters of `kept`; only one body is in memory at a time.

        Raises SteadyWorkerError for a key that has no dead letter.
        """
        yield from self._whole(keys)
        yield from self.kept()

    def kept(self) -> Iterator[DeadLetter]:
        """Yield the dead jobs in `gone` whose message the ledger has kept, newest first."""
        for id in self.gone:
            if (letter := self._jobs.kept(id)) is not None:  # the job is still dead
                yield letter

    def _whole(self, keys: Sequence[str] | None) -> Iterator[DeadLetter]:
        with closing(Spool()) as bodies:
            with self._opened(keys, bodies) as (_, chosen):
                pass
            for copies in chosen:
                yield copies.whole(bodies)

    def with_facts(self, letter: DeadLetter) -> DeadLetter:
        """Return the letter; if the broker itself made this letter, add the ledger's facts about the job, as far as they can be read."""
        row = None
        if letter.keyed and not letter.ours and not letter.reason:
            with suppress(LedgerUnavailable):  # the letter is useful without the facts
                row = self.row(letter)
        if row is None or row.job_state not in (JobState.DEAD, JobState.CANCELLED) or letter.conflicts_with(row):
            return letter
        return replace(
            letter,
            reason=row.reason,
            error_class=row.error_class,
            error=row.error_text,
            attempts=row.counters.attempts,
            crashes=row.counters.crashes,
            losses=row.counters.losses,
            first_failed_at=row.counters.first_failed_at,
            uid=row.uid,
        )

    def row(self, letter: DeadLetter) -> Row | None:
        """Return the ledger's row of the letter's job, or None if the ledger has none."""
        return self._jobs.row(letter)

    def parked(self, letters: Iterable[DeadLetter] = ()) -> list[Row]:
        """
        Return the rows of dead jobs whose messages are still in the work queue, because the broker refuses their dead letters.

        Jobs with one of these `letters` are left out, because the broker has moved their messages.
        """
        moved = {self._jobs.id(letter) for letter in letters}
        return [row for row in self._jobs.parked() if row.id not in moved]

    def replay(
        self,
        keys: Sequence[str] | None = None,
        *,
        where: Callable[[DeadLetter], bool] = lambda _: True,
        gone: bool = False,
        from_start: bool = False,
        delay: float = 0.0,
        comes_in: float = 0.0,
        each: Callable[[Replayed], None] = lambda _: None,
        skip: Callable[[DeadLetter], bool] = lambda _: False,
    ) -> list[Replayed]:
        """
        Put dead letters (all, or only the letters of these keys) back into the work queue, in the next round, with counters at zero.

        If the letter of a key is gone, the ledger's copy goes to the work queue.
        Without keys, `replay` does so only if `gone` is true.
        Only letters for which `where` returns True count; `where` receives a letter without its body.
        `replay` calls `skip` with a letter directly before its first change; a letter for which `skip` returns True stays.
        The new round starts from the old round's checkpoint; `from_start` deletes this checkpoint first.
        The new round is due in `delay` seconds; a broker with delay levels delivers its message in `comes_in` seconds.
        `replay` calls `each` with every letter, without its body, after the letter is published, confirmed and removed.
        After a crash before the removal, the letter is still in the dead-letter queue.
        Replay the letter again: the second message has the same key and round, so the job still runs once.
        Three kinds of letter are special:

        - A letter that the *broker* put here, if its job is unfinished, done or unknown in the ledger.
          (A job that is about to become dead counts as dead.)
          The letter goes back unchanged, in the same round, so that a run that is still under way adopts the message.
        - A key conflict: the letter's key belongs to another job, with another payload.
          The letter's job must not start from that other job's checkpoint.
          So the letter gets a new key, made from the old key and the letter's body.
        - A letter without a key.
          The letter gets a new generated key at each replay.
          After a crash between publish and removal, the second replay makes a second job.

        Raises:
            SteadyWorkerError: A key has no dead letter, a letter is unshown, or a body is not complete; nothing was replayed.
            PublishFailed: The broker did not confirm the message; this letter and the letters after it stay.
        """
        replayed: list[Replayed] = []
        with closing(Spool()) as bodies, self._opened(keys, bodies) as (held, found):
            chosen = self._shown(found, keys, where)
            for letter, _, body in chosen:
                if body is not None and body[1] != letter.size:
                    got = f"{body[1]} of {letter.size} bytes"
                    remedy = "it is over the size limit, so drop it and send the job again with a smaller payload."
                    raise SteadyWorkerError(f"Expected the whole body of {letter.key}, got {got}: {remedy}")
            here = ((copies.whole(bodies), copies.deliveries) for copies in chosen)
            none: list[Delivery] = []
            kept = ((letter, none) for letter in self._chosen_kept(keys, where, gone=gone))
            for letter, deliveries in chain(here, kept):
                if skip(letter):
                    continue
                message, result = self._again(letter)
                if delay > 0:
                    message = replace(message, to=Target.LATER, delay=delay)
                rises = result.round > letter.round  # otherwise a run may still use row and checkpoint
                if from_start and rises:
                    self._jobs.clear_checkpoint(letter)
                begun = rises and self._jobs.begin_round(
                    letter, message, self._clock.wall(), delay=delay, wake_in=max(delay, comes_in)
                )
                held.publish(message)
                for delivery in deliveries:
                    held.drop(delivery)
                if begun:
                    self._jobs.end_round(letter)
                replayed.append(replace(result, letter=replace(letter, body=b"")))
                each(replayed[-1])
        return replayed

    def drop(
        self,
        keys: Sequence[str] | None = None,
        *,
        where: Callable[[DeadLetter], bool] = lambda _: True,
        gone: bool = False,
        each: Callable[[DeadLetter], None] = lambda _: None,
        skip: Callable[[DeadLetter], bool] = lambda _: False,
    ) -> list[DeadLetter]:
        """
        Remove dead letters (all, or only the letters of these keys) for good.

        `drop` also deletes the ledger's records of their jobs, and the ledger's copies of the messages.
        Only letters for which `where` returns True count.
        `drop` calls `skip` with a letter directly before its removal; a letter for which `skip` returns True stays.
        `drop` includes jobs whose letter is gone, if `gone` is true, or if `keys` name these jobs.
        `drop` calls `each` with every letter, without its body, after the removal of the letter; the key is then free again.

        Raises:
            SteadyWorkerError: A key has no dead letter, or its letter is unshown; nothing was dropped.
            Unsettled: The result of a removal is unknown; this letter can still be here, and the letters after it are still here.
        """
        with self._opened(keys, None) as (held, found):
            chosen = self._shown(found, keys, where)
            dropped = []
            for letter, deliveries, _ in chosen:
                if skip(letter):
                    continue
                for delivery in deliveries:
                    held.drop(delivery)
                self._jobs.forget(letter)
                dropped.append(letter)
                each(letter)
            for letter in self._chosen_kept(keys, where, gone=gone):
                if skip(letter):
                    continue
                self._jobs.forget(letter)
                dropped.append(replace(letter, body=b""))
                each(dropped[-1])
        return dropped

    def forget(self, id: JobId) -> None:
        """Delete the record of a dead job whose letter an earlier `drop` has removed, before it lost the ledger."""
        self._jobs.forget_dropped(id)

    @contextmanager
    def _opened(self, keys: Sequence[str] | None, bodies: Spool | None) -> Iterator[tuple[DeadLetters, list[Copies]]]:
        """Open the queue, read all letters, and put their bodies into `bodies`; try again while another reader holds some letters."""
        deadline = self._clock.monotonic() + self._patience
        # Read the ledger first: the letter of a job that dies during the call may come too late to be read below.
        dead = self._jobs.dead(None if keys is None else [normal_key(key) for key in keys])
        while True:
            with ExitStack() as stack:
                try:
                    held = stack.enter_context(self._open_letters())
                    chosen = self._chosen(held, keys, bodies, dead)
                except LettersHeld:
                    if self._clock.monotonic() >= deadline:
                        raise
                else:
                    yield held, chosen
                    return
            threading.Event().wait(random.uniform(0.1, 0.5))  # noqa: S311 - so that two waiting readers do not collide again

    def _chosen(
        self, held: DeadLetters, keys: Sequence[str] | None, bodies: Spool | None, dead: Mapping[JobId, bytes]
    ) -> list[Copies]:
        wanted = {normal_key(key): key for key in keys or ()}
        self.others = Counter()
        every = folded(
            self._own(held),
            self._queue,
            self._key_header,
            lambda letter: bodies.keep(letter.body) if bodies and (keys is None or letter.key in wanted) else None,
        )
        found = {
            self._jobs.id(letter)
            for letter, *_ in every
            if not letter.is_conflict and letter.digest in (b"", dead.get(self._jobs.id(letter)) or letter.digest)
        }
        self.gone = [id for id in dead if id not in found]
        if keys is None:
            return every
        known = {copies.letter.key for copies in every} | {id.key for id in self.gone}
        for key, asked in wanted.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "`steadyworker dead list` shows the keys."
                if self._jobs.awaits_replay(key):
                    names = f"{shlex.quote(self._queue)} {shlex.quote(key)}"
                    hint = f"it was replayed, and waits for its message; `steadyworker retry {names}` sends it again."
                elif self._jobs.is_gone(key):
                    hint = "the job is dead, but its letter is gone, and the ledger has no copy of its message."
                raise SteadyWorkerError(f"Expected the key of a dead letter of {self._queue}, got {asked!r}: {hint}")
        return [copies for copies in every if copies.letter.key in wanted]

    def _shown(
        self, found: list[Copies], keys: Sequence[str] | None, where: Callable[[DeadLetter], bool]
    ) -> list[Copies]:
        """Return the chosen letters whose content arrived, and put the unshown letters into `unshown`; raise SteadyWorkerError if `keys` name an unshown letter."""
        chosen = [copies for copies in found if where(copies.letter)]
        self.unshown = [copies.letter for copies in chosen if copies.letter.unshown]
        if self.unshown and keys is not None:
            raise SteadyWorkerError(unshown_text(self.unshown))
        shown = [copies for copies in chosen if not copies.letter.unshown]
        self.selected = len(shown)
        return shown

    def _own(self, held: Iterable[Delivery]) -> Iterator[Delivery]:
        """Yield the letters that name this work queue, or no work queue; count the letters of other work queues."""
        for delivery in held:
            origin = delivery.origin or delivery.headers.get(QUEUE)
            if origin is None or origin == self._queue:
                yield delivery
            else:
                self.others[origin] += 1

    def _chosen_kept(
        self, keys: Sequence[str] | None, where: Callable[[DeadLetter], bool], *, gone: bool
    ) -> Iterator[DeadLetter]:
        """Yield the chosen jobs whose letter is gone, and count them."""
        for letter in self.kept() if gone or keys is not None else ():
            if where(letter):
                self.selected += 1
                yield letter

    def _again(self, letter: DeadLetter) -> tuple[OutgoingMessage, Replayed]:
        """Return the message that a replay publishes, and its description for the caller."""
        if not letter.keyed:
            return self._fresh(letter, uuid.uuid4().hex, 0)
        row = self._jobs.row(letter)
        if letter.conflicts_with(row):
            return self._fresh(letter, normal_key(f"{letter.key}.{mark(letter, self._key_header)}"), 0)
        if not letter.ours and (row is None or not self._jobs.is_dead(row, letter)):
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
