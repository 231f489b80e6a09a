"""The time that a run still needs, and the durations of past runs, as ranges that the ledger's numbers support."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from steadyworker.ledger.base import Progress, Row
from steadyworker.ledger.facts import DURATIONS, Minute
from steadyworker.ledger.listing import time_left
from steadyworker.units import amount, span

_CLOSE = 1.1
"""The ratio up to which two estimates count as one."""


def left_text(row: Row, progress: Progress | None, now: float) -> str:
    """
    Return the time that is left as text, such as `5 min 00 s to 8 min 20 s`; an empty text if it is unknown.

    One bound is by the rate of the last minutes, the other by the rate since the run began.
    A run that may have begun at a checkpoint has only the first, because its first amount of work is not recorded.
    """
    recent = time_left(progress, now)
    if recent is None or progress is None:
        return ""
    whole = _left_by_whole_run(row, progress, now)
    low, high = min(recent, whole or recent), max(recent, whole or recent)
    if high <= low * _CLOSE or high - low < 1:
        return f"about {span(high)}"
    return f"{span(low)} to {span(high)}"


def rate_text(progress: Progress | None) -> str:
    """Return the rate of the last minutes, such as `3.4 a second` or `12 a minute`; an empty text if it is unknown."""
    if progress is None or progress.done is None or progress.before is None:
        return ""
    at, done = progress.before
    if progress.at <= at or progress.done < done:
        return ""
    rate = (progress.done - done) / (progress.at - at)
    for unit, seconds in (("a second", 1), ("a minute", 60), ("an hour", 3600)):
        if rate * seconds >= 1:
            return f"{amount(round(rate * seconds, 1))} {unit}"
    return "0 an hour" if rate == 0 else "under 1 an hour"


def _left_by_whole_run(row: Row, progress: Progress, now: float) -> float | None:
    again = row.checkpoint is not None or any(
        (row.counters.attempts, row.counters.interruptions, row.counters.losses, row.counters.crashes)
    )
    if again or row.started_at is None or not progress.done or progress.total is None or progress.at <= row.started_at:
        return None
    rate = progress.done / (progress.at - row.started_at)
    return max(0.0, (progress.total - progress.done) / rate - (now - progress.at))


class RunsOfQueue(Struct, frozen=True):
    """
    The runs of a queue that ended within a time.

    Attributes:
        done, failed: The numbers of runs; a run that was interrupted, snoozed, cancelled or asked for a retry is neither.
        median, p95: The range with the duration that half, or 95 %, of the runs that are done do not exceed; empty without such runs.
    """

    done: int = 0
    failed: int = 0
    median: str = ""
    p95: str = ""


_FAILED = ("failed", "rejected", "crashed")


def runs_of(minutes: Iterable[Minute]) -> RunsOfQueue:
    """Return what these minutes of one queue have counted."""
    counts = [0] * (len(DURATIONS) + 1)
    failed = 0
    for minute in minutes:
        if minute.outcome == "done":
            counts = [sum(pair) for pair in zip(counts, minute.counts, strict=True)]
        elif minute.outcome in _FAILED:
            failed += minute.runs
    return RunsOfQueue(sum(counts), failed, quantile_text(counts, 0.5), quantile_text(counts, 0.95))


def quantile_text(counts: Sequence[int], share: float) -> str:
    """Return the class of durations that has this quantile, such as `10 s–1 min`; the counts are those of `DURATIONS`."""
    wanted = math.ceil(sum(counts) * share)
    seen = 0
    for number, runs in enumerate(counts):
        seen += runs
        if wanted and seen >= wanted:
            if number == 0:
                return f"under {_bound(DURATIONS[0])}"
            if number == len(DURATIONS):
                return f"over {_bound(DURATIONS[-1])}"
            return f"{_bound(DURATIONS[number - 1])}–{_bound(DURATIONS[number])}"
    return ""


def _bound(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
