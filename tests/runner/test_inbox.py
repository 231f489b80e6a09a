"""The inbox of the runner's thread: an event of another thread ends the wait, and nothing else does before its time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.ledger.base import Ending, Token, Verdict
from steadyworker.outcome import Failed
from steadyworker.runner.state import Inbox
from steadyworker.slots.base import Ended
from tests.runner.bench import Bench


@pytest.fixture(params=["eventfd", "pipe"])
def inbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox[int]]:
    """An inbox with an eventfd, or with a pipe, as on macOS."""
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd")
    made: Inbox[int] = Inbox()
    yield made
    made.close()


def test_an_event_of_another_thread_ends_the_wait(inbox: Inbox[int]) -> None:
    began = time.monotonic()
    for number in range(100):
        thread = threading.Thread(target=inbox.post, args=(number,))
        thread.start()
        while not inbox:
            inbox.wait(20)
        assert inbox.pop() == number
        thread.join()
    assert time.monotonic() - began < 10


def test_an_event_that_was_posted_before_the_wait_ends_it_at_once(inbox: Inbox[int]) -> None:
    inbox.post(1)
    began = time.monotonic()
    inbox.wait(20)
    assert time.monotonic() - began < 10
    assert (len(inbox), inbox.pop(), len(inbox)) == (1, 1, 0)


def test_an_event_that_was_taken_ends_no_later_wait(inbox: Inbox[int]) -> None:
    for _ in range(3):
        thread = threading.Thread(target=inbox.post, args=(1,))
        thread.start()
        while not inbox:
            inbox.wait(20)
        inbox.pop()
        thread.join()
    inbox.wait(0)  # the last ring can come after its event
    waits = 0
    began = time.monotonic()
    while time.monotonic() - began < 0.2:
        inbox.wait(0.2)
        waits += 1
    assert waits <= 3


def test_a_slow_ledger_gets_one_event_a_turn_so_that_the_slots_have_their_turns() -> None:
    """Else eight ends of nine seconds each would keep every child without a ping for longer than a child waits."""
    bench = Bench(slots=3)
    for number in range(3):
        bench.deliver(f"k{number}")
    fences = [slot.task.fence for slot in bench.slots if slot.task is not None]
    moving, slow = bench.real.moving, []

    def slowly(token: Token, verdict: Verdict, end: Ending | None = None) -> bool:
        bench.clock.advance(9)
        slow.append(token.fence)
        return moving(token, verdict, end)

    bench.real.moving = slowly  # type: ignore[method-assign]
    for slot, fence in enumerate(fences):
        bench.runner.post(Ended(slot, fence, Failed("no route")))
    for handled in (1, 2, 3):
        bench.runner.turn(0)
        assert slow == fences[:handled]


def test_an_inbox_that_is_served_by_hand_opens_no_descriptor_and_a_closed_one_keeps_none(inbox: Inbox[int]) -> None:
    before = psutil.Process().num_fds()
    inbox.post(1)
    inbox.wait(0)
    assert psutil.Process().num_fds() == before
    inbox.pop()
    inbox.wait(0.001)
    assert psutil.Process().num_fds() > before
    inbox.close()
    inbox.close()
    inbox.post(2)
    assert psutil.Process().num_fds() == before
