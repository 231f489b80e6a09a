"""A test's place at RabbitMQ: a virtual host, which pika and the management API reach."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

import pika
from pika.exceptions import ChannelClosedByBroker

from tests.brokers.place import Ability, Depth, Message
from tests.brokers.rabbitmq import Node, RabbitMQ
from tests.faults.proxy import Proxy

OUR_CONNECTION = "a test's own"
COUNTS = ("x-acquired-count", "x-delivery-count")
"""The headers with the count of deliveries: from 4.3 on all of them, and those that count against the delivery limit."""


class RabbitmqConsumer:
    """A consumer with a prefetch of 1, on a channel of its own."""

    def __init__(self, channel: Any, queue: str) -> None:
        self._channel, self._queue = channel, queue
        self._tag = 0
        self._held: Message | None = None
        channel.basic_qos(prefetch_count=1)
        self._consumer = channel.basic_consume(queue, self._taken)

    def _taken(self, _channel: object, method: Any, properties: Any, body: bytes) -> None:
        self._tag, self._held = method.delivery_tag, _message(self._queue, method, properties, body)

    def take(self, within: float) -> Message | None:
        deadline = time.monotonic() + within
        while not self._held and (left := deadline - time.monotonic()) > 0:
            self._channel.connection.process_data_events(left)
        return self._held

    def ack(self) -> None:
        assert self._held, f"expected a message of {self._queue} to acknowledge: take one first"
        tag, self._held = self._tag, None
        self._channel.basic_ack(tag)
        self._channel.basic_qos(prefetch_count=1)  # its answer comes after the broker has read the ack

    def give_back(self) -> None:
        self._channel.basic_cancel(self._consumer)
        if self._held:
            self._channel.basic_nack(self._tag, requeue=True)
            self._channel.basic_qos(prefetch_count=1)
        self._held = None


class RabbitmqPlace:
    """A virtual host and its user; beyond a `Place`, what a test of RabbitMQ alone does to it."""

    abilities: ClassVar[frozenset[Ability]] = frozenset(Ability) - {Ability.REMOTING, Ability.STOMP}
    queue_kinds: ClassVar[tuple[str, ...]] = ("classic", "quorum")
    farewell: ClassVar[str] = r"CONNECTION_FORCED.*\(320\)"
    redelivers_within: ClassVar[float] = 0.0
    hidden_for: ClassVar[float] = 0.0
    long_header: ClassVar[int] = 130_850  # of a frame of 131,072 bytes

    def __init__(self, rabbitmq: RabbitMQ) -> None:
        self.rabbitmq = rabbitmq
        self.vhost = rabbitmq.add_vhost()

    @property
    def namespace(self) -> None:
        """None: a cluster has a name."""

    @property
    def broker(self) -> Node | None:
        return self.rabbitmq if isinstance(self.rabbitmq, Node) else None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """As `Place`; the Erlang machine goes on without RabbitMQ, as in a rolling restart of a cluster."""
        assert self.broker, "expected a node of our own to stop"
        self.broker.ctl("stop_app")
        try:
            yield
        finally:
            self.broker.ctl("start_app")

    # --- How it is reached ---

    def address(self, *, through: Proxy | None = None, tls: bool = False) -> str:
        address = self.vhost.tls_url if tls else self.vhost.url
        return through.through(address) if through else address

    def url(
        self, *, heartbeat: int = 60, through: Proxy | None = None, tls: bool = False, management: bool = False
    ) -> str:
        """As `Place`; with `management`, the worker process asks the management API too."""
        api = quote(self.rabbitmq.management_url, safe="") if management else "off"
        ca = f"&cafile={self._ca_file}" if tls else ""
        return f"{self.address(through=through, tls=tls)}?heartbeat={heartbeat}&management={api}{ca}"

    @property
    def _ca_file(self) -> str:
        assert self.broker, "expected a node of our own, whose CA is known"
        return str(self.broker.ca_file)

    # --- Queues ---

    def queue(self, name: str) -> str:
        return name

    def make_queue(self, queue: str, kind: str = "") -> None:
        self.declare(queue, **{"x-queue-type": kind or "quorum"})

    def declare(self, queue: str, **arguments: object) -> None:
        """Make a durable queue with these arguments."""
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True, arguments=arguments)

    def delete(self, queue: str) -> None:
        with self.channel() as channel:
            channel.queue_delete(queue)

    def depths(self) -> Mapping[str, Depth]:
        """As `Place`, without queues that go with their connection, which a client keeps for answers."""
        names = ("messages_ready", "messages_unacknowledged", "messages")
        return {one["name"]: Depth(*(one.get(name, -1) for name in names)) for one in self._queues()}

    def ready(self) -> Mapping[str, int]:
        names = [one["name"] for one in self._queues()]
        with self.channel() as channel:
            return {name: channel.queue_declare(name, passive=True).method.message_count for name in names}

    def _queues(self) -> list[dict[str, Any]]:
        found = self.rabbitmq.management("GET", f"queues/{self.vhost.name}")
        return [one for one in found if not one.get("exclusive")]

    def consumers(self, queue: str) -> int:
        with self.channel() as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).method.consumer_count)
            except ChannelClosedByBroker:  # there is no such queue
                return 0

    def dead_letters(self, queue: str) -> int:
        return self.ready().get(f"{queue}.dead", 0)

    def purge(self, queue: str) -> None:
        self.rabbitmq.management("DELETE", f"queues/{self.vhost.name}/{quote(queue, safe='')}/contents")

    def drain(self) -> list[Message]:
        names = [one["name"] for one in self._queues()]
        found: list[Message] = []
        with self.channel() as channel:
            for name in names:
                while (answer := channel.basic_get(name, auto_ack=True))[0] is not None:
                    found.append(_message(name, *answer))
        return found

    # --- Foreign programs ---

    def publish(
        self, queue: str, body: bytes, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        given = pika.BasicProperties(message_id=key, headers={**(headers or {})}, delivery_mode=2)
        with self.channel() as channel:
            channel.confirm_delivery()
            channel.basic_publish("", queue, body, given, mandatory=True)

    @contextmanager
    def consumer(self, queue: str) -> Iterator[RabbitmqConsumer]:
        with self.channel() as channel:
            yield RabbitmqConsumer(channel, queue)

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel on a connection of our own, straight to the broker; it needs no turn while a test waits."""
        parameters = pika.URLParameters(self.vhost.url)
        parameters.heartbeat = 0
        parameters.client_properties = {"connection_name": OUR_CONNECTION}
        with closing(pika.BlockingConnection(parameters)) as connection:
            yield connection.channel()

    # --- Connections and rights ---

    def connections(self) -> set[str]:
        """As `Place`; the broker lists a connection up to 5 s after it was opened."""
        found = self.rabbitmq.management("GET", f"vhosts/{self.vhost.name}/connections")
        return {one["name"] for one in found if one.get("user_provided_name") != OUR_CONNECTION}

    def close_connections(self) -> None:
        for name in self.connections():
            with suppress(AssertionError):  # it ended meanwhile
                self.rabbitmq.management("DELETE", f"connections/{quote(name, safe='')}")

    def permit(self, *, read: bool) -> None:
        """Whether clients may consume from now on."""
        path = f"permissions/{self.vhost.name}/{self.vhost.user}"
        self.rabbitmq.management("PUT", path, {"configure": ".*", "write": ".*", "read": ".*" if read else "^$"})

    def set_policy(
        self, name: str, definition: Mapping[str, object], pattern: str = ".*", apply_to: str = "queues"
    ) -> None:
        """Set a policy of this virtual host, as an operator does."""
        body = {"pattern": pattern, "definition": definition, "apply-to": apply_to}
        self.rabbitmq.management("PUT", f"policies/{self.vhost.name}/{name}", body)

    def policies_in_statistics(self) -> set[str]:
        """Return the policies, as JSON, that the statistics of the queues tell; `null` for a queue that has none yet."""
        queues = self.rabbitmq.management("GET", f"queues/{self.vhost.name}")
        return {json.dumps(queue.get("effective_policy_definition")) for queue in queues}

    def close(self) -> None:
        self.rabbitmq.remove_vhost(self.vhost)


def _message(queue: str, method: Any, properties: Any, body: bytes | None) -> Message:
    headers = (properties and properties.headers) or {}
    counts = [int(headers[name]) for name in COUNTS if name in headers]
    return Message(
        queue, body or b"", headers, properties.message_id, method.redelivered, counts[0] if counts else None
    )


@dataclass(frozen=True)
class RabbitmqPlaces:
    """A RabbitMQ that runs."""

    rabbitmq: RabbitMQ

    @property
    def abilities(self) -> frozenset[Ability]:
        return RabbitmqPlace.abilities

    @property
    def title(self) -> str:
        return f"RabbitMQ {'.'.join(map(str, self.rabbitmq.version))}"

    def open(self) -> RabbitmqPlace:
        return RabbitmqPlace(self.rabbitmq)
