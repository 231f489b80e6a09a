"""Speed, what is left, and what stands still: over made-up evidence, for thousands of exports in a second."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from steadyworker.exports.spark.pace import Pace, Ratio, Stillness, note

CORES = 2
ROWS = 5_000_000


def ends(dice: random.Random, began: float, tasks: int, seconds: float, jitter: float) -> list[float]:
    """When the tasks of a stage end, each within the jitter of so many seconds."""
    free = [began] * CORES
    found = []
    for _ in range(tasks):
        core = free.index(min(free))
        free[core] += seconds * dice.uniform(1 - jitter, 1 + jitter)
        found.append(free[core])
    return sorted(found)


def told(
    pace: Pace, dice: random.Random, *, piece: float, sorting: int, writing: int, jitter: float
) -> Iterator[tuple[float, float, float | None, float | None]]:
    """A steady export: (now, seconds that are left in truth, seconds that we say, rows a second that we say)."""
    sampled = ends(dice, 0.0, sorting, piece / 2, jitter)
    sorted_ = ends(dice, sampled[-1], sorting, piece, jitter)
    written = ends(dice, sorted_[-1], writing, piece, jitter)
    over = written[-1]
    for done, now in enumerate(sampled, 1):
        pace.sorting(now, 0, (done, sorting), 0)
        yield now, over - now, pace.left(now), pace.rate
    for done, now in enumerate(sorted_, 1):
        pace.sorting(now, 1, (done, sorting), ROWS * done // sorting)
        yield now, over - now, pace.left(now), pace.rate
    pace.sorting(sorted_[-1], 2, (0, writing), 0)  # as long as it has no part, no stage is the writing one
    for done, now in enumerate(written, 1):
        pace.writing(now, ROWS * done // writing)
        yield now, over - now, pace.left(now), pace.rate
    pace.ended(over)


@pytest.mark.parametrize("jitter", [0.0, 0.3])
@pytest.mark.parametrize("piece", [0.2, 2.0, 20.0])
@pytest.mark.parametrize(("sorting", "writing"), [(40, 80), (60, 60), (20, 160)])
def test_what_is_left_of_a_steady_export_is_right_to_a_fifth_in_its_second_half(
    sorting: int, writing: int, piece: float, jitter: float
) -> None:
    """But for the task or two that are under way; the host has made exports like it before."""
    worst = 0.0
    for seed in range(40):
        dice = random.Random(seed)
        pace = Pace(Ratio(writing / sorting))
        seen = list(told(pace, dice, piece=piece, sorting=sorting, writing=writing, jitter=jitter))
        for now, truth, said, _ in seen:
            if now >= seen[-1][0] / 2 and truth > CORES * piece:
                assert said is not None
                worst = max(worst, (abs(said - truth) - piece) / truth)
    assert worst <= 0.2


def test_a_host_learns_from_its_exports() -> None:
    """Its first guess is wrong by half; after three exports what it says while it sorts is right."""
    ratio = Ratio()
    for seed in range(3):
        list(told(Pace(ratio), random.Random(seed), piece=1.0, sorting=40, writing=160, jitter=0.2))
    assert ratio.value == pytest.approx(4.0, rel=0.2)
    list(told(Pace(ratio), random.Random(3), piece=0.01, sorting=40, writing=40, jitter=0.2))
    assert ratio.value == pytest.approx(4.0, rel=0.2), "a short export teaches nothing"


def test_a_speed_is_that_of_the_last_minute() -> None:
    pace = Pace(Ratio())
    pace.sorting(10.0, 0, (1, 1), ROWS)
    for second in range(1, 201):
        pace.writing(10.0 + second, 10_000 * second)
    assert pace.rate == pytest.approx(10_000)
    for second in range(1, 101):
        pace.writing(210.0 + second, 2_000_000 + 1_000 * second)
    assert pace.rate == pytest.approx(1_000)
    assert pace.left(310.0) == pytest.approx(2_900, rel=0.01)
    assert pace.left(410.0) == pytest.approx(2_800, rel=0.01), "a minute without news is a minute"


def test_a_stage_that_begins_slowly_is_slow_only_once() -> None:
    """A cold JVM's first tasks take seconds longer; they say nothing of the others."""
    pace = Pace(Ratio(2.5))
    for second in range(11):
        pace.sorting(second, 0, (second, 10), ROWS * second // 10)
    rows, now = 0, 20.0
    while rows < ROWS:
        rows, now = rows + 100_000, now + 0.5
        pace.writing(now, rows)
        if rows >= 0.1 * ROWS:
            left = pace.left(now)
            assert left is not None
            assert left == pytest.approx((ROWS - rows) / 200_000, rel=0.2, abs=0.5)


def test_nothing_is_estimated_without_evidence() -> None:
    pace = Pace(Ratio())
    assert (pace.rate, pace.left(0.0)) == (None, None)
    pace.sorting(1.0, 0, (3, 9), 0)
    assert (pace.rate, pace.left(2.0)) == (None, None)
    alone = Pace(Ratio())
    alone.writing(1.0, 10)  # a result of one piece is not sorted first
    assert alone.left(2.0) is None


@pytest.mark.parametrize(
    ("rows", "rate", "left", "text"),
    [
        (0, None, None, "0 rows written"),
        (1_200_000, 84_321.0, 119.0, "1,200,000 rows written, 84,000 rows/s, about 2 min left"),
        (7, 0.3, 0.2, "7 rows written, 1 rows/s, about 1 s left"),
        (7, 123.0, 9_000.0, "7 rows written, 120 rows/s, about 2.5 h left"),
    ],
)
def test_what_a_bar_shows(rows: int, rate: float | None, left: float | None, text: str) -> None:
    assert note(rows, rate, left) == text


def test_slow_is_not_stuck() -> None:
    """A minute at least, and five times what the slowest task has taken."""
    still = Stillness(100.0, 60.0)
    assert still.saw(100.0, (0, 0))
    for second in range(101, 151):
        assert not still.saw(second, (0, 0))
    assert still.seconds(150.0) == 50.0
    assert (still.limit(0.0), still.limit(10.0), still.limit(20.0)) == (60.0, 60.0, 100.0)
    assert still.saw(151.0, (0, 1))
    assert still.seconds(152.0) == 1.0


def test_whoever_was_frozen_blames_nobody() -> None:
    """A container that was paused for an hour: nobody has looked, and nothing could move."""
    still = Stillness(0.0, 60.0)
    for second in (0, 1, 2, 3602, 3603):
        still.saw(second, "the same")
    assert still.seconds(3603) == 8.0, "an hour that counts as five seconds"


def test_a_job_whose_host_computes_is_stuck_five_times_later() -> None:
    """The tasks that compute are perhaps not its own."""
    still = Stillness(0.0, 60.0)
    still.saw(0.0, "the same")
    for second in range(1, 300):
        still.saw(second, "the same")
        still.computes(second)
        assert still.seconds(second) == 0.0
    for second in range(300, 361):
        still.saw(second, "the same")
        still.computes(second)
    assert still.seconds(360) == 61.0
    still.saw(361, "another")
    still.computes(400)
    assert still.seconds(401) == 1.0
