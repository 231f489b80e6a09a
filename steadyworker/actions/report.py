"""The report of an action, and the entry of an action in the ledger's log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.errors import LedgerUnavailable, SteadyWorkerError
from steadyworker.ledger.base import JobId
from steadyworker.ledger.facts import MOST_KEYS, Action
from steadyworker.outcome import JobState
from steadyworker.system import person
from steadyworker.text.plain_text import plain_text


@dataclass(frozen=True, slots=True)
class Handled:
    """
    One job that an action has handled.

    Attributes:
        key: The job's key.
        before: The job's state before the action; None if the ledger had no record of the job, or if the action reads no state.
        problem: Why the action changed nothing: a clause for people, whose subject is the job; empty if the action succeeded.
        due_in: Seconds until the job's retry is due, if the action has set this time.
    """

    key: str
    before: JobState | None = None
    problem: str = ""
    due_in: float | None = None


Each = Callable[[Handled], None]
"""A function that an action calls after each job; it can show progress."""


Unless = Callable[[JobId], str]
"""
A function that an action calls directly before each job.

It returns why the action leaves this job out, as a clause whose subject is the job; an empty text lets the action go on.
If it raises a SteadyWorkerError, the action ends before this job.
"""


def never(_: JobId) -> str:
    """Leave no job out; this is the default of an action's parameter `unless`."""
    return ""


def no_report(_: Handled) -> None:
    """Do nothing; this is the default of an action's parameter `each`."""


@dataclass(frozen=True, slots=True)
class ActionReport:
    """
    The result of an action.

    Attributes:
        chosen: The number of jobs that the action had to handle.
        handled: The jobs that the action has handled, in order.
        error: The error that ended the action before its last job; None if the action is complete.
        unlogged: Why the log of actions has no entry of this action; empty if it has one, or if nothing was changed.
    """

    chosen: int
    handled: Sequence[Handled]
    error: SteadyWorkerError | None = None
    unlogged: str = ""

    @property
    def changed(self) -> Sequence[Handled]:
        """The jobs that the action has changed."""
        return [each for each in self.handled if not each.problem]

    def checked(self) -> ActionReport:
        """Return this report; raise its error if it has one."""
        if self.error is not None:
            raise self.error
        return self


class QueueActions:
    """
    The actions on one queue.

    Args:
        links: The connections to broker and ledger.
        queue: The queue.
        who: The person who acts; by default the user of this process and its host, as `user@host`.
        logs: False if the caller calls `record` itself, once for several actions.
    """

    def __init__(self, links: Connections, queue: JobQueue, who: str = "", *, logs: bool = True) -> None:
        self._links = links
        self._queue = queue
        self._who = who or person.who()
        self._logs = logs

    def _handle(
        self,
        what: str,
        chosen: Sequence[JobId],
        handle: Callable[[JobId], Handled],
        each: Each,
        unless: Unless,
        detail: str = "",
    ) -> ActionReport:
        """Handle one job after the other, until an error; then log the action, and return the report."""
        handled: list[Handled] = []
        error: SteadyWorkerError | None = None
        try:
            for one in chosen:
                problem = unless(one)
                handled.append(Handled(one.key, None, problem) if problem else handle(one))
                each(handled[-1])
        except SteadyWorkerError as caught:
            error = caught
        return self._reported(what, len(chosen), handled, error, detail)

    def _reported(
        self, what: str, chosen: int, handled: Sequence[Handled], error: SteadyWorkerError | None, detail: str
    ) -> ActionReport:
        report = ActionReport(chosen, handled, error)
        keys = [each.key for each in report.changed]
        if not keys or not self._logs:
            return report
        return ActionReport(chosen, handled, error, self.record(what, keys, len(keys), detail))

    def record(self, what: str, keys: Iterable[str] = (), count: int = 0, detail: str = "") -> str:
        """Write an entry to the log of actions; return why it could not be written, or an empty text."""
        named = tuple(keys)[:MOST_KEYS]
        namespace = self._links.namespace(self._queue)
        action = Action(self._who, what, namespace, self._queue.name, named, count, plain_text(detail))
        try:
            self._links.ledger().facts.act(action)
        except LedgerUnavailable as error:
            return str(error)
        return ""
