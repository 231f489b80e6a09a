"""The fixture `fleet`: a place at a broker, a ledger, and worker processes that are gone when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.place import Place
from tests.fleet.kit import Fleet


@pytest.fixture
def ledger_kind() -> str:
    """The kind of ledger, which a test can set by its parameters: `sqlite` or `postgres`."""
    return "postgres"


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path, ledger_kind: str) -> str:
    """The URL of an empty ledger."""
    found: str = f"sqlite:{tmp_path / 'ledger.db'}" if ledger_kind == "sqlite" else request.getfixturevalue("database")
    return found


@pytest.fixture
def fleet(place: Place, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """
    A few short delays, for senders too: on RabbitMQ, each delay level is a queue of its own.

    Where the broker tells no name, a worker process behind a proxy, or with TLS, may be the first one of a test.
    So the namespace is bound here, as a worker process would bind it that reaches the broker straight.
    """
    monkeypatch.setenv("STEADYWORKER_DELAYS", "1,2,5,10")
    made = Fleet(tmp_path, place, database)
    if place.namespace:
        monkeypatch.setenv("STEADYWORKER_NAMESPACE", place.namespace)
        made.ledger.bind(place.namespace, made.queue, place.namespace)
    yield made
    made.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Brokers that start again, on a machine that is busy with other tests too."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(300))
