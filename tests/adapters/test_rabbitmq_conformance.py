"""RabbitMQ's adapter keeps the promises of every broker, on the oldest and the newest version that it speaks to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
        return RabbitmqAdapter(self.url, spec, Settings(max_body=1000, delays=(self.delay,)))

    def cut(self, adapter: Adapter) -> None:
        self.proxy.cut()
