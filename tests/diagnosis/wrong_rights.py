"""Provocations by rights and limits: logins, virtual hosts, permissions, and how many of a thing there may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pika

from tests.brokers.rabbitmq import RabbitMQ
from tests.diagnosis.provocation import FOUR, Scene, both, case, nothing, on_channel, queue

# --- Rights -----------------------------------------------------------------------------------------------------------


def wrong_password(scene: Scene) -> None:
    credentials = pika.PlainCredentials(scene.vhost.user, "wrong")
    scene.fails(lambda: pika.BlockingConnection(scene.parameters(credentials=credentials)))


def unknown_user(scene: Scene) -> None:
    credentials = pika.PlainCredentials("nobody", "wrong")
    scene.fails(lambda: pika.BlockingConnection(scene.parameters(credentials=credentials)))


def closed_vhost(scene: Scene) -> None:
    """A virtual host that is there, and in which the user has no right at all."""
    scene.fails(lambda: pika.BlockingConnection(scene.parameters(virtual_host="/")))


@contextmanager
def limited(scene: Scene, **rights: str) -> Iterator[None]:
    """Have the user with these rights only."""
    path = f"permissions/{scene.vhost.name}/{scene.vhost.user}"
    whole = {"configure": ".*", "write": ".*", "read": ".*"}
    scene.node.management("PUT", path, {**whole, **rights})
    try:
        yield
    finally:
        scene.node.management("PUT", path, whole)


def may_not_configure(scene: Scene) -> None:
    with limited(scene, configure="^$"):
        on_channel(scene, lambda channel: queue(channel, "new"))


def may_not_write(scene: Scene) -> None:
    with limited(scene, write="^$"):
        on_channel(scene, lambda channel: channel.basic_publish("amq.direct", "key", b""))


def may_not_read(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel)
        with limited(scene, read="^$"):
            on_channel(scene, lambda other: other.basic_consume("work", nothing))


def may_not_write_topic(scene: Scene) -> None:
    path = f"topic-permissions/{scene.vhost.name}/{scene.vhost.user}"
    scene.node.management("PUT", path, {"exchange": "amq.topic", "write": "^mine", "read": ".*"})
    try:
        on_channel(scene, lambda channel: channel.basic_publish("amq.topic", "theirs.key", b""))
    finally:
        scene.node.management("DELETE", path)


# --- Limits -----------------------------------------------------------------------------------------------------------


@contextmanager
def limit(scene: Scene, path: str, value: int) -> Iterator[None]:
    scene.node.management("PUT", path, {"value": value})
    try:
        yield
    finally:
        scene.node.management("DELETE", path)


def user_connections(scene: Scene) -> None:
    with limit(scene, f"user-limits/{scene.vhost.user}/max-connections", 0):
        scene.fails(lambda: pika.BlockingConnection(scene.parameters()))


def user_channels(scene: Scene) -> None:
    with limit(scene, f"user-limits/{scene.vhost.user}/max-channels", 0), scene.connection() as connection:
        scene.fails(connection.channel)


def vhost_connections(scene: Scene) -> None:
    with limit(scene, f"vhost-limits/{scene.vhost.name}/max-connections", 0):
        scene.fails(lambda: pika.BlockingConnection(scene.parameters()))


def vhost_queues(scene: Scene) -> None:
    with limit(scene, f"vhost-limits/{scene.vhost.name}/max-queues", 0):
        on_channel(scene, lambda channel: queue(channel, "one-more"))


@contextmanager
def node_limit(scene: Scene, name: str) -> Iterator[None]:
    """Have a limit of the whole node at 0, from 4.0 on."""
    scene.node.eval(f"application:set_env(rabbit, {name}, 0)")
    try:
        yield
    finally:
        scene.node.eval(f"application:set_env(rabbit, {name}, infinity)")


def node_connections(scene: Scene) -> None:
    with node_limit(scene, "connection_max"):
        scene.fails(lambda: pika.BlockingConnection(scene.parameters()))


def node_channels(scene: Scene) -> None:
    with node_limit(scene, "channel_max_per_node"), scene.connection() as connection:
        scene.fails(connection.channel)


# --- The management API -----------------------------------------------------------------------------------------------


def management_password(scene: Scene) -> None:
    _ask(scene, "amqp://nobody:wrong@127.0.0.1")


def management_tag(scene: Scene) -> None:
    """A user whom the broker knows, but who has no tag for the management API."""
    name = scene.vhost.user
    scene.node.management("PUT", f"users/{name}", {"password": scene.vhost.password, "tags": ""})
    try:
        _ask(scene, scene.vhost.url)
    finally:
        scene.node.management("PUT", f"users/{name}", {"password": scene.vhost.password, "tags": "management"})


def _ask(scene: Scene, url: str) -> None:
    asked = RabbitMQ(url, scene.node.management_url)
    try:
        asked.management("GET", "overview")
    except AssertionError as refused:
        scene.keep(str(refused))
    else:
        raise AssertionError("expected the management API to refuse it")


CASES = [
    both(wrong_password, "rabbitmq.login-refused"),
    both(unknown_user, "rabbitmq.login-refused"),
    both(closed_vhost, "rabbitmq.vhost-refused"),
    both(may_not_configure, "rabbitmq.right-missing"),
    both(may_not_write, "rabbitmq.right-missing"),
    both(may_not_read, "rabbitmq.right-missing"),
    both(may_not_write_topic, "rabbitmq.topic-right-missing"),
    both(user_connections, "rabbitmq.user-connection-limit"),
    both(user_channels, "rabbitmq.user-channel-limit"),
    both(vhost_connections, "rabbitmq.vhost-connection-limit"),
    both(vhost_queues, "rabbitmq.vhost-queue-limit"),
    both(node_connections, "rabbitmq.node-connection-limit", series=FOUR),
    both(node_channels, "rabbitmq.node-channel-limit", series=FOUR),
    case(management_password, "rabbitmq.management-login-refused", "", "rabbitmq.login-refused"),
    case(management_tag, "rabbitmq.management-tag-missing"),
]
