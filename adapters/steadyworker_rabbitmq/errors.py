"""
Translates the errors of pika, OpenSSL and the operating system into ours.

Each of our messages states what was expected, what was got, and what to do.
pika wraps errors in other errors, and raises some that are not its own (`gaierror`, `SSLError`).
Only this module unwraps them; each of our errors keeps the original error as its cause.
The patterns below match the texts of RabbitMQ 3.10 to 4.3.
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
"""The largest number of characters of a broker's text that a message repeats."""


class Refused(BrokerUnavailable):
    """A refusal of credentials, virtual host, certificate or protocol, which no retry can mend: a person must act."""


class Silent(Exception):
    """A reply of the broker that did not arrive in time."""


class Foreign(Exception):
    """A reply that is not AMQP 0-9-1."""


def unavailable(error: BaseException, place: str) -> BrokerUnavailable:
    """
    Return SteadyWorker's error for an error that ended or prevented a connection to `place`.

    The result is `Refused` if a person must act.
    Otherwise it is a plain BrokerUnavailable, after which the adapter tries again.
    """
    if isinstance(error, BrokerUnavailable):
        return error
    if isinstance(error, ConfigError):
        return _caused(Refused(str(error)), error)
    root = _root(error)
    got, remedy, refused = _judged(root)
    kind = Refused if refused else BrokerUnavailable
    return _caused(kind(f"Expected a connection to RabbitMQ at {place}, got: {got}; {remedy}."), error)


@contextmanager
def translated(place: str, to: type[SteadyWorkerError] | None = None) -> Iterator[None]:
    """
    Translate errors of libraries that are raised in this context, as `unavailable` does.

    If `to` is given, the new error has this type, with the same text.
    """
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
    """Return the cause of a channel's end, as part of a sentence, with the remedy if there is one."""
    code = getattr(error, "reply_code", 0)
    text = _short(getattr(error, "reply_text", "") or str(error) or type(error).__name__)
    for needle, remedy in _CHANNEL_REMEDIES:
        if needle in text:
            return f"{text} ({code}); {remedy}"
    return f"{text} ({code})" if code else text


def is_missing(error: BaseException) -> bool:
    """Return whether the broker closed a channel because a queue or an exchange does not exist."""
    return getattr(error, "reply_code", 0) == _NOT_FOUND


def is_unfit(error: BaseException) -> bool:
    """Return whether the broker closed a channel because a queue differs from the request."""
    return getattr(error, "reply_code", 0) == _UNFIT


def is_delivery_timeout(error: BaseException) -> bool:
    """Return whether the broker closed a channel because a delivery was not acknowledged in time (RabbitMQ up to 4.2)."""
    return "delivery acknowledgement on channel" in getattr(error, "reply_text", "")


_NOT_FOUND, _UNFIT = 404, 406
_OUR_CERTIFICATE = re.compile(r"\w+_ALERT_(?:\w*CERTIFICATE\w*|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)")
"""The TLS alerts by which a broker refuses our certificate; in TLS 1.2, HANDSHAKE_FAILURE means a missing certificate."""

_CHANNEL_REMEDIES = (
    ("access to queue", "grant it with rabbitmqctl set_permissions"),
    (
        "access to exchange 'amq.default'",
        r"grant write access to ^amq\.default$ with rabbitmqctl set_permissions: all that a sender needs if the queues exist",
    ),
    ("access to exchange", "grant it with rabbitmqctl set_permissions"),
    ("no queue", "create it, or run once with --topology declare"),
    ("exclusive use", "end the consumer that uses the queue exclusively, or wait until its heartbeats time out"),
    ("locked queue", "close the connection that uses the queue exclusively, or wait until its heartbeats time out"),
    ("unknown delivery tag", "this is a defect of the adapter: please report it"),
)


def _root(error: BaseException) -> BaseException:
    """Return the error inside pika's wrappers."""
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
    """Return a description of the error, its remedy, and whether it is a refusal."""
    text = repr(error)
    match error:
        case ssl.SSLCertVerificationError(verify_code=9 | 10, verify_message=message):  # not yet valid, or expired
            return (
                f"a certificate that is not valid now ({message})",
                "renew the broker's certificate, or correct the clock of this host",
                True,
            )
        case ssl.SSLCertVerificationError(verify_message=message):
            return (
                f"an untrusted certificate ({message})",
                "set ?cafile= to the PEM file of the signing authority, and connect by a host name that the certificate contains",
                True,
            )
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ssl.SSLSyscallError():
            return (
                "a connection that closed during the TLS handshake",
                "see the broker's log, and check proxies and firewalls on the way",
                False,
            )
        case ssl.SSLError() | exceptions.IncompatibleProtocolError() if "ALERT_CERTIFICATE_EXPIRED" in text:
            return (
                "a refusal, because our certificate has expired",
                "renew the file that ?certfile= names, which is read again at each connect",
                True,
            )
        case ssl.SSLError() | exceptions.IncompatibleProtocolError() if alert := _OUR_CERTIFICATE.search(text):
            return (
                f"a refusal, because our certificate is missing or untrusted ({alert[0]})",
                "set ?certfile= to a certificate that the broker's ssl_options.cacertfile trusts, and ?keyfile= to its key",
                True,
            )
        case ssl.SSLError():
            return (
                f"no TLS ({getattr(error, 'reason', None) or error})",
                "correct the scheme and the port (5671 for amqps:, 5672 for amqp:)",
                True,
            )
        case exceptions.ProbableAuthenticationError() if "403" in text and "EXTERNAL" in text:
            return (
                f"no login by certificate ({_reply(text)})",
                "create a user with the name in the certificate (see ssl_cert_login_from), or correct ?certfile=",
                True,
            )
        case exceptions.ProbableAuthenticationError() if "403" in text:
            return (f"no login ({_reply(text)})", "correct user and password in --broker or its file", True)
        case exceptions.AuthenticationError():
            return (
                f"no login mechanism {error.args[0]}",
                "enable it in the broker (auth_mechanisms, rabbitmq_auth_mechanism_ssl), or give user and password in the URL",
                True,
            )
        case exceptions.ProbableAccessDeniedError() if "530" in text and "is reached" not in text:
            return (
                f"no access to the virtual host ({_reply(text)})",
                "create it and grant access to it (rabbitmqctl add_vhost, set_permissions), or correct the path in --broker",
                True,
            )
        case exceptions.ProbableAccessDeniedError() if "is reached" in text:
            return (f"too many connections ({_reply(text)})", "raise the limit, or run fewer workers", False)
        case Foreign():
            return (
                "a reply that is not AMQP 0-9-1",
                "correct the scheme and the port (5672 for amqp:, 5671 for amqps:); the management port does not work here",
                True,
            )
        case exceptions.IncompatibleProtocolError():
            return (
                "a connection that was closed without a reply",
                "check whether the port or load balancer leads to a broker, and whether the broker requires TLS (amqps:)",
                False,
            )
        case exceptions.ConnectionClosedByBroker(reply_code=code, reply_text=reply):
            return (f"{_short(reply)} ({code})", "see the broker's log", False)
        case exceptions.AMQPHeartbeatTimeout():
            return (
                "no heartbeat",
                "check whether the broker is frozen, and whether a firewall drops idle connections",
                False,
            )
        case exceptions.ConnectionBlockedTimeout():
            return ("a memory or disk alarm that does not end", "free memory or disk space on the broker", False)
        case Silent():
            return (str(error), "check whether the broker is frozen or overloaded", False)
        case socket.gaierror():
            return (f"no address ({error.strerror})", "correct the host in --broker, or the name service", False)
        case connection_workflow.AMQPConnectorStackTimeout() | TimeoutError():
            return ("no reply in time", "check that the broker is up, and that no firewall is in between", False)
        case OSError():
            return (
                error.strerror or _short(text),
                "check that the broker is up, and that no firewall is in between",
                False,
            )
        case _:
            return (_short(text), "see the broker's log", False)


def _reply(text: str) -> str:
    """Extract the broker's text from the repr of an error."""
    found = re.search(r"\(\d{3}\) '?\"?([^'\"]+)", text)
    return _short(found[1] if found else text)


def _short(text: str) -> str:
    """Return the text as one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= _LISTED else line[: _LISTED - 1] + "…"


def _caused(ours: BrokerUnavailable, error: BaseException) -> BrokerUnavailable:
    ours.__cause__ = error
    return ours
