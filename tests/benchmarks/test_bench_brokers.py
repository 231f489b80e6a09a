"""Without a RabbitMQ, its tables are left out and nothing else, and the cost of a job is that on the embedded queue."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.benchmarks import bench_brokers, bench_cost
from tests.brokers import install
from tests.brokers.install import MissingError

ROOT = Path(__file__).parents[2]


def missing() -> str:
    raise MissingError("RabbitMQ was not found: install it")


@pytest.mark.parametrize("program", ["tests/benchmarks/bench_brokers.py", "tests/drills/__main__.py"])
def test_no_rabbitmq_is_looked_for_before_its_turn(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "newest_rabbitmq", missing)
    assert "rabbitmq" in runpy.run_path(str(ROOT / program), run_name="imported")["USUAL"]


def test_the_tables_of_a_missing_rabbitmq_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_brokers, "newest_rabbitmq", missing)
    monkeypatch.setattr(sys, "argv", ["bench_brokers", "rabbitmq"])
    assert bench_brokers.main() == 0
    assert capsys.readouterr().out.startswith("The tables of rabbitmq were left out: RabbitMQ was not found")


@pytest.mark.processes
def test_without_a_rabbitmq_the_cost_of_a_job_is_measured_on_the_embedded_queue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_cost, "newest_rabbitmq", missing)
    monkeypatch.setattr(bench_cost, "JOBS", {1: 20, 8: 20})
    monkeypatch.setattr(bench_cost, "ROUNDS", 1)
    assert bench_cost.main() == 0
    printed = capsys.readouterr().out
    assert printed.count("worker: runner-noop") == 4
    assert printed.count("child: main") == 2
