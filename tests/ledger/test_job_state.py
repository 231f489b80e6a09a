"""The state that users see, for each state of a row."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from steadyworker.ledger.base import JobId, Moving, Row, State
from steadyworker.outcome import JobState

ROW = Row(JobId("n", "q", "k"), "uid", State.MOVED, target=Moving.RETRY)


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (replace(ROW, state=State.RUNNING), JobState.RUNNING),
        (replace(ROW, state=State.INTERRUPTED), JobState.INTERRUPTED),
        (replace(ROW, state=State.INTERRUPTED, fence=7, cancel_reason="late"), JobState.INTERRUPTED),
        (replace(ROW, state=State.INTERRUPTED, fence=0, cancel_reason="late"), JobState.CANCEL_WAITING),
        (replace(ROW, reason="ValueError: odd", error_class="ValueError"), JobState.RETRYING),
        (replace(ROW, state=State.MOVING, reason="SIGKILL"), JobState.RETRYING),
        (replace(ROW, reason="snoozed for 60 s"), JobState.SCHEDULED),
        (replace(ROW, state=State.MOVING, reason="snoozed for 60 s"), JobState.SCHEDULED),
        (replace(ROW, reason="snoozed for the night", error_class="Retry"), JobState.RETRYING),
        (replace(ROW, state=State.DONE), JobState.DONE),
        (replace(ROW, state=State.DEAD, target=Moving.DEAD, reason="exhausted"), JobState.DEAD),
        (replace(ROW, state=State.MOVING, target=Moving.DEAD, reason="exhausted"), JobState.DEAD),
        (
            replace(ROW, state=State.DEAD, target=Moving.DEAD, reason="cancelled: late", cancel_reason="late"),
            JobState.CANCELLED,
        ),
        (
            replace(ROW, state=State.MOVING, target=Moving.DEAD, reason="cancelled: by the shop", cancel_reason="late"),
            JobState.DEAD,
        ),
        (replace(ROW, state=State.DEAD, target=Moving.DEAD, reason="cancelled: by the shop"), JobState.DEAD),
    ],
)
def test_each_row_is_shown_by_what_its_job_waits_for(row: Row, state: JobState) -> None:
    assert row.job_state is state
