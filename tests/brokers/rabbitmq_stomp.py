"""RabbitMQ's STOMP plugin, on a node of the tests: the adapter must recognise it, and refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.brokers.process import free_ports
from tests.brokers.rabbitmq import Node


@contextmanager
def stomp_listener(node: Node) -> Iterator[str]:
    """Give the URL of the node's STOMP listener, as long as the context lasts."""
    (port,) = free_ports(1)
    where = f'[{{"127.0.0.1", {port}}}]'
    node.eval(
        f"application:set_env(rabbitmq_stomp, tcp_listeners, {where}, [{{persistent, true}}])"
    )  # over the plugin's own
    with node.plugin("rabbitmq_stomp"):
        parts = urlsplit(node.url)
        yield f"stomp://{parts.username}:{parts.password}@127.0.0.1:{port}"
