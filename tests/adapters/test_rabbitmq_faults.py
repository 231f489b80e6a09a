"""What the broker and its operators do to RabbitMQ's adapter: said clearly, nothing lost, nothing settled twice, and back by itself."""

from __future__ import annotations

import itertools
import logging
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from steadyworker.adapter import (
    Blocked,
    Connected,
    Delivered,
    Delivery,
    Lost,
    QueueSpec,
    Settings,
    Unblocked,
    Unreachable,
)
from steadyworker.delivery import HOP, KEY, OutgoingMessage, Settle, Settled, Target
from steadyworker.errors import (
    BrokerUnavailable,
    NotPublished,
    PublishFailed,
    StaleDelivery,
    TargetFull,
    TargetMissing,
    Unsettled,
)
from steadyworker.network import backoff, owed
from steadyworker_rabbitmq import RabbitmqAdapter
from steadyworker_rabbitmq import url as urls
from steadyworker_rabbitmq.checks import limits
from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.faults.link import BOTH, Direction, Link
from tests.faults.proxy import Proxy

SPEC = QueueSpec("exports", "exports.dead", time_limit=5)
Eventually = Callable[..., Any]
Kind = TypeVar("Kind")


class Worker:
    """One adapter, and all that it heard."""

    def __init__(self, url: str, credits_: int = 1, spec: QueueSpec = SPEC, **settings: Any) -> None:
        self.heard: list[Any] = []
        self.adapter = RabbitmqAdapter(url, spec, Settings(**{"delays": (1.0, 2.0), **settings}))
        self.adapter.prefetch(credits_)

    def start(self) -> None:
        self.adapter.start(self.heard.append)

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [signal for signal in list(self.heard) if isinstance(signal, kind)]

    def delivery(self, eventually: Eventually, number: int = 1) -> Delivery:
        eventually(lambda: self.all(Delivered)[number - 1 :])
        return self.all(Delivered)[number - 1].delivery


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a minute; `test_rabbitmq_parts.py` has the waits as they are."""
    monkeypatch.setattr(backoff, "LONGEST", 2.0)


def work(key: str = "k-1", to: Target = Target.WORK, delay: float = 0.0) -> OutgoingMessage:
    return OutgoingMessage(to, b"{}", {KEY: key}, delay)


@pytest.fixture
def open_worker(vhost: Vhost) -> Iterator[Callable[..., Worker]]:
    """Workers of this test's virtual host; stopped at its end."""
    workers: list[Worker] = []

    def another(url: str = vhost.url, **options: Any) -> Worker:
        workers.append(Worker(url, **options))
        return workers[-1]

    yield another
    for worker in workers:
        worker.adapter.stop(5)


@pytest.fixture
def proxy(rabbitmq: RabbitMQ) -> Iterator[Proxy]:
    with Proxy(rabbitmq.url) as made:
        yield made


OpenWorker = Callable[..., Worker]


# --- The broker ends, or takes back -----------------------------------------------------------------------------------


def test_senders_to_a_silent_broker_wait_together_and_not_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share one attempt to connect, and its error; each of eight would have waited for those before it."""
    monkeypatch.setattr(urls, "_OPEN_WITHIN", 1.0)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        adapter = RabbitmqAdapter(f"amqp://127.0.0.1:{silent.getsockname()[1]}", SPEC, Settings())
        started = threading.Barrier(8)

        def send(_: int) -> tuple[str, float]:
            started.wait(30)
            before = time.monotonic()
            with pytest.raises(NotPublished) as raised:
                adapter.publish(work())
            return str(raised.value), time.monotonic() - before

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(send, range(8)))
        adapter.stop(5)
    assert {text for text, _ in answers if "no reply in time" not in text} == set()
    assert max(waited for _, waited in answers) < 3.5  # one attempt, and the end of a second one at most


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_broker_that_ends_and_comes_back(
    rabbitmq_node: Node, open_worker: OpenWorker, eventually: Eventually, how: str
) -> None:
    """Killed, or stopped with 320: the epoch ends, nothing of it can be settled, and the message comes again."""
    worker = open_worker(credits_=2)
    worker.start()
    worker.adapter.publish(work())
    old = worker.delivery(eventually)
    getattr(rabbitmq_node, how)()
    lost = eventually(lambda: worker.all(Lost))[0]
    assert lost.epoch == old.epoch
    if how == "stop":
        assert "CONNECTION_FORCED" in lost.cause
    with pytest.raises(StaleDelivery):
        worker.adapter.settle(old, Settle.ACK)
    with pytest.raises(PublishFailed):
        worker.adapter.publish(work("k-2"))
    eventually(lambda: worker.all(Unreachable))
    assert not worker.all(Unreachable)[0].final
    rabbitmq_node.start()
    new = worker.delivery(eventually, 2)
    assert (new.headers[KEY], new.epoch) == ("k-1", worker.all(Connected)[-1].epoch)
    assert worker.adapter.settle(new, Settle.ACK) is Settled.CONFIRMED
    assert [lost.epoch for lost in worker.all(Lost)] == [1]


def test_a_delivery_timeout_ends_the_epoch_and_says_what_to_set(
    rabbitmq_node: Node, open_worker: OpenWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """406 up to 4.2, a bare cancel from 4.3: a new channel on the same connection, and the message comes again."""
    rabbitmq_node.set_delivery_timeout(2)
    monkeypatch.setattr(limits, "wanted_timeout", lambda _: 2.0)  # 4.3: our own argument outranks the node's
    worker = open_worker(credits_=2)
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


def test_a_deleted_queue_is_said_and_made_again(
    rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
) -> None:
    """In mode "declare"; its messages are gone, and the worker does not wait in silence for ever."""
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
    rabbitmq: RabbitMQ,
    vhost: Vhost,
    open_worker: OpenWorker,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what a channel was to answer before it was closed is not held against the connection afterwards."""
    monkeypatch.setattr(owed, "ANSWER_WITHIN", 3.0)
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
    other.adapter._preparation.prepared()
    eventually(lambda: len(worker.all(Connected)) == 2)
    threading.Event().wait(4)
    assert len(worker.all(Lost)) == 1


def test_a_permission_that_was_taken_is_said_and_waited_for(
    rabbitmq: RabbitMQ, proxy: Proxy, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
) -> None:
    worker = open_worker(proxy.through(vhost.url))
    worker.start()
    eventually(lambda: worker.all(Connected))
    worker.adapter.publish(work())
    worker.delivery(eventually)
    path = f"permissions/{vhost.name}/{vhost.user}"
    rabbitmq.management("PUT", path, {"configure": ".*", "write": "", "read": ""})
    eventually(lambda: not _may_read(vhost))
    proxy.cut()  # an open channel remembers for a while what it was allowed
    said = eventually(lambda: [each for each in worker.all(Lost) if "access to queue" in each.cause])[0].cause
    assert "set_permissions" in said
    fresh = open_worker(topology="trust")
    with pytest.raises(PublishFailed, match="set_permissions"):
        fresh.adapter.publish(work())
    rabbitmq.management("PUT", path, {"configure": ".*", "write": ".*", "read": ".*"})
    assert worker.delivery(eventually, 2).headers[KEY] == "k-1"
    fresh.adapter.publish(work())


class Hostile(pika.BasicProperties):  # type: ignore[misc]  # pika says nothing of its types
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


@pytest.mark.parametrize("entry", [b"\x01tT" + struct.pack(">Q", 1 << 50), _nested(3000)], ids=["time", "nested"])
def test_headers_that_the_client_cannot_read_end_no_connection(
    vhost: Vhost, open_worker: OpenWorker, eventually: Eventually, entry: bytes
) -> None:
    """The message says so where a number must stand, so that it becomes a dead letter; the next one is as it was sent."""
    worker = open_worker()
    worker.adapter._preparation.prepared()
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as sender:
        for queue in ("exports", "exports.dead"):
            sender.channel().basic_publish("", queue, b"body", Hostile(entry))
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
    vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
) -> None:
    """RabbitMQ passes such bytes on, and pika answers bytes for them; a retry is published with what they look like."""
    worker = open_worker()
    worker.adapter._preparation.prepared()
    texts: Any = {"message_id": b"caf\xe9-1", "correlation_id": b"\xff"}
    sent = pika.BasicProperties(headers={"table": {"a": b"\xe9"}}, **texts)
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as sender:
        sender.channel().basic_publish("", "exports", b"body", sent)
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


def _may_read(vhost: Vhost) -> bool:
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as connection:
        try:
            connection.channel().basic_consume("exports", lambda *_: None)
        except ChannelClosedByBroker:
            return False
        return True


# --- Publishing --------------------------------------------------------------------------------------------------------


def test_an_alarm_stops_publishes_and_no_ack(
    rabbitmq_node: Node, open_worker: OpenWorker, eventually: Eventually
) -> None:
    """The publish under way waits, the next is refused at once, acks go on, and the end of the alarm is heard."""
    worker = open_worker(credits_=3)
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


def test_stop_is_in_time_under_an_alarm(rabbitmq_node: Node, open_worker: OpenWorker, eventually: Eventually) -> None:
    worker = open_worker()
    worker.start()
    worker.adapter.publish(work())
    worker.delivery(eventually)
    rabbitmq_node.set_memory_alarm(on=True)
    failing = threading.Thread(target=_publish_in_vain, args=(worker.adapter,))
    failing.start()
    eventually(lambda: worker.all(Blocked))
    stopper = threading.Thread(target=worker.adapter.stop, args=(4.0,))
    stopper.start()
    stopper.join(5)
    assert not stopper.is_alive()
    failing.join(5)
    assert not failing.is_alive()


def _publish_in_vain(adapter: RabbitmqAdapter) -> None:
    with pytest.raises(PublishFailed):
        adapter.publish(work("k-2"))


@pytest.mark.parametrize("target", list(Target))
def test_a_target_that_is_missing_is_named(
    rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker, target: Target
) -> None:
    """TargetMissing, not a confirm; made again for the next try in mode "declare", waited for in another."""
    worker = open_worker()
    worker.adapter.publish(work())
    queue = worker.adapter._topology.route(work(to=target, delay=1.0))[1]
    rabbitmq.management("DELETE", f"queues/{quote(vhost.name)}/{queue}")
    with pytest.raises(TargetMissing, match=queue):
        worker.adapter.publish(work(to=target, delay=1.0))
    worker.adapter.publish(work(to=target, delay=1.0))


def test_a_full_target_is_said(rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker) -> None:
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


# --- Refused at the first connect ---------------------------------------------------------------------------------------


class Logs(logging.Handler):
    """Every text that any library logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


@pytest.fixture
def logs() -> Iterator[Logs]:
    handler, root, pika = Logs(), logging.getLogger(), logging.getLogger("pika")
    before = root.level, pika.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    pika.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before[0])
    pika.setLevel(before[1])


CANARY = "c4n4ry-pa55word"


def test_a_wrong_password_is_final_and_in_no_text(
    rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually, logs: Logs
) -> None:
    worker = open_worker(vhost.url.replace(vhost.password, CANARY))
    worker.start()
    gone = eventually(lambda: worker.all(Unreachable))[0]
    assert gone.final
    assert "user and password" in gone.cause
    texts = [repr(worker.heard), repr(worker.adapter.__dict__)]
    for attempt in (lambda: worker.adapter.publish(work()), worker.adapter.identity, worker.adapter.consumers):
        with pytest.raises((NotPublished, BrokerUnavailable)) as raised:
            attempt()
        texts.append(repr(raised.getrepr(showlocals=False)))
    texts += [repr(finding) for finding in worker.adapter.findings(SPEC)]
    assert CANARY not in "".join([*texts, *logs.texts])


def test_a_right_password_is_in_no_text_either(
    vhost: Vhost, open_worker: OpenWorker, eventually: Eventually, logs: Logs
) -> None:
    """pika logs much at DEBUG: frames, parameters, connections."""
    worker = open_worker()
    worker.start()
    worker.adapter.publish(work())
    worker.adapter.settle(worker.delivery(eventually), Settle.ACK)
    assert logs.texts
    assert vhost.password not in "".join([*logs.texts, repr(worker.adapter.__dict__)])


def test_a_virtual_host_that_is_not_there_is_final(
    vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
) -> None:
    worker = open_worker(f"{vhost.url}-nope")
    worker.start()
    gone = eventually(lambda: worker.all(Unreachable))[0]
    assert gone.final
    assert f"{vhost.name}-nope" in gone.cause


def test_a_limit_of_connections_is_waited_for(
    rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
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


def test_tls_to_the_port_without_is_final(rabbitmq_node: Node, open_worker: OpenWorker, eventually: Eventually) -> None:
    worker = open_worker(rabbitmq_node.tls_url.replace(str(rabbitmq_node.amqps), str(rabbitmq_node.amqp)))
    worker.start()
    gone = eventually(lambda: worker.all(Unreachable))[0]
    assert gone.final
    assert "the scheme and the port" in gone.cause


def test_a_port_that_is_not_for_this_is_said(
    rabbitmq_node: Node, open_worker: OpenWorker, eventually: Eventually
) -> None:
    """The TLS port and the management port may close without a word, as a load balancer does that has nobody: that may heal."""
    for port in (rabbitmq_node.amqps, urlsplit(rabbitmq_node.management_url).port):
        worker = open_worker(rabbitmq_node.url.replace(str(rabbitmq_node.amqp), str(port)))
        worker.start()
        gone = eventually(lambda worker=worker: worker.all(Unreachable))[0]
        assert (
            "the scheme and the port" in gone.cause if gone.final else "whether the broker requires TLS" in gone.cause
        )


def test_tls_with_the_brokers_authority_works_and_without_it_is_final(
    rabbitmq_node: Node, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
) -> None:
    """Neither an unknown authority nor another host's name is spoken to."""
    good = open_worker(f"{vhost.tls_url}?cafile={rabbitmq_node.ca_file}")
    good.start()
    good.adapter.publish(work())
    good.adapter.settle(good.delivery(eventually), Settle.ACK)
    for query in ("", f"?cafile={rabbitmq_node.ca_file}&server_name=rabbit.example"):
        worker = open_worker(vhost.tls_url + query)
        worker.start()
        gone = eventually(lambda worker=worker: worker.all(Unreachable))[0]
        assert gone.final
        assert "certificate" in gone.cause


def test_a_password_that_is_rotated_is_read_again(
    rabbitmq: RabbitMQ, proxy: Proxy, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
) -> None:
    """Refused after a first success is not final, and the next connect asks for the URL as it is then."""
    urls = [proxy.through(vhost.url)]
    worker = open_worker(urls[0], fresh_url=lambda: urls[-1])
    worker.start()
    eventually(lambda: worker.all(Connected))
    rabbitmq.management("PUT", f"users/{vhost.user}", {"password": CANARY, "tags": "management"})
    proxy.cut()
    gone = eventually(lambda: worker.all(Unreachable))[0]
    assert not gone.final
    urls.append(urls[0].replace(vhost.password, CANARY))
    eventually(lambda: len(worker.all(Connected)) == 2)


# --- The network --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "close"])
def test_a_cut_is_noticed_at_once_and_the_message_comes_again(
    proxy: Proxy, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually, how: str
) -> None:
    """RST or FIN in the middle of a job."""
    worker = open_worker(proxy.through(vhost.url))
    worker.start()
    worker.adapter.publish(work())
    old = worker.delivery(eventually)
    getattr(proxy, how)()
    new = worker.delivery(eventually, 2)
    assert [type(signal) for signal in worker.heard] == [Connected, Delivered, Lost, Connected, Delivered]
    with pytest.raises(StaleDelivery):
        worker.adapter.settle(old, Settle.ACK)
    assert worker.adapter.settle(new, Settle.ACK) is Settled.CONFIRMED


@pytest.mark.parametrize("direction", [BOTH, ("up",), ("down",)], ids=["both-ways", "up", "down"])
def test_a_peer_that_is_gone_without_a_word_is_missed(
    proxy: Proxy, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually, direction: tuple[Direction, ...]
) -> None:
    """Bytes vanish: heartbeats miss them, within three of them and a bit, and what waited for an answer hears so."""
    worker = open_worker(f"{proxy.through(vhost.url)}?heartbeat=2")
    worker.start()
    worker.adapter.publish(work())
    held = worker.delivery(eventually)
    proxy.change(direction, drop=True)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(worker.adapter.publish, work("k-2"))
        with pytest.raises(Unsettled):
            worker.adapter.settle(held, Settle.ACK)
        with pytest.raises(PublishFailed) as raised:
            sending.result()
    assert not isinstance(raised.value, NotPublished), "its bytes were written, so it may have arrived"
    assert [lost.epoch for lost in worker.all(Lost)] == [1]
    proxy.resume()
    proxy.cut()
    eventually(lambda: len(worker.all(Connected)) == 2)
    # The ack may have arrived or not; nothing else can have been settled by it.
    worker.adapter.publish(work("k-3"))
    eventually(lambda: any(signal.delivery.headers[KEY] == "k-3" for signal in _settling(worker)))


def _settling(worker: Worker) -> list[Delivered]:
    """Acknowledge whatever comes."""
    heard = worker.all(Delivered)[1:]
    for signal in heard:
        with suppress(StaleDelivery, Unsettled):
            worker.adapter.settle(signal.delivery, Settle.ACK)
    return heard


def test_a_settlement_without_an_answer_ends_the_epoch(
    proxy: Proxy, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where heartbeats would not miss anything for long: the broker owes an answer."""
    monkeypatch.setattr(owed, "ANSWER_WITHIN", 1.0)
    worker = open_worker(proxy.through(vhost.url))
    worker.start()
    worker.adapter.publish(work())
    held = worker.delivery(eventually)
    proxy.change(("down",), drop=True)
    with pytest.raises(Unsettled, match="no reply to basic"):
        worker.adapter.settle(held, Settle.ACK)
    proxy.resume()
    eventually(lambda: len(worker.all(Connected)) == 2)
    assert len(worker.all(Lost)) == 1


def test_a_frozen_broker_is_missed_and_stop_is_in_time(
    rabbitmq_node: Node, open_worker: OpenWorker, vhost: Vhost, eventually: Eventually
) -> None:
    worker, other = (open_worker(f"{vhost.url}?heartbeat=2") for _ in range(2))
    worker.start()
    other.start()
    worker.adapter.publish(work())
    eventually(lambda: worker.all(Connected) and other.all(Connected))
    rabbitmq_node.freeze()
    stopper = threading.Thread(target=other.adapter.stop, args=(3.0,))
    stopper.start()
    stopper.join(15)  # five times what was asked for: the machine may be busy
    assert not stopper.is_alive()
    lost = eventually(lambda: worker.all(Lost))[0]
    assert "heartbeat" in lost.cause
    rabbitmq_node.thaw()
    eventually(lambda: len(worker.all(Connected)) == 2)


@pytest.mark.timeout(300)
def test_the_handshake_may_be_cut_at_any_byte(
    rabbitmq: RabbitMQ, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 0 to 600: never final, never stuck, no descriptor left; eight workers, each cut a byte later each time, and whole at last."""
    for wait in ("FIRST", "REFUSED", "LONGEST"):
        monkeypatch.setattr(backoff, wait, 0.0)
    # The handshake alone may be shorter than that.
    open_worker().adapter.publish(OutgoingMessage(Target.WORK, bytes(1000), {KEY: "k-1"}))
    before = _open_files()

    def cut_from(first: int) -> None:
        with Proxy(rabbitmq.url) as proxy:
            worker = Worker(proxy.through(vhost.url))
            worker.adapter._preparation.prepared()
            proxy.wait_closed()
            tries = proxy.connections

            def cut_after(count: int) -> None:
                def cut(link: Link) -> None:
                    cut_after(count + 1)
                    link.cut()

                if count <= first + 75:
                    proxy.after(count, "down", cut)
                else:
                    proxy.resume()

            cut_after(first)
            worker.start()
            proxy.wait_connections(tries + 77, within=200)
            eventually(lambda: isinstance(worker.heard[-1], Connected | Delivered))
            assert not any(gone.final for gone in worker.all(Unreachable))
            worker.adapter.stop(5)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(cut_from, range(0, 600, 75)))
    eventually(lambda: _open_files() <= before)


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_bytes_that_come_one_by_one(
    proxy: Proxy, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
) -> None:
    """No frame may be taken for granted."""
    proxy.slice(1)
    worker = open_worker(proxy.through(vhost.url), topology="trust")
    open_worker().adapter.publish(work("k-1"))
    worker.start()
    worker.adapter.settle(worker.delivery(eventually), Settle.ACK)
    worker.adapter.publish(OutgoingMessage(Target.WORK, bytes(500), {KEY: "k-2"}))
    assert worker.delivery(eventually, 2).body == bytes(500)


def test_a_host_that_is_down_is_passed_by(
    proxy: Proxy, vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
) -> None:
    """Hosts are tried in a random order, each once: one that has no name, one that refuses, one that is up."""
    parts = urlsplit(vhost.url)
    login, _, up = parts.netloc.rpartition("@")
    proxy.refuse()
    url = parts._replace(netloc=f"{login}@nowhere.invalid,127.0.0.1:{proxy.port},{up}").geturl()
    worker = open_worker(url)
    worker.start()
    worker.adapter.publish(work())
    assert worker.delivery(eventually).headers[KEY] == "k-1"
    assert not worker.all(Unreachable)


def test_a_stop_gives_everything_back_at_once(vhost: Vhost, open_worker: OpenWorker, eventually: Eventually) -> None:
    """Whatever the window: to the next consumer."""
    first, second = open_worker(credits_=5), open_worker(credits_=5)
    first.start()
    for number in range(5):
        first.adapter.publish(work(f"k-{number}"))
    first.delivery(eventually, 5)
    second.start()
    eventually(lambda: second.all(Connected))
    first.adapter.stop(5)
    second.delivery(eventually, 5)
    assert {signal.delivery.headers[KEY] for signal in second.all(Delivered)} == {f"k-{number}" for number in range(5)}
    assert [type(signal) for signal in first.heard] == [Connected, *[Delivered] * 5]


def test_windows_that_change_all_the_time_lose_nothing_and_are_never_exceeded(
    vhost: Vhost, open_worker: OpenWorker, eventually: Eventually
) -> None:
    """The consumer is replaced while deliveries come; each message is settled once."""
    worker, total = open_worker(credits_=0, spec=QueueSpec("exports", "exports.dead", concurrency=8)), 200
    for number in range(total):
        worker.adapter.publish(work(f"k-{number}"))
    held: set[str] = set()
    most, done = 0, Counter[str]()

    def settle(delivery: Delivery) -> None:
        held.discard(delivery.id)  # the next may come before the answer does
        worker.adapter.settle(delivery, Settle.ACK)
        done[delivery.headers[KEY]] += 1

    with ThreadPoolExecutor(8) as threads:

        def sink(signal: object) -> None:
            nonlocal most
            worker.heard.append(signal)
            if isinstance(signal, Delivered):
                held.add(signal.delivery.id)
                most = max(most, len(held))
                threads.submit(settle, signal.delivery)

        worker.adapter.start(sink)
        windows = itertools.cycle([1, 8, 0, 3, 5, 0, 2, 8])

        def settled() -> bool:
            worker.adapter.prefetch(next(windows))
            return sum(done.values()) == total

        eventually(settled)
    assert done == Counter({f"k-{number}": 1 for number in range(total)})
    assert most <= 8
    assert not worker.all(Lost)
    reader = open_worker()
    reader.start()
    eventually(lambda: reader.all(Connected))
    assert not reader.all(Delivered)
