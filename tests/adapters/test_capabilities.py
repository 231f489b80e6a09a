"""The times in each adapter's capabilities are those by which it really asks its broker; none of these adapters connects."""

from __future__ import annotations

import pytest

from steadyworker.adapter import Adapter, Capabilities, QueueSpec, Settings
from steadyworker_rabbitmq import RabbitmqAdapter
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from steadyworker_rocketmq.direct.consumer import _LONGEST_PAUSE
from steadyworker_rocketmq.direct.member import LOCKED_FOR
from steadyworker_rocketmq.grpc import GrpcAdapter
from steadyworker_rocketmq.grpc.client import POLL_WITHIN
from steadyworker_sqlite import open_adapter as open_sqlite
from steadyworker_sqlite.session import SEARCH_EVERY, SILENCE
from steadyworker_stomp import StompAdapter

SPEC = QueueSpec("exports", "exports.dead")
DEFAULT = Capabilities()


def capabilities(adapter: Adapter) -> Capabilities:
    adapter.stop(1.0)
    return adapter.capabilities


@pytest.mark.parametrize("invisible", [10, 60, 300])
def test_a_proxy_delivers_again_by_its_invisibility_and_replies_once_in_a_poll(invisible: int) -> None:
    got = capabilities(GrpcAdapter(f"rocketmq+grpc://localhost?invisible={invisible}", SPEC, Settings()))
    assert (got.redelivers_within, got.answers_within) == (3.0 * invisible, 2.0 * POLL_WITHIN)


def test_a_broker_of_rocketmq_delivers_again_when_a_lock_ends() -> None:
    got = capabilities(DirectAdapter("rocketmq://localhost", SPEC, Settings()))
    assert got.redelivers_within == 3.0 * LOCKED_FOR
    assert got.answers_within == DEFAULT.answers_within >= 2.0 * _LONGEST_PAUSE


def test_the_embedded_queue_delivers_again_what_a_frozen_process_holds() -> None:
    got = capabilities(open_sqlite("sqlite:/nowhere/broker.db", SPEC, Settings()))
    assert got.redelivers_within == SILENCE
    assert got.answers_within == DEFAULT.answers_within >= 2.0 * SEARCH_EVERY


@pytest.mark.parametrize("adapter", [RabbitmqAdapter, StompAdapter])
def test_a_broker_that_pushes_delivers_again_by_the_loss_of_a_connection_only(adapter: type) -> None:
    url = "amqp://localhost" if adapter is RabbitmqAdapter else "stomp://localhost"
    got = capabilities(adapter(url, SPEC, Settings()))
    assert (got.redelivers_within, got.answers_within) == (0.0, DEFAULT.answers_within)
