"""The I/O thread, on pika's loop and on the plain one."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from pika.adapters.select_connection import IOLoop

from steadyworker.adapter import SystemClock
from steadyworker.errors import BrokerUnavailable
from steadyworker.network import iothread
from steadyworker.network.iothread import IoThread, Loop
from steadyworker.network.loop import PlainLoop
from tests.support.limits import no_further_thread

new_loops = pytest.mark.parametrize("new_loop", [IOLoop, PlainLoop])


class Wreck:
    """A member of the loop that only receives failures."""

    is_closed = True

    def __init__(self) -> None:
        self.failures: list[Exception] = []

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    def close(self, within: float) -> None: ...


def explode() -> None:
    msg = "boom"
    raise RuntimeError(msg)


def later(after: Callable[[float, Callable[[], None]], object]) -> None:
    after(0, explode)


@new_loops
def test_an_error_in_a_call_ends_connections_and_not_the_thread(
    new_loop: Callable[[], Loop], eventually: Callable[..., Any]
) -> None:
    """Neither one of ours, nor one that pika lets through to its loop; nothing of ours calls the plain loop directly."""
    io, wreck = IoThread("test", SystemClock(), new_loop), Wreck()
    io.members.append(wreck)
    try:
        io.call(explode)
        io.call(lambda: later(io.after))
        io.call(lambda: later(io.loop.call_later if new_loop is IOLoop else io.after))
        eventually(lambda: len(wreck.failures) == 3)
        before = io.last_turn
        assert before is not None
        eventually(lambda: (io.last_turn or 0) > before)
    finally:
        io.stop(5)


def answer_one(answer: Future[int]) -> None:
    answer.set_result(1)


@new_loops
def test_whoever_asks_a_thread_that_stops_gets_an_answer(new_loop: Callable[[], Loop]) -> None:
    """A call is done, or refused; never forgotten."""
    for _ in range(50):
        io = IoThread("test", SystemClock(), new_loop)
        asking = threading.Barrier(3)
        answers: list[object] = []

        def ask(io: IoThread = io, asking: threading.Barrier = asking, answers: list[object] = answers) -> None:
            asking.wait()
            for _ in range(random.randrange(20)):
                try:
                    io.ask(answer_one, 5)
                except BrokerUnavailable:
                    break
            answers.append("answered")

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        asking.wait()
        io.stop(5)
        for thread in threads:
            thread.join(5)
        assert answers == ["answered"] * 2


@new_loops
def test_an_error_in_an_answer_is_the_askers(new_loop: Callable[[], Loop]) -> None:
    io = IoThread("test", SystemClock(), new_loop)

    def question(_: Future[int]) -> None:
        explode()

    with pytest.raises(RuntimeError, match="boom"):
        io.ask(question, 5)
    io.stop(5)


def test_background_work_begins_once_a_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    """Near the cgroup's limit of processes, a caller that has noted its work as begun would wait without end."""

    class Thread(threading.Thread):
        refusals = 2

        def start(self) -> None:
            if "background" in self.name and Thread.refusals:
                Thread.refusals -= 1
                msg = "can't start new thread"
                raise RuntimeError(msg)
            super().start()

    monkeypatch.setattr(iothread, "_NO_THREAD", 0.01)
    monkeypatch.setattr(threading, "Thread", Thread)
    io, wreck = IoThread("test", SystemClock(), PlainLoop), Wreck()
    io.members.append(wreck)
    results: list[str] = []
    try:
        io.call(lambda: io.in_background(lambda: "done", lambda answer: results.append(answer.result())))
        eventually(lambda: results == ["done"])
        assert not wreck.failures
        assert Thread.refusals == 0
    finally:
        io.stop(5.0)


def test_a_process_without_a_file_left_learns_its_limit_and_can_stop() -> None:
    """RLIMIT_NOFILE: the loop cannot open its descriptors; the next call tries again."""
    loops: list[Loop | None] = [None, PlainLoop()]

    def new_loop() -> Loop:
        if (loop := loops.pop(0)) is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return loop

    io, ran = IoThread("test", SystemClock(), new_loop), threading.Event()
    with pytest.raises(BrokerUnavailable, match=r"Too many open files.*ulimit -n"):
        io.call(ran.set)
    io.call(ran.set)
    assert ran.wait(10)
    io.stop(10)


@pytest.mark.parametrize("earlier_calls", [0, 1])
def test_a_thread_that_cannot_be_started_does_not_fail_the_stop(earlier_calls: int) -> None:
    io = IoThread("test", SystemClock(), PlainLoop)
    with no_further_thread():
        for _ in range(earlier_calls):
            with pytest.raises(BrokerUnavailable, match="ulimit -u"):
                io.call(explode)
    io.stop(1)
