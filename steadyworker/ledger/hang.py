"""
Whether a run may hang: one rule for every list, page and command.

A run that has reported progress may hang after half an hour without any, and a run of many steps already after twenty of them.
But it may not hang within five minutes, or within twice the time between the last two samples of its progress (a minute or more apart).
Without two such samples, its usual step is not known: the run may have begun at a checkpoint.
So a run with few steps, with long or uneven ones, or with nothing left to do has its half hour, or longer.
Only a run whose worker process lives may hang; a run that has reported no progress has no such verdict.
"""

from __future__ import annotations

from steadyworker.ledger.base import Progress, Row

STUCK_AFTER = 1800.0
"""Seconds without progress after which any run that has reported progress may hang."""

MANY_DONE = 10
"""The amount of work from which a run counts as one of many steps."""

USUAL_STEPS = 20
"""A run of many steps may hang after so many of its usual steps without progress."""

SOONEST = 6.0
"""No run may hang within this part of `STUCK_AFTER`: a sixth of it, five minutes."""

SAMPLES_APART = 2
"""A run may not hang within so many times the time between its last two samples."""


def longest_silence(started_at: float | None, progress: Progress, stalled: float = STUCK_AFTER) -> float:
    """Return the seconds without progress that are usual for this run; `stalled` is the value for a run without usual steps."""
    done, (at, before) = progress.done, progress.before or (started_at or 0.0, 0.0)
    if done is None or done <= before or progress.at < at:
        return stalled
    window, usual = progress.at - at, stalled
    if (
        progress.before is not None
        and done >= MANY_DONE
        and before >= 0
        and (not progress.total or done < progress.total)
    ):
        usual = min(stalled, max(USUAL_STEPS * window / (done - before), stalled / SOONEST))
    return max(usual, SAMPLES_APART * window)


def is_silent(started_at: float | None, progress: Progress | None, now: float, stalled: float = STUCK_AFTER) -> bool:
    """Return whether a run has reported progress, but none for unusually long; a sample from before its start is not its own."""
    if progress is None or progress.at < (started_at or 0.0):
        return False
    return now - progress.at > longest_silence(started_at, progress, stalled)


def step_of(row: Row, progress: Progress | None) -> float | None:
    """Return the seconds for one unit of work: in the last minutes of the progress, or since the run began; None if unknown."""
    if progress is None or progress.done is None:
        return None
    counters = row.counters
    again = counters.attempts or counters.crashes or counters.losses or counters.interruptions or row.id.round
    if progress.before is None and (again or row.checkpoint_fence not in (None, row.fence)):
        return None  # the run may have begun at a checkpoint, and its first amount of work is not recorded
    at, done = progress.before or (row.started_at, 0.0)
    if at is None or progress.done <= done or progress.at < at:
        return None
    return (progress.at - at) / (progress.done - done)
