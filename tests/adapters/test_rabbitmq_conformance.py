"""RabbitMQ's adapter keeps the promises of every broker, on the oldest and the newest version that it speaks to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pika
import pytest

from steadyworker.adapter import Adapter, QueueSpec, Settings
from steadyworker.testing.conformance import AdapterSuite
from steadyworker_rabbitmq import RabbitmqAdapter
from tests.brokers.rabbitmq import RabbitMQ, Vhost
from tests.faults.proxy import Proxy


class TestRabbitmqAdapter(AdapterSuite):
    within = 60.0
    delay = 0.5

    @pytest.fixture(autouse=True)
    def through_a_proxy(self, rabbitmq: RabbitMQ, vhost: Vhost) -> Iterator[None]:
        with Proxy(rabbitmq.url) as proxy:
            self.proxy, self.url = proxy, proxy.through(vhost.url)
            yield

    def make_adapter(self, place: Path, spec: QueueSpec) -> RabbitmqAdapter:
        return RabbitmqAdapter(self.url, spec, Settings(max_body=1000, delays=(self.delay, self.long_delay)))

    def cut(self, adapter: Adapter) -> None:
        self.proxy.cut()

    def test_a_classic_queue_counts_no_holder(
        self, open_adapter: Callable[[], Adapter], rabbitmq: RabbitMQ, vhost: Vhost
    ) -> None:
        """The queue is older than the worker; a quorum queue, which the adapter creates itself, counts a holder."""
        self.url += f"?management={rabbitmq.management_url}"  # before 4.3, only this API reports the type
        with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as connection:
            connection.channel().queue_declare("exports", durable=True, arguments={"x-queue-type": "classic"})
        one = open_adapter()
        self.started(one)
        assert not one.capabilities.counts_holders
        one.stop(self.within)
        self.test_with_prefetch_0_only_a_holder_can_be_a_consumer(open_adapter)
