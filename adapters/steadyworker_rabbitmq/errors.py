"""
Translates the errors of pika into errors of SteadyWorker; `steadyworker.network.errors` translates the errors of TLS, of host names and of sockets.

pika wraps errors in other errors, and also raises errors of Python (`gaierror`, `SSLError`).
Only this module unwraps pika's errors.
The patterns below match the texts of RabbitMQ 3.10 to 4.3.
"""

from __future__ import annotations

import re

from pika import exceptions
from pika.adapters.utils import connection_workflow

from steadyworker.errors import BrokerUnavailable
from steadyworker.network.errors import NO_ANSWER, SEE_LOG, Foreign, Judged, Translator, short


def closed_channel(error: BaseException) -> str:
    """Return the cause of a channel's end, as part of a sentence, and the remedy if a remedy is known."""
    code = getattr(error, "reply_code", 0)
    text = short(getattr(error, "reply_text", "") or str(error) or type(error).__name__)
    for needle, remedy, _ in _CHANNEL_REMEDIES:
        if needle in text:
            return f"{text} ({code}); {remedy}"
    return f"{text} ({code})" if code else text


def channel_id(error: BaseException) -> str:
    """
    Return the id of the catalogue's entry that explains why a channel ended.

    The id is empty if the cause is not known.
    """
    if is_delivery_timeout(error):
        return "amqp.delivery-timeout"
    text = getattr(error, "reply_text", "")
    if "inequivalent arg" in text:
        return "rabbitmq.inequivalent-argument"
    return next((id_ for needle, _, id_ in _CHANNEL_REMEDIES if needle in text), "amqp.channel-error" if text else "")


def alarm_id(reason: str) -> str:
    """Return the id of the entry for a memory alarm or a disk alarm; empty if both alarms are on, or no alarm is on."""
    alarms = [
        id_
        for needle, id_ in (("memory", "rabbitmq.memory-alarm"), ("disk", "rabbitmq.disk-alarm"))
        if needle in reason
    ]
    return alarms[0] if len(alarms) == 1 else ""


def largest_body(error: BaseException) -> int | None:
    """
    Return the broker's limit for a body, in bytes, if a larger body made the broker close the channel.

    Otherwise the result is None.
    """
    found = _TOO_LARGE.search(getattr(error, "reply_text", ""))
    return int(found[1]) if found else None


def is_refusal(error: BaseException) -> bool:
    """Return whether the broker closed a channel because the broker refused a request."""
    return isinstance(error, exceptions.ChannelClosedByBroker)


class QueueUnavailable(BrokerUnavailable):
    """An existing queue that the broker cannot reach now, because the queue's node is down or its members have no majority."""


def is_missing(error: BaseException) -> bool:
    """Return whether the broker closed a channel because a queue or an exchange does not exist."""
    return getattr(error, "reply_code", 0) == _NOT_FOUND and _ABSENT.search(error_text(error)) is not None


def is_down(error: BaseException) -> bool:
    """
    Return whether the broker closed a channel because it cannot reach an existing queue.

    The broker uses the same code for a missing queue, so the text decides.
    """
    return getattr(error, "reply_code", 0) == _NOT_FOUND and not is_missing(error)


def error_text(error: BaseException) -> str:
    """Return the broker's text for the end of a channel or connection."""
    return str(getattr(error, "reply_text", ""))


def is_unfit(error: BaseException) -> bool:
    """Return whether the broker closed a channel because a queue differs from the request."""
    return getattr(error, "reply_code", 0) == _UNFIT


def is_delivery_timeout(error: BaseException) -> bool:
    """Return whether the broker closed a channel because a delivery was not acknowledged in time (RabbitMQ up to 4.2)."""
    return "delivery acknowledgement on channel" in getattr(error, "reply_text", "")


_NOT_FOUND, _UNFIT = 404, 406

_ABSENT = re.compile(r"no (?:queue|exchange) '")
"""
The text of RabbitMQ 3.10 to 4.3 about a queue or an exchange that does not exist.

Other texts with the code 404 are about a queue that exists: `home node … is down or inaccessible` (3.10),
`failed to perform operation on queue … due to timeout` (4.3, after 85 s), `… has crashed`, `… is stopped by supervisor`.
"""

_TOO_LARGE = re.compile(r"larger than configured max size (\d+)")
"""The text of RabbitMQ 3.10 to 4.3 about a body above `max_message_size`. This limit is for the body alone."""

_FORCED, _UNEXPECTED_FRAME, _INTERNAL = 320, 505, 541
_FORCED_BY = (
    ("reason 'shutdown'", "rabbitmq.node-shutdown"),
    ("Closed via management", "rabbitmq.closed-via-management"),
    ("user '", "rabbitmq.user-deleted"),
    ("vhost '", "rabbitmq.vhost-deleted"),
)
"""
The entries that explain why the broker closed a connection on purpose, each with a part of the broker's text.

Any other text is from an operator.
"""

_CHANNEL_REMEDIES = (
    ("access to queue", "grant it with rabbitmqctl set_permissions", "rabbitmq.right-missing"),
    (
        "access to exchange 'amq.default'",
        r"grant write access to ^amq\.default$ with rabbitmqctl set_permissions: all that a sender needs if the queues exist",
        "rabbitmq.right-missing",
    ),
    ("access to exchange", "grant it with rabbitmqctl set_permissions", "rabbitmq.right-missing"),
    ("no queue", "create it, or run once with --topology declare", "rabbitmq.no-queue"),
    (
        "exclusive use",
        "end the consumer that uses the queue exclusively, or wait until its heartbeats time out",
        "rabbitmq.exclusive-consumer",
    ),
    (
        "locked queue",
        "close the connection that uses the queue exclusively, or wait until its heartbeats time out",
        "rabbitmq.exclusive-queue",
    ),
    *(
        (text, "start the node that has the queue, or wait until it is back", "rabbitmq.queue-node-down")
        for text in ("is down or inaccessible", "failed to perform operation on queue")
    ),
    (
        "larger than configured max size",
        "raise max_message_size in rabbitmq.conf, or send a reference to the data",
        "rabbitmq.message-too-large",
    ),
    ("unknown delivery tag", "this is a defect of the adapter: please report it", "amqp.unknown-delivery-tag"),
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


def _judged(error: BaseException) -> Judged | None:  # noqa: C901, PLR0911, PLR0912 - one case per kind of error
    """Translate an error of pika; return None for every other error."""
    text = repr(error)
    match error:
        case exceptions.ProbableAuthenticationError() if "403" in text and "EXTERNAL" in text:
            return Judged(
                f"no login by certificate ({_reply(text)})",
                "create a user with the name in the certificate (see ssl_cert_login_from), or correct ?certfile=",
                refused=True,
                id="rabbitmq.certificate-login-refused",
            )
        case exceptions.ProbableAuthenticationError() if "403" in text:
            return Judged(
                f"no login ({_reply(text)})",
                "correct user and password in --broker or its file",
                refused=True,
                id="rabbitmq.login-refused",
            )
        case exceptions.AuthenticationError():
            return Judged(
                f"no login mechanism {error.args[0]}",
                "enable it in the broker (auth_mechanisms, rabbitmq_auth_mechanism_ssl), or give user and password in the URL",
                refused=True,
                id="amqp.unknown-mechanism",
            )
        case exceptions.ProbableAccessDeniedError() if "(541)" in text and "is down" in text:
            return Judged(
                "a virtual host that does not run on this node",
                "look in the broker's log for the cause, and then start it again (rabbitmqctl restart_vhost -p VHOST)",
                id="rabbitmq.vhost-down",
            )
        case exceptions.ProbableAccessDeniedError() if "530" in text and "is reached" not in text:
            return Judged(
                f"no access to the virtual host ({_reply(text)})",
                "create it and grant access to it (rabbitmqctl add_vhost, set_permissions), or correct the path in --broker",
                refused=True,
                id="rabbitmq.no-vhost" if "not found" in text else "rabbitmq.vhost-refused",
            )
        case exceptions.ProbableAccessDeniedError() if "is reached" in text:
            remedy = "raise the limit, or run fewer workers"
            return Judged(f"too many connections ({_reply(text)})", remedy, id=_of_limit(text))
        case Foreign():
            return Judged(
                "a reply that is not AMQP 0-9-1",
                "correct the scheme and the port (5672 for amqp:, 5671 for amqps:); the management port does not work here",
                refused=True,
                id="amqp.foreign-reply",
            )
        case exceptions.IncompatibleProtocolError():
            return Judged(
                "a connection that was closed without a reply",
                "check whether the port or load balancer leads to a broker, and whether the broker requires TLS (amqps:)",
                id="pika.not-amqp",
            )
        case exceptions.ConnectionClosedByBroker(reply_code=code, reply_text=reply):
            return Judged(f"{short(reply)} ({code})", SEE_LOG, id=_closed_id(code, reply))
        case exceptions.ChannelClosedByBroker():
            return Judged(closed_channel(error), SEE_LOG, id=channel_id(error))
        case exceptions.AMQPHeartbeatTimeout():
            return Judged(
                "no heartbeat",
                "check whether the broker is frozen, and whether a firewall drops idle connections",
                id="amqp.silent-broker",
            )
        case exceptions.StreamLostError() if "Transport indicated EOF" in text:
            return Judged(short(text), SEE_LOG, id="network.connection-closed")
        case exceptions.StreamLostError() if "ConnectionResetError" in text or "BrokenPipeError" in text:
            return Judged(short(text), SEE_LOG, id="network.connection-reset")
        case exceptions.ConnectionBlockedTimeout():
            remedy = "free memory or disk space on the broker"
            return Judged("a memory or disk alarm that does not end", remedy, id="pika.blocked-timeout")
        case connection_workflow.AMQPConnectorStackTimeout():
            return Judged("no reply in time", NO_ANSWER, id="pika.handshake-timeout")
        case _:
            return None


def _closed_id(code: int, reply: str) -> str:
    """Return the id of the entry for a connection that the broker closed; empty if the code has several causes."""
    if code == _FORCED:
        return next((id_ for needle, id_ in _FORCED_BY if needle in reply), "amqp.connection-forced")
    if code == _INTERNAL:
        # RabbitMQ cuts a reply of more than 255 bytes, and the names of two nodes can be long.
        unformed = "Cannot declare quorum queue" in reply and ("cluster_not_formed" in reply or reply.endswith("..."))
        return "rabbitmq.no-majority" if unformed else "rabbitmq.internal-error"
    return "amqp.interleaved-frames" if code == _UNEXPECTED_FRAME else ""


def _of_limit(text: str) -> str:
    """Return the id of the entry for the limit of connections that was reached."""
    if "user connection limit" in text:
        return "rabbitmq.user-connection-limit"
    return "rabbitmq.vhost-connection-limit" if "vhost" in text else ""


def _reply(text: str) -> str:
    """Extract the broker's text from the repr of an error."""
    found = re.search(r"\(\d{3}\) '?\"?([^'\"]+)", text)
    return short(found[1] if found else text)


TRANSLATOR = Translator(
    broker="RabbitMQ",
    ports="5671 for amqps:, 5672 for amqp:",
    trusts="ssl_options.cacertfile",
    judge=_judged,
    root=_root,
)
unavailable, translated = TRANSLATOR.unavailable, TRANSLATOR.translated
