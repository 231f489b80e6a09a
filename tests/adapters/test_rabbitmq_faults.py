"""What the broker and its operators do to RabbitMQ's adapter: the faults of every broker, and those that only RabbitMQ has."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from steadyworker.adapter import (
    Adapter,
    Blocked,
    Connected,
    Delivered,
    Lost,
    QueueSpec,
    Settings,
    Unblocked,
    Unreachable,
)
from steadyworker.client import Client
from steadyworker.config.resolve import load
from steadyworker.delivery import HOP, KEY, OutgoingMessage, Settle, Settled, Target
from steadyworker.errors import NotPublished, PublishFailed, SendError, StaleDelivery, TargetFull, TargetMissing
from steadyworker_rabbitmq import RabbitmqAdapter
from steadyworker_rabbitmq import url as urls
from steadyworker_rabbitmq.checks import limits
from steadyworker_rabbitmq.publisher import _Outgoing
from tests.adapters.fault_bench import Eventually, FaultBench, OpenWorker, Tls, Wire, work
from tests.adapters.fault_suite import FaultSuite, TlsFaultSuite
from tests.brokers.fixtures import NEWEST
from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost


class RabbitmqBench(FaultBench):
    """A virtual host of a RabbitMQ, for each test alone."""

    tls_scheme = "amqps"
    loggers = ("pika",)
    ended = "CONNECTION_FORCED"
    large = 16_000_000  # RabbitMQ 4 refuses more than 16 MiB, by default

    @pytest.fixture(autouse=True)
    def access(self, vhost: Vhost) -> None:
        self.url, self.password = vhost.url, vhost.password

    @pytest.fixture
    def node(self, rabbitmq_node: Node) -> Node:
        return rabbitmq_node

    @pytest.fixture
    def tls(self, rabbitmq_node: Node, vhost: Vhost) -> Tls:
        return Tls(vhost.tls_url, rabbitmq_node.ca_file)

    @pytest.fixture
    def change_password(self, rabbitmq: RabbitMQ, vhost: Vhost) -> Callable[[str], None]:
        def change(password: str) -> None:
            rabbitmq.management("PUT", f"users/{vhost.user}", {"password": password, "tags": "management"})

        return change

    def make_adapter(self, url: str, spec: QueueSpec, settings: Settings) -> RabbitmqAdapter:
        return RabbitmqAdapter(url, spec, settings)

    def prepare(self, adapter: Adapter) -> None:
        assert isinstance(adapter, RabbitmqAdapter)
        adapter._preparation.prepared()

    def give_up_after(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(urls, "_OPEN_WITHIN", seconds)

    def send(self, *keys: str, body: bytes = b"{}") -> None:
        with self.foreign_channel() as channel:
            channel.confirm_delivery()
            for key in keys:
                sent = pika.BasicProperties(headers={KEY: key}, delivery_mode=2)
                channel.basic_publish("", self.queue, body, sent, mandatory=True)

    def depth(self) -> int:
        with self.foreign_channel() as channel:
            count: int = channel.queue_declare(self.queue, passive=True).method.message_count
            return count

    @contextmanager
    def foreign_channel(self) -> Iterator[BlockingChannel]:
        """Open a channel of a program that is not ours."""
        with closing(pika.BlockingConnection(pika.URLParameters(self.url))) as connection:
            yield connection.channel()


class Hostile(pika.BasicProperties):  # type: ignore[misc]  # pika has no types
    """Headers that pika reads, and fails: a time of the year 35 million, or tables in tables in tables."""

    def __init__(self, entry: bytes) -> None:
        super().__init__()
        self._entry = entry

    def encode(self) -> list[bytes]:
        return [struct.pack(">H", self.FLAG_HEADERS), struct.pack(">I", len(self._entry)), self._entry]


def _nested(depth: int) -> bytes:
    entry = b"\x01nV"
    for _ in range(depth):
        entry = b"\x01nF" + struct.pack(">I", len(entry)) + entry
    return entry


class TestRabbitmqFaults(RabbitmqBench, FaultSuite):
    """The faults of every broker, and RabbitMQ's own: alarms, delivery timeouts, channels, permissions, what AMQP can carry."""

    # --- The broker takes back ----------------------------------------------------------------------------------------

    def test_a_delivery_timeout_ends_the_epoch_and_names_what_to_set(
        self, rabbitmq_node: Node, open_worker: OpenWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """406 up to 4.2, a bare cancel from 4.3: a new channel on the same connection, and the message comes again."""
        rabbitmq_node.set_delivery_timeout(2)
        monkeypatch.setattr(limits, "wanted_timeout", lambda _: 2.0)  # 4.3: our own argument outranks the node's
        worker = open_worker(prefetch=2)
        worker.start()
        for number in (1, 2):
            worker.adapter.publish(work(f"k-{number}"))
        old = worker.delivery(eventually, 2)
        lost = eventually(lambda: worker.all(Lost))[0]
        assert (lost.epoch, lost.id) == (1, None)
        assert "delivery timeout" in lost.cause
        assert "2 s" in lost.cause or "2000 ms" in lost.cause
        with pytest.raises(StaleDelivery):
            worker.adapter.settle(old, Settle.ACK)
        settled = {worker.delivery(eventually, number).headers[KEY]: worker for number in (3, 4)}
        assert set(settled) == {"k-1", "k-2"}
        for signal in worker.all(Delivered)[2:]:
            assert worker.adapter.settle(signal.delivery, Settle.ACK) is Settled.CONFIRMED
        assert not worker.all(Unreachable), "the connection stood all the time"

    def test_a_deleted_queue_is_reported_and_made_again(
        self, rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        """In mode "declare"; its messages are gone, and the worker does not wait in silence without end."""
        worker = open_worker()
        worker.start()
        worker.adapter.publish(work())
        worker.delivery(eventually)
        rabbitmq.management("DELETE", f"queues/{quote(vhost.name)}/exports")
        lost = eventually(lambda: worker.all(Lost))[0]
        assert "deleted" in lost.cause
        eventually(lambda: len(worker.all(Connected)) == 2)
        worker.adapter.publish(work("k-2"))
        assert worker.delivery(eventually, 2).headers[KEY] == "k-2"

    def test_a_deleted_queue_is_waited_for_where_it_is_not_ours_to_make(
        self,
        rabbitmq: RabbitMQ,
        vhost: Vhost,
        open_worker: OpenWorker,
        eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """And what a channel was to answer before it was closed is not held against the connection afterwards."""
        self.answer_within(3.0, monkeypatch)
        maker = open_worker()
        maker.adapter.publish(work())
        worker = open_worker(topology="verify")
        worker.start()
        worker.delivery(eventually)
        rabbitmq.management("DELETE", f"queues/{quote(vhost.name)}/exports")
        gone = eventually(lambda: worker.all(Unreachable))[0]
        assert "exports" in gone.cause
        assert not gone.final
        with pytest.raises(NotPublished, match="exports"):
            worker.adapter.publish(work())
        other = open_worker()
        self.prepare(other.adapter)
        eventually(lambda: len(worker.all(Connected)) == 2)
        threading.Event().wait(4)
        assert len(worker.all(Lost)) == 1

    def test_a_removed_permission_is_reported_and_waited_for(
        self, rabbitmq: RabbitMQ, wire: Wire, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        worker = open_worker(wire.url)
        worker.start()
        eventually(lambda: worker.all(Connected))
        worker.adapter.publish(work())
        worker.delivery(eventually)
        path = f"permissions/{vhost.name}/{vhost.user}"
        rabbitmq.management("PUT", path, {"configure": ".*", "write": "", "read": ""})
        eventually(lambda: not self._may_read())
        wire.proxy.cut()  # an open channel remembers for a while what it was allowed
        cause = eventually(lambda: [each for each in worker.all(Lost) if "access to queue" in each.cause])[0].cause
        assert "set_permissions" in cause
        fresh = open_worker(topology="trust")
        with pytest.raises(NotPublished, match=r"refusal: ACCESS_REFUSED.*set_permissions"):
            fresh.adapter.publish(work())
        rabbitmq.management("PUT", path, {"configure": ".*", "write": ".*", "read": ".*"})
        assert worker.delivery(eventually, 2).headers[KEY] == "k-1"
        fresh.adapter.publish(work())

    def test_a_sender_without_permission_learns_that_nothing_was_sent(
        self, rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker, tmp_path: Path, eventually: Eventually
    ) -> None:
        path = f"permissions/{vhost.name}/{vhost.user}"
        self.prepare(open_worker().adapter)
        rabbitmq.management("PUT", path, {"configure": ".*", "write": "", "read": ".*"})
        eventually(lambda: not self._may_write())
        (tmp_path / "steadyworker.toml").write_text(f'broker = "{self.url}"\ntopology = "trust"\n')
        with closing(Client.configured(load({}, {}, tmp_path))) as client:
            with pytest.raises(SendError, match=r"ACCESS_REFUSED.*The job 'k' was not sent\.$"):
                client.send(self.queue, {}, key="k")
            rabbitmq.management("PUT", path, {"configure": ".*", "write": ".*", "read": ".*"})
            eventually(self._may_write)
            assert client.send(self.queue, {}, key="k") == "k"
        assert self.depth() == 1

    def test_of_several_messages_in_flight_only_the_newest_was_certainly_refused(
        self, rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        """The broker does not name the message that it refused; it may have accepted those before."""
        self.prepare(open_worker().adapter)
        path = f"permissions/{vhost.name}/{vhost.user}"
        rabbitmq.management("PUT", path, {"configure": ".*", "write": "", "read": ".*"})
        eventually(lambda: not self._may_write())
        adapter = open_worker(topology="trust").adapter
        assert isinstance(adapter, RabbitmqAdapter)
        publisher = adapter._publisher
        with pytest.raises(NotPublished):
            adapter.publish(work())  # now the connection is open
        messages = [
            _Outgoing("", self.queue, pika.BasicProperties(message_id=f"k-{number}"), b"{}") for number in range(3)
        ]

        def accept() -> None:
            for message in messages:
                publisher._accept(message)

        publisher._io.call(accept)
        errors = [message.confirmed.exception(60) for message in messages]
        assert [type(error) for error in errors] == [PublishFailed, PublishFailed, NotPublished]

    def _may_write(self) -> bool:
        with self.foreign_channel() as channel:
            channel.confirm_delivery()
            try:
                channel.basic_publish("", "nowhere", b"")
            except ChannelClosedByBroker:
                return False
            return True

    def _may_read(self) -> bool:
        with self.foreign_channel() as channel:
            try:
                channel.basic_consume(self.queue, lambda *_: None)
            except ChannelClosedByBroker:
                return False
            return True

    # --- What AMQP can carry ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("entry", [b"\x01tT" + struct.pack(">Q", 1 << 50), _nested(3000)], ids=["time", "nested"])
    def test_headers_that_the_client_cannot_read_end_no_connection(
        self, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually, entry: bytes
    ) -> None:
        """The reason stands where a number must stand, so that it becomes a dead letter; the next one is as it was sent."""
        worker = open_worker()
        self.prepare(worker.adapter)
        with self.foreign_channel() as channel:
            for queue in ("exports", "exports.dead"):
                channel.basic_publish("", queue, b"body", Hostile(entry))
        worker.adapter.publish(work("k-2"))
        worker.start()
        first = worker.delivery(eventually)
        assert first.headers[HOP].startswith("unreadable: ")
        assert (first.message_id or "").startswith("unreadable-")
        assert first.body == b"body"
        worker.adapter.settle(first, Settle.ACK)
        assert worker.delivery(eventually, 2).headers == {KEY: "k-2"}
        assert not worker.all(Lost)
        with worker.adapter.dead_letters() as letters:
            assert [letter.headers[HOP] for letter in letters] == [first.headers[HOP]]

    def test_a_message_with_texts_that_are_no_utf_8_is_a_message_like_any_other(
        self, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        """RabbitMQ passes such bytes on, and pika answers bytes for them; a retry is published with their hexadecimal form."""
        worker = open_worker()
        self.prepare(worker.adapter)
        texts: Any = {"message_id": b"caf\xe9-1", "correlation_id": b"\xff"}
        sent = pika.BasicProperties(headers={"table": {"a": b"\xe9"}}, **texts)
        with self.foreign_channel() as channel:
            channel.basic_publish("", "exports", b"body", sent)
        worker.start()
        first = worker.delivery(eventually)
        assert (first.message_id, first.body) == ("caf\\xe9-1", b"body")
        worker.adapter.publish(
            OutgoingMessage(Target.WORK, first.body, {**first.headers, KEY: "k"}, message_id=first.message_id)
        )
        worker.adapter.settle(first, Settle.ACK)
        second = worker.delivery(eventually, 2)
        assert (second.message_id, second.headers[KEY], second.headers["table"]) == (
            "caf\\xe9-1",
            "k",
            first.headers["table"],
        )
        assert not worker.all(Lost)

    # --- Publishing ---------------------------------------------------------------------------------------------------

    def test_an_alarm_stops_publishes_and_no_ack(
        self, rabbitmq_node: Node, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        """The publish under way waits, the next is refused at once, acks go on, and the end of the alarm is reported."""
        worker = open_worker(prefetch=3)
        worker.start()
        for number in range(3):
            worker.adapter.publish(work(f"k-{number}"))
        worker.delivery(eventually, 3)
        rabbitmq_node.set_memory_alarm(on=True)
        under_way = threading.Thread(target=worker.adapter.publish, args=(work("later", Target.LATER, delay=1.0),))
        under_way.start()
        blocked = eventually(lambda: worker.all(Blocked))[0]
        assert "memory" in blocked.cause
        with pytest.raises(NotPublished, match="accepts no messages"):
            worker.adapter.publish(work())
        for signal in worker.all(Delivered):
            assert worker.adapter.settle(signal.delivery, Settle.ACK) is Settled.CONFIRMED
        assert under_way.is_alive(), "its confirm comes with the end of the alarm"
        rabbitmq_node.set_memory_alarm(on=False)
        eventually(lambda: worker.all(Unblocked))
        under_way.join(20)
        assert not under_way.is_alive()
        assert worker.delivery(eventually, 4).headers[KEY] == "later"
        assert not worker.all(Lost)

    def test_stop_is_in_time_under_an_alarm(
        self, rabbitmq_node: Node, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        worker = open_worker()
        worker.start()
        worker.adapter.publish(work())
        worker.delivery(eventually)
        rabbitmq_node.set_memory_alarm(on=True)

        def publish_in_vain() -> None:
            with pytest.raises(PublishFailed):
                worker.adapter.publish(work("k-2"))

        failing = threading.Thread(target=publish_in_vain)
        failing.start()
        eventually(lambda: worker.all(Blocked))
        stopper = threading.Thread(target=worker.adapter.stop, args=(4.0,))
        stopper.start()
        stopper.join(5)
        assert not stopper.is_alive()
        failing.join(5)
        assert not failing.is_alive()

    @pytest.mark.parametrize("target", list(Target))
    def test_a_target_that_is_missing_is_named(
        self, rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker, target: Target
    ) -> None:
        """TargetMissing, not a confirm; made again for the next try in mode "declare", waited for in another."""
        worker = open_worker()
        worker.adapter.publish(work())
        assert isinstance(worker.adapter, RabbitmqAdapter)
        queue = worker.adapter._topology.route(work(to=target, delay=1.0))[1]
        rabbitmq.management("DELETE", f"queues/{quote(vhost.name)}/{queue}")
        with pytest.raises(TargetMissing, match=queue):
            worker.adapter.publish(work(to=target, delay=1.0))
        worker.adapter.publish(work(to=target, delay=1.0))

    def test_a_full_target_is_reported(self, rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker) -> None:
        """`reject-publish`: the copy is refused, not dropped."""
        worker = open_worker()
        worker.adapter.publish(work())
        policy = {"pattern": "later", "definition": {"max-length": 1}, "apply-to": "queues"}
        rabbitmq.management("PUT", f"policies/{vhost.name}/small", policy)

        def fill() -> None:
            for number in range(20):
                worker.adapter.publish(work(f"k-{number}", Target.LATER, 2.0))

        with pytest.raises(TargetFull, match="full"):
            fill()

    # --- Refused at the first connect ---------------------------------------------------------------------------------

    def test_a_virtual_host_that_is_not_there_is_final(
        self, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        worker = open_worker(f"{vhost.url}-nope")
        worker.start()
        gone = eventually(lambda: worker.all(Unreachable))[0]
        assert gone.final
        assert f"{vhost.name}-nope" in gone.cause

    def test_a_limit_of_connections_is_waited_for(
        self, rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        """530 as well, and not final."""
        rabbitmq.management("PUT", f"vhost-limits/{vhost.name}/max-connections", {"value": 0})
        worker = open_worker()
        worker.start()
        gone = eventually(lambda: worker.all(Unreachable))[0]
        assert "limit" in gone.cause
        assert not gone.final
        rabbitmq.management("DELETE", f"vhost-limits/{vhost.name}/max-connections")
        eventually(lambda: worker.all(Connected))

    def test_tls_to_the_port_without_is_final(
        self, rabbitmq_node: Node, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        worker = open_worker(rabbitmq_node.tls_url.replace(str(rabbitmq_node.amqps), str(rabbitmq_node.amqp)))
        worker.start()
        gone = eventually(lambda: worker.all(Unreachable))[0]
        assert gone.final
        assert "the scheme and the port" in gone.cause

    def test_a_port_that_is_not_for_this_is_reported(
        self, rabbitmq_node: Node, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        """The TLS port and the management port may close without a word, as a load balancer does that has nobody: that may heal."""
        for port in (rabbitmq_node.amqps, urlsplit(rabbitmq_node.management_url).port):
            worker = open_worker(rabbitmq_node.url.replace(str(rabbitmq_node.amqp), str(port)))
            worker.start()
            gone = eventually(lambda worker=worker: worker.all(Unreachable))[0]
            assert (
                "the scheme and the port" in gone.cause
                if gone.final
                else "whether the broker requires TLS" in gone.cause
            )


class TestRabbitmqFaultsOverTls(RabbitmqBench, TlsFaultSuite):
    """On the newest RabbitMQ alone: the older ones have the same TLS, which is Erlang's."""

    pytestmark = pytest.mark.parametrize("rabbitmq_series", [NEWEST], indirect=True)
