"""The differences in frames between the two brokers, ActiveMQ Classic and Artemis."""

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
    The frames that one broker expects and sends, as far as the brokers differ.

    Attributes:
        name: The value of the URL's option `dialect`.
        broker: The broker's name in texts for people.
        prefix: The text before the name of a queue in a destination.
        sent: Headers of each message to a queue.
        subscribed: Headers of each subscription to a queue.
        dead_letters: The queue to which the broker moves dead letters by default.
        message_id: Returns the message's id, which stays the same in each redelivery.
        redelivered: Returns whether the broker delivered the message before.
        origin: The header with the queue from which the broker moved a dead letter.
        unshown: Returns why a message's content did not arrive, although the broker has the content; None if the content arrived.
        moves_refused: After a NACK, the broker moves the message to its dead letters.
            Classic cannot move a message if there is no queue for dead letters, or if this queue refuses the message.
            Classic then still confirms the NACK, and the message is lost.
            So NACK is only for a message without its content (`adapter.capabilities`).
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
        """Return the queue from which the broker moved this message; None if the broker did not move the message."""
        return headers.get(self.origin, "").removeprefix("queue://").removeprefix("/queue/") or None


def _classic_id(headers: Mapping[str, str]) -> str | None:
    return headers.get("message-id") or None


def _classic_redelivered(headers: Mapping[str, str]) -> Redelivered:
    return Redelivered.YES if headers.get("redelivered") == "true" else Redelivered.NO


def _artemis_id(headers: Mapping[str, str]) -> str | None:
    """
    Return the part of the header after the comma, which is the message's number.

    The part before the comma names the consumer. A dead letter has the number of the original message.
    """
    return headers.get("_AMQ_ORIG_MESSAGE_ID") or headers.get("message-id", "").partition(",")[2] or None


def _artemis_redelivered(headers: Mapping[str, str]) -> Redelivered:
    """Return UNKNOWN for `false`, because Artemis also sends `false` with a message that a consumer gave back."""
    return Redelivered.YES if headers.get("redelivered") == "true" else Redelivered.UNKNOWN


_LENGTH = "content-length"
_SENDER = "let the sender send text or bytes"


def _classic_unshown(headers: Mapping[str, str], body: bytes) -> str | None:
    """
    Return the reason why the content is missing, for a message without a body and without a length.

    Classic 5.17 to 6.3 sends such a frame for each JMS message that is neither text nor bytes, and for an empty text.
    The frame does not show which of the two cases it is.
    """
    if body or _LENGTH in headers:
        return None
    got = "expected text or bytes, got a JMS map, object or stream message, or one without content"
    lost = "" if headers.get("persistent") == "true" else "; as it is not persistent, the broker drops it by default"
    return f"{got}, whose content ActiveMQ Classic does not send over STOMP: {_SENDER}, and an empty message with a length{lost}"


def _artemis_unshown(headers: Mapping[str, str], body: bytes) -> str | None:
    """
    Return the reason why the content is missing, for a message that Artemis sends as a text although the message is not a text.

    Artemis 2.55 writes the length of a bytes message before the message-id, and the length of a text message after the message-id.
    Artemis writes no length for an empty message, unless a STOMP client has sent the message with a length.
    A map arrives as an empty body, or as a text that begins with NUL. An object arrives as an empty body.
    Large messages arrive whole, and messages that a client has compressed arrive uncompressed.
    """
    names = [*headers, _LENGTH, "message-id"]
    has_length, is_bytes = _LENGTH in headers, names.index(_LENGTH) < names.index("message-id")
    if (has_length and is_bytes) or (not body.startswith(b"\0") if body else has_length):
        return None
    got = "expected text or bytes, got a JMS map, object or stream message, or one without content"
    return f"{got}, whose content Artemis does not send over STOMP: {_SENDER}, and an empty message with the header content-length"


# Each header limits a subscription to one message until its acknowledgement. Each broker reads only one of the headers.
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

# Without ANYCAST, an acceptor without prefixes sends each worker a copy, or loses a message that is sent before the first worker comes.
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
    Return the dialect that the URL forces; otherwise the dialect of the broker whose own name is the argument `server`.

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
    """Return the version in a broker's name for itself; empty if the name has no version."""
    found = _SERVER.match(server)
    return tuple(map(int, found["version"].split("."))) if found else ()


def quoted(text: str) -> str:
    """Return the text as a quoted string for a selector."""
    return "'" + text.replace("'", "''") + "'"
