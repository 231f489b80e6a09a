"""What the tests of RocketMQ's driver for proxies share: an adapter whose signals are kept, and messages for it."""

from __future__ import annotations

from typing import Any, Self

from steadyworker.adapter import Delivered, Delivery, OutgoingMessage, QueueSpec, Settings, Signal, Target
from steadyworker.delivery import KEY
from steadyworker_rocketmq.grpc.adapter import GrpcAdapter
from tests.support.stage import eventually

WITHIN = 20.0
QUEUE, DELAYED = "exports", "exports-later"


class Worker:
    """An adapter, and every signal that it has sent."""

    def __init__(self, prefetch: int = 1, settings: Settings | None = None, options: str = "") -> None:
        spec = QueueSpec(QUEUE, f"{QUEUE}.dead", concurrency=max(1, prefetch))
        self.adapter = GrpcAdapter(f"rocketmq+grpc://proxy?members=off{options}", spec, settings or Settings())
        self.signals: list[Signal] = []
        self._prefetch = prefetch

    def __enter__(self) -> Self:
        self.adapter.start(self.signals.append)
        self.adapter.prefetch(self._prefetch)
        return self

    def __exit__(self, *_: object) -> None:
        self.adapter.stop(5.0)

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


def work(key: str = "k-1", to: Target = Target.WORK, delay: float = 0.0) -> OutgoingMessage:
    return OutgoingMessage(to, b"{}", {KEY: key}, delay)
