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
from tests.diagnosis.provocation import (
    BELOW_4_3,
    GONE,
    NEWEST,
    Act,
    Scene,
    both,
    case,
    nothing,
    on_channel,
    queue,
    refused,
    sends,
)


def deprecated_features(scene: Scene) -> None:
    """A queue that is neither durable nor exclusive, and a prefetch for the whole channel: 4.3 warns once a day of each."""
    for feature in ("transient_nonexcl_queues", "global_qos"):
        scene.node.eval(f"persistent_term:erase({{rabbit_deprecated_features, {feature}}})")
    with scene.channel() as channel:
        channel.queue_declare("transient", durable=False)
        channel.basic_qos(prefetch_count=1, global_qos=True)


def no_vhost(scene: Scene) -> None:
    scene.fails(lambda: pika.BlockingConnection(scene.parameters(virtual_host="nosuch")))


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


def published(name: str, exchange: str = "", key: str = "work", **properties: Any) -> Act:
    """A message that the broker refuses."""
    about = spec.BasicProperties(**properties)
    return refused(name, lambda channel: channel.basic_publish(exchange, key, b"", about))


def declared(name: str, queue_name: str, **arguments: object) -> Act:
    """A queue that the broker refuses."""
    return refused(name, lambda channel: queue(channel, queue_name, **arguments))


def acknowledged_twice(channel: BlockingChannel) -> None:
    name = queue(channel)
    channel.basic_publish("", name, b"")
    while (method := channel.basic_get(name)[0]) is None:
        pass
    channel.basic_ack(method.delivery_tag)
    channel.basic_ack(method.delivery_tag)


def confirms_in_a_transaction(channel: BlockingChannel) -> None:
    channel.tx_select()
    channel.confirm_delivery()


WORKS = commands.Basic.Consume(queue="work", consumer_tag="worker-1")
EMPTY = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + bytes(8) + b"\x00\x00\xce"
QUORUM = {"x-queue-type": "quorum"}
no_queue = refused("no_queue", lambda channel: channel.queue_declare("nosuch", passive=True))

CASES = [
    both(
        refused("other_durable", lambda ch: ch.queue_declare("work", exclusive=True), queue), "rabbitmq.exclusive-queue"
    ),
    both(
        refused("other_ttl", lambda ch: queue(ch, "ttl", x_message_ttl=1000), lambda ch: queue(ch, "ttl")),
        "rabbitmq.inequivalent-argument",
    ),
    both(
        refused("missing_dlx", lambda ch: queue(ch, "dlx"), lambda ch: queue(ch, "dlx", x_dead_letter_exchange="dlx")),
        "rabbitmq.inequivalent-argument",
    ),
    both(
        refused(
            "other_exchange_type",
            lambda ch: ch.exchange_declare("events", "topic"),
            lambda ch: ch.exchange_declare("events", "direct"),
        ),
        "rabbitmq.inequivalent-argument",
    ),
    both(
        refused(
            "other_queue_type", lambda ch: queue(ch, "quorum"), lambda ch: queue(ch, "quorum", x_queue_type="quorum")
        ),
        "rabbitmq.other-queue-type",
    ),
    both(
        refused("unknown_exchange_type", lambda ch: ch.exchange_declare("delayed", "x-delayed-message")),
        "rabbitmq.unknown-exchange-type",
    ),
    both(declared("text_ttl", "bad-ttl", x_message_ttl="1000"), "rabbitmq.invalid-argument"),
    both(declared("negative_ttl", "bad-ttl", x_message_ttl=-1), "rabbitmq.invalid-argument"),
    both(
        declared("quorum_priority", "bad-quorum", x_queue_type="quorum", x_max_priority=10),
        "rabbitmq.not-for-this-queue-type",
    ),
    both(
        refused("quorum_not_durable", lambda ch: ch.queue_declare("bad-quorum", durable=False, arguments=QUORUM)),
        "rabbitmq.not-for-this-queue-type",
        "rabbitmq.deprecated-feature",
    ),
    both(
        refused(
            "quorum_exclusive",
            lambda ch: ch.queue_declare("bad-quorum", durable=True, exclusive=True, arguments=QUORUM),
        ),
        "rabbitmq.not-for-this-queue-type",
    ),
    both(
        refused(
            "stream_without_prefetch",
            lambda ch: ch.basic_consume("stream", nothing),
            lambda ch: queue(ch, "stream", x_queue_type="stream"),
        ),
        "rabbitmq.stream-without-prefetch",
    ),
    both(declared("reserved_queue", "amq.mine"), "rabbitmq.reserved-name"),
    both(refused("reserved_exchange", lambda ch: ch.exchange_declare("amq.mine")), "rabbitmq.reserved-name"),
    both(refused("default_exchange", lambda ch: ch.queue_bind("work", "", "key"), queue), "rabbitmq.default-exchange"),
    both(published("internal_exchange", "amq.rabbitmq.trace", "key"), "rabbitmq.internal-exchange"),
    case(deprecated_features, "rabbitmq.deprecated-feature", series=NEWEST),
    both(no_queue, "rabbitmq.no-queue"),
    both(published("no_exchange", "nosuch", "key"), "rabbitmq.no-exchange"),
    both(refused("no_bind_source", lambda ch: ch.queue_bind("work", "nosuch", "key"), queue), "rabbitmq.no-exchange"),
    both(no_vhost, "rabbitmq.no-vhost"),
    both(refused("unknown_tag", lambda ch: ch.basic_ack(4711)), "amqp.unknown-delivery-tag"),
    both(refused("double_ack", acknowledged_twice), "amqp.unknown-delivery-tag"),
    both(delivery_timeout, "amqp.delivery-timeout", GONE, series=BELOW_4_3),
    both(delivery_timeout_43, "amqp.delivery-timeout", GONE, series=NEWEST),
    both(
        sends("consumer_tag_twice", commands.Queue.Declare(queue="work", durable=True), WORKS, WORKS),
        "rabbitmq.consumer-tag-reused",
    ),
    both(
        refused(
            "exclusive_queue",
            lambda ch: ch.queue_declare("mine", exclusive=True),
            lambda ch: ch.queue_declare("mine", exclusive=True),
        ),
        "rabbitmq.exclusive-queue",
    ),
    both(
        refused(
            "exclusive_consumer",
            lambda ch: ch.basic_consume("work", nothing),
            queue,
            lambda ch: ch.basic_consume("work", nothing, exclusive=True),
        ),
        "rabbitmq.exclusive-consumer",
    ),
    both(
        refused(
            "delete_used",
            lambda ch: ch.queue_delete("work", if_unused=True),
            queue,
            lambda ch: ch.basic_consume("work", nothing),
        ),
        "rabbitmq.delete-refused",
    ),
    both(
        refused(
            "delete_full",
            lambda ch: ch.queue_delete("full", if_empty=True),
            lambda ch: queue(ch, "full"),
            BlockingChannel.confirm_delivery,
            lambda ch: ch.basic_publish("", "full", b""),
        ),
        "rabbitmq.delete-refused",
    ),
    both(
        refused(
            "delete_bound_exchange",
            lambda ch: ch.exchange_delete("bound", if_unused=True),
            queue,
            lambda ch: ch.exchange_declare("bound"),
            lambda ch: ch.queue_bind("work", "bound", "key"),
        ),
        "rabbitmq.delete-refused",
    ),
    both(
        refused(
            "get_from_single_active",
            lambda ch: ch.basic_get("single"),
            lambda ch: queue(ch, "single", x_queue_type="quorum", x_single_active_consumer=True),
            lambda ch: ch.basic_consume("single", nothing),
        ),
        "rabbitmq.get-with-single-active-consumer",
    ),
    both(large_message, "rabbitmq.message-too-large"),
    both(refused("confirm_in_transaction", confirms_in_a_transaction), "rabbitmq.confirms-and-transactions"),
    both(refused("commit_without_transaction", BlockingChannel.tx_commit), "rabbitmq.not-transactional"),
    both(
        sends("immediate", commands.Basic.Publish(exchange="", routing_key="work", immediate=True), EMPTY),
        "rabbitmq.immediate",
    ),
    both(sends("prefetch_size", commands.Basic.Qos(prefetch_size=1000)), "rabbitmq.prefetch-size"),
    both(published("other_user_id", user_id="somebody-else"), "rabbitmq.wrong-user-id"),
    both(published("text_expiration", expiration="10 minutes"), "rabbitmq.invalid-expiration"),
    both(
        published("odd_channel_error", headers={"CC": 5}), "amqp.channel-error"
    ),  # the broker reads this header itself
    both(sends("odd_connection_error", commands.Basic.Ack(1), channel=0), "amqp.connection-error"),
]
