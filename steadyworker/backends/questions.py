"""Questions to a broker that people or web pages wait for: each has a short time limit, whatever the adapter's own limit is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import TypeVar

from steadyworker.errors import BrokerUnavailable
from steadyworker.units import count_text

WITHIN = 5.0
"""Seconds in which the broker must answer."""

_MOST_LATE = 32
"""The largest number of late questions; each has a thread."""

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
        self._late: dict[threading.Thread, Hashable] = {}

    def ask(self, about: Hashable, question: Callable[[], Answer]) -> Answer:
        """
        Return the answer to a question, or raise its error; two questions `about` the same are the same question.

        Raises BrokerUnavailable if there is no answer in time; the question itself goes on, and its answer is ignored.
        """
        answer: Future[Answer] = Future()
        thread = threading.Thread(target=_run, args=(question, answer), name="steadyworker question", daemon=True)
        with self._lock:
            self._asked = [each for each in self._asked if each.is_alive()]
            self._late = {each: late for each, late in self._late.items() if each.is_alive()}
            if about in self._late.values():
                raise _unavailable("none yet to the same question of before")
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
        """Wait until the threads have ended, for at most `within` seconds for each; the caller has stopped the adapters."""
        with self._lock:
            asked, self._asked = self._asked, []
        for thread in asked:
            thread.join(within)


def _run(question: Callable[[], Answer], answer: Future[Answer]) -> None:
    try:
        answer.set_result(question())
    except BaseException as error:  # noqa: BLE001 - the future passes it on
        answer.set_exception(error)


def _unavailable(got: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"Expected an answer of the broker within {WITHIN:g} s, got {got}: check whether the broker runs, and can be reached."
    )
