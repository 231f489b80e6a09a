"""
The ordinary log of a broker, or of a worker, has no finding.

`ordinary/rabbitmq-*.log` are whole logs of RabbitMQ 3.10.8 and 4.3.6: two starts, 45 clients that keep the rules,
virtual hosts, users, policies, queues of all types, operators' commands, and two stops.
`ordinary/celery-*.log` is that of a worker of Celery 5.7.0 that runs a task, and is stopped.
What the tests' own probe makes 4.3 write at its start, when it asks the management API too early, was left out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from steadyworker.diagnosis.scan import Scanner, Search
from tests.diagnosis.explaining import catalogue

ORDINARY = Path(__file__).with_name("ordinary")
LOGS = sorted(ORDINARY.glob("rabbitmq-*.log"))
ALL = [*LOGS, *sorted(ORDINARY.glob("celery-*.log"))]


@pytest.mark.parametrize("log", ALL, ids=[log.stem for log in ALL])
def test_an_ordinary_log_has_no_finding(log: Path) -> None:
    search = Search(catalogue().values())
    found = {seen.entry.id: seen.record.text for seen in Scanner(log.name, search).whole([log.read_bytes()])}
    assert not found
    assert not search.unknown.count


@pytest.mark.parametrize("log", LOGS, ids=[log.stem for log in LOGS])
def test_it_is_a_whole_log(log: Path) -> None:
    text = log.read_text(encoding="utf-8")
    assert len(text.splitlines()) > 300
    assert all(part in text for part in ("accepting AMQP connection", "Starting RabbitMQ", "SIGTERM received"))


def test_there_is_a_log_of_both_lines() -> None:
    assert [log.stem for log in LOGS] == ["rabbitmq-3.10", "rabbitmq-4.3"]
