"""Fixtures for the tests of an adapter: they open adapters and cut connections, record signals, and make messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from steadyworker.adapter import Adapter, Connected, Delivered, Delivery, Lost, QueueSpec, Signal, Sink
from steadyworker.clock import SystemClock
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Target

Answer = TypeVar("Answer")

_POLL = 0.01


class AdapterBench:
    """
    Base of the adapter tests; a subclass implements `make_adapter` and `cut`.

    Attributes:
        within: Seconds after which a test fails if an expected event has not happened.
        quiet: Seconds for which a test waits, to make sure that an event does not happen.
        delay: The delay of a delayed message in seconds. If the broker has delay levels, this is one of the levels.
        long_delay: A delay in seconds that does not end during a test. If the broker has delay levels, this is one of the levels.
        most: The largest number of deliveries that one consumer can hold. Tests with more messages settle some of them early.
    """

    within = 10.0
    quiet = 0.3
    delay = 1.0
    long_delay = 3600.0
    most = 200

    def make_adapter(self, place: Path, spec: QueueSpec) -> Adapter:
        """Return a new client; all clients for one `place` use the same broker and the same settings."""
        raise NotImplementedError

    def cut(self, adapter: Adapter) -> None:
        """End the adapter's connection from outside, as a network failure does."""
        raise NotImplementedError

    def clear(self, adapter: Adapter) -> None:
        """Remove the test's queues, if the broker outlives the test; by default do nothing."""

    def pump(self) -> None:
        """Run the adapters' turns, if the adapters have no threads."""

    def let_pass(self, seconds: float) -> None:
        """Let time pass, by default in real time."""
        threading.Event().wait(seconds)

    def wall(self) -> float:
        """Return the time of the wall clock, by default the real time."""
        return SystemClock().wall()

    @pytest.fixture
    def spec(self) -> QueueSpec:
        """Return the queue of this test."""
        return QueueSpec("exports", "exports.dead", concurrency=4)

    @pytest.fixture
    def open_adapter(self, tmp_path: Path, spec: QueueSpec) -> Iterator[Callable[[], Adapter]]:
        """Return a function that opens another client; the fixture stops all clients when the test ends."""
        opened: list[Adapter] = []

        def another() -> Adapter:
            opened.append(self.make_adapter(tmp_path, spec))
            return opened[-1]

        yield another
        for adapter in opened:
            adapter.stop(self.within)
        if opened:
            self.clear(opened[0])

    @pytest.fixture
    def adapter(self, open_adapter: Callable[[], Adapter]) -> Adapter:
        """Return one client that is not started."""
        return open_adapter()

    def received(self, adapter: Adapter, tape: Tape, count: int) -> list[Delivery]:
        """
        Wait for this many deliveries, and return them.

        If one consumer cannot hold all of them, settle each delivery at once.
        """
        for number in range(1, count + 1):
            delivery = tape.delivery(number)
            if count > self.most:
                adapter.settle(delivery, Settle.ACK)
        return tape.deliveries

    @staticmethod
    def _needs_loss(adapter: Adapter) -> None:
        if not adapter.capabilities.loses_unacked:
            pytest.skip("this broker's deliveries outlive a cut connection")

    def started(self, adapter: Adapter, credits_: int = 0, then: Sink | None = None) -> Tape:
        """Start the adapter, wait until it is connected, set its prefetch, and return the `Tape` of its signals."""
        tape = Tape(self, then)
        adapter.start(tape)
        tape.connected()
        adapter.prefetch(credits_)
        return tape


class Tape:
    """A sink that keeps every signal in order, and can wait for expected signals."""

    def __init__(self, bench: AdapterBench, then: Sink | None = None) -> None:
        self.signals: list[Signal] = []
        self._bench = bench
        self._then = then

    def __call__(self, signal: Signal) -> None:
        """Keep the signal."""
        self.signals.append(signal)
        if self._then is not None:
            self._then(signal)

    @property
    def deliveries(self) -> list[Delivery]:
        """Every delivery so far."""
        return [signal.delivery for signal in list(self.signals) if isinstance(signal, Delivered)]

    def delivery(self, number: int = 1, within: float | None = None) -> Delivery:
        """Wait for the n-th delivery, at most `within` seconds if `within` is given, and return the delivery."""
        return self.until(lambda: self.deliveries[number - 1 : number], f"delivery {number}", within)[0]

    def connected(self, number: int = 1) -> Connected:
        """Wait for the n-th connection, and return it."""
        return self.until(lambda: self._all(Connected)[number - 1 : number], f"connection {number}")[0]

    def lost(self) -> Lost:
        """Wait for the end of the epoch, and return the signal."""
        return self.until(lambda: self._all(Lost), "Lost")[0]

    def stays(self, deliveries: int) -> None:
        """Fail unless the number of deliveries stays at this number."""
        self._bench.let_pass(self._bench.quiet)
        self._bench.pump()
        if len(self.deliveries) != deliveries:
            pytest.fail(f"Expected {deliveries} deliveries and no more, got {self.signals}.")

    def until(self, probe: Callable[[], Answer], what: str, within: float | None = None) -> Answer:
        """
        Wait until `probe` returns something true, and return this result.

        The wait lasts at most `within` seconds; by default, `within` of the bench.
        """
        clock = SystemClock()
        within = self._bench.within if within is None else within
        deadline = clock.monotonic() + within
        while True:
            self._bench.pump()
            answer = probe()
            if answer:
                return answer
            if clock.monotonic() > deadline:
                pytest.fail(f"Expected {what} within {within:g} s, got {self.signals}.")
            threading.Event().wait(_POLL)

    def _all(self, kind: type[Answer]) -> list[Answer]:
        return [signal for signal in list(self.signals) if isinstance(signal, kind)]


def message(key: str = "k-1", body: bytes = b"{}", to: Target = Target.WORK, delay: float = 0.0) -> OutgoingMessage:
    """Return a message as the runner publishes it."""
    return OutgoingMessage(to, body, {KEY: key}, delay)


def messages(number: int) -> Iterator[OutgoingMessage]:
    """Return this many messages, with the keys k-1, k-2, and so on."""
    return (message(f"k-{n}") for n in range(1, number + 1))
