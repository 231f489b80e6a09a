"""`steadyworker dead`: lists, shows, replays and drops the dead letters of a queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from itertools import islice
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from steadyworker.actions.deadletters import DeadLetterQueue, Replayed
from steadyworker.actions.letters import LetterActions, LetterChoice
from steadyworker.actions.report import ActionReport
from steadyworker.backends.connections import Connections, job_queue
from steadyworker.cli.completion import complete_key
from steadyworker.cli.confirm import confirm, finish, is_terminal
from steadyworker.cli.flags import Function
from steadyworker.cli.group import Group
from steadyworker.cli.moment import moment
from steadyworker.cli.output import Column, instant, json_line, json_or_text, padded, print_screen, screen, tries
from steadyworker.cli.paused import pause_texts
from steadyworker.cli.settings import client_settings
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import delay_option, queue_argument, worker_or_queue
from steadyworker.cli.unknown import check_known
from steadyworker.clock import SystemClock
from steadyworker.config.resolve import Options
from steadyworker.errors import LedgerUnavailable, SteadyWorkerError
from steadyworker.ledger.need_words import reason_text
from steadyworker.runner.letters import DeadLetter, unshown_text
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact, without_secrets
from steadyworker.units import count_text, span

_PREVIEW = 2000
_MOST_GONE = 100
_FROM_BROKER = "(put here by the broker)"
_GONE = "letter gone, kept in the ledger:"
_COLUMNS = (
    Column("KEY", least=20, most=40),
    Column("ROUND", right=True, rank=4),
    Column("ATTEMPTS", right=True, rank=1),
    Column("CRASHES", right=True, rank=5),
    Column("LOSSES", right=True, rank=6),
    Column("FIRST FAILED", rank=2),
    Column("COPIES", right=True, rank=3),
    Column("WHY"),
)

_keys = click.argument("keys", metavar="[KEY]...", nargs=-1, shell_complete=complete_key)
_json = click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per dead letter.")
_all = click.option("--all", "every", is_flag=True, help="Select every dead letter of the queue, instead of KEYs.")
_with_gone = click.option(
    "--gone", is_flag=True, help="With --all: also the dead jobs whose letter is gone, and that the ledger has kept."
)
_yes = click.option(
    "--yes", is_flag=True, help="Do not ask; a script needs this with --error-class, --reason, --since or --before."
)


def _filters(verb: Function) -> Function:
    """Add the options that choose dead letters by their facts; the verb receives them as `choice`."""

    @wraps(verb)
    def called(*arguments: Any, **given: Any) -> Any:
        names = ("error_class", "reason", "since", "before")
        facts = {name: value for name in names if (value := given.pop(name)) is not None}
        return verb(*arguments, choice=LetterChoice(**facts), **given)

    options = (
        click.option(
            "--error-class", metavar="CLASS", help="All whose last error is of this class, such as ValueError."
        ),
        click.option("--reason", metavar="TEXT", help="All with this text in the reason or the last error."),
        click.option(
            "--since", callback=moment, metavar="WHEN", help="All that died since then: today, 2h, 2026-01-31."
        ),
        click.option("--before", callback=moment, metavar="WHEN", help="All that died before then."),
    )
    for option in reversed(options):
        called = option(called)
    return called


@click.group(
    "dead",
    cls=Group,
    epilog="""\b
Examples:
  steadyworker dead list   exports:PaymentExports
  steadyworker dead show   exports:PaymentExports export-m-17
  steadyworker dead replay exports:PaymentExports export-m-17 --from-start
  steadyworker dead replay exports:PaymentExports --error-class Timeout --delay 1h
  steadyworker dead drop   payment-exports --all""",
)
def command() -> None:
    """
    List, show, replay or drop the dead letters of a queue.

    Several copies of one job count as one dead letter.
    A letter is gone if another tool dropped it, or if the dead-letter queue was purged or deleted.
    The ledger keeps the message of a dead job for 90 days (`keep_dead`), so KEY still selects such a job; --all selects it only together with --gone.
    """


@command.command("list")
@queue_argument
@click.option("-v", "--verbose", is_flag=True, help="Print the whole text of WHY, on a line below its dead letter.")
@client_settings
@_json
def list_(options: Options, *, target: str, verbose: bool, as_json: bool) -> None:
    """List dead letters, oldest first, and then the newest 100 dead jobs whose letter is gone."""
    with _opened(target, options) as queue:
        letters = [queue.with_facts(letter) for letter in queue.letters(bodies=False)]
        _print_parked(queue, letters)
        letters += _gone(queue)
        _print_gone(queue, beyond=_MOST_GONE)
    _print_left_alone(queue)
    if as_json:
        for letter in letters:
            json_line(_record(letter))
    elif letters and (console := Console()).is_terminal:
        print_screen(console, lines_of(letters, console.width, verbose=verbose))
    elif letters:
        padded(_COLUMNS, [_cells(letter) for letter in letters])
    else:
        echo(f"No dead letters of {target}.", err=True)


@command.command("show")
@queue_argument
@_keys
@client_settings
@_json
@click.option("--body", is_flag=True, help="Print only the bodies, one per line, complete, and without hiding secrets.")
def show(options: Options, *, target: str, keys: Sequence[str], as_json: bool, body: bool) -> None:
    """
    Show dead letters: all of them, or only the dead letters of these KEYs.

    For each, the command shows reason, error, counters, checkpoint and payload.
    The payload is cut after 2,000 characters, and secrets are hidden.
    --body prints the whole payload, unchanged.
    """
    with _opened(target, options) as queue:
        for number, found in enumerate(queue.read(keys or None)):
            if body:
                if found.unshown:
                    raise SteadyWorkerError(unshown_text([found]))
                click.echo(found.body)
                continue
            letter = queue.with_facts(found)
            checkpoint = row.checkpoint if (row := queue.row(letter)) else None
            if as_json:
                json_line(
                    _record(letter)
                    | {"checkpoint": without_secrets(json_or_text(checkpoint)), "payload": _payload(letter)}
                )
            else:
                click.echo("\n" * bool(number) + "\n".join(_paragraph(letter, checkpoint)))
        _print_left_alone(queue)


@command.command("replay")
@queue_argument
@_keys
@_all
@_with_gone
@_filters
@click.option("--from-start", is_flag=True, help="Delete the checkpoint: the job starts from the beginning.")
@delay_option("The least time until the jobs may run: 90s, 2h, 1d.")
@_yes
@_json
@client_settings
def replay(
    options: Options,
    *,
    target: str,
    keys: Sequence[str],
    every: bool,
    gone: bool,
    choice: LetterChoice,
    from_start: bool,
    delay: float,
    yes: bool,
    as_json: bool,
) -> None:
    """
    Put dead letters back into their work queue.

    Name them by KEYs, or select them: --error-class, --reason, --since and --before narrow the selection, and --all selects all.
    Before the command replays a selection, it shows the number of letters, and asks; with --all, it asks only at a terminal.

    Each job starts its next round, with all counters at zero.
    The command records the new round in the ledger first: then the job runs even if its message is lost.
    It removes a dead letter when the broker has confirmed its copy in the work queue.
    If a replay is interrupted, run it again: no job runs twice because of this.
    """

    def each(replayed: Replayed) -> None:
        gone = replayed.letter.gone
        if as_json:
            json_line({"key": replayed.key, "round": replayed.round, "was": replayed.letter.key, "letter_gone": gone})
        else:
            how = "letter gone; replayed from the ledger" if gone else "replayed"
            when = f", due in {span(delay)}" if delay else ""
            echo(f"{replayed.letter.key}: {how} as {replayed.key}, round {replayed.round}{when}")

    _check_chosen(keys, choice, every=every, gone=gone)
    with _actions(target, options) as actions:
        queue = actions.opened()
        chosen = _asked(actions, queue, keys, choice, "replays", gone=gone, yes=yes)
        report = actions.replay(
            queue, keys or None, chosen=chosen, gone=gone, from_start=from_start, delay=delay, each=each
        )
        _finish(queue, report, "replayed", counted=not keys and not gone and choice.is_open)


@command.command("drop")
@queue_argument
@_keys
@_all
@_with_gone
@_filters
@_yes
@_json
@client_settings
def drop(
    options: Options,
    *,
    target: str,
    keys: Sequence[str],
    every: bool,
    gone: bool,
    choice: LetterChoice,
    yes: bool,
    as_json: bool,
) -> None:
    """
    Remove dead letters permanently, with all their copies, including the ledger's copy.

    Name them by KEYs, or select them: --error-class, --reason, --since and --before narrow the selection, and --all selects all.
    Before the command drops a selection, it shows the number of letters, and asks; with --all, it asks only at a terminal.
    After that, the keys of these dead letters can be used again.
    """

    def each(letter: DeadLetter) -> None:
        if as_json:
            json_line({"key": letter.key, "round": letter.round, "copies": letter.copies})
        else:
            echo(f"{letter.key}: dropped")

    _check_chosen(keys, choice, every=every, gone=gone)
    with _actions(target, options) as actions:
        queue = actions.opened()
        chosen = _asked(actions, queue, keys, choice, "drops", gone=gone, yes=yes)
        report = actions.drop(queue, keys or None, chosen=chosen, gone=gone, each=each)
        _finish(queue, report, "dropped", counted=not keys and not gone and choice.is_open)


@contextmanager
def _actions(target: str, options: Options) -> Iterator[LetterActions]:
    queue = job_queue(worker_or_queue(target), options)
    with Connections(options) as links:
        yield LetterActions(links, queue)


@contextmanager
def _opened(target: str, options: Options) -> Iterator[DeadLetterQueue]:
    """Open the dead-letter queue for a verb that only reads; at the end, print whether the work queue is paused."""
    queue = job_queue(worker_or_queue(target), options)
    with Connections(options) as links:
        check_known(links, queue)
        yield LetterActions(links, queue).opened(bind=False)
        with suppress(LedgerUnavailable):
            namespace = links.namespace(queue, bind=False)
            for text in pause_texts(links.ledger(), SystemClock().wall(), namespace, queue.name):
                echo(text, err=True)


def _check_chosen(keys: Sequence[str], choice: LetterChoice, *, every: bool, gone: bool) -> None:
    if gone and not every and choice.is_open:
        raise click.UsageError("Expected --all together with --gone, got --gone alone: a KEY needs no --gone.")
    chooses = every or not choice.is_open
    if bool(keys) == chooses:
        got = "both" if keys else "neither"
        raise click.UsageError(
            f"Expected either KEYs or --all, --error-class, --reason, --since or --before, got {got}: "
            "`steadyworker dead list` shows the keys."
        )


def _asked(
    actions: LetterActions,
    queue: DeadLetterQueue,
    keys: Sequence[str],
    choice: LetterChoice,
    what: str,
    *,
    gone: bool,
    yes: bool,
) -> Sequence[DeadLetter] | None:
    """Return the letters that the options choose, after a yes; None if KEYs choose them, or `--all` does without a question."""
    if keys or (choice.is_open and (yes or not is_terminal())):
        return None
    chosen = actions.chosen(queue, choice, gone=gone)
    if chosen:
        confirm(f"{count_text(len(chosen), 'dead letter')} of {chosen[0].queue}", what, yes=yes)
    return chosen


def _finish(queue: DeadLetterQueue, report: ActionReport, done: str, *, counted: bool) -> None:
    """Print what an action has done and left; raise the error that ended it."""
    finish(report, "dead letter", done)
    click.echo(f"{count_text(len(report.changed), 'dead letter')} {done}.", err=True)
    if counted:
        _print_gone(queue)
    _print_left_alone(queue)
    if queue.unshown:
        raise SteadyWorkerError(unshown_text(queue.unshown))


def _print_parked(queue: DeadLetterQueue, letters: Sequence[DeadLetter]) -> None:
    """Print the dead jobs whose messages are not in the dead-letter queue."""
    with suppress(LedgerUnavailable):
        for row in queue.parked(letters):
            text = f"{row.id.key} is dead, but its message is still in the work queue: {redact(reason_text(row.reason, row.counters.attempts))}"
            echo(text, err=True)


def _gone(queue: DeadLetterQueue) -> list[DeadLetter]:
    """Return the newest dead jobs whose letter is gone, without the bodies of their messages."""
    with suppress(LedgerUnavailable):
        return [replace(letter, body=b"") for letter in islice(queue.kept(), _MOST_GONE)]
    return []


def _print_gone(queue: DeadLetterQueue, beyond: int = 0) -> None:
    """If more than `beyond` dead jobs have no letter, print their number."""
    count = len(queue.gone)
    if count > beyond:
        jobs = f"{count_text(count, 'dead job')} whose letter is gone, kept in the ledger"
        click.echo(f"{jobs}: select them by KEY, or with --all --gone.", err=True)


def _print_left_alone(queue: DeadLetterQueue) -> None:
    """Print how many letters of other work queues are in the same dead-letter queue."""
    if queue.others:
        each = ", ".join(f"{name} ({count})" for name, count in sorted(queue.others.items()))
        letters = f"{count_text(queue.others.total(), 'dead letter')} of other queues left alone: {each}."
        echo(f"{letters} Name the Worker of such a queue to see them.", err=True)


def lines_of(letters: Sequence[DeadLetter], width: int, *, verbose: bool) -> Iterator[Text]:
    """Yield the lines of a table of dead letters."""
    rows = [_cells(letter) for letter in letters]
    return screen(_COLUMNS, rows, width, [row[-1] for row in rows] if verbose else ())


def _cells(letter: DeadLetter) -> list[str]:
    return [
        letter.key,
        str(letter.round),
        str(letter.attempts),
        str(letter.crashes),
        str(letter.losses),
        instant(letter.first_failed_at) or "–",
        str(letter.copies),
        _why(letter),
    ]


def _why(letter: DeadLetter) -> str:
    error = _error(letter)
    unshown = f"unshown: {letter.unshown}" if letter.unshown else ""
    parts = (
        "" if letter.ours else _FROM_BROKER,
        _GONE if letter.gone else "",
        reason_text(letter.reason, letter.attempts),
        f"({error})" if error else "",
        unshown,
    )
    return redact(" ".join(part for part in parts if part))


def _error(letter: DeadLetter) -> str:
    """Return the exception's text, or "" if the reason already has this text."""
    error = ": ".join(part for part in (letter.error_class, letter.error) if part)
    return "" if letter.reason in (error, letter.error) else error


def _record(letter: DeadLetter) -> dict[str, Any]:
    return {
        "queue": letter.queue,
        "key": letter.key,
        "round": letter.round,
        "reason": redact(letter.reason),
        "error_class": redact(letter.error_class),
        "error": redact(letter.error),
        "attempts": letter.attempts,
        "crashes": letter.crashes,
        "losses": letter.losses,
        "first_failed_at": instant(letter.first_failed_at),
        "sent_at": instant(letter.sent_at),
        "worker": letter.worker,
        "uid": letter.uid,
        "copies": letter.copies,
        "by_broker": not letter.ours,
        "letter_gone": letter.gone,
        "bytes": letter.size,
        "unshown": letter.unshown,
        "headers": without_secrets(letter.headers),
    }


def _paragraph(letter: DeadLetter, checkpoint: bytes | None) -> Iterator[str]:
    facts: dict[str, str | None] = {
        "letter": "gone; this is the ledger's copy" if letter.gone else None,
        "reason": " ".join(
            part
            for part in ("" if letter.ours else _FROM_BROKER, redact(reason_text(letter.reason, letter.attempts)))
            if part
        ),
        "error": redact(_error(letter)),
        "counters": tries(letter.attempts, letter.crashes, letter.losses),
        "first failure": instant(letter.first_failed_at),
        "dead since" if letter.ours else "sent": instant(letter.sent_at),
        "worker": letter.worker,
        "uid": letter.uid,
        "checkpoint": "none" if checkpoint is None else redact(checkpoint.decode(errors="backslashreplace")),
        "copies": str(letter.copies) if letter.copies > 1 else None,
        "payload": _payload_text(letter),
    }
    yield printable(f"{letter.key} (round {letter.round}) of {letter.queue}")
    yield from (f"  {name + ':':<15}{printable(text)}" for name, text in facts.items() if text)


def _payload(letter: DeadLetter) -> Any:
    """Return the payload for `--json`: JSON data if the payload is short JSON, otherwise the text that people see."""
    value = json_or_text(letter.body) if len(letter.body) <= _PREVIEW else None
    return _payload_text(letter) if value is None or isinstance(value, str) else without_secrets(value)


def _payload_text(letter: DeadLetter) -> str:
    if letter.unshown:
        return f"unshown: {letter.unshown}"
    if not letter.whole:
        return f"left out by the broker's adapter ({count_text(letter.size, 'byte')})"
    value = json_or_text(letter.body)
    text = value if isinstance(value, str) else msgspec.json.encode(without_secrets(value)).decode()
    text = redact(text)
    return text if len(text) <= _PREVIEW else f"{text[:_PREVIEW]}… ({count_text(letter.size, 'byte')})"
