"""`steadyworker exec`: runs any program as a job."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import Any

import click

from steadyworker.cli.flags import CommandWithSettings, every_setting
from steadyworker.errors import ConfigError
from steadyworker.programs.command import VARIABLE, Command, check_command, encoded
from steadyworker.programs.worker import Program
from steadyworker.service.launch import launch


@click.command(
    "exec",
    cls=CommandWithSettings,
    epilog="""\b
Examples:
  steadyworker exec --queue backups --time-limit 2h -- pg_dump --file /backups/{key}.sql -- {payload.database}
  steadyworker exec --queue transcodes --time-limit 6h -- ffmpeg -nostdin -y -i {payload.source} /films/{key}.mp4
  steadyworker exec --queue mails --time-limit 60 --exit-codes rabbitmq-cli-consumer -- php mail.php {payload.base64}
\b
Placeholders in the arguments:
  {payload}         the message's body
  {payload.NAME}    a field of a JSON object
  {payload.base64}  the body in base64
  {file}            the path of a file that holds the body
  {key}             the job's key
Without a placeholder for the body, the program reads the body from standard input.
A value that begins with - makes its message a dead letter if it begins an argument, except directly after --.
Other placeholders may stand between: -- {payload.from} {payload.to}, but not -- PROGRAM {payload}, as behind env or kubectl.
\b
Environment: SW_JOB_KEY, SW_QUEUE, SW_ATTEMPT, SW_FENCE, SW_DEADLINE, SW_REDELIVERED, SW_CHECKPOINT, SW_META (a JSON file)
Descriptor 3: a line `progress [DONE [TOTAL [NOTE]]]` or `checkpoint JSON`
\b
Exit codes of the program:
  0                  the job is done
  64, 65, 66         the job becomes a dead letter
  77, 78, 126, 127   this host cannot run the program: the job goes back, and exec ends with 78
  79                 the program stopped early, after SIGTERM
  any other          the attempt failed; the job is tried again
  killed by a signal the job crashed
\b
A stop, a cancel and the time limit send SIGTERM to the program's process group, and later SIGKILL.
The signals and exit codes of exec are those of `steadyworker run`.""",
)
@click.option("--queue", required=True, help="The queue whose messages are the jobs.")
@click.option(
    "--time-limit",
    metavar="TIME",
    required=True,
    help='The longest time of one run, such as 90 or 6h; "none": no limit.',
)
@click.option("--stall-limit", metavar="TIME", help="End a run that reports no progress for this time.")
@click.option("--memory-limit", metavar="SIZE", help="The memory for one job's processes, such as 2GiB.")
@click.option(
    "--max-attempts", type=int, help="Failed attempts after which the job becomes a dead letter. [default: 5]"
)
@click.option("--dead-letter-queue", metavar="QUEUE", help="The queue for dead letters. [default: QUEUE.dead]")
@click.option("--key-header", metavar="NAME", help="The header that holds the job's key, if the sender sets its own.")
@click.option("--unkeyed", metavar="generate|reject", help="The action on a message without a key. [default: generate]")
@click.option(
    "--exit-codes",
    type=click.Choice(["sysexits", "rabbitmq-cli-consumer"]),
    default="sysexits",
    help="rabbitmq-cli-consumer: 0 done; 3 and 5 dead letter; any other: tried again.",
)
@click.option("--allow-options", is_flag=True, help="Let a message's values be options of the program.")
@click.argument("arguments", metavar="-- PROGRAM [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED)
@every_setting
@click.pass_context
def command(ctx: click.Context, /, settings: dict[str, Any], *, arguments: tuple[str, ...], **given: Any) -> None:
    """
    Run a program for each message of a queue, with the guarantees of a Worker.

    Each option of `steadyworker run` is an option of exec, too.
    """
    check_command(arguments)
    if shutil.which(arguments[0]) is None:
        raise ConfigError(
            f"Expected a program that this host can run, got {arguments[0]!r}: install it, or name its path; PATH is {os.environ.get('PATH', '')!r}.",
            id="config.command",
        )
    os.environ[VARIABLE] = encoded(Command(arguments, given.pop("exit_codes"), given.pop("allow_options")))
    config = settings.pop("config", None)
    limit = given.pop("time_limit")
    Program.time_limit = None if limit == "none" else limit
    if (most := given.pop("max_attempts")) is not None:
        Program.retry = replace(Program.retry, max_attempts=most)
    for name, value in given.items():
        if value is not None:
            setattr(Program, name, value)
    ctx.exit(launch([Program], settings, config))
