"""What a provocation has at hand: a broker, a virtual host of its own, clients that keep the rules and one that breaks them."""

from __future__ import annotations

import logging
import secrets
import ssl
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pika
from pamqp import base, frame
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.brokers.rabbitmq import Node, Vhost
from tests.diagnosis.amqp_client import RawClient
from tests.support.stage import eventually

GONE = "amqp.closed-unexpectedly"
NEWEST, OLDEST, FOUR, BELOW_4_3 = {"4.3"}, {"3.10"}, {"4.0", "4.3"}, {"3.10", "4.0"}
"""Series of RabbitMQ."""


@dataclass
class Scene:
    """A broker and a virtual host, where one thing goes wrong; `texts` is what the client's log has of it."""

    node: Node
    vhost: Vhost
    texts: list[str] = field(default_factory=list)

    # --- Clients ------------------------------------------------------------------------------------------------------

    def raw(self, port: int = 0, **capabilities: bool) -> RawClient:
        """Return a client that has only connected."""
        client = RawClient(self.vhost.url, port=port)
        client.capabilities.update(capabilities)
        return client

    def opened(self, *, heartbeat: int = 0) -> RawClient:
        """Return a raw client with an open connection and channel 1."""
        return self.raw().login(heartbeat=heartbeat)

    @contextmanager
    def connection(self, **parameters: Any) -> Iterator[pika.BlockingConnection]:
        """Yield a connection of pika's; its end is silent, even where the broker has ended it."""
        connection = pika.BlockingConnection(self.parameters(**parameters))
        try:
            yield connection
        finally:
            with suppress(AMQPError):
                connection.close()

    def parameters(self, **changes: Any) -> pika.URLParameters:
        """Return pika's parameters for this virtual host, with these changes."""
        parameters = pika.URLParameters(self.vhost.url)
        for name, value in {"stack_timeout": 30, "socket_timeout": 30, **changes}.items():
            setattr(parameters, name, value)
        return parameters

    @contextmanager
    def channel(self, **parameters: Any) -> Iterator[BlockingChannel]:
        with self.connection(**parameters) as connection:
            yield connection.channel()

    def context(self) -> ssl.SSLContext:
        """Return a context that trusts this node's certificates."""
        return ssl.create_default_context(cafile=str(self.node.ca_file))

    # --- What is kept -------------------------------------------------------------------------------------------------

    def wait_for_silence(self) -> None:
        """Wait until the broker has closed the connections of this provocation, and until its log has that."""
        mark = f"silence {secrets.token_hex(8)}"
        of_vhost = f'(catch rabbit_networking:connection_info(P, [vhost])) =:= [{{vhost, <<"{self.vhost.name}">>}}]'
        open_ = f"[P || P <- rabbit_networking:connections(), {of_vhost}]"
        look = f'case {open_} of [] -> logger:notice("{mark}"), silent; Some -> length(Some) end'
        eventually(lambda: self.node.eval(look) == "silent", "every connection closed")
        eventually(lambda: mark.encode() in self.node.log.read_bytes(), f"{mark!r} in the broker's log")

    @contextmanager
    def keeping_warnings(self) -> Iterator[None]:
        """Keep pika's own warnings and errors, too."""
        handler = _Keeper(self)
        logger = logging.getLogger("pika")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def keep(self, *texts: str) -> None:
        """Keep what a client's log has."""
        self.texts.extend(text for text in texts if text)

    def fails(self, action: Callable[[], object]) -> Exception:
        """Run what must fail, keep its exception as a log has it, and return it."""
        try:
            action()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what is looked for
            self.keep(as_logged(error))
            return error
        raise AssertionError(f"expected {action} to fail, and it did not")


class _Keeper(logging.Handler):
    """A log that a scene keeps, as Python's usual format writes it."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(logging.WARNING)
        self._scene = scene
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        record.exc_info = record.exc_text = None
        self._scene.keep(self.format(record))


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


def nothing(*_: object) -> None:
    """Take a message and do nothing with it."""


# --- What is done wrong, and what the catalogue has to find -----------------------------------------------------------

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
    series: frozenset[str] = frozenset()


def case(
    act: Act,
    broker: str = "",
    client: str = "",
    also: str = "",
    *,
    series: set[str] | None = None,
) -> Case:
    return Case(act, set(broker.split()), set(client.split()), set(also.split()), frozenset(series or ()))


def both(act: Act, ids: str, also: str = "", *, series: set[str] | None = None) -> Case:
    """Broker and client say it."""
    return case(act, ids, ids, also, series=series)


def named(name: str, act: Act) -> Act:
    """Give a provocation its name, which the test shows."""
    act.__name__ = name
    return act


def refused(
    name: str, action: Callable[[BlockingChannel], object], *before: Callable[[BlockingChannel], object]
) -> Act:
    """A request that the broker answers with a close; the others come before it, on another channel."""

    def act(scene: Scene) -> None:
        with scene.channel() as channel:
            for each in before:
                each(channel)
            on_channel(scene, action)

    return named(name, act)


def sends(name: str, *what: bytes | base.Frame, channel: int = 1) -> Act:
    """Bytes and methods that a client sends on an open connection."""

    def act(scene: Scene) -> None:
        with scene.opened() as client:
            for each in what:
                client.send(each if isinstance(each, bytes) else frame.marshal(each, channel))
            scene.keep(client.farewell())

    return named(name, act)


def begins(name: str, data: bytes) -> Act:
    """Bytes that a client sends first."""

    def act(scene: Scene) -> None:
        with scene.raw() as client:
            client.send(data)
            client.until_closed()

    return named(name, act)
