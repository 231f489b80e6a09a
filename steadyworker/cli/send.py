"""`steadyworker send`: sends one job from the command line, or many jobs from a file."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from steadyworker import payload as payloads
from steadyworker.backends.connections import JobQueue, job_queue
from steadyworker.cli.output import json_line
from steadyworker.cli.settings import client_settings
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import queue_argument, worker_or_queue
from steadyworker.client import Client, NewJob, message
from steadyworker.config.resolve import Options
from steadyworker.delivery import KEY
from steadyworker.errors import BadPayload, SendError, SteadyWorkerError, delay_in_seconds
from steadyworker.worker import Worker

_FIELDS = "a JSON object with a payload, and if needed key, delay, headers and again"

To = type[Worker[Any, Any]] | str


class _JobToSend(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One line of a jobs file."""

    payload: msgspec.Raw
    key: str | None = None
    delay: float | str = 0.0
    headers: dict[str, str] = {}
    again: bool = False


@dataclass(frozen=True, slots=True)
class _FileLine:
    """A checked job with its key, and the number of its line in the file; 0 without a file."""

    number: int
    job: NewJob[Any]


def _seconds(_ctx: click.Context, _option: click.Parameter, text: str) -> float:
    try:
        return delay_in_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    "send",
    epilog="""\b
Examples:
  steadyworker send exports:PaymentExports '{"merchant": "m-17"}' --key export-m-17-2024-06
  steadyworker send payment-exports '{"merchant": "m-17"}' --delay 300     # by queue name: needs no code
  steadyworker send exports:PaymentExports - < payload.json
  steadyworker send scans --raw - < scan.pdf                    # the bytes as they are, instead of JSON
  steadyworker send exports:PaymentExports --file jobs.jsonl
\b
A line of jobs.jsonl:
  {"payload": {"merchant": "m-17"}, "key": "export-m-17", "delay": 60, "headers": {"tenant": "north"}}""",
)
@queue_argument
@click.argument("payload", required=False)
@client_settings
@click.option(
    "--key", metavar="K", help="Identify this piece of work: a second message with the same key does not run."
)
@click.option(
    "--delay",
    default="0",
    callback=_seconds,
    metavar="S",
    help="Start S seconds from now, or later; S can be a text like 90s or 1h 30m.",
)
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header for the handler; can be repeated."
)
@click.option("--raw", is_flag=True, help="Send the bytes of PAYLOAD as they are, instead of JSON.")
@click.option("--again", is_flag=True, help="Run the job even if its key has run before.")
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send the jobs in this file, one JSON object per line; checks every line before it sends the first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per job, instead of its key.")
def command(
    options: Options,
    *,
    target: str,
    payload: str | None,
    key: str | None,
    delay: float,
    headers: tuple[str, ...],
    raw: bool,
    again: bool,
    file: Path | None,
    as_json: bool,
) -> None:
    """
    Send a job to a Worker or a queue, and print its key once the broker has confirmed it.

    PAYLOAD is JSON that matches the Worker's payload type; - reads it from standard input.
    If the broker does not confirm every job of a file, the error names the lines to send again.
    """
    if (payload is None) == (file is None):
        got = "neither" if file is None else "both"
        raise click.UsageError(f"Expected either PAYLOAD or --file, got {got}.")
    to: To = worker_or_queue(target)
    queue = job_queue(to, options)
    if raw:
        queue = _raw(queue)
    if file is None:
        body = sys.stdin.buffer.read() if payload == "-" else os.fsencode(payload or "")
        wish = _JobToSend(payload=msgspec.Raw(body), key=key, delay=delay, headers=_headers(headers), again=again)
        jobs = [_checked(0, wish, body, queue)]
    elif key is not None or delay or headers or again or raw:
        raise click.UsageError(
            "Expected no --key, --delay, --header, --again or --raw together with --file: write them into the lines of the file."
        )
    else:
        jobs = list(_read(file, queue))
        if not jobs:
            echo(f"{file} has no job: nothing was sent.", err=True)
    try:
        with Client.configured(options) as client:
            if file is None:
                _send(client, to, jobs[0].job)
            else:
                client.send_many(to, [line.job for line in jobs])
    except SendError as error:
        if file is None:
            raise
        confirmed = {*error.confirmed}
        _print([line for line in jobs if line.job.key in confirmed], as_json=as_json)
        missing = _ranges([line.number for line in jobs if line.job.key not in confirmed])
        raise SendError(f"{file}: {error} These lines were not confirmed: {missing}.") from error
    except (ValueError, TypeError) as error:
        raise BadPayload(str(error)) from error
    _print(jobs, as_json=as_json)


def _send(client: Client, to: To, job: NewJob[Any]) -> None:
    client.send(to, job.payload, key=job.key, delay=job.delay, headers=job.headers, again=job.again)


def _print(lines: Sequence[_FileLine], *, as_json: bool) -> None:
    for line in lines:
        if as_json:
            json_line({"key": line.job.key, "line": line.number or None})
        else:
            echo(line.job.key or "")


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, such as `3, 7-12`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ", ".join("-".join(map(str, each)) for each in ranges)


def _raw(queue: JobQueue) -> JobQueue:
    """Return the queue for a body that is not JSON; a Worker of another type would refuse the body."""
    if queue.payload_type not in (Any, bytes):
        raise click.UsageError(
            f"Expected --raw with the name of a queue, or with a Worker whose payload is bytes, got {queue.name!r} of "
            f"{getattr(queue.payload_type, '__name__', queue.payload_type)}: leave --raw out."
        )
    return replace(queue, payload_type=bytes)


def _read(file: Path, queue: JobQueue) -> Iterator[_FileLine]:
    """
    Yield each line's job.

    Raises BadPayload with the number of the first line that is wrong.
    """
    seen: dict[str, int] = {}
    with file.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            if not text.strip():
                continue
            try:
                wish = msgspec.json.decode(text.removeprefix(codecs.BOM_UTF8), type=_JobToSend)
                line = _checked(number, wish, bytes(wish.payload), queue)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise BadPayload(f"{file}:{number}: Expected {_FIELDS}, got: {error}. Nothing was sent.") from error
            except SteadyWorkerError as error:
                problem = str(error).removesuffix(".")
                raise BadPayload(f"{file}:{number}: {problem}. Nothing was sent.") from error
            if wish.key is not None and (first := seen.setdefault(wish.key, number)) != number:
                raise BadPayload(
                    f"{file}:{number}: Expected a key that no other line has, got {wish.key!r} as in line {first}: "
                    "give each job its own key, or the second does not run. Nothing was sent."
                )
            yield line


def _checked(number: int, wish: _JobToSend, body: bytes, queue: JobQueue) -> _FileLine:
    """Check every value of the job, and return the job with its key."""
    try:
        value: object = body if queue.payload_type is bytes else payloads.decoder(Any)(body)
        checked = message(queue, value, key=wish.key, delay=wish.delay, headers=wish.headers)
    except BadPayload as error:
        raise BadPayload(
            f"Expected a payload that matches queue {queue.name!r}, got one that does not: {error}."
        ) from error
    except (ValueError, TypeError) as error:
        raise BadPayload(str(error)) from error
    return _FileLine(number, NewJob(value, checked.headers[KEY], wish.delay, wish.headers, wish.again))


def _headers(pairs: tuple[str, ...]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    for pair, (_, equals, _) in zip(pairs, split, strict=True):
        if not equals or pair.startswith("="):
            raise click.UsageError(f"Expected --header NAME=VALUE, got {pair!r}.")
    return {name: value for name, _, value in split}
