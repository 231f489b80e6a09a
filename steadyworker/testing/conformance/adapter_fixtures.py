"""What the tests of an adapter are given: how one is made and cut, a tape of its signals, and messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from steadyworker.adapter import Adapter, Connected, Delivered, Delivery, Lost, QueueSpec, Signal, Sink
from steadyworker.clock import SystemClock
from steadyworker.delivery import KEY, OutgoingMessage, Target

Answer = TypeVar("Answer")

_POLL = 0.01


class AdapterBench:
    """
    What a subclass says of its adapter.

    Attributes:
        within: Seconds after which something that must happen counts as not happening.
        quiet: Seconds for which something that must not happen is watched.
        delay: Seconds of a delayed copy; a level of the broker's ladder, where it has one.
    """

    within = 10.0
    quiet = 0.3
    delay = 1.0

    def make_adapter(self, place: Path, spec: QueueSpec) -> Adapter:
        """Another client of the same broker for the same place, with the same settings each time."""
        raise NotImplementedError

    def cut(self, adapter: Adapter) -> None:
        """End the adapter's connection as a network does, so that it is told without having asked."""
        raise NotImplementedError

    def clear(self, adapter: Adapter) -> None:
        """Remove what the test left in a broker that outlives it; nothing by default."""

    def pump(self) -> None:
        """Let the adapters turn, where they have no thread of their own."""

    def let_pass(self, seconds: float) -> None:
        """Let time pass; a broker with a clock of its own waits."""
        threading.Event().wait(seconds)

    @pytest.fixture
    def spec(self) -> QueueSpec:
        """The queue of this test."""
        return QueueSpec("exports", "exports.dead", concurrency=4)

    @pytest.fixture
    def open_adapter(self, tmp_path: Path, spec: QueueSpec) -> Iterator[Callable[[], Adapter]]:
        """Open another client; all are stopped when the test ends."""
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
        """One client, not started."""
        return open_adapter()

    def started(self, adapter: Adapter, credits_: int = 0, then: Sink | None = None) -> Tape:
        """Start the adapter, wait until it is connected, and give it credits; answers the tape of its signals."""
        tape = Tape(self, then)
        adapter.start(tape)
        tape.connected()
        adapter.prefetch(credits_)
        return tape


class Tape:
    """A sink that keeps every signal, in order, and waits for what must come."""

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
        """Every delivery until now."""
        return [signal.delivery for signal in list(self.signals) if isinstance(signal, Delivered)]

    def delivery(self, number: int = 1) -> Delivery:
        """Wait for the n-th delivery."""
        return self.until(lambda: self.deliveries[number - 1 : number], f"delivery {number}")[0]

    def connected(self, number: int = 1) -> Connected:
        """Wait for the n-th connection."""
        return self.until(lambda: self._all(Connected)[number - 1 : number], f"connection {number}")[0]

    def lost(self) -> Lost:
        """Wait until the epoch is over."""
        return self.until(lambda: self._all(Lost), "Lost")[0]

    def stays(self, deliveries: int) -> None:
        """Watch that no more deliveries come than these."""
        self._bench.let_pass(self._bench.quiet)
        self._bench.pump()
        if len(self.deliveries) != deliveries:
            pytest.fail(f"Expected {deliveries} deliveries and no more, got {self.signals}.")

    def until(self, probe: Callable[[], Answer], what: str) -> Answer:
        """Wait for something true."""
        clock = SystemClock()
        deadline = clock.monotonic() + self._bench.within
        while True:
            self._bench.pump()
            answer = probe()
            if answer:
                return answer
            if clock.monotonic() > deadline:
                pytest.fail(f"Expected {what} within {self._bench.within:g} s, got {self.signals}.")
            threading.Event().wait(_POLL)

    def _all(self, kind: type[Answer]) -> list[Answer]:
        return [signal for signal in list(self.signals) if isinstance(signal, kind)]


def message(key: str = "k-1", body: bytes = b"{}", to: Target = Target.WORK, delay: float = 0.0) -> OutgoingMessage:
    """A copy as `settle.py` makes them."""
    return OutgoingMessage(to, body, {KEY: key}, delay)


def messages(number: int) -> Iterator[OutgoingMessage]:
    """So many messages, with the keys k-1, k-2, and so on."""
    return (message(f"k-{n}") for n in range(1, number + 1))
