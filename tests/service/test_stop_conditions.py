"""When a finding of the consumer audit ends the worker process."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steadyworker.config import resolve as config
from steadyworker.lifecycle import EX_CONFIG
from steadyworker.runner.consumer_audit import AuditResult
from steadyworker.service.stop_conditions import StopConditions

UNCOUNTED = AuditResult("the broker does not report", lasting=True, after_jobs=True)


def runner(queue: str, audit: AuditResult, *, idle: bool) -> Any:
    return SimpleNamespace(
        deps=SimpleNamespace(spec=SimpleNamespace(queue=queue), slots=[]),
        state=SimpleNamespace(unfit=None),
        audit_result=audit,
        final=None,
        slot_health=SimpleNamespace(setup_failures=0),
        idle=idle,
        waiting=idle,
        not_ready=dict,
    )


@pytest.fixture
def conditions(tmp_path: Path) -> StopConditions:
    return StopConditions(config.load({"state_dir": tmp_path}, os.environ, tmp_path), 0.0)


@pytest.mark.parametrize("idle", [(False, True), (True, False)], ids=["its own job", "another Worker's job"])
def test_a_missing_count_waits_for_every_job_of_the_process(
    conditions: StopConditions, idle: tuple[bool, bool]
) -> None:
    """The exit ends the whole process, and nothing shows that another program takes its messages."""
    busy = [runner("first", UNCOUNTED, idle=idle[0]), runner("second", AuditResult(), idle=idle[1])]
    assert conditions.to_stop(busy, [], 0.0) == []
    free = [runner("first", UNCOUNTED, idle=True), runner("second", AuditResult(), idle=True)]
    assert conditions.to_stop(free, [], 0.0) == [("first: the broker does not report", EX_CONFIG)]


def test_a_missing_count_that_may_end_by_itself_ends_nothing(conditions: StopConditions) -> None:
    suspected = AuditResult("the broker does not report", after_jobs=True)
    assert conditions.to_stop([runner("first", suspected, idle=True)], [], 0.0) == []


def test_a_lasting_surplus_waits_for_no_job(conditions: StopConditions) -> None:
    surplus = AuditResult("3 consumers", lasting=True)
    assert conditions.to_stop([runner("first", surplus, idle=False)], [], 0.0) == [("first: 3 consumers", EX_CONFIG)]
