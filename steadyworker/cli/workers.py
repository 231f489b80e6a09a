"""`steadyworker workers`: lists the worker processes of a ledger, and what each needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
from rich.console import Console, Group
from rich.text import Text

from steadyworker.backends.waiting import RECENT, unexplained_now
from steadyworker.cli.jobs import watched
from steadyworker.cli.output import Column, ago, clock_time, instant, json_line, padded, print_screen, screen
from steadyworker.cli.paused import pause_texts
from steadyworker.cli.settings import open_ledger, settings
from steadyworker.cli.streams import echo
from steadyworker.clock import SystemClock, Times
from steadyworker.config.resolve import Options
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.fleet import WorkerNow, of_namespace, workers
from steadyworker.ledger.listing import Liveness
from steadyworker.ledger.need_words import death_clause, foreign_clause, trouble_clauses
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact

_COLUMNS = (
    Column("HOST", least=12, most=30),
    Column("PID", right=True),
    Column("QUEUES", least=14, most=40),
    Column("BUSY", right=True),
    Column("STAGE", styles={"running": "green", "gone": "red", "silent": "yellow"}),
    Column("BROKER", rank=1, styles={"up": "green", "lost": "red"}),
    Column("LEDGER", rank=3, styles={"up": "green"}),
    Column("RENEWED", right=True, rank=4),
    Column("STARTED", right=True, rank=5),
    Column("VERSION", rank=2, most=16),
    Column("WHY"),
)


@click.command(
    "workers",
    epilog="""\b
Columns:
  BUSY     slots with a run, and all slots
  STAGE    starting, running, quiet, draining, interrupting; silent: no renewal for more than 30 s; gone: it died
  BROKER   whether it has a connection for each of its queues; jobs go on without one
  LEDGER   whether it has renewed its leases in time
  ?        its version of SteadyWorker does not report this
\b
Examples:
  steadyworker workers --watch
  steadyworker workers --json | jq 'select(.troubles != [])'""",
)
@click.option("--all", "every", is_flag=True, help="Also those that died within a day, and that others have replaced.")
@click.option(
    "--watch",
    is_flag=True,
    help="Refresh every 2 s until Ctrl-C; if the output is not a terminal, print the list once.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print the whole text of WHY, on a line below its worker process.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per worker process.")
@settings("ledger", "namespace", "state_dir")
def command(options: Options, *, every: bool, watch: bool, verbose: bool, as_json: bool) -> None:
    """
    List the worker processes, those that need a person first.

    WHY has what a worker process needs, and the command that helps.
    Below are the paused queues, and the consumers at the broker that no worker process of this ledger explains.
    """
    if watch and as_json:
        raise click.UsageError("Expected --watch or --json, got both: run `workers --json` as often as you need it.")
    console = Console()
    with open_ledger(options) as ledger:

        def found() -> Sequence[WorkerNow]:
            listed = workers(ledger, SystemClock().wall(), every=every)
            return of_namespace(ledger, listed, options.namespace)

        if watch and console.is_terminal:
            _watch(found, lambda: notes(ledger, SystemClock().wall(), options.namespace), console, verbose=verbose)
            return
        listed, now = found(), SystemClock().wall()
        if as_json:
            for worker in listed:
                json_line(as_record(worker))
            return
        if not listed:
            click.echo(f"No worker process in {ledger.url}: start one with `steadyworker run MODULE:CLASS`.", err=True)
        elif console.is_terminal:
            print_screen(console, lines_of(listed, console.width, now, verbose=verbose))
        else:
            padded(_COLUMNS, [cells(worker, now) for worker in listed])
        for text in notes(ledger, now, options.namespace):
            echo(text, err=True)


def as_record(worker: WorkerNow) -> dict[str, Any]:
    """Return a worker process's record as `--json` prints it; a value that it does not report is null."""
    seen, report = worker.seen, worker.seen.report
    return {
        "owner": seen.owner,
        "host": seen.host,
        "pid": report.pid if report else None,
        "version": report.version if report else None,
        "started_at": instant(report.started_at) if report else None,
        "state": worker.liveness.value,
        "stage": report.stage if report else None,
        "renewed_ago": seen.seen_ago,
        "ready": report.ready if report else None,
        "not_ready": [redact(text) for text in report.not_ready] if report else None,
        "queues": {
            name: {
                "slots": queue.slots,
                "busy": queue.busy,
                "time_limit": queue.time_limit,
                "connected": queue.connected,
                "paused": queue.paused,
            }
            for name, queue in report.queues.items()
        }
        if report
        else dict.fromkeys(worker.names),
        "jobs": worker.runs,
        "troubles": [trouble.value for trouble in worker.troubles],
        "stuck": [key for _, key in worker.stuck],
        "deaths": worker.deaths,
        "findings": [{"id": each.id, "level": each.level, "text": redact(each.text)} for each in report.findings]
        if report
        else None,
    }


def lines_of(listed: Sequence[WorkerNow], width: int, now: float, *, verbose: bool) -> Iterator[Text]:
    """Yield the lines of a table of worker processes."""
    rows = [cells(worker, now) for worker in listed]
    return screen(_COLUMNS, rows, width, [row[-1] for row in rows] if verbose else ())


def cells(worker: WorkerNow, now: float) -> list[str]:
    """Return the cells of a worker process's line, in the order of the columns."""
    seen, report = worker.seen, worker.seen.report
    lives = worker.liveness is not Liveness.GONE
    slots, busy, links = "?", str(worker.runs), "?"
    if report is not None:
        all_slots = sum(queue.slots for queue in report.queues.values())
        slots = str(all_slots)
        # A job can have begun after the report, which is as old as the last renewal.
        busy = str(max(sum(queue.busy for queue in report.queues.values()), min(worker.runs, all_slots)))
        connected = all(queue.connected for queue in report.queues.values())
        links = "–" if report.starting else "up" if connected else "lost"
    return [
        seen.host,
        str(report.pid) if report is not None else "?",
        ", ".join(worker.queues.values()),
        f"{busy if lives else 0}/{slots}",
        _stage(worker),
        links if lives else "–",
        {Liveness.ALIVE: "up", Liveness.SILENT: "?", Liveness.GONE: "–"}[worker.liveness],
        ago(seen.seen_ago),
        clock_time(report.started_at if report is not None else None, now),
        report.version if report is not None else "?",
        why(worker),
    ]


def _stage(worker: WorkerNow) -> str:
    if worker.liveness is not Liveness.ALIVE:
        return worker.liveness.value
    report = worker.seen.report
    if report is None:
        return "?"
    return "starting" if report.starting else report.stage


def why(worker: WorkerNow) -> str:
    """Return the text of the column WHY: what the worker process needs, with the remedy."""
    report = worker.seen.report
    texts = [text for trouble in worker.troubles for text in trouble_clauses(worker, trouble)]
    if worker.liveness is Liveness.GONE and not worker.troubles:
        texts.append(death_clause(worker))
    queues = report.queues.items() if report is not None and worker.liveness is not Liveness.GONE else ()
    if paused := ", ".join(worker.queues.get(name, name) for name, queue in queues if queue.paused):
        texts.append(f"paused: {paused}")
    return redact("; ".join(dict.fromkeys(texts)))


def notes(ledger: Ledger, now: float, namespace: str | None = None) -> Iterator[str]:
    """Yield the texts below the table: each paused queue, and each queue with consumers that no worker process explains."""
    yield from pause_texts(ledger, now, namespace)
    yield from foreign(ledger, now, namespace)


def foreign(ledger: Ledger, now: float, namespace: str | None = None) -> Iterator[str]:
    """Yield a text for each queue with consumers at the broker that no worker process of this ledger explains."""
    owners = ledger.owners()
    for measured in ledger.facts.depths():
        if measured.age > RECENT or namespace not in (None, measured.namespace):
            continue
        if unexplained := unexplained_now(ledger, measured, owners, now, Times()):
            yield f"{measured.queue}: {foreign_clause(unexplained)}."


def _watch(
    found: Callable[[], Sequence[WorkerNow]], below: Callable[[], Iterator[str]], console: Console, *, verbose: bool
) -> None:
    def picture() -> Group:
        listed, now = found(), SystemClock().wall()
        lines = lines_of(listed, console.width, now, verbose=verbose) if listed else iter(())
        texts = [Text(printable(text)) for text in below()]
        return Group(*lines, *texts, Text("Ctrl-C ends only this view", style="dim", no_wrap=True))

    watched(picture)
