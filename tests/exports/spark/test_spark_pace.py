"""Whether a job moves, and what a user reads of the speed: over made-up evidence, without Spark."""

from __future__ import annotations

import pytest

from steadyworker.exports.spark.pace import Movement, note


def test_a_job_that_stands_still_for_its_limit_is_stuck() -> None:
    movement = Movement(0.0, 60.0)
    assert movement.saw(1.0, (1, 0))
    for now in range(2, 61):
        assert not movement.saw(now, (1, 0))
        assert movement.still(now) is None
    assert movement.still(61.0) == (60.0, 60.0)
    assert movement.saw(62.0, (2, 0)), "it moves again"
    assert movement.still(62.0) is None


def test_a_pause_like_those_before_is_granted_five_times_their_length() -> None:
    movement = Movement(0.0, 10.0)
    for now in range(20):
        movement.saw(now, "before")
    assert movement.saw(20.0, "after")
    for now in range(21, 120):
        movement.saw(now, "after")
        assert movement.still(now) is None
    movement.saw(120.0, "after")
    assert movement.still(120.0) == (100.0, 100.0)


@pytest.mark.parametrize(("share", "stuck_at"), [(0.02, 60), (0.5, 600)], ids=["idle", "it computes"])
def test_a_host_that_computes_gets_ten_times_as_long(share: float, stuck_at: int) -> None:
    """A few percent of a core are no evidence: a JVM that waits uses as much."""
    movement = Movement(0.0, 60.0)
    movement.saw(0.0, "begun")
    stuck = []
    for now in range(5, 700, 5):
        movement.saw(now, "begun")
        movement.computed(now, share * now)
        if movement.still(now):
            stuck.append(now)
    assert stuck[0] == stuck_at


def test_a_process_that_stood_still_itself_blames_no_job() -> None:
    movement = Movement(0.0, 60.0)
    movement.saw(0.0, "begun")
    movement.saw(3600.0, "begun")
    assert movement.still(3600.0) is None
    movement.saw(3604.0, "begun")
    assert movement.still(3604.0) is None


@pytest.mark.parametrize(
    ("rows", "total", "seconds", "shown"),
    [
        (0, 10, 0.0, "0 rows written"),
        (1_200_000, 3_000_000, 14.3, "1,200,000 rows written, 84,000 rows/s, about 21 s left"),
        (10, 20_000, 0.5, "10 rows written, 20 rows/s, about 17 min left"),
        (1, 3_601, 2.0, "1 rows written, 1 rows/s, about 2.0 h left"),
    ],
)
def test_a_note_has_the_speed_and_the_time_that_is_left(rows: int, total: int, seconds: float, shown: str) -> None:
    assert note(rows, total, seconds) == shown
