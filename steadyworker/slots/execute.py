"""
The call of a handler: the same code for a child process, a thread, and `run_one`.

It always returns an Outcome: it catches everything that a handler raises.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import sys
from collections.abc import Awaitable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from structlog.contextvars import bound_contextvars

from steadyworker.clock import Clock
from steadyworker.errors import BadPayload, InterruptReason, Reject, Retry, Snooze, TargetExists
from steadyworker.job import Job
from steadyworker.link import Link, Task
from steadyworker.outcome import Done, Failed, Interrupted, Outcome, Rejected, Snoozed
from steadyworker.payload import decoder, plain_decoder
from steadyworker.spec import checkpoint_type, payload_type
from steadyworker.telemetry.logs import get_logger
from steadyworker.worker import Worker

_REASON = 2000


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of a handler, and what it raised."""

    outcome: Outcome
    error: BaseException | None = None


class Executor:
    """
    A Worker's instance and its calls: setup, any number of runs, teardown, and one event loop for all of them.

    `exposed` is the link of the run whose handler is being called now: a signal may raise Interrupt in it.
    It is None while the event loop runs an `async` handler, which is cancelled instead.
    """

    def __init__(self, worker: Worker[Any, Any], clock: Clock) -> None:
        cls = type(worker)
        self.exposed: Link | None = None
        self._worker = worker
        self._clock = clock
        self._decode = decoder(payload_type(cls), sys.maxsize)  # the runner has checked the size
        self._decode_checkpoint = plain_decoder(checkpoint_type(cls))
        self._dont_retry_on = cls.retry.dont_retry_on
        self._log = get_logger("steadyworker.job")
        self._loop: asyncio.Runner | None = None
        self._pid = os.getpid()
        self._said_ignored = False

    def setup(self) -> None:
        """Call the user's `setup`; raise what it raises."""
        self._settle(self._worker.setup())

    def teardown(self) -> None:
        """Call the user's `teardown`; raise what it raises."""
        self._settle(self._worker.teardown())

    def close(self) -> None:
        """Close the event loop, if there is one."""
        if self._loop is not None:
            self._loop.close()

    def run(self, task: Task, link: Link) -> Ran:
        """Decode the payload, call the handler, and return how it ended; raise nothing."""
        with bound_contextvars(**task.context()):
            ran = self._run(task, link)
            if isinstance(ran.outcome, Failed):
                self._log.error("job_failed", reason=ran.outcome.reason, exc_info=ran.error)
            return ran

    def _run(self, task: Task, link: Link) -> Ran:
        began = self._clock.monotonic()
        try:
            payload = self._decode(task.body)
        except BadPayload as error:
            return Ran(Rejected(f"bad-payload: {error}", "BadPayload"), error)
        except Exception as error:  # noqa: BLE001 - a user's type may run code, and raise anything
            return Ran(Rejected(f"bad-payload: {error_text(error)}", class_name(error)), error)
        job: Job[Any, Any] = Job(
            payload, task, link=link, clock=self._clock, began=began, decode_checkpoint=self._decode_checkpoint
        )
        try:
            result = self._call(job, link)
        except BaseException as error:  # noqa: BLE001 - SystemExit, KeyboardInterrupt and Interrupt end the run, never the slot
            ran = Ran(self._outcome(error, link), error)
        else:
            ran = Ran(self._verdict(result, link))
        if os.getpid() != self._pid:
            self._leave_fork(ran)
        link.flush()
        return ran

    def _call(self, job: Job[Any, Any], link: Link) -> Any:
        """Call the handler so that a stop can end it: by Interrupt in this thread, or by cancelling its task."""
        self.exposed = link
        try:
            result = self._worker.handle(job)
        finally:
            self.exposed = None
        if inspect.iscoroutine(result) and inspect.iscoroutinefunction(self._worker.handle):
            return self._await(result, link)
        return result

    def _verdict(self, result: Any, link: Link) -> Outcome:
        if link.raised is not None:
            _discard(result)
            return outcome_of_interrupt(link.raised)
        if result is None:
            return Done()
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            kind = type(result).__name__
            article = "an" if kind[0].lower() in "aeiou" else "a"
            _discard(result)
            return Failed(
                f"nothing ran: handle returned {article} {kind} that was never started; "
                "write `async def handle`, or a handle without `yield`"
            )
        if not self._said_ignored:
            self._said_ignored = True
            self._log.warning("handle_result_ignored", type=type(result).__name__)
        return Done()

    def _outcome(self, error: BaseException, link: Link) -> Outcome:  # noqa: PLR0911 - one return per line of the table
        if link.raised is not None:
            return outcome_of_interrupt(link.raised)
        match error:
            case Retry():
                return Failed(error.reason or "Retry", "Retry", error.delay, error.fresh)
            case Reject():
                return Rejected(error.reason)
            case Snooze():
                return Snoozed(error.delay)
            case TargetExists():
                return Rejected(str(error)[:_REASON], class_name(error))
            case _ if isinstance(error, self._dont_retry_on):
                return Rejected(error_text(error), class_name(error))
            case _:
                return Failed(error_text(error), class_name(error))

    def _settle(self, result: object) -> None:
        """Run what `setup` or `teardown` returned, if it is a coroutine."""
        if inspect.iscoroutine(result):
            self._runner().run(result)

    def _await(self, handling: Awaitable[Any], link: Link) -> Any:
        async def cancellable() -> Any:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()

            def cancel() -> None:
                if task is not None and link.hard is not None and task.cancel():
                    link.was_raised(link.hard)

            link.when_hard(lambda: _call_soon(loop, cancel))
            try:
                return await handling
            finally:
                link.when_hard(None)

        return self._runner().run(cancellable(), context=contextvars.copy_context())

    def _runner(self) -> asyncio.Runner:
        if self._loop is None:
            self._loop = asyncio.Runner()
        return self._loop

    def _leave_fork(self, ran: Ran) -> None:
        """End a fork of this process that came back from the handler: it is not the job, and must not report its outcome."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(0 if isinstance(ran.outcome, Done) else 1)


def outcome_of_interrupt(reason: InterruptReason) -> Outcome:
    """Return the outcome of a run that was interrupted for this reason."""
    match reason:
        case "time-limit":
            return Failed("time-limit")
        case "cancelled":
            return Rejected("cancelled")
        case "shutdown" | "fenced":
            return Interrupted()


def class_name(error: BaseException) -> str:
    """Return the name of the error's class: with its module, unless it is built in."""
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def error_text(error: BaseException) -> str:
    """Return the error as one text of limited length, even when its `__str__` raises."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a user's __str__
        text = "(cannot be printed)"
    name = type(error).__name__
    return f"{name}: {text}"[:_REASON] if text else name


def _discard(result: Any) -> None:
    """Close a coroutine or generator that was never started, so that Python does not warn about it later."""
    if inspect.iscoroutine(result) or isinstance(result, Generator):
        result.close()


def _call_soon(loop: asyncio.AbstractEventLoop, action: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed: nothing is left to cancel
        loop.call_soon_threadsafe(action)
