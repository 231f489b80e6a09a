"""Actions on jobs: cancel, undo a cancel, retry now, retry at another time."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from steadyworker.actions.report import ActionReport, Each, Handled, QueueActions, Unless, never, no_report
from steadyworker.adapter import Adapter, Delays, OutgoingMessage, Target
from steadyworker.ledger.base import JobFilter, JobId, KeptMessage, Ledger, Progress, Row, State
from steadyworker.ledger.rules import EARLY
from steadyworker.outcome import JobState
from steadyworker.runner.planning import again, comes_in
from steadyworker.text.plain_text import plain_text

UNFINISHED = (State.RUNNING, State.INTERRUPTED, State.MOVING, State.MOVED)
_ENDED = (JobState.DONE, JobState.CANCELLED, JobState.DEAD)
_ROUNDS = 5
"""How often an action reads a row again that another process changes at the same moment."""


@dataclass(frozen=True, slots=True)
class JobChoice:
    """
    The conditions of a selection of jobs; a selected job meets all of them.

    Attributes:
        states: The job has one of these states; if the tuple is empty, every state counts.
        since: The job was recorded, started or ended at this time (seconds since 1970) or later.
        text: The job's key, note, reason or error contains this text, in capital or small letters.
        marked: True for jobs with a cancel mark, False for jobs without a cancel mark.
    """

    states: Collection[JobState] = ()
    since: float | None = None
    text: str = ""
    marked: bool = False

    def fits(self, row: Row, progress: Progress | None) -> bool:
        """Return whether a job fits all conditions."""
        if (self.states and row.job_state not in self.states) or self.marked is (row.cancel_reason is None):
            return False
        if self.since is not None and max(row.created_at, row.started_at or 0.0, row.ended_at or 0.0) < self.since:
            return False
        texts = (row.id.key, progress.note if progress else "", row.reason, row.error_class, row.error_text)
        return not self.text or self.text.casefold() in "\n".join(texts).casefold()


class JobActions(QueueActions):
    """
    The actions on the jobs of one queue.

    A method whose docstring names no error raises none: it reports errors in its `ActionReport`.
    """

    def ids(self, keys: Sequence[str]) -> list[JobId]:
        """
        Return the jobs of these keys, each in its last round.

        Raises UnknownQueue, ConfigError, BrokerUnavailable and LedgerUnavailable, as `Client.cancel` does.
        """
        return [self._links.last_job(self._queue, key) for key in dict.fromkeys(keys)]

    def chosen(self, choice: JobChoice) -> list[Row]:
        """
        Return the unfinished jobs of this queue that fit, newest first.

        Raises the errors of `ids`.
        """
        wanted = JobFilter(self._links.namespace(self._queue, bind=False), self._queue.name, UNFINISHED)
        return [row for row, progress in self._ledger.jobs(wanted) if choice.fits(row, progress)]

    def cancel(self, ids: Sequence[JobId], reason: str, each: Each = no_report, unless: Unless = never) -> ActionReport:
        """Cancel these jobs, as `Client.cancel` does."""

        def one(id: JobId) -> Handled:
            before = cancelled(self._ledger, id, reason)
            return Handled(id.key, before, f"is already {before}" if before in _ENDED else "")

        return self._handle("cancel", ids, one, each, unless, reason)

    def undo(self, ids: Sequence[JobId], each: Each = no_report, unless: Unless = never) -> ActionReport:
        """
        Remove the cancel marks of these jobs.

        If a job runs, its worker process may have read the mark, so the mark stays.
        """

        def one(id: JobId) -> Handled:
            row = self._ledger.read(id)
            if self._ledger.uncancel(id):
                return Handled(id.key, row.job_state if row else None)
            row = self._ledger.read(id)
            return Handled(id.key, row.job_state if row else None, _why_marked(row))

        return self._handle("undo cancel", ids, one, each, unless)

    def retry(self, ids: Sequence[JobId], each: Each = no_report, unless: Unless = never) -> ActionReport:
        """
        Send the messages of these unfinished jobs again, from the ledger's copies, so that the jobs run now.

        A job that waits for a retry no longer waits: its message gets the next hop, so the delayed message counts as a duplicate.
        A job whose message is lost gets its message again.
        The job continues in the same round, with its counters and its last checkpoint.
        """

        def one(id: JobId) -> Handled:
            for _ in range(_ROUNDS):
                row, kept, problem = self._waiting(id)
                if row is None or kept is None:
                    return Handled(id.key, row.job_state if row else None, problem)
                if row.state is not State.MOVED or row.due_in <= EARLY:
                    self._adapter.publish(again(row, kept))
                    self._ledger.deferred(id, 0.0)
                    return Handled(id.key, row.job_state)
                if (moved := self._rescheduled(row, kept, 0.0)) is not None:
                    return moved
            return Handled(id.key, None, _CHANGES)

        return self._handle("retry", ids, one, each, unless)

    def reschedule(
        self, ids: Sequence[JobId], delay: float, each: Each = no_report, unless: Unless = never
    ) -> ActionReport:
        """
        Set a new time for these jobs, which wait for a retry: they run in `delay` seconds.

        The ledger records the new time first, and then the broker gets a message with the next hop.
        So the message that is on its way counts as a duplicate.
        If the process ends between these two steps, a worker process runs the job from the ledger's copy at the new time.
        """

        def one(id: JobId) -> Handled:
            if delay > 0 and self._adapter.capabilities.delays is Delays.NONE:
                return Handled(
                    id.key, None, "cannot wait, because its broker has no delays: retry it when its time comes"
                )
            for _ in range(_ROUNDS):
                row, kept, problem = self._waiting(id)
                if row is not None and row.state is not State.MOVED:
                    return Handled(id.key, row.job_state, problem or "waits for no retry: retry it now, or cancel it")
                if row is None or kept is None:
                    return Handled(id.key, row.job_state if row else None, problem)
                if (moved := self._rescheduled(row, kept, delay)) is not None:
                    return moved
            return Handled(id.key, None, _CHANGES)

        return self._handle("reschedule", ids, one, each, unless, f"in {delay:g} s")

    @property
    def _ledger(self) -> Ledger:
        return self._links.ledger()

    @property
    def _adapter(self) -> Adapter:
        return self._links.adapter(self._queue)

    def _waiting(self, id: JobId) -> tuple[Row | None, KeptMessage | None, str]:
        """Return the row and the message of a job that waits, or the reason why the job needs no message or has none."""
        row = self._ledger.read(id)
        if row is None:
            return (
                None,
                None,
                "is not in the ledger: send the job; a delayed message with the same key then counts as a duplicate",
            )
        if problem := needs_no_message(row):
            return row, None, problem
        if (kept := self._ledger.message(id)) is None:
            queue, key = shlex.quote(id.queue), shlex.quote(id.key)
            return (
                row,
                None,
                (
                    "has no message in the ledger: send the same message again, with "
                    f"`steadyworker send {queue} … --key {key} --again`; the job continues from its last checkpoint"
                ),
            )
        return row, kept, ""

    def _rescheduled(self, row: Row, kept: KeptMessage, delay: float) -> Handled | None:
        """Give a retry another time, and send its next message; return None if the row has changed since it was read."""
        wake_in = comes_in(delay, self._adapter.capabilities)
        if not self._ledger.reschedule(row, delay, wake_in):
            return None
        self._adapter.publish(_at(again(structs.replace(row, hop=row.hop + 1), kept), delay))
        return Handled(row.id.key, row.job_state, due_in=delay)


_CHANGES = "changes at this moment: try again"


def cancelled(ledger: Ledger, id: JobId, reason: str) -> JobState | None:
    """Cancel a job, and return the job's state before the cancel, or None if the ledger had no record of the job."""
    row = ledger.read(id)
    before = ledger.cancel(id, plain_text(reason))
    if before is None:
        return None
    return (row if row is not None and row.state is before else Row(id, "", before)).job_state


def needs_no_message(row: Row) -> str:
    """
    Return why a job needs no message now, with the remedy; empty if the job waits for a message.

    The text is a clause whose subject is the job.
    """
    queue, key = shlex.quote(row.id.queue), shlex.quote(row.id.key)
    match row.state:
        case State.DONE:
            return f"is done: `steadyworker send {queue} … --key {key} --again` runs it again"
        case State.DEAD:
            return f"is {row.job_state}: `steadyworker dead replay {queue} {key}` runs it again"
        case State.RUNNING | State.MOVING if not row.lease_over:
            return f"runs now, in {row.worker or row.owner}: wait for its end, or stop it with `steadyworker cancel {queue} {key}`"
        case _:
            return ""


def _why_marked(row: Row | None) -> str:
    """Return why the ledger has removed no mark from this job."""
    if row is None or row.cancel_reason is None:
        return "has no cancel to undo"
    if row.job_state is JobState.RUNNING:
        return "runs now, so its worker process may have read the cancel: it is too late to undo it"
    return f"is {row.job_state}: it is too late to undo the cancel"


def _at(message: OutgoingMessage, delay: float) -> OutgoingMessage:
    """Return the message with this delay."""
    return replace(message, to=Target.LATER, delay=delay) if delay > 0 else message
