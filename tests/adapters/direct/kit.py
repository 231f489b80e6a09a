"""What the tests of RocketMQ's driver for brokers share: an adapter whose signals are kept, and messages for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import pytest

from steadyworker.adapter import (
    Delivered,
    Delivery,
    OutgoingMessage,
    QueueSpec,
    Settings,
    Signal,
    Target,
)
from steadyworker.delivery import KEY
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from steadyworker_rocketmq.remoting import Remoting
from tests.adapters.direct.fake import FakeRocketMQ
from tests.support.stage import eventually

WITHIN = 20.0
QUEUE = "exports"


class Worker:
    """An adapter, and every signal that it has sent."""

    def __init__(
        self, url: str, prefetch: int = 1, queue: str = QUEUE, then: Callable[[Signal], None] | None = None
    ) -> None:
        self.adapter = DirectAdapter(url, QueueSpec(queue, f"{queue}-dead", concurrency=max(1, prefetch)), Settings())
        self.signals: list[Signal] = []
        self._prefetch = prefetch
        self._then = then

    def __enter__(self) -> Self:
        self.adapter.start(self._keep)
        self.adapter.prefetch(self._prefetch)
        return self

    def __exit__(self, *_: object) -> None:
        self.adapter.stop(5.0)

    def _keep(self, signal: Signal) -> None:
        self.signals.append(signal)
        if self._then is not None:
            self._then(signal)

    def all(self, kind: type[Any]) -> list[Any]:
        return [signal for signal in list(self.signals) if isinstance(signal, kind)]

    @property
    def deliveries(self) -> list[Delivery]:
        return [signal.delivery for signal in self.all(Delivered)]

    def wait(self, kind: type[Any], number: int = 1) -> Any:
        """Wait for the n-th signal of a kind."""
        what = f"{kind.__name__} {number}"
        return eventually(lambda: self.all(kind)[number - 1 : number], what, WITHIN, lambda: str(self.signals))[0]

    def delivery(self, number: int = 1) -> Delivery:
        found: Delivery = self.wait(Delivered, number).delivery
        return found


def reply_within(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver wait this long for each reply."""
    defaults = Remoting.__init__.__defaults__ or ()
    monkeypatch.setattr(Remoting.__init__, "__defaults__", (seconds, *defaults[1:]))


def work(key: str = "k-1", body: bytes = b"{}", to: Target = Target.WORK) -> OutgoingMessage:
    return OutgoingMessage(to, body, {KEY: key})


def places(broker: FakeRocketMQ) -> int:
    """How many messages the group has consumed."""
    return sum(place for (_, topic, _), place in broker.places.items() if topic == QUEUE)
