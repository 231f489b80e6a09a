"""Fixtures for the tests of a ledger: they open a ledger, let time pass, and bring a job into each state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from steadyworker.clock import Times
from steadyworker.ledger.base import Claimed, JobId, Ledger, Moving, Row, State, Token, Verdict
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock

BODY = b"\x01" * 32
OTHER_BODY = b"\x02" * 32
JOB = JobId("shop", "exports", "m-17")
ME, OTHER = "host/boot/me", "host/boot/other"
AGAIN = Verdict(
    Moving.RETRY, "ValueError: no", Counters(attempts=1), delay=20.0, error_class="ValueError", error_text="no"
)
DEAD_END = Verdict(Moving.DEAD, "exhausted", Counters(attempts=5))


class LedgerBench:
    """
    Base of the ledger tests; a subclass implements `make_ledger` and `saved`.

    Attributes:
        times: The ledger's durations. A suite for a ledger with its own clock scales the durations down, so that no test waits long.
        own_clock: True if the ledger reads its own clock (a server's clock); the suite then skips tests in which days pass.
        durable: True if the record survives a close of the ledger.
    """

    times = Times()
    own_clock = False
    durable = True

    def make_ledger(self, place: Path, clock: FakeClock, times: Times) -> Ledger:
        """
        Open the ledger at this place.

        The same place has the same record, even if a ledger is already open there.
        """
        raise NotImplementedError

    def saved(self, ledger: Ledger, place: Path) -> Callable[[], object]:
        """
        Copy the record of this open ledger.

        Return a function that sets the record back to the copy, as a restored backup does.
        """
        raise NotImplementedError

    def let_pass(self, clock: FakeClock, seconds: float) -> None:
        """Move the ledger's clock forward; a suite for a ledger with its own clock waits instead."""
        clock.advance(seconds)

    @pytest.fixture
    def clock(self) -> FakeClock:
        """Return the clock of this test."""
        return FakeClock()

    @pytest.fixture
    def ledger(self, tmp_path: Path, clock: FakeClock) -> Iterator[Ledger]:
        """Open an empty ledger, and close it when the test ends."""
        ledger = self.make_ledger(tmp_path, clock, self.times)
        yield ledger
        ledger.close()

    def lease_ends(self, clock: FakeClock) -> None:
        """Wait for the duration of a whole lease and its margin."""
        self.let_pass(clock, self.times.lease + self.times.margin + 0.01)


def claimed(ledger: Ledger, id: JobId = JOB, owner: str = ME, seen: Row | None = None, hop: int = 0) -> Row:
    """Claim a job, fail the test if the claim is refused, and return the row."""
    counters = seen.counters if seen else Counters()
    row = ledger.claim(Claimed(id, seen, owner, hop, BODY, counters))
    assert row is not None, "a claim was refused"
    return row


def in_state(ledger: Ledger, state: State, *, id: JobId = JOB, checkpoint: bytes | None = None) -> tuple[Row, Token]:
    """Bring a job into this state, with this checkpoint, and return the job's row and the token of its last run."""
    token = claimed(ledger, id).token
    if checkpoint is not None:
        assert ledger.checkpoint(token, checkpoint)
    match state:
        case State.INTERRUPTED:
            assert ledger.interrupted(token, Counters(interruptions=1))
        case State.DONE:
            assert ledger.done(token)
        case State.MOVING:
            assert ledger.moving(token, AGAIN)
        case State.MOVED:
            assert ledger.moving(token, AGAIN)
            assert ledger.moved(token)
        case State.DEAD:
            assert ledger.moving(token, DEAD_END)
            assert ledger.moved(token)
        case State.RUNNING:
            pass
    return seen(ledger, id), token


def seen(ledger: Ledger, id: JobId = JOB) -> Row:
    """Return the row; fail the test if there is none."""
    row = ledger.read(id)
    assert row is not None, "the row is gone"
    return row


def timeless(row: Row) -> Row:
    """Return the row without the values that change with the clock."""
    return replace(row, due_in=0.0, late_by=0.0)
