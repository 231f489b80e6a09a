"""
The code of facts that all ledgers share: safe texts, the JSON of reports and depths, and the groups of counts.

Every text of a fact is cut and redacted here, because it can come from a broker, a library or a person.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace as with_fields
from itertools import groupby

import msgspec
from msgspec.structs import replace

from steadyworker.adapter import Depth
from steadyworker.ledger.facts import (
    CHECKPOINT_SHOWN,
    DURATIONS,
    MOST_KEYS,
    Action,
    LinkEvent,
    Minute,
    OwnerReport,
    ReportedFinding,
)
from steadyworker.text.plain_text import plain_text

_LONGEST = 500
"""The largest number of characters in a text of a fact."""

_LONGEST_NAME = 200
"""The largest number of characters in a name, such as the name of a person."""

_MOST_TEXTS = 20
"""The largest number of findings, and of reasons, in a report."""

Count = tuple[int, str, str, str, int, int]
"""A row of counts: the start of the minute, namespace, queue, outcome, the number of the class, and the number of runs."""


def safe_text(text: str) -> str:
    """Return a text of a fact, without secrets, and cut."""
    return plain_text(text, _LONGEST)


def safe_name(name: str) -> str:
    """Return a name in a fact, without secrets, and cut."""
    return plain_text(name, _LONGEST_NAME)


def safe_key(key: str) -> str:
    """Return a job's key in a fact, without secrets, and cut."""
    return plain_text(key, _LONGEST)


def safe_checkpoint(checkpoint: bytes | None) -> str | None:
    """Return the beginning of a checkpoint as an attempt keeps it, without secrets, and cut; None without a checkpoint."""
    return None if checkpoint is None else plain_text(checkpoint, CHECKPOINT_SHOWN)


def safe_event(event: LinkEvent) -> LinkEvent:
    """Return the event with safe texts."""
    return replace(event, why=safe_text(event.why))


def safe_action(action: Action) -> Action:
    """Return the action with safe texts, and at most `MOST_KEYS` keys."""
    keys = tuple(safe_key(key) for key in action.keys[:MOST_KEYS])
    return replace(
        action, who=safe_name(action.who), what=safe_name(action.what), keys=keys, detail=safe_text(action.detail)
    )


def safe_report(report: OwnerReport) -> OwnerReport:
    """Return the report with safe texts, and at most 20 of each kind."""
    findings = tuple(
        ReportedFinding(found.id, found.level, safe_text(found.text)) for found in report.findings[:_MOST_TEXTS]
    )
    return replace(report, not_ready=tuple(safe_text(why) for why in report.not_ready[:_MOST_TEXTS]), findings=findings)


def safe_depth(depth: Depth) -> Depth:
    """Return the depth with safe texts."""
    return with_fields(depth, why={name: safe_text(why) for name, why in depth.why.items()})


def report_text(report: OwnerReport | None) -> str | None:
    """Return the JSON of a report with safe texts."""
    return None if report is None else msgspec.json.encode(safe_report(report)).decode()


def report_of(text: str | None) -> OwnerReport | None:
    """Return the report in this JSON; None if there is none, or if a later version of SteadyWorker wrote it in another form."""
    with suppress(msgspec.MsgspecError):
        return None if text is None else msgspec.json.decode(text, type=OwnerReport)
    return None


def depth_text(depth: Depth) -> str:
    """Return the JSON of a depth with safe texts."""
    return msgspec.json.encode(safe_depth(depth)).decode()


def depth_of(text: str) -> Depth:
    """Return the depth in this JSON; without numbers if a later version of SteadyWorker wrote it in another form."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(text, type=Depth)
    return Depth.unknown("a later version of SteadyWorker has measured it")


def counts_of(minutes: Iterable[Minute]) -> Iterator[Count]:
    """Yield the row of each class with runs."""
    for minute in minutes:
        for number, runs in enumerate(minute.counts):
            if runs:
                yield minute.at, minute.namespace, minute.queue, minute.outcome, number, runs


def minutes_of(counts: Sequence[Count]) -> list[Minute]:
    """Return the minutes of these rows, which are in order."""
    found = []
    for (at, namespace, queue, outcome), rows in groupby(counts, key=lambda row: row[:4]):
        classes = [0] * (len(DURATIONS) + 1)
        for *_, number, runs in rows:
            classes[min(number, len(DURATIONS))] += runs
        found.append(Minute(namespace, queue, at, outcome, tuple(classes)))
    return found
