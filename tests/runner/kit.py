"""What the tests of the runner share: Workers that do what a test sets, run by run, and names for what was settled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from steadyworker.events import Event, JobSettled
from steadyworker.job import Job
from steadyworker.outcome import Counters
from steadyworker.retry import RetryPolicy
from steadyworker.testing.harness import Harness
from steadyworker.worker import Worker

Deed = Callable[[Job[Any, Any]], object]
AnyWorker = type[Worker[Any, Any]]
E = TypeVar("E", bound=Event)

QUEUE = "exports"


def worker(*deeds: Deed, **attributes: Any) -> AnyWorker:
    """A Worker whose n-th run does the n-th deed, and the last one from then on."""
    runs = iter(deeds)
    present: list[Deed] = [nothing]

    def handle(self: object, job: Job[Any, Any]) -> object:
        present[0] = next(runs, present[0])
        return present[0](job)

    return type("Exports", (Worker,), {"queue": QUEUE, "time_limit": None, "handle": handle} | attributes)


def nothing(job: Job[Any, Any]) -> None:
    """Be done at once."""


def raises(error: BaseException) -> Deed:
    """Raise this."""

    def deed(job: Job[Any, Any]) -> None:
        raise error

    return deed


def saves(position: int, then: Deed = nothing) -> Deed:
    """Save this position, then go on."""

    def deed(job: Job[Any, Any]) -> object:
        job.checkpoint(position)
        return then(job)

    return deed


class Gate:
    """
    A deed that goes on when the test opens it, with another one.

    Wait for `reached` before a cancel: a checkpoint just before it would be interrupted.
    """

    def __init__(self, then: Deed = nothing) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()
        self._then = then

    def __call__(self, job: Job[Any, Any]) -> object:
        self.reached.set()
        assert self._opened.wait(20), "the test never opened this gate"
        return self._then(job)

    def open(self) -> None:
        self._opened.set()


class Obedient:
    """
    A deed that goes on until it is interrupted, and remembers why.

    Wait for `begun` before telling it: a checkpoint just before it would be interrupted, too.
    """

    def __init__(self, *, interrupted_at: Callable[[Job[Any, Any]], None] = lambda job: job.check()) -> None:
        self.reasons: list[object] = []
        self.begun = threading.Event()
        self._interrupted_at = interrupted_at

    def __call__(self, job: Job[Any, Any]) -> None:
        self.begun.set()
        try:
            for _ in range(2000):
                self._interrupted_at(job)
                threading.Event().wait(0.005)
        except BaseException as error:
            self.reasons.append(getattr(error, "reason", error))
            raise


class Seen:
    """A deed that remembers what each run was given."""

    def __init__(self, what: Callable[[Job[Any, Any]], object], then: Deed = nothing) -> None:
        self.values: list[Any] = []
        self._what = what
        self._then = then

    def __call__(self, job: Job[Any, Any]) -> object:
        self.values.append(self._what(job))
        return self._then(job)


def events(harness: Harness, key: str, kind: type[E]) -> list[E]:
    """The events of this kind about this job."""
    return [event for event in harness.of(key) if isinstance(event, kind)]


def settled(harness: Harness, key: str) -> list[str]:
    """How each of the job's messages was settled, in order."""
    return [event.settlement for event in events(harness, key, JobSettled)]


def counted(harness: Harness, key: str) -> tuple[int, int, int, int]:
    """Attempts, crashes, losses and interruptions, as the ledger has them."""
    row = harness.job(key)
    counters = Counters() if row is None else row.counters
    return counters.attempts, counters.crashes, counters.losses, counters.interruptions


def quickly(max_attempts: int = 3, **limits: Any) -> RetryPolicy:
    """A policy whose tests are over soon."""
    return RetryPolicy(max_attempts=max_attempts, **limits)
