"""`steadyworker send`: one job from the command line, or many from a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from steadyworker import payload as payloads
from steadyworker.cli.output import json_line
from steadyworker.cli.settings import find_worker, settings
from steadyworker.client import Client
from steadyworker.config import Options
from steadyworker.connections import line_of
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
    if file is None:
        body = click.get_binary_stream("stdin").read() if payload == "-" else (payload or "").encode()
        line = _Line(payload=msgspec.Raw(body), key=key, delay=delay, headers=_headers(headers), again=again)
        jobs = [(0, _value(body, to, options), line)]
    elif key is not None or delay or headers or again:
        raise click.UsageError("Expected key, delay, headers and again in the lines of the file, not beside --file.")
    else:
        jobs = list(_read(file, to, options))
    with Client.configured(options) as client:
        for number, value, line in jobs:
            sent = _send(client, to, value, line, f"{file}:{number}: " if file else "")
            if as_json:
                json_line({"key": sent, "line": number or None})
            else:
                click.echo(sent)


def _send(client: Client, to: To, value: object, line: _Line, where: str) -> str:
    try:
        return client.send(to, value, key=line.key, delay=line.delay, headers=line.headers, again=line.again)  # type: ignore[misc]
    except SendError as error:
        rest = "The lines before it are sent; those after it are not." if where else ""
        raise SendError(f"{where}{error} {rest}".rstrip()) from error
    except (ValueError, TypeError) as error:
        raise BadPayload(f"{where}{error}") from error


def _read(file: Path, to: To, options: Options) -> Iterator[tuple[int, object, _Line]]:
    """Every line's number, payload and the rest; raises BadPayload with the number of the first one that is wrong."""
    seen: dict[str, int] = {}
    with file.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            if not text.strip():
                continue
            try:
                line = msgspec.json.decode(text, type=_Line)
                value = _value(bytes(line.payload), to, options)
            except (msgspec.MsgspecError, UnicodeDecodeError, SteadyWorkerError) as error:
                raise BadPayload(f"{file}:{number}: {error} Nothing was sent.") from error
            if line.key is not None and (first := seen.setdefault(line.key, number)) != number:
                raise BadPayload(
                    f"{file}:{number}: the key {line.key!r} is that of line {first}, and the second would not run: "
                    "give each piece of work its own. Nothing was sent."
                )
            yield number, value, line


def _value(body: bytes, to: To, options: Options) -> object:
    """The payload as it is handed to the client, checked as far as its type is known."""
    type_ = line_of(to, options).payload_type
    if type_ is bytes:
        return body
    value = payloads.decoder(Any)(body)
    payloads.encode(value, type_)
    return value


def _headers(pairs: tuple[str, ...]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    for pair, (_, equals, _) in zip(pairs, split, strict=True):
        if not equals:
            raise click.UsageError(f"Expected --header NAME=VALUE, got {pair!r}.")
    return {name: value for name, _, value in split}
