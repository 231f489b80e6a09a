"""Provocations by requests that the broker refuses: declarations, acknowledgements, rights, limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
from pamqp import commands
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel

from tests.diagnosis.amqp_client import RawClient
from tests.diagnosis.provocation import Scene, nothing, on_channel, queue

# --- Declarations -----------------------------------------------------------------------------------------------------


def other_durable(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel)
        on_channel(scene, lambda other: other.queue_declare("work", exclusive=True))


def other_ttl(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel, "ttl")
        on_channel(scene, lambda other: queue(other, "ttl", x_message_ttl=1000))


def missing_dlx(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel, "dlx", x_dead_letter_exchange="dlx")
        on_channel(scene, lambda other: queue(other, "dlx"))


def other_queue_type(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel, "quorum", x_queue_type="quorum")
        on_channel(scene, lambda other: queue(other, "quorum"))


def other_exchange_type(scene: Scene) -> None:
    with scene.channel() as channel:
        channel.exchange_declare("events", "direct")
        on_channel(scene, lambda other: other.exchange_declare("events", "topic"))


def unknown_exchange_type(scene: Scene) -> None:
    on_channel(scene, lambda channel: channel.exchange_declare("delayed", "x-delayed-message"))


def text_ttl(scene: Scene) -> None:
    on_channel(scene, lambda channel: queue(channel, "bad-ttl", x_message_ttl="1000"))


def negative_ttl(scene: Scene) -> None:
    on_channel(scene, lambda channel: queue(channel, "bad-ttl", x_message_ttl=-1))


def quorum_priority(scene: Scene) -> None:
    on_channel(scene, lambda channel: queue(channel, "bad-quorum", x_queue_type="quorum", x_max_priority=10))


def quorum_not_durable(scene: Scene) -> None:
    on_channel(
        scene,
        lambda channel: channel.queue_declare("bad-quorum", durable=False, arguments={"x-queue-type": "quorum"}),
    )


def quorum_exclusive(scene: Scene) -> None:
    on_channel(
        scene,
        lambda channel: channel.queue_declare(
            "bad-quorum", durable=True, exclusive=True, arguments={"x-queue-type": "quorum"}
        ),
    )


def stream_without_prefetch(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel, "stream", x_queue_type="stream")
        on_channel(scene, lambda other: other.basic_consume("stream", nothing))


def reserved_queue(scene: Scene) -> None:
    on_channel(scene, lambda channel: queue(channel, "amq.mine"))


def reserved_exchange(scene: Scene) -> None:
    on_channel(scene, lambda channel: channel.exchange_declare("amq.mine"))


def default_exchange(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel)
        on_channel(scene, lambda other: other.queue_bind("work", "", "key"))


def internal_exchange(scene: Scene) -> None:
    on_channel(scene, lambda channel: channel.basic_publish("amq.rabbitmq.trace", "key", b""))


def deprecated_features(scene: Scene) -> None:
    """A queue that is neither durable nor exclusive, and a prefetch for the whole channel: 4.3 warns once a day of each."""
    for feature in ("transient_nonexcl_queues", "global_qos"):
        scene.node.eval(f"persistent_term:erase({{rabbit_deprecated_features, {feature}}})")
    with scene.channel() as channel:
        channel.queue_declare("transient", durable=False)
        channel.basic_qos(prefetch_count=1, global_qos=True)


# --- What is not there ------------------------------------------------------------------------------------------------


def no_queue(scene: Scene) -> None:
    on_channel(scene, lambda channel: channel.queue_declare("nosuch", passive=True))


def no_exchange(scene: Scene) -> None:
    on_channel(scene, lambda channel: channel.basic_publish("nosuch", "key", b""))


def no_vhost(scene: Scene) -> None:
    scene.fails(lambda: pika.BlockingConnection(scene.parameters(virtual_host="nosuch")))


def no_bind_source(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel)
        on_channel(scene, lambda other: other.queue_bind("work", "nosuch", "key"))


# --- Acknowledgements, consumers --------------------------------------------------------------------------------------


def unknown_tag(scene: Scene) -> None:
    on_channel(scene, lambda channel: channel.basic_ack(4711))


def double_ack(scene: Scene) -> None:
    def act(channel: BlockingChannel) -> None:
        name = queue(channel)
        channel.basic_publish("", name, b"")
        while (method := channel.basic_get(name)[0]) is None:
            pass
        channel.basic_ack(method.delivery_tag)
        channel.basic_ack(method.delivery_tag)

    on_channel(scene, act)


def delivery_timeout(scene: Scene) -> None:
    """A delivery that stays without an acknowledgement, until 4.2: the channel is closed."""
    scene.node.set_delivery_timeout(1, read_every=0.5)
    try:
        with scene.opened() as client:
            hold(scene, client)
            scene.keep(client.farewell())
    finally:
        scene.node.set_delivery_timeout(1800, read_every=60)


def hold(scene: Scene, client: RawClient, **arguments: Any) -> None:
    """Let the client take a message of a quorum queue, and not acknowledge it."""
    client.method(commands.Queue.Declare(queue="slow", durable=True, arguments={"x-queue-type": "quorum"}))
    client.expect(commands.Queue.DeclareOk)
    client.method(commands.Basic.Consume(queue="slow", consumer_tag="worker-1", arguments=arguments))
    client.expect(commands.Basic.ConsumeOk)
    with scene.channel() as channel:
        channel.basic_publish("", "slow", b"")


def delivery_timeout_43(scene: Scene) -> None:
    """From 4.3 on, as told to a client that cannot be told of a cancelled consumer."""
    with scene.raw(consumer_cancel_notify=False) as client:
        hold(scene, client.login(), **{"x-consumer-timeout": 500})
        scene.keep(client.farewell())


def consumer_tag_twice(scene: Scene) -> None:
    with scene.opened() as client:
        client.method(commands.Queue.Declare(queue="work", durable=True))
        client.method(commands.Basic.Consume(queue="work", consumer_tag="worker-1"))
        client.method(commands.Basic.Consume(queue="work", consumer_tag="worker-1"))
        scene.keep(client.farewell())


def exclusive_queue(scene: Scene) -> None:
    with scene.channel() as channel:
        channel.queue_declare("mine", exclusive=True)
        on_channel(scene, lambda other: other.queue_declare("mine", exclusive=True))


def exclusive_consumer(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel)
        channel.basic_consume("work", nothing, exclusive=True)
        on_channel(scene, lambda other: other.basic_consume("work", nothing))


def delete_used(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel)
        channel.basic_consume("work", nothing)
        on_channel(scene, lambda other: other.queue_delete("work", if_unused=True))


def delete_full(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel, "full")
        channel.confirm_delivery()
        channel.basic_publish("", "full", b"")
        on_channel(scene, lambda other: other.queue_delete("full", if_empty=True))


def delete_bound_exchange(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel)
        channel.exchange_declare("bound")
        channel.queue_bind("work", "bound", "key")
        on_channel(scene, lambda other: other.exchange_delete("bound", if_unused=True))


def get_from_single_active(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel, "single", x_queue_type="quorum", x_single_active_consumer=True)
        channel.basic_consume("single", nothing)
        on_channel(scene, lambda other: other.basic_get("single"))


def large_message(scene: Scene) -> None:
    with maximum_message(scene, 1000):
        on_channel(scene, lambda channel: channel.basic_publish("", "work", b"x" * 2000))


@contextmanager
def maximum_message(scene: Scene, size: int) -> Iterator[None]:
    """Have a smaller maximum for messages, as of channels opened from now on; 3.10 keeps it elsewhere than 4.x."""
    old = scene.node.eval("application:get_env(rabbit, max_message_size, 134217728)").removeprefix("{ok,").strip(" }")
    for value in (size, old):
        scene.node.eval(
            f"application:set_env(rabbit, max_message_size, {value}), persistent_term:put(max_message_size, {value})"
        )
        if value == size:
            yield


def confirm_in_transaction(scene: Scene) -> None:
    def act(channel: BlockingChannel) -> None:
        channel.tx_select()
        channel.confirm_delivery()

    on_channel(scene, act)


def commit_without_transaction(scene: Scene) -> None:
    on_channel(scene, lambda channel: channel.tx_commit())


def immediate(scene: Scene) -> None:
    with scene.opened() as client:
        client.method(commands.Basic.Publish(exchange="", routing_key="work", immediate=True))
        client.send(b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + bytes(8) + b"\x00\x00\xce")
        scene.keep(client.farewell())


def prefetch_size(scene: Scene) -> None:
    with scene.opened() as client:
        client.method(commands.Basic.Qos(prefetch_size=1000))
        scene.keep(client.farewell())


def other_user_id(scene: Scene) -> None:
    on_channel(
        scene, lambda channel: channel.basic_publish("", "work", b"", spec.BasicProperties(user_id="somebody-else"))
    )


def text_expiration(scene: Scene) -> None:
    on_channel(
        scene, lambda channel: channel.basic_publish("", "work", b"", spec.BasicProperties(expiration="10 minutes"))
    )


# --- Errors that no entry of the catalogue is about -------------------------------------------------------------------


def odd_channel_error(scene: Scene) -> None:
    """A header that the broker reads itself, with a value that it cannot read."""
    on_channel(scene, lambda channel: channel.basic_publish("", "work", b"", spec.BasicProperties(headers={"CC": 5})))


def odd_connection_error(scene: Scene) -> None:
    """A method of a channel on channel 0, which is the connection's own."""
    with scene.opened() as client:
        client.method(commands.Basic.Ack(1), 0)
        scene.keep(client.farewell())
