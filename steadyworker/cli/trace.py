"""`steadyworker trace`: a proxy between clients and a broker that reads what passes, and flags what ends connections."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import click
import msgspec

from steadyworker.clock import Clock, SystemClock
from steadyworker.diagnosis.conversation import Known
from steadyworker.diagnosis.relay import Target
from steadyworker.diagnosis.terminal import Terminal
from steadyworker.diagnosis.tracing import Conversations, Tracing
from steadyworker.diagnosis.wire import Listener, Wire
from steadyworker.errors import ConfigError

FLAGGED = 1

_FLUSH = 0.5
_LAST_PORT = 65_535
_BACKLOG = 128


def _address(_: click.Context, option: click.Parameter, value: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT, with brackets around a host of IPv6; --listen may have the port 0."""
    host, colon, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    least = 0 if option.name == "listen" else 1
    if not (colon and host and port.isascii() and port.isdigit() and least <= int(port) <= _LAST_PORT):
        raise click.BadParameter(f"Expected HOST:PORT, such as 127.0.0.1:5673 or [::1]:5673, got {value!r}.")
    return host, int(port)


_FILE = click.Path(dir_okay=False, path_type=Path)
_GIVEN_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    "trace",
    epilog="""\b
Examples:
  steadyworker trace --listen 127.0.0.1:5673 --to rabbit.example:5672
  steadyworker trace --listen 127.0.0.1:61614 --to activemq.example:61613 --seconds 600 --flags-only
  steadyworker trace --listen 0.0.0.0:5673 --to 127.0.0.1:5672 --jsonl trace.jsonl --html trace.html
  steadyworker trace --listen 127.0.0.1:5671 --tls-cert cert.pem --tls-key key.pem \\
      --to rabbit.example:5671 --to-tls --to-ca ca.pem
\b
The client connects to --listen; the trace connects to --to for it, and passes all bytes as they are.
It reads AMQP 0-9-1 and STOMP. Other protocols pass, and only their sizes and times are known.
Bodies, logins and headers of applications are never written.
\b
Exit codes: 0 nothing was flagged, 1 something was flagged; SIGINT and SIGTERM end the trace with its totals.""",
)
@click.option(
    "--listen",
    callback=_address,
    required=True,
    metavar="HOST:PORT",
    help="The address that clients connect to; port 0 for any that is free.",
)
@click.option("--to", callback=_address, required=True, metavar="HOST:PORT", help="The broker's address.")
@click.option(
    "--jsonl",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write each event as a line of JSON; - for standard output.",
)
@click.option("--html", type=_FILE, metavar="FILE", help="Write one HTML page at the end, to attach to a ticket.")
@click.option("--flags-only", is_flag=True, help="Show connections, closes and flags, but no frames.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), metavar="N", help="End after this time.")
@click.option(
    "--tls-cert", type=_GIVEN_FILE, metavar="FILE", help="Speak TLS with clients: the certificate chain (PEM)."
)
@click.option("--tls-key", type=_GIVEN_FILE, metavar="FILE", help="The key of --tls-cert (PEM).")
@click.option("--to-tls", is_flag=True, help="Speak TLS with the broker, and verify its certificate.")
@click.option(
    "--to-ca", type=_GIVEN_FILE, metavar="FILE", help="Certificates that --to-tls trusts. [default: the system's]"
)
@click.option("--to-name", metavar="NAME", help="The name in the broker's certificate. [default: the host of --to]")
@click.option("--to-insecure", is_flag=True, help="Do not verify the broker's certificate.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    listen: tuple[str, int],
    to: tuple[str, int],
    jsonl: str | None,
    html: Path | None,
    flags_only: bool,
    seconds: float | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    to_tls: bool,
    to_ca: Path | None,
    to_name: str | None,
    to_insecure: bool,
) -> None:
    """
    Show what a client and a broker say to each other, and flag what ends their connections.

    It flags, each with its evidence and a remedy: a second protocol header, frames of two threads mixed,
    late heartbeats, acknowledgements that come twice or on a closed channel, consumers without a prefetch,
    frames that were cut, and sides that no longer read.
    """
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("Expected --tls-cert and --tls-key together, got one of them.")
    if (to_ca or to_name or to_insecure) and not to_tls:
        raise click.UsageError("Expected --to-tls with --to-ca, --to-name and --to-insecure, got them without it.")
    clock = SystemClock()
    target = Target(
        _addresses(to),
        towards_broker(to_ca, verify=not to_insecure) if to_tls else None,
        to_name or to[0],
        towards_clients(tls_cert, tls_key) if tls_cert and tls_key else None,
    )
    with ExitStack() as stack:
        listeners: list[Listener] = []
        flush: Callable[[], None] = sys.stdout.flush
        if jsonl is not None:
            out = sys.stdout.buffer if jsonl == "-" else stack.enter_context(Path(jsonl).open("wb"))
            listeners.append(_as_json(out))
            flush = out.flush
        if jsonl != "-":
            listeners.append(Terminal(click.echo, frames=not flags_only))
        wire = Wire(clock.monotonic(), listeners)
        listener = stack.enter_context(_listener(listen))
        bound = listener.getsockname()
        wire.begin(_now(clock), listen=_text((listen[0], bound[1])), to=_text(to))
        flush()
        with (
            _stop_signals() as stopped,
            Tracing(listener, target, Conversations(wire, Known.at(to[1])), clock) as tracing,
        ):
            _trace(tracing, stopped, clock, None if seconds is None else clock.monotonic() + seconds, flush)
        wire.end(clock.monotonic())
    ctx.exit(FLAGGED if wire.flags else 0)


def _trace(
    tracing: Tracing, stopped: Callable[[], bool], clock: Clock, until: float | None, flush: Callable[[], None]
) -> None:
    flushed = clock.monotonic()
    while not stopped() and tracing.step():
        now = clock.monotonic()
        if now - flushed >= _FLUSH:
            flush()
            flushed = now
        if until is not None and now >= until:
            return


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Note SIGINT and SIGTERM instead of ending by them; yields the function that tells whether one came."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _as_json(out: IO[bytes]) -> Listener:
    encode = msgspec.json.Encoder().encode
    return lambda event: out.write(encode(event) + b"\n")


def _addresses(to: tuple[str, int]) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(*to, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"Expected a host that has an address in --to, got {to[0]!r}: {error.strerror}.") from error
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found]


def _listener(listen: tuple[str, int]) -> socket.socket:
    try:
        family = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(listen, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"Expected to listen on {_text(listen)}, got: {_reason(error)}: choose another --listen, or end the program that has it."
        ) from error


def towards_broker(ca_file: Path | None, *, verify: bool) -> ssl.SSLContext:
    """Return the TLS that the trace speaks with the broker."""
    context = ssl.create_default_context(cafile=ca_file)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def towards_clients(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS that the trace speaks with clients."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"Expected a certificate chain in {certificate} and its key in {key}, got: {error}."
        ) from error
    return context


def _reason(error: OSError) -> str:
    """Return the system's text alone: that of `create_server` repeats the address."""
    known = error.errno is not None and error.errno > 0
    return os.strerror(error.errno) if known else str(error.strerror)


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _now(clock: Clock) -> str:
    return datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="microseconds")
