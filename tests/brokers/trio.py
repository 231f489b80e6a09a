"""Three nodes of RabbitMQ that form a cluster, on one machine."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from tests.brokers.process import BrokerError
from tests.brokers.rabbitmq import Node, Vhost

LED_WITHIN = 60.0
"""Seconds until a quorum queue that has lost its leader has another one, by the management API."""


class Trio:
    """A cluster of three nodes of our own; each of them may be killed, frozen and started again."""

    def __init__(self, series: str) -> None:
        """Make three nodes of this series ready to start; raises MissingError when they cannot be brought here."""
        first = Node(series)
        self.nodes = [first, Node(series, beside=first), Node(series, beside=first)]

    def start(self) -> None:
        """Start the nodes, and make them a cluster; to be called once."""
        first, *others = self.nodes
        for node in self.nodes:
            node.start()
        for node in others:
            node.join(first)
        first.management("PUT", "cluster-name", {"name": "trio"})  # until then, each node tells its own name

    def url(self, vhost: Vhost) -> str:
        """The URL of this virtual host, with the hosts of all nodes; only our adapter reads such a URL."""
        login = urlsplit(vhost.url).netloc.rpartition("@")[0]
        return f"amqp://{login}@{','.join(f'127.0.0.1:{node.amqp}' for node in self.nodes)}/{vhost.name}"

    def leader(self, vhost: Vhost, queue: str) -> Node:
        """The node that runs and leads this quorum queue, by the word of such a node; raises BrokerError when none does."""
        running = [node for node in self.nodes if node.running]
        deadline = time.monotonic() + LED_WITHIN
        while time.monotonic() < deadline:
            named = running[0].management("GET", f"queues/{vhost.name}/{queue}").get("leader")
            for node in running:
                if node.name == named:
                    return node
            time.sleep(0.1)
        raise BrokerError(f"The queue {queue} had no leader within {LED_WITHIN:g} s")

    def close(self) -> None:
        """Leave nothing behind; the first node has the epmd of all."""
        for node in reversed(self.nodes):
            node.close()
