"""
ActiveMQ for tests, Classic or Artemis, reached by its URLs; `stomp_node.py` has one that the tests start.

Jolokia, an agent in the broker's Java process that serves JMX over HTTP, answers what a test asks about queues.
Both brokers have it in common; it needs no plugin of the broker, and adds no message and no consumer to what it counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from tests.brokers.address import Address
from tests.brokers.jolokia import Jolokia
from tests.brokers.process import BrokerError
from tests.brokers.stomp_client import StompClient
from tests.support.stage import eventually

LIMITED = "limited"
"""The user who may send and receive, but may not count consumers; its password is the other user's."""

LACKING = ("no-consume", "no-send")
"""Users who lack one right to all queues; their password is the other users', too."""


@dataclass(frozen=True)
class Counts:
    """A queue at one moment; all zero for one that the broker does not know."""

    waiting: int = 0
    """Messages that no consumer has; scheduled ones come when they are due."""
    delivering: int = 0
    """Messages that a consumer has, and has not acknowledged."""
    consumers: int = 0
    scheduled: int = 0
    """Messages that wait in the queue until they are due; Classic has them elsewhere, and they are not counted here."""


class Queues(Protocol):
    """The queues of one kind of broker; a name has letters, digits, dots and hyphens only."""

    def all_counts(self, names: str) -> dict[str, Counts]: ...

    def connections(self, names: str) -> dict[str, set[str]]: ...

    def close_connection(self, name: str) -> None: ...

    def dead(self, queue: str) -> int: ...

    def move_dead(self, prefix: str, queue: str) -> None: ...

    def deliver_scheduled(self, queue: str) -> None: ...

    def purge(self, queue: str) -> None: ...

    def delete(self, queue: str) -> None: ...

    def remove(self, prefix: str) -> None: ...


class StompBroker:
    """
    An ActiveMQ, reached by its administrator.

    `url` is a plain listener, `tls_url` one with TLS, `mutual_url` one that refuses a client without a certificate.
    `other_url` is a second plain one: NIO on Classic; on Artemis one that reads `/queue/` and `/topic/` as prefixes.
    `limited_url` is `url` for the user LIMITED.
    Of a broker that the tests did not start, what is not known is empty.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.url, self.limited_url = address.url, address.limited_url
        self.tls_url, self.mutual_url, self.other_url = address.tls_url, address.mutual_url, address.other_url
        parts = urlsplit(self.url)
        self.user, self.password = unquote(parts.username or ""), unquote(parts.password or "")
        folder = Path(address.certificates)
        self.ca_file = folder / "ca.pem"
        """Signed the broker's certificate (127.0.0.1, localhost)."""
        self.certificate, self.key = folder / "client.pem", folder / "client.key"
        """What `mutual_url` wants of a client."""
        self.jolokia = Jolokia(address.management_url, self.user, self.password)

    @cached_property
    def server(self) -> str:
        """The broker's name for itself: `ActiveMQ/6.3.1`, or `ActiveMQ-Artemis/2.55.0` and more."""
        with self.client() as client:
            return client.connected.headers["server"]

    @property
    def is_artemis(self) -> bool:
        return "Artemis" in self.server

    def client(self, url: str = "") -> StompClient:
        """Return a client that is connected, by `url` or by another URL of this broker; it trusts the broker's CA."""
        if urlsplit(url).scheme == "stomp+ssl":
            return StompClient(url, ca_file=self.ca_file, certificate=(self.certificate, self.key))
        return StompClient(url or self.url)

    def counts(self, queue: str) -> Counts:
        """Return what the queue has at this moment."""
        return self._queues.all_counts(queue).get(queue, Counts())

    def all_counts(self, prefix: str) -> dict[str, Counts]:
        """Return what each queue has whose name begins with `prefix`."""
        return self._queues.all_counts(f"{prefix}*")

    def depth(self, queue: str) -> int:
        """Return how many messages wait for a consumer."""
        return self.counts(queue).waiting

    def delivering(self, queue: str) -> int:
        """Return how many messages consumers have, and have not acknowledged."""
        return self.counts(queue).delivering

    def consumers(self, queue: str) -> int:
        """Return how many subscriptions consume the queue."""
        return self.counts(queue).consumers

    def connections(self, names: str) -> dict[str, set[str]]:
        """
        Return the connections that consume each queue of this name, or of these names for one that ends with `*`.

        A connection has the name of the header `session` of its CONNECTED; a queue without consumers may be missing.
        """
        return self._queues.connections(names)

    def close_connections_of(self, names: Iterable[str]) -> None:
        """Have the broker close these connections, as its operator would; those that are gone are no error."""
        for name in names:
            self._queues.close_connection(name)

    def dead(self, queue: str) -> int:
        """Return how many messages of this queue are in the broker's own dead-letter queue, which all queues share."""
        return self._queues.dead(queue)

    def move_dead(self, prefix: str, queue: str) -> None:
        """Move the dead letters of queues whose names begin with `prefix` from the broker's own queue to this one."""
        self._queues.move_dead(prefix, queue)

    def deliver_scheduled(self, queue: str) -> None:
        """Make the messages due that wait in the queue until they are; Classic has none there."""
        self._queues.deliver_scheduled(queue)

    def purge(self, queue: str) -> None:
        """Remove the messages that wait in the queue."""
        self._queues.purge(queue)

    def delete_queue(self, queue: str) -> None:
        """Delete this queue, with its messages; Classic refuses that while it is consumed."""
        self._queues.delete(queue)

    def remove_queues(self, prefix: str) -> None:
        """Remove the queues whose names begin with `prefix`, their messages and their dead letters."""
        self._queues.remove(prefix)

    @contextmanager
    def address_settings(self, address: str, settings: Mapping[str, object]) -> Iterator[None]:
        """Give an address of Artemis settings of its own for a while, instead of those that broker.xml has for it."""
        (mbean,) = self.jolokia.search(ArtemisQueues.BROKER)
        add = "addAddressSettings(java.lang.String,java.lang.String)"
        self.jolokia.execute(mbean, add, address, json.dumps(settings))
        try:
            yield
        finally:
            self.jolokia.execute(mbean, "removeAddressSettings(java.lang.String)", address)

    @cached_property
    def _queues(self) -> Queues:
        return ArtemisQueues(self.jolokia) if self.is_artemis else ClassicQueues(self.jolokia)


class ClassicQueues:
    """Classic's MBeans; no selector sees the queue that a dead letter comes from, so all letters are browsed."""

    BROKER = "org.apache.activemq:type=Broker,brokerName=*"
    LETTERS = "ActiveMQ.DLQ"

    def __init__(self, jolokia: Jolokia) -> None:
        self._jolokia = jolokia

    def all_counts(self, names: str) -> dict[str, Counts]:
        asked = ("Name", "QueueSize", "InFlightCount", "ConsumerCount")
        found: dict[str, Counts] = {}
        for each in self._jolokia.read(self._queue(names), *asked).values():
            queue, size, delivering, consumers = (each[name] for name in asked)
            found[queue] = Counts(size - delivering, delivering, consumers)
        return found

    def connections(self, names: str) -> dict[str, set[str]]:
        pattern = f"{self._queue(names)},endpoint=Consumer,clientId=*,consumerId=*"
        found: dict[str, set[str]] = {}
        for each in self._jolokia.read(pattern, "DestinationName", "ConnectionId").values():
            found.setdefault(each["DestinationName"], set()).add(each["ConnectionId"])
        return found

    def close_connection(self, name: str) -> None:
        view = f"connectionViewType=clientId,connectionName={name.replace(':', '_')}"
        for mbean in self._jolokia.search(f"{self.BROKER},connector=clientConnectors,connectorName=*,{view}"):
            with suppress(BrokerError):  # it is gone since
                self._jolokia.execute(mbean, "stop()")

    def move_dead(self, prefix: str, queue: str) -> None:
        move = "moveMessageTo(java.lang.String,java.lang.String)"
        for mbean in self._jolokia.search(self._queue(self.LETTERS)):
            for letter in self._letters():
                if letter["OriginalDestination"].startswith(f"queue://{prefix}"):
                    self._jolokia.execute(mbean, move, letter["JMSMessageID"], queue)

    def deliver_scheduled(self, queue: str) -> None:
        """Do nothing: Classic's scheduler has a store of its own."""

    def dead(self, queue: str) -> int:
        return sum(letter["OriginalDestination"] == f"queue://{queue}" for letter in self._letters())

    def purge(self, queue: str) -> None:
        for mbean in self._jolokia.search(self._queue(queue)):
            self._jolokia.execute(mbean, "purge()")

    def delete(self, queue: str) -> None:
        (broker,) = self._jolokia.search(self.BROKER)
        self._jolokia.execute(broker, "removeQueue(java.lang.String)", queue)

    def remove(self, prefix: str) -> None:
        (broker,) = self._jolokia.search(self.BROKER)
        for found in self._jolokia.read(self._queue(f"{prefix}*"), "Name").values():
            self._jolokia.execute(broker, "removeQueue(java.lang.String)", found["Name"])
        for mbean in self._jolokia.search(self._queue(self.LETTERS)):
            for letter in self._letters():
                if letter["OriginalDestination"].startswith(f"queue://{prefix}"):
                    self._jolokia.execute(mbean, "removeMessage(java.lang.String)", letter["JMSMessageID"])

    def _letters(self) -> list[dict[str, Any]]:
        letters: list[dict[str, Any]] = []
        for mbean in self._jolokia.search(self._queue(self.LETTERS)):
            letters += self._jolokia.execute(mbean, "browse()")
        return letters

    def _queue(self, name: str) -> str:
        return f"{self.BROKER},destinationType=Queue,destinationName={name}"


class ArtemisQueues:
    """Artemis's MBeans."""

    BROKER = "org.apache.activemq.artemis:broker=*"
    LETTERS, EXPIRED = "DLQ", "ExpiryQueue"

    def __init__(self, jolokia: Jolokia) -> None:
        self._jolokia = jolokia

    def all_counts(self, names: str) -> dict[str, Counts]:
        if "*" not in names:  # the queue counts a message a moment after its receipt
            for mbean in self._jolokia.search(self._queue(names)):
                with suppress(BrokerError):  # it is gone since
                    self._jolokia.execute(mbean, "flushExecutor()")
        asked = ("Name", "MessageCount", "ScheduledCount", "DeliveringCount", "ConsumerCount")
        found: dict[str, Counts] = {}
        for each in self._jolokia.read(self._queue(names), *asked).values():
            queue, count, scheduled, delivering, consumers = (each[name] for name in asked)
            found[queue] = Counts(count - scheduled - delivering, delivering, consumers, scheduled)
        return found

    def connections(self, names: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for mbean, each in self._jolokia.read(self._queue(names), "Name").items():
            found[each["Name"]] = {consumer["connectionID"] for consumer in self._consumers(mbean)}
        return found

    def _consumers(self, mbean: str) -> list[dict[str, str]]:
        """Return the consumers of a queue; Artemis 2.55 fails to list them while one of them begins or ends."""

        def listed() -> str:
            try:
                return str(self._jolokia.execute(mbean, "listConsumersAsJSON()"))
            except BrokerError as error:
                if '"this.session" is null' not in str(error):
                    raise
                return ""

        found: list[dict[str, str]] = json.loads(eventually(listed, f"the consumers of {mbean}", 5))
        return found

    def close_connection(self, name: str) -> None:
        (broker,) = self._jolokia.search(self.BROKER)
        self._jolokia.execute(broker, "closeConnectionWithID(java.lang.String)", name)

    def move_dead(self, prefix: str, queue: str) -> None:
        move, ours = "moveMessages(java.lang.String,java.lang.String)", f"_AMQ_ORIG_QUEUE LIKE '{prefix}%'"
        for mbean in self._jolokia.search(self._queue(self.LETTERS)):
            if self._jolokia.execute(mbean, "countMessages(java.lang.String)", ours):
                (broker,) = self._jolokia.search(self.BROKER)
                create = "createQueue(java.lang.String,java.lang.String,java.lang.String)"
                self._jolokia.execute(broker, create, queue, queue, "ANYCAST")
                self._jolokia.execute(mbean, move, ours, queue)

    def deliver_scheduled(self, queue: str) -> None:
        for mbean in self._jolokia.search(self._queue(queue)):
            self._jolokia.execute(mbean, "deliverScheduledMessages(java.lang.String)", "")

    def dead(self, queue: str) -> int:
        letters = self._jolokia.search(self._queue(self.LETTERS))
        return sum(
            self._jolokia.execute(mbean, "countMessages(java.lang.String)", f"_AMQ_ORIG_QUEUE = '{queue}'")
            for mbean in letters
        )

    def purge(self, queue: str) -> None:
        for mbean in self._jolokia.search(self._queue(queue)):
            self._jolokia.execute(mbean, "removeAllMessages()")

    def delete(self, queue: str) -> None:
        (broker,) = self._jolokia.search(self.BROKER)
        self._jolokia.execute(broker, "destroyQueue(java.lang.String,boolean,boolean)", queue, True, True)

    def remove(self, prefix: str) -> None:
        (broker,) = self._jolokia.search(self.BROKER)
        for found in self._jolokia.read(self._queue(f"{prefix}*"), "Name").values():
            everything = (found["Name"], True, True)  # its consumers and its address too
            self._jolokia.execute(broker, "destroyQueue(java.lang.String,boolean,boolean)", *everything)
        for letters in (self.LETTERS, self.EXPIRED):
            for mbean in self._jolokia.search(self._queue(letters)):
                self._jolokia.execute(mbean, "removeMessages(java.lang.String)", f"_AMQ_ORIG_QUEUE LIKE '{prefix}%'")

    def _queue(self, name: str) -> str:
        """Return the pattern that finds the queue, whatever its address is."""
        parts = "component=addresses,address=*,subcomponent=queues,routing-type=*"
        return f"{self.BROKER},{parts},queue={json.dumps(name)}"
