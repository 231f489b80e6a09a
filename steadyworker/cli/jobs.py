"""`steadyworker jobs`: lists or watches the jobs in the ledger."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import click
from msgspec.structs import replace
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from steadyworker.cli.output import Column, ago, amount, framed, instant, json_line, span, table
from steadyworker.cli.settings import open_ledger, settings
from steadyworker.clock import SystemClock
from steadyworker.config.resolve import Options
from steadyworker.ledger.base import JobFilter, JobId, Ledger, Orphan, Progress, Row, State
from steadyworker.ledger.lost import OVERDUE, advice, lost
from steadyworker.outcome import JobState
from steadyworker.units import count_text

_REFRESH = 2.0
_MOST = 1 << 31
_BAR = 20

_COLUMNS = (
    Column("QUEUE"),
    Column("KEY"),
    Column(
        "STATE",
        styles={"running": "cyan", "done": "green", "dead": "red", "retrying": "yellow", "interrupted": "yellow"},
    ),
    Column("ATTEMPTS", right=True),
    Column("PROGRESS"),
    Column("ELAPSED", right=True),
    Column("LAST PROGRESS", right=True),
    Column("WHY"),
)

_STATES = {
    JobState.RUNNING: (State.RUNNING,),
    JobState.INTERRUPTED: (State.INTERRUPTED,),
    JobState.RETRYING: (State.MOVING, State.MOVED),
    JobState.SCHEDULED: (State.MOVING, State.MOVED),
    JobState.DONE: (State.DONE,),
    JobState.CANCELLED: (State.MOVING, State.DEAD),
    JobState.DEAD: (State.MOVING, State.DEAD),
}
"""
The possible states of a row, for each state that users see (`Row.job_state`).

The ledger's query reads only rows in these states.
"""

Job = tuple[Row, Progress | None, Orphan | None]
"""
A job's row, its last progress, and its `Orphan`, which has the reason why the job waits.

If a message of the job came within the last hour, the `Orphan` is None.
"""


@click.command(
    "jobs",
    epilog="""\b
States:
  running      a worker process runs it
  interrupted  a stop ended its run, or it was cancelled before its first message; it waits for a message
  retrying     a run failed; the job runs again after a delay
  scheduled    the handler raised Snooze; the job runs again after that delay
  done         the handler returned
  cancelled    it was cancelled; its message is in the dead-letter queue
  dead         it failed for good; its message is in the dead-letter queue (see `steadyworker dead`)
\b
Examples:
  steadyworker jobs --watch
  steadyworker jobs --queue payment-exports --state dead
  steadyworker jobs --overdue --json | jq -r .key      # for an alert: prints nothing if no job is overdue""",
)
@settings("ledger", "namespace", "state_dir")
@click.option(
    "--watch",
    is_flag=True,
    help="Refresh every 2 s until Ctrl-C; if the output is not a terminal, print the list once.",
)
@click.option(
    "--overdue",
    is_flag=True,
    help="Only jobs that need an operator: their retry is more than an hour late, "
    "the lease of their worker ended more than an hour ago, or their message is lost and no worker starts them by itself.",
)
@click.option("--queue", metavar="NAME", help="Only this queue.")
@click.option("--state", type=click.Choice([state.value for state in _STATES]), help="Only this state.")
@click.option(
    "--limit",
    type=click.IntRange(0, _MOST),
    default=50,
    show_default=True,
    metavar="N",
    help="Only the newest N; 0 for all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per job.")
def command(
    options: Options, *, watch: bool, overdue: bool, queue: str | None, state: str | None, limit: int, as_json: bool
) -> None:
    """
    List jobs, newest first.

    If no message of a job came for an hour, WHY has the reason, and the command that helps.
    With --overdue, the jobs that no worker starts by itself come first.
    """
    if watch and as_json:
        raise click.UsageError("Expected --watch or --json, got both: run `jobs --json` as often as you need it.")
    with open_ledger(options) as ledger:

        def chosen() -> tuple[list[Job], list[Orphan]]:
            orphans = list(_lost(ledger, options.namespace, queue))
            found = _chosen(
                ledger, JobFilter(options.namespace, queue, late_by=OVERDUE if overdue else None), state, orphans
            )
            return list(islice(found, limit or None)), orphans

        if as_json:
            for job in chosen()[0]:
                json_line(as_record(*job))
        elif watch and Console().is_terminal:
            _watch(chosen, ledger.url)
        else:
            jobs, orphans = chosen()
            if jobs:
                table(_COLUMNS, _cells(jobs))
            else:
                click.echo(f"No matching jobs in {ledger.url}.", err=True)
            if not overdue:
                _print_stranded(orphans, {row.id for row, _, _ in jobs})


def _chosen(ledger: Ledger, wanted: JobFilter, state: str | None, orphans: Sequence[Orphan]) -> Iterator[Job]:
    """
    Yield the jobs of a listing.

    In a listing of overdue jobs, the jobs that no worker process starts by itself come first.
    """
    known = {orphan.row.id: orphan for orphan in orphans}
    first = [orphan for orphan in orphans if orphan.hindrance is not None and wanted.late_by is not None]
    for orphan in first:
        if state is None or orphan.row.job_state == state:
            yield orphan.row, ledger.last_progress(orphan.row.id), orphan
    listed = {orphan.row.id for orphan in first}
    states = None if state is None else _STATES[JobState(state)]
    for row, progress in ledger.jobs(replace(wanted, states=states)):
        if (state is None or row.job_state == state) and row.id not in listed:
            yield row, progress, known.get(row.id)


def _lost(ledger: Ledger, namespace: str | None, queue: str | None) -> Iterator[Orphan]:
    """
    Yield the overdue jobs whose message did not come.

    The jobs that no worker process starts by itself come first.
    """
    bindings = [
        (bound, name) for bound, name in ledger.bindings() if namespace in (None, bound) and queue in (None, name)
    ]
    for stranded in (True, False):
        for bound, name in bindings:
            yield from lost(ledger, bound, name, stranded=stranded)


def _print_stranded(orphans: Sequence[Orphan], listed: Collection[JobId]) -> None:
    """Print how many jobs need an operator, but are older than the jobs in the list."""
    if count := sum(orphan.hindrance is not None and orphan.row.id not in listed for orphan in orphans):
        jobs = (
            f"{count_text(count, 'more job')} of which no message came for an hour, and that no worker starts by itself"
        )
        click.echo(f"{jobs}: `steadyworker jobs --overdue` lists them.", err=True)


def as_record(row: Row, progress: Progress | None, orphan: Orphan | None = None) -> dict[str, Any]:
    """
    Return a job's record as `--json` prints it.

    Instants are ISO 8601 in UTC, durations are seconds.
    """
    return {
        "namespace": row.id.namespace,
        "queue": row.id.queue,
        "key": row.id.key,
        "round": row.id.round,
        "state": row.job_state.value,
        "attempts": row.counters.attempts,
        "crashes": row.counters.crashes,
        "losses": row.counters.losses,
        "interruptions": row.counters.interruptions,
        "done": progress.done if progress else None,
        "total": progress.total if progress else None,
        "note": progress.note if progress else "",
        "reason": row.reason,
        "error_class": row.error_class,
        "error": row.error_text,
        "cancelled": row.cancel_reason,
        "conflicts": row.conflicts,
        "due_in": row.due_in,
        "late_by": row.late_by,
        "message_missing_for": orphan.unseen_for if orphan else None,
        "hindrance": orphan.hindrance.value if orphan and orphan.hindrance else None,
        "fence": row.fence,
        "worker": row.worker,
        "owner": row.owner,
        "uid": row.uid,
        "created_at": instant(row.created_at),
        "started_at": instant(row.started_at),
        "ended_at": instant(row.ended_at),
        "last_progress": instant(progress.at) if progress else None,
    }


def _cells(jobs: Sequence[Job]) -> list[list[str]]:
    now = SystemClock().wall()
    return [_fixed(job, now, _progress_text(job[1])) for job in jobs]


def _fixed(job: Job, now: float, shown: Any) -> list[Any]:
    row, progress, orphan = job
    running = row.state is State.RUNNING
    elapsed = None if row.started_at is None else (row.ended_at or now) - row.started_at
    return [
        row.id.queue,
        row.id.key if not row.id.round else f"{row.id.key} (round {row.id.round})",
        row.job_state.value,
        str(row.counters.attempts),
        shown,
        span(elapsed if running or row.ended_at is not None else None),
        ago(now - progress.at if progress and running else None),
        why(row, orphan),
    ]


def why(row: Row, orphan: Orphan | None = None) -> str:
    """Return the text of the column WHY: the cause of the job's state, a wait or delay, and the last error."""
    crashes, losses = row.counters.crashes, row.counters.losses
    parts = [
        f"cancelled: {row.cancel_reason}" if row.cancel_reason is not None else "",
        f"due in {span(row.due_in)}" if row.state is State.MOVED and row.due_in else "",
        f"late by {span(row.late_by)}" if row.late_by > OVERDUE and orphan is None else "",
        f"no message came for {span(orphan.unseen_for)}; {advice(orphan)}" if orphan is not None else "",
        row.reason,
        _error(row),
        ", ".join(
            text
            for number, text in (
                (crashes, count_text(crashes, "crash", "crashes")),
                (losses, count_text(losses, "loss", "losses")),
            )
            if number
        ),
        f"dead letters with this key and another payload: {row.conflicts}" if row.conflicts else "",
    ]
    return "; ".join(dict.fromkeys(part for part in parts if part))


def _error(row: Row) -> str:
    """Return the last error, unless the reason already contains it."""
    error = ": ".join(part for part in (row.error_class, row.error_text) if part)
    return "" if row.error_text and row.error_text in row.reason else error


def _progress_text(progress: Progress | None) -> str:
    if progress is None or progress.done is None:
        return progress.note if progress else ""
    if not progress.total:
        return f"{amount(progress.done)} {progress.note}".rstrip()
    return f"{amount(progress.done)}/{amount(progress.total)} ({progress.done / progress.total:.0%}) {progress.note}".rstrip()


def _progress_bar(row: Row, progress: Progress | None) -> Any:
    text = Text(_progress_text(progress))
    if progress is None or progress.done is None or not progress.total or row.state is not State.RUNNING:
        return text
    side_by_side = Table.grid(padding=(0, 1))
    side_by_side.add_row(ProgressBar(total=progress.total, completed=progress.done, width=_BAR), text)
    return side_by_side


def _watch(chosen: Any, where: str) -> None:
    """
    Show the jobs until Ctrl-C.

    This function reads the ledger again and again, but never writes to it.
    """

    def picture() -> Any:
        now = SystemClock().wall()
        jobs, _ = chosen()
        rows = [_fixed(job, now, _progress_bar(*job[:2])) for job in jobs]
        footer = Text(f"{count_text(len(jobs), 'job')} in {where}; Ctrl-C ends only this view", style="dim")
        return Group(framed(_COLUMNS, rows), footer)

    with Live(picture(), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(_REFRESH)
                live.update(picture(), refresh=True)
        except KeyboardInterrupt:
            return
