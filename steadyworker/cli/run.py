"""
`steadyworker run`: a worker process.

Its start is mostly imports, here and in the children: so the first child is started before the rest is imported.
"""

from __future__ import annotations

from typing import Any

import click

from steadyworker.cli.flags import every_setting
from steadyworker.slots.spare import Spare


@click.command(
    "run",
    epilog="""\b
Examples:
  steadyworker run exports:PaymentExports
  steadyworker run exports:PaymentExports exports:Refunds --health 8080
  steadyworker run exports:PaymentExports --concurrency 4 --stop-within 2h --broker sqlite:queues.db
\b
Signals:
  TERM, INT, HUP   stop: no new message, jobs may finish until 13 s before --stop-within is over
  a second one     interrupt the jobs at once; a third one kills them
  USR1, USR2       take no new message; take messages again
\b
Exit codes:
  0    every job ended or gave back by itself; --max-jobs or --idle-exit was reached
  143  a job had to be killed, or a second signal came
  69   the broker was away for --give-up-after      75  --max-rss was reached
  70   our own fault                                78  a setting, a check or a refused login:
                                                        do not restart (systemd: RestartPreventExitStatus=78)""",
)
@click.argument("targets", metavar="MODULE:CLASS...", nargs=-1, required=True)
@every_setting
@click.pass_context
def command(ctx: click.Context, arguments: dict[str, Any], *, targets: tuple[str, ...]) -> None:
    """
    Run Workers in one process until it is told to stop; each has slots of its own.

    Before the first message it makes the checks of `steadyworker check`.
    Each option may also be a variable (STEADYWORKER_STOP_WITHIN), a line of steadyworker.toml, or, for secrets, the
    name of a file that holds the value (--broker-file).
    """
    config = arguments.pop("config", None)
    with Spare() as spare:
        from steadyworker.cli.settings import find_worker
        from steadyworker.service.launch import launch

        code = launch([find_worker(target) for target in targets], arguments, config, spare=spare)
    ctx.exit(code)
