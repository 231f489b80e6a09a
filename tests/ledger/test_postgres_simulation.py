"""Random histories on the PostgreSQL ledger: the simulation's faults, on a server's clock that the world moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from steadyworker.clock import Times
from steadyworker.ledger.base import Ledger
from steadyworker.testing.clock import FakeClock
from tests.ledger.pgkit import Schemas
from tests.simulation.world import history

CHUNKS = 3
EACH = 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(1, CHUNKS))])
def test_every_guarantee_holds_on_postgres(chunk: int, database: str, tmp_path: Path) -> None:
    """Its owners' locks are replaced by the world's word on who is dead; a history begins with an empty record."""
    schemas = Schemas(database, commit="off")
    for seed in range(chunk * EACH, (chunk + 1) * EACH):

        def on_postgres(clock: FakeClock, times: Times, is_dead: Callable[[str], bool]) -> Ledger:
            ledger = schemas.ledger(tmp_path, clock=clock, times=times, is_dead=is_dead)
            schemas.empty(tmp_path)
            return ledger

        history(seed, adoption=seed % 10 != 0, make_ledger=on_postgres).ledger.close()
    schemas.close()
