"""What a worker process would receive from a queue."""

from __future__ import annotations

from queue import SimpleQueue

from steadyworker.adapter import Delivered, Signal
from steadyworker.backends.opening import open_adapter_for
from steadyworker.config.resolve import Options
from steadyworker.delivery import Delivery, Settle


def received(options: Options, queue: str, count: int) -> list[Delivery]:
    """Return the next deliveries of a queue, acknowledged."""
    adapter = open_adapter_for(queue, options)
    signals: SimpleQueue[Signal] = SimpleQueue()
    adapter.start(signals.put)
    adapter.prefetch(min(count, 100))  # an adapter can need a subscription for each
    found: list[Delivery] = []
    try:
        while len(found) < count:
            signal = signals.get(timeout=10)
            if isinstance(signal, Delivered):
                adapter.settle(signal.delivery, Settle.ACK)
                found.append(signal.delivery)
    finally:
        adapter.stop(5)
    return found
