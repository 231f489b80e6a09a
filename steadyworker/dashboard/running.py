"""The first page: what needs a person, what runs, and what waits for its next run."""

from __future__ import annotations

from steadyworker.backends.waiting import queues_now
from steadyworker.dashboard.job_line import JobLine, job_line
from steadyworker.dashboard.notices import Notice, job_notice, queue_notices, worker_notices
from steadyworker.dashboard.queues import recorded_depth
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.base import State
from steadyworker.ledger.fleet import workers
from steadyworker.ledger.listing import ListedJob, Listing, Liveness, Wanted
from steadyworker.units import count_text

MOST_NOTICES, MOST_RUNNING, MOST_WAITING = 20, 60, 20
"""The largest numbers of rows, so that a page has less than 100 kB; the page names how many it leaves out."""

_COUNTED = 1000
"""The number of waiting jobs beyond which the page only shows that there are more."""


class RunningPage:
    """
    The content of the first page.

    Attributes:
        headline, summary: The answer to "does anything need me?", and what runs where.
        queue: The only queue that is shown; empty for all.
        notices, running, waiting: The rows that the page shows.
        all_notices, all_running, all_waiting: The numbers of all of them.
        more_waiting: True if more jobs wait than were counted.
    """

    def __init__(self, once: ReadOnce, now: float, namespace: str | None, queue: str | None) -> None:
        ledger = once.as_ledger
        self.queue = queue or ""
        self.notices: list[Notice] = []
        self.running: list[JobLine] = []
        self.waiting: list[JobLine] = []
        self.all_notices = self.all_running = self.all_waiting = 0
        for job in Listing(ledger, Wanted(namespace=namespace, queue=queue), now).jobs():
            # What needs a person comes first, then what runs, then what waits, then what has ended.
            if self.more_waiting or (job.need is None and job.row.state in (State.DONE, State.DEAD)):
                break
            self._add(job, now)
        processes = workers(ledger, now)
        names = [pair for pair in ledger.bindings() if namespace in (None, pair[0]) and queue in (None, pair[1])]
        queues = queues_now(ledger, names, recorded_depth(ledger))
        others = [] if queue is not None else [each for process in processes for each in worker_notices(process, now)]
        others += queue_notices(queues)
        self.all_notices += len(others)
        # A hundred dead jobs must not hide a dead worker process.
        self.notices = [*self.notices[: max(MOST_NOTICES // 2, MOST_NOTICES - len(others))], *others]
        self.notices.sort(key=lambda notice: notice.level != "error")
        del self.notices[MOST_NOTICES:]
        self.headline = headline(self.all_notices)
        living = sum(process.liveness is not Liveness.GONE for process in processes)
        self.summary = _summary(self.all_running, living, sum(each.depth.ready or 0 for each in queues))

    @property
    def more_waiting(self) -> bool:
        """True if more jobs wait than were counted."""
        return self.all_waiting > _COUNTED

    def _add(self, job: ListedJob, now: float) -> None:
        if job.need is not None:
            self.all_notices += 1
            if len(self.notices) < MOST_NOTICES:
                self.notices.append(job_notice(job, now))
        if job.row.state is State.RUNNING:
            self.all_running += 1
            if len(self.running) < MOST_RUNNING:
                self.running.append(job_line(job, now))
        elif job.row.state not in (State.DONE, State.DEAD):
            self.all_waiting += 1
            if len(self.waiting) < MOST_WAITING:
                self.waiting.append(job_line(job, now))


def _summary(running: int, living: int, ready: int) -> str:
    parts = [
        f"{count_text(running, 'job')} {'runs' if running == 1 else 'run'}",
        f"{count_text(living, 'worker process', 'worker processes')} {'lives' if living == 1 else 'live'}",
        *([f"{count_text(ready, 'message')} {'is' if ready == 1 else 'are'} ready"] if ready else []),
    ]
    return f"{'; '.join(parts)}."


def headline(number: int) -> str:
    """Return how many things need a person."""
    if not number:
        return "Nothing needs a person"
    return "1 thing needs a person" if number == 1 else f"{number:,} things need a person"
