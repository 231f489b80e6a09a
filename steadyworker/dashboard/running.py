"""The first page: what needs a person, what runs, and what waits for its next run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from steadyworker.backends.waiting import queues_now
from steadyworker.dashboard.job_line import JobLine, job_line
from steadyworker.dashboard.notices import Notice, job_notice, queue_notices, worker_notices
from steadyworker.dashboard.queues import recorded_depth
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.base import State
from steadyworker.ledger.fleet import workers
from steadyworker.ledger.listing import Listing, Liveness, Wanted
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


def running_page(once: ReadOnce, now: float, namespace: str | None, queue: str | None) -> RunningPage:
    """Return the content of the first page, of all queues or of one."""
    ledger = once.as_ledger
    notices: list[Notice] = []
    running: list[JobLine] = []
    waiting: list[JobLine] = []
    all_running = all_waiting = 0
    for job in Listing(ledger, Wanted(namespace=namespace, queue=queue), now).jobs():
        state = job.row.state
        if job.need is not None:
            notices.append(job_notice(job, now))
        if state is State.RUNNING:
            all_running += 1
            if len(running) < MOST_RUNNING:
                running.append(job_line(job, now))
        elif state in (State.DONE, State.DEAD) and job.need is None:
            break
        elif state not in (State.DONE, State.DEAD):
            all_waiting += 1
            if len(waiting) < MOST_WAITING:
                waiting.append(job_line(job, now))
            if all_waiting > _COUNTED:
                break
    processes = workers(ledger, now)
    names = [pair for pair in ledger.bindings() if namespace in (None, pair[0]) and queue in (None, pair[1])]
    queues = queues_now(ledger, names, recorded_depth(ledger))
    if queue is None:
        notices += [notice for process in processes for notice in worker_notices(process)]
    notices += queue_notices(queues)
    notices.sort(key=lambda notice: notice.level != "error")
    living = sum(process.liveness is not Liveness.GONE for process in processes)
    ready = sum(each.depth.ready or 0 for each in queues)
    verb = "runs" if all_running == 1 else "run"
    summary = (
        f"{count_text(all_running, 'job')} {verb}; {count_text(living, 'worker process', 'worker processes')} live"
    )
    if ready:
        summary += f"; {count_text(ready, 'message')} {'is' if ready == 1 else 'are'} ready"
    return RunningPage(
        headline(len(notices)),
        f"{summary}.",
        queue or "",
        notices[:MOST_NOTICES],
        running,
        waiting,
        len(notices),
        all_running,
        all_waiting,
        all_waiting > _COUNTED,
    )


def headline(number: int) -> str:
    """Return how many things need a person."""
    if not number:
        return "Nothing needs a person"
    return "1 thing needs a person" if number == 1 else f"{number:,} things need a person"
