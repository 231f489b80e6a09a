"""
Jobs that a person has chosen by a filter, for one action on all of them.

The jobs of a choice stay the same: no refresh, no failure and no run adds one.
Each is kept as it was read, so that an action leaves out what has changed since.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from steadyworker.dashboard.causes import AT_ONCE, causes_of
from steadyworker.dashboard.failures import Sought, bounds, failed_at
from steadyworker.ledger.base import JobFilter, JobId, Ledger, Row, State
from steadyworker.ledger.listing import STATES
from steadyworker.ledger.lost import OVERDUE
from steadyworker.outcome import JobState

MOST_CHOSEN = 10_000
"""The largest number of jobs of a choice, the newest first; the page shows that there are more."""

MOST_KEPT = 50_000
"""The largest number of jobs of all choices that this process keeps."""

FAILED = "failed"
"""The filter for jobs that are dead or wait for their retry."""

_EVERY = (
    *(JobState.DEAD, JobState.RETRYING, JobState.SCHEDULED, JobState.INTERRUPTED),
    *(JobState.RUNNING, JobState.CANCELLED),
)
STATES_TO_CHOOSE = {
    "": "every state but done",
    FAILED: "dead or retrying",
    **{each.value: each.value for each in _EVERY},
}
"""The states that a filter can name, each with its words."""

_NAMED = {"": {*_EVERY}, FAILED: {JobState.DEAD, JobState.RETRYING}}
_UNFINISHED = (State.RUNNING, State.INTERRUPTED, State.MOVING, State.MOVED)


class ChosenJob(Struct, frozen=True):
    """A job, its uid, its state, the actions that it allows, and what was seen of it for a cancel and for other actions."""

    id: JobId
    uid: str
    state: JobState
    actions: Sequence[str]
    marked: str
    seen: str

    def is_same(self, do: str, row: Row | None) -> bool:
        """Return whether the job of this row is as it was seen."""
        seen = self.marked if do in ("cancel", "undo") else self.seen
        return row is not None and row.id == self.id and seen_of_job(do, row) == seen


class Choice(Struct, frozen=True):
    """The jobs that fit a filter at a time, `at`, of the wall clock; there were `more` than these."""

    name: str
    filter: Sought
    at: float
    jobs: Sequence[ChosenJob]
    more: bool

    @property
    def groups(self) -> Sequence[tuple[str, str, int]]:
        """For each queue and state, the number of jobs, the largest first."""
        counts = Counter((job.id.queue, job.state.value) for job in self.jobs)
        return [(queue, state, number) for (queue, state), number in counts.most_common()]

    def able(self, do: str) -> Sequence[ChosenJob]:
        """Return the jobs that allow an action."""
        return [job for job in self.jobs if do in job.actions]


class Choices:
    """The choices that this process keeps, the newest ones; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Choice] = OrderedDict()

    def choose(self, ledger: Ledger, now: float, wanted: Sought, waits: Callable[[Row], bool]) -> Choice:
        """Read and keep the jobs that fit; a job `waits` if a retry can send its message again."""
        rows = list(islice(_fitting(ledger, now, wanted), MOST_CHOSEN + 1))
        jobs = [chosen_job(row, waits=waits(row)) for row in rows[:MOST_CHOSEN]]
        choice = Choice(secrets.token_urlsafe(9), wanted, now, jobs, len(rows) > MOST_CHOSEN)
        with self._lock:
            self._kept[choice.name] = choice
            number = sum(len(each.jobs) + 1 for each in self._kept.values())
            while number > MOST_KEPT:
                number -= len(self._kept.popitem(last=False)[1].jobs) + 1
        return choice

    def kept(self, name: str) -> Choice | None:
        """Return the choice of this name; None if it was never made, or is no longer kept."""
        with self._lock:
            return self._kept.get(name)


def chosen_job(row: Row, *, waits: bool) -> ChosenJob:
    """Return the job of a row, as a person sees it now; it `waits` if a retry can send its message again."""
    marked, seen = seen_of_job("cancel", row), seen_of_job("replay", row)
    return ChosenJob(row.id, row.uid, row.job_state, actions_on(row, waits=waits), marked, seen)


def actions_on(row: Row, *, waits: bool) -> Sequence[str]:
    """Return the actions that a job allows; it `waits` if a retry can send its message again."""
    if row.state is State.DEAD:
        return ("replay", "restart", "drop")
    if row.state not in _UNFINISHED:
        return ()
    if row.cancel_reason is not None:
        return ("undo",) if row.job_state is not JobState.RUNNING else ()
    return (
        "cancel",
        *(("retry",) if waits and not _is_due(row) else ()),
        *(("reschedule",) if waits and row.state is State.MOVED else ()),
    )


def _is_due(row: Row) -> bool:
    """Return whether a job waits for no time, but for a slot: its message came back in time, so a retry changes nothing."""
    return row.state is State.MOVED and not row.due_in and row.late_by <= OVERDUE


def seen_of_job(do: str, row: Row) -> str:
    """Return what a person sees of a job and must still be true: for a cancel, only the round and the mark."""
    seen = f"{row.id.round} {row.uid} {row.cancel_reason is not None}"
    return seen if do in ("cancel", "undo") else f"{seen} {row.state.value} {row.fence} {row.hop}"


def _fitting(ledger: Ledger, now: float, wanted: Sought) -> Iterator[Row]:
    """Yield the rows that fit, newest first, from one query; with a cause, also from one for each 500 of them."""
    since, before = bounds(wanted.when, now)
    named = _NAMED.get(wanted.state) or {JobState(wanted.state)}
    states = tuple(dict.fromkeys(state for each in STATES if each in named for state in STATES[each]))
    query = JobFilter(wanted.namespace, wanted.queue, states, last=True, since=since, grep=wanted.text or None)
    rows = (
        row
        for row, _ in ledger.jobs(query)
        if row.job_state in named
        and (before is None or failed_at(row) < before)
        and (not wanted.kind or _last(row.error_class) == _last(wanted.kind))
    )
    yield from _of_cause(ledger, rows, wanted.cause) if wanted.cause else rows


def _of_cause(ledger: Ledger, rows: Iterator[Row], cause: str) -> Iterator[Row]:
    while part := list(islice(rows, AT_ONCE)):
        yield from (row for row, its in zip(part, causes_of(ledger, part), strict=True) if its.name == cause)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
