"""Workers and programs whose worker processes write the lines that `entries/steadyworker.toml` explains."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from steadyworker import Job, RetryPolicy, Worker, run
from steadyworker.errors import HostUnfit
from steadyworker.events import Event
from tests.support.jobs import is_open, note


class _Raises:
    """A `wait` that raises once its job has started, and not when its policy is made."""

    def __call__(self, _state: object) -> float:
        if is_open("waits"):
            raise ZeroDivisionError("no wait")
        return 0.1


class Odd(Worker[dict[str, Any]]):
    """Does what the payload's `do` says."""

    queue = "odd"
    time_limit = 60

    def handle(self, job: Job[dict[str, Any]]) -> object:
        note("starts", job.key)
        match job.payload["do"]:
            case "unfit":
                raise HostUnfit("the program pdftk is missing")
            case "return":
                return 5
            case "wait":
                while True:
                    job.check()
                    time.sleep(0.01)
            case _:
                return None

    def teardown(self) -> None:
        raise RuntimeError("the pool is gone")


class Waits(Worker[dict[str, Any]]):
    """Fails, and has a wait of its own."""

    queue = "waits"
    time_limit = 60
    retry = RetryPolicy(max_attempts=2, wait=_Raises())

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("waits", job.key)
        raise ValueError("as asked")


class Strict(Worker[dict[str, Any]]):
    """Takes no message without a key."""

    queue = "strict"
    time_limit = 60
    unkeyed = "reject"

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", job.key)


class Loose(Worker[dict[str, Any]]):
    """Leaves a thread behind, which has an end only after a while."""

    queue = "loose"
    time_limit = 60
    isolation = "thread"

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", job.key)
        threading.Thread(target=time.sleep, args=(60,), name="left alone", daemon=False).start()


def raises(event: Event) -> None:
    """Listen, and raise."""
    raise LookupError(f"no room for {type(event).__name__}")


def main() -> None:
    """Run a Worker with the listener that the command line names."""
    listeners: dict[str, Callable[[Event], None]] = {"raises": raises}
    run(Odd, listeners=[listeners[sys.argv[1]]], max_jobs=1)


if __name__ == "__main__":
    main()
