"""The two brokers behind STOMP, ActiveMQ Classic and Artemis, as far as they differ in frames."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from steadyworker.adapter import Redelivered
from steadyworker.errors import ConfigError

_SERVER = re.compile(r"(?P<name>[A-Za-z-]+)/(?P<version>\d+(?:\.\d+)*)")

Version = tuple[int, ...]
DialectName = Literal["classic", "artemis"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """
    The differences of one broker: what it expects and sends.

    Attributes:
        name: The value of the URL's option `dialect`.
        broker: The broker's name for people.
        prefix: Stands before the name of a queue in a destination.
        sent: Headers of each message to a queue.
        subscribed: Headers of each subscription of a queue.
        dead_letters: The queue to which the broker moves dead letters by default.
        message_id: Returns the id that stays the same in each redelivery.
        redelivered: Returns whether the broker delivered the message before.
        origin: The header with the queue from which the broker moved a dead letter.
        unshown: Returns why the content of a message did not arrive, although the broker has it; None if it arrived.
        moves_refused: The broker moves a message that it gets a NACK for to its dead letters.
            If Classic cannot move it (the queue for dead letters refuses it, or there is none), it confirms the NACK all the same,
            and the message is lost; so NACK is only for a message without its content (`adapter.capabilities`).
    """

    name: str
    broker: str
    prefix: str
    sent: Mapping[str, str]
    subscribed: Mapping[str, str]
    dead_letters: str
    message_id: Callable[[Mapping[str, str]], str | None]
    redelivered: Callable[[Mapping[str, str]], Redelivered]
    origin: str
    unshown: Callable[[Mapping[str, str], bytes], str | None]
    moves_refused: bool

    def destination(self, queue: str) -> str:
        """Return the queue's destination."""
        return self.prefix + queue

    def origin_of(self, headers: Mapping[str, str]) -> str | None:
        """Return the queue from which the broker moved this message; None if it did not."""
        return headers.get(self.origin, "").removeprefix("queue://").removeprefix("/queue/") or None


def _classic_id(headers: Mapping[str, str]) -> str | None:
    return headers.get("message-id") or None


def _classic_redelivered(headers: Mapping[str, str]) -> Redelivered:
    return Redelivered.YES if headers.get("redelivered") == "true" else Redelivered.NO


def _artemis_id(headers: Mapping[str, str]) -> str | None:
    """Return the part behind the comma; the part before it names the consumer. A dead letter has the number of its original."""
    return headers.get("_AMQ_ORIG_MESSAGE_ID") or headers.get("message-id", "").partition(",")[2] or None


def _artemis_redelivered(headers: Mapping[str, str]) -> Redelivered:
    """Return UNKNOWN for `false`, because Artemis also sends it with a message that a consumer gave back."""
    return Redelivered.YES if headers.get("redelivered") == "true" else Redelivered.UNKNOWN


_LENGTH = "content-length"
_SENDER = "let the sender send text or bytes"


def _classic_unshown(headers: Mapping[str, str], body: bytes) -> str | None:
    """
    Return the reason for a message without a body and without a length.

    Classic 5.17 to 6.3 sends one for each JMS message that is neither text nor bytes, and for an empty text.
    Nothing else in the frame distinguishes them.
    """
    if body or _LENGTH in headers:
        return None
    got = "expected text or bytes, got a JMS map, object or stream message, or one without content"
    lost = "" if headers.get("persistent") == "true" else "; as it is not persistent, the broker drops it by default"
    return f"{got}, whose content ActiveMQ Classic does not send over STOMP: {_SENDER}, and an empty message with a length{lost}"


def _artemis_unshown(headers: Mapping[str, str], body: bytes) -> str | None:
    """
    Return the reason for a message that Artemis sends as a text although it is none.

    Artemis 2.55 writes the length of a bytes message before the message-id, and that of a text behind it.
    It writes no length of an empty message, unless a STOMP client has sent it with one.
    The content of a map reads as nothing, or as a text that begins with NUL; that of an object reads as nothing.
    Large messages arrive whole, and those that a client has compressed arrive uncompressed.
    """
    names = [*headers, _LENGTH, "message-id"]
    has_length, is_bytes = _LENGTH in headers, names.index(_LENGTH) < names.index("message-id")
    if (has_length and is_bytes) or (not body.startswith(b"\0") if body else has_length):
        return None
    got = "expected text or bytes, got a JMS map, object or stream message, or one without content"
    return f"{got}, whose content Artemis does not send over STOMP: {_SENDER}, and an empty message with the header content-length"


# Each broker ignores the other's header: one message until its acknowledgement.
_ONE = {"activemq.prefetchSize": "1", "consumer-window-size": "0"}

CLASSIC = Dialect(
    name="classic",
    broker="ActiveMQ Classic",
    prefix="/queue/",
    sent={"persistent": "true"},
    subscribed=_ONE,
    dead_letters="ActiveMQ.DLQ",
    message_id=_classic_id,
    redelivered=_classic_redelivered,
    origin="original-destination",
    unshown=_classic_unshown,
    moves_refused=True,
)

# Without ANYCAST, an acceptor without prefixes gives each worker a copy, or loses what is sent before the first worker comes.
ARTEMIS = Dialect(
    name="artemis",
    broker="Artemis",
    prefix="",
    sent={"persistent": "true", "destination-type": "ANYCAST"},
    subscribed={**_ONE, "subscription-type": "ANYCAST"},
    dead_letters="DLQ",
    message_id=_artemis_id,
    redelivered=_artemis_redelivered,
    origin="_AMQ_ORIG_QUEUE",
    unshown=_artemis_unshown,
    moves_refused=False,
)

_BY_NAME = {"classic": CLASSIC, "artemis": ARTEMIS}
_BY_SERVER = {"ActiveMQ": CLASSIC, "ActiveMQ-Artemis": ARTEMIS}


def dialect_of(server: str, forced: DialectName | None) -> Dialect:
    """
    Return the dialect of a broker that calls itself `server`, unless the URL forces one.

    Raises:
        ConfigError: The broker is RabbitMQ, or unknown.
    """
    if forced is not None:
        return _BY_NAME[forced]
    found = _SERVER.match(server)
    name = found["name"] if found else ""
    if name == "RabbitMQ":
        raise ConfigError(
            "Expected ActiveMQ Classic or Artemis, got RabbitMQ's STOMP plugin, which can neither delay a message nor count "
            "consumers: connect to RabbitMQ with an amqp:// URL.",
            id="stomp.rabbitmq",
        )
    if name not in _BY_SERVER:
        raise ConfigError(
            f"Expected ActiveMQ Classic or Artemis, got a broker that calls itself {server[:100]!r}: "
            "set ?dialect=classic or ?dialect=artemis in the broker's URL.",
            id="stomp.unknown-broker",
        )
    return _BY_SERVER[name]


def version_of(server: str) -> Version:
    """Return the version in a broker's name for itself; empty if there is none."""
    found = _SERVER.match(server)
    return tuple(map(int, found["version"].split("."))) if found else ()
