"""
The link between one run and its worker process, seen from where the handler runs.

Questions go up and wait for their answers; the word that the run must end comes down.
A process slot puts frames of a socket on both ends, a thread slot plain calls: neither `Job` nor an export can tell.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol

from steadyworker.clock import Clock
from steadyworker.errors import Interrupt, InterruptReason, SteadyWorkerError

CANCEL = "cancel"
"""What is asked to end a call to a service early: its data is the id of that call, and nobody answers it."""

SERVICE_ERROR = "service-error"
"""The one event of a call that no service took: its text says why."""


class Upstream(Protocol):
    """The way up to the worker process; both calls are thread-safe and return at once."""

    def progressed(self, done: float | None, total: float | None, note: str) -> None:
        """The job moved."""
        ...

    def asked(self, id: int, what: str, data: Any) -> None:
        """The job asks; `Link.answer` is called with the same id."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a question; a call to a service gets several, the last with `end`."""

    data: Any
    refused: InterruptReason | None = None
    end: bool = True


class Link:
    """
    One run's link: made anew for each run, thread-safe.

    `raised` is the reason of the first Interrupt that it raised, or None: such a run is not Done, whatever it returns.
    `heard` says whether the handler was told since it has to end now: what it does then is its clean-up.
    `exports` holds the manifests of what the run has exported.
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
        """Pass progress up, every `progress_every` seconds at most; the first and the last always pass."""
        now = self._clock.monotonic()
        if now - self._sent_at < self._progress_every:
            self._unsent = (done, total, note)
            return
        self._sent_at, self._unsent = now, None
        self._upstream.progressed(done, total, note)

    def flush(self) -> None:
        """Pass up the progress that was held back."""
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            self._upstream.progressed(*unsent)

    def ask(self, what: str, data: Any = None) -> Any:
        """Ask, and wait for the one answer; raises Interrupt when it is a refusal."""
        self.flush()
        id, answers = self._open(what, data)
        try:
            answer = answers.get()
            while answer is None:  # the word to end came: what was asked is finished all the same
                answer = answers.get()
        finally:
            self._waiting.pop(id, None)
        return self._accepted(answer).data

    def call(self, service: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """
        Ask a service, and yield its events to the last.

        Hears at once that the run must end; closing the iterator early cancels the call.
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
        """Raise Interrupt when the run must end: from draining on, or with `hard` from cancelling on."""
        reason = self._hard if hard else self._hard or self._soft
        if reason is not None:
            self.interrupt_now(reason)

    def interrupt_now(self, reason: InterruptReason) -> NoReturn:
        """Raise Interrupt here, and remember that it was."""
        self.was_raised(reason)
        raise Interrupt(reason)

    def was_raised(self, reason: InterruptReason) -> None:
        """The handler was told to end, by Interrupt or by a cancelled task: what it returns counts no more."""
        self.raised = self.raised or reason
        self.heard = self._hard is not None

    # --- Called by the slot ---

    @property
    def hard(self) -> InterruptReason | None:
        """Why every Job call raises, or None while none does."""
        return self._hard

    def answer(self, id: int, answer: Answer) -> None:
        """An answer came; ignored when nobody waits for it."""
        waiting = self._waiting.get(id)
        if waiting is not None:
            waiting.put(answer)

    def interrupt(self, reason: InterruptReason, *, hard: bool) -> None:
        """Tell the run to end; the first reason of each kind stays."""
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
        """Set what is called, from any thread, when the run must end now; at once when that has been said already."""
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
