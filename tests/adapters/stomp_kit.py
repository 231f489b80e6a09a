"""What tests of ActiveMQ's adapter share: an adapter whose signals are kept, and messages for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from steadyworker.adapter import Connected, Delivered, Delivery, Lost, QueueSpec, Settings, Signal, Unreachable
from steadyworker.delivery import KEY, OutgoingMessage, Target
from steadyworker_stomp import StompAdapter
from tests.support.stage import eventually

WITHIN = 30.0


class Worker:
    """An adapter that consumes, and every signal that it has sent."""

    def __init__(self, url: str, queue: str, prefetch: int = 1, **settings: Any) -> None:
        spec = QueueSpec(queue, f"{queue}.dead", concurrency=max(1, prefetch))
        self.adapter = StompAdapter(url, spec, Settings(**settings))
        self.signals: list[tuple[float, Signal]] = []
        self._prefetch = prefetch

    def start(self) -> Worker:
        self.adapter.start(lambda signal: self.signals.append((time.monotonic(), signal)))
        self.adapter.prefetch(self._prefetch)
        return self

    def all(self, kind: type[Any]) -> list[Any]:
        return [signal for _, signal in list(self.signals) if isinstance(signal, kind)]

    @property
    def deliveries(self) -> list[Delivery]:
        return [signal.delivery for signal in self.all(Delivered)]

    def delivery(self, number: int = 1) -> Delivery:
        """Wait for the n-th delivery."""
        found: Delivery = self.wait(lambda: self.deliveries[number - 1 : number], f"delivery {number}")[0]
        return found

    def connected(self, number: int = 1) -> Connected:
        found: Connected = self.wait(lambda: self.all(Connected)[number - 1 : number], f"connection {number}")[0]
        return found

    def lost(self) -> Lost:
        found: Lost = self.wait(lambda: self.all(Lost), "Lost")[0]
        return found

    def unreachable(self) -> Unreachable:
        found: Unreachable = self.wait(lambda: self.all(Unreachable), "Unreachable")[0]
        return found

    def wait(self, probe: Callable[[], Any], what: str, within: float = WITHIN) -> Any:
        return eventually(probe, what, within, lambda: "\n".join(map(str, self.signals)))


def work(key: str = "k-1", body: bytes = b"{}", **headers: str) -> OutgoingMessage:
    return OutgoingMessage(Target.WORK, body, {KEY: key, **headers})
