"""
The call of a handler: the same code for a child process, a thread, and `run_one`.

The call always returns an Outcome, because it catches every exception of the handler.
"""

from __future__ import annotations

import contextvars
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from steadyworker.clock import Clock
from steadyworker.errors import (
    BadPayload,
    ExportRejected,
    HostUnfit,
    InterruptReason,
    Reject,
    Retry,
    Snooze,
    delay_in_seconds,
)
from steadyworker.job import Job
from steadyworker.link import Link, Task
from steadyworker.outcome import Done, Failed, Interrupted, Outcome, Rejected, Snoozed
from steadyworker.payload import decoder, plain_decoder
from steadyworker.slots.tracebacks import traceback_of
from steadyworker.spec import checkpoint_type, payload_type
from steadyworker.system.leaving import flush_output
from steadyworker.telemetry import logs
from steadyworker.telemetry.late_imports import libraries_first
from steadyworker.telemetry.line_context import LineContext
from steadyworker.telemetry.traces import continued
from steadyworker.text.plain_text import plain_text
from steadyworker.worker import Worker

if TYPE_CHECKING:
    import asyncio

_CLASS_NAME = 300


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of a handler's run, and the exception that ended the run, or None."""

    outcome: Outcome
    error: BaseException | None = None

    @property
    def traceback(self) -> str:
        """The traceback of the exception, for people; empty for a run that did not fail."""
        return traceback_of(self.error) if isinstance(self.outcome, Failed | Rejected | Interrupted) else ""


class Executor:
    """
    An instance of a Worker, with the calls of its methods, and one event loop for all `async` methods.

    `exposed` is the link of the run whose synchronous handler runs now; a signal can raise Interrupt in this handler.
    `exposed` is None while the event loop runs an `async` handler, because a stop then cancels the handler's task instead.
    As soon as the Worker's method has ended, the executor calls `calm`, which stops a timer.
    Otherwise the timer's signal could raise an exception in the slot's own code.
    `returned` is true once the handler of the last run has returned.
    """

    def __init__(self, worker: Worker[Any, Any], clock: Clock) -> None:
        cls = type(worker)
        self.exposed: Link | None = None
        self.calm: Callable[[], object] = _nothing
        self.returned = False
        self._worker = worker
        self._asynchronous = inspect.iscoroutinefunction(worker.handle)
        self._clock = clock
        self._decode = decoder(payload_type(cls), sys.maxsize)  # the runner has checked the size
        self._decode_checkpoint = plain_decoder(checkpoint_type(cls))
        # RetryPolicy has converted this field to a tuple.
        self._dont_retry_on = cast("tuple[type[BaseException], ...]", cls.retry.dont_retry_on)
        self._log = logs.get_logger("steadyworker.job")
        self._context = LineContext()
        self._loop: asyncio.Runner | None = None
        self._pid = os.getpid()
        self._warned = False

    def setup(self) -> None:
        """Call the user's `setup`, without catching its exceptions."""
        try:
            self._settle(self._worker.setup())
        finally:
            with suppress(Exception):  # a user's logging handler can raise
                logs.settle()

    def teardown(self) -> None:
        """Call the user's `teardown`, without catching its exceptions."""
        self._settle(self._worker.teardown())

    def close(self) -> None:
        """Close the event loop, if there is one."""
        if self._loop is not None:
            self._loop.close()

    def run(self, task: Task, link: Link) -> Ran:
        """Decode the payload, call the handler, and return its outcome; raise nothing."""
        with self._context.bound(task.context()), continued(task.trace):
            ran = self._run(task, link)
            with suppress(BaseException):  # a user's logging handler can raise
                if not logs.is_settled():
                    logs.settle()
                if isinstance(ran.outcome, Failed) and task.gave_up is not None:
                    about = {"reason": ran.outcome.reason, "explain": "steadyworker.on-dead-failed"}
                    self._log.warning("on_dead_failed", **about, exc_info=_to_show(ran.error))
                elif isinstance(ran.outcome, Failed):
                    self._log_failed(ran.outcome, _to_show(ran.error))
            return ran

    def _run(self, task: Task, link: Link) -> Ran:
        began, self.returned = self._clock.monotonic(), False
        try:
            payload = self._decode(task.body)
        except BaseException as error:  # noqa: BLE001 - a user's type can run code, and raise anything
            if task.gave_up is None:
                return Ran(_bad_payload(error), error)
            payload = None  # the job may be dead for this reason
        job: Job[Any, Any] = Job(
            payload, task, link=link, clock=self._clock, began=began, decode_checkpoint=self._decode_checkpoint
        )
        try:
            if (reason := task.gave_up) is None:
                result = self._call(lambda: self._worker.handle(job), self._asynchronous, link)
            else:
                asynchronous = inspect.iscoroutinefunction(self._worker.on_dead)
                result = self._call(lambda: self._worker.on_dead(job, reason), asynchronous, link)
        except BaseException as error:  # noqa: BLE001 - SystemExit, KeyboardInterrupt and Interrupt end the run, never the slot
            try:  # noqa: SIM105 - a signal could come inside `suppress`
                self.calm()
            except BaseException:  # noqa: BLE001, S110 - the signal handler of a timer can raise anything
                pass
            ran = Ran(self._outcome(error, link), error)
        else:
            ran = Ran(self._verdict(result, link))
        if os.getpid() != self._pid:
            self._leave_fork(ran)
        with suppress(OSError):  # the handler has closed the socket, so the worker process ends this child
            link.flush()
        return ran

    def _log_failed(self, failed: Failed, error: BaseException | None) -> None:
        """Log a failed attempt; if no further attempt follows, the line `job_settled` of the dead letter is the error."""
        if failed.planned:
            self._log.info("job_failed", reason=failed.reason, exc_info=error)
        else:
            about = {"reason": failed.reason, "explain": "steadyworker.job-failed"}
            self._log.warning("job_failed", **about, exc_info=error)

    def _call(self, work: Callable[[], Any], asynchronous: bool, link: Link) -> Any:  # noqa: FBT001 - private
        """
        Call the handler so that a hard stop can end it, by an Interrupt in this thread or by a cancelled task.

        Python runs signal handlers only at calls and jumps.
        There is no call or jump between the handler's return and the line that sets `returned`; `work` is a lambda for this reason.
        An exception that a signal handler raises after this line is not an error of the job's handler.
        """
        self.exposed = link
        result = None
        try:
            result = work()
            self.returned = not asynchronous
            if self.returned:
                self.calm()
        except BaseException:
            if not self.returned:
                raise
        finally:
            self.exposed = None
        if asynchronous:
            result = self._await(result, link) if inspect.iscoroutine(result) else result
            self.returned = True
        return result

    def _verdict(self, result: Any, link: Link) -> Outcome:
        if link.raised is not None:
            _discard(result)
            return outcome_of_interrupt(link.raised)
        if result is None:
            return Done(link.result)
        if (kind := _never_started(result)) is not None:
            article = "an" if kind[0].lower() in "aeiou" else "a"
            _discard(result)
            return Failed(
                f"nothing ran: handle returned {article} {kind} that was never started; "
                "write `async def handle`, or a handle without `yield`"
            )
        if not self._warned:
            self._warned = True
            with suppress(BaseException):  # a user's logging handler or metaclass can raise
                about = {"type": type(result).__name__, "explain": "steadyworker.result-ignored"}
                self._log.warning("handle_result_ignored", **about)
        return Done(link.result)

    def _outcome(self, error: BaseException, link: Link) -> Outcome:
        if link.raised is not None:
            return outcome_of_interrupt(link.raised)
        try:
            return self._judged(error)
        except BaseException as second:  # noqa: BLE001 - a user's exception class can run code that raises
            return Failed(
                f"Expected an exception whose text and attributes can be read, got one whose class raises an error when they are read ({error_text(second)}): "
                "correct its class; its `__init__` should call `super().__init__`."
            )

    def _judged(self, error: BaseException) -> Outcome:  # noqa: PLR0911 - one return per class
        """Return the outcome for an exception by its class; an exception that the user's class raises here passes through."""
        match error:
            case Retry():
                delay = None if error.delay is None else delay_in_seconds(error.delay)
                reason = plain_text(error.reason) or plain_text(error)
                return Failed(reason, "Retry", delay, bool(error.fresh), bool(error.planned))
            case Reject():
                return Rejected(plain_text(error.reason) or plain_text(error))
            case Snooze():
                return Snoozed(delay_in_seconds(error.delay))
            case HostUnfit():
                return Interrupted(plain_text(error.reason) or plain_text(error))
            case ExportRejected():
                return Rejected(plain_text(str(error)) or plain_text(error), class_name(error))
            case _ if isinstance(error, self._dont_retry_on):
                return Rejected(plain_text(error), class_name(error))
            case _:
                return Failed(plain_text(error), class_name(error))

    def _settle(self, result: object) -> None:
        """Run the result of `setup` or `teardown` if the result is a coroutine."""
        if inspect.iscoroutine(result):
            self._runner().run(result)

    def _await(self, handling: Awaitable[Any], link: Link) -> Any:
        with libraries_first():
            import asyncio

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
        with libraries_first():
            import asyncio

        if self._loop is None:
            self._loop = asyncio.Runner()
        return self._loop

    def _leave_fork(self, ran: Ran) -> None:
        """Exit if this process is a fork that has returned from the handler, because a fork must not report an outcome."""
        flush_output()
        os._exit(0 if isinstance(ran.outcome, Done) else 1)


def _to_show(error: BaseException | None) -> BaseException | None:
    """
    Return the exception whose traceback the log shows, or None.

    A Retry without another exception has no traceback in the log, because its reason is enough.
    """
    if isinstance(error, Retry) and error.__cause__ is None and error.__context__ is None:
        return None
    return error


def _nothing() -> None:
    """Do nothing: a thread needs no `calm`, because signal handlers run only in a process's main thread."""


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
    """Return the name of the error's class, with the module if the class is not built in; raise nothing."""
    cls = type(error)
    try:
        name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
        return plain_text(name, _CLASS_NAME)
    except BaseException:  # noqa: BLE001 - a user's metaclass can raise
        return ""


def error_text(error: BaseException) -> str:
    """Return `plain_text(error)`; raise nothing, even if the error's class raises."""
    try:
        return plain_text(error)
    except BaseException:  # noqa: BLE001 - a user's class can raise anything, even SystemExit
        return "an exception that cannot be printed"


def _bad_payload(error: BaseException) -> Outcome:
    if type(error) is BadPayload:
        return Rejected(f"bad-payload: {plain_text(str(error))}", "BadPayload")
    return Rejected(f"bad-payload: {error_text(error)}", class_name(error))


def _never_started(result: Any) -> str | None:
    """Return the type name of an awaitable or generator that the handler returned; None for any other value."""
    with suppress(BaseException):  # a user's class can raise here; then this function returns None
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            return plain_text(type(result).__name__, _CLASS_NAME)
    return None


def _discard(result: Any) -> None:
    """Close a coroutine or generator that never started, so that Python writes no warning about it later."""
    with suppress(BaseException):  # if the generator has started, `close` runs the handler's clean-up, which can raise
        if inspect.iscoroutine(result) or isinstance(result, Generator):
            result.close()


def _call_soon(loop: asyncio.AbstractEventLoop, action: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed, so nothing is left to cancel
        loop.call_soon_threadsafe(action)
