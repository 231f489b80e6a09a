"""
The translation of errors of proxies, brokers and the client libraries into SteadyWorker's errors.

`steadyworker.network.errors` translates errors of TLS, host names and sockets.
"""

from __future__ import annotations

import re

from steadyworker.errors import MessageRefused
from steadyworker.network.errors import NO_ANSWER, SEE_LOG, Foreign, Judged, Translator, short
from steadyworker_rocketmq.remoting import RemotingError


class ProxyError(Exception):
    """
    A refusal of a proxy, or a failed call.

    Attributes:
        code: The proxy's code (`apache.rocketmq.v2.Code`), or 0 if the call itself failed.
        status: The name of gRPC's status code if the call itself failed, otherwise empty.
        unsent: True if the call that failed was only a query, so that no message was sent.
    """

    unsent = False

    def __init__(self, text: str, code: int = 0, status: str = "") -> None:
        super().__init__(f"{text} ({code or status})" if code or status else text)
        self.code = code
        self.status = status


# apache.rocketmq.v2.Code, from service.proto of rocketmq-apis 2.0.
BAD_REQUEST = 40000
_UNAUTHORIZED = 40100
_FORBIDDEN = 40300
_TOPIC_NOT_FOUND = 40402
_GROUP_NOT_FOUND = 40403
_TOO_LARGE = (41300, 41301, 43100, 43101)
_THRESHOLD = "body size exceeds the threshold"
"""The error of the client library for a body above the limit that the proxy has sent (5.1.2)."""

_SIZES = "the message is illegal, maybe msg body or properties length not matched"
"""A broker's remark on a message above one of the broker's limits. A proxy passes the remark on with its general code, 50001 (5.4.0)."""

_ILLEGAL = (40004, 40005, 40006, 40007, 40009, 41302)
"""
ILLEGAL_MESSAGE_TAG, _KEY, _GROUP, _PROPERTY_KEY and _ID, and MESSAGE_BODY_EMPTY: faults of the message itself.

The causes of the other codes in this range can end: a topic of another type, a client that the proxy does not know, a wrong clock.
"""
_TOO_MANY = 42900

_CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED(?::\s*([^:(]+))?")
_HOST_NAME, _NO_TLS = "Hostname Verification Check failed", "WRONG_VERSION_NUMBER"
"""The causes that gRPC reports for a failed TLS handshake: the certificate, its host name, or a server without TLS."""

_ACL = re.compile(
    r"AclException|[Cc]heck signature failed|No acl config|No accessKey|User:\S* is not found|username cannot be null"
)
"""Matches the texts of a refused login, because a refused login has only the general code (tried on 4.9.7 and 5.4.0)."""

_UNKNOWN = re.compile(r"No acl config|No accessKey|User:\S* is not found")

_RIGHT = re.compile(r"has no permission|[Nn]eed admin permission|No default permission")
"""Matches the texts of a missing right of a valid login, on 5.4.0 and 4.9.7."""

_DENIED = re.compile(r"(User:\S+) has no permission to access (Topic|Group):(\S+) from")
_UNPERMITTED = re.compile(r"No default permission for (topic|group):\s?([^\s(]+)")
_ACTIONS = {"Topic": "Pub,Sub,Get", "Group": "Sub,Get,Update"}
_PERMISSIONS = {"topic": "PUB|SUB", "group": "SUB"}
"""The names that 5.4.0 and 4.9.7 use for what a login may not do, and the rights that a worker needs (tried)."""

_NO_SETTINGS = re.compile(r'"?(?:settings|channel)"? is null')

# RocketMQ's ResponseCode: SYSTEM_BUSY, MESSAGE_ILLEGAL, SERVICE_NOT_AVAILABLE, NO_PERMISSION, TOPIC_NOT_EXIST.
_BUSY, _MESSAGE_ILLEGAL, _UNAVAILABLE, _NO_PERMISSION, _NO_TOPIC = 2, 13, 14, 16, 17


def is_refused_handle(error: BaseException) -> bool:
    """Return whether the broker refused the request itself, so that a later try cannot succeed."""
    return isinstance(error, ProxyError) and BAD_REQUEST <= error.code < _UNAUTHORIZED


def is_missing_topic(error: BaseException) -> bool:
    """Return whether the topic does not exist."""
    return isinstance(error, ProxyError | RemotingError) and error.code in (_TOPIC_NOT_FOUND, _NO_TOPIC)


def is_busy(error: BaseException) -> bool:
    """Return whether the broker accepts no messages for now."""
    return isinstance(error, ProxyError | RemotingError) and error.code in (_TOO_MANY, _BUSY, _UNAVAILABLE)


def refused_message(error: BaseException) -> str | None:
    """
    Return the id of the catalogue entry, if every try to send this message will be refused.

    Return an empty text if no entry explains the refusal, and None for every other error.
    """
    match error:
        case RemotingError(code=code) if code == _MESSAGE_ILLEGAL:
            return "rocketmq.message-illegal"
        case ProxyError() if _SIZES in str(error):
            return "rocketmq.message-illegal"
        case ProxyError(code=code) if code in _TOO_LARGE or _THRESHOLD in str(error):
            return f"rocketmq.{'body-too-large' if code < _TOO_MANY else 'properties-too-long'}"
        case ProxyError(code=code) if code in _ILLEGAL:
            return ""
        case _:
            return None


def refusal_of(error: BaseException, topic: str) -> MessageRefused | None:
    """Return the error, if this topic will refuse the message at every try; None if the cause can end."""
    if (id_ := refused_message(error)) is None:
        return None
    remedy = (
        "raise maxMessageSize of broker and proxy, and the proxy's maxUserPropertySize, to their defaults or above, "
        "or send a reference to the data; the broker's store.log has the sizes"
        if id_
        else "correct the sender"
    )
    return MessageRefused(f"Expected the topic {topic!r} to accept a message, got: {error}: {remedy}.", id=id_)


def is_early(error: BaseException) -> bool:
    """Return whether the proxy does not know the client yet. After about a second, the proxy knows the client (tried with 5.4.0)."""
    return isinstance(error, ProxyError) and _NO_SETTINGS.search(str(error)) is not None


def _grant(text: str) -> str:
    """Return the remedy for a missing right."""
    if (match := _DENIED.search(text)) is not None:
        user, kind, name = match.groups()
        return (
            f"mqadmin createAcl -n NAMESERVER:9876 -c CLUSTER -s {user} -r {kind}:{name} -a {_ACTIONS[kind]} -d Allow"
        )
    if (match := _UNPERMITTED.search(text)) is not None:
        kind, name = match.groups()
        return f"in the brokers' plain_acl.yml, add {name}={_PERMISSIONS[kind]} to {kind}Perms of the access key"
    if "admin permission" in text:
        return "set admin: true for the access key in the brokers' plain_acl.yml, or let an operator make topics and groups"
    return "grant the access key the right to the Worker's topics and groups"


def is_lacking_right(error: BaseException | None) -> bool:
    """Return whether the login is valid, but lacks a right."""
    return isinstance(error, ProxyError | RemotingError) and _RIGHT.search(str(error)) is not None


def refused_question(error: RemotingError) -> str | None:
    """Return why a broker refused a question, and the remedy, as a clause; None if the broker failed, or refused the login."""
    text = short(str(error))
    if is_lacking_right(error) or (error.code == _NO_PERMISSION and _ACL.search(text) is None):
        return f"a broker refused the question ({text}); {_grant(text)}"
    return None


def is_refused_login(error: BaseException) -> bool:
    """Return whether a broker refuses the login, or the login lacks a right. Other refusals can be due to an operator's maintenance."""
    return isinstance(error, RemotingError) and (is_lacking_right(error) or _ACL.search(str(error)) is not None)


def _tls(text: str) -> Judged | None:
    """Return the error for gRPC's text about a connection that failed; None if TLS is not the cause."""
    if (match := _CERTIFICATE.search(text)) is not None:
        reason = short(match[1] or "no reason")
        remedy = (
            "renew the proxy's certificate, or correct the clock of this host"
            if "expired" in reason or "not yet valid" in reason
            else "set the environment variable GRPC_DEFAULT_SSL_ROOTS_FILE_PATH to a PEM file of the authorities to trust, "
            "which this user can read"
        )
        return Judged(
            f"a certificate that is not trusted ({reason})", remedy, refused=True, id="tls.certificate-not-trusted"
        )
    if _HOST_NAME in text:
        return Judged(
            "a certificate for another host name",
            "write a name that is in the proxy's certificate as the host in --broker",
            refused=True,
            id="tls.wrong-host",
        )
    if _NO_TLS in text:
        return Judged(
            "no TLS",
            "write rocketmq+grpc:// in --broker if the proxy has no TLS, else correct the port",
            refused=True,
            id="tls.plain-port",
        )
    return None


def _judged(error: BaseException) -> Judged | None:
    text = short(str(error))
    match error:
        case ProxyError() | RemotingError() if is_lacking_right(error):
            return Judged(f"a missing right ({text})", _grant(text), refused=True, id="rocketmq.not-authorized")
        case ProxyError():
            return _of_proxy(error, text)
        case RemotingError():
            return _of_remoting(error, text)
        case Foreign():
            return Judged(
                "a reply that is not RocketMQ's remoting protocol",
                "correct the port: 9876 for name servers, 10911 for brokers, 8080 for proxies by default",
                refused=True,
                id="rocketmq.foreign-reply",
            )
        case _:
            return None


def _of_proxy(error: ProxyError, text: str) -> Judged:  # noqa: C901, PLR0911 - one case per kind of error
    match error:
        case ProxyError(code=code) if code == _UNAUTHORIZED or error.status == "UNAUTHENTICATED":
            return _no_login(text)
        case ProxyError(code=code) if code == _FORBIDDEN or error.status == "PERMISSION_DENIED":
            return Judged(f"a refusal ({text})", _grant(text), refused=True, id="rocketmq.not-authorized")
        case ProxyError(code=code) if code == _TOPIC_NOT_FOUND:
            remedy = "make the topic: mqadmin updateTopic, or name the name server with ?namesrv="
            return Judged(text, remedy, id="rocketmq.no-route")
        case ProxyError(code=code) if code == _GROUP_NOT_FOUND:
            remedy = "make the consumer group: mqadmin updateSubGroup, or name the name server with ?namesrv="
            return Judged(text, remedy, id="rocketmq.group-missing")
        case ProxyError(status="UNAVAILABLE") if (judged := _tls(str(error))) is not None:
            return judged
        case ProxyError(status="UNIMPLEMENTED"):
            return Judged(
                f"a gRPC service that is no RocketMQ ({text})",
                "correct the port: 8081 by default",
                refused=True,
                id="rocketmq.foreign-reply",
            )
        case ProxyError(status="UNAVAILABLE") if "Socket closed" in text:
            remedy = f"{NO_ANSWER}; if the proxy has TLS only, write rocketmq+grpcs:// in --broker"
            return Judged(text, remedy, id="network.connection-closed")
        case ProxyError(status="UNAVAILABLE"):
            return Judged(text, NO_ANSWER, id="rocketmq.proxy-away")
        case ProxyError(status="DEADLINE_EXCEEDED"):
            return Judged(f"no reply in time ({text})", NO_ANSWER, id="network.no-reply")
        case ProxyError() if _NO_SETTINGS.search(text):
            return Judged(text, "the proxy was restarted, or lost the connection to its broker")
        case _:
            return Judged(text, SEE_LOG)


def _of_remoting(error: RemotingError, text: str) -> Judged:
    match error:
        case RemotingError() if _ACL.search(text):  # 4.9.7 has no separate code for this.
            return _no_login(text)
        case RemotingError(code=code) if code == _NO_PERMISSION:
            return Judged(f"a refusal ({text})", _grant(text), refused=True, id="rocketmq.forbidden")
        case RemotingError(code=code) if code == _BUSY:
            return Judged(text, "wait until the broker is less busy, or see its log", id="rocketmq.broker-busy")
        case RemotingError(code=code) if code == _NO_TOPIC:
            id_ = "rocketmq.no-route" if "route" in text else "rocketmq.topic-missing"
            return Judged(text, "make the topic: mqadmin updateTopic", id=id_)
        case _:
            return Judged(text, SEE_LOG)


def _no_login(text: str) -> Judged:
    remedy = "correct access key and secret in --broker or its file"
    if re.search("signature", text, re.IGNORECASE):
        id_ = "rocketmq.wrong-signature"
    else:
        id_ = "rocketmq.unknown-key" if _UNKNOWN.search(text) else ""
    return Judged(f"no login ({text})", remedy, refused=True, id=id_)


TRANSLATOR = Translator(
    broker="RocketMQ",
    ports="8081 for rocketmq+grpc:, 9876 for rocketmq:",
    trusts="trust store",
    judge=_judged,
)
unavailable, translated = TRANSLATOR.unavailable, TRANSLATOR.translated
