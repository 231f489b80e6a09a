"""What the tests of RocketMQ's driver for brokers share: topics of their own, and a fault proxy before the broker."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.adapter import Adapter, QueueSpec, Settings
from steadyworker.testing.conformance.adapter_fixtures import AdapterBench
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from tests.adapters.direct.through import Through
from tests.brokers.rocketmq import RocketMQ4, RocketMQ5, RocketMQNode
from tests.support.stage import eventually


class DirectBench(AdapterBench):
    """Each test has topics and a group of its own, which are removed after it."""

    within = 30.0
    most = 16

    node: RocketMQNode

    @pytest.fixture(autouse=True)
    def _broker(self, line: RocketMQNode) -> Iterator[None]:
        self.node = line
        # A name server that was restarted knows no broker for up to 10 s.
        eventually(line.witness.brokers, "a broker that the name server knows", self.within)
        self.queue = f"q-{secrets.token_hex(4)}"
        with Through(line) as self.way:
            yield
        line.heal()
        line.remove(self.queue)

    @pytest.fixture
    def spec(self) -> QueueSpec:
        return QueueSpec(self.queue, f"{self.queue}.dead", concurrency=4)

    def make_adapter(self, place: Path, spec: QueueSpec) -> DirectAdapter:
        return DirectAdapter(self.way.url, spec, Settings())

    def cut(self, adapter: Adapter) -> None:
        """As a network failure does; a connection that ends, and is there again at once, goes unnoticed."""
        assert isinstance(adapter, DirectAdapter)
        link = adapter._consumer.link
        self.way.proxy.refuse()
        self.way.proxy.cut()
        waits = 0
        while link.is_open:
            self.let_pass(0.01)
            waits += 1
            assert waits < 100 * self.within, "the connection was not lost"
        self.way.proxy.accept()


class On4(DirectBench):
    """On 4.9.7."""

    @pytest.fixture
    def line(self, rocketmq4: RocketMQ4) -> RocketMQ4:
        return rocketmq4


class On5(DirectBench):
    """On 5.4.0."""

    @pytest.fixture
    def line(self, rocketmq5: RocketMQ5) -> RocketMQ5:
        return rocketmq5
