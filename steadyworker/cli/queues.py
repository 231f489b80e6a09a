"""`steadyworker queues`: lists what waits in each queue, with exit codes for alerts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import msgspec
from msgspec import Struct
from rich.console import Console, Group
from rich.text import Text

from steadyworker.adapter import Depth
from steadyworker.backends.connections import Connections, JobQueue, job_queue
from steadyworker.backends.opening import namespace_of
from steadyworker.backends.waiting import QueueNow, queues_now
from steadyworker.cli.completion import complete_target
from steadyworker.cli.jobs import watched
from steadyworker.cli.output import Column, clock_time, instant, json_line, padded, print_screen, screen
from steadyworker.cli.paused import pause_parts
from steadyworker.cli.settings import client_settings
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import worker_or_queue
from steadyworker.cli.unknown import names, no_queue
from steadyworker.clock import SystemClock
from steadyworker.config.resolve import Options
from steadyworker.errors import BrokerUnavailable, ConfigError, NoLedger
from steadyworker.ledger.need_words import START_ONE
from steadyworker.text.plain_text import plain_text, printable
from steadyworker.text.redaction import redact
from steadyworker.units import amount, count_text, parse_seconds, span

EXCEEDED, UNKNOWN = 1, 69
_OTHER_BROKER = (
    "no worker recorded it within 30 s, and --broker is another broker, or has no such queue: correct --broker"
)

_COLUMNS = (
    Column("BROKER", least=12, most=40),
    Column("QUEUE", least=16, most=40),
    Column("READY", right=True),
    Column("OLDEST", right=True),
    Column("DELAYED", right=True),
    Column("NEXT", right=True, rank=1),
    Column("UNACKED", right=True, rank=2),
    Column("DEAD", right=True),
    Column("RUNNING", right=True, rank=3),
    Column("CONSUMERS", right=True, rank=4),
    Column("WORKERS", right=True),
    Column("WHY"),
)


class AlertLimits(Struct, frozen=True):
    """The limits of an alert; each is None if the alert does not check this number. `max_age` is in seconds."""

    max_age: float | None = None
    max_dead: int | None = None
    max_ready: int | None = None


def _duration(_ctx: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    "queues",
    epilog="""\b
Columns:
  READY      messages that the broker can deliver now; OLDEST is the age of the oldest
  DELAYED    messages that are due later, such as copies for a retry; NEXT is when the first is due
  UNACKED    messages that consumers hold
  DEAD       messages in the dead-letter queue
  WORKERS    living worker processes of this ledger
  ?          the broker does not report this number, or did not respond; WHY has the reason
\b
Exit codes for alerts:
  0    every limit is kept
  1    a limit is exceeded
  69   no limit is known to be exceeded, but a number that a limit needs is unknown
\b
Examples:
  steadyworker queues --watch
  steadyworker queues exports:PaymentExports --max-age 2h --max-dead 0 --max-ready 1000
  steadyworker queues --json | jq 'select(.ready == null)'""",
)
@click.argument("targets", metavar="[MODULE:CLASS|QUEUE]...", nargs=-1, shell_complete=complete_target)
@click.option(
    "--max-age", callback=_duration, metavar="DURATION", help="Alert if the oldest ready message is older than this."
)
@click.option("--max-dead", type=click.IntRange(0), metavar="N", help="Alert if there are more dead letters than this.")
@click.option("--max-ready", type=click.IntRange(0), metavar="N", help="Alert if more messages than this are ready.")
@click.option(
    "--watch",
    is_flag=True,
    help="Refresh every 2 s until Ctrl-C; if the output is not a terminal, print the list once.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print the whole text of WHY, on a line below its queue.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per queue.")
@client_settings
@click.pass_context
def command(
    ctx: click.Context,
    options: Options,
    *,
    targets: tuple[str, ...],
    max_age: float | None,
    max_dead: int | None,
    max_ready: int | None,
    watch: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """
    List what waits in each queue: in all queues of the ledger, or only in the named queues.

    The command shows the numbers that a worker process has recorded within the last 30 s; if there are none, it asks the broker.
    A number that the broker does not report is never shown as 0.
    """
    if watch and as_json:
        raise click.UsageError("Expected --watch or --json, got both: run `queues --json` as often as you need it.")
    limits = AlertLimits(max_age, max_dead, max_ready)
    named = [job_queue(worker_or_queue(target), options) for target in targets]
    console = Console()
    with Connections(options) as links:

        def found() -> Sequence[QueueNow]:
            return _found(links, options, named)

        if watch and console.is_terminal:
            _watch(found, console, verbose=verbose)
            return
        queues, now = found(), SystemClock().wall()
    if as_json:
        for queue in queues:
            json_line(as_record(queue))
    elif not queues:
        click.echo(f"No queue in {redact(options.ledger)}: no worker has run with this ledger.", err=True)
    elif console.is_terminal:
        print_screen(console, lines_of(queues, console.width, now, verbose=verbose))
    else:
        padded(_COLUMNS, [cells(queue, now) for queue in queues])
    ctx.exit(_alert(queues, limits) if queues or limits == AlertLimits() else UNKNOWN)


def _found(links: Connections, options: Options, named: Sequence[JobQueue]) -> Sequence[QueueNow]:
    measure = _measure(links, options, {queue.name: queue for queue in named})
    names = [queue.name for queue in named]
    try:
        bound = [
            (namespace, queue)
            for namespace, queue in links.ledger().bindings()
            if options.namespace in (None, namespace) and (not names or queue in names)
        ]
        known = {queue for _, queue in bound}
        return queues_now(links.ledger(), [*bound, *(("", name) for name in names if name not in known)], measure)
    except NoLedger:
        if not names:
            raise
        return [QueueNow("", name, measure("", name)) for name in names]  # a sender's messages wait before a first run


def _measure(links: Connections, options: Options, named: dict[str, JobQueue]) -> Callable[[str, str], Depth]:
    away: list[str] = []

    def measure(namespace: str, queue: str) -> Depth:
        if away:
            return Depth.unknown(away[0])
        wanted = named.get(queue) or job_queue(queue, options)
        try:
            adapter = links.adapter(wanted)
            there = adapter.exists()  # first, because the question for the identity can create a broker that is a file
            if not namespace:
                typo = not there and isinstance(wanted.opened_as, str)
                return Depth.unknown(no_queue(queue, names(links))) if typo else adapter.depth()
            if not there or namespace not in (options.namespace, adapter.identity()):
                return Depth.unknown(_OTHER_BROKER)
            if namespace == options.namespace:
                namespace_of(adapter, options, links.ledger(), queue)
            return adapter.depth()
        except ConfigError as error:
            return Depth.unknown(plain_text(error))
        except BrokerUnavailable as error:
            if type(error) is BrokerUnavailable:  # a subclass is about this queue, and other queues can be available
                away.append(plain_text(error))
            return Depth.unknown(plain_text(error))

    return measure


def as_record(queue: QueueNow) -> dict[str, Any]:
    """
    Return a queue's record as `--json` prints it; a number that is unknown is null, and `why` has the reason.

    Instants are ISO 8601 in UTC, durations are seconds.
    """
    depth: dict[str, Any] = msgspec.to_builtins(queue.depth)
    pause = queue.pause
    return {
        "namespace": queue.namespace,
        "queue": queue.queue,
        **depth,
        "why": {number: redact(reason) for number, reason in queue.depth.why.items()},
        "next_due": instant(queue.depth.next_due),
        "running": queue.running,
        "workers": queue.workers,
        "unexplained_consumers": queue.unexplained,
        "paused_by": pause.who if pause else None,
        "paused_at": instant(pause.at) if pause else None,
        "pause_reason": redact(pause.reason) if pause else None,
    }


def lines_of(queues: Sequence[QueueNow], width: int, now: float, *, verbose: bool) -> Iterator[Text]:
    """Yield the lines of a table of queues; the column BROKER is left out if all queues have one broker."""
    start = int(len({queue.namespace for queue in queues}) == 1)
    rows = [cells(queue, now)[start:] for queue in queues]
    return screen(_COLUMNS[start:], rows, width, [why(queue, now) for queue in queues] if verbose else ())


def cells(queue: QueueNow, now: float) -> list[str]:
    """Return the cells of a queue's line, in the order of the columns."""
    depth = queue.depth
    return [
        queue.namespace or "–",
        queue.queue,
        _number(depth, "ready"),
        _number(depth, "oldest_age", span),
        _number(depth, "delayed"),
        _number(depth, "next_due", lambda due: clock_time(due, now)),
        _number(depth, "unacked"),
        _number(depth, "dead"),
        str(queue.running),
        _number(depth, "consumers"),
        str(queue.workers),
        why(queue, now),
    ]


def _number(depth: Depth, name: str, shown: Callable[[float], str] = amount) -> str:
    value = getattr(depth, name)
    if value is not None:
        return shown(value)
    return "?" if name in depth.why else "–"


def why(queue: QueueNow, now: float) -> str:
    """Return the text of the column WHY: what the queue needs with the remedy, and why a number is unknown."""
    depth, name = queue.depth, shlex.quote(queue.queue)
    unknown: dict[str, list[str]] = {}
    for number, reason in depth.why.items():
        unknown.setdefault(reason, []).append(number.replace("_", " "))
    parts = [
        *(pause_parts(queue.pause, now) if queue.pause else ()),
        queue.quiet or f"no worker consumes it: {START_ONE}" if queue.waits else "",
        f"{count_text(queue.unexplained, 'consumer')} that no worker of this ledger explains"
        if queue.unexplained
        else "",
        f"`steadyworker dead list {name}` lists the dead letters" if depth.dead else "",
        *(f"unknown: {', '.join(numbers)}: {reason}" for reason, numbers in unknown.items()),
    ]
    return printable(redact("; ".join(part for part in parts if part)))


def _alert(queues: Sequence[QueueNow], limits: AlertLimits) -> int:
    """Print each exceeded limit, and each that cannot be checked, to standard error; return the exit code."""
    code = 0
    for queue in queues:
        for exceeded, text in alerts(queue, limits):
            echo(redact(text), err=True)
            code = EXCEEDED if exceeded else code or UNKNOWN
    return code


def alerts(queue: QueueNow, limits: AlertLimits) -> Iterator[tuple[bool, str]]:
    """Yield a text for each limit that is exceeded (True), and for each whose number is unknown (False)."""
    depth = queue.depth
    for option, name, limit, shown in (
        ("--max-ready", "ready", limits.max_ready, amount),
        ("--max-age", "oldest_age", limits.max_age, span),
        ("--max-dead", "dead", limits.max_dead, amount),
    ):
        value = getattr(depth, name)
        if limit is None:
            continue
        what = name.replace("_", " ")
        if value is None and name in depth.why:
            yield False, f"{queue.queue}: cannot check {option}, because {what} is unknown: {depth.why[name]}"
        elif value is not None and value > limit:
            yield True, f"{queue.queue}: {what} is {shown(value)}, above {option} {shown(limit)}"


def _watch(found: Callable[[], Sequence[QueueNow]], console: Console, *, verbose: bool) -> None:
    def picture() -> Group:
        queues, now = found(), SystemClock().wall()
        lines = lines_of(queues, console.width, now, verbose=verbose) if queues else iter(())
        return Group(*lines, Text("Ctrl-C ends only this view", style="dim", no_wrap=True))

    watched(picture)
