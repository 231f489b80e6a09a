"""`steadyworker show`: the story of one job."""

from __future__ import annotations

import shlex
import sys

import click
from rich.console import Console

from steadyworker.backends.connections import job_queue
from steadyworker.cli.output import json_line
from steadyworker.cli.paused import pause_texts
from steadyworker.cli.settings import open_ledger, settings
from steadyworker.cli.story_lines import story_lines, story_record
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import key_argument, queue_argument, worker_or_queue
from steadyworker.clock import SystemClock
from steadyworker.config.resolve import Options
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.listing import Listing, Wanted
from steadyworker.ledger.story import story

_UNWRAPPED = sys.maxsize


@click.command(
    "show",
    epilog="""\b
Examples:
  steadyworker show exports:PaymentExports export-m-17
  steadyworker show payment-exports export-m-17 --json | jq '.story[] | select(.kind == "ended")'""",
)
@queue_argument
@key_argument
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print the traceback of each run, not only the last, and a long result as a whole.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@settings("ledger", "namespace", "state_dir")
@click.pass_context
def command(ctx: click.Context, options: Options, *, target: str, key: str, verbose: bool, as_json: bool) -> None:
    """
    Show the story of one job: its state, what it needs, its result, its runs, and what people did.

    The story has the last 20 runs of each round, and the events of the connection within the last day.
    The ledger keeps these runs as long as the job.
    Exit code 1 means that the ledger has no such job.
    """
    queue = job_queue(worker_or_queue(target), options).name
    with open_ledger(options) as ledger:
        if not print_story(ledger, Wanted(options.namespace, queue, (key,)), verbose=verbose, as_json=as_json):
            echo(
                f"{key} is not in {ledger.url}: no worker has received it, or its time there is over; "
                f"`steadyworker find {shlex.quote(target)} {shlex.quote(key)}` searches the queue.",
                err=True,
            )
            ctx.exit(1)


def print_story(ledger: Ledger, wanted: Wanted, *, verbose: bool, as_json: bool) -> bool:
    """Print the story of the only wanted key, in each namespace that has it; return False if the ledger does not have it."""
    now = SystemClock().wall()
    console = Console()
    width = console.width if console.is_terminal else _UNWRAPPED
    found = False
    for job in Listing(ledger, wanted, now).jobs():
        id = job.row.id
        if id.round != ledger.last_round(id.namespace, id.queue, id.key):
            continue
        if found and not as_json:
            click.echo()
        found = True
        entries = story(ledger, id.namespace, id.queue, id.key)
        result = ledger.facts.result(id)
        if as_json:
            json_line(story_record(job, entries, now, result))
        else:
            for line in story_lines(job, entries, now, width, result, verbose=verbose):
                click.echo(line)
            for text in pause_texts(ledger, now, id.namespace, id.queue):
                echo(text, err=True)
    return found
