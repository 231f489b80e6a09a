"""Each broker does what the tests of the adapters and of the ledger build on, and leaves nothing behind."""

from __future__ import annotations

import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pika
import pika.exceptions
import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.brokers.guard import runs
from tests.brokers.postgres import Cluster
from tests.brokers.process import BrokerError, free_ports
from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.conftest import Eventually

ROOT = Path(__file__).parents[2]
KINDS = ("classic", "quorum")


def only(channel: BlockingChannel, queue: str) -> bytes:
    """The one message that is in the queue; consumed, as 3.10 loses a get while a quorum queue has no leader yet."""
    method, _, body = next(iter(channel.consume(queue, inactivity_timeout=30)))
    assert method, f"nothing came from {queue} within 30 s"
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    channel.cancel()
    assert isinstance(body, bytes)
    return body


def test_a_message_comes_back(rabbitmq: RabbitMQ, vhost: Vhost) -> None:
    with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("jobs", durable=True)
        channel.basic_publish("", "jobs", b"m-17")

        assert channel.basic_get("jobs", auto_ack=True)[2] == b"m-17"
        assert channel.basic_get("jobs") == (None, None, None)


def test_durable_messages_survive_kill_9(rabbitmq_node: Node, vhost: Vhost) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(vhost.url))
    channel = connection.channel()
    channel.confirm_delivery()
    for kind in KINDS:
        channel.queue_declare(kind, durable=True, arguments={"x-queue-type": kind})
        channel.basic_publish("", kind, kind.encode(), pika.BasicProperties(delivery_mode=2))
    rabbitmq_node.kill()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(5)
    rabbitmq_node.start()

    with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
        assert [only(connection.channel(), kind) for kind in KINDS] == [kind.encode() for kind in KINDS]


def test_what_was_committed_survives_kill_9(postgres_cluster: Cluster, database: str) -> None:
    connection = psycopg.connect(database, autocommit=True)
    connection.execute("CREATE TABLE jobs AS SELECT 17 AS id")
    postgres_cluster.kill()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    postgres_cluster.start()

    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT id FROM jobs").fetchall() == [(17,)]


def test_tls_reaches_the_broker_whose_certificate_the_node_signed(rabbitmq_node: Node, vhost: Vhost) -> None:
    parameters = pika.URLParameters(vhost.tls_url)
    parameters.ssl_options = pika.SSLOptions(ssl.create_default_context(cafile=rabbitmq_node.ca_file), "127.0.0.1")

    with pika.BlockingConnection(parameters) as connection:
        assert connection.is_open


def test_a_memory_alarm_is_raised_and_cleared(rabbitmq_node: Node) -> None:
    rabbitmq_node.set_memory_alarm(on=True)
    assert "memory" in rabbitmq_node.eval("rabbit_alarm:get_alarms()")
    rabbitmq_node.set_memory_alarm(on=False)
    assert rabbitmq_node.eval("rabbit_alarm:get_alarms()") == "[]"


def test_a_delivery_timeout_ends_a_delivery_within_seconds(rabbitmq_node: Node, vhost: Vhost) -> None:
    """A channel is closed (406); from 4.3 on a quorum queue has its own limit, and its consumer is cancelled."""
    rabbitmq_node.set_delivery_timeout(1)
    with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("jobs", durable=True, arguments={"x-queue-type": "quorum"})
        channel.basic_publish("", "jobs", b"m-17")
        cancelled: list[object] = []
        channel.add_on_cancel_callback(cancelled.append)
        channel.basic_consume("jobs", lambda *_: None, arguments={"x-consumer-timeout": 3000})
        while channel.is_open and not cancelled:
            connection.process_data_events(30)

        assert channel.is_open == (rabbitmq_node.version >= (4, 3))


def test_ctl_answers_and_its_failure_has_the_cause(rabbitmq_node: Node) -> None:
    assert rabbitmq_node.series in rabbitmq_node.ctl("version")
    with pytest.raises(BrokerError, match="no_such_command"):
        rabbitmq_node.ctl("no_such_command")


def test_a_frozen_broker_is_healed(rabbitmq_node: Node, vhost: Vhost) -> None:
    with socket.create_connection(("127.0.0.1", rabbitmq_node.amqp)) as end:
        rabbitmq_node.freeze()
        end.settimeout(0.2)
        end.sendall(b"AMQP\0\0\x09\x01")
        with pytest.raises(TimeoutError):
            end.recv(8)
    rabbitmq_node.heal()

    with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
        assert connection.is_open


def test_no_other_process_of_the_tests_is_given_the_ports_of_this_one() -> None:
    ours = free_ports(150)
    ask = "from tests.brokers.process import free_ports; print(*free_ports(150))"
    theirs = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert {*ours}.isdisjoint(map(int, theirs.split()))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("postgres", "closed"),
        ("postgres", "killed"),
        pytest.param("activemq", "closed", marks=[pytest.mark.slow, pytest.mark.stomp]),
        pytest.param("artemis", "killed", marks=[pytest.mark.slow, pytest.mark.stomp]),
    ],
)
def test_nothing_is_left_of_a_broker(name: str, how: str, eventually: Eventually) -> None:
    """Not after a good end, nor after SIGKILL of the process that started it; `postgres` has the largest family."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.brokers", name], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as starter:
        assert starter.stdout
        said = iter(starter.stdout)
        pid, log = next(found for line in said if (found := re.match(r"  pid (\d+), log ([^\s,]+)", line))).groups()
        folder = Path(log).parent
        family = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children(recursive=True)]
        assert folder.exists()
        starter.send_signal(signal.SIGKILL if how == "killed" else signal.SIGINT)

    eventually(lambda: not folder.exists())
    assert [process for process in family if runs(process)] == []
