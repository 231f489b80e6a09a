"""A slow batch and a hung one, told apart; and what a user sees of an export that goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from steadyworker.errors import ExportError
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.process import KEPT_LOG
from steadyworker.exports.spark.service import SparkService
from tests.exports.spark.sparkkit import LiveServices, Made

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def sleeping(milliseconds: str, ids: str) -> str:
    """A query with a function of the user's that takes so long for each row of 32 small tasks."""
    return f"SELECT id, reflect('java.lang.Thread', 'sleep', CAST({milliseconds} AS BIGINT)) AS x FROM range(0, {ids}, 1, 32)"


def wide(columns: int) -> str:
    """A query of so many columns, one of them for the sort."""
    return f"SELECT id, {', '.join(f'concat({number}, id) AS text{number}' for number in range(columns))} FROM range(0, 5, 1, 1)"


def test_a_stuck_function_is_caught_and_a_slow_one_is_spared(
    warm: SparkService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The slow one sleeps 0.2 s for each of 64 rows, twice, on two cores: longer than the limit in all, and never still.

    The stuck one sleeps for an hour in its last task: caught, cancelled by its threads' interruption, begun again,
    given up; the host lives on, and the log that is kept says where each thread was.
    """
    SparkExport(wide(1), tables={}, order_by=("id",)).write(LiveServices(warm), tmp_path / "warm.csv")
    (host,) = warm._hosts
    limited = replace(host.settings, stuck_after=3.0, resubmissions=1)
    monkeypatch.setattr(host, "settings", limited)
    monkeypatch.setattr(warm, "_settings", limited)
    slow = LiveServices(warm, uid="slow")
    SparkExport(sleeping("200", "64"), tables={}, order_by=("id",)).write(slow, tmp_path / "slow.csv")
    assert slow.events[-1]["submissions"] == 1

    stuck = LiveServices(warm, uid="stuck")
    with pytest.raises(ExportError, match=r"\(stuck\): nothing has moved for .* 31 of 32 tasks"):
        SparkExport(sleeping("if(id = 63, 3600000, 0)", "64"), tables={}, order_by=("id",)).write(
            stuck, tmp_path / "stuck.csv"
        )
    assert stuck.events[-1]["submissions"] == 2
    assert warm._hosts == [host]
    kept = (limited.folder / KEPT_LOG).read_text()
    assert "nothing has moved" in kept
    assert "java.lang.Thread.sleep" in kept
    assert not (tmp_path / "stuck.csv").exists()


@pytest.mark.slow
def test_a_task_that_is_slow_is_granted_four_times_as_long_when_it_begins_again(made: Made, tmp_path: Path) -> None:
    """It sleeps for 12 s: past the limit of 6 s, and below four times 6."""
    services = LiveServices(made(stuck_after=6.0, resubmissions=1))
    query = sleeping("if(id = 31, 12000, 0)", "32")
    assert SparkExport(query, tables={}, order_by=("id",)).write(services, tmp_path / "out.csv").rows == 32
    assert services.events[-1]["submissions"] == 2


@pytest.mark.slow
def test_two_thousand_columns_are_planned_in_one_try(made: Made, tmp_path: Path) -> None:
    services = LiveServices(made(resubmissions=0))
    assert SparkExport(wide(2000), tables={}, order_by=("id",)).write(services, tmp_path / "out.csv").rows == 5
    assert services.events[-1]["submissions"] == 1
