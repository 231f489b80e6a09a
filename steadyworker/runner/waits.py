"""Draws the wait before a job's next attempt, so that a user's own `wait` can neither block nor end the runner."""

from __future__ import annotations

import threading

from steadyworker.outcome import Counters, Outcome
from steadyworker.retry import RetryPolicy, drawn_delay, has_users_code
from steadyworker.spec import WorkerSpec
from steadyworker.telemetry.logs import get_logger

_WITHIN = 1.0
_ENTRY = "steadyworker.wait-failed"


class Waits:
    """
    The waits of one Worker, by its retry policy.

    The runner's thread serves every job, so a user's own `wait` runs in another thread, and must return within one second.
    If the user's `wait` raises or takes longer, or no thread can start, the default policy draws the wait.
    A `wait` that took longer is not called again, because each call could leave a blocked thread.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._in_thread = has_users_code(spec.retry.wait)
        self._blocks = False
        self._log = get_logger("steadyworker.runner")

    def draw(self, outcome: Outcome, counters: Counters) -> float:
        """Return the wait in seconds for this outcome, and raise nothing; `counters` already count the outcome."""
        drawn: list[float] = []

        def draw() -> None:
            try:
                drawn.append(drawn_delay(outcome, counters, self._spec.retry))
            except BaseException:  # noqa: BLE001 - a user's `wait` can raise anything
                self._log.exception("wait_failed", worker=self._spec.target, explain=_ENTRY)

        if not self._in_thread:
            draw()
        elif not self._blocks:
            thread = threading.Thread(target=draw, name=f"wait-{self._spec.queue}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system allows no further thread
                self._log.error("wait_failed", worker=self._spec.target, reason=str(error), explain=_ENTRY)
            else:
                thread.join(_WITHIN)
                self._blocks = thread.is_alive()
                if self._blocks:
                    reason = f"it took more than {_WITHIN:g} s; the default wait is used until this process ends"
                    self._log.error("wait_failed", worker=self._spec.target, reason=reason, explain=_ENTRY)
        return drawn[0] if drawn else drawn_delay(outcome, counters, RetryPolicy())
