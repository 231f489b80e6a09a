"""
The I/O thread, which runs a loop, and is the only thread that touches an adapter's consuming connection.

Other threads pass functions to the I/O thread, which runs them.
An error in such a function, or in the client library, ends the connections but never the thread.

The adapter gives the loop.
If a client library has its own loop, the adapter gives that loop, for example pika's `IOLoop`.
If a client library reads in its own threads, the adapter gives the `PlainLoop` of `loop.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from steadyworker.adapter import Clock
from steadyworker.errors import BrokerUnavailable

Answer = TypeVar("Answer")

_TURN_EVERY = 1.0
"""Seconds between two turns of an idle thread; the watchdog expects a turn at least every 5 s."""

_NO_THREAD = 1.0
"""Seconds between two tries to start a background thread, while the operating system refuses a further thread."""


class Member(Protocol):
    """The interface of a connection that uses the loop."""

    def fail(self, error: Exception) -> None:
        """End at once, because of an unexpected error."""
        ...

    def close(self, within: float) -> None:
        """Close normally, or by force after `within` seconds."""
        ...

    @property
    def is_closed(self) -> bool:
        """True if the member no longer has any connection on the loop."""
        ...


class Loop(Protocol):
    """The interface of a loop, with the names of pika's `IOLoop`."""

    def call_later(self, delay: float, action: Callable[[], None], /) -> object:
        """Call a function after `delay` seconds, and return a handle of this timer."""
        ...

    def remove_timeout(self, handle: Any, /) -> None:
        """Cancel a timer."""
        ...

    def add_callback_threadsafe(self, action: Callable[[], None], /) -> None:
        """Call a function soon; any thread may ask for it."""
        ...

    def start(self) -> None:
        """Run until `stop`."""
        ...

    def stop(self) -> None:
        """End the loop after the present call."""
        ...

    def close(self) -> None:
        """Free the loop's resources."""
        ...


class Timer:
    """A delayed call; the I/O thread may call `cancel` at any time."""

    def __init__(self, loop: Loop, delay: float, action: Callable[[], None]) -> None:
        self._loop = loop
        self._handle = loop.call_later(delay, action)

    def cancel(self) -> None:
        """Cancel the call."""
        self._loop.remove_timeout(self._handle)


class IoThread:
    """
    One thread and its loop, started on first use; it cannot be started again after `stop`.

    `call`, `ask` and `stop` are for other threads; `after`, `in_background` and `loop` are for the thread itself.

    Args:
        name: The thread's name.
        clock: The clock of `last_turn`.
        new_loop: A function that makes the loop when the thread starts.
    """

    loop: Any

    def __init__(self, name: str, clock: Clock, new_loop: Callable[[], Loop]) -> None:
        self.members: list[Member] = []
        self.last_turn: float | None = None
        self._name = name
        self._clock = clock
        self._new_loop = new_loop
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._next_turn: Timer | None = None
        self._stopping = False
        self._over = False

    def call(self, action: Callable[[], None]) -> None:
        """
        Run a function on the thread soon.

        Raises BrokerUnavailable after `stop`, or if the system allows no further thread or no further open file.
        """
        with self._lock:
            if self._over or (self._stopping and self._thread is None):
                raise BrokerUnavailable("Expected an open adapter, got one that was stopped: open another.")
            if self._thread is None:
                self._start()
            awake = bool(self._calls)
            self._calls.append(action)
            if not awake:  # otherwise a wake-up is already pending
                self.loop.add_callback_threadsafe(self._do_calls)

    def _start(self) -> None:
        """Start the thread; the caller holds the lock."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self.loop = loop = self._new_loop()
            try:
                thread.start()
            except RuntimeError:
                loop.close()
                raise
        except (OSError, RuntimeError) as error:  # RLIMIT_NOFILE, or pids.max of the cgroup
            raise BrokerUnavailable(
                f"Expected to start a thread for the broker's connections, got: {error}: "
                "raise this process's limits of open files (`ulimit -n`) and of threads (`ulimit -u`, pids.max)."
            ) from error
        self._thread = thread

    def ask(self, question: Callable[[Future[Answer]], None], within: float) -> Answer:
        """
        Run `question` on the thread, and return the result that `question` sets on its future.

        Raises the exception that `question` sets there, or TimeoutError after `within` seconds.
        """
        answer: Future[Answer] = Future()
        self.call(lambda: _guarded(answer, question))
        return answer.result(within)

    def after(self, delay: float, action: Callable[[], None]) -> Timer:
        """Run a function on the thread after `delay` seconds."""
        return Timer(self.loop, delay, lambda: self.guard(action))

    def in_background(self, work: Callable[[], Answer], then: Callable[[Future[Answer]], None]) -> None:
        """
        Run blocking work on a new thread; then call `then` with the result, on the I/O thread.

        If no thread can be started (the cgroup's `pids.max`), the work begins later; this method never raises.
        """
        done: Future[Answer] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - the future passes it on
                done.set_exception(error)
            try:
                self.call(lambda: then(done))
            except BrokerUnavailable:
                return  # stopped meanwhile: the result is not needed

        def start() -> None:
            try:
                threading.Thread(target=run, name=f"{self._name}, background", daemon=True).start()
            except RuntimeError:
                self.after(_NO_THREAD, start)

        start()

    @property
    def is_current(self) -> bool:
        """True if the caller is this thread."""
        return threading.current_thread() is self._thread

    @property
    def stopping(self) -> bool:
        """True once `stop` was called."""
        return self._stopping

    def stop(self, within: float) -> None:
        """Close all connections and end the thread within `within` seconds; callable from any thread, in any state."""
        with self._lock:
            first, self._stopping = not self._stopping, True
            thread = self._thread
        if thread is None:
            return
        if first:
            self.call(lambda: self._close(within / 2))
        if not self.is_current:
            thread.join(within)

    def _close(self, within: float) -> None:
        for member in self.members:
            member.close(within)
        self.end_if_closed()

    def end_if_closed(self) -> None:
        """Leave the loop if `stop` was called and every connection is closed."""
        if self._stopping and all(member.is_closed for member in self.members):
            self.loop.stop()

    def _run(self) -> None:
        while True:
            self._turn()
            self._do_calls()  # the error could have hidden a wake-up
            try:
                self.loop.start()
                break
            except Exception as error:  # noqa: BLE001 - a defect in the client library must not end the thread
                self._fail(error)
        with self._lock:
            self._over = True
        self._do_calls()  # every connection is closed, so each waiting caller gets an error
        self.loop.close()

    def _turn(self) -> None:
        self.last_turn = self._clock.monotonic()
        if self._next_turn is not None:
            self._next_turn.cancel()
        self._next_turn = self.after(_TURN_EVERY, self._turn)

    def _do_calls(self) -> None:
        while self._calls:
            self.guard(self._calls.popleft())

    def guard(self, action: Callable[[], None]) -> None:
        """Run a function; an error in it ends the connections."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - an exception would end the loop, and lose timers
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        for member in self.members:
            member.fail(error)


def _guarded(answer: Future[Answer], question: Callable[[Future[Answer]], None]) -> None:
    try:
        question(answer)
    except Exception as error:  # noqa: BLE001 - the future passes it on
        if not answer.done():
            answer.set_exception(error)
