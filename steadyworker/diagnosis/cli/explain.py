"""`steadyworker explain`: names the causes of the errors in the logs of brokers and clients, and the remedies."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path

import click
from rich.console import Console

from steadyworker.cli.output import json_line
from steadyworker.clock import SystemClock
from steadyworker.diagnosis.catalogue import Entry, load
from steadyworker.diagnosis.following import follow
from steadyworker.diagnosis.reading import Pipe, UnreadableSource, blocks
from steadyworker.diagnosis.report import WIDEST, Report, as_data, entry_data, unknown_data
from steadyworker.diagnosis.scan import Scanner, Search, by_time
from steadyworker.diagnosis.timeline import Incident, LogFinding, Sighting, Timelines
from steadyworker.errors import SourceUnavailable

_STDIN = 0
_MANY = 3  # findings


@click.command(
    "explain",
    epilog="""\b
Examples:
  steadyworker explain /var/log/rabbitmq/*.log worker.log    # several files: in the order of their times
  steadyworker explain                                       # paste lines, then press Ctrl-D
  tail -qF /var/log/rabbitmq/*.log | steadyworker explain    # while they grow; also journalctl -f, kubectl logs -f
  xzcat old.log.xz | steadyworker explain                    # bzcat, zstdcat; iconv -f utf-16
  steadyworker explain broker.log --json | jq -r .id
  steadyworker explain --id amqp.second-header""",
)
@click.argument(
    "files",
    metavar="[FILE|-]...",
    nargs=-1,
    type=click.Path(exists=True, dir_okay=False, readable=False, allow_dash=True, path_type=Path),
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per finding.")
@click.option("--list", "as_list", is_flag=True, help="List all entries of the catalogue.")
@click.option(
    "--id", "identity", metavar="ID", help="Print the entry with this id, as a log line names it: explain=ID."
)
@click.pass_context
def command(ctx: click.Context, *, files: tuple[Path, ...], as_json: bool, as_list: bool, identity: str | None) -> None:
    """
    Explain what brokers and clients write into their logs: what happened, why, and what to do.

    FILE is a log of RabbitMQ, ActiveMQ, Artemis, RocketMQ, of a client library or of a worker, also compressed by gzip.
    Without FILE, or for -, the standard input is read; a pipe is explained while it is open.
    Lines as people paste them are read, too: wrapped, quoted, escaped, cut.
    Failures that the catalogue does not know are counted and shown; a conclusion that is only probable is marked.

    Exit code 1 means that something was found, 0 that nothing was found.
    """
    if sum((bool(files), as_list, identity is not None)) > 1:
        raise click.UsageError("Expected FILEs, --list or --id, got more than one of them.")
    entries = load(lambda text: click.echo(f"warning: {text}", err=True))
    if as_list:
        _list(entries, as_json=as_json)
    elif identity is not None:
        _show_entry(entries, identity, as_json=as_json)
    else:
        ctx.exit(int(_explain(entries, files or (Path("-"),), as_json=as_json)))


# --- The catalogue ----------------------------------------------------------------------------------------------------


def _list(entries: dict[str, Entry], *, as_json: bool) -> None:
    if as_json:
        for entry in entries.values():
            json_line(entry_data(entry))
        return
    console = _console()
    widest = max((len(identity) for identity in entries), default=0)
    for family, members in groupby(sorted(entries.values(), key=lambda entry: entry.id), lambda entry: entry.family):
        console.print(family, style="bold")
        for entry in members:
            console.print(f"  {entry.id:<{widest}}  {entry.title}", soft_wrap=True)


def _show_entry(entries: dict[str, Entry], identity: str, *, as_json: bool) -> None:
    if identity not in entries:
        near = get_close_matches(identity, entries, 1)
        remedy = f"did you mean {near[0]}?" if near else "see steadyworker explain --list."
        raise click.UsageError(f"Expected an id of the catalogue, got {identity!r}: {remedy}")
    if as_json:
        json_line(entry_data(entries[identity]))
    else:
        Report(_console()).entry(entries[identity])


# --- Logs -------------------------------------------------------------------------------------------------------------


def _explain(entries: dict[str, Entry], files: Sequence[Path], *, as_json: bool) -> bool:
    """Explain the files, and return whether something was found."""
    search, timelines = Search(entries.values(), SystemClock().wall()), Timelines(entries.values())
    scanners = [Scanner(str(file), search) for file in files]
    failures: list[str] = []
    names = [str(file) for file in files if file != Path("-")]
    output = _ShownFindings(timelines, None if as_json else Report(_console(), names))
    if files == (Path("-"),) and _is_stream(_STDIN):
        if sys.stdin is not None and sys.stdin.isatty():
            click.echo("Paste lines of a log, then press Ctrl-D.", err=True)
        _follow(scanners[0], timelines, output, failures)
    else:
        for seen in by_time(_whole(file, scanner, failures) for file, scanner in zip(files, scanners, strict=True)):
            timelines.add(seen)
    timelines.end()
    lines = sum(scanner.cutter.lines for scanner in scanners)
    if lines or not failures:
        output.rest(search, lines)
    if failures:
        sys.stdout.flush()
        raise SourceUnavailable("\n".join(failures))
    return bool(timelines.findings)


def _whole(file: Path, scanner: Scanner, failures: list[str]) -> Iterator[Sighting]:
    """Yield the sightings in a file; if the file cannot be read to its end, record the failure, and raise nothing."""
    try:
        yield from scanner.whole(blocks(Path("/dev/stdin") if file == Path("-") else file))
    except UnreadableSource as error:
        failures.append(f"Expected to read {file}, got: {error}.")


def _follow(scanner: Scanner, timelines: Timelines, output: _ShownFindings, failures: list[str]) -> None:
    """Explain the standard input while it grows, until its end, Ctrl-C, or SIGTERM, which `timeout` sends."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        follow(scanner, Pipe(_STDIN), timelines, output.incident, SystemClock())
    except KeyboardInterrupt:
        for seen in scanner.end():
            timelines.add(seen)
    except UnreadableSource as error:
        failures.append(f"Expected to read -, got: {error}.")
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_stream(descriptor: int) -> bool:
    try:
        return not stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:  # the descriptor is closed
        return False


class _ShownFindings:
    """The output of the command: the report for people, or JSON Lines; all incidents of one entry have the same number."""

    def __init__(self, timelines: Timelines, report: Report | None) -> None:
        self._timelines = timelines
        self._report = report
        self._numbers: dict[str, int] = {}

    def incident(self, incident: Incident) -> None:
        """Show an incident of a log that is followed."""
        self._show(self._timelines.of(incident), incident)
        sys.stdout.flush()

    def rest(self, search: Search, lines: int) -> None:
        """Show every finding that was not shown yet, and then the errors that were not explained."""
        found = sorted(self._timelines.findings.values(), key=lambda each: each.place)
        if self._report and not self._numbers and len(found) > _MANY:
            self._report.overview(found)
        for finding in found:
            if finding.entry.id not in self._numbers:
                self._show(finding, finding.example)
        if self._report:
            self._report.end(len(found), lines, search.unknown)
        elif search.unknown.count:
            json_line(unknown_data(search.unknown))

    def _show(self, finding: LogFinding, incident: Incident) -> None:
        known = finding.entry.id in self._numbers
        number = self._numbers.setdefault(finding.entry.id, len(self._numbers) + 1)
        if self._report is None:
            json_line(as_data(number, finding))
        elif known:
            self._report.again(number, finding, incident.steps[incident.shown :])
        else:
            self._report.finding(number, finding)
        incident.shown = len(incident.steps)


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDEST
    return console
