"""The tables of `steadyworker top`: their rows as values, as lines for a terminal, and as records for `--json`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any

from msgspec import Struct
from rich.text import Text

from steadyworker.backends.waiting import QueueNow
from steadyworker.cli import actions, job_lines, queues, workers
from steadyworker.cli.output import ago
from steadyworker.cli.paused import pause_texts
from steadyworker.cli.story_lines import story_lines
from steadyworker.dashboard.notices import needs_person, queue_notices
from steadyworker.dashboard.queues import queue_lines
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger import fleet
from steadyworker.ledger.facts import Action
from steadyworker.ledger.fleet import WorkerNow
from steadyworker.ledger.listing import ListedJob, Listing, Wanted
from steadyworker.ledger.story import story
from steadyworker.outcome import JobState
from steadyworker.text.plain_text import printable
from steadyworker.units import count_text

MOST_ROWS = 200
"""The largest number of rows of a table; the table names the fact that there are more."""

_FAILED = frozenset({JobState.DEAD, JobState.RETRYING})
_UNFINISHED = frozenset({JobState.RUNNING, JobState.RETRYING, JobState.SCHEDULED, JobState.INTERRUPTED})

Value = ListedJob | QueueNow | WorkerNow | Action


class Tab(StrEnum):
    """A table; its value is its name in `--json`."""

    RUNNING = "running"
    QUEUES = "queues"
    WORKERS = "workers"
    FAILURES = "failures"
    ACTIONS = "actions"


_NOUNS = {
    Tab.RUNNING: ("job", "jobs"),
    Tab.QUEUES: ("queue", "queues"),
    Tab.WORKERS: ("worker process", "worker processes"),
    Tab.FAILURES: ("failed job", "failed jobs"),
    Tab.ACTIONS: ("action", "actions"),
}


class TopTable(Struct, frozen=True):
    """
    A table.

    Attributes:
        tab: Which table.
        now: The wall clock when its rows were read.
        rows: The rows, those that need a person first.
        more: True if there are more rows than `MOST_ROWS`.
        notes: Sentences below the table, such as a pause.
        counts: The numbers of all jobs that run, that wait, and that died within the last day; None for other tables or a search.
    """

    tab: Tab
    now: float
    rows: Sequence[Value]
    more: bool = False
    notes: Sequence[str] = ()
    counts: tuple[int, int, int] | None = None

    @property
    def headline(self) -> str:
        """The number of rows, or of jobs that run, wait or are dead, and of rows that need a person."""
        count = (
            f"the first {MOST_ROWS} {_NOUNS[self.tab][1]}"
            if self.more
            else count_text(len(self.rows), *_NOUNS[self.tab])
        )
        if self.counts is not None:
            running, waiting, dead = self.counts
            listed = f"; {count}" if self.more else ""
            runs, waits = "runs" if running == 1 else "run", "waits" if waiting == 1 else "wait"
            count = f"{running:,} {runs}, {waiting:,} {waits}, {dead:,} dead{listed}"
        needs = sum(_needs_person(row, self.now) for row in self.rows)
        return f"{count}, {needs} {'needs' if needs == 1 else 'need'} a person" if needs else count

    def lines(self, width: int) -> Iterator[Text]:
        """Yield the line of the titles, and then one line for each row; without a row, yield nothing."""
        rows: Any = self.rows
        if not rows:
            return iter(())
        match self.tab:
            case Tab.QUEUES:
                return queues.lines_of(rows, width, self.now, verbose=False)
            case Tab.WORKERS:
                return workers.lines_of(rows, width, self.now, verbose=False)
            case Tab.ACTIONS:
                return actions.lines_of(rows, width)
            case Tab.RUNNING | Tab.FAILURES:
                return job_lines.lines_of(rows, width, self.now, verbose=False)

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as the verbs `jobs`, `queues`, `workers` and `actions` print them with `--json`."""
        return [_record(row, self.now) for row in self.rows]


def read_table(
    once: ReadOnce, now: float, tab: Tab, namespace: str | None, text: str = "", *, few_dead: bool = False
) -> TopTable:
    """Read a table: all rows, or only those with this text, whose case does not matter; `few_dead` is that of `Listing`."""
    ledger = once.as_ledger
    found: Iterator[Value]
    notes: list[str] = []
    counts: tuple[int, int, int] | None = None
    listing: Listing | None = None
    match tab:
        case Tab.RUNNING | Tab.FAILURES:
            # The name of a queue selects its jobs; the ledger searches another text in key, reason, error and note.
            of_queue = text in {queue for _, queue in ledger.bindings()}
            states = _FAILED if tab is Tab.FAILURES else _UNFINISHED
            wanted = Wanted(
                namespace, text if of_queue else None, states=states, grep=None if of_queue else text or None
            )
            listing, text = Listing(ledger, wanted, now, few_dead=few_dead), ""
            found = listing.jobs()
            if tab is Tab.RUNNING and wanted.grep is None:
                counts = (listing.running(0, 1).number, listing.waiting(0, 1).number, listing.count_dead())
            notes = list(pause_texts(ledger, now, namespace))
        case Tab.QUEUES:
            lines = queue_lines(once, now, namespace)
            found = iter([line.now for line in lines])
            notes = [f"{line.now.queue}: {why}" for line in lines for names, why in line.unknown if names == "now"]
        case Tab.WORKERS:
            listed = fleet.workers(ledger, now)
            found = iter(fleet.of_namespace(ledger, listed, namespace))
            notes = list(workers.notes(ledger, now, namespace))
        case Tab.ACTIONS:
            found = iter(ledger.facts.actions(None, namespace, None, None, MOST_ROWS + 1))
    rows = list(islice((row for row in found if not text or _has(row, text, now)), MOST_ROWS + 1))
    if listing is not None and listing.left_out:
        notes.append(f"{count_text(listing.left_out, 'more dead job')} with the same reasons or older.")
    return TopTable(tab, now, rows[:MOST_ROWS], len(rows) > MOST_ROWS, notes, counts)


def row_id(row: Value) -> Hashable:
    """Return what stays the same of a row from one reading to the next."""
    match row:
        case ListedJob():
            return (row.row.id,)
        case QueueNow():
            return (row.namespace, row.queue)
        case WorkerNow():
            return (row.seen.owner,)
        case Action():
            return (row.at, row.who, row.what, row.queue, row.keys)


def story_of(once: ReadOnce, now: float, row: Value, width: int) -> list[str]:
    """Return the whole text of a row: the story of a job, or what a queue or a worker process needs."""
    match row:
        case ListedJob():
            id, ledger = row.row.id, once.as_ledger
            again = next(Listing(ledger, Wanted(id.namespace, id.queue, (id.key,)), now).jobs(), row)
            entries = story(ledger, id.namespace, id.queue, id.key)
            return list(story_lines(again, entries, now, width, ledger.facts.result(again.row.id)))
        case QueueNow():
            lines = [f"{row.queue} of {row.namespace}", queues.why(row, now) or "It needs nothing."]
        case WorkerNow():
            lines = [
                *workers.cells(row, now)[:3],
                f"renewed {ago(row.seen.seen_ago)}",
                workers.why(row) or "It needs nothing.",
            ]
        case Action():
            lines = [cell for cell in actions.cells(row) if cell]
    return [printable(line) for line in lines]


def _has(row: Value, text: str, now: float) -> bool:
    cells: Sequence[str] = ()
    match row:
        case QueueNow():
            cells = queues.cells(row, now)
        case WorkerNow():
            cells = workers.cells(row, now)
        case Action():
            cells = [*actions.cells(row), *row.keys]
    return any(text.casefold() in cell.casefold() for cell in cells)


def _needs_person(row: Value, now: float) -> bool:
    match row:
        case ListedJob():
            return row.need is not None
        case QueueNow():
            return any(queue_notices([row]))
        case WorkerNow():
            return needs_person(row, now)
        case Action():
            return False


def _record(row: Value, now: float) -> dict[str, Any]:
    match row:
        case ListedJob():
            return job_lines.as_record(row, now)
        case QueueNow():
            return queues.as_record(row)
        case WorkerNow():
            return workers.as_record(row)
        case Action():
            return actions.as_record(row)
