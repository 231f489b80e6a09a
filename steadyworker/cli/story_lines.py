"""The story of one job as text for people, and as a record for `--json`."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from steadyworker.cli.job_lines import as_record, progress_text, state_text, why
from steadyworker.cli.output import FAR, ago, instant, json_or_text, local_time, tries
from steadyworker.ledger.facts import Action, Attempt, LinkEvent
from steadyworker.ledger.listing import ListedJob
from steadyworker.ledger.need_words import reason_text
from steadyworker.ledger.story import StoryEntry, StoryKind
from steadyworker.ledger.story_words import BECAUSE, ENDED, EVENTS
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact, without_secrets
from steadyworker.units import count_text, size_text, span

RESULT_SHOWN = 2000
"""The number of characters of a job's result that `show` prints without -v."""

_INDENT = " " * 17


def story_record(
    job: ListedJob, entries: Sequence[StoryEntry], now: float, result: bytes | None = None
) -> dict[str, Any]:
    """Return the record of a job as `jobs --json` prints it, with its result (JSON text) and its story."""
    value = None if result is None else without_secrets(json_or_text(result))
    return {**as_record(job, now), "result": value, "story": [_entry_record(entry) for entry in entries]}


def _entry_record(entry: StoryEntry) -> dict[str, Any]:
    fact = entry.attempt or entry.event or entry.action
    details: dict[str, Any] = {
        name: redact(value) if isinstance(value, str) else value for name, value in msgspec.to_builtins(fact).items()
    }
    times: dict[str, Any] = {
        name: instant(details[name]) for name in ("at", "started_at", "ended_at") if name in details
    }
    head = {"at": instant(entry.at), "kind": entry.kind.value, "run": entry.number or None}
    return {**details, **times, **head}


def story_lines(
    job: ListedJob,
    entries: Sequence[StoryEntry],
    now: float,
    width: int,
    result: bytes | None = None,
    *,
    verbose: bool = False,
) -> Iterator[str]:
    """
    Yield the lines of a job's story: its state, what it needs and its result (JSON text), then one entry after the other.

    Without `verbose`, only the last traceback is printed, and a long result is cut.
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
        "" if result is None else f"result: {_result_text(result, whole=verbose)}",
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


def _result_text(result: bytes, *, whole: bool) -> str:
    """Return a result without recognised secrets; if it is long, only its beginning, unless `whole` is true."""
    value = json_or_text(result)
    text = value if isinstance(value, str) else msgspec.json.encode(without_secrets(value)).decode()
    if whole or len(text) <= RESULT_SHOWN:
        return text
    return f"{redact(text)[:RESULT_SHOWN]}… ({count_text(len(result), 'byte')}; -v prints all)"


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
    shown = local_time(at)
    text = (FAR if at > 0 else "–") if shown is None else time.strftime("%d %b %H:%M:%S", shown)
    return text.ljust(15)


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
        reason_text(attempt.reason),
        "" if (attempt.error_text or attempt.error_class) in attempt.reason else error,
        f"checkpoint {attempt.checkpoint_after}" if attempt.checkpoint_after else "",
        f"peak memory {size_text(attempt.peak_memory)}" if attempt.peak_memory is not None else "",
    ]
    details = "; ".join(dict.fromkeys(part for part in parts if part))
    ended = ENDED.get(attempt.outcome, attempt.outcome)
    return f"{run} {ended} after {taken}" + (f": {details}" if details else "")
