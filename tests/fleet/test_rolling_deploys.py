"""Deploys under load: ten worker processes are replaced while their jobs run, three times."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fleet.deploys import BACKLOG, WORKERS, Deployed, deployed
from tests.fleet.kit import Fleet

DEPLOYS = 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_workers_are_replaced_three_times_and_no_job_is_lost_or_begins_anew(fleet: Fleet) -> None:
    """One start for each job, and one more for each interruption, which begins further on."""
    counts = deployed(fleet, DEPLOYS)
    assert counts.interruptions >= DEPLOYS
    assert counts.jobs > BACKLOG
    assert counts == Deployed(
        jobs=counts.jobs,
        lost=0,
        causeless=0,
        blamed=0,
        interruptions=counts.interruptions,
        codes=Counter({0: WORKERS * (DEPLOYS + 1)}),
    )
