"""The broker's checks are repeated while the worker process runs, and their errors end it as they would have at its start."""

from __future__ import annotations

from typing import Any

import pytest

from steadyworker.errors import BrokerUnavailable, Finding
from steadyworker.service import broker_recheck
from steadyworker.service.broker_recheck import DAILY, SOON, BrokerRecheck

ERROR = Finding("error", "Waiting jobs are lost after 60 s.", "remove expires from policy 'all'.", id="test.error")
WARNING = Finding("warning", "The queue is classic.", "move its messages.", id="test.warning")


class Broker:
    """A broker whose findings the test lists, in turn; the last ones are repeated."""

    def __init__(self, *answers: list[Finding] | Exception) -> None:
        self.answers = list(answers)

    def findings(self) -> list[Finding]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def recheck(*brokers: Broker, known: list[Finding] | None = None) -> BrokerRecheck:
    return BrokerRecheck([broker.findings for broker in brokers], known or [])


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []

    class Log:
        def __getattr__(self, level: str) -> Any:
            return lambda event, what, remedy, explain: lines.append((event, what)) if remedy and explain else None

    monkeypatch.setattr(broker_recheck, "get_logger", lambda _: Log())
    return lines


def test_an_error_counts_when_it_is_found_a_minute_later_again(lines: list[tuple[str, str]]) -> None:
    checks = recheck(Broker([ERROR]))
    assert checks.check() == SOON
    assert checks.lasting == []
    checks.check()
    assert checks.lasting == [ERROR]
    assert lines == [("check_error", ERROR.what)]


def test_an_error_that_is_over_a_minute_later_ends_nothing(lines: list[tuple[str, str]]) -> None:
    checks = recheck(Broker([ERROR], [], [ERROR], []))
    for wait in (SOON, DAILY, SOON, DAILY):
        assert checks.check() == wait
        assert checks.lasting == []
    assert len(lines) == 1


def test_a_broker_that_is_away_is_checked_a_minute_later_and_hides_no_other(lines: list[tuple[str, str]]) -> None:
    checks = recheck(Broker(BrokerUnavailable("away"), []), Broker([ERROR]))
    assert checks.check() == SOON
    checks.check()
    assert checks.lasting == [ERROR]
    assert lines == [("check_error", ERROR.what)]


def test_a_warning_is_logged_once_and_not_at_all_if_the_start_has_logged_it(lines: list[tuple[str, str]]) -> None:
    checks = recheck(Broker([WARNING]))
    assert [checks.check(), checks.check()] == [DAILY, DAILY]
    assert recheck(Broker([WARNING]), known=[WARNING]).check() == DAILY
    assert lines == [("check_warning", WARNING.what)]
    assert checks.lasting == []
