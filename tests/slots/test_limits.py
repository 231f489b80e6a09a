"""The limits of a run, as arithmetic."""

from __future__ import annotations

import pytest

from steadyworker.slots.runs import Due, Limits


@pytest.mark.parametrize(
    ("limit", "notice"), [(1.0, 0.8), (20.0, 16.0), (30.0, 24.0), (50.0, 40.0), (60.0, 50.0), (3 * 3600.0, 10_790.0)]
)
def test_the_notice_comes_10_s_before_the_time_limit_but_not_before_80_percent_of_it(
    limit: float, notice: float
) -> None:
    limits = Limits(100.0, limit, None)
    assert limits.next() == 100.0 + notice
    assert limits.due(100.0 + notice - 0.01) is None
    assert limits.due(100.0 + notice) is Due.WARN
    assert limits.next() == 100.0 + limit
    assert limits.due(100.0 + limit - 0.01) is None
    assert limits.due(100.0 + limit) is Due.TIME_LIMIT
