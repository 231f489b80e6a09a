"""`steadyworker send`: one job from the command line, or many from a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from steadyworker import payload as payloads
from steadyworker.backends.connections import Line, line_of
from steadyworker.cli.output import json_line
from steadyworker.cli.settings import find_worker, settings
from steadyworker.client import Client, message
from steadyworker.config.resolve import Options
from steadyworker.errors import BadPayload, SendError, SteadyWorkerError
from steadyworker.worker import Worker

To = type[Worker[Any, Any]] | str


class _Line(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One line of a jobs file."""

    payload: msgspec.Raw
    key: str | None = None
    delay: float = 0.0
    headers: dict[str, str] = {}
    again: bool = False


@click.command(
    "send",
    epilog="""\b
Examples:
  steadyworker send exports:PaymentExports '{"merchant": "m-17"}' --key export-m-17-2024-06
  steadyworker send payment-exports '{"merchant": "m-17"}' --delay 300     # by the queue's name: no code needed
  steadyworker send exports:PaymentExports - < payload.json
  steadyworker send exports:PaymentExports --file jobs.jsonl
\b
A line of jobs.jsonl:
  {"payload": {"merchant": "m-17"}, "key": "export-m-17", "delay": 60, "headers": {"tenant": "north"}}""",
)
@click.argument("target", metavar="MODULE:CLASS|QUEUE")
@click.argument("payload", required=False)
@settings("broker", "ledger", "namespace", "state_dir", "topology", "delays")
@click.option("--key", metavar="K", help="Name this piece of work: a second message with its name does not run.")
@click.option("--delay", type=click.FloatRange(min=0), default=0.0, metavar="S", help="Start no earlier than in S s.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="For the handler; may be repeated.")
@click.option("--again", is_flag=True, help="Run it even if this key was run before.")
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Jobs, one JSON object a line; all lines are checked before the first is sent.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per job and line, instead of its key.")
def command(
    options: Options,
    *,
    target: str,
    payload: str | None,
    key: str | None,
    delay: float,
    headers: tuple[str, ...],
    again: bool,
    file: Path | None,
    as_json: bool,
) -> None:
    """
    Send a job to a Worker or a queue, and print its key once the broker has confirmed it.

    PAYLOAD is JSON, checked against the Worker's payload type; - reads it from standard input.
    """
    if (payload is None) == (file is None):
        raise click.UsageError("Expected a payload or --file, and not both.")
    to: To = find_worker(target) if ":" in target else target
    line = line_of(to, options)
    if file is None:
        body = sys.stdin.buffer.read() if payload == "-" else (payload or "").encode()
        wish = _Line(payload=msgspec.Raw(body), key=key, delay=delay, headers=_headers(headers), again=again)
        jobs = [(0, _checked(wish, body, line), wish)]
    elif key is not None or delay or headers or again:
        raise click.UsageError("Expected key, delay, headers and again in the lines of the file, not beside --file.")
    else:
        jobs = list(_read(file, line))
    with Client.configured(options) as client:
        for number, value, wish in jobs:
            sent = _send(client, to, value, wish, f"{file}:{number}: " if file else "")
            if as_json:
                json_line({"key": sent, "line": number or None})
            else:
                click.echo(sent)


def _send(client: Client, to: To, value: object, wish: _Line, where: str) -> str:
    try:
        return client.send(to, value, key=wish.key, delay=wish.delay, headers=wish.headers, again=wish.again)
    except SendError as error:
        rest = "The lines before it are sent; those after it are not." if where else ""
        raise SendError(f"{where}{error} {rest}".rstrip()) from error


def _read(file: Path, line: Line) -> Iterator[tuple[int, object, _Line]]:
    """Every line's number, payload and the rest; raises BadPayload with the number of the first one that is wrong."""
    seen: dict[str, int] = {}
    with file.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            if not text.strip():
                continue
            try:
                wish = msgspec.json.decode(text, type=_Line)
                value = _checked(wish, bytes(wish.payload), line)
            except (msgspec.MsgspecError, UnicodeDecodeError, SteadyWorkerError) as error:
                said = str(error).removesuffix(".")
                raise BadPayload(f"{file}:{number}: {said}. Nothing was sent.") from error
            if wish.key is not None and (first := seen.setdefault(wish.key, number)) != number:
                raise BadPayload(
                    f"{file}:{number}: the key {wish.key!r} is that of line {first}, and the second would not run: "
                    "give each piece of work its own. Nothing was sent."
                )
            yield number, value, wish


def _checked(wish: _Line, body: bytes, line: Line) -> object:
    """The payload as it is handed to the client, once everything about the job is known to make sense."""
    try:
        value: object = body if line.payload_type is bytes else payloads.decoder(Any)(body)
        message(line, value, key=wish.key, delay=wish.delay, headers=wish.headers)
    except BadPayload as error:
        raise BadPayload(
            f"Expected a payload that queue {line.queue!r} takes, got one that does not fit: {error}."
        ) from error
    except (ValueError, TypeError) as error:
        raise BadPayload(str(error)) from error
    return value


def _headers(pairs: tuple[str, ...]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    for pair, (_, equals, _) in zip(pairs, split, strict=True):
        if not equals:
            raise click.UsageError(f"Expected --header NAME=VALUE, got {pair!r}.")
    return {name: value for name, _, value in split}
