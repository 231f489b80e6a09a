"""What the broker and its operators do to ActiveMQ's adapter: the faults of every broker, on Classic and on Artemis."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from steadyworker.adapter import Adapter, QueueSpec, Settings
from steadyworker.delivery import KEY
from steadyworker_stomp import StompAdapter, hosts
from tests.adapters.fault_bench import FaultBench, Tls
from tests.adapters.fault_suite import FaultSuite, TlsFaultSuite
from tests.brokers.stomp_broker import StompBroker
from tests.brokers.stomp_node import StompNode


class StompBench(FaultBench):
    """A queue of an ActiveMQ, for each test alone."""

    tls_scheme = "stomp+ssl"
    loggers = ("stomp.py",)
    silent = "heart-beats"
    handshake = 350  # CONNECTED and some receipts
    fillers = 70  # Artemis gives a message up after ten deliveries that were lost

    @pytest.fixture(autouse=True)
    def access(self, stomp_broker: StompBroker, queue: str) -> None:
        self.broker = stomp_broker
        self.url, self.password = stomp_broker.url, stomp_broker.password
        self.queue = queue

    @pytest.fixture
    def node(self, stomp_node: StompNode) -> StompNode:
        return stomp_node

    @pytest.fixture
    def tls(self, stomp_broker: StompBroker) -> Tls:
        return Tls(stomp_broker.tls_url, stomp_broker.ca_file)

    @pytest.fixture
    def change_password(self, stomp_node: StompNode) -> Callable[[str], None]:
        return stomp_node.change_password

    def make_adapter(self, url: str, spec: QueueSpec, settings: Settings) -> StompAdapter:
        return StompAdapter(url, spec, settings)

    def prepare(self, adapter: Adapter) -> None:
        assert isinstance(adapter, StompAdapter)
        adapter._preparation.prepared()

    def give_up_after(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hosts, "_OPEN_WITHIN", seconds)
        monkeypatch.setattr(hosts, "_CONNECT_WITHIN", seconds)

    def send(self, *keys: str, body: bytes = b"{}") -> None:
        with self.broker.client() as client:
            for key in keys:
                client.send(self.queue, body, {KEY: key})

    def depth(self) -> int:
        return self.broker.depth(self.queue)


class TestStompFaults(StompBench, FaultSuite):
    """The faults of every broker."""


class TestStompFaultsOverTls(StompBench, TlsFaultSuite):
    """Those of the network, over TLS."""
