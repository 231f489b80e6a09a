"""`steadyworker actions`: lists what people have done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import click
from rich.text import Text

from steadyworker.cli.moment import moment
from steadyworker.cli.output import Column, instant, json_line, screen, table
from steadyworker.cli.settings import open_ledger, settings
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import ledger_key
from steadyworker.config.resolve import Options
from steadyworker.ledger.facts import Action
from steadyworker.text.redaction import redact

_MOST = 1 << 31
_SHOWN = 3
_COLUMNS = (
    Column("WHEN"),
    Column("WHO", least=10, most=30),
    Column("WHAT"),
    Column("QUEUE", least=8, most=30),
    Column("JOBS", right=True, rank=1),
    Column("KEYS", least=10, most=40),
    Column("DETAIL"),
)


@click.command(
    "actions",
    epilog="""\b
Examples:
  steadyworker actions --since yesterday
  steadyworker actions --key export-m-17
  steadyworker actions --json | jq -r 'select(.what == "purge") | .who'""",
)
@click.option(
    "--since", callback=moment, metavar="WHEN", help="Only actions since then: today, yesterday, 2h, 2026-01-31."
)
@click.option("--queue", metavar="NAME", help="Only actions on this queue.")
@click.option(
    "--key",
    callback=ledger_key,
    metavar="KEY",
    help="Only actions that name this key; an action on many jobs names 20 of them.",
)
@click.option(
    "--limit", type=click.IntRange(1, _MOST), default=50, show_default=True, metavar="N", help="Only the newest N."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per action.")
@settings("ledger", "namespace", "state_dir")
def command(
    options: Options, *, since: float | None, queue: str | None, key: str | None, limit: int, as_json: bool
) -> None:
    """
    List what people have done, newest first: cancel, retry, reschedule, replay, drop, pause, resume, purge.

    The ledger keeps this log for 90 days.
    """
    with open_ledger(options) as ledger:
        found = ledger.facts.actions(since, options.namespace, queue, key, limit)
        if as_json:
            for action in found:
                json_line(as_record(action))
        elif found:
            table(_COLUMNS, [cells(action) for action in found])
        else:
            echo(f"No matching actions in {ledger.url}.", err=True)


def as_record(action: Action) -> dict[str, Any]:
    """Return an action's record as `--json` prints it."""
    return {
        "at": instant(action.at),
        "who": action.who,
        "what": action.what,
        "namespace": action.namespace,
        "queue": action.queue,
        "keys": list(action.keys),
        "count": action.count,
        "detail": redact(action.detail),
    }


def lines_of(found: Sequence[Action], width: int) -> Iterator[Text]:
    """Yield the lines of a table of actions for a terminal of this width."""
    return screen(_COLUMNS, [cells(action) for action in found], width)


def cells(action: Action) -> list[str]:
    """Return the cells of an action's line, in the order of the columns."""
    named = list(islice(action.keys, _SHOWN))
    more = action.count - len(named)
    keys = " ".join([*named, *([f"+{more:,}"] if named and more > 0 else [])])
    count = f"{action.count:,}" if action.count else "–"
    return [instant(action.at) or "–", action.who, action.what, action.queue, count, keys, redact(action.detail)]
