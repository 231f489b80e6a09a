"""The first page: what needs a person, what runs, and what waits for its next run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from steadyworker.backends.waiting import queues_now
from steadyworker.dashboard.job_line import JobLine, job_line
from steadyworker.dashboard.notices import Notice, job_notice, queue_notices, worker_notices
from steadyworker.dashboard.queues import recorded_depth
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.base import State
from steadyworker.ledger.fleet import workers
from steadyworker.ledger.listing import ListedJob, Listing, Liveness, Wanted
from steadyworker.units import count_text

MOST_NOTICES, MOST_RUNNING, MOST_WAITING = 30, 100, 30
"""The largest numbers of rows; the page names how many it leaves out."""

_COUNTED = 1000
"""The number of waiting jobs beyond which the page only shows that there are more."""


class RunningPage(Struct, frozen=True):
    """
    The content of the first page.

    Attributes:
        headline: The answer to "does anything need me?".
        summary: What runs where, in a sentence.
        queue: The only queue that is shown; empty for all.
        notices, running, waiting: The rows, at most as many as the page shows.
        all_notices, all_running, all_waiting: The numbers of all of them.
        more_waiting: True if more jobs wait than were counted.
    """

    headline: str
    summary: str
    queue: str
    notices: Sequence[Notice]
    running: Sequence[JobLine]
    waiting: Sequence[JobLine]
    all_notices: int
    all_running: int
    all_waiting: int
    more_waiting: bool


class _RunningRows:
    """The rows of the jobs, as the listing yields them: what needs a person, what runs, what waits."""

    def __init__(self, jobs: Iterable[ListedJob], now: float) -> None:
        self.notices: list[Notice] = []
        self.running: list[JobLine] = []
        self.waiting: list[JobLine] = []
        self.all_running = self.all_waiting = 0
        for job in jobs:
            ended = job.row.state in (State.DONE, State.DEAD)
            if job.need is not None:
                self.notices.append(job_notice(job, now))
            if (ended and job.need is None) or self.all_waiting > _COUNTED:
                break
            if job.row.state is State.RUNNING:
                self.all_running += 1
                if len(self.running) < MOST_RUNNING:
                    self.running.append(job_line(job, now))
            elif not ended:
                self.all_waiting += 1
                if len(self.waiting) < MOST_WAITING:
                    self.waiting.append(job_line(job, now))


def running_page(once: ReadOnce, now: float, namespace: str | None, queue: str | None) -> RunningPage:
    """Return the content of the first page, of all queues or of one."""
    ledger = once.as_ledger
    rows = _RunningRows(Listing(ledger, Wanted(namespace=namespace, queue=queue), now).jobs(), now)
    processes = workers(ledger, now)
    names = [pair for pair in ledger.bindings() if namespace in (None, pair[0]) and queue in (None, pair[1])]
    queues = queues_now(ledger, names, recorded_depth(ledger))
    notices = rows.notices
    if queue is None:
        notices += [notice for process in processes for notice in worker_notices(process)]
    notices += queue_notices(queues)
    notices.sort(key=lambda notice: notice.level != "error")
    living = sum(process.liveness is not Liveness.GONE for process in processes)
    ready = sum(each.depth.ready or 0 for each in queues)
    parts = [
        f"{count_text(rows.all_running, 'job')} {'runs' if rows.all_running == 1 else 'run'}",
        f"{count_text(living, 'worker process', 'worker processes')} {'lives' if living == 1 else 'live'}",
        *([f"{count_text(ready, 'message')} {'is' if ready == 1 else 'are'} ready"] if ready else []),
    ]
    return RunningPage(
        headline(len(notices)),
        f"{'; '.join(parts)}.",
        queue or "",
        notices[:MOST_NOTICES],
        rows.running,
        rows.waiting,
        len(notices),
        rows.all_running,
        rows.all_waiting,
        rows.all_waiting > _COUNTED,
    )


def headline(number: int) -> str:
    """Return how many things need a person."""
    if not number:
        return "Nothing needs a person"
    return "1 thing needs a person" if number == 1 else f"{number:,} things need a person"
