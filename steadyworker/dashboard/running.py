"""The first page: what needs a person, what runs, and what waits for its next run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from steadyworker.backends.waiting import queues_now
from steadyworker.dashboard.causes import causes_of
from steadyworker.dashboard.grouped import grouped_notices
from steadyworker.dashboard.job_line import JobLine, began_text, job_line
from steadyworker.dashboard.notices import MOST_DEAD, Notice, dead_notices, job_notice
from steadyworker.dashboard.paging import ListPart
from steadyworker.dashboard.queues import held_queue, waits_text
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.facts import Pause
from steadyworker.ledger.fleet import of_namespace, workers
from steadyworker.ledger.listing import ListedJob, Listing, Liveness, Need, Wanted
from steadyworker.text.redaction import redact
from steadyworker.units import count_text

MOST_NOTICES, MOST_RUNNING, MOST_WAITING = 20, 40, 20
"""The numbers of jobs in a part of each list, so that a page has less than 100 kB."""


_MOST_PAUSES = 2


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
        needs, running, waiting: The shown parts of the lists of jobs; many dead jobs of one cause are one notice.
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
        """The notices that the page shows: jobs that are not dead, worker processes and queues (on the first part), dead jobs."""
        others = sorted(self.others, key=lambda notice: notice.level != "error") if self.needs.page == 1 else []
        dead = [notice for notice in self.needs.rows if notice.kind == Need.DEAD.value]
        return [*(notice for notice in self.needs.rows if notice not in dead), *others, *dead]


def running_page(once: ReadOnce, now: float, asked: AskedLists) -> RunningPage:
    """Return the content of the first page."""
    ledger, namespace, queue = once.as_ledger, asked.namespace, asked.queue
    listing = Listing(ledger, Wanted(namespace=namespace, queue=queue), now)
    all_needs, needs = _needs(once, listing, asked.needs, now)
    running = listing.running((asked.page - 1) * MOST_RUNNING, MOST_RUNNING)
    waiting = listing.waiting((asked.waiting - 1) * MOST_WAITING, MOST_WAITING)
    held = {pair: held_queue(ledger, *pair).why for pair in {_queue_of(job) for job in waiting.jobs}}
    runs = ledger.facts.last_runs(tuple(job.row.id for job in running.jobs)) if running.jobs else {}
    began = {id: began_text(number, because) for id, (number, because) in runs.items()}
    processes = of_namespace(ledger, workers(ledger, now), namespace)
    names = [pair for pair in ledger.bindings() if namespace in (None, pair[0]) and queue in (None, pair[1])]
    queues = queues_now(ledger, names)
    others, number = grouped_notices(processes if queue is None else (), queues, now)
    living = sum(process.liveness is not Liveness.GONE for process in processes)
    return RunningPage(
        headline(all_needs + number),
        _summary(running.number, living, waits_text(ledger, queues), [each.pause for each in queues if each.pause]),
        namespace or "",
        queue or "",
        all_needs + number,
        others,
        needs,
        ListPart(
            [job_line(job, now, began.get(job.row.id, "")) for job in running.jobs],
            running.number,
            running.offset,
            MOST_RUNNING,
        ),
        ListPart(
            [job_line(job, now, held=held[_queue_of(job)]) for job in waiting.jobs],
            waiting.number,
            waiting.offset,
            MOST_WAITING,
        ),
    )


def _queue_of(job: ListedJob) -> tuple[str, str]:
    return job.row.id.namespace, job.row.id.queue


def _needs(once: ReadOnce, listing: Listing, page: int, now: float) -> tuple[int, ListPart[Notice]]:
    """Return the number of all jobs that need a person, and a part of their notices; the dead come last, at the end of the last part."""
    part = listing.needing((page - 1) * MOST_NOTICES, MOST_NOTICES + MOST_DEAD)
    notices = [job_notice(job, now) for job in part.jobs[:MOST_NOTICES] if job.need is not Need.DEAD]
    number = part.number
    if len(notices) < len(part.jobs[:MOST_NOTICES]):
        first = part.offset + len(notices)
        jobs = part.jobs[len(notices) :][:MOST_DEAD]
        rows = [job.row for job in jobs]
        # Causes do not change, so jobs that are still the same are not read again.
        causes = once.slowly(tuple(row.id for row in rows), lambda: causes_of(once.as_ledger, rows))
        dead = dead_notices(list(zip(jobs, causes, strict=True)), number - first, now)
        number = first + len(dead)
        notices += dead
    return part.number, ListPart(notices, number, part.offset, MOST_NOTICES)


def _summary(running: int, living: int, ready: str, pauses: Sequence[Pause]) -> str:
    parts = [
        f"{count_text(running, 'job')} {'runs' if running == 1 else 'run'}",
        f"{count_text(living, 'worker process', 'worker processes')} {'lives' if living == 1 else 'live'}",
        *([ready] if ready else []),
        *(
            redact(f"{each.queue} is paused by {each.who}")
            for each in pauses[:_MOST_PAUSES]
            if f"{each.queue} is paused" not in ready
        ),
        *([f"{count_text(len(pauses) - _MOST_PAUSES, 'other queue')} paused"] if len(pauses) > _MOST_PAUSES else []),
    ]
    return f"{'; '.join(parts)}."


def headline(number: int) -> str:
    """Return how many things need a person."""
    if not number:
        return "Nothing needs a person"
    return "1 thing needs a person" if number == 1 else f"{number:,} things need a person"
