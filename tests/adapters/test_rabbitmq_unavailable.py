"""Queues on RabbitMQ that exist and cannot be reached, and hosts that do not answer: neither is missing, and each is reported."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

import pika
import pytest

from steadyworker.adapter import Connected, Finding, Lost, QueueSpec, Settings, Signal, Unreachable
from steadyworker.errors import BrokerUnavailable
from steadyworker.network import owed
from steadyworker_rabbitmq import RabbitmqAdapter
from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.brokers.trio import Trio

Eventually = Callable[..., Any]
SPEC = QueueSpec("exports", "exports.dead")
GONE = ("rabbitmq.vhost-deleted", "rabbitmq.no-vhost")
DOWN, UNANSWERED = "rabbitmq.queue-node-down", "rabbitmq.unanswered"


@pytest.fixture
def open_adapter() -> Iterator[Callable[..., RabbitmqAdapter]]:
    made: list[RabbitmqAdapter] = []

    def another(url: str, **settings: Any) -> RabbitmqAdapter:
        made.append(RabbitmqAdapter(url, SPEC, Settings(delays=(1,), **settings)))
        return made[-1]

    yield another
    for each in made:
        each.stop(5)


OpenAdapter = Callable[..., RabbitmqAdapter]


def classic(url: str, *names: str) -> None:
    """Make classic queues on the node of this URL."""
    with closing(pika.BlockingConnection(pika.URLParameters(url))) as opened:
        for name in names:
            opened.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "classic"})


@contextmanager
def suspended(node: Node, vhost: Vhost, name: str) -> Iterator[None]:
    """Let the process of a classic queue answer nothing, as that of an overloaded queue, or one on a node that hangs."""
    found = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost.name}">>, queue, <<"{name}">>))'
    node.eval(f"begin {found}, sys:suspend(amqqueue:get_pid(Q)) end")
    try:
        yield
    finally:
        node.eval(f"begin {found}, sys:resume(amqqueue:get_pid(Q)) end")


def problems(found: Iterable[Finding]) -> list[Finding]:
    """The findings but those about a classic queue, which is none of ours."""
    of_classic = ("rabbitmq.classic-queue", "rabbitmq.short-delivery-timeout", "rabbitmq.queue-differs")
    return [each for each in found if each.level != "note" and each.id not in of_classic]


def test_a_queue_that_does_not_answer_is_reported_and_the_other_questions_are_asked(
    rabbitmq_node: Node,
    vhost: Vhost,
    open_adapter: OpenAdapter,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    """Each question has its own limit, and only the first about such a queue waits for it."""
    monkeypatch.setattr(owed, "QUESTION_WITHIN", 1.0)
    monkeypatch.setattr(owed, "ANSWER_WITHIN", 2.0)
    classic(vhost.url, "exports")
    adapter = open_adapter(f"{vhost.url}?management=off")
    adapter._preparation.prepared()
    assert problems(adapter.findings(SPEC)) == []
    with suspended(rabbitmq_node, vhost, "exports"):
        began = time.monotonic()
        (finding,) = problems(adapter.findings(SPEC))
        assert time.monotonic() - began < 5
        assert (finding.id, finding.level) == (UNANSWERED, "warning")
        assert "'exports'" in finding.what
        assert "within 1 s, got no answer" in finding.what
        for question in (adapter.exists, adapter.consumers, adapter.depth):
            with pytest.raises(BrokerUnavailable, match="got no answer"):
                question()
        signals: list[Signal] = []
        adapter.start(signals.append)
        eventually(lambda: [each for each in signals if isinstance(each, Unreachable)])
        (gone,) = [each for each in signals if isinstance(each, Unreachable)][:1]
        assert gone.explain == DOWN
        assert "no reply to a question about queue 'exports'" in gone.cause
    assert problems(adapter.findings(SPEC)) == []


def test_a_host_that_does_not_answer_is_reported(
    vhost: Vhost, open_adapter: OpenAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections, and sends nothing; the other host is checked."""
    monkeypatch.setattr(owed, "QUESTION_WITHIN", 1.0)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        adapter = open_adapter(f"{vhost.url.replace('@', f'@127.0.0.1:{port},', 1)}?management=off")
        began = time.monotonic()
        (finding,) = problems(adapter.findings(SPEC))
        assert time.monotonic() - began < 8
    assert finding.level == "warning"
    assert f"127.0.0.1:{port}" in finding.what


def test_a_deleted_virtual_host_is_not_reported_as_a_deleted_queue(
    rabbitmq: RabbitMQ, vhost: Vhost, open_adapter: OpenAdapter, eventually: Eventually
) -> None:
    """The broker deletes its queues first, and cancels their consumers; then it closes the connections."""
    adapter = open_adapter(f"{vhost.url}?management=off")
    signals: list[Signal] = []
    adapter.prefetch(1)
    adapter.start(signals.append)
    eventually(lambda: [each for each in signals if isinstance(each, Connected)])
    rabbitmq.management("DELETE", f"vhosts/{vhost.name}")
    (lost,) = eventually(lambda: [each for each in signals if isinstance(each, Lost)])
    assert lost.explain in ("amqp.consumer-cancelled", "rabbitmq.vhost-deleted")
    assert "virtual host" in lost.cause or "vhost" in lost.cause
    gone = eventually(lambda: [each for each in signals if isinstance(each, Unreachable) and each.explain in GONE])
    assert vhost.name in gone[0].cause
    rabbitmq.management("PUT", f"vhosts/{vhost.name}")  # for the end of the test, which removes it


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("rabbitmq_series", ["3.10", "4.3"], indirect=True)
@pytest.mark.parametrize("management", [False, True], ids=["", "management"])
def test_a_queue_whose_node_is_down_exists(
    trio: Trio, rabbitmq_series: str, management: bool, open_adapter: OpenAdapter, eventually: Eventually
) -> None:
    """A worker process waits for it, and makes no other queue; a check reports it in time."""
    first, second, _ = trio.nodes
    vhost = first.add_vhost()
    here = f"127.0.0.1:{first.amqp}"
    classic(vhost.url.replace(here, f"127.0.0.1:{second.amqp}"), "exports", "exports.dead")
    api = quote(first.management_url, safe="") if management else "off"
    url = f"{vhost.url}?management={api}"
    open_adapter(url)._preparation.prepared()
    second.kill()
    eventually(lambda: len(first.management("GET", "overview")["listeners"]) > 0)
    adapter = open_adapter(url)
    began = time.monotonic()
    found = problems(adapter.findings(SPEC))
    assert time.monotonic() - began < 40
    cause = DOWN if rabbitmq_series == "3.10" else UNANSWERED
    assert [(each.id, each.level) for each in found] == [(cause, "warning")] * 2
    assert sorted(each.what.split("'")[1] for each in found) == [
        "exports",
        "exports.dead",
    ]  # the first silence decides the order
    if rabbitmq_series == "3.10":
        assert adapter.exists()
    with pytest.raises(BrokerUnavailable):
        adapter.consumers()
    signals: list[Signal] = []
    adapter.start(signals.append)
    eventually(lambda: [each for each in signals if isinstance(each, Unreachable)], within=120)
    assert {each.explain for each in signals if isinstance(each, Unreachable)} <= {DOWN, UNANSWERED}
    second.start()
    eventually(lambda: [each for each in signals if isinstance(each, Connected)], within=120)
    # A node that has just started reports no policy before its first statistics.
    eventually(lambda: problems(adapter.findings(SPEC)) == [], within=60)
