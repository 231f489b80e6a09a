"""The broker of these tests, in this process, and a fault proxy before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.adapters.direct.fake import FakeRocketMQ, fake_rocketmq
from tests.faults.proxy import Proxy


@pytest.fixture
def broker() -> Iterator[FakeRocketMQ]:
    with fake_rocketmq() as server:
        yield server


@pytest.fixture
def second(broker: FakeRocketMQ) -> Iterator[FakeRocketMQ]:
    """A second broker of the same cluster."""
    with fake_rocketmq() as server:
        server.name = "c"
        broker.cluster.append(server)
        yield server


@pytest.fixture
def proxy(broker: FakeRocketMQ) -> Iterator[Proxy]:
    """A fault proxy before name server and broker."""
    with Proxy(broker.url) as made:
        broker.advertised = made.port
        yield made
