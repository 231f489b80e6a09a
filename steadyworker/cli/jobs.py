"""`steadyworker jobs`: lists or watches the jobs in the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain, islice

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from steadyworker.backends.connections import job_queue
from steadyworker.cli.completion import complete_target
from steadyworker.cli.job_lines import COLUMNS, as_record, cells, lines_of
from steadyworker.cli.moment import moment
from steadyworker.cli.output import json_lines, padded, print_screen
from steadyworker.cli.paused import pause_texts
from steadyworker.cli.settings import open_ledger, settings
from steadyworker.cli.show import print_story
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import keys_argument, worker_or_queue
from steadyworker.clock import SystemClock
from steadyworker.config.resolve import Options
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.listing import STATES, ListedJob, Listing, Wanted
from steadyworker.outcome import JobState
from steadyworker.text.plain_text import printable
from steadyworker.units import count_text

_REFRESH = 2.0
_MOST = 1 << 31
_COUNTED = 2000
"""The number of jobs beyond which the footer only shows that there are more, because to count a million jobs takes seconds."""


@click.command(
    "jobs",
    epilog="""\b
States:
  running      a worker process runs it
  silent       … but has not renewed its lease for this long: frozen, or cut off from the ledger
  gone         … but is dead, or has not renewed its lease for 90 s: another takes the job over
  interrupted  a stop ended its run; it waits for a message
  retrying     a run failed; the job runs again after a delay
  scheduled    the handler raised Snooze; the job runs again after that delay
  done         the handler returned
  cancelled    it was cancelled; its message is in the dead-letter queue
  dead         it failed for good; its message is in the dead-letter queue (see `steadyworker dead`)
  cancel-waiting
               it was cancelled before its first message; listed only with its key or --state cancel-waiting
\b
Examples:
  steadyworker jobs --watch
  steadyworker jobs payment-exports export-m-17 -v
  steadyworker jobs exports:PaymentExports --state dead --state cancelled --since yesterday
  steadyworker jobs --overdue --json | jq -r .key      # for an alert: prints nothing if no job is overdue""",
)
@click.argument("target", metavar="[MODULE:CLASS|QUEUE]", required=False, shell_complete=complete_target)
@keys_argument
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in STATES]),
    help="Only this state; can be given several times.",
)
@click.option(
    "--since",
    callback=moment,
    metavar="TIME",
    help="Only jobs that ended, started or were recorded since then: today, yesterday, 2h, 2026-01-31, 2026-01-31T09:30.",
)
@click.option("--grep", metavar="TEXT", help="Only jobs with this text in key, reason, error or note.")
@click.option(
    "--overdue",
    is_flag=True,
    help="Only jobs that need an operator: their retry is more than an hour late, "
    "the lease of their worker ended more than an hour ago, or their message is lost and no worker starts them by itself.",
)
@click.option(
    "--limit",
    type=click.IntRange(0, _MOST),
    default=50,
    show_default=True,
    metavar="N",
    help="Only the first N; 0 for all.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print the whole text of WHY, on a line below its job.")
@click.option(
    "--watch",
    is_flag=True,
    help="Refresh every 2 s until Ctrl-C; if the output is not a terminal, print the list once.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per job.")
@settings("ledger", "namespace", "state_dir")
def command(
    options: Options,
    *,
    target: str | None,
    keys: tuple[str, ...],
    states: tuple[str, ...],
    since: float | None,
    grep: str | None,
    overdue: bool,
    limit: int,
    verbose: bool,
    watch: bool,
    as_json: bool,
) -> None:
    """
    List jobs: first those that need a person, then running ones, a few dead ones of each reason, and the rest, newest first.

    WHY has the reason of the state, and the command that helps.
    With one KEY, show the story of this job, as `steadyworker show` does.
    """
    if watch and as_json:
        raise click.UsageError("Expected --watch or --json, got both: run `jobs --json` as often as you need it.")
    wanted = Wanted(
        options.namespace,
        None if target is None else job_queue(worker_or_queue(target), options).name,
        keys or None,
        frozenset(map(JobState, states)) or None,
        since,
        grep,
        overdue,
    )
    with open_ledger(options) as ledger:
        console = Console()
        if as_json:
            now = SystemClock().wall()
            listed = islice(Listing(ledger, wanted, now).jobs(), limit or None)
            json_lines(as_record(job, now) for job in listed)
        elif wanted.keys is not None and len(wanted.keys) == 1:
            if not print_story(ledger, wanted, verbose=verbose, as_json=False):
                click.echo(f"No matching jobs in {ledger.url}.", err=True)
        elif watch and console.is_terminal:
            _watch(ledger, wanted, limit, console, verbose=verbose)
        else:
            _print(ledger, wanted, limit, console, verbose=verbose)


def _print(ledger: Ledger, wanted: Wanted, limit: int, console: Console, *, verbose: bool) -> None:
    now = SystemClock().wall()
    listing = _listing(ledger, wanted, now, limit)
    jobs = listing.jobs()
    first = list(islice(jobs, limit or (None if console.is_terminal else 1)))
    if not first:
        click.echo(f"No matching jobs in {ledger.url}.", err=True)
    elif console.is_terminal:
        print_screen(console, lines_of(first, console.width, now, verbose=verbose))
    else:
        padded(COLUMNS, (cells(job, now) for job in (first if limit else chain(first, jobs))))
    if footer := _footer(len(first), jobs, listing):
        click.echo(footer, err=True)
    for text in pause_texts(ledger, now, wanted.namespace, wanted.queue):
        echo(text, err=True)


def _listing(ledger: Ledger, wanted: Wanted, now: float, limit: int) -> Listing:
    """Return the listing of a command without --json: if nothing narrows it, a few dead jobs stand for all of one reason."""
    narrow = wanted.states, wanted.since, wanted.grep, wanted.keys
    return Listing(ledger, wanted, now, few_dead=bool(limit) and not wanted.overdue and narrow == (None,) * len(narrow))


def _footer(shown: int, rest: Iterator[ListedJob], listing: Listing) -> str:
    """Return how many jobs the listing has left out, or an empty text."""
    more = sum(1 for _ in islice(rest, _COUNTED + 1))
    parts = []
    if more:
        count = f"{shown + more:,}" if more <= _COUNTED else f"more than {shown + _COUNTED:,}"
        parts.append(f"{shown:,} of {count}; --limit 0 for all")
    if listing.left_out:
        alike = count_text(listing.left_out, "more dead job")
        parts.append(f"{alike} with the same reasons or older; --state dead for all")
    return "; ".join(parts)


def _watch(ledger: Ledger, wanted: Wanted, limit: int, console: Console, *, verbose: bool) -> None:
    """
    Show the jobs until Ctrl-C.

    This function reads the ledger again and again, but never writes to it.
    """

    def picture() -> Group:
        now = SystemClock().wall()
        listing = _listing(ledger, wanted, now, limit)
        jobs = listing.jobs()
        texts = pause_texts(ledger, now, wanted.namespace, wanted.queue)
        paused = [Text(printable(text), no_wrap=True) for text in texts]
        shown = list(islice(jobs, min(limit or _MOST, max(1, console.height - 3 - len(paused)))))
        lines = lines_of(shown, console.width, now, verbose=verbose, bar=True) if shown else iter(())
        footer = _footer(len(shown), jobs, listing) or f"all jobs in {ledger.url}"
        return Group(*lines, *paused, Text(f"{footer}; Ctrl-C ends only this view", style="dim", no_wrap=True))

    watched(picture)


def watched(picture: Callable[[], Group]) -> None:
    """Show a screen, and refresh it until Ctrl-C."""
    try:
        with Live(picture(), auto_refresh=False) as live:
            while True:
                time.sleep(_REFRESH)
                live.update(picture(), refresh=True)
    except KeyboardInterrupt:
        return
