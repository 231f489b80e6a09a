"""Messages on RabbitMQ that are larger than its present limit: the limit was lowered, or came with 4.0 (16 MiB instead of 128)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from steadyworker import Client
from steadyworker.adapter import OutgoingMessage, QueueSpec, Settings, Target
from steadyworker.errors import MessageRefused, NotPublished
from steadyworker.ledger.base import State
from steadyworker_rabbitmq import RabbitmqAdapter
from steadyworker_rabbitmq.checks.probe import BrokerProbe
from steadyworker_rabbitmq.errors import QueueUnavailable
from steadyworker_rabbitmq.publisher import _Outgoing
from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.support.jobs import Fails
from tests.support.stage import Processes, processes_at

Eventually = Callable[..., Any]

LIMIT = 20_000
LARGE = b'{"pad": "' + b"x" * LIMIT + b'"}'
FORWARDS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work.dead"}
SAFE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


@contextmanager
def limited(node: Node) -> Iterator[None]:
    """Have a lower limit for the channels opened from now on; 3.10 keeps it elsewhere than 4.x."""
    old = node.eval("application:get_env(rabbit, max_message_size, 134217728)").removeprefix("{ok,").strip(" }")
    try:
        set_limit(node, LIMIT)
        yield
    finally:
        set_limit(node, int(old))


def set_limit(node: Node, size: int) -> None:
    node.eval(f"application:set_env(rabbit, max_message_size, {size}), persistent_term:put(max_message_size, {size})")


@pytest.fixture
def channel(vhost: Vhost) -> Iterator[Any]:
    """A channel of another program, such as a sender's."""
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as connection:
        yield connection.channel()


@pytest.mark.parametrize("kind", ["classic", "quorum", "at-least-once"])
def test_the_broker_moves_a_message_above_its_limit_to_the_dead_letters_by_itself(
    rabbitmq_node: Node, vhost: Vhost, channel: Any, kind: str, eventually: Eventually
) -> None:
    """The limit is one of publishing only; so a rejected message keeps its body."""
    safe = SAFE if kind == "at-least-once" else {}
    arguments = {"x-queue-type": "classic" if kind == "classic" else "quorum", **safe}
    channel.queue_declare("dead", durable=True, arguments={"x-queue-type": arguments["x-queue-type"]})
    forwarding = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("work", durable=True, arguments=arguments | forwarding)
    channel.confirm_delivery()
    channel.basic_publish("", "work", LARGE, pika.BasicProperties(delivery_mode=2))
    with limited(rabbitmq_node), closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as connection:
        later: Any = connection.channel()
        method, _, _ = later.basic_get("work")
        later.basic_reject(method.delivery_tag, requeue=False)
        eventually(lambda: later.queue_declare("dead", passive=True).method.message_count == 1)
        _, properties, body = later.basic_get("dead", auto_ack=True)
        assert (body, properties.headers["x-death"][0]["reason"]) == (LARGE, "rejected")
        later.basic_publish("", "dead", LARGE)
        with pytest.raises(ChannelClosedByBroker, match="larger than configured max size"):
            later.queue_declare("dead", passive=True)


@pytest.fixture
def place(rabbitmq: RabbitMQ, tmp_path: Path, vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """Worker processes on RabbitMQ, with a ledger in a file."""
    monkeypatch.setenv("STEADYWORKER_DELAYS", "1")
    with processes_at(f"{vhost.url}?management={rabbitmq.management_url}", tmp_path) as made:
        yield made


def publish(channel: Any, *bodies: bytes) -> None:
    """Send messages with the ids m-1, m-2 and so on."""
    channel.confirm_delivery()
    for number, body in enumerate(bodies, 1):
        channel.basic_publish("", "fails", body, pika.BasicProperties(message_id=f"m-{number}", delivery_mode=2))


def test_a_worker_process_goes_on_behind_it_and_the_broker_keeps_it_whole(
    rabbitmq_node: Node, vhost: Vhost, place: Processes, channel: Any
) -> None:
    """The handler fails, so a dead letter is to be published, and is refused; `dead replay` works once the limit is raised."""
    with Client(**place.urls) as client:
        client.send(Fails, {}, key="m-0")  # makes the queues
    publish(channel, LARGE, b"{}")
    with limited(rabbitmq_node):
        worker = place.worker("tests.support.jobs:Fails", ledger_reach="host").started()
        row = place.reaches("fails", State.DEAD, "m-1")
        place.reaches("fails", State.DEAD, "m-2")
        assert "message size 20011 is larger than configured max size 20000" in row.reason
        assert place.lines("starts").count("fails m-1 1 0") == 1
        (line,) = worker.lines("message_refused")
        assert (line["key"], line["explain"]) == ("m-1", "rabbitmq.message-too-large")
        listed = place.command("dead", "list", "tests.support.jobs:Fails")
        listed.ended(0)
        (shown,) = [text for text in listed.log_end().splitlines() if "m-1" in text]
        assert "(put here by the broker)" in shown
        assert "message size 20011 is larger" in " ".join(listed.log_end().split())
    place.open()
    replayed = place.command("dead", "replay", "tests.support.jobs:Fails", "m-1")
    replayed.ended(0)
    place.reaches("fails", State.DONE, "m-1")
    worker.terminate()
    worker.ended(0)


def test_where_the_queue_moves_nothing_the_worker_process_keeps_it_and_reports_it(
    rabbitmq_node: Node, place: Processes, channel: Any, eventually: Eventually
) -> None:
    """The operator made the queue, without a dead-letter exchange; each command shows the job, and its stop takes no time."""
    channel.queue_declare("fails", durable=True, arguments={"x-queue-type": "classic"})
    publish(channel, LARGE, b"{}")
    with limited(rabbitmq_node):
        worker = place.worker("tests.support.jobs:Fails", ledger_reach="host").started()
        place.reaches("fails", State.DEAD, "m-2")
        place.reaches("fails", State.MOVING, "m-1")
        assert worker.reports("message_refused")["explain"] == "rabbitmq.message-too-large"
        for command in (("jobs",), ("dead", "list", "tests.support.jobs:Fails")):
            shown = place.command(*command)
            shown.ended(0)
            assert "message size 20011 is larger" in " ".join(shown.log_end().split())
        worker.terminate()
        assert worker.ended(0) < 10
    place.open()
    place.worker("tests.support.jobs:Fails", ledger_reach="host").started()
    place.reaches("fails", State.DEAD, "m-1")
    assert [line for line in place.lines("starts") if "m-1" in line] == ["fails m-1 1 0"]
    eventually(lambda: channel.queue_declare("shared.dead", passive=True).method.message_count == 2)


@pytest.mark.parametrize("at_least_once", [True, False], ids=["at least once", "at most once"])
def test_a_full_dead_letter_queue_loses_no_message(
    rabbitmq_node: Node, vhost: Vhost, place: Processes, channel: Any, eventually: Eventually, at_least_once: bool
) -> None:
    """At least once, the broker keeps what it could not move; at most once, it would drop it, so the worker process keeps it."""
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare("shared.dead", durable=True, arguments=full)
    channel.basic_publish("", "shared.dead", b"{}")
    forwards = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "shared.dead"}
    arguments = {"x-queue-type": "quorum", **forwards, **(SAFE if at_least_once else {})}
    channel.queue_declare("fails", durable=True, arguments=arguments)
    publish(channel, LARGE)
    with limited(rabbitmq_node):
        worker = place.worker("tests.support.jobs:Fails", ledger_reach="host").started()
        place.reaches("fails", State.DEAD if at_least_once else State.MOVING, "m-1")
        worker.reports("message_refused")
        worker.terminate()
        worker.ended(0)

    def kept() -> bool:
        queue = rabbitmq_node.management("GET", f"queues/{vhost.name}/fails")
        return (queue.get("messages"), queue.get("messages_dlx")) == (1, int(at_least_once))

    eventually(kept)


def test_only_the_large_one_of_several_messages_in_flight_is_refused(rabbitmq_node: Node, vhost: Vhost) -> None:
    """Those behind it were certainly not read, and those before it may have been accepted."""
    adapter = RabbitmqAdapter(f"{vhost.url}?management=off", QueueSpec("work", "work.dead"), Settings(delays=(1,)))
    try:
        with limited(rabbitmq_node):
            adapter.publish(OutgoingMessage(Target.WORK, b"{}", {}))  # now the connection is open
            with pytest.raises(MessageRefused, match="raise max_message_size") as raised:
                adapter.publish(OutgoingMessage(Target.WORK, LARGE, {}))
            assert raised.value.id == "rabbitmq.message-too-large"
            adapter.publish(OutgoingMessage(Target.WORK, b"{}", {}))
            publisher = adapter._publisher
            bodies = (LARGE, b"{}", LARGE)
            sent = [
                _Outgoing("", "work", pika.BasicProperties(message_id=str(n)), body) for n, body in enumerate(bodies)
            ]

            def accept() -> None:
                for each in sent:
                    publisher._accept(each)

            publisher._io.call(accept)
            errors = [each.confirmed.exception(60) for each in sent]
        assert [type(error) for error in errors] == [MessageRefused, NotPublished, MessageRefused]
    finally:
        adapter.stop(5)


@pytest.mark.parametrize(
    ("arguments", "rejects"),
    [
        (FORWARDS | SAFE, True),
        (FORWARDS, False),
        (FORWARDS | {"x-dead-letter-strategy": "at-least-once"}, False),
        (SAFE, False),
        (FORWARDS | SAFE | {"x-dead-letter-routing-key": "other"}, False),
    ],
    ids=["to the dead-letter queue", "at most once", "without overflow", "nowhere", "elsewhere"],
)
def test_an_adapter_rejects_only_where_the_queue_moves_messages_to_its_dead_letters(
    rabbitmq: RabbitMQ, vhost: Vhost, channel: Any, arguments: dict[str, str], rejects: bool
) -> None:
    """
    A queue that its operator made: elsewhere, a rejected message would be lost, or is lost if the dead-letter queue refuses it.

    Without the management API, the adapter does not know the arguments, and rejects nothing.
    """
    channel.queue_declare("work", durable=True, arguments={"x-queue-type": "quorum", **arguments})
    for management, expected in ((rabbitmq.management_url, rejects), ("off", False)):
        url = f"{vhost.url}?management={management}"
        adapter = RabbitmqAdapter(url, QueueSpec("work", "work.dead"), Settings(delays=(1,)))
        try:
            assert not adapter.capabilities.rejects
            adapter._preparation.prepared()
            on_3 = rabbitmq.version < (4,) and arguments == FORWARDS | SAFE  # it is as the adapter itself declares it
            assert adapter.capabilities.rejects is (expected or on_3)
        finally:
            adapter.stop(5)


def test_check_warns_of_a_limit_below_what_the_queue_may_hold(
    rabbitmq_node: Node, vhost: Vhost, channel: Any, eventually: Eventually
) -> None:
    """What SteadyWorker sends, and what another sender sent while the limit was higher."""
    channel.queue_declare("fails", durable=True, arguments={"x-queue-type": "quorum"})
    publish(channel, LARGE)
    api = quote(rabbitmq_node.management_url, safe="")

    def found(max_body: int, management: str = "off") -> str:
        spec, settings = QueueSpec("fails", "fails.dead"), Settings(delays=(1,), max_body=max_body)
        adapter = RabbitmqAdapter(f"{vhost.url}?management={management}", spec, settings)
        try:
            return "".join(str(each) for each in adapter.findings(spec) if each.id == "rabbitmq.low-message-limit")
        finally:
            adapter.stop(5)

    eventually(lambda: rabbitmq_node.management("GET", f"queues/{vhost.name}/fails").get("message_bytes"))
    assert found(30_000, api) == ""
    with limited(rabbitmq_node):
        assert found(1_000) == ""
        assert f"refuses bodies above {LIMIT} bytes" in found(30_000)
        assert "Its messages (1) have 200" in found(1_000, api)  # 4.x counts the properties, too


@pytest.mark.parametrize("answers", [True, False])
def test_the_check_sends_little_to_find_the_limit(vhost: Vhost, monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """Each start of a worker process checks; a limit that is not found in time is no missing permission."""
    sent: list[int] = []

    def published(broker: BrokerProbe, body: bytes) -> None:
        sent.append(len(body))
        if body and not answers:
            raise QueueUnavailable("no answer within 10 s", id="rabbitmq.unanswered")

    monkeypatch.setattr(BrokerProbe, "_publish", published)
    spec, settings = QueueSpec("work", "work.dead"), Settings(delays=(1,), max_body=128 << 20)
    adapter = RabbitmqAdapter(f"{vhost.url}?management=off", spec, settings)
    found = [each for each in adapter.findings(spec) if "check could not find out" in each.what]
    assert sent == [0, (16 << 20) + 1]
    assert [each.id for each in found] == ([] if answers else ["rabbitmq.unanswered"])
    assert all("accepts a body of 16777217 bytes" in each.what for each in found)
