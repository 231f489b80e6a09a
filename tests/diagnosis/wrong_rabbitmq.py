"""What clients, users and operators do wrong at RabbitMQ, one of each kind; and the entries that explain it."""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pika
from pamqp import commands, frame
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.brokers.process import free_ports
from tests.brokers.rabbitmq import Node, Vhost
from tests.diagnosis.amqp_client import OPENING, RawClient
from tests.support.stage import eventually

GONE = "amqp.closed-unexpectedly"
NEWEST, BELOW_4_3 = {"4.3"}, {"3.10", "4.0"}
"""Series of RabbitMQ."""


@dataclass
class Scene:
    """A broker and a virtual host, where one thing goes wrong; `texts` is what the client's log has of it."""

    node: Node
    vhost: Vhost
    texts: list[str] = field(default_factory=list)

    def raw(self, **capabilities: bool) -> RawClient:
        """Return a client that has only connected."""
        client = RawClient(self.vhost.url)
        client.capabilities.update(capabilities)
        return client

    def parameters(self, **changes: Any) -> pika.URLParameters:
        """Return pika's parameters for this virtual host, with these changes."""
        parameters = pika.URLParameters(self.vhost.url)
        for name, value in {"stack_timeout": 30, "socket_timeout": 30, **changes}.items():
            setattr(parameters, name, value)
        return parameters

    @contextmanager
    def connection(self, **changes: Any) -> Iterator[pika.BlockingConnection]:
        """Yield a connection of pika's; its end is silent, even where the broker has ended it."""
        connection = pika.BlockingConnection(self.parameters(**changes))
        try:
            yield connection
        finally:
            with suppress(AMQPError):
                connection.close()

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        with self.connection() as connection:
            yield connection.channel()

    def wait_for_silence(self) -> None:
        """Wait until the broker has closed the connections of this provocation, and until its log has that."""
        mark = f"silence {time.monotonic_ns()}"
        of_vhost = f'(catch rabbit_networking:connection_info(P, [vhost])) =:= [{{vhost, <<"{self.vhost.name}">>}}]'
        open_ = f"[P || P <- rabbit_networking:connections(), {of_vhost}]"
        look = f'case {open_} of [] -> logger:notice("{mark}"), silent; Some -> length(Some) end'
        eventually(lambda: self.node.eval(look) == "silent", "every connection closed")
        eventually(lambda: mark.encode() in self.node.log.read_bytes(), f"{mark!r} in the broker's log")

    @contextmanager
    def keeping_warnings(self) -> Iterator[None]:
        """Keep pika's own warnings and errors, too, as Python's usual format writes them."""
        handler, logger = logging.Handler(logging.WARNING), logging.getLogger("pika")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

        def emit(record: logging.LogRecord) -> None:
            record.exc_info = record.exc_text = None
            self.texts.append(handler.format(record))

        handler.emit = emit  # type: ignore[method-assign]
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def fails(self, action: Callable[[], object]) -> None:
        """Run what must fail, and keep its exception as a log has it."""
        try:
            action()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what is looked for
            self.texts.append(as_logged(error))
            return
        raise AssertionError(f"expected {action} to fail, and it did not")


def as_logged(error: BaseException) -> str:
    """Return an exception as the last line of its traceback has it."""
    return "".join(traceback.format_exception_only(error)).strip()


def queue(channel: BlockingChannel, name: str = "work", **arguments: object) -> str:
    """Declare a durable queue with these arguments (`x_message_ttl` for `x-message-ttl`), and return its name."""
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=named or None)
    return name


def on_channel(scene: Scene, action: Callable[[BlockingChannel], object]) -> None:
    """Run on a fresh channel what the broker answers with a close, sooner or later."""
    with scene.connection() as connection:
        channel = connection.channel()

        def act() -> None:
            action(channel)
            for _ in range(3):  # the broker answers them in order, and so the close is there before the second answer
                channel.basic_qos(prefetch_count=1)

        scene.fails(act)


# --- Bytes ------------------------------------------------------------------------------------------------------------


def sent(scene: Scene, *what: bytes) -> None:
    """Send these bytes on an open connection, and keep the broker's last word."""
    with scene.raw().login() as client:
        client.send(b"".join(what))
        scene.texts.append(client.farewell())


def second_header(scene: Scene) -> None:
    sent(scene, OPENING)


def method_in_content(scene: Scene) -> None:
    publish, other = commands.Basic.Publish(routing_key="work"), commands.Basic.Qos(prefetch_count=1)
    sent(scene, frame.marshal(publish, 1), frame.marshal(other, 1))


def http_at_start(scene: Scene) -> None:
    with scene.raw() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        client.until_closed()


def tick_missed(scene: Scene) -> None:
    """A client that is alive, but sends no heartbeats."""
    with scene.raw().login(heartbeat=1) as client:
        client.until_closed()


def gone(scene: Scene) -> None:
    """A client whose process ends without a close."""
    scene.raw().login().socket.close()


# --- Requests, rights, limits -----------------------------------------------------------------------------------------


def hold(scene: Scene, client: RawClient, **arguments: Any) -> None:
    """Let the client take a message of a quorum queue, and not acknowledge it until the broker ends it."""
    with client:
        client.method(commands.Queue.Declare(queue="slow", durable=True, arguments={"x-queue-type": "quorum"}))
        client.expect(commands.Queue.DeclareOk)
        client.method(commands.Basic.Consume(queue="slow", consumer_tag="worker-1", arguments=arguments))
        client.expect(commands.Basic.ConsumeOk)
        with scene.channel() as channel:
            channel.basic_publish("", "slow", b"")
        scene.texts.append(client.farewell())


def delivery_timeout(scene: Scene) -> None:
    """A delivery that stays without an acknowledgement, until 4.2: the channel is closed."""
    scene.node.set_delivery_timeout(1, read_every=0.5)
    try:
        hold(scene, scene.raw().login())
    finally:
        scene.node.set_delivery_timeout(1800, read_every=60)


def delivery_timeout_43(scene: Scene) -> None:
    """From 4.3 on, as told to a client that cannot be told of a cancelled consumer."""
    hold(scene, scene.raw(consumer_cancel_notify=False).login(), **{"x-consumer-timeout": 500})


def other_ttl(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel, "ttl")
    on_channel(scene, lambda channel: queue(channel, "ttl", x_message_ttl=1000))


def double_ack(scene: Scene) -> None:
    def act(channel: BlockingChannel) -> None:
        name = queue(channel)
        channel.basic_publish("", name, b"")
        while (method := channel.basic_get(name)[0]) is None:
            pass
        channel.basic_ack(method.delivery_tag)
        channel.basic_ack(method.delivery_tag)

    on_channel(scene, act)


def wrong_password(scene: Scene) -> None:
    credentials = pika.PlainCredentials(scene.vhost.user, "wrong")
    scene.fails(lambda: pika.BlockingConnection(scene.parameters(credentials=credentials)))


def may_not_configure(scene: Scene) -> None:
    path = f"permissions/{scene.vhost.name}/{scene.vhost.user}"
    whole = {"configure": ".*", "write": ".*", "read": ".*"}
    scene.node.management("PUT", path, {**whole, "configure": "^$"})
    try:
        on_channel(scene, lambda channel: queue(channel, "new"))
    finally:
        scene.node.management("PUT", path, whole)


# --- The broker's own state, and its operators ------------------------------------------------------------------------


def memory_alarm(scene: Scene) -> None:
    """Publish while an alarm is on; pika gives up after `blocked_connection_timeout`."""
    scene.node.set_memory_alarm(on=True)
    try:
        with scene.connection(blocked_connection_timeout=0.5) as connection:
            channel = connection.channel()
            channel.confirm_delivery()

            def publish() -> None:
                for _ in range(100):  # the first is still taken: it is what makes this a connection that publishes
                    channel.basic_publish("", "work", b"")

            scene.fails(publish)
    finally:
        scene.node.set_memory_alarm(on=False)


def closed_while_idle(scene: Scene, act: Callable[[], object]) -> None:
    """An idle connection that something ends: `act`."""
    with scene.connection() as connection:
        act()
        scene.fails(lambda: connection.process_data_events(time_limit=30))


def closed_by_operator(scene: Scene) -> None:
    """As `rabbitmqctl close_connection PID EXPLANATION` does it."""
    close = 'rabbit_networking:close_connection(P, "maintenance at 10")'
    closed_while_idle(scene, lambda: scene.node.eval(f"[{close} || P <- rabbit_networking:connections()]"))


def shutdown(scene: Scene) -> None:
    """A node that an operator stops, and starts again."""
    closed_while_idle(scene, scene.node.stop)
    scene.node.start()


def unknown_ca(scene: Scene) -> None:
    """A client that trusts others than the authority that signed the broker's certificate."""
    with socket.create_connection(("127.0.0.1", scene.node.amqps), timeout=30) as plain:
        scene.fails(lambda: ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1"))


@contextmanager
def awaited(scene: Scene, text: str) -> Iterator[None]:
    """Wait at the end until the broker's log has this, since the beginning."""
    began = scene.node.log.stat().st_size
    yield
    eventually(lambda: text.encode() in scene.node.log.read_bytes()[began:], f"{text!r} in the broker's log")


def dead_letter_cycle(scene: Scene) -> None:
    """A queue whose expired messages come back to it."""
    with scene.channel() as channel, awaited(scene, "cycle"):
        queue(channel, "round", x_message_ttl=1, x_dead_letter_exchange="", x_dead_letter_routing_key="round")
        channel.basic_publish("", "round", b"")


def wrong_cookie(scene: Scene) -> None:
    """A command of an operator's whose cookie is not the node's."""
    cookie = scene.node.folder / ".erlang.cookie"
    right = cookie.read_text()

    def write(text: str) -> None:
        cookie.chmod(0o600)
        cookie.write_text(text)
        cookie.chmod(0o400)

    write("wrong")
    try:
        scene.fails(lambda: scene.node.ctl("status"))
    finally:
        write(right)


def in_json(scene: Scene) -> None:
    """A second header, a queue that is not there, and a client that goes, in a log as with `log.file.formatter = json`."""
    swap = (
        "[begin {{ok, Config}} = logger:get_handler_config(Id), {{Form, More}} = maps:get(formatter, Config), "
        "(Form =:= {old}) andalso logger:update_handler_config(Id, formatter, {{{new}, More}}) end || Id <- logger:get_handler_ids()]"
    )
    text, json = "rabbit_logger_text_fmt", "rabbit_logger_json_fmt"
    scene.node.eval(swap.format(old=text, new=json))
    try:
        with awaited(scene, 'unexpectedly closed TCP connection","'):
            sent(scene, OPENING)
            on_channel(scene, lambda channel: channel.queue_declare("nosuch", passive=True))
            gone(scene)
    finally:
        scene.node.eval(swap.format(old=json, new=text))


def wrong_setting(scene: Scene) -> None:
    """A node beside the one that runs, with a typing error in its settings: it does not start, and says why."""
    node, (port,) = scene.node, free_ports(1)
    node.folder.joinpath("wrong.conf").write_text("listeners.tcp.default = 5672\nchannel_mx = 100\n")
    changes = {"RABBITMQ_NODENAME": "other@localhost", "RABBITMQ_DIST_PORT": str(port)}
    environment = {**node._environment(), **changes, "RABBITMQ_CONFIG_FILE": f"{node._inside}/wrong.conf"}
    done = subprocess.run(
        node._server.command, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode, f"expected the node not to start: {done.stdout[-500:]}"
    scene.texts += [done.stdout, done.stderr]


# --- pika -------------------------------------------------------------------------------------------------------------


def tls_port(scene: Scene) -> None:
    scene.fails(lambda: pika.BlockingConnection(scene.parameters(port=scene.node.amqps)))


def unroutable(scene: Scene) -> None:
    with scene.channel() as channel:
        channel.confirm_delivery()
        scene.fails(lambda: channel.basic_publish("", "nosuch", b"", mandatory=True))


def frozen_broker(scene: Scene) -> None:
    """A broker that answers no more: pika looks every heartbeat + 5 s."""
    with scene.connection(heartbeat=1) as connection:
        scene.node.freeze()
        try:
            scene.fails(lambda: connection.process_data_events(time_limit=60))
        finally:
            scene.node.thaw()


def zombie(scene: Scene) -> None:
    """As of 4.3: the broker cancels the consumer of a delivery that took too long, and a late acknowledgement wakes it."""
    with scene.channel() as channel:
        queue(channel, "slow", x_queue_type="quorum")
        channel.basic_publish("", "slow", b"")
        taken: list[int] = []
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(
            "slow",
            lambda _, method, *__: taken.append(method.delivery_tag),
            arguments={"x-consumer-timeout": 300},
        )
        while channel.consumer_tags:
            channel.connection.process_data_events(time_limit=0.1)
        channel.basic_ack(taken[0])
        channel.basic_publish("", "slow", b"")
        while not any("Unexpected delivery" in text for text in scene.texts):
            channel.connection.process_data_events(time_limit=0.1)


# --- What the catalogue has to find -----------------------------------------------------------------------------------

Act = Callable[[Scene], object]


@dataclass(frozen=True)
class Case:
    """
    One provocation, and what the catalogue has to find.

    Attributes:
        act: What goes wrong.
        broker: The ids in the broker's log.
        client: The ids in what pika, or the raw client, said.
        also: Ids that may be found beside them.
        series: The versions that say it; all, if empty.
    """

    act: Act
    broker: set[str]
    client: set[str]
    also: set[str]
    series: frozenset[str]

    @property
    def name(self) -> str:
        return "-".join([self.act.__name__, *sorted(self.series)])


def case(act: Act, broker: str = "", client: str = "", also: str = "", *, series: set[str] | None = None) -> Case:
    return Case(act, set(broker.split()), set(client.split()), set(also.split()), frozenset(series or ()))


def both(act: Act, ids: str, also: str = "", *, series: set[str] | None = None) -> Case:
    """Broker and client say it."""
    return case(act, ids, ids, also, series=series)


CASES = [
    both(second_header, "amqp.second-header"),
    both(method_in_content, "amqp.interleaved-frames"),
    case(http_at_start, "amqp.http-on-port"),
    case(tick_missed, "amqp.missed-heartbeat"),
    case(gone, GONE),
    both(other_ttl, "rabbitmq.inequivalent-argument"),
    both(double_ack, "amqp.unknown-delivery-tag"),
    both(delivery_timeout, "amqp.delivery-timeout", GONE, series=BELOW_4_3),
    both(delivery_timeout_43, "amqp.delivery-timeout", GONE, series=NEWEST),
    both(wrong_password, "rabbitmq.login-refused"),
    both(may_not_configure, "rabbitmq.right-missing"),
    case(memory_alarm, "rabbitmq.memory-alarm", "pika.blocked pika.blocked-timeout", GONE),
    both(closed_by_operator, "amqp.connection-forced"),
    both(shutdown, "rabbitmq.node-shutdown"),
    case(unknown_ca, "tls.client-gave-up", "tls.certificate-not-trusted"),
    case(dead_letter_cycle, "rabbitmq.dead-letter-cycle"),
    case(wrong_cookie, "rabbitmq.wrong-cookie", "rabbitmq.no-link-to-node"),
    case(in_json, f"amqp.second-header rabbitmq.no-queue {GONE}", "amqp.second-header rabbitmq.no-queue"),
    case(wrong_setting, "", "rabbitmq.unknown-setting"),
    case(tls_port, "amqp.plain-on-tls-port", "pika.not-amqp"),
    case(unroutable, "", "pika.unroutable"),
    case(frozen_broker, GONE, "pika.heartbeat-timeout"),
    case(zombie, "", "pika.consumer-timeout-zombie", series=NEWEST),
]
