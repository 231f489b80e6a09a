"""The ledger in memory keeps the promises of every ledger, but durability."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from steadyworker.clock import Times
from steadyworker.ledger.base import Claimed, JobId, Ledger
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance import LedgerSuite
from steadyworker.testing.memory_ledger import MemoryLedger


class TestMemoryLedger(LedgerSuite):
    durable = False

    def make_ledger(self, place: Path, clock: FakeClock, times: Times) -> Ledger:
        # pytest makes one instance of this class for each test.
        opened: dict[Path, Ledger] = self.__dict__.setdefault("opened", {})
        return opened.setdefault(place, MemoryLedger(clock, times))

    def saved(self, ledger: Ledger, place: Path) -> Callable[[], object]:
        assert isinstance(ledger, MemoryLedger)
        return partial(ledger.restore, ledger.saved())


def test_proof_of_death_ends_a_lease_at_once() -> None:
    dead: set[str] = set()
    ledger = MemoryLedger(FakeClock(), Times(), is_dead=dead.__contains__)
    job = JobId("shop", "exports", "m-17")
    ledger.register("host/boot/me", "host", ["exports"])
    ledger.claim(Claimed(job, None, "host/boot/me", 0, b"", Counters()))

    def judged() -> tuple[bool, bool]:
        row = ledger.read(job)
        assert row is not None
        return row.lease_over, ledger.owners()[0].dead

    assert judged() == (False, False)
    dead.add("host/boot/me")
    assert judged() == (True, True)
