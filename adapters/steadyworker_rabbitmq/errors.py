"""
From what pika, OpenSSL and the operating system raise to our errors: what was expected, what was got, and what to do.

pika wraps its errors in one another, and some are none of its own family (`gaierror`, `SSLError`, `AMQPConnectorStackTimeout`),
so that all of them are taken apart here and nowhere else; the cause is kept.
The texts of the broker are those of RabbitMQ 3.10 to 4.3.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from pika import exceptions
from pika.adapters.utils import connection_workflow

from steadyworker.errors import BrokerUnavailable, ConfigError, SteadyWorkerError

_LISTED = 200
"""Characters of a broker's text that are repeated."""


class Refused(BrokerUnavailable):
    """Credentials, virtual host, certificate or protocol were refused: no waiting heals it, a person must."""


class Silent(Exception):
    """The broker owed us an answer for too long."""


class Foreign(Exception):
    """The peer answered, and not in AMQP 0-9-1."""


def unavailable(error: BaseException, place: str) -> BrokerUnavailable:
    """
    Our error for whatever ended, or prevented, a connection to `place`.

    `Refused` where only a person can help, else BrokerUnavailable: tried again for ever.
    """
    if isinstance(error, BrokerUnavailable):
        return error
    if isinstance(error, ConfigError):
        return _caused(Refused(str(error)), error)
    root = _root(error)
    got, remedy, refused = _judged(root)
    kind = Refused if refused else BrokerUnavailable
    return _caused(kind(f"Expected RabbitMQ at {place} that answers, got: {got}; {remedy}."), error)


@contextmanager
def translated(place: str, to: type[SteadyWorkerError] | None = None) -> Iterator[None]:
    """Raise our error for whatever the client raises inside: what `unavailable` says, or `to` with its text."""
    try:
        yield
    except SteadyWorkerError as error:
        if to is None or isinstance(error, to) or not isinstance(error, BrokerUnavailable):
            raise
        raise to(str(error)) from error
    except Exception as error:
        ours = unavailable(error, place)
        raise (ours if to is None else to(str(ours))) from error


def closed_channel(error: BaseException) -> str:
    """Why a channel ended, as a part of a sentence, with the remedy where there is one."""
    code = getattr(error, "reply_code", 0)
    text = _short(getattr(error, "reply_text", "") or str(error) or type(error).__name__)
    for needle, remedy in _CHANNEL_REMEDIES:
        if needle in text:
            return f"{text} ({code}); {remedy}"
    return f"{text} ({code})" if code else text


def is_missing(error: BaseException) -> bool:
    """Whether a channel was closed because a queue or an exchange is not there."""
    return getattr(error, "reply_code", 0) == _NOT_FOUND


def is_unfit(error: BaseException) -> bool:
    """Whether a channel was closed because a queue is there and is not what was asked for."""
    return getattr(error, "reply_code", 0) == _UNFIT


def is_delivery_timeout(error: BaseException) -> bool:
    """Whether a channel was closed because a delivery was not acknowledged in time (RabbitMQ up to 4.2)."""
    return "delivery acknowledgement on channel" in getattr(error, "reply_text", "")


_NOT_FOUND, _UNFIT = 404, 406
_OUR_CERTIFICATE = re.compile(r"\w+_ALERT_(?:\w*CERTIFICATE\w*|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)")
"""Alerts with which a broker refuses a client's certificate; TLS 1.2 says of none at all that the handshake failed."""

_CHANNEL_REMEDIES = (
    ("access to queue", "grant it with rabbitmqctl set_permissions"),
    ("access to exchange", "grant it with rabbitmqctl set_permissions"),
    ("no queue", "make it, or run once with --topology declare"),
    ("exclusive use", "another consumer has it alone: end that one, or wait until the broker misses its heartbeats"),
    ("locked queue", "another connection has it alone: end that one, or wait until the broker misses its heartbeats"),
    ("unknown delivery tag", "this is a defect of the adapter: please report it"),
)


def _root(error: BaseException) -> BaseException:
    """What is inside pika's wrappings."""
    while True:
        match error:
            case connection_workflow.AMQPConnectionWorkflowFailed(exceptions=[*_, last]):
                error = last
            case connection_workflow.AMQPConnectorPhaseErrorBase(exception=inner):
                error = inner
            case exceptions.AMQPConnectionError(args=[BaseException() as inner]):
                error = inner
            case _:
                return error


def _judged(error: BaseException) -> tuple[str, str, bool]:  # noqa: C901, PLR0911, PLR0912 - one case per kind of error
    """What was got, what to do, and whether it was a refusal."""
    text = repr(error)
    match error:
        case ssl.SSLCertVerificationError(verify_message=message):
            return (
                f"a certificate that is not to be trusted ({message})",
                "name its authority with ?cafile=, and the host as the certificate has it",
                True,
            )
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ssl.SSLSyscallError():
            return ("an end in the middle of the TLS handshake", "see the broker's log, and what stands between", False)
        case ssl.SSLError() | exceptions.IncompatibleProtocolError() if alert := _OUR_CERTIFICATE.search(text):
            return (
                f"a refusal of our certificate, or of our having none ({alert[0]})",
                "have ?certfile= and ?keyfile= name one that is signed by an authority which the broker knows (ssl_options.cacertfile)",
                True,
            )
        case ssl.SSLError():
            return (
                f"no TLS ({getattr(error, 'reason', None) or error})",
                "correct scheme and port: amqps: 5671, amqp: 5672",
                True,
            )
        case exceptions.ProbableAuthenticationError() if "403" in text and "EXTERNAL" in text:
            return (
                f"no login by certificate ({_reply(text)})",
                "make a user of the name in the certificate (ssl_cert_login_from says which), or correct ?certfile=",
                True,
            )
        case exceptions.ProbableAuthenticationError() if "403" in text:
            return (f"no login ({_reply(text)})", "correct user and password in --broker or its file", True)
        case exceptions.AuthenticationError():
            return (
                f"no {error.args[0]} among its ways to log in",
                "enable it in the broker (auth_mechanisms, and rabbitmq_auth_mechanism_ssl), or give the URL a user and a password",
                True,
            )
        case exceptions.ProbableAccessDeniedError() if "530" in text and "is reached" not in text:
            return (
                f"no virtual host ({_reply(text)})",
                "make it and grant it (rabbitmqctl add_vhost, set_permissions), or correct the path of --broker",
                True,
            )
        case exceptions.ProbableAccessDeniedError() if "is reached" in text:
            return (f"too many connections ({_reply(text)})", "raise the limit, or run fewer workers", False)
        case Foreign():
            return (
                "an answer that is not AMQP 0-9-1",
                "correct scheme and port: amqp: 5672, amqps: 5671; the management port is not for this",
                True,
            )
        case exceptions.IncompatibleProtocolError():
            return (
                "a connection that was closed without a word",
                "see whether a broker stands behind that port or load balancer, and whether it wants TLS (amqps:)",
                False,
            )
        case exceptions.ConnectionClosedByBroker(reply_code=code, reply_text=reply):
            return (f"{_short(reply)} ({code})", "see the broker's log", False)
        case exceptions.AMQPHeartbeatTimeout():
            return ("no heartbeat", "see whether the broker is frozen, or a firewall forgets idle connections", False)
        case exceptions.ConnectionBlockedTimeout():
            return ("an alarm that lasts (memory or disk)", "free memory or disk of the broker", False)
        case Silent():
            return (str(error), "see whether the broker is frozen or overloaded", False)
        case socket.gaierror():
            return (f"no address ({error.strerror})", "correct the host in --broker, or the name service", False)
        case connection_workflow.AMQPConnectorStackTimeout() | TimeoutError():
            return ("no answer in time", "see whether the broker is up, and what stands between", False)
        case OSError():
            return (error.strerror or _short(text), "see whether the broker is up, and what stands between", False)
        case _:
            return (_short(text), "see the broker's log", False)


def _reply(text: str) -> str:
    """The broker's own words in the repr of an error."""
    found = re.search(r"\(\d{3}\) '?\"?([^'\"]+)", text)
    return _short(found[1] if found else text)


def _short(text: str) -> str:
    """One bounded line."""
    line = " ".join(text.split())
    return line if len(line) <= _LISTED else line[: _LISTED - 1] + "…"


def _caused(ours: BrokerUnavailable, error: BaseException) -> BrokerUnavailable:
    ours.__cause__ = error
    return ours
