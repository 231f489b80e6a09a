"""`steadyworker top`: shows the tables of jobs, queues and worker processes in a terminal."""

from __future__ import annotations

import sys
from functools import partial

import click
from rich.console import Console

from steadyworker.backends.opening import open_ledger
from steadyworker.cli.output import instant, json_line
from steadyworker.cli.settings import client_settings
from steadyworker.cli.streams import echo
from steadyworker.clock import SystemClock
from steadyworker.config.resolve import Options
from steadyworker.dashboard.reader import Reader
from steadyworker.dashboard.top.tables import Tab, TopTable, read_table
from steadyworker.errors import ConfigError

_WIDE = 400
"""The width of the tables where the output is not a terminal."""


@click.command(
    "top",
    epilog="""\b
Examples:
  steadyworker top
  steadyworker top --allow-actions --ledger postgresql://jobs@db.example/jobs
  steadyworker top --json | jq '.running[] | select(.need != null) | .key'
\b
The key ? shows all keys.""",
)
@click.option("--once", is_flag=True, help="Print the tables, and end; this needs no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print the tables as one JSON object, and end.")
@click.option("--allow-actions", is_flag=True, help="Cancel and retry jobs, and pause queues; each action asks first.")
@client_settings
def command(options: Options, *, once: bool, as_json: bool, allow_actions: bool) -> None:
    """
    Show what runs, the queues, the worker processes, the failures and the actions of people, refreshed every 2 s.

    Each table has at most 200 rows, those that need a person first.
    While the ledger does not respond, the last known rows stay, with their age.
    """
    if once and as_json:
        raise click.UsageError("Expected --once or --json, got both.")
    ledger = open_ledger(options)
    reader = Reader(ledger, SystemClock())
    if once or as_json:
        try:
            _print(reader, options.namespace, as_json=as_json)
        finally:
            ledger.close()
        return
    if not is_terminal():
        raise click.UsageError("Expected a terminal, got none: add --once or --json.")
    try:
        from steadyworker.dashboard.top.view import TopApp
    except ImportError as error:
        raise ConfigError(
            f"Expected textual for the view, got: {error}: pip install 'steadyworker[top]', or add --once."
        ) from error
    app = TopApp(reader, options, allow_actions=allow_actions)
    app.run()
    if (acting := app.tables.acting) is not None:  # Ctrl-C in the middle of an action: the log of actions needs its end
        acting.join()
    if not app.tables.reading:  # a ledger that does not respond must not hold up the end
        ledger.close()


def is_terminal() -> bool:
    """Return whether a person sits at this terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _print(reader: Reader, namespace: str | None, *, as_json: bool) -> None:
    read = partial(read_table, namespace=namespace, few_dead=not as_json)
    tables = [reader.page(tab, partial(read, tab=tab)).content for tab in Tab]
    if as_json:
        more = [table.tab.value for table in tables if table.more]
        head = {"at": instant(reader.now()), "ledger": reader.url, "more": more}
        json_line({**head, **{table.tab.value: table.records() for table in tables}})
        return
    console = Console()
    width = console.width if console.is_terminal else _WIDE
    for table in tables:
        _print_table(console, table, width)


def _print_table(console: Console, table: TopTable, width: int) -> None:
    echo(f"{table.tab.value.upper()}: {table.headline}")
    for line in table.lines(width):
        console.print(line, no_wrap=True, soft_wrap=True, highlight=False)
    for note in table.notes:
        echo(note)
    echo("")
