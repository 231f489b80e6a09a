"""The story of one job as text for people, and as a record for `--json`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from steadyworker.cli.job_lines import as_record, progress_text, state_text, why
from steadyworker.cli.output import ago, instant, span, tries
from steadyworker.ledger.facts import Action, Attempt, LinkEvent
from steadyworker.ledger.listing import ListedJob
from steadyworker.ledger.story import StoryEntry, StoryKind
from steadyworker.ledger.story_words import BECAUSE, ENDED, EVENTS
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, size_text

_INDENT = " " * 17


def story_record(job: ListedJob, entries: Sequence[StoryEntry], now: float) -> dict[str, Any]:
    """Return the record of a job as `jobs --json` prints it, with its story."""
    return {**as_record(job, now), "story": [_entry_record(entry) for entry in entries]}


def _entry_record(entry: StoryEntry) -> dict[str, Any]:
    fact = entry.attempt or entry.event or entry.action
    details: dict[str, Any] = msgspec.to_builtins(fact)
    times: dict[str, Any] = {
        name: instant(details[name]) for name in ("at", "started_at", "ended_at") if name in details
    }
    head = {"at": instant(entry.at), "kind": entry.kind.value, "run": entry.number or None}
    return {**details, **times, **head}


def story_lines(
    job: ListedJob, entries: Sequence[StoryEntry], now: float, width: int, *, verbose: bool = False
) -> Iterator[str]:
    """
    Yield the lines of a job's story: its state and what it needs, then one entry after the other.

    Without `verbose`, only the last traceback is printed.
    """
    row = job.row
    again = f" (round {row.id.round})" if row.id.round else ""
    yield f"{printable(row.id.key)}{again} in {printable(row.id.queue)}: {state_text(job)}"
    counters = tries(row.counters.attempts, row.counters.crashes, row.counters.losses)
    until = now if row.ended_at is None else row.ended_at
    facts = [
        f"{counters}; {span(until - row.created_at)} in all",
        f"{progress_text(job.progress)}, {ago(now - job.progress.at)}" if job.progress else "",
        why(job, now),
    ]
    for fact in filter(None, facts):
        yield from _wrapped(fact, width, "  ", "  ")
    yield ""
    last = max((entry.number for entry in entries if entry.attempt and entry.attempt.traceback), default=0)
    for entry in entries:
        head = f"{_moment(entry.at)}  "
        yield from _wrapped(_text(entry), width, head, _INDENT)
        if entry.kind is StoryKind.ENDED and entry.attempt and (verbose or entry.number == last):
            for line in redact(entry.attempt.traceback).splitlines():
                yield f"{_INDENT}{printable(line)}"
    if not entries:
        yield "No run, event or action is recorded."


def _wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        printable(redact(text)),
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _moment(at: float) -> str:
    """Return a wall-clock time in the local time zone, always in 15 characters: `26 Nov 03:12:05`."""
    return "–".ljust(15) if instant(at) is None else f"{datetime.fromtimestamp(at).astimezone():%d %b %H:%M:%S}"


def _text(entry: StoryEntry) -> str:
    if entry.action is not None:
        return _action_text(entry.action)
    run = f"run {entry.number}" + (f" of round {entry.round}" if entry.round else "")
    if entry.event is not None:
        return _event_text(run, entry.event)
    assert entry.attempt is not None
    return _began_text(run, entry.attempt) if entry.kind is StoryKind.BEGAN else _ended_text(run, entry.attempt)


def _action_text(action: Action) -> str:
    others = f" ({count_text(action.count, 'job')})" if action.count > 1 else ""
    detail = f": {action.detail}" if action.detail else ""
    return f"{action.what} by {action.who}{others}{detail}"


def _event_text(run: str, event: LinkEvent) -> str:
    why = f": {event.why}" if event.why else ""
    return f"{run}: {EVENTS[event.event]}{why}"


def _began_text(run: str, attempt: Attempt) -> str:
    version = f", version {attempt.version}" if attempt.version else ""
    place = f"{attempt.host}, pid {attempt.pid}, slot {attempt.slot}{version}"
    begin = f" from checkpoint {attempt.checkpoint_before}" if attempt.checkpoint_before else ""
    because, semicolon, lost = attempt.because.partition(";")
    return f"{run} began{begin}: {BECAUSE.get(because, because)}{semicolon}{lost}; {place}"


def _ended_text(run: str, attempt: Attempt) -> str:
    taken = span((attempt.ended_at or attempt.started_at) - attempt.started_at)
    error = ": ".join(part for part in (attempt.error_class, attempt.error_text) if part)
    parts = [
        attempt.reason,
        "" if (attempt.error_text or attempt.error_class) in attempt.reason else error,
        f"checkpoint {attempt.checkpoint_after}" if attempt.checkpoint_after else "",
        f"peak memory {size_text(attempt.peak_memory)}" if attempt.peak_memory is not None else "",
    ]
    details = "; ".join(dict.fromkeys(part for part in parts if part))
    ended = ENDED.get(attempt.outcome, attempt.outcome)
    return f"{run} {ended} after {taken}" + (f": {details}" if details else "")
