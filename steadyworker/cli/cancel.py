"""`steadyworker cancel`: end a job wherever it is, or before it comes."""

from __future__ import annotations

import click

from steadyworker.cli.settings import find_worker, settings
from steadyworker.client import Client
from steadyworker.config.resolve import Options
from steadyworker.outcome import JobState


@click.command(
    "cancel",
    epilog="""\b
Examples:
  steadyworker cancel exports:PaymentExports export-m-17 --reason "wrong month"
  steadyworker cancel payment-exports export-m-17""",
)
@click.argument("target", metavar="MODULE:CLASS|QUEUE")
@click.argument("key")
@settings("broker", "ledger", "namespace", "state_dir", "topology", "delays")
@click.option("--reason", default="by an operator", show_default=True, metavar="R", help="Why, for the dead letter.")
@click.pass_context
def command(ctx: click.Context, options: Options, *, target: str, key: str, reason: str) -> None:
    """
    Cancel a job: a run hears of it within 15 s, a job that waits is not run when it comes.

    Either becomes a dead letter.
    A job that is not known yet is cancelled in advance.
    Exit code 1 says that it had ended before.
    """
    with Client.configured(options) as client:
        before = client.cancel(find_worker(target) if ":" in target else target, key, reason)
    match before:
        case None:
            click.echo(f"{key} is not known yet: it will not run when it comes.")
        case JobState.DONE | JobState.CANCELLED | JobState.DEAD:
            click.echo(f"{key} is {before} already: nothing was cancelled.", err=True)
            ctx.exit(1)
        case JobState.RUNNING:
            click.echo(f"{key} is running: it hears of it within 15 s.")
        case _:
            click.echo(f"{key} is {before}: it will not run again.")
