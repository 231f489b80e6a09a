"""
The I/O thread, which consumes; no other thread touches the consuming connection.

The thread has one `SqliteSession` after another; if it cannot open the next session, it tries again without limit.
In each turn, the thread commits all waiting settlements together with the messages that it receives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    retry_if_exception_type,
    stop_when_event_set,
    wait_exponential,
    wait_random,
)
from tenacity.nap import sleep_using_event

from steadyworker.adapter import (
    Connected,
    Delivered,
    Delivery,
    Lost,
    QueueSpec,
    Redelivered,
    Settings,
    Settle,
    Settled,
    Sink,
    Unreachable,
)
from steadyworker.errors import BrokerUnavailable, StaleDelivery, Unsettled
from steadyworker_sqlite.errors import Evicted, Unusable
from steadyworker_sqlite.session import SqliteSession, WaitingSettlement
from steadyworker_sqlite.store import BrokerFile, ReceivedMessage


class SqliteConsumer:
    """
    The I/O thread and its interface for other threads. The interface is thread-safe.

    Args:
        file: The broker file.
        spec: The queue to consume.
        settings: The operator's settings.
        silence: Seconds after which a frozen consumer loses its messages (`SILENCE`).
    """

    def __init__(self, file: BrokerFile, spec: QueueSpec, settings: Settings, silence: float) -> None:
        self._file = file
        self._spec = spec
        self._settings = settings
        self._silence = silence
        self._lock = threading.Lock()
        self._session: SqliteSession | None = None
        self._epoch = 0
        self._settlements: list[WaitingSettlement] = []
        self._window = 0
        self.last_turn: float | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, sink: Sink) -> None:
        """Start the thread; do nothing after an earlier `start` or `stop`."""
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                name = f"sqlite-broker {self._spec.queue}"
                thread = threading.Thread(target=self._run, args=(sink,), name=name, daemon=True)
                thread.start()
                self._thread = thread

    def prefetch(self, count: int) -> None:
        """Set the prefetch: the consumer holds at most `count` messages."""
        with self._lock:
            self._window = count
            if self._session is not None:
                self._session.wake()

    def settle(self, delivery: Delivery, how: Settle) -> None:
        """Return when the settlement is committed; otherwise raise StaleDelivery or Unsettled."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "Expected a call of `settle` from another thread, got one from the I/O thread, which would wait for itself: "
                "call `settle` outside the `sink` callback."
            )
        settlement = WaitingSettlement(*numbers_of(delivery), how)
        with self._lock:
            if self._session is None or delivery.epoch != self._epoch:
                raise _stale(delivery.epoch, self._epoch)
            self._settlements.append(settlement)
            self._session.wake()
        settlement.wait()

    def stop(self, within: float) -> None:
        """Release every delivery and end the thread within `within` seconds; if the thread is late, free the consumer's lock."""
        self._stopping.set()
        with self._lock:
            if self._session is not None:
                self._session.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(within)
            with self._lock:
                if self._session is not None:
                    self._session.vanish()

    def _run(self, sink: Sink) -> None:
        reported = ""

        def report_gone(state: RetryCallState) -> None:
            nonlocal reported
            self._turned()
            error = state.outcome.exception() if state.outcome else None
            if str(error) != reported:  # one report for each cause, not one for each try
                reported = str(error)
                final = isinstance(error, Unusable) and self._epoch == 0
                sink(Unreachable(reported, final, error.id if isinstance(error, BrokerUnavailable) else ""))

        retrying = Retrying(
            retry=retry_if_exception_type(BrokerUnavailable),
            wait=wait_exponential(multiplier=0.05, max=2.0) + wait_random(0, 0.05),
            stop=stop_when_event_set(self._stopping),
            sleep=sleep_using_event(self._stopping),
            before_sleep=report_gone,
        )
        while not self._stopping.is_set():
            try:
                session = retrying(SqliteSession, self._file, self._spec, self._settings, self._silence)
            except RetryError:
                return  # `stop` was called while the file was away
            reported = ""
            self._serve(session, sink)

    def _serve(self, session: SqliteSession, sink: Sink) -> None:
        """Run one epoch."""
        with self._lock:
            self._epoch += 1
            self._session = session
        epoch = self._epoch
        try:
            sink(Connected(epoch))
            self._turn_until_stopped(session, epoch, sink)
        except BrokerUnavailable as error:
            self._end(session.abandon)
            sink(Lost(epoch, str(error), explain=error.id))
        else:
            # If this fails, the free lock has the same effect: another process releases our deliveries.
            with suppress(BrokerUnavailable):
                self._end(session.leave)
        finally:
            self._end(session.abandon)  # an unexpected error ends the thread, so end every waiting settlement

    def _turned(self) -> None:
        """Record a turn of the thread, as evidence for the watchdog."""
        self.last_turn = self._settings.clock.monotonic()

    def _end(self, how: Callable[[], None]) -> None:
        with self._lock:
            self._session = None
            waiting, self._settlements = self._settlements, []
        for settlement in waiting:
            settlement.answer(_stale(self._epoch, None))
        how()

    def _turn_until_stopped(self, session: SqliteSession, epoch: int, sink: Sink) -> None:
        while True:
            self._turned()
            with self._lock:
                settlements, self._settlements = self._settlements, []
                window = self._window
            if self._stopping.is_set():
                window = 0
                if not settlements:
                    return
            try:
                received = session.turn(settlements, window)
            except Exception as error:
                with self._lock:
                    self._session = None  # before everything else, because this session's epoch is over
                answer: Exception = _stale(epoch, None) if isinstance(error, Evicted) else Unsettled(str(error))
                for settlement in settlements:
                    settlement.answer(answer)
                raise
            for settlement in settlements:
                settlement.answer(Settled.CONFIRMED)
            for message in received:
                sink(Delivered(delivery_of(epoch, message)))
            if not received and not settlements:
                session.wait(window)


def delivery_of(epoch: int, received: ReceivedMessage) -> Delivery:
    """
    Convert a received message to a Delivery.

    The Delivery's id identifies only this one delivery, so a second settlement does nothing.
    """
    first = Redelivered.NO if received.certain else Redelivered.UNKNOWN
    return Delivery(
        epoch=epoch,
        id=f"{received.seq}.{received.count}",
        queue=received.queue,
        body=received.body,
        headers=received.headers,
        message_id=received.message_id,
        redelivered=Redelivered.YES if received.count > 1 else first,
        sent_at=received.sent_at,
    )


def numbers_of(delivery: Delivery) -> tuple[int, int]:
    """Return the sequence number and the delivery count in a delivery's id."""
    seq, _, count = delivery.id.partition(".")
    return int(seq), int(count)


def _stale(epoch: int, now: int | None) -> StaleDelivery:
    present = f"of epoch {now}" if now else "of a connection that is open"
    return StaleDelivery(f"Expected a delivery {present}, got one of epoch {epoch}: wait, its message comes again.")
