"""Questions to a broker with a short time limit: a late one fails itself alone, and the same one again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from steadyworker import BrokerUnavailable
from steadyworker.backends import questions
from steadyworker.backends.questions import ShortQuestions
from steadyworker.clock import SystemClock
from tests.conftest import Eventually


@pytest.fixture
def answer() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, answer: threading.Event) -> ShortQuestions:
    """Questions of which one, "namespace", is late until `answer` is set."""
    asked = ShortQuestions()
    monkeypatch.setattr(questions, "WITHIN", 0.05)
    with pytest.raises(BrokerUnavailable, match=r"within 0\.05 s, got none"):
        asked.ask(("namespace", "exports"), lambda: answer.wait(30))
    monkeypatch.setattr(questions, "WITHIN", 600.0)  # a second wait would end the test
    return asked


def test_a_late_question_fails_no_other_one(asked: ShortQuestions) -> None:
    assert asked.ask(("search", "exports"), lambda: 17) == 17
    with pytest.raises(ValueError, match="its own error"):
        asked.ask(("depth", "exports"), lambda: int("its own error"))


def test_the_same_question_fails_at_once_until_the_late_one_has_ended(
    asked: ShortQuestions, answer: threading.Event, eventually: Eventually
) -> None:
    with pytest.raises(BrokerUnavailable, match="got none yet to the same question"):
        asked.ask(("namespace", "exports"), lambda: 17)
    answer.set()

    def again() -> int:
        try:
            return asked.ask(("namespace", "exports"), lambda: 17)
        except BrokerUnavailable:
            return 0

    assert eventually(again) == 17


def test_a_silent_broker_holds_a_limited_number_of_threads(
    asked: ShortQuestions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A web page can ask for a thousand keys."""
    monkeypatch.setattr(questions, "_MOST_LATE", 1)
    with pytest.raises(BrokerUnavailable, match="got none yet to 1 earlier question"):
        asked.ask(("search", "exports"), lambda: 17)


def test_late_questions_of_one_kind_leave_room_for_others(
    asked: ShortQuestions, answer: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the searches for 32 keys that a page shows kept every other question from a healthy broker."""
    monkeypatch.setattr(questions, "WITHIN", 0.05)
    for key in range(4):
        with pytest.raises(BrokerUnavailable, match="got none:"):
            asked.ask(("search", "exports", f"k-{key}"), lambda: answer.wait(30))
    with pytest.raises(BrokerUnavailable, match="got none yet to 4 earlier questions of this kind"):
        asked.ask(("search", "exports", "k-4"), lambda: True)
    monkeypatch.setattr(questions, "WITHIN", 600.0)
    assert asked.ask(("search", "refunds", "k-4"), lambda: 17) == 17
    assert asked.ask(("depth", "exports", "k-4"), lambda: 17) == 17


def test_close_has_one_limit_for_all_questions(
    asked: ShortQuestions, answer: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "WITHIN", 0.01)
    for queue in ("a", "b", "c"):
        with pytest.raises(BrokerUnavailable):
            asked.ask(("depth", queue), lambda: answer.wait(30))
    waits: list[float | None] = []
    monkeypatch.setattr(threading.Thread, "join", lambda self, timeout=None: waits.append(timeout))
    monkeypatch.setattr(SystemClock, "monotonic", lambda self: 100.0 + len(waits))
    asked.close(2.0)
    assert waits == [2.0, 1.0, 0.0, 0.0]
