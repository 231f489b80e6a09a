"""The ledger's side of dead letters: the rows of dead jobs, and the messages of these jobs that the ledger has kept."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from contextlib import suppress

from steadyworker.delivery import Delivery, OutgoingMessage
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import JobFilter, JobId, Ledger, Moving, Row, State
from steadyworker.runner.envelope import kept
from steadyworker.runner.letters import DeadLetter, kept_letter

_BEFORE_THE_FIRST = -1
"""The hop of a row that `Ledger.replay` has inserted, until a run claims the job."""


class DeadJobs:
    """
    The dead jobs of one queue, as the ledger knows them; every method can raise LedgerUnavailable.

    Args:
        ledger: The ledger.
        namespace: The ledger's namespace for the queue's broker.
        queue: The work queue's name.
        max_body: The size in bytes of the largest body that the ledger copies.
        keep_message: Whether the Worker lets the ledger keep messages; None if that is not known.
    """

    def __init__(
        self, ledger: Ledger, namespace: str, queue: str, max_body: int, *, keep_message: bool | None = None
    ) -> None:
        self._ledger = ledger
        self._namespace = namespace
        self._queue = queue
        self._max_body = max_body
        self._keep_message = keep_message

    def id(self, letter: DeadLetter) -> JobId:
        """Return the id of the letter's job, in the letter's round."""
        return JobId(self._namespace, self._queue, letter.key, letter.round)

    def row(self, letter: DeadLetter) -> Row | None:
        """Return the row of the letter's job, or None if the ledger has no such row."""
        return self._ledger.read(self.id(letter))

    def dead(self, keys: Sequence[str] | None) -> dict[JobId, bytes]:
        """
        Return the jobs that are dead in their last round, and whose messages the ledger has kept; with `keys`, only jobs of these keys.

        Each has the SHA-256 of its body, empty if the ledger does not know it.
        """
        if keys is None:
            with suppress(LedgerUnavailable):  # a list of the letters is useful without these jobs, too
                listed = self._ledger.jobs(JobFilter(self._namespace, self._queue, (State.DEAD,), kept=True))
                return {row.id: row.body_sha256 or b"" for row, _ in listed}
            return {}
        kept = ((id, self.kept(id)) for key in keys if (id := self._last(key)) is not None)
        return {id: letter.digest for id, letter in kept if letter is not None}

    def parked(self) -> list[Row]:
        """Return the rows of jobs that become dead, while the broker has not confirmed their dead letters."""
        moving = self._ledger.jobs(JobFilter(self._namespace, self._queue, (State.MOVING,)))
        return [row for row, _ in moving if row.target is Moving.DEAD]

    def kept(self, id: JobId) -> DeadLetter | None:
        """Return the kept message of a job that is dead in its last round, as a dead letter; otherwise return None."""
        row = self._ledger.read(id)
        if row is None or row.state is not State.DEAD or self._last(id.key) != id:
            return None
        message = self._ledger.message(id)
        return None if message is None else kept_letter(row, message)

    def is_gone(self, key: str) -> bool:
        """Return whether the job of this key is dead in its last round, and the ledger has no copy of its message."""
        last = self._last(key)
        row = None if last is None else self._ledger.read(last)
        return row is not None and row.state is State.DEAD and self._ledger.message(row.id) is None

    def awaits_replay(self, key: str) -> bool:
        """Return whether the job of this key was replayed, and waits for its first message; this message can be lost or unpublished."""
        last = self._last(key)
        return last is not None and _is_begun(self._ledger.read(last))

    def is_dead(self, row: Row, letter: DeadLetter) -> bool:
        """
        Return whether the job of this row is dead, and this letter is its letter.

        A letter with another body than the job is another sender's message.
        If a worker process is killed or disconnected while the broker moves its message, the process cannot record the move.
        The letter proves the move.
        This call records a proven move, unless the process still has the lease.
        """
        if letter.conflicts_with(row):
            return False  # the message of the row's job is elsewhere
        if row.state is not State.MOVING or row.target is not Moving.DEAD:
            return row.state is State.DEAD
        if row.lease_over and (owned := self._ledger.take_over(row, f"dead-letters-{uuid.uuid4().hex}")) is not None:
            self._ledger.moved(owned.token)
        return True

    def clear_checkpoint(self, letter: DeadLetter) -> None:
        """
        Delete the checkpoint.

        If an earlier replay has copied the checkpoint into the next round, and no run has begun that round, delete the copy, too.
        """
        before = self.id(letter)
        self._ledger.clear_checkpoint(before)
        after = _next(before)
        if _is_begun(self._ledger.read(after)):
            self._ledger.clear_checkpoint(after)

    def begin_round(
        self, letter: DeadLetter, message: OutgoingMessage, now: float, *, delay: float = 0.0, wake_in: float = 0.0
    ) -> bool:
        """
        Write the row of a dead job's next round with this message; return False if the round gets no row.

        The round is due in `delay` seconds, and its message comes in `wake_in` seconds.

        If a letter was made without a run, the old round has no row, and the next round gets no row.
        The message then has to pass the same checks again.
        """
        if len(letter.body) > self._max_body or not ((letter.ours and letter.uid) or self.row(letter)):
            return False
        keeps = self._keep_message
        if not (self._ledger.message(self.id(letter)) if keeps is None else keeps):
            return False
        delivery = Delivery(-1, "", self._queue, letter.body, message.headers, message.message_id, sent_at=now)
        digest = hashlib.sha256(letter.body).digest()
        self._ledger.replay(_next(self.id(letter)), kept(delivery), digest, delay=delay, wake_in=wake_in)
        return True

    def end_round(self, letter: DeadLetter) -> None:
        """Delete the row of a replayed dead letter, unless the broker could deliver the message of the letter's round again."""
        row = self.row(letter)
        if row is not None and row.settled == "confirmed":
            self._ledger.forget(row.id)

    def forget(self, letter: DeadLetter) -> None:
        """Delete the rows of a dropped job: the letter's round, and each dead round before it, because such a round can have a message, too."""
        row = self.row(letter)
        if row is not None and self.is_dead(row, letter):  # otherwise the row can be another job's
            self.forget_dropped(row.id)

    def forget_dropped(self, id: JobId) -> None:
        """Delete the rows of a dropped job, which are this round's and those of the dead rounds before it."""
        while (row := self._ledger.read(id)) is not None:
            if row.state is State.DEAD:
                # `forget` keeps a row with a checkpoint for the next round; a dropped job has no next round.
                self._ledger.clear_checkpoint(id)
                self._ledger.forget(id)
            id = JobId(id.namespace, id.queue, id.key, id.round - 1)

    def _last(self, key: str) -> JobId | None:
        number = self._ledger.last_round(self._namespace, self._queue, key)
        return None if number is None else JobId(self._namespace, self._queue, key, number)


def _next(id: JobId) -> JobId:
    return JobId(id.namespace, id.queue, id.key, id.round + 1)


def _is_begun(row: Row | None) -> bool:
    return row is not None and row.state is State.MOVED and row.hop == _BEFORE_THE_FIRST
