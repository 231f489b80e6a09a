"""The first page: what needs a person, what runs, and what waits for its next run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from steadyworker.backends.waiting import RECENT, QueueNow, queues_now
from steadyworker.dashboard.grouped import grouped_notices
from steadyworker.dashboard.job_line import JobLine, began_text, job_line
from steadyworker.dashboard.notices import Notice, job_notice
from steadyworker.dashboard.paging import ListPart
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.fleet import of_namespace, workers
from steadyworker.ledger.listing import Listing, Liveness, Wanted
from steadyworker.units import count_text, span

MOST_NOTICES, MOST_RUNNING, MOST_WAITING = 20, 40, 20
"""The numbers of jobs in a part of each list, so that a page has less than 100 kB."""


class AskedLists(Struct, frozen=True):
    """What the address of the page names: the broker and the queue, or all, and the part of each list."""

    namespace: str | None = None
    queue: str | None = None
    needs: int = 1
    page: int = 1
    waiting: int = 1


class RunningPage(Struct, frozen=True):
    """
    The content of the first page.

    Attributes:
        headline, summary: The answer to "does anything need me?", and what runs where.
        namespace, queue: The only queue that is shown; empty for all.
        all_notices: The number of all things that need a person.
        others: The notices about worker processes and queues; many of one kind are one notice.
        needs, running, waiting: The shown parts of the lists of jobs.
    """

    headline: str
    summary: str
    namespace: str
    queue: str
    all_notices: int
    others: list[Notice]
    needs: ListPart[Notice]
    running: ListPart[JobLine]
    waiting: ListPart[JobLine]

    @property
    def notices(self) -> list[Notice]:
        """The notices that the page shows, errors first; those of worker processes and queues stand on the first part."""
        shown = [*self.needs.rows, *(self.others if self.needs.page == 1 else ())]
        return sorted(shown, key=lambda notice: notice.level != "error")


def running_page(once: ReadOnce, now: float, asked: AskedLists) -> RunningPage:
    """Return the content of the first page."""
    ledger, namespace, queue = once.as_ledger, asked.namespace, asked.queue
    listing = Listing(ledger, Wanted(namespace=namespace, queue=queue), now)
    needs = listing.needing((asked.needs - 1) * MOST_NOTICES, MOST_NOTICES)
    running = listing.running((asked.page - 1) * MOST_RUNNING, MOST_RUNNING)
    waiting = listing.waiting((asked.waiting - 1) * MOST_WAITING, MOST_WAITING)
    runs = ledger.facts.last_runs(tuple(job.row.id for job in running.jobs)) if running.jobs else {}
    began = {id: began_text(number, because) for id, (number, because) in runs.items()}
    processes = of_namespace(ledger, workers(ledger, now), namespace)
    names = [pair for pair in ledger.bindings() if namespace in (None, pair[0]) and queue in (None, pair[1])]
    queues = queues_now(ledger, names)
    others, number = grouped_notices(processes if queue is None else (), queues, now)
    living = sum(process.liveness is not Liveness.GONE for process in processes)
    return RunningPage(
        headline(needs.number + number),
        _summary(running.number, living, [each for each in queues if each.depth.ready]),
        namespace or "",
        queue or "",
        needs.number + number,
        others,
        ListPart([job_notice(job, now) for job in needs.jobs], needs.number, needs.offset, MOST_NOTICES),
        ListPart(
            [job_line(job, now, began.get(job.row.id, "")) for job in running.jobs],
            running.number,
            running.offset,
            MOST_RUNNING,
        ),
        ListPart([job_line(job, now) for job in waiting.jobs], waiting.number, waiting.offset, MOST_WAITING),
    )


def _summary(running: int, living: int, waiting: Sequence[QueueNow]) -> str:
    ready = sum(each.depth.ready or 0 for each in waiting)
    age = max((each.age for each in waiting), default=0.0)
    are = ("is" if ready == 1 else "are") if age <= RECENT else ("was" if ready == 1 else "were")
    ago = f" {span(age)} ago" if age > RECENT else ""
    parts = [
        f"{count_text(running, 'job')} {'runs' if running == 1 else 'run'}",
        f"{count_text(living, 'worker process', 'worker processes')} {'lives' if living == 1 else 'live'}",
        *([f"{count_text(ready, 'message')} {are} ready{ago}"] if ready else []),
    ]
    return f"{'; '.join(parts)}."


def headline(number: int) -> str:
    """Return how many things need a person."""
    if not number:
        return "Nothing needs a person"
    return "1 thing needs a person" if number == 1 else f"{number:,} things need a person"
