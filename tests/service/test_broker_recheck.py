"""The broker's checks are repeated while the worker process runs, and their errors end it as they would have at its start."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from steadyworker.errors import BrokerUnavailable, Finding
from steadyworker.service import broker_recheck
from steadyworker.service.broker_recheck import DAILY, SOON, BrokerRecheck

ERROR = Finding("error", "Waiting jobs are lost after 60 s.", "remove expires from policy 'all'.", id="test.error")
WARNING = Finding("warning", "The queue is classic.", "move its messages.", id="test.warning")


class Broker:
    """Finds what the test says, in turn; the last answer is repeated."""

    def __init__(self, *answers: list[Finding] | Exception) -> None:
        self.answers = list(answers)
        self.asked = threading.Event()

    def findings(self) -> list[Finding]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.asked.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


def recheck(*brokers: Broker, known: list[Finding] | None = None) -> BrokerRecheck:
    return BrokerRecheck([broker.findings for broker in brokers], known or [])


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []

    class Log:
        def __getattr__(self, level: str) -> Any:
            return lambda event, what, remedy, explain: lines.append((event, what)) if remedy and explain else None

    monkeypatch.setattr(broker_recheck, "get_logger", lambda _: Log())
    return lines


def test_an_error_counts_when_it_is_found_a_minute_later_again(said: list[tuple[str, str]]) -> None:
    checks = recheck(Broker([ERROR]))
    assert checks.look() == SOON
    assert checks.lasting == []
    checks.look()
    assert checks.lasting == [ERROR]
    assert said == [("check_error", ERROR.what)]


def test_an_error_that_is_over_a_minute_later_ends_nothing(said: list[tuple[str, str]]) -> None:
    checks = recheck(Broker([ERROR], [], [ERROR], []))
    for wait in (SOON, DAILY, SOON, DAILY):
        assert checks.look() == wait
        assert checks.lasting == []
    assert len(said) == 1


def test_a_broker_that_is_away_is_looked_at_a_minute_later_and_hides_no_other(said: list[tuple[str, str]]) -> None:
    checks = recheck(Broker(BrokerUnavailable("away"), []), Broker([ERROR]))
    assert checks.look() == SOON
    checks.look()
    assert checks.lasting == [ERROR]
    assert said == [("check_error", ERROR.what)]


def test_a_warning_is_logged_once_and_not_at_all_if_the_start_has_logged_it(said: list[tuple[str, str]]) -> None:
    checks = recheck(Broker([WARNING]))
    assert [checks.look(), checks.look()] == [DAILY, DAILY]
    assert recheck(Broker([WARNING]), known=[WARNING]).look() == DAILY
    assert said == [("check_warning", WARNING.what)]
    assert checks.lasting == []


def test_the_thread_looks_soon_after_the_start_and_ends_when_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_recheck, "SOON", 0.01)
    broker = Broker([])
    checks = recheck(broker)
    thread = threading.Thread(target=checks.run)
    thread.start()
    assert broker.asked.wait(30)
    checks.end()
    thread.join(30)
    assert not thread.is_alive()
