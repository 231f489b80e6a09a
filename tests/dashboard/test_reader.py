"""The reads of pages: what one read serves, what an outage costs, and what an action makes old."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from steadyworker.clock import Times
from steadyworker.dashboard.reader import AWAY, FRESH, LONGEST, LONGEST_LARGE, Reader, ReadOnce
from steadyworker.errors import LedgerUnavailable
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger


class Bench:
    """A reader, whose ledger can hang or fail; `reads` has the key of each read that reached the ledger."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ledger = MemoryLedger(self.clock, Times())
        self.reader = Reader(self.ledger, self.clock)
        self.reads: list[str] = []
        self.away = False
        self.state = "old"
        self.hang: dict[str, tuple[threading.Event, threading.Event]] = {}

    def page(self, key: str) -> tuple[str, str]:
        """Return the state that the page shows, and its problem."""

        def read(_once: ReadOnce, _now: float) -> str:
            self.reads.append(key)
            state = self.state
            if key in self.hang:
                began, ended = self.hang[key]
                began.set()
                assert ended.wait(10.0)
            if self.away:
                raise LedgerUnavailable("Expected an answer, got none: check it.")
            return state

        found = self.reader.page(key, read)
        return found.content, found.problem


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def beside() -> Iterator[Callable[..., Future[Any]]]:
    """Call a function in another thread."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def hang(bench: Bench, key: str) -> tuple[threading.Event, threading.Event]:
    bench.hang[key] = threading.Event(), threading.Event()
    return bench.hang[key]


def test_a_page_that_was_never_read_fails_at_once_while_the_ledger_is_away(bench: Bench) -> None:
    bench.away = True
    for key in ("one", "two", "three"):
        with pytest.raises(LedgerUnavailable, match="Expected an answer"):
            bench.page(key)
    assert bench.reads == ["one"]
    bench.clock.advance(AWAY)
    for key in ("two", "three"):
        with pytest.raises(LedgerUnavailable, match="Expected an answer"):
            bench.page(key)
    assert bench.reads == ["one", "two"]


def test_while_one_page_tries_again_no_other_page_waits(
    bench: Bench, beside: Callable[..., Future[tuple[str, str]]]
) -> None:
    assert bench.page("known") == ("old", "")
    bench.away = True
    with pytest.raises(LedgerUnavailable):
        bench.page("one")
    bench.clock.advance(AWAY)
    began, ended = hang(bench, "known")
    trying = beside(bench.page, "known")
    assert began.wait(10.0)
    with pytest.raises(LedgerUnavailable):
        bench.page("one")
    assert bench.page("known") == ("old", "Expected an answer, got none: check it.")
    assert bench.reads == ["known", "one", "known"]
    ended.set()
    assert trying.result(10.0) == ("old", "Expected an answer, got none: check it.")


def test_a_ledger_that_is_back_is_shown_within_six_seconds(
    bench: Bench, beside: Callable[..., Future[tuple[str, str]]]
) -> None:
    """Even if it comes back while a try still waits for it."""
    assert bench.page("known") == ("old", "")
    bench.away = True
    bench.clock.advance(FRESH)
    assert bench.page("known")[1]
    bench.clock.advance(AWAY)
    began, ended = hang(bench, "other")
    trying = beside(bench.page, "other")
    assert began.wait(10.0)
    bench.away, bench.state = False, "new"
    bench.clock.advance(6.0)
    assert bench.page("known") == ("new", "")
    ended.set()
    assert trying.result(10.0) == ("old", "")


def test_every_page_is_new_after_the_first_read_that_succeeds(bench: Bench) -> None:
    for key in ("one", "two"):
        assert bench.page(key) == ("old", "")
    bench.away = True
    bench.clock.advance(FRESH)
    for key in ("one", "two"):
        assert bench.page(key) == ("old", "Expected an answer, got none: check it.")
    bench.away, bench.state = False, "new"
    bench.clock.advance(AWAY)
    for key in ("one", "two"):
        assert bench.page(key) == ("new", "")


def test_a_read_that_began_before_an_action_does_not_count_as_new(
    bench: Bench, beside: Callable[..., Future[tuple[str, str]]]
) -> None:
    began, ended = hang(bench, "page")
    reading = beside(bench.page, "page")
    assert began.wait(10.0)
    bench.state = "new"
    bench.reader.read_again()
    ended.set()
    assert reading.result(10.0) == ("old", "")
    assert bench.page("page") == ("new", "")
    assert bench.page("page") == ("new", "")
    assert bench.reads == ["page", "page"]


@pytest.mark.parametrize(
    ("cost", "own", "serves"),
    [(0.0, 0.0, 0.0), (0.0125, 0.0125, 0.0), (3.0, 0.0, LONGEST), (0.03, 0.03, 30.0), (3.0, 3.0, LONGEST_LARGE)],
)
def test_a_slow_read_serves_for_a_thousand_times_its_cost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cost: float, own: float, serves: float
) -> None:
    """A cheap read is always repeated, and one that is slow without own processor time serves shortly: the host may be busy."""
    reads: list[float] = []
    spent = iter(count(step=own))
    monkeypatch.setattr(time, "thread_time", lambda: next(spent))

    def owners() -> tuple[()]:
        reads.append(bench.clock.monotonic())
        bench.clock.advance(cost)
        return ()

    monkeypatch.setattr(bench.ledger, "owners", owners)

    def look(key: str) -> int:
        bench.reader.page(key, lambda once, _now: once.as_ledger.owners())
        return len(reads)

    assert look("one") == 1
    assert look("two") == (1 if serves else 2)
    bench.clock.advance(serves + 0.01)
    before = len(reads)
    assert look("three") == before + 1
    bench.reader.read_again()
    assert look("three") == before + 2
