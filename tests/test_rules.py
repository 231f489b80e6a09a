"""The decision table of the ledger, line by line: a row, a hop, who runs it, and what a delivery is answered with."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.ledger.base import JobId, Moving, Row, State
from steadyworker.ledger.rules import (
    AckDuplicate,
    Action,
    Adopt,
    Claim,
    Defer,
    Finish,
    HeldBy,
    KeyConflict,
    LostTooOften,
    Replay,
    action_for,
)
from steadyworker.outcome import Counters

BODY, OTHER = b"\1" * 32, b"\2" * 32
CARRIED = Counters(attempts=2, crashes=1)
COUNTED = Counters(attempts=3, losses=1)
MAX_LOSSES = 5
ANYBODY = list(HeldBy)


def row(state: State, **fields: Any) -> Row:
    given = {"body_sha256": BODY, "hop": 4, "fence": 100, "owner": "o", "counters": COUNTED}
    return Row(JobId("n", "q", "k"), "uid", state, **{**given, **fields})


def ask(seen: Row | None, ahead: int, who: HeldBy, body: bytes = BODY, *, letter: bool = False) -> Action:
    return action_for(seen, (seen.hop if seen else 0) + ahead, body, who, CARRIED, MAX_LOSSES, letter=letter)


RETRY = {"target": Moving.RETRY}
DYING = {"target": Moving.DEAD}
SAVED = {"checkpoint_fence": 100}
SAVED_BEFORE = {"checkpoint_fence": 99}
LOST = Counters(attempts=3, losses=4)

# The lines of ledger.md in their order: (row's state, its fields, hops ahead, who, action).
LINES: list[tuple[State, dict[str, Any], list[int], list[HeldBy], Action]] = [
    (State.DONE, {}, [-1, 0, 1], ANYBODY, AckDuplicate(State.DONE)),
    (State.DEAD, DYING, [-1, 0, 1], ANYBODY, AckDuplicate(State.DEAD)),
    (State.RUNNING, {}, [-1, -3], ANYBODY, AckDuplicate(State.RUNNING)),
    (State.MOVING, RETRY, [-1], ANYBODY, AckDuplicate(State.MOVING)),
    (State.MOVED, RETRY, [-1], ANYBODY, AckDuplicate(State.MOVED)),
    (State.INTERRUPTED, {}, [-1], ANYBODY, AckDuplicate(State.INTERRUPTED)),
    (State.INTERRUPTED, {}, [0, 1, 2], ANYBODY, Claim(COUNTED)),
    (State.MOVED, RETRY, [0], ANYBODY, AckDuplicate(State.MOVED)),
    (State.MOVED, RETRY | {"due_in": 7.0}, [1, 2], ANYBODY, Defer(7.0)),
    (State.MOVING, RETRY | {"due_in": 7.0}, [1, 2], ANYBODY, Defer(7.0)),
    (State.MOVED, RETRY | {"due_in": 1.0}, [1, 2], ANYBODY, Claim(COUNTED)),
    (State.MOVED, RETRY, [1, 2], ANYBODY, Claim(COUNTED)),
    (State.MOVING, RETRY, [1], ANYBODY, Claim(COUNTED)),
    (State.RUNNING, {}, [0, 1], [HeldBy.DETACHED], Adopt()),
    (State.MOVING, RETRY, [0], [HeldBy.DETACHED], Adopt()),
    (State.MOVING, DYING, [0, 1], [HeldBy.DETACHED], Adopt()),
    (State.RUNNING, {}, [0, 1], [HeldBy.MINE, HeldBy.ALIVE], Defer()),
    (State.MOVING, RETRY, [0], [HeldBy.MINE, HeldBy.ALIVE], Defer()),
    (State.MOVING, DYING, [0, 1], [HeldBy.MINE, HeldBy.ALIVE], Defer()),
    (State.MOVING, RETRY, [0], [HeldBy.LOST, HeldBy.GONE], Finish()),
    (State.MOVING, DYING, [0, 1], [HeldBy.LOST, HeldBy.GONE], Finish()),
    (State.RUNNING, {}, [0, 1], [HeldBy.LOST], Claim(COUNTED)),
    (State.RUNNING, {}, [0, 1], [HeldBy.GONE], Claim(Counters(attempts=3, losses=2), lost=True)),
    (State.RUNNING, SAVED_BEFORE, [0], [HeldBy.GONE], Claim(Counters(attempts=3, losses=2), lost=True)),
    (State.RUNNING, SAVED, [0], [HeldBy.GONE], Claim(Counters(attempts=3, losses=1), lost=True)),
    (State.RUNNING, SAVED | {"counters": LOST}, [0], [HeldBy.GONE], Claim(Counters(attempts=3, losses=1), lost=True)),
    (
        State.RUNNING,
        {"counters": LOST},
        [0, 1],
        [HeldBy.GONE],
        LostTooOften(Counters(attempts=3, losses=5), "owner lost ×5"),
    ),
]
CASES = [
    pytest.param(row(state, **fields), ahead, who, action, id=f"{state} {fields or ''} {ahead:+} {who.value}")
    for state, fields, hops, whos, action in LINES
    for ahead, who in itertools.product(hops, whos)
]


@pytest.mark.parametrize(("seen", "ahead", "who", "action"), CASES)
def test_each_line_of_the_table(seen: Row, ahead: int, who: HeldBy, action: Action) -> None:
    assert ask(seen, ahead, who) == action


def test_no_row_is_claimed_with_the_counters_of_the_headers() -> None:
    assert ask(None, 0, HeldBy.GONE) == Claim(CARRIED)
    assert ask(None, 3, HeldBy.GONE) == Claim(CARRIED)


@pytest.mark.parametrize(("seen", "ahead", "who"), [(case.values[0], case.values[1], case.values[2]) for case in CASES])
def test_another_body_is_a_conflict_before_anything_else(seen: Row, ahead: int, who: HeldBy) -> None:
    assert ask(seen, ahead, who, OTHER) == KeyConflict()


def test_a_job_that_was_cancelled_before_it_came_matches_any_body() -> None:
    cancelled = row(State.INTERRUPTED, body_sha256=None, hop=0)

    assert ask(cancelled, 0, HeldBy.GONE, OTHER) == Claim(COUNTED)


@pytest.mark.parametrize(("seen", "ahead", "who", "action"), CASES)
def test_a_letter_that_was_moved_replays_a_job_that_is_dead_and_is_a_message_like_any_other_else(
    seen: Row, ahead: int, who: HeldBy, action: Action
) -> None:
    dead = seen.state is State.DEAD or seen.target is Moving.DEAD
    assert ask(seen, ahead, who, letter=True) == (Replay() if dead else action)
    assert ask(seen, ahead, who, OTHER, letter=True) == KeyConflict()


def test_a_letter_whose_row_is_gone_is_a_replay() -> None:
    """Its record is kept for 30 days; a copy of the letter that comes later must not be another round than the first."""
    assert ask(None, 0, HeldBy.GONE, letter=True) == Replay()


@given(
    st.sampled_from(State),
    st.sampled_from(HeldBy),
    st.integers(-3, 3),
    st.sampled_from([None, *Moving]),
    st.floats(0, 100),
    st.integers(0, 9),
)
def test_the_table_has_an_answer_for_everything(
    state: State, who: HeldBy, ahead: int, target: Moving | None, due_in: float, losses: int
) -> None:
    """Whatever is running or moving under a living owner is never claimed, and what has ended is never run again."""
    action = ask(row(state, target=target, due_in=due_in, counters=Counters(losses=losses)), ahead, who)

    if state in (State.DONE, State.DEAD):
        assert isinstance(action, AckDuplicate)
    if isinstance(action, Claim | LostTooOften) and state is State.RUNNING:
        assert who in (HeldBy.LOST, HeldBy.GONE)
    if isinstance(action, Adopt):
        assert who is HeldBy.DETACHED
