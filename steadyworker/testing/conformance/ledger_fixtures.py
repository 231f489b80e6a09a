"""What the tests of a ledger are given: how one is made, how time passes, and a job in every state."""

from __future__ import annotations

from collections.abc import Iterator
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
    What a subclass says of its ledger.

    Attributes:
        times: The ledger's clocks; a ledger that reads a clock of its own scales them, so that no test waits long.
        own_clock: The ledger reads a clock of its own (a server's): tests that need days to pass are skipped.
        durable: What was written is there when the ledger is opened again.
    """

    times = Times()
    own_clock = False
    durable = True

    def make_ledger(self, place: Path, clock: FakeClock, times: Times) -> Ledger:
        """Open the ledger at this place: the same record for the same place, also when it is open already."""
        raise NotImplementedError

    def let_pass(self, clock: FakeClock, seconds: float) -> None:
        """Let time pass on the ledger's clock; one that reads its own waits."""
        clock.advance(seconds)

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The clock of this test."""
        return FakeClock()

    @pytest.fixture
    def ledger(self, tmp_path: Path, clock: FakeClock) -> Iterator[Ledger]:
        """An empty ledger."""
        ledger = self.make_ledger(tmp_path, clock, self.times)
        yield ledger
        ledger.close()

    def lease_ends(self, clock: FakeClock) -> None:
        """Let a lease that began now run out, and its margin too."""
        self.let_pass(clock, self.times.lease + self.times.margin + 0.01)


def claimed(ledger: Ledger, id: JobId = JOB, owner: str = ME, seen: Row | None = None, hop: int = 0) -> Row:
    """Claim, and be granted."""
    counters = seen.counters if seen else Counters()
    row = ledger.claim(Claimed(id, seen, owner, hop, BODY, counters))
    assert row is not None, "a claim was refused"
    return row


def in_state(ledger: Ledger, state: State, *, id: JobId = JOB, checkpoint: bytes | None = None) -> tuple[Row, Token]:
    """A job in this state, with that checkpoint, and the token of its last run."""
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
    """The row, which must be there."""
    row = ledger.read(id)
    assert row is not None, "the row is gone"
    return row


def timeless(row: Row) -> Row:
    """The row without what changes by itself while a clock runs."""
    return replace(row, due_in=0.0, late_by=0.0)
