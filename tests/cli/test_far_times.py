"""Times that the local time zone cannot show, on every screen."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from steadyworker.adapter import Browsed, Depth
from steadyworker.backends.waiting import QueueNow
from steadyworker.cli import find, job_lines, queues, story_lines, workers
from steadyworker.cli.output import clock_time
from steadyworker.client import JobStatus, QueueSearch
from steadyworker.ledger.base import JobId, OwnerSeen, Progress, Row, State
from steadyworker.ledger.facts import Action, OwnerReport
from steadyworker.ledger.fleet import WorkerNow
from steadyworker.ledger.listing import ListedJob, Liveness
from steadyworker.ledger.story import StoryEntry, StoryKind
from steadyworker.outcome import JobState

NOW = 1_700_000_000.0
LAST = 253_402_300_799.0
"""The last second of the year 9999 in UTC."""

ODD = [LAST, LAST + 1, 1.7e12, 1e300, math.inf, -math.inf, math.nan, -1e300, -62_135_596_800.0, -1.0, 0.0]


@pytest.fixture(params=["Asia/Tokyo", "America/Los_Angeles", "UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Local time is ahead of UTC, behind it, or the same."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("odd", ODD)
def test_no_time_ends_a_screen(zone: str, odd: float) -> None:
    id = JobId("shop", "exports", "k-1")
    row = Row(id, "uid", State.RUNNING, created_at=odd, started_at=odd, due_in=odd, late_by=odd)
    job = ListedJob(row, Progress(1, 10, "", odd, (odd, 0.5)))
    entry = StoryEntry(odd, StoryKind.ACTION, action=Action("ann", "retry", "shop", "exports", ("k-1",), 1, at=odd))
    worker = WorkerNow(OwnerSeen("o", "h", (), odd, dead=False, report=OwnerReport(started_at=odd)), Liveness.ALIVE)
    queue = QueueNow("shop", "exports", Depth(next_due=odd, oldest_age=odd))
    search = QueueSearch(Browsed({}, due=odd, sent_at=odd), 1, "")
    for each in (job, replace(job, row=replace(row, state=State.MOVED)), replace(job, row=replace(row, ended_at=odd))):
        assert list(job_lines.lines_of([each], 140, NOW, verbose=True, bar=True))
        assert list(story_lines.story_lines(each, [entry], NOW, 140))
        assert story_lines.story_record(each, [entry], NOW)
    assert list(workers.lines_of([worker], 140, NOW, verbose=True))
    assert workers.as_record(worker)
    assert list(queues.lines_of([queue], 140, NOW, verbose=True))
    assert queues.as_record(queue)
    assert find._searched(search)
    assert find._recorded(JobStatus("k-1", JobState.DELAYED, due_at=odd))


def test_a_time_beyond_the_last_year_is_the_far_future(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert clock_time(LAST, NOW) == "far future"
    assert clock_time(math.inf, NOW) == "far future"
    assert clock_time(-math.inf, NOW) == "–"
    assert story_lines._moment(LAST) == "far future     "
    search = QueueSearch(Browsed({}, due=LAST + 1), 1, "")
    assert find._searched(search) == "message 1 is this job's: delayed until the far future."
    assert find._recorded(JobStatus("k-1", JobState.DELAYED, due_at=LAST + 1)) == "delayed, due at the far future"
    monkeypatch.undo()
    time.tzset()


def test_a_time_of_another_year_has_its_year(utc: None) -> None:
    assert clock_time(0.0, 300 * 86_400.0) == "01 Jan 00:00"
    assert clock_time(0.0, 400 * 86_400.0) == "01 Jan 1970 00:00"
