"""
The link between one run and its worker process, on the handler's side.

Requests go up and wait for their replies; the order to end the run comes down.
In a process slot both go as frames over a socket, in a thread slot as plain calls.
`Job` and exports work the same with either.
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

CANCEL = "cancel"
"""The request that ends a call to a service early: its data is the id of that call, and it has no reply."""

SERVICE_ERROR = "service-error"
"""If no service accepted a call, this is the only event of that call; the event's text is the reason."""


class Task(Struct, frozen=True, kw_only=True):
    """
    The input of one run: all that its job receives at the start.

    `last_checkpoint` is the JSON text of the user's checkpoint.
    `time_limit` and `stall_limit` are seconds, or None; the slot enforces both.
    At the time limit it kills the run; 10 s before, but not before 80 % of the limit, it raises Interrupt in the handler.
    """

    key: str
    round: int = 0
    queue: str
    uid: str
    fence: int
    attempt: int
    body: bytes
    headers: Mapping[str, str] = {}
    last_checkpoint: bytes | None = None
    export_state: bytes | None = None
    sent_at: float | None = None
    time_limit: float | None = None
    stall_limit: float | None = None

    def context(self) -> dict[str, object]:
        """Return the fields that every log line of the job has."""
        fields: dict[str, object] = {
            "queue": self.queue,
            "key": self.key,
            "attempt": self.attempt,
            "fence": self.fence,
        }
        trace = self.headers.get("traceparent", "").split("-")
        return fields | ({"trace_id": trace[1]} if len(trace) > 1 else {})


class Upstream(Protocol):
    """The way up to the worker process; both calls are thread-safe and return at once."""

    def progressed(self, done: float | None, total: float | None, note: str) -> None:
        """Send progress."""
        ...

    def asked(self, id: int, what: str, data: Any) -> None:
        """Send a request; `Link.answer` is called later with the same id."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply to a request; a call to a service gets several, the last with `end`."""

    data: Any
    refused: InterruptReason | None = None
    end: bool = True


class Link:
    """
    The link of one run, thread-safe; each run gets a new one.

    Attributes:
        raised: The reason of the first Interrupt that was raised in this run, or None.
            A run with a reason is not Done, even if its handler returns.
        heard: True once the handler was interrupted after the order to end at once.
            It is then in its clean-up.
        exports: The manifests of the files that the run has exported.
    """

    def __init__(self, upstream: Upstream, clock: Clock, progress_every: float = 0.2) -> None:
        self.raised: InterruptReason | None = None
        self.heard = False
        self.exports: list[Any] = []
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

    def progressed(self, done: float | None, total: float | None, note: str) -> None:
        """Send progress, at most once in `progress_every` seconds; the first and the last are always sent."""
        now = self._clock.monotonic()
        if now - self._sent_at < self._progress_every:
            self._unsent = (done, total, note)
            return
        self._sent_at, self._unsent = now, None
        self._upstream.progressed(done, total, note)

    def flush(self) -> None:
        """Send the progress that was held back."""
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            self._upstream.progressed(*unsent)

    def ask(self, what: str, data: Any = None) -> Any:
        """Send a request, wait for its one reply and return its data; raise Interrupt if the request is refused."""
        self.flush()
        id, answers = self._open(what, data)
        try:
            answer = answers.get()
            while answer is None:  # the run must end, but this request is finished first
                answer = answers.get()
        finally:
            self._waiting.pop(id, None)
        return self._accepted(answer).data

    def call(self, service: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """
        Call a service, and yield its events up to the last.

        Raises Interrupt as soon as the run must end.
        Closing the iterator early cancels the call.
        """
        id, answers = self._open(service, dict(request))
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
                self._upstream.asked(next(self._ids), CANCEL, id)

    def check(self, *, hard: bool) -> None:
        """Raise Interrupt if the run must end: from the draining stage on, or with `hard` from interrupting on."""
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

        Its return value no longer makes the run Done.
        """
        self.raised = self.raised or reason
        self.heard = self._hard is not None

    # --- Called by the slot ---

    @property
    def hard(self) -> InterruptReason | None:
        """The reason for which every Job call raises Interrupt, or None while none does."""
        return self._hard

    def answer(self, id: int, answer: Answer) -> None:
        """Pass a reply to the request that waits for it; ignore it if no request waits."""
        waiting = self._waiting.get(id)
        if waiting is not None:
            waiting.put(answer)

    def interrupt(self, reason: InterruptReason, *, hard: bool) -> None:
        """Order the run to end; of each kind (soft, hard) the first reason stays."""
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
        Set the action that is called, from any thread, at the order to end at once.

        If that order came before, the action is called now.
        """
        with self._lock:
            self._on_hard = action
            told = self._hard is not None
        if told and action is not None:
            action()

    def _open(self, what: str, data: Any) -> tuple[int, SimpleQueue[Answer | None]]:
        id = next(self._ids)
        answers: SimpleQueue[Answer | None] = SimpleQueue()
        self._waiting[id] = answers
        self._upstream.asked(id, what, data)
        return id, answers

    def _accepted(self, answer: Answer) -> Answer:
        if answer.refused is not None:
            self.interrupt_now(answer.refused)
        return answer
