"""An error names the server at which it arose, its role, and the server that gave its address: a URL names the first server only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from rocketmq.grpc_protocol import definition_pb2, service_pb2  # type: ignore[import-untyped]

from steadyworker.adapter import Adapter, QueueSpec, Settings, Unreachable
from steadyworker.errors import BrokerUnavailable, PublishFailed
from steadyworker.testing.conformance.adapter_fixtures import message
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from steadyworker_rocketmq.direct.transactions import DirectTransport
from steadyworker_rocketmq.grpc import GrpcAdapter
from steadyworker_rocketmq.transactions import Decision
from steadyworker_rocketmq.url import parse_url
from tests.adapters.direct.kit import Worker
from tests.brokers.process import free_ports
from tests.brokers.rocketmq import RocketMQ4
from tests.support.stage import eventually

SPEC = QueueSpec("exports", "exports-dead")

pytestmark = [pytest.mark.rocketmq, pytest.mark.xdist_group("rocketmq"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def inside() -> Iterator[tuple[RocketMQ4, int]]:
    """A name server that works, and whose one broker has registered an address at which nothing listens, as one in a container."""
    (port,) = free_ports(1)
    fields = {"brokerName": "broker-a", "brokerAddr": f"127.0.0.1:{port}", "clusterName": "DefaultCluster"}
    fields |= {"haServerAddr": "127.0.0.1:1", "brokerId": "0", "compressed": "false", "bodyCrc32": "0"}
    with closing(RocketMQ4()) as node:
        node.name_server.start()
        node.witness.ask(node.name_servers[0], "REGISTER_BROKER", fields)  # as long as its connection is open
        yield node, port


def text_of(call: Callable[[], object]) -> str:
    with pytest.raises((BrokerUnavailable, PublishFailed)) as raised:
        call()
    assert raised.value.id in ("rocketmq.broker-unreachable", "")
    return str(raised.value)


def test_each_error_names_the_broker_that_cannot_be_reached(inside: tuple[RocketMQ4, int]) -> None:
    """A worker's start, a sender, the count of consumers, a reader of dead letters and a transaction."""
    node, port = inside
    server = node.name_servers[0]
    expected = (
        f"Expected a connection to RocketMQ at 127.0.0.1:{port}, the address of broker broker-a at the name server {server}, "
        "got: Connection refused; start the broker, or set brokerIP1 (and listenPort) in its broker.conf "
        "to an address that this host reaches."
    )

    def check(*_: object) -> Decision:
        return Decision.UNKNOWN

    def read() -> None:
        with adapter.dead_letters() as letters:
            assert [*letters] == []

    with Worker(node.remoting_url) as worker:
        adapter = worker.adapter
        down = worker.wait(Unreachable)
        texts = [text_of(lambda: adapter.publish(message())), text_of(adapter.consumers), text_of(read)]
        assert (down.cause, down.explain) == (expected, "rocketmq.broker-unreachable")
    reports: list[str] = []
    transport = DirectTransport(parse_url(node.remoting_url), "shop", check, reports.append, Settings().clock)
    with closing(transport):
        eventually(lambda: reports, "a report of the connection for checks")
    assert [text.startswith(expected) for text in (*texts, *reports)] == [True] * 4


@pytest.mark.parametrize("driver", ["rocketmq", "rocketmq+grpc"])
def test_a_name_server_that_is_away_is_named_and_no_proxy_is_blamed_for_it(driver: str) -> None:
    one, two, proxy = free_ports(3)
    servers = f"127.0.0.1:{one}", f"127.0.0.1:{two}"
    url = f"rocketmq://{','.join(servers)}"
    if driver == "rocketmq+grpc":
        url = f"rocketmq+grpc://127.0.0.1:{proxy}?members=off&namesrv={';'.join(servers)}"
    adapter: Adapter = (GrpcAdapter if driver == "rocketmq+grpc" else DirectAdapter)(url, SPEC, Settings())
    with pytest.raises(PublishFailed) as raised:
        adapter.publish(message())
    adapter.stop(5.0)
    place = f"Expected a connection to RocketMQ at name servers {', '.join(servers)}, got: Connection refused; "
    assert str(raised.value).startswith(place)


@contextmanager
def leading_proxy(port: int) -> Iterator[int]:
    """A proxy that leads its clients to another port, as one does behind a port that a container maps."""
    definition: Any = definition_pb2  # their names are made when they are imported
    service: Any = service_pb2

    def route(request: Any, _: grpc.ServicerContext) -> Any:
        queue = definition.MessageQueue(topic=request.topic, permission=definition.Permission.READ_WRITE)
        queue.accept_message_types.append(definition.MessageType.NORMAL)
        queue.broker.name = "broker-a"
        queue.broker.endpoints.scheme = definition.AddressScheme.IPv4
        queue.broker.endpoints.addresses.add(host="127.0.0.1", port=port)
        return service.QueryRouteResponse(status=definition.Status(code=definition.Code.OK), message_queues=[queue])

    handler = grpc.unary_unary_rpc_method_handler(
        route, service.QueryRouteRequest.FromString, service.QueryRouteResponse.SerializeToString
    )
    served = grpc.method_handlers_generic_handler("apache.rocketmq.v2.MessagingService", {"QueryRoute": handler})
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, [served])
        first = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield first
        server.stop(0).wait()


def test_an_address_to_which_a_proxy_leads_is_named_with_that_proxy() -> None:
    (port,) = free_ports(1)
    with leading_proxy(port) as first:
        adapter = GrpcAdapter(f"rocketmq+grpc://127.0.0.1:{first}?members=off", SPEC, Settings())
        with pytest.raises(PublishFailed) as raised:
            adapter.publish(message())
        adapter.stop(5.0)
    assert str(raised.value).startswith(
        f"Expected a connection to RocketMQ at 127.0.0.1:{port}, the address to which the proxy 127.0.0.1:{first} leads its clients, got: "
    )
    assert "useEndpointPortFromRequest=true" in str(raised.value)


def test_a_proxy_of_the_url_to_which_another_one_leads_is_named_as_a_proxy() -> None:
    """Its address is right, so the settings of the proxy that leads there are not the remedy."""
    (port,) = free_ports(1)
    with leading_proxy(port) as first:
        adapter = GrpcAdapter(f"rocketmq+grpc://127.0.0.1:{first},127.0.0.1:{port}?members=off", SPEC, Settings())
        with pytest.raises(PublishFailed) as raised:
            adapter.publish(message())
        adapter.stop(5.0)
    assert "Connection refused" in str(raised.value)
    assert "leads its clients" not in str(raised.value)
    assert "localServeAddr" not in str(raised.value)
