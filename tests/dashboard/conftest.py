"""The seeded fleet in each kind of ledger, and its page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.types import ASGIApp

from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.application import application
from tests.cli.test_drill_screens import memory, postgres, sqlite
from tests.dashboard.fleet_of_facts import FleetOfFacts
from steadyworker.testing.clock import FakeClock


@pytest.fixture(params=[memory, sqlite, postgres], ids=["memory", "sqlite", "postgres"])
def facts(request: pytest.FixtureRequest, tmp_path) -> Iterator[FleetOfFacts]:  # type: ignore[no-untyped-def]
    clock, dead = FakeClock(), set[str]()
    opened: Iterator = request.param(tmp_path, clock, dead, request)  # type: ignore[type-arg]
    fleet = FleetOfFacts(next(opened), clock, dead)
    fleet.fill()
    yield fleet
    next(opened, None)


@pytest.fixture
def page(facts: FleetOfFacts) -> ASGIApp:
    return application(facts.ledger, checked_access(), clock=facts.clock)
