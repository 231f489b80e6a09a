"""Times that are left, rates and durations: a range where the numbers give one, and nothing where they give none."""

from __future__ import annotations

import pytest

from steadyworker.dashboard.estimates import left_text, quantile_text, rate_text, runs_of
from steadyworker.ledger.base import JobId, Progress, Row, State
from steadyworker.ledger.facts import DURATIONS, Minute
from steadyworker.outcome import Counters

NOW = 10_000.0


def row(
    started_at: float | None = NOW - 1000, checkpoint: bytes | None = None, counters: Counters | None = None
) -> Row:
    return Row(
        JobId("n", "q", "k"),
        "u",
        State.RUNNING,
        started_at=started_at,
        checkpoint=checkpoint,
        counters=counters or Counters(),
    )


def progress(done: float, before: tuple[float, float] | None, total: float | None = 100.0, at: float = NOW) -> Progress:
    return Progress(done, total, "", at, before)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((row(), progress(50, (NOW - 100, 45))), "about 16 min 40 s"),
        ((row(), progress(50, (NOW - 100, 40))), "8 min 20 s to 16 min 40 s"),
        ((row(), progress(50, (NOW - 1000, 45))), "16 min 40 s to 2 h 46 min"),
        ((row(checkpoint=b"1"), progress(50, (NOW - 100, 40))), "about 8 min 20 s"),
        ((row(counters=Counters(crashes=1)), progress(50, (NOW - 100, 40))), "about 8 min 20 s"),
        ((row(), progress(50, None)), ""),
        ((row(), progress(50, (NOW - 100, 50))), ""),
        ((row(), progress(50, (NOW - 100, 40), total=None)), ""),
        ((row(), None), ""),
        ((row(started_at=None), progress(50, (NOW - 100, 40))), "about 8 min 20 s"),
    ],
)
def test_the_time_left_is_a_range_or_nothing(values: tuple[Row, Progress | None], expected: str) -> None:
    assert left_text(*values, NOW) == expected


@pytest.mark.parametrize(
    ("done", "before", "expected"),
    [
        (1000, (NOW - 100, 0), "10 a second"),
        (50, (NOW - 100, 0), "30 a minute"),
        (1, (NOW - 1000, 0), "3.6 an hour"),
        (0.001, (NOW - 1000, 0), "under 1 an hour"),
        (50, (NOW - 100, 50), "0 an hour"),
        (50, (NOW - 100, 60), ""),
        (50, None, ""),
    ],
)
def test_a_rate_has_the_unit_in_which_it_is_a_number(
    done: float, before: tuple[float, float] | None, expected: str
) -> None:
    assert rate_text(progress(done, before)) == expected


def counts(**runs: int) -> list[int]:
    found = [0] * (len(DURATIONS) + 1)
    for name, number in runs.items():
        found[int(name.removeprefix("c"))] = number
    return found


@pytest.mark.parametrize(
    ("runs", "median", "p95"),
    [
        (counts(), "", ""),
        (counts(c0=1), "under 0.1 s", "under 0.1 s"),
        (counts(c3=19, c6=1), "10 s–1 min", "10 s–1 min"),
        (counts(c3=18, c6=2), "10 s–1 min", "15 min–30 min"),
        (counts(c11=3), "over 8 h", "over 8 h"),
    ],
)
def test_a_quantile_is_the_class_that_has_it(runs: list[int], median: str, p95: str) -> None:
    assert (quantile_text(runs, 0.5), quantile_text(runs, 0.95)) == (median, p95)


def test_only_runs_that_are_done_have_a_duration_and_only_failures_fail() -> None:
    minutes = [
        Minute("n", "q", 0, outcome, tuple(counts(c2=number)))
        for number, outcome in enumerate(
            ("done", "failed", "rejected", "crashed", "retry", "snoozed", "interrupted", "cancelled"), 1
        )
    ]
    found = runs_of([*minutes, Minute("n", "q", 60, "done", tuple(counts(c2=4)))])
    assert (found.done, found.failed, found.median) == (5, 9, "1 s–10 s")
