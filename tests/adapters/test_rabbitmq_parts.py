"""The parts of RabbitMQ's adapter that need no broker: messages, errors, and sending at once."""

from __future__ import annotations

import json
import random
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pika import exceptions
from pika.adapters.utils import connection_workflow
from pika.spec import Basic, BasicProperties

from steadyworker.adapter import OutgoingMessage, Redelivered, Target
from steadyworker.errors import BrokerUnavailable, PublishFailed
from steadyworker.network.errors import Foreign, Refused
from steadyworker.runner.unkeyed import fingerprint
from steadyworker_rabbitmq.errors import translated, unavailable
from steadyworker_rabbitmq.messages import EXACT, carried, delivery_of, properties_of, size_of
from steadyworker_rabbitmq.pika_internals import PikaConnection

# --- Messages ---------------------------------------------------------------------------------------------------------

DELIVER = Basic.Deliver("tag", 7, False, "", "exports")
TYPES: dict[str, Any] = {
    "text": "Café №7",
    "empty": "",
    "int": 5,
    "long": 1 << 40,
    "yes": True,
    "none": None,
    "bytes": b"\xff\x00",
    "list": [1, "two", b"3"],
    "table": {"a": 1, "b": {"c": [True, None]}},
    "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "price": Decimal("1.25"),
}


def received(properties: BasicProperties, body: bytes = b"{}") -> Any:
    return delivery_of(3, "exports", DELIVER, properties, body)


def over_the_wire(properties: BasicProperties) -> Any:
    decoded: Any = BasicProperties()
    decoded.decode(b"".join(properties.encode()))
    return decoded


def test_headers_of_every_type_and_the_properties_survive_a_retry() -> None:
    sent = BasicProperties(
        headers=TYPES, content_type="application/json", correlation_id="c", priority=3, message_id="m", timestamp=1000
    )
    delivery = received(over_the_wire(sent))
    assert delivery.headers["text"] == "Café №7"
    assert (delivery.headers["int"], delivery.headers["yes"], delivery.headers["none"]) == ("5", "true", "")
    assert (delivery.message_id, delivery.sent_at) == ("m", 1000.0)
    again = over_the_wire(
        properties_of(OutgoingMessage(Target.LATER, b"", {**delivery.headers, "sw-hop": "1"}), "m-2", 2000.5)
    )
    assert again.headers == {**TYPES, "sw-hop": "1"}
    assert (again.content_type, again.correlation_id, again.priority) == ("application/json", "c", 3)
    assert (again.message_id, again.timestamp, again.delivery_mode) == ("m-2", 2000, 2)


def test_a_header_that_was_changed_on_the_way_is_what_it_was_changed_to() -> None:
    delivery = received(BasicProperties(headers={"n": 5, "m": 6}))
    again = properties_of(OutgoingMessage(Target.LATER, b"", {**delivery.headers, "n": "6"}), "m", 0)
    assert again.headers == {"n": "6", "m": 6}


def test_text_alone_needs_no_help() -> None:
    assert received(BasicProperties(headers={"a": "b"})).headers == {"a": "b"}


def test_what_the_broker_wrote_is_shown_and_not_published_again() -> None:
    """Nor what would send a copy elsewhere, drop it, or have it refused."""
    theirs = {"x-death": [{"count": 3}], "x-first-death-queue": "q", "x-last-death-reason": "r", "x-delivery-count": 9}
    others = {"x-acquired-count": 2, "CC": ["elsewhere"], "BCC": ["elsewhere"], "mine": "1"}
    delivery = received(BasicProperties(headers={**theirs, **others}, expiration="1000", user_id="bob"))
    assert delivery.headers["x-death"] == '[{"count": 3}]'
    again = properties_of(OutgoingMessage(Target.LATER, b"", delivery.headers), "m", 0)
    assert again.headers == {"mine": "1"}
    assert (again.expiration, again.user_id) == (None, None)


def test_what_the_broker_wrote_is_named_and_all_else_is_the_same_in_a_redelivery() -> None:
    mine = {"n": 5, "x-mine": "1"}
    first, again = (
        received(BasicProperties(headers={**mine, "x-delivery-count": count, "x-acquired-count": count}))
        for count in (0, 1)
    )
    assert first.brokers_own == again.brokers_own == {"x-delivery-count", "x-acquired-count"}
    assert first.headers != again.headers
    assert fingerprint(first) == fingerprint(again)


@pytest.mark.parametrize(
    "forged", ["{", "[]", "7", '{"headers": 1}', '{"properties": []}', '{"headers": {"a": {"time": 1e99}}}']
)
def test_a_forged_help_is_no_help(forged: str) -> None:
    assert properties_of(OutgoingMessage(Target.WORK, b"", {"a": "b", EXACT: forged}), "m", 0).headers == {"a": "b"}
    assert EXACT not in received(BasicProperties(headers={EXACT: forged})).headers


def test_a_body_is_handed_over_whole_whatever_its_size() -> None:
    """Over the limit it is a dead letter, which is all that is left of it."""
    delivery = received(BasicProperties(), b"x" * (3 << 20))
    assert (len(delivery.body), delivery.size) == (3 << 20, 3 << 20)
    assert delivery.redelivered is Redelivered.NO


def test_what_is_no_utf_8_is_shown_and_travels_on() -> None:
    """pika answers bytes for it: none of them may reach whoever expects text."""
    texts: Any = {"message_id": b"caf\xe9-1", "correlation_id": b"\xff", "content_type": b"\xfe" * 100}
    sent = BasicProperties(headers={"table": {"n\xe9": 1}, "ok": "1", "bytes": b"\xe9"}, **texts)
    wire = over_the_wire(sent)
    assert isinstance(wire.message_id, bytes)
    wire.headers[b"caf\xe9"] = "2"
    wire.headers[b"\xe9" * 100] = "its name would be too long"
    wire.headers["table"] = {b"\xe9": [b"\xe9"]}
    delivery = received(wire)
    assert delivery.message_id == "caf\\xe9-1"
    assert {name: delivery.headers[name] for name in ("ok", "bytes", "caf\\xe9", "table")} == {
        "ok": "1",
        "bytes": "\\xe9",
        "caf\\xe9": "2",
        "table": '{"\\\\xe9": ["\\\\xe9"]}',
    }
    assert len(delivery.headers) == 5
    again = over_the_wire(properties_of(OutgoingMessage(Target.LATER, b"", delivery.headers), "m", 0))
    assert (again.correlation_id, again.content_type) == ("\\xff", None)
    assert again.headers == {"table": {"\\xe9": [b"\xe9"]}, "ok": "1", "bytes": b"\xe9", "caf\\xe9": "2"}


def test_what_cannot_be_shown_has_its_reason_where_a_number_must_stand() -> None:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    delivery = received(BasicProperties(headers={"deep": deep, "ok": "1"}, message_id="m"))
    assert delivery.headers == {"sw-hop": "unreadable: RecursionError"}
    assert delivery.message_id == "m"


@pytest.mark.parametrize("limit", [100, 8192, 131_072])
def test_headers_that_grew_too_large_for_a_frame_travel_behind_the_body_with_their_types(limit: int) -> None:
    ours = {"sw-job-key": "k" * 200, "sw-hop": "1"}
    theirs = {**TYPES, **{f"{number:03}-{'n' * 200}": b"\xff" * 999 for number in range(200)}, "long": "é" * 100_000}
    before = received(over_the_wire(BasicProperties(headers={**theirs, **ours}, message_id="m")))
    copy = properties_of(OutgoingMessage(Target.LATER, before.body, before.headers), "m", 0)
    sent, body = carried(copy, before.body, limit)
    copy = over_the_wire(sent)
    assert size_of(copy) <= max(limit, 200)
    assert "long" not in copy.headers
    assert limit == 100 or {name: copy.headers[name] for name in ours} == ours
    after = received(copy, body)
    assert after.body == before.body
    for delivery in (before, after):
        assert {**delivery.headers, EXACT: ""} == {**before.headers, EXACT: ""}
    again = over_the_wire(properties_of(OutgoingMessage(Target.WORK, after.body, after.headers), "m", 0))
    assert again.headers == {**theirs, **ours}


@pytest.mark.parametrize("headers", [{"n" * 256: "1"}, {"a": "\ud800"}])
def test_what_amqp_cannot_express_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"255 bytes|surrogates"):
        size_of(properties_of(OutgoingMessage(Target.WORK, b"", headers), "m", 0))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(1 << 63, 1 << 200) | st.text(max_size=9),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=9), each, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=9) | st.just("time") | st.just("decimal"), JSON, max_size=4))
@example({"n": 1 << 63})
@example({"n": [{"table": {"n": -(1 << 64)}}]})
@example({"n": {"decimal": "NaN"}})
@example({"n": {"decimal": "1e400"}})
@example({"n": {"time": -9}})
def test_a_copy_of_any_message_from_behind_is_sent_or_refused_for_good(moved: dict[str, Any]) -> None:
    """Any other error is tried again without end."""
    before = received(BasicProperties(headers={"sw-behind": "2"}), b"{}" + json.dumps(moved).encode())
    copy = properties_of(OutgoingMessage(Target.LATER, before.body, before.headers), "m", 0)
    with suppress(ValueError):
        size_of(copy)
        sent, _ = carried(copy, before.body, 8192)
        assert size_of(sent) <= 8192


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=5))
def test_any_text_comes_back_as_it_went(headers: dict[str, str]) -> None:
    brokers_own = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count", "x-opt-")
    kept = {name: text for name, text in headers.items() if name not in {"CC", "BCC", EXACT}}
    kept = {name: text for name, text in kept.items() if not name.startswith(brokers_own)}
    try:
        wire = over_the_wire(properties_of(OutgoingMessage(Target.WORK, b"", headers), "m", 0))
    except ValueError:
        return
    assert received(wire).headers == kept


# --- Errors -----------------------------------------------------------------------------------------------------------


def failed(error: BaseException) -> BaseException:
    """As pika wraps what went wrong while it connected."""
    phase = connection_workflow.AMQPConnectorAMQPHandshakeError(error)
    wrapped: BaseException = exceptions.AMQPConnectionError(connection_workflow.AMQPConnectionWorkflowFailed([phase]))
    return wrapped


def closed(code: int, text: str) -> str:
    return repr(exceptions.ConnectionClosedByBroker(code, text))


def expired() -> ssl.SSLCertVerificationError:
    """As OpenSSL finds a broker's certificate that is too old."""
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.verify_code, error.verify_message = 10, "certificate has expired"
    return error


@pytest.mark.parametrize(
    ("error", "final", "text"),
    [
        (
            exceptions.ProbableAuthenticationError(closed(403, "ACCESS_REFUSED - Login was refused")),
            True,
            "user and password",
        ),
        (exceptions.ProbableAuthenticationError("StreamLostError: ('Transport indicated EOF',)"), False, "Transport"),
        (
            exceptions.ProbableAccessDeniedError(closed(530, "NOT_ALLOWED - vhost limits not found")),
            True,
            "vhost limits not found",
        ),
        (
            exceptions.ProbableAccessDeniedError(closed(530, "NOT_ALLOWED - user connection limit (1) is reached")),
            False,
            "limit",
        ),
        (exceptions.AuthenticationError("EXTERNAL"), True, "EXTERNAL"),
        (
            exceptions.IncompatibleProtocolError("StreamLostError: ('Transport indicated EOF',)"),
            False,
            "without a reply",
        ),
        (Foreign(), True, "not AMQP 0-9-1"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), True, "the scheme and the port"),
        (expired(), True, "renew the broker's certificate"),
        (ssl.SSLError(1, "[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert"), True, "renew the file that ?certfile="),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), False, "TLS handshake"),
        (exceptions.ConnectionClosedByBroker(320, "CONNECTION_FORCED - shutdown"), False, "CONNECTION_FORCED"),
        (exceptions.AMQPHeartbeatTimeout("No activity"), False, "heartbeat"),
        (exceptions.ConnectionBlockedTimeout("expired"), False, "alarm"),
        (ConnectionRefusedError(111, "Connection refused"), False, "Connection refused"),
        (connection_workflow.AMQPConnectorStackTimeout("x"), False, "in time"),
        (KeyError("ctag1"), False, "ctag1"),
    ],
)
def test_every_error_of_the_client_is_one_of_ours(error: BaseException, final: bool, text: str) -> None:
    for raised in (error, failed(error)):
        ours = unavailable(raised, "h:5672")
        assert isinstance(ours, Refused) is final
        assert text in str(ours)
        assert "h:5672" in str(ours)
        assert ours.__cause__ is raised


def test_errors_of_ours_pass_and_others_are_what_they_are_to_be() -> None:
    with pytest.raises(PublishFailed, match="refused"), translated("h", PublishFailed):
        raise ConnectionRefusedError(111, "refused")
    with pytest.raises(PublishFailed, match="away"), translated("h", PublishFailed):
        raise BrokerUnavailable("away")
    with pytest.raises(Refused, match="no"), translated("h"):
        raise Refused("no")


# --- Sending at once --------------------------------------------------------------------------------------------------


class Transport:
    """As much of pika's transport as is read before something is sent; what is left to pika is counted."""

    _STATE_ACTIVE = 2

    def __init__(self, sock: socket.socket) -> None:
        self._state = self._STATE_ACTIVE
        self._sock = sock
        self._tx_buffers: list[bytes] = []
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.settimeout(5)
        yield ours, theirs


def sender(transport: object) -> Any:
    """A connection that has this transport, and nothing else."""
    connection: Any = object.__new__(PikaConnection)
    connection._transport = transport
    return connection


def test_what_a_socket_accepts_is_sent_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    transport = Transport(ours)
    sender(transport)._adapter_emit_data(b"an acknowledgement")
    assert theirs.recv(100) == b"an acknowledgement"
    assert transport.written == b""


def test_what_a_full_socket_does_not_accept_is_left_to_pika_in_its_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    transport = Transport(ours)
    sent = random.Random(7).randbytes(8_000_000)
    sender(transport)._adapter_emit_data(sent)
    got = theirs.recv(len(sent))
    while len(got) + len(transport.written) < len(sent):
        got += theirs.recv(len(sent))
    assert got, "some of it was sent"
    assert got + transport.written == sent


def test_what_must_wait_for_other_bytes_or_for_tls_is_left_to_pika(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    later, starting, gone = Transport(ours), Transport(ours), Transport(ours)
    later._tx_buffers.append(b"before it")
    starting._state = 1
    shut = socket.socket()
    shut.close()
    gone._sock = shut
    encrypted = Transport(
        ssl.create_default_context().wrap_socket(ours.dup(), do_handshake_on_connect=False, server_hostname="broker")
    )
    for transport in (later, starting, gone, encrypted):
        sender(transport)._adapter_emit_data(b"bytes")
        assert transport.written == b"bytes"
    encrypted._sock.close()
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
