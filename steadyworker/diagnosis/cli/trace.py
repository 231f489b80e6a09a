"""`steadyworker trace`: a proxy between clients and a broker that flags the problems that end connections."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import click

from steadyworker.cli.streams import OutputFailed
from steadyworker.clock import Clock, SystemClock
from steadyworker.diagnosis.amqp import AmqpReader
from steadyworker.diagnosis.capture import read_capture
from steadyworker.diagnosis.conversation import Known
from steadyworker.diagnosis.outputs import STDOUT, Outputs
from steadyworker.diagnosis.relay import BrokerTarget, text_of_address
from steadyworker.diagnosis.tracing import Conversations, Tracing
from steadyworker.diagnosis.wire import Wire
from steadyworker.errors import ConfigError

NEGATIVE, OUTPUT = 1, 74

Address = tuple[str, int]

_FLUSH = 0.5
_LAST_PORT = 65_535
_ROCKETMQ_PORTS = {8081, 9876, 10_909, 10_911}
_BACKLOG = 128


def _address(_: click.Context, option: click.Parameter, value: str | None) -> Address | None:
    """Return the host and the port of HOST:PORT, with brackets around a host of IPv6; --listen may have the port 0."""
    if value is None:
        return None
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
  steadyworker trace --listen 127.0.0.1:61614 --to activemq.example:61613 --flags-only
  steadyworker trace --listen 0.0.0.0:5673 --to 127.0.0.1:5672 --jsonl trace.jsonl --html trace.html
  steadyworker trace --pcap amqp.pcap --port 5672 --html trace.html
  steadyworker trace --listen 127.0.0.1:5671 --tls-cert cert.pem --tls-key key.pem \\
      --to rabbit.example:5671 --to-tls --to-ca ca.pem
\b
The client connects to --listen; the trace connects to --to for it, and passes all bytes as they are.
It reads AMQP 0-9-1 and STOMP; of other protocols, only sizes and times are known.
For RocketMQ, let `steadyworker explain` read the logs of the client and the broker.
Bodies, logins, and headers and properties of applications are never written;
of the id of an AMQP message, the trace writes only the first 8 characters.
\b
Exit codes: 0 nothing was flagged, 1 something was flagged; SIGINT and SIGTERM end the trace with its totals, a second one at once.""",
)
@click.option(
    "--listen",
    callback=_address,
    metavar="HOST:PORT",
    help="The address that clients connect to; port 0: any free one.",
)
@click.option("--to", callback=_address, metavar="HOST:PORT", help="The broker's address.")
@click.option("--pcap", type=_GIVEN_FILE, metavar="FILE", help="Read packets that tcpdump has captured, instead.")
@click.option("--port", type=click.IntRange(1, _LAST_PORT), metavar="N", help="The broker's port in --pcap.")
@click.option(
    "--jsonl",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write each event as a line of JSON; - for standard output.",
)
@click.option(
    "--html",
    type=_FILE,
    metavar="FILE",
    help="Write one HTML page at the end, to attach to a ticket (extra dashboard).",
)
@click.option("--flags-only", is_flag=True, help="Show connections, closes and flags, but no frames.")
@click.option(
    "--tls-cert", type=_GIVEN_FILE, metavar="FILE", help="Speak TLS with clients: the certificate chain (PEM)."
)
@click.option("--tls-key", type=_GIVEN_FILE, metavar="FILE", help="The key of --tls-cert (PEM).")
@click.option("--to-tls", is_flag=True, help="Speak TLS with the broker, and verify its certificate.")
@click.option("--to-ca", type=_GIVEN_FILE, metavar="FILE", help="What --to-tls trusts (PEM). [default: the system's]")
@click.option("--to-insecure", is_flag=True, help="Do not verify the broker's certificate.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    pcap: Path | None,
    port: int | None,
    jsonl: str | None,
    html: Path | None,
    flags_only: bool,
    **live: Any,
) -> None:
    """
    Show what a client and a broker send to each other, and flag what ends their connections.

    The trace flags, each with its evidence and a remedy: a second protocol header, frames of two threads mixed,
    late heartbeats, acknowledgements that come twice or on a closed channel, consumers without a prefetch,
    frames that were cut, and sides that no longer read.
    """
    AmqpReader(opening=True)  # if pamqp is missing, its error comes before the first connection
    _check_files(pcap, html, Path(jsonl) if jsonl is not None and jsonl != "-" else None)

    def outputs() -> Outputs:
        return Outputs(jsonl=jsonl, html=html, frames=not flags_only)

    if pcap is not None:
        if port is None or any(live.values()):
            raise click.UsageError("Expected --port with --pcap, and no option of a live trace.")
        code = _read(pcap, port, outputs)
    elif live["listen"] is None or live["to"] is None or port is not None:
        raise click.UsageError("Expected --listen and --to, or --pcap and --port.")
    else:
        code = _relay(outputs, **live)
    ctx.exit(code)


def _relay(new_outputs: Callable[[], Outputs], *, listen: Address, to: Address, **tls: Any) -> int:
    """Pass bytes until a signal."""
    _warn_of_rocketmq(to[1])
    clock = SystemClock()
    target = _target(to, **tls)
    with _listener(listen) as listener, new_outputs() as outputs:
        wire = Wire(clock.monotonic(), [outputs])
        bound = (listen[0], listener.getsockname()[1])
        wire.begin(_instant(clock.wall()), listen=text_of_address(bound), to=text_of_address(to))
        outputs.flush()
        conversations = Conversations(wire, Known.at(to[1]))
        try:
            with _stop_signals() as stopped, Tracing(listener, target, conversations, clock) as tracing:
                _follow(tracing, stopped, clock, outputs)
        finally:  # the page also shows the events before a failure of the relay
            wire.end(clock.monotonic())
            outputs.finish()
    return _code(wire, outputs)


def _follow(tracing: Tracing, stopped: Callable[[], bool], clock: Clock, outputs: Outputs) -> None:
    flushed = clock.monotonic()
    while outputs.left and not stopped() and tracing.step():
        now = clock.monotonic()
        if now - flushed >= _FLUSH:
            outputs.flush()
            flushed = now


def _check_files(*paths: Path | None) -> None:
    """Raise UsageError if two options name one file, because that file would be overwritten."""
    known = [path.resolve() for path in paths if path is not None and path != Path(os.devnull)]
    if len(set(known)) < len(known):
        raise click.UsageError("Expected different files with --pcap, --jsonl and --html, got one of them twice.")


def _read(path: Path, port: int, new_outputs: Callable[[], Outputs]) -> int:
    """Read a capture; the events have the times of the packets."""
    _warn_of_rocketmq(port)
    records = read_capture(path, port)
    first = next(records, None)
    if first is None:
        raise ConfigError(f"Expected packets of port {port} in {path}, got none: name the broker's port with --port.")
    with new_outputs() as outputs:
        wire = Wire(first.t, [outputs])
        wire.begin(_instant(first.t), listen=str(path), to=f"port {port}", capture=True)
        conversations = Conversations(wire, Known.at(port))
        last = first
        try:
            for last in chain((first,), records):
                conversations.receive(last)
        finally:  # a file with a damaged end also has useful events
            wire.end(last.t)
            outputs.finish()
    return _code(wire, outputs)


def _warn_of_rocketmq(port: int) -> None:
    if port in _ROCKETMQ_PORTS:
        text = "is a port of RocketMQ, and trace reads AMQP 0-9-1 and STOMP: for RocketMQ, let `steadyworker explain` read the client's log."
        click.echo(f"warning: {port} {text}", err=True)


def _code(wire: Wire, outputs: Outputs) -> int:
    """Return the exit code; name the files that are not complete."""
    failures = dict(outputs.failures)
    if error := failures.pop(STDOUT, None):
        raise error if isinstance(error, OutputFailed) else OutputFailed(error)
    for name, error in failures.items():
        text = f"Expected to write {name}, got: {error.strerror}: the file is not complete."
        click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)
    if failures:
        return OUTPUT
    return NEGATIVE if wire.flags else 0


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """
    Record the first SIGINT or SIGTERM, which then does not end the process; the second one ends it.

    The reader of a pipe can stop, and a write to this pipe then waits without a limit, also after the first signal.
    Yield a function that returns whether a signal came.
    """
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)

    def record(number: int, _: object) -> None:
        came.append(number)
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)

    before = {number: signal.signal(number, record) for number in numbers}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- Sockets and TLS --------------------------------------------------------------------------------------------------


def _target(
    to: Address,
    *,
    tls_cert: Path | None,
    tls_key: Path | None,
    to_tls: bool,
    to_ca: Path | None,
    to_insecure: bool,
) -> BrokerTarget:
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("Expected --tls-cert and --tls-key together, got one of them.")
    if (to_ca or to_insecure) and not to_tls:
        raise click.UsageError("Expected --to-tls beside --to-ca or --to-insecure, got none: add it.")
    return BrokerTarget(
        _addresses(to),
        towards_broker(to_ca, verify=not to_insecure) if to_tls else None,
        to[0],
        towards_clients(tls_cert, tls_key) if tls_cert and tls_key else None,
    )


def _addresses(to: Address) -> list[tuple[socket.AddressFamily, Address]]:
    try:
        found = socket.getaddrinfo(*to, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"Expected in --to a host whose name has an address, got {to[0]!r}: {error.strerror}."
        ) from error
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found]


def _listener(listen: Address) -> socket.socket:
    try:
        family = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(listen, family=family, backlog=_BACKLOG)
    except OSError as error:
        # `create_server` adds the address to the system's text.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ConfigError(
            f"Expected to listen on {text_of_address(listen)}, got: {reason}: choose another --listen, or end the program that has it."
        ) from error


def towards_broker(ca_file: Path | None, *, verify: bool) -> ssl.SSLContext:
    """Return the settings of TLS between the trace and the broker."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"Expected certificates (PEM) in {ca_file}, got: {error}.") from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def towards_clients(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the settings of TLS between clients and the trace."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"Expected a certificate chain in {certificate} and its key in {key}, got: {error}."
        ) from error
    return context


def _instant(wall: float) -> str:
    """Return a time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds")
