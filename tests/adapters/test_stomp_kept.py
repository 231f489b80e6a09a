"""Messages that Artemis does not move when they are rejected: how many an epoch keeps, and for how long; no broker takes part."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from steadyworker.adapter import Connected, Delivered, QueueSpec, Settle, Settled, Signal, Unreachable
from steadyworker.clock import SystemClock
from steadyworker.network.settlement import Settlement
from steadyworker_stomp.dialects import ARTEMIS
from steadyworker_stomp.epoch import StompEpoch


class Timers:
    """An I/O thread that runs calls at once, and timers when the test fires them."""

    def __init__(self) -> None:
        self.due: dict[object, Callable[[], None]] = {}

    def call(self, action: Callable[[], None]) -> None:
        action()

    def after(self, delay: float, action: Callable[[], None]) -> Any:
        timers, handle = self.due, object()
        timers[handle] = action

        class Handle:
            def cancel(self) -> None:
                timers.pop(handle, None)

        return Handle()

    def fire(self) -> None:
        due, self.due = self.due, {}
        for action in due.values():
            action()


class Broker:
    """A connection whose broker answers at once; it delivers the oldest free message to each free subscription."""

    dialect = ARTEMIS

    def __init__(self, messages: int) -> None:
        self.free = [f"m-{number}" for number in range(messages)]
        self.subscriptions: dict[str, str | None] = {}

    def subscribe(self, destination: str, number: str, headers: object) -> Future[None]:
        self.subscriptions[number] = None
        return self._answer()

    def unsubscribe(self, number: str) -> Future[None]:
        if (message := self.subscriptions.pop(number)) is not None:
            self.free.insert(0, message)
        return self._answer()

    def abort(self, error: Exception) -> None:
        raise error

    def _answer(self) -> Future[None]:
        answer: Future[None] = Future()
        answer.set_result(None)
        return answer


class Kept:
    """An epoch on such a broker, whose messages all are rejected."""

    def __init__(self, messages: int = 500) -> None:
        self.broker, self.io, self.signals, self.window = Broker(messages), Timers(), list[Signal](), 1
        self.settled: list[object] = []
        fakes = cast("Any", self)
        self.epoch = StompEpoch(
            1,
            fakes.broker,
            fakes.io,
            QueueSpec("q", "q.dead"),
            SystemClock(),
            lambda: self.window,
            self.signals.append,
        )

    def run(self) -> None:
        """Deliver and reject until nothing moves."""
        while self.broker.free and (idle := [name for name, held in self.broker.subscriptions.items() if held is None]):
            message = self.broker.free.pop(0)
            self.broker.subscriptions[idle[0]] = message
            headers = {"subscription": idle[0], "ack": f"{idle[0]}-{message}", "message-id": f"c,{message}"}
            self.epoch.received(headers, b"")
            (*_, delivered) = [signal for signal in self.signals if isinstance(signal, Delivered)]
            assert delivered.delivery.unshown is not None
            self.epoch.settle(Settlement(delivered.delivery, Settle.REJECT, self.settled.append))

    def prefetch(self, count: int) -> None:
        self.window = count
        self.epoch.adjust()

    @property
    def states(self) -> list[Signal]:
        return [signal for signal in self.signals if not isinstance(signal, Delivered)]


@pytest.mark.parametrize("window", [1, 3])
def test_an_epoch_keeps_16_rejected_messages_and_reports_why_it_accepts_no_more(window: int) -> None:
    kept = Kept()
    kept.prefetch(window)
    kept.run()
    assert kept.settled == [Settled.SENT] * 16
    assert len(kept.broker.subscriptions) == 16
    (state,) = kept.states
    assert isinstance(state, Unreachable)
    assert (state.final, state.explain) == (False, "steadyworker.unshown")
    assert "in the queue 'q', got 16 messages whose content Artemis does not send over STOMP" in state.cause
    assert "let the sender send text or bytes" in state.cause


def test_a_pause_of_one_turn_gives_no_message_back_and_a_lasting_one_gives_back_all() -> None:
    kept = Kept(messages=3)
    kept.prefetch(2)
    kept.run()
    for _ in range(2):
        kept.prefetch(0)
        kept.prefetch(2)
        kept.run()
        kept.io.fire()
    assert len(kept.settled) == 3
    kept.prefetch(0)
    kept.prefetch(0)
    assert len(kept.io.due) == 1
    assert len(kept.broker.subscriptions) == 3
    kept.io.fire()
    assert kept.broker.subscriptions == {}
    assert sorted(kept.broker.free) == ["m-0", "m-1", "m-2"]
    assert kept.states == []


def test_an_epoch_that_gave_back_its_messages_is_ready_again() -> None:
    kept = Kept()
    kept.prefetch(1)
    kept.run()
    kept.prefetch(0)
    kept.io.fire()
    assert kept.states[1:] == [Connected(1)]
    kept.prefetch(1)
    kept.run()
    assert [type(state) for state in kept.states] == [Unreachable, Connected, Unreachable]
