"""The proof that a listed owner is dead: it stays as long as screens list this owner, whoever purges the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from steadyworker.clock import Times
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.owners import OwnerLock, new_owner_id
from steadyworker.ledger.retention import OWNERS
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.testing.clock import FakeClock
from tests.ledger.pgkit import Schemas


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Ledger]:
    if request.param == "sqlite":
        with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as made:
            yield made
    else:
        with (
            closing(Schemas(request.getfixturevalue("database"), commit="off")) as schemas,
            closing(schemas.ledger(tmp_path, clock=clock)) as made,
        ):
            yield made


def test_a_dead_owner_without_a_job_stays_proven_dead_while_it_is_listed(ledger: Ledger, clock: FakeClock) -> None:
    """In a crash loop, each new process purges the ledger; no screen may then show the dead ones as living."""
    ledger.ledger_id()
    dead, alive = new_owner_id(), new_owner_id()
    owners_dir = getattr(ledger, "owners_dir", None) or ledger._owners_dir  # type: ignore[attr-defined]
    OwnerLock(owners_dir, dead).release()
    lock = OwnerLock(owners_dir, alive)
    for owner in (dead, alive):
        ledger.register(owner, "host-3", ["shop/exports"])
    ledger.purge()
    assert {seen.owner: seen.dead for seen in ledger.owners()} == {dead: True, alive: False}
    clock.advance(OWNERS)
    ledger.register(alive, "host-3", ["shop/exports"])
    ledger.purge()
    assert [seen.owner for seen in ledger.owners()] == [alive]
    assert len(list(owners_dir.iterdir())) == 1 + len(list(owners_dir.glob(".*")))
    lock.release()
