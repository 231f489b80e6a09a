"""Which run may hang: the rule itself, and that each ledger has the same."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from steadyworker.clock import Times
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Ledger, Need, NeedsOf, Progress, Row
from steadyworker.ledger.hang import STUCK_AFTER, is_silent, longest_silence
from steadyworker.ledger.listing import Listing, Wanted
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.ledger.pgkit import Admin, Open

Sample = tuple[float, float | None]
"""The seconds since the start of the run, and what is done."""

RULE: list[tuple[list[Sample], float | None, float]] = [
    ([(0.0, None)], None, 1800.0),
    ([(60.0, 0)], 100, 1800.0),
    ([(5.0, 1)], 3, 1800.0),
    ([(5.0, 9)], 100, 1800.0),
    ([(5.0, 10)], 100, 1800.0),
    ([(5.0, 100)], 100, 1800.0),
    ([(5.0, 10)], None, 1800.0),
    ([(200.0, 10)], 100, 1800.0),
    ([(2400.0, 1)], 3, 4800.0),
    ([(0.0, 1), (60.0, 20)], 100, 300.0),
    ([(0.0, 1), (60.0, 4), (125.0, 11)], 100, 300.0),
    ([(0.0, 500), (60.0, 501), (145.0, 504)], 1000, 85 / 3 * 20),
    ([(0.0, 1), (60.0, 20), (119.0, 40)], 100, 300.0),
    ([(0.0, 10), (60.0, 10)], 100, 1800.0),
    ([(300.0, 1e6), (600.0, 2e6)], 9e6, 600.0),
    ([(0.0, 10), (3000.0, 11)], 100, 6000.0),
    ([(0.0, -5), (60.0, 20)], 100, 1800.0),
    ([(0.0, 10), (60.0, 5)], 100, 1800.0),
]
"""The samples of a run, its total, and the longest silence after the last of them that is usual."""

NEEDS = NeedsOf(None, None, overdue=1e6, lost=9, stalled=STUCK_AFTER, dead=1e6)


def claimed(ledger: Ledger, key: str) -> Row:
    id, message = JobId("shop", "exports", key), KeptMessage(b"", b"")
    row = ledger.claim(Claimed(id, None, "me", 0, b"\1" * 32, Counters(), message))
    assert row is not None
    return row


def before_of(samples: list[Sample]) -> Sample | None:
    """The earlier sample that a ledger keeps."""
    mark, before = samples[0], None
    for sample in samples[1:]:
        if sample[0] - mark[0] >= 60.0:
            before, mark = mark, sample
    return before


@pytest.mark.parametrize(("samples", "total", "expected"), RULE)
def test_the_longest_silence_is_that_of_the_usual_steps(
    samples: list[Sample], total: float | None, expected: float
) -> None:
    (at, done), before = samples[-1], before_of(samples)
    known = None if before is None or before[1] is None else (before[0], before[1])
    progress = Progress(done, total, "", at, known)
    assert longest_silence(0.0, progress) == pytest.approx(expected)
    assert not is_silent(0.0, progress, at + expected - 1.0)
    assert is_silent(0.0, progress, at + expected + 1.0)


@pytest.mark.parametrize("kind", [MemoryLedger, SqliteLedger])
def test_each_ledger_has_this_rule(kind: type[MemoryLedger | SqliteLedger], tmp_path: Path) -> None:
    clock = FakeClock()
    ledger = (
        SqliteLedger(tmp_path / "l.db", clock=clock, times=Times())
        if kind is SqliteLedger
        else MemoryLedger(clock, Times())
    )
    with closing(ledger):
        ledger.bind("shop", "exports", "shop")
        for number, (samples, total, _) in enumerate(RULE):
            row = claimed(ledger, f"k-{number}")
            start = row.started_at or 0.0
            for at, done in samples:
                ledger.progress(row.token, Progress(done, total, "", start + at))
        start = clock.wall()
        for seconds in sorted(
            {round(samples[-1][0] + expected) + more for samples, _, expected in RULE for more in (-1, 2)}
        ):
            clock.advance(start + seconds - clock.wall())
            rows = [row for row, _ in ledger.jobs()]
            ledger.renew([row.token for row in rows])
            hung = {
                f"k-{number}"
                for number, (samples, _, expected) in enumerate(RULE)
                if seconds > samples[-1][0] + expected
            }
            page = ledger.running(NEEDS, 0, 99)
            assert {row.id.key for row, _, need in page.jobs if need is Need.STUCK} == hung
            assert [need is Need.STUCK for _, _, need in page.jobs] == sorted(
                (need is Need.STUCK for _, _, need in page.jobs), reverse=True
            )
            assert {row.id.key for row, _, need in ledger.needing(NEEDS, 0, 99).jobs if need is Need.STUCK} == hung
            assert {key for held in ledger.held(STUCK_AFTER) for key in held.stalled} == hung
            keyed = Wanted(keys=tuple(row.id.key for row in rows))
            assert {
                job.row.id.key for job in Listing(ledger, keyed, clock.wall()).jobs() if job.need is Need.STUCK
            } == hung


def test_postgresql_has_this_rule(opened: Open, admin: Admin) -> None:
    """Its clock is the server's, so the start and the samples lie as far in the past as the test needs."""
    ledger = opened(times=Times())
    for number, (samples, total, expected) in enumerate(RULE):
        for kind, more in (("usual", -5.0), ("hung", 2.0)):
            row = claimed(ledger, f"{kind}-{number}")
            past = samples[-1][0] + expected + more
            for at, done in samples:
                ledger.progress(row.token, Progress(done, total, "", (row.started_at or 0.0) + at - past))
            earlier = "UPDATE steadyworker_jobs SET started_at = started_at - make_interval(secs => %s) WHERE key = %s"
            admin.execute(earlier, [past, row.id.key])
    hung = {f"hung-{number}" for number in range(len(RULE))}
    for page in (ledger.running(NEEDS, 0, 99), ledger.needing(NEEDS, 0, 99)):
        assert {row.id.key for row, _, need in page.jobs if need is Need.STUCK} == hung
    assert {key for held in ledger.held(STUCK_AFTER) for key in held.stalled} == hung
