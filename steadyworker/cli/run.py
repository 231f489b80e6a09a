"""`steadyworker run`: runs a worker process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import click

from steadyworker.cli.flags import CommandWithSettings, every_setting
from steadyworker.cli.targets import find_worker, worker_arguments
from steadyworker.config import resolve
from steadyworker.config.options import PREFIX
from steadyworker.errors import ConfigError
from steadyworker.lifecycle import EX_CONFIG, EX_OK
from steadyworker.service.launch import launch
from steadyworker.service.reload import Reload
from steadyworker.telemetry import logs
from steadyworker.telemetry.printed_lines import log_prints

_OF_THE_LOG = ("log_format", "log_level")


@click.command(
    "run",
    cls=CommandWithSettings,
    epilog="""\b
Examples:
  steadyworker run exports:PaymentExports
  steadyworker run exports:PaymentExports exports:Refunds --health 8080
  steadyworker run exports:PaymentExports --concurrency 4 --stop-within 2h --broker sqlite:queues.db
  steadyworker run exports.py:PaymentExports --reload
\b
Signals:
  TERM, INT, HUP   stop: receive no new message; jobs may finish until 13 s before the end of --stop-within
  a second one     interrupt the jobs at once; a third one kills them
  USR1             receive no new message
  USR2             receive messages again
\b
Exit codes:
  0    every job ended, or stopped when it was asked to; or --max-jobs or --idle-exit was reached
  143  a job had to be killed, or a second signal came
  69   the broker was unreachable for longer than --give-up-after
  70   an internal error, or `setup` failed three times in a row
  75   --max-rss was reached
  78   an invalid setting, a failed check or a refused login:
       do not restart (systemd: RestartPreventExitStatus=78)""",
)
@worker_arguments
@click.option(
    "--reload", is_flag=True, help="For development: start again when a Python file below this folder changes."
)
@click.option(
    "--inline",
    is_flag=True,
    help="For development: run one job at a time in this process, without time limits, so that breakpoint() works.",
)
@every_setting
@click.pass_context
def command(
    ctx: click.Context, /, arguments: dict[str, Any], *, targets: tuple[str, ...], reload: bool, inline: bool
) -> None:
    """
    Run Workers in one process until a signal stops it; each Worker has its own slots.

    Before the first message, `run` makes the checks of `steadyworker check`.
    Each option can also be an environment variable (STEADYWORKER_STOP_WITHIN) or a line of steadyworker.toml.
    For secrets, add -file to an option (--broker-file), and name a file that holds the value.
    """
    config = arguments.pop("config", None)
    # This comes before the import of the Worker, because the error of that import would hide that this folder was deleted.
    here = Path.cwd()
    watch = Reload(here) if reload else None
    try:
        with nullcontext() if inline else _prints_as_lines(arguments, config):
            workers = [find_worker(target) for target in targets]
        code = launch(workers, arguments, config, inline=inline, reload=watch)
    except ConfigError as error:
        if watch is None:
            raise
        click.echo(f"error: {error}\nWaiting for a change below {here}.", err=True)
        watch.wait()
        code = EX_OK
    if watch is not None and code == EX_CONFIG:
        watch.wait()
    if watch is not None and watch.changed is not None and code in (EX_OK, EX_CONFIG):
        watch.execute_again()
    ctx.exit(code)


@contextmanager
def _prints_as_lines(arguments: dict[str, Any], config: Path | None) -> Iterator[None]:
    """
    Let what a module prints during its import be lines of the log; a wrong setting is reported later.

    This reads only the settings of the log, because the file of another setting can be a pipe, which only one reader can read.
    """
    given = {name: value for name, value in arguments.items() if name in _OF_THE_LOG}
    named = {f"{PREFIX}{name.upper()}" for name in (*_OF_THE_LOG, "config")}
    environ = {name: value for name, value in os.environ.items() if name in named or not name.startswith(PREFIX)}
    format = "pretty"  # with which nothing changes
    if config is None or config.is_file():
        with suppress(ConfigError):
            options = resolve.load(given, environ, Path.cwd(), config)
            logs.configure(options.log_format, options.log_level)
            format = options.log_format
    give_back = log_prints(format)
    try:
        yield
    finally:
        give_back()
