"""
The translation of ERROR frames of ActiveMQ Classic and Artemis into SteadyWorker's errors.

`steadyworker.network.errors` translates errors of TLS, host names and sockets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from steadyworker.network.errors import SEE_LOG, Foreign, Judged, Translator, short


class BrokerError(Exception):
    """
    An ERROR frame of the broker.

    Attributes:
        receipt: The refused request; empty if the broker names no request.
    """

    def __init__(self, text: str, receipt: str = "") -> None:
        super().__init__(text)
        self.receipt = receipt

    @classmethod
    def of(cls, headers: Mapping[str, str], body: bytes) -> BrokerError:
        """Return the error of an ERROR frame: the broker's message, and the first line of the body."""
        line = body.decode("utf-8", "replace").strip().partition("\n")[0].strip()
        message = headers.get("message", "").strip()
        message, line = (_DUMP.sub("", text).strip() for text in (message, line))
        # Classic's body has the name of a Java exception, and then repeats the message.
        text = message if not line or (message and message in line) else f"{message}: {line}" if message else line
        return cls(short(text) or "an error without a text", headers.get("receipt-id", ""))


_DUMP = re.compile(r"(?:CoreMessage\[|(?<=Invalid STOMP frame)).*", re.DOTALL)
"""Matches the message or frame that Artemis repeats in its error. An error text must not show this part, because headers can contain secrets."""

_LOGIN = re.compile(
    r"User name .* or password is invalid|password is invalid|AMQ229031|AMQ339013|[Aa]uthentication failed|Security"
)
_RIGHTS = re.compile(r"not authorized|AMQ229032|AMQ229213")
_ADVISORY = re.compile(r"not authorized .*topic://ActiveMQ\.Advisory\.")
"""Classic 5 makes advisory topics for a temporary queue, with the rights of the queue's user."""

_FULL = re.compile(r"AMQ229102|AMQ229119|is full|Usage Manager .* Full")
_TOO_LARGE = re.compile(r"The maximum (?:data length|frame size) was exceeded")
"""Matches the error of Classic 5.18 to 6.3 for a frame above `wireFormat.maxFrameSize` or `maxDataLength`. This error names no receipt."""

_RABBITMQ = re.compile(r"^Bad CONNECT")
_CLIENT_ID_IN_USE = re.compile(r"already connected")


def is_full(error: BaseException) -> bool:
    """Return whether the broker refused a message because the queue or the broker's disk is full."""
    return isinstance(error, BrokerError) and _FULL.search(str(error)) is not None


def is_too_large(error: BaseException) -> bool:
    """Return whether the broker ended the connection because a frame is above its limits."""
    return isinstance(error, BrokerError) and _TOO_LARGE.search(str(error)) is not None


def is_right(error: BaseException) -> bool:
    """Return whether the broker refused a request because the user lacks the right to it."""
    return isinstance(error, BrokerError) and _RIGHTS.search(str(error)) is not None


def _by_broker(error: BrokerError, name: str) -> str:
    """Return the id of the catalogue entry for this error, by the broker that wrote the text. Only Artemis numbers its texts."""
    return f"artemis.{name}" if "AMQ" in str(error) else f"activemq.{name}"


def _judged(error: BaseException) -> Judged | None:  # noqa: PLR0911 - one case per kind of error
    match error:
        case BrokerError() if _RABBITMQ.search(str(error)):
            return Judged(
                f"RabbitMQ's STOMP plugin, which can neither delay a message nor count consumers ({error})",
                "connect to RabbitMQ with an amqp:// URL",
                refused=True,
                id="stomp.rabbitmq",
            )
        case BrokerError() if _ADVISORY.search(str(error)):
            return Judged(
                f"a refusal ({error})",
                "grant the user read, write and admin for the topics ActiveMQ.Advisory.>",
                refused=True,
                id="activemq.advisory-refused",
            )
        case BrokerError() if _RIGHTS.search(str(error)):
            remedy = "grant the user read, write and create for the queue"
            return Judged(f"a refusal ({error})", remedy, refused=True, id=_by_broker(error, "not-authorized"))
        case BrokerError() if _LOGIN.search(str(error)):
            remedy = "correct user and password in --broker or its file"
            return Judged(f"no login ({error})", remedy, refused=True, id=_by_broker(error, "wrong-password"))
        case BrokerError() if _CLIENT_ID_IN_USE.search(str(error)):
            remedy = "wait until the broker notices the end of the earlier connection"
            return Judged(str(error), remedy, id="stomp.client-id-taken")
        case BrokerError():
            return Judged(str(error), SEE_LOG, id="stomp.error-frame")
        case Foreign():
            return Judged(
                "a reply that is not STOMP 1.2",
                "correct the port: ActiveMQ has one for each protocol, and STOMP's is 61613 by default",
                refused=True,
                id="stomp.foreign-reply",
            )
        case _:
            return None


TRANSLATOR = Translator(
    broker="the STOMP broker",
    ports="61612 for stomp+ssl:, 61613 for stomp:",
    trusts="truststore",
    judge=_judged,
)
unavailable, translated = TRANSLATOR.unavailable, TRANSLATOR.translated
