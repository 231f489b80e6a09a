"""
The part of rocketmq-python-client that the adapter uses. No other module imports the library.

The library's `SimpleConsumer` receives, and its `Producer` sends. Both are thread-safe, and block.
This was tried with version 5.1.2:

- A consumer never recovers from the restart of its proxy. So when a call of a `GrpcSession` fails, the adapter closes the session, and opens a new session.
  The handles of the old session are valid in the new session.
- After a failed renewal, the library forgets the message's handle. So a `Received` keeps the last good handle.
- The library reports a failed query of a route only to its log. So `Sender.route` uses the library's own `rpc_client`.
- A body that the library cannot decompress fails the whole receive, again and again. A small compressed body can fill the memory.
  So this module decompresses in place of the library.
- At its import, the library opens a log file below `$HOME/logs`. This module closes the file, and gives the lines to Python's logging.
- While a proxy is away, callbacks of the library log errors and raise them again, and Python prints these errors.
  At the end of the process, asyncio prints warnings about tasks that still wait.
  A sender is a user's program, so this module drops these errors and warnings.
"""

from __future__ import annotations

import importlib
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from steadyworker.errors import ConfigError
from steadyworker.network.errors import Hop, at_hop
from steadyworker_rocketmq.errors import BAD_REQUEST, ProxyError
from steadyworker_rocketmq.hops import of_endpoints
from steadyworker_rocketmq.messages import COMPRESSION, WireMessage
from steadyworker_rocketmq.stored import LARGEST_BODY
from steadyworker_rocketmq.url import RocketmqUrl

_DEBUG = 10
"""Python's log level `DEBUG`."""

EARLY_FOR, EARLY_EVERY = 30.0, 0.5
"""Seconds for which a proxy may not know a new session, and seconds between two calls in this time."""

_REQUEST_WITHIN = 10
"""The limit of a request in seconds."""

POLL_WITHIN = 5
"""Seconds for which a proxy waits for a message before it replies that there is none; it waits for at least 5 s (tried)."""


def _library() -> Any:
    """Import the library, with its log lines in Python's logging; raises ConfigError."""
    try:
        rocketmq = importlib.import_module("rocketmq")
    except ModuleNotFoundError as error:
        if error.name != "rocketmq":
            raise
        raise ConfigError(
            "Expected the client library rocketmq-python-client for rocketmq+grpc: URLs, but it is not installed: "
            "pip install 'steadyworker[rocketmq-grpc]'.",
            id="config.no-adapter",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"Expected a home directory in which rocketmq-python-client can write its log, got: {error}: "
            "set the environment variable HOME to a directory that this user can write.",
            id="config.no-adapter",
        ) from error
    if not hasattr(rocketmq, "SimpleConsumer"):
        raise ConfigError(
            "Expected the client library rocketmq-python-client for rocketmq+grpc: URLs, got rocketmq-client-python, "
            "which has the same import name: pip uninstall rocketmq-client-python, and then "
            "pip install --force-reinstall rocketmq-python-client.",
            id="config.no-adapter",
        )
    return rocketmq


def _quiet(log: Any) -> None:
    """Close the library's log file, and show its lines at log level debug only, because the adapter reports the same facts."""
    for handler in [*log.handlers]:
        log.removeHandler(handler)
        handler.close()
    log.propagate = True
    log.setLevel("INFO" if log.parent.isEnabledFor(_DEBUG) else "CRITICAL")
    log.manager.getLogger("concurrent.futures").addFilter(_is_not_of_the_library)


def _is_not_of_the_library(record: Any) -> bool:
    """Return False for the log line by which Python prints the error of a callback of the library."""
    raised = record.exc_info[2] if record.exc_info else None
    called = raised.tb_next if raised else None
    return called is None or not called.tb_frame.f_globals.get("__name__", "").startswith("rocketmq.")


def _started(client: Any) -> Any:
    """Start a client of the library. The texts that its event loop would print go to the library's log, at level debug."""

    def log(_: object, context: Mapping[str, Any]) -> None:
        _log.info(context.get("message", ""), exc_info=context.get("exception"))

    client.rpc_client.get_channel_io_loop().set_exception_handler(log)
    client.startup()
    return client


class _Compressed(bytes):
    """A body that cannot be decompressed, in its received form."""

    __slots__ = ()


def _decompressed(body: bytes) -> bytes:
    """Decompress a body that the proxy marks as compressed. Return the body unchanged if it is not zlib or gzip, or is too large."""
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)  # either of the two
    try:
        plain = stream.decompress(body, LARGEST_BODY)
    except zlib.error:
        return _Compressed(body)
    return plain if stream.eof else _Compressed(body)


_rocketmq = _library()
_log = importlib.import_module("rocketmq.v5.log").logger
_quiet(_log)
importlib.import_module("rocketmq.v5.util").Misc.uncompress_bytes_gzip = staticmethod(_decompressed)
_IllegalArgument = importlib.import_module("rocketmq.v5.exception").IllegalArgumentException
_protocol = importlib.import_module("rocketmq.grpc_protocol")
_Checker = importlib.import_module("rocketmq.v5.util").MessagingResultChecker


@contextmanager
def _as_proxy_error(client: Any = None) -> Iterator[None]:
    """
    Turn each error of the library into a ProxyError. The error text never has a secret.

    `client` is the library's client that made the call. If the proxy gave the address of the call, the error names this address.
    """
    try:
        yield
    except ProxyError:
        raise
    except _IllegalArgument as error:  # an error of the library itself, which then sent no request
        raise ProxyError(str(error), BAD_REQUEST) from error
    except Exception as error:
        code = getattr(error, "code", 0)
        if callable(code):  # gRPC's own error
            status = getattr(code(), "name", "")
            found = ProxyError(getattr(error, "details", lambda: "")() or "no details", status=status)
            at_hop(found, _led_to(client))
            raise found from error
        text = error.args[0] if error.args else type(error).__name__
        raise ProxyError(str(text), int(code or 0)) from error


def _led_to(client: Any) -> Hop | None:
    """Return the addresses that a proxy gave this client; None if they are the URL's addresses, or are unknown."""
    if client is None:
        return None
    proxies = str(client.client_configuration.rpc_endpoints)  # addresses, with a comma between two
    given = {str(each) for each in client.route_manager.get_all_endpoints().values()}
    away = sorted(each for each in given if not {*each.split(",")} <= {*proxies.split(",")})
    return of_endpoints(away, proxies) if away else None


def _configuration(url: RocketmqUrl) -> Any:
    endpoints = ";".join(map(str, url.addresses))
    credentials = _rocketmq.Credentials(url.user or "", url.password)
    return _rocketmq.ClientConfiguration(endpoints, credentials, request_timeout=_REQUEST_WITHIN)


def _message(topic: str, wire: WireMessage) -> Any:
    message = _rocketmq.Message()
    message.topic = topic
    message.body = wire.body
    if wire.tag:
        message.tag = wire.tag
    for key in wire.keys:
        message.keys = key
    for name, text in wire.properties.items():
        message.add_property(name, text)
    return message


def _wire(message: Any) -> WireMessage:
    body, properties = message.body or b"", dict(message.properties)
    if isinstance(body, _Compressed):
        body, properties = bytes(body), {**properties, COMPRESSION: "an unknown compression"}
    return WireMessage(body, properties, message.tag or None, tuple(sorted(key for key in message.keys if key)))


@dataclass(slots=True, eq=False)
class Received:
    """
    One message that a session received.

    Attributes:
        wire: The message.
        id: The message's id, which is the same in each redelivery.
        attempt: The number of this delivery, from 1.
        born_at: The time at which the message was sent, in seconds since 1970; None if it is unknown.
        handle: The last handle that the proxy gave.
    """

    wire: WireMessage
    id: str
    attempt: int
    born_at: float | None
    handle: str
    _message: Any

    @classmethod
    def of(cls, message: Any) -> Received:
        """Return the parts of the library's message that the adapter needs."""
        born = message.born_timestamp
        return cls(
            _wire(message), message.message_id, message.delivery_attempt or 1, born / 1000 if born else None,
            message.receipt_handle, message,
        )  # fmt: skip


class GrpcSession:
    """
    One member of a consumer group. It receives from one topic.

    Args:
        url: The proxies.
        group: The consumer group.
        topic: The topic, which must exist.
    """

    def __init__(self, url: RocketmqUrl, group: str, topic: str) -> None:
        self._group = group
        with _as_proxy_error():
            self._consumer = _started(
                _rocketmq.SimpleConsumer(
                    _configuration(url),
                    group,
                    {topic: _rocketmq.FilterExpression()},
                    await_duration=POLL_WITHIN,
                    tls_enable=url.tls,
                )
            )

    def receive(self, most: int, invisible: int) -> list[Received]:
        """Return at most `most` messages, or none after a while; raises ProxyError."""
        with _as_proxy_error(self._consumer):
            return [Received.of(message) for message in self._consumer.receive(most, invisible)]

    def renew(self, received: Received, invisible: int) -> None:
        """Hide the message from other members for `invisible` seconds from now; raises ProxyError."""
        received._message.receipt_handle = received.handle  # noqa: SLF001
        with _as_proxy_error(self._consumer):
            self._consumer.change_invisible_duration(received._message, invisible)  # noqa: SLF001
        received.handle = received._message.receipt_handle  # noqa: SLF001

    def ack(self, received: Received) -> None:
        """Acknowledge the message; raises ProxyError."""
        received._message.receipt_handle = received.handle  # noqa: SLF001
        with _as_proxy_error(self._consumer):
            self._consumer.ack(received._message)  # noqa: SLF001

    def forward(self, received: Received) -> None:
        """
        Let the broker move the message to the topic `%DLQ%<group>`, and acknowledge the message; raises ProxyError.

        The broker copies the whole message that it has stored. So only the broker's limits apply, not the proxy's limits (tried with 5.4.0).
        """
        consumer, message = self._consumer, received._message  # noqa: SLF001
        request = _protocol.ForwardMessageToDeadLetterQueueRequest()
        request.group.name, request.topic.name = self._group, message.topic
        request.receipt_handle, request.message_id = received.handle, received.id
        request.delivery_attempt = request.max_delivery_attempts = received.attempt
        with _as_proxy_error(consumer):
            reply = consumer.rpc_client.forward_message_to_dead_letter_queue_async(
                message.endpoints, request, metadata=consumer.sign(), timeout=_REQUEST_WITHIN
            ).result()
            _Checker.check(reply.status)

    def close(self) -> None:
        """Leave the group, and close. A poll under way ends with a ProxyError."""
        with suppress(Exception):  # The session is not used again, and the proxy notices the end of the connection.
            self._consumer.shutdown()


class Sender:
    """
    The producer of one process at some proxies; thread-safe.

    Attributes:
        failure: The error because of which the sender was closed; None while it is open.
          The sender's other calls under way end with a `CancelledError`, which names no cause.
    """

    failure: ProxyError | None = None

    def __init__(self, url: RocketmqUrl) -> None:
        with _as_proxy_error():
            self._producer = _started(_rocketmq.Producer(_configuration(url), tls_enable=url.tls))

    def route(self, topic: str) -> frozenset[str]:
        """Return the types of messages that a topic accepts; raises ProxyError if no proxy replies, or if there is no such topic."""
        configuration = self._producer.client_configuration
        request = _protocol.QueryRouteRequest()
        request.topic.name = topic
        request.endpoints.CopyFrom(configuration.rpc_endpoints.endpoints)
        with _as_proxy_error():
            reply = self._producer.rpc_client.query_topic_route_async(
                configuration.rpc_endpoints, request, metadata=self._producer.sign(), timeout=_REQUEST_WITHIN
            ).result()
            _Checker.check(reply.status)
        kinds = {kind for queue in reply.message_queues for kind in queue.accept_message_types}
        return frozenset(map(_protocol.MessageType.Name, kinds))

    def send(self, topic: str, wire: WireMessage, due: float = 0.0) -> None:
        """
        Send a message, and return when the broker has stored it.

        Args:
            topic: The topic. Its type must be DELAY if `due` is given, otherwise NORMAL.
            wire: The message.
            due: The time at which the broker delivers the message, in seconds since 1970.

        Raises:
            ProxyError: The proxy refused the message, or did not name a broker for it (`unsent`). Otherwise it is unknown whether
                the broker has the message.
        """
        with _as_proxy_error(self._producer):
            message = _message(topic, wire)
            if due:
                message.delivery_timestamp = math.ceil(due)
            try:
                self._producer.send(message)
            except Exception as error:
                if not str(error).startswith("failed to fetch topic"):
                    raise
                self._known(topic)
                self._producer.send(message)

    def _known(self, topic: str) -> None:
        """Raise the error because of which the library could not fetch a topic's route. The library only logs this error. No message was sent."""
        try:
            self.route(topic)
        except ProxyError as error:
            error.unsent = True
            raise

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self._producer.shutdown()


class HalfMessage:
    """
    A half message: the broker has stored it, but delivers it to no consumer before the decision.

    Attributes:
        id: The message's id.
    """

    def __init__(self, transaction: Any) -> None:
        self.id = str(transaction.message_id)
        self._transaction = transaction

    def end(self, *, commit: bool) -> None:
        """Send the decision to the broker; raises ProxyError."""
        with _as_proxy_error():
            (self._transaction.commit if commit else self._transaction.rollback)()


class TransactionSender(Sender):
    """
    A producer of transaction messages; thread-safe.

    Args:
        url: The proxies.
        topics: The topics for which the proxy asks this producer.
        check: Called in a thread of the library with a message's topic and id. Returns True to commit, and False to roll back.
    """

    def __init__(
        self, url: RocketmqUrl, topics: Sequence[str], check: Callable[[str, WireMessage, str], bool | None]
    ) -> None:
        resolution = _rocketmq.TransactionResolution
        answers: dict[bool | None, Any] = {True: resolution.COMMIT, False: resolution.ROLLBACK}

        class Checker(_rocketmq.TransactionChecker):  # type: ignore[misc, name-defined]
            def check(self, message: Any) -> Any:
                answer = check(message.topic, _wire(message), message.message_id)
                return answers.get(answer, resolution.TRANSACTION_RESOLUTION_UNSPECIFIED)

        with _as_proxy_error():
            producer = _rocketmq.Producer(_configuration(url), topics, checker=Checker(), tls_enable=url.tls)
            self._producer = _started(producer)

    def half(self, topic: str, wire: WireMessage) -> HalfMessage:
        """Send a half message; raises ProxyError."""
        with _as_proxy_error(self._producer):
            transaction = self._producer.begin_transaction()
            self._producer.send(_message(topic, wire), transaction)
            return HalfMessage(transaction)
