"""The preparation of a broker for one queue, which senders and the consumer share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from steadyworker.errors import BrokerUnavailable, SteadyWorkerError

Prepared = TypeVar("Prepared")


class Preparation(Generic[Prepared]):
    """
    A preparation that runs once and keeps its result; thread-safe.

    Args:
        prepare: A blocking function that prepares the broker, and returns the facts that it found; raises SteadyWorkerError.
    """

    def __init__(self, prepare: Callable[[], Prepared]) -> None:
        self._prepare = prepare
        self._lock = threading.Lock()
        self._prepared: Prepared | None = None
        self._attempt: Future[Prepared] | None = None

    @property
    def known(self) -> Prepared | None:
        """The result of the preparation, or None before it; never blocks."""
        return self._prepared

    def prepared(self) -> Prepared:
        """
        Return the result; at the first call, prepare the broker.

        The call blocks, and raises the errors of `prepare`.
        Threads that call it at the same time share one attempt and its result.
        If each thread made its own attempt in turn, the last of many senders would wait for the timeouts of all attempts.
        """
        with self._lock:
            if self._prepared is not None:
                return self._prepared
            theirs = self._attempt
            attempt = self._attempt = theirs or Future()
        if theirs is None:
            self._try(attempt)
        return attempt.result()

    def _try(self, attempt: Future[Prepared]) -> None:
        """Prepare the broker, and set the attempt's result, even after an unexpected error."""
        try:
            prepared = self._prepare()
            self._prepared = prepared
            attempt.set_result(prepared)
        except SteadyWorkerError as error:
            attempt.set_exception(error)
        finally:
            self._attempt = None
            if not attempt.done():  # a defect, or an interrupt of this thread alone
                attempt.set_exception(
                    BrokerUnavailable(
                        "Expected the queues to be prepared, but the attempt was interrupted: send again."
                    )
                )

    def forget(self) -> None:
        """
        Discard the result, because the queue is missing or has changed.

        The next use then prepares the broker again.
        """
        self._prepared = None
