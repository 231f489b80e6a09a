"""The seeded fleet in a ledger, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.application import application
from steadyworker.ledger.base import Ledger
from steadyworker.testing.clock import FakeClock
from tests.cli.test_drill_screens import memory
from tests.dashboard.fleet_of_facts import FleetOfFacts


@pytest.fixture
def facts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FleetOfFacts]:
    """The fleet in a ledger of the memory, or of the kind that the test names."""
    clock, dead = FakeClock(), set[str]()
    opened: Iterator[Ledger] = getattr(request, "param", memory)(tmp_path, clock, dead, request)
    fleet = FleetOfFacts(next(opened), clock, dead)
    fleet.fill()
    yield fleet
    next(opened, None)


@pytest.fixture
def page(facts: FleetOfFacts) -> ASGIApp:
    return application(facts.ledger, checked_access(), clock=facts.clock)
