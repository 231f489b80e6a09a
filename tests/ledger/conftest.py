"""What the tests of the ledgers ask for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.postgres.ledger import PostgresLedger
from tests.ledger.kit import Actor, started
from tests.ledger.pgkit import QUICK, Admin, Open


@pytest.fixture
def actor(tmp_path: Path) -> Iterator[Actor]:
    """Starts actors, and ends what is left of them."""
    actors: list[subprocess.Popen[str]] = []

    def start(part: str, *arguments: object) -> subprocess.Popen[str]:
        actors.append(started(tmp_path, part, *arguments))
        return actors[-1]

    yield start
    for process in actors:
        process.kill()
        process.communicate()


@pytest.fixture
def opened(database: str, tmp_path: Path) -> Iterator[Open]:
    """Opens ledgers, by default that of this test's database, and closes them."""
    with ExitStack() as stack:

        def open_one(url: str | Callable[[], str] = database, times: Times = QUICK) -> PostgresLedger:
            asked = url if callable(url) else lambda: url
            ledger = PostgresLedger(asked, owners_dir=tmp_path / "owners", clock=SystemClock(), times=times)
            return stack.enter_context(closing(ledger))

        yield open_one


@pytest.fixture
def admin(database: str) -> Iterator[Admin]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection
