"""What a trace in front of a real RabbitMQ sees and flags: each story on a connection of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest
from pamqp import commands, frame, heartbeat

from steadyworker.diagnosis import conversation
from tests.brokers.rabbitmq import Vhost
from tests.diagnosis.amqp_client import AmqpClient, publish
from tests.diagnosis.traced import Traced

BODY = b"the body of a message"


@pytest.fixture
def trace(vhost: Vhost) -> Iterator[Traced]:
    with Traced(vhost.url) as traced:
        yield traced


@pytest.fixture
def client(trace: Traced) -> Iterator[AmqpClient]:
    with AmqpClient(trace.through()) as connected:
        yield connected


def names(trace: Traced, side: str) -> list[str]:
    return [event["name"] for event in trace.of("method", **{"from": side})]


def test_a_clean_connection_has_its_events_and_no_flag(trace: Traced) -> None:
    with AmqpClient(trace.through(), heartbeat=30) as client:
        queue = client.queue(BODY * 10_000)
        client.method(commands.Basic.Qos(prefetch_count=1))
        client.consume(queue)
        tag = client.expect(commands.Basic.Deliver).delivery_tag
        client.method(commands.Basic.Ack(tag))
        client.send(frame.marshal(heartbeat.Heartbeat(), 0))
        client.method(commands.Connection.Close(200, "done", 0, 0), 0)
        client.expect(commands.Connection.CloseOk)
    trace.wait_kind("close", who="broker")
    trace.stop()

    assert trace.flags() == []
    kinds = [event["kind"] for event in trace.events]
    assert kinds[0] == "open"
    assert set(kinds[1:3]) == {"connected", "header"}  # the client does not wait for the broker
    assert trace.of("header")[0]["name"] == "AMQP 0-9-1"
    assert trace.of("tuned")[0]["heartbeat"] == 30
    assert names(trace, "client")[-4:] == ["Basic.Qos", "Basic.Consume", "Basic.Ack", "Connection.Close"]
    assert trace.of("method", name="Basic.Deliver")[0]["delivery_tag"] == tag
    assert {event["from"] for event in trace.of("body")} == {"client", "broker"}
    assert all(event["size"] > len(BODY) * 10_000 and event["frames"] == 2 for event in trace.of("body"))
    assert trace.of("content")[0]["properties"]["message_id"] == "m-17"
    assert len(trace.of("heartbeat")) == 1
    assert trace.of("close")[0]["first"]


def test_the_halves_of_two_threads_frames(trace: Traced, client: AmqpClient) -> None:
    """One thread is stopped in the middle of its write, and another one writes a whole message."""
    queue = client.queue()
    whole = publish(queue, BODY)
    client.send(whole[:20])
    client.send(publish(queue, BODY))
    client.send(whole[20:])
    client.refused()

    flag = trace.wait_flag("amqp.interleaved-frames")
    assert "another frame inside of a frame" in flag["what"]
    assert "20 bytes behind" in flag["what"]
    trace.wait_kind("method", name="Connection.Close")
    assert trace.flags() == ["amqp.interleaved-frames"]


def test_the_methods_of_two_threads_on_one_channel(trace: Traced, client: AmqpClient) -> None:
    queue = client.queue()
    method = frame.marshal(commands.Basic.Publish(routing_key=queue), 1)
    client.send(method + publish(queue, BODY))
    client.refused()

    assert "channel 1" in trace.wait_flag("amqp.interleaved-frames")["what"]
    trace.wait_kind("method", name="Connection.Close")
    assert set(trace.flags()) == {"amqp.interleaved-frames"}
    assert trace.of("method", name="Connection.Close")[0]["reply_code"] == 505


def test_a_missed_heartbeat(trace: Traced) -> None:
    """The client agreed to one second, and is silent; the broker waits for two of its checks, and closes."""
    with AmqpClient(trace.through(), heartbeat=1) as client:
        client.until_closed()
    trace.wait_kind("close", who="broker")

    flag = trace.wait_flag("amqp.late-heartbeat", level="error")
    assert flag["what"].startswith("The client sent nothing for ")
    assert flag["what"].endswith("and the broker closed the connection.")
    assert flag["evidence"][0]["agreed"] == "1 s"
    gap = trace.wait_kind("gap", **{"from": "client"})
    assert 1.5 < gap["seconds"] < 20
    assert gap["allowed"] == 1
    assert trace.of("close")[0]["first"]
    assert set(trace.flags()) == {"amqp.late-heartbeat"}


@pytest.mark.parametrize(
    ("no_ack", "tags", "flag", "what"),
    [
        (False, [17], "amqp.unknown-delivery-tag", "delivery 17 on channel 1"),
        (False, [1, 1], "amqp.double-ack", "delivery 1 on channel 1 a second time"),
        (True, [1], "amqp.unknown-delivery-tag", "no_ack"),
    ],
)
def test_an_ack_that_the_broker_refuses(
    trace: Traced, client: AmqpClient, tags: list[int], flag: str, what: str, *, no_ack: bool
) -> None:
    client.consume(client.queue(BODY), no_ack=no_ack)
    client.expect(commands.Basic.Deliver)
    for tag in tags:
        client.method(commands.Basic.Ack(tag))
    client.expect(commands.Channel.Close)
    trace.wait_kind("method", name="Channel.Close")
    assert trace.flags() == [flag]
    assert what in trace.of("flag")[0]["what"]


def test_an_ack_on_a_channel_that_is_closed(trace: Traced, client: AmqpClient) -> None:
    client.consume(client.queue(BODY))
    tag = client.expect(commands.Basic.Deliver).delivery_tag
    client.method(commands.Queue.Declare(queue="no-such-queue", passive=True))
    client.expect(commands.Channel.Close)
    client.method(commands.Basic.Ack(tag))
    flag = trace.wait_flag("amqp.dead-channel")
    assert "Basic.Ack of delivery 1 on channel 1" in flag["what"]
    assert "comes again" in flag["what"]
    client.method(commands.Channel.CloseOk())
    client.method(commands.Basic.Ack(tag))
    client.refused()

    trace.wait_kind("method", name="Connection.Close")
    assert trace.flags() == ["amqp.channel-error", "amqp.dead-channel", "amqp.dead-channel"]
    assert "closes the connection for it" in trace.of("flag")[-1]["what"]


def test_a_frame_that_a_reset_cuts(trace: Traced, client: AmqpClient) -> None:
    whole = publish("jobs", BODY)
    client.send(whole[:4])
    trace.wait(lambda event: trace.wire.bytes["client"] > 4 and event["kind"] == "method")
    client.reset()

    flag = trace.wait_flag("amqp.frame-cut")
    assert flag["what"].startswith("The client reset the connection in the middle of a frame")
    assert trace.wait_kind("close", who="client")["in_frame"]


@pytest.mark.parametrize("rabbitmq_series", ["4.3"], indirect=True)
def test_a_delivery_that_times_out_on_a_new_broker(trace: Traced, client: AmqpClient) -> None:
    """RabbitMQ 4.3 cancels the consumer, and says nothing."""
    queue = f"{uuid4()}"
    client.method(commands.Queue.Declare(queue=queue, durable=True, arguments={"x-queue-type": "quorum"}))
    client.expect(commands.Queue.DeclareOk)
    client.publish(queue, BODY)
    client.method(commands.Basic.Consume(queue=queue, arguments={"x-consumer-timeout": 500}))
    client.expect(commands.Basic.Cancel)

    flag = trace.wait_flag("amqp.delivery-timeout")
    assert "the limit is 0.5 s" in flag["what"]
    assert flag["evidence"][0]["queue"] == queue


FROZEN = """
import sys, pika
channel = pika.BlockingConnection(pika.URLParameters(sys.argv[1])).channel()
channel.basic_consume(sys.argv[2], lambda *_: None)
print("consumes", flush=True)
channel.start_consuming()
"""


def test_a_client_that_is_frozen(trace: Traced, client: AmqpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a prefetch the broker sends all that the queue has, until the queues of TCP are full."""
    monkeypatch.setattr(conversation, "STUCK", 1.0)
    queue = f"frozen-{uuid4()}"
    client.method(commands.Queue.Declare(queue=queue, auto_delete=True))
    client.expect(commands.Queue.DeclareOk)
    command = [sys.executable, "-c", FROZEN, trace.through(), queue]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as frozen:
        try:
            assert frozen.stdout
            assert frozen.stdout.readline() == "consumes\n"
            frozen.send_signal(signal.SIGSTOP)
            for size in [100] * 300 + [60_000] * 250:
                client.publish(queue, bytes(size))
            flag = trace.wait_flag("amqp.peer-not-reading")
            assert flag["conn"] == 2
            assert flag["what"].startswith("The client has read nothing for ")
            assert trace.wait_kind("queue", side="client")["bytes"] > 60_000
            pile = trace.wait_flag("amqp.unlimited-prefetch")
            assert pile["evidence"][0]["waiting"] == 300
            assert pile["evidence"][0]["queue"] == queue
            assert not {"amqp.broker-silent", "amqp.broker-not-reading"} & set(trace.flags())
        finally:
            frozen.kill()
