"""Questions to a broker that people or web pages wait for: each has a short time limit, whatever the adapter's own limit is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from steadyworker.clock import SystemClock
from steadyworker.errors import BrokerUnavailable
from steadyworker.units import count_text

WITHIN = 5.0
"""Seconds in which the broker must answer."""

_MOST_LATE = 32
"""The largest number of late questions; each has a thread."""

_MOST_LATE_OF_ONE_KIND = 4
"""The largest number of late questions of one kind about one queue, so that they leave room for other questions."""

Answer = TypeVar("Answer")


class ShortQuestions:
    """
    Questions to one broker, each asked on a thread of its own; thread-safe.

    A late question fails no other one: the broker can answer another question, or answer for another queue.
    While a question is late, the same question fails at once, so that a page that asks it every second does not wait each time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: list[threading.Thread] = []
        self._late: dict[threading.Thread, tuple[str, ...]] = {}

    def ask(self, about: tuple[str, ...], question: Callable[[], Answer]) -> Answer:
        """
        Return the answer to a question, or raise its error.

        `about` is the question's kind, its queue, and what else it is about.
        Two questions `about` the same are the same question.

        Raises BrokerUnavailable if there is no answer in time; the question itself goes on, and its answer is ignored.
        """
        answer: Future[Answer] = Future()
        thread = threading.Thread(target=_run, args=(question, answer), name="steadyworker question", daemon=True)
        with self._lock:
            self._asked = [each for each in self._asked if each.is_alive()]
            self._late = {each: late for each, late in self._late.items() if each.is_alive()}
            if about in self._late.values():
                raise _unavailable("none yet to the same question of before")
            like = sum(late[:2] == about[:2] for late in self._late.values())
            if like >= _MOST_LATE_OF_ONE_KIND:
                raise _unavailable(f"none yet to {count_text(like, 'earlier question')} of this kind")
            if len(self._late) >= _MOST_LATE:
                raise _unavailable(f"none yet to {count_text(len(self._late), 'earlier question')}")
            try:
                thread.start()
            except RuntimeError as error:  # pids.max of the cgroup
                raise BrokerUnavailable(
                    f"Expected to start a thread for a question to the broker, got: {error}: "
                    "raise this process's limit of threads (`ulimit -u`, pids.max)."
                ) from error
            self._asked.append(thread)
        try:
            return answer.result(WITHIN)
        except TimeoutError as error:
            if answer.done():
                raise
            with self._lock:
                self._late[thread] = about
            raise _unavailable("none") from error

    def close(self, within: float) -> None:
        """Wait until the threads have ended, for at most `within` seconds in all; the caller has stopped the adapters."""
        clock = SystemClock()
        end = clock.monotonic() + within
        with self._lock:
            asked, self._asked = self._asked, []
        for thread in asked:
            thread.join(max(0.0, end - clock.monotonic()))


def _run(question: Callable[[], Answer], answer: Future[Answer]) -> None:
    try:
        answer.set_result(question())
    except BaseException as error:  # noqa: BLE001 - the future passes it on
        answer.set_exception(error)


def _unavailable(got: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"Expected an answer of the broker within {WITHIN:g} s, got {got}: check whether the broker runs, and can be reached."
    )
