"""RocketMQ's driver for brokers against the promises of every adapter: on 4.9.7, on 5.4.0, and at a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.adapter import Adapter, QueueSpec, Settings
from steadyworker.delivery import Settle
from steadyworker.testing.conformance import AdapterSuite
from steadyworker.testing.conformance.adapter_fixtures import message
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from tests.adapters.direct.bench import On4, On5
from tests.adapters.direct.fake import FakeRocketMQ, fake_rocketmq
from tests.support.stage import eventually


class TestOn4(On4, AdapterSuite):
    """On 4.9.7."""

    def test_a_group_of_two_queues_is_reported(self) -> None:
        """Its members are counted together, so that each of two Workers would see a foreign consumer."""
        exports, refunds = (QueueSpec(f"{self.queue}{end}", f"{self.queue}{end}-dead") for end in ("", "-2"))
        url = (
            f"{self.node.remoting_url}&group={self.queue}-shop"
            if "?" in self.node.remoting_url
            else (f"{self.node.remoting_url}?group={self.queue}-shop")
        )
        for spec in (exports, refunds):
            adapter = DirectAdapter(url, spec, Settings())
            adapter.publish(message())
            tape = self.started(adapter, 1)
            adapter.settle(tape.delivery(), Settle.ACK)
            adapter.stop(self.within)
        whats = [finding.what for finding in DirectAdapter(url, exports, Settings()).findings(exports)]
        assert [what for what in whats if f"{self.queue}-2" in what and "counts the consumers of all topics" in what]


@pytest.mark.slow
class TestOn5(On5, AdapterSuite):
    """On 5.4.0."""


class TestFake(AdapterSuite):
    """In this process; each test has a broker of its own."""

    pytestmark = pytest.mark.long

    within = 15.0
    most = 16

    broker: FakeRocketMQ

    @pytest.fixture(autouse=True)
    def _broker(self) -> Iterator[None]:
        with fake_rocketmq() as self.broker:
            yield

    @pytest.fixture
    def spec(self) -> QueueSpec:
        return QueueSpec("exports", "exports-dead", concurrency=4)

    def make_adapter(self, place: Path, spec: QueueSpec) -> DirectAdapter:
        return DirectAdapter(self.broker.url, spec, Settings())

    def cut(self, adapter: Adapter) -> None:
        """As a network failure does; a connection that ends, and is there again at once, goes unnoticed."""
        assert isinstance(adapter, DirectAdapter)
        link = adapter._consumer.link
        self.broker.stop(forget=False)
        eventually(lambda: not link.is_open, "the loss of the connection", 15.0)
        self.broker.start()
