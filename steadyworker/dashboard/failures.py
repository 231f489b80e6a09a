"""
The page of the failures: jobs that have failed for good, and jobs that wait for their retry, in groups.

A group has one cause (`dashboard.causes`), so a thousand failures of one cause are one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from steadyworker.dashboard.causes import FailureCause, causes_of
from steadyworker.dashboard.job_line import why_text
from steadyworker.dashboard.paging import ListPart, part_of
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.base import JobFilter, JobId, Row, State
from steadyworker.ledger.listing import ListedJob
from steadyworker.outcome import JobState
from steadyworker.units import count_text

MOST_READ = 1000
"""The largest numbers of dead jobs and of waiting jobs that the page reads, newest first; the page shows that there are more."""

MOST_SEARCHED = 10_000
"""The largest numbers of rows in which the page seeks those jobs: a row can be that of a cancelled job, or of another time."""

MOST_GROUPS, MOST_KEYS = 60, 3
"""The numbers of groups in a part of the list, and of jobs that a group names."""

LONGEST_TEXT = 200
"""The largest number of characters of the text that a reader searches."""

WHEN = {
    "": "all that the ledger keeps",
    "hour": "last hour",
    "today": "today",
    "yesterday": "yesterday",
    "week": "last 7 days",
}
"""The times that a reader can choose; days are those of UTC, as all times of the page."""

_HOUR, _DAY, _WEEK = 3600.0, 86400.0, 604800.0


class Sought(Struct, frozen=True):
    """
    What a reader seeks; empty texts and None fit every job.

    Attributes:
        namespace, queue: Only jobs of this queue.
        when: A time of `WHEN`.
        text: Only jobs with this text in key, reason, error, cancel reason or note.
        state: A state of `chosen.STATES_TO_CHOOSE`; for a choice, as are the next two.
        kind: Only jobs whose last error has this class, with or without its module.
        cause: Only failures of this group, as `FailureCause.name` names it.
    """

    namespace: str | None = None
    queue: str | None = None
    when: str = ""
    text: str = ""
    state: str = ""
    kind: str = ""
    cause: str = ""


class FailureGroup(Struct, frozen=True):
    """
    Failures of one cause.

    Attributes:
        cause: The cause.
        dead, retrying: The numbers of jobs.
        first, last: The times of the first and of the last failure.
        why: The reason of the last failure.
        newest: The last jobs.
    """

    cause: FailureCause
    dead: int
    retrying: int
    first: float
    last: float
    why: str
    newest: Sequence[JobId]

    @property
    def number(self) -> int:
        """The number of all jobs."""
        return self.dead + self.retrying


class FailuresPage(Struct, frozen=True):
    """The content of the page; with `more`, more jobs have failed than were read."""

    headline: str
    sought: Sought
    groups: ListPart[FailureGroup]
    more: bool


def failures_page(once: ReadOnce, now: float, sought: Sought, page: int = 1) -> FailuresPage:
    """Return the content of the page, by three queries."""
    groups, more = once.slowly(sought, lambda: failure_groups(once, now, sought))
    dead, retrying = sum(group.dead for group in groups), sum(group.retrying for group in groups)
    headline = _headline(dead, retrying, len(groups), more=more)
    return FailuresPage(headline, sought, part_of(groups, page, MOST_GROUPS), more)


def failure_groups(once: ReadOnce, now: float, sought: Sought) -> tuple[Sequence[FailureGroup], bool]:
    """Return all groups of the newest failures, the largest first, and whether there are more failures than were read."""
    ledger = once.as_ledger
    since, before = bounds(sought.when, now)
    rows: list[Row] = []
    more = False
    for states, wanted in (((State.DEAD,), JobState.DEAD), ((State.MOVING, State.MOVED), JobState.RETRYING)):
        query = JobFilter(
            sought.namespace,
            sought.queue,
            states,
            last=True,
            snoozed=False if wanted is JobState.RETRYING else None,
            since=since,
            grep=sought.text or None,
        )
        found = 0
        for number, (row, _) in enumerate(ledger.jobs(query)):
            if number == MOST_SEARCHED or found == MOST_READ:
                more = True
                break
            # A cancelled job is no failure, and a job that failed after the wanted time does not count either.
            if row.job_state is wanted and (before is None or failed_at(row) < before):
                rows.append(row)
                found += 1
    parts: dict[FailureCause, list[Row]] = {}
    for row, cause in zip(rows, causes_of(ledger, rows), strict=True):
        parts.setdefault(cause, []).append(row)
    groups = [_group(cause, found) for cause, found in parts.items()]
    groups.sort(key=lambda group: (-group.dead, -group.retrying, -group.last))
    return groups, more


def _group(cause: FailureCause, rows: Sequence[Row]) -> FailureGroup:
    newest = sorted(rows, key=failed_at, reverse=True)
    counts = Counter(row.job_state for row in rows)
    return FailureGroup(
        cause,
        counts[JobState.DEAD],
        counts[JobState.RETRYING],
        failed_at(newest[-1]),
        failed_at(newest[0]),
        why_text(ListedJob(newest[0])),
        [row.id for row in newest[:MOST_KEYS]],
    )


def failed_at(row: Row) -> float:
    """Return when a job last ended; without an end, when it started or was recorded."""
    return next(at for at in (row.ended_at, row.started_at, row.created_at) if at is not None)


def bounds(when: str, now: float) -> tuple[float | None, float | None]:
    """Return the begin and the end of a time of `WHEN`."""
    midnight = now - now % _DAY
    match when:
        case "hour":
            return now - _HOUR, None
        case "today":
            return midnight, None
        case "yesterday":
            return midnight - _DAY, midnight
        case "week":
            return now - _WEEK, None
        case _:
            return None, None


def _headline(dead: int, retrying: int, groups: int, *, more: bool) -> str:
    if not groups:
        return "No failure among the newest jobs, but the ledger has more jobs" if more else "No job has failed"
    parts = [
        count_text(dead, "dead job") if dead else "",
        f"{count_text(retrying, 'job')} to retry" if retrying else "",
        count_text(groups, "cause"),
    ]
    text = ", ".join(part for part in parts if part)
    return f"The last {text}" if more else text
