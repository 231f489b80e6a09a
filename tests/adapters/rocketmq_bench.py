"""What the tests of RocketMQ's driver for proxies share: topics of their own, and a fault proxy before the proxy."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.adapter import Adapter, QueueSpec, Settings
from steadyworker.testing.conformance.adapter_fixtures import AdapterBench
from steadyworker_rocketmq.grpc import GrpcAdapter
from tests.brokers.rocketmq import RocketMQ5
from tests.faults.proxy import Proxy
from tests.support.stage import eventually


class GrpcBench(AdapterBench):
    """Each test has topics and groups of its own, which are removed after it."""

    within = 20.0
    delay = 4.0
    options = ""
    """Options of the URL, each with an `&` before it."""

    @pytest.fixture(autouse=True)
    def _broker(self, rocketmq5: RocketMQ5) -> Iterator[None]:
        self.node = rocketmq5
        self.queue = f"q-{secrets.token_hex(4)}"
        with Proxy(rocketmq5.url) as self.proxy:
            yield
        rocketmq5.heal()
        rocketmq5.remove(self.queue)

    @pytest.fixture
    def spec(self) -> QueueSpec:
        return QueueSpec(self.queue, f"{self.queue}.dead", concurrency=4)

    def make_adapter(self, place: Path, spec: QueueSpec) -> GrpcAdapter:
        return GrpcAdapter(self.proxy.url + self.options, spec, Settings())

    def cut(self, adapter: Adapter) -> None:
        """As a network failure does; a connection that ends, and is there again at once, goes unnoticed."""
        assert isinstance(adapter, GrpcAdapter)
        self.proxy.refuse()
        self.proxy.cut()
        eventually(lambda: not adapter._consumer.link.is_open, "a connection that is lost", self.within)
        self.proxy.accept()
