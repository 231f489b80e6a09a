"""
The link between one run and its worker process, on the handler's side.

The handler sends requests and waits for the replies; the worker process sends the order to end the run.
In a process slot, requests and orders are frames on a socket; in a thread slot, they are plain calls.
`Job` and exports work the same in both kinds of slot.

A job can send seven requests (`JobRequest`); `runner/requests.py` serves them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol

from msgspec import Struct

from steadyworker.clock import Clock
from steadyworker.errors import Interrupt, InterruptReason, SteadyWorkerError

SERVICE_ERROR = "service-error"
"""The name of the event that ends a call if no service accepts the call; the event's text is the reason."""


class Task(Struct, frozen=True, kw_only=True):
    """
    The input of one run: everything that its job receives at the start.

    `last_checkpoint` is the JSON text of the user's checkpoint.
    `redelivered` is the broker's mark on the delivery with which the run begins; None if the broker does not report it.
    `time_limit` and `stall_limit` are seconds, or None; the slot enforces both.
    `trace` has the headers of the run's span, which the spans of the handler continue; empty if no span traces the run.
    `gave_up` is the reason why the job is dead, if the slot calls `on_dead` instead of `handle`; otherwise None.
    At the time limit, the slot kills the run.
    The job's calls raise Interrupt from 10 s before the limit, but not before 80 % of the limit has passed.
    """

    key: str
    round: int = 0
    queue: str
    namespace: str = ""
    uid: str
    fence: int
    attempt: int
    body: bytes
    headers: Mapping[str, str] = {}
    last_checkpoint: bytes | None = None
    export_state: bytes | None = None
    sent_at: float | None = None
    redelivered: bool | None = None
    time_limit: float | None = None
    stall_limit: float | None = None
    gave_up: str | None = None
    trace: Mapping[str, str] = {}

    def context(self) -> dict[str, object]:
        """Return the fields that every log line of the job has."""
        fields: dict[str, object] = {
            "queue": self.queue,
            "key": self.key,
            "attempt": self.attempt,
            "fence": self.fence,
        }
        span = (self.trace or self.headers).get("traceparent", "").split("-")
        names = ("trace_id", "span_id") if self.trace else ("trace_id",)
        return fields | dict(zip(names, span[1:], strict=False))


class _RequestBase(Struct, tag=True, array_like=True):
    """The base of the requests: each is plain data, so that a frame can carry it."""


class SaveCheckpoint(_RequestBase):
    """The request to save the job's checkpoint, a JSON text, in the ledger."""

    value: bytes


class SaveExportState(_RequestBase):
    """The request to save the state of the job's export in the ledger; None clears the state."""

    value: bytes | None


class MayCommit(_RequestBase):
    """The request for permission to publish an export; the reason of a refusal is `fenced` or `cancelled`."""


class FindEnded(_RequestBase):
    """The request to find out which of these jobs are done or dead; the reply lists the uids of the done and dead jobs."""

    uids: list[str]


class RememberFolder(_RequestBase):
    """The request to record that this folder has a stage of an export; it is bytes, because a path need not be valid text."""

    folder: bytes


class CallService(_RequestBase):
    """
    The request to a service (`slots.base.JobService`) with this name; the service checks `data`.

    The service replies with a stream: each reply is one event, and the last event has `end`.
    """

    service: str
    data: Any


class CancelCall(_RequestBase):
    """The request to end a call of a service early; `call` is the id of its `CallService`, and there is no reply."""

    call: int


LedgerRequest = SaveCheckpoint | SaveExportState | MayCommit | FindEnded
JobRequest = LedgerRequest | RememberFolder | CallService | CancelCall


class Upstream(Protocol):
    """The link's connection to the worker process; both calls are thread-safe and return at once."""

    def send_progress(self, done: float | None, total: float | None, note: str) -> None:
        """Send progress."""
        ...

    def send_request(self, id: int, request: JobRequest) -> None:
        """Send a request; the slot later calls `Link.answer` with the same id."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply to a request; a call to a service gets several replies, and the last has `end`."""

    data: Any
    refused: InterruptReason | None = None
    end: bool = True


class Link:
    """
    The link of one run, thread-safe; each run gets a new link.

    Attributes:
        raised: The reason of the first Interrupt that was raised in this run, or None.
            A run with a reason is not Done, even if its handler returns.
        in_cleanup: True once the handler was interrupted after the order to end at once.
        exports: The manifests of the files that the run has exported.
        result: The JSON text of the run's result, or None.
    """

    def __init__(self, upstream: Upstream, clock: Clock, progress_every: float = 0.2) -> None:
        self.raised: InterruptReason | None = None
        self.in_cleanup = False
        self.exports: list[Any] = []
        self.result: bytes | None = None
        self._upstream = upstream
        self._clock = clock
        self._progress_every = progress_every
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, SimpleQueue[Answer | None]] = {}
        self._soft: InterruptReason | None = None
        self._hard: InterruptReason | None = None
        self._on_hard: Callable[[], None] | None = None
        self._sent_at = float("-inf")
        self._unsent: tuple[float | None, float | None, str] | None = None

    # --- Called by the handler, in any of its threads ---

    def progress(self, done: float | None, total: float | None, note: str) -> None:
        """Send progress, at most once in `progress_every` seconds; the first and the last report are always sent."""
        now = self._clock.monotonic()
        if now - self._sent_at < self._progress_every:
            self._unsent = (done, total, note)
            return
        self._sent_at, self._unsent = now, None
        self._upstream.send_progress(done, total, note)

    def flush(self) -> None:
        """Send the last report of progress, if it was held back."""
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            self._upstream.send_progress(*unsent)

    def ask(self, request: JobRequest) -> Any:
        """Send a request, wait for its one reply and return its data; raise Interrupt if the request is refused."""
        self.flush()
        id, answers = self._open(request)
        try:
            answer = answers.get()
            while answer is None:  # the order to end the run; this request still waits for its reply
                answer = answers.get()
        finally:
            self._waiting.pop(id, None)
        return self._accepted(answer).data

    def call(self, service: str, data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """
        Call a service, and yield its events up to the last.

        Raises Interrupt as soon as the run must end.
        If the caller closes the iterator early, the link cancels the call.
        """
        id, answers = self._open(CallService(service, dict(data)))
        end = False
        try:
            while not end:
                self.check(hard=True)
                answer = answers.get()
                if answer is not None:
                    end = self._accepted(answer).end
                    if SERVICE_ERROR in answer.data:
                        raise SteadyWorkerError(answer.data[SERVICE_ERROR])
                    yield answer.data
        finally:
            self._waiting.pop(id, None)
            if not end:
                self._upstream.send_request(next(self._ids), CancelCall(id))

    def check(self, *, hard: bool) -> None:
        """Raise Interrupt if the run must end; with `hard`, only from the interrupting stage on, not while draining."""
        reason = self._hard if hard else self._hard or self._soft
        if reason is not None:
            self.interrupt_now(reason)

    def interrupt_now(self, reason: InterruptReason) -> NoReturn:
        """Raise Interrupt here, and record it."""
        self.was_raised(reason)
        raise Interrupt(reason)

    def was_raised(self, reason: InterruptReason) -> None:
        """
        Record that the handler was interrupted, by Interrupt or by a cancelled task.

        After this, a return of the handler no longer makes the run Done.
        """
        self.raised = self.raised or reason
        self.in_cleanup = self._hard is not None

    # --- Called by the slot ---

    @property
    def hard(self) -> InterruptReason | None:
        """The reason for the order to end at once, which makes every Job call raise Interrupt; None without this order."""
        return self._hard

    def answer(self, id: int, answer: Answer) -> None:
        """Pass a reply to the request that waits for it; ignore the reply if no request waits."""
        waiting = self._waiting.get(id)
        if waiting is not None:
            waiting.put(answer)

    def interrupt(self, reason: InterruptReason, *, hard: bool) -> None:
        """Order the run to end; the first reason of each kind of order (soft, hard) stays."""
        with self._lock:
            self._soft = self._soft or reason
            if not hard or self._hard is not None:
                return
            self._hard = reason
            on_hard = self._on_hard
        for waiting in tuple(self._waiting.values()):
            waiting.put(None)
        if on_hard is not None:
            on_hard()

    def when_hard(self, action: Callable[[], None] | None) -> None:
        """
        Set the action that the link calls, from any thread, when the order to end at once comes.

        If this order has already come, call the action now.
        """
        with self._lock:
            self._on_hard = action
            ordered = self._hard is not None
        if ordered and action is not None:
            action()

    def _open(self, request: JobRequest) -> tuple[int, SimpleQueue[Answer | None]]:
        id = next(self._ids)
        answers: SimpleQueue[Answer | None] = SimpleQueue()
        self._waiting[id] = answers
        self._upstream.send_request(id, request)
        return id, answers

    def _accepted(self, answer: Answer) -> Answer:
        if answer.refused is not None:
            self.interrupt_now(answer.refused)
        return answer
