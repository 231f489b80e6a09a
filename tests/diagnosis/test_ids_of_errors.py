"""The translated errors of each adapter name the entry of their cause; an error whose cause is not known names none."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest
from pika import exceptions

from steadyworker.errors import BrokerUnavailable, ConfigError, PublishFailed
from steadyworker.network.errors import Foreign, Silent
from steadyworker_rabbitmq import errors as rabbitmq
from steadyworker_rocketmq import errors as rocketmq
from steadyworker_rocketmq.remoting import RemotingError
from steadyworker_stomp import errors as stomp


def closed(code: int, text: str) -> exceptions.ConnectionClosedByBroker:
    return exceptions.ConnectionClosedByBroker(code, text)


def channel(code: int, text: str) -> exceptions.ChannelClosedByBroker:
    return exceptions.ChannelClosedByBroker(code, text)


def denied(text: str) -> exceptions.ProbableAccessDeniedError:
    return exceptions.ProbableAccessDeniedError(text)


RABBITMQ: list[tuple[BaseException, str]] = [
    (exceptions.ProbableAuthenticationError("(403) 'ACCESS_REFUSED - Login was refused'"), "rabbitmq.login-refused"),
    (exceptions.ProbableAuthenticationError("(403) 'mechanism EXTERNAL'"), "rabbitmq.certificate-login-refused"),
    (denied("(530) 'NOT_ALLOWED - vhost nope not found'"), "rabbitmq.no-vhost"),
    (denied("(530) \"NOT_ALLOWED - access to vhost 'v' refused for user 'b'\""), "rabbitmq.vhost-refused"),
    (denied("(530) 'refused for user 'lim': user connection limit (1) is reached'"), "rabbitmq.user-connection-limit"),
    (Foreign(), "amqp.foreign-reply"),
    (
        closed(320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"),
        "rabbitmq.node-shutdown",
    ),
    (closed(320, "CONNECTION_FORCED - Closed via management plugin"), "rabbitmq.closed-via-management"),
    (closed(320, "CONNECTION_FORCED - maintenance"), "amqp.connection-forced"),
    (closed(505, "UNEXPECTED_FRAME - expected content header"), "amqp.interleaved-frames"),
    (closed(541, "INTERNAL_ERROR"), "rabbitmq.internal-error"),
    (closed(541, "INTERNAL_ERROR - Cannot declare quorum queue 'a': cluster_not_formed"), "rabbitmq.no-majority"),
    (  # RabbitMQ cuts a reply of more than 255 bytes
        closed(
            541, "INTERNAL_ERROR - Cannot declare quorum queue 'a' in vhost '/' on node 'rabbit@one.example' with..."
        ),
        "rabbitmq.no-majority",
    ),
    (
        denied("(541) \"INTERNAL_ERROR - access to vhost 'v' refused for user 'u': vhost 'v' is down\""),
        "rabbitmq.vhost-down",
    ),
    (closed(501, "FRAME_ERROR - something"), ""),  # a code with several causes
    (exceptions.AMQPHeartbeatTimeout("no activity"), "amqp.silent-broker"),
    (exceptions.StreamLostError("Transport indicated EOF"), "network.connection-closed"),
    (exceptions.StreamLostError("Stream connection lost: ConnectionResetError(104, 'x')"), "network.connection-reset"),
    (exceptions.StreamLostError("Stream connection lost: IndexError('x')"), ""),
    (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "network.connection-refused"),
    (OSError(errno.EHOSTUNREACH, "No route to host"), "network.unreachable"),
    (OSError(errno.EIO, "Input/output error"), ""),
    (socket.gaierror(-2, "Name or service not known"), "network.unknown-host"),
    (TimeoutError(), "network.no-reply"),
    (Silent("no reply"), "network.no-reply"),
    (ssl.SSLEOFError(8, "EOF"), "tls.handshake-closed"),
    (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "tls.plain-port"),
    (ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]"), "tls.client-certificate-missing"),
    (ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA]"), "tls.client-certificate-not-trusted"),
    (ssl.SSLError(1, "[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED]"), "tls.client-certificate-expired"),
    (RuntimeError("what is this"), ""),
]


@pytest.mark.parametrize(("error", "id_"), RABBITMQ, ids=lambda value: value if isinstance(value, str) else "")
def test_rabbitmq(error: BaseException, id_: str) -> None:
    assert rabbitmq.unavailable(error, "broker:5672").id == id_


@pytest.mark.parametrize(
    ("error", "id_"),
    [
        (
            channel(406, "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out."),
            "amqp.delivery-timeout",
        ),
        (channel(406, "PRECONDITION_FAILED - unknown delivery tag 1"), "amqp.unknown-delivery-tag"),
        (channel(406, "PRECONDITION_FAILED - inequivalent arg 'durable'"), "rabbitmq.inequivalent-argument"),
        (channel(404, "NOT_FOUND - no queue 'x' in vhost '/'"), "rabbitmq.no-queue"),
        (channel(403, "ACCESS_REFUSED - access to queue 'x' refused"), "rabbitmq.right-missing"),
        (channel(403, "ACCESS_REFUSED - queue 'x' in exclusive use"), "rabbitmq.exclusive-consumer"),
        (channel(405, "RESOURCE_LOCKED - cannot obtain access to locked queue 'x'"), "rabbitmq.exclusive-queue"),
        (channel(541, "INTERNAL_ERROR"), "amqp.channel-error"),
        (RuntimeError("ours"), ""),
    ],
)
def test_a_channel_of_rabbitmq(error: BaseException, id_: str) -> None:
    assert rabbitmq.channel_id(error) == id_


@pytest.mark.parametrize(
    ("reason", "id_"),
    [("low on memory", "rabbitmq.memory-alarm"), ("low on disk", "rabbitmq.disk-alarm"), ("low on memory & disk", "")],
)
def test_an_alarm_of_rabbitmq(reason: str, id_: str) -> None:
    assert rabbitmq.alarm_id(reason) == id_


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("User name [a] or password is invalid.", "activemq.wrong-password"),
        ("AMQ229031: Unable to validate user from 127.0.0.1", "artemis.wrong-password"),
        ("User a is not authorized to read from: queue://q", "activemq.not-authorized"),
        ("AMQ229213: User: a does not have permission='CONSUME'", "artemis.not-authorized"),
        ("Broker: b - Client: c already connected from tcp://h", "stomp.client-id-taken"),
        ("Bad CONNECT", "stomp.rabbitmq"),
        ("something else", "stomp.error-frame"),
    ],
)
def test_stomp(text: str, id_: str) -> None:
    assert stomp.unavailable(stomp.BrokerError(text), "broker:61613").id == id_


@pytest.mark.parametrize(
    ("error", "id_"),
    [
        (rocketmq.ProxyError("no topic", 40402), "rocketmq.no-route"),
        (rocketmq.ProxyError("no group", 40403), "rocketmq.group-missing"),
        (rocketmq.ProxyError("forbidden", 40300), "rocketmq.not-authorized"),
        (rocketmq.ProxyError("failed to connect", status="UNAVAILABLE"), "rocketmq.proxy-away"),
        (rocketmq.ProxyError("late", status="DEADLINE_EXCEEDED"), "network.no-reply"),
        (rocketmq.ProxyError("signature does not match", 40100), "rocketmq.wrong-signature"),
        (rocketmq.ProxyError("refused", 40100), ""),  # the text does not say why
        (rocketmq.ProxyError("odd", 50001), ""),
        (RemotingError("No topic route info in name server", 17), "rocketmq.no-route"),
        (RemotingError("topic[x] not exist", 17), "rocketmq.topic-missing"),
        (RemotingError("[REJECTREQUEST]system busy", 2), "rocketmq.broker-busy"),
        (RemotingError("the broker's permission is wrong", 16), "rocketmq.forbidden"),
        (RemotingError("AclException: No accessKey is configured", 1), "rocketmq.unknown-key"),
        (RemotingError("odd", 1), ""),
    ],
)
def test_rocketmq(error: BaseException, id_: str) -> None:
    assert rocketmq.unavailable(error, "broker:10911").id == id_


# --- An id goes with its error ----------------------------------------------------------------------------------------


def test_an_error_of_another_type_keeps_the_id() -> None:
    with pytest.raises(PublishFailed) as raised, rabbitmq.translated("broker:5672", to=PublishFailed):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    assert raised.value.id == "network.connection-refused"
    with pytest.raises(PublishFailed) as again, rabbitmq.translated("broker:5672", to=PublishFailed):
        raise BrokerUnavailable("text", id="rabbitmq.login-refused")
    assert again.value.id == "rabbitmq.login-refused"


def test_a_configuration_error_becomes_a_refusal_with_the_id() -> None:
    assert rabbitmq.unavailable(ConfigError("text", id="config.broker-url"), "").id == "config.broker-url"
