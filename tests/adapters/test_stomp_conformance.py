"""ActiveMQ's adapter against the promises of every adapter, on Classic and on Artemis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steadyworker.adapter import Adapter, QueueSpec, Settings
from steadyworker.testing.conformance import AdapterSuite
from steadyworker_stomp import StompAdapter
from tests.brokers.stomp_broker import StompBroker


class TestStomp(AdapterSuite):
    """Each test has a queue of its own."""

    delay = 1.5

    @pytest.fixture(autouse=True)
    def _broker(self, stomp_broker: StompBroker, queue: str) -> None:
        # The broker's own dead-letter queue has one reader at a time, and other tests read it too.
        self._url = f"{stomp_broker.url}?dlq={queue}.moved"
        self._queue = queue

    @pytest.fixture
    def spec(self) -> QueueSpec:
        return QueueSpec(self._queue, f"{self._queue}.dead", concurrency=4)

    def make_adapter(self, place: Path, spec: QueueSpec) -> StompAdapter:
        return StompAdapter(self._url, spec, Settings())

    def cut(self, adapter: Adapter) -> None:
        """As a network failure does: the socket is shut, and the broker receives no DISCONNECT."""
        ours: Any = adapter
        connection = ours._consumer.link.connection
        connection._transport.end()
