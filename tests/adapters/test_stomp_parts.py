"""The parts of ActiveMQ's adapter that need no broker: messages, dialects, names and errors; and messages on real brokers, once."""

from __future__ import annotations

import json
import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stomp.protocol import Protocol12  # type: ignore[import-untyped]
from stomp.utils import convert_frame, pack, parse_frame  # type: ignore[import-untyped]

from steadyworker.adapter import Delivery, OutgoingMessage, QueueSpec, Redelivered, Target
from steadyworker.errors import BrokerUnavailable, ConfigError, PublishFailed
from steadyworker.network.errors import Foreign, Refused, Silent
from steadyworker_stomp.dialects import ARTEMIS, CLASSIC, Dialect, dialect_of, version_of
from steadyworker_stomp.errors import BrokerError, translated, unavailable
from steadyworker_stomp.messages import (
    EXACT,
    LINE_BYTES,
    delivery_of,
    fits,
    frame_headers,
    frame_of,
    longest_line,
)
from steadyworker_stomp.topology import check_names, queue_of
from tests.brokers.stomp_broker import StompBroker

DIALECTS = pytest.mark.parametrize("dialect", [CLASSIC, ARTEMIS], ids=lambda dialect: dialect.name)

TRICKY = {
    "text": "Café №7 🎈",
    "empty": "",
    "blanks": "  a\tb  ",
    "lines": "one\ntwo\r\nthree\r",
    "signs": r"a:b\c\n\\:",
    "nul": "a\0b",
    "control": "\x01\x1b\x7f\x85\u2028",
    "": "no name",
    "a:b": "colon",
    "a\nreceipt": "line",
    "a\0b": "nul",
    "back\\slash": "x",
    "a blank": "x",
    "é": "not ASCII",
    "receipt": "ours",
    "expires": "1",
    "destination": "/queue/elsewhere",
    "transaction": "t",
    "message-id": "m",
    "ack": "a",
    "content-length": "7",
    "persistent": "false",
    "priority": "9",
    "reply-to": "/queue/elsewhere",
    "AMQ_SCHEDULED_DELAY": "1",
    "AMQ_SCHEDULED_PERIOD": "1",
    "_AMQ_SCHED_DELIVERY": "1",
    "_AMQ_DUPL_ID": "1",
    "JMSXGroupID": "g",
    "JMSXDeliveryCount": "3",
    "half": "\ud800",
}
"""Headers whose names or texts a frame or a broker would take for itself, change, or not take at all."""


class Wire:
    """stomp.py's writer of frames without a socket: it keeps the bytes of each frame."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def transmit(self, frame: Any) -> None:
        self.written.append(pack(convert_frame(frame)))

    def set_listener(self, name: str, listener: object) -> None: ...


def on_the_wire(message: OutgoingMessage, dialect: Dialect = CLASSIC) -> bytes:
    """The frame that is written for a message; as the adapter sends it, with a receipt and a length."""
    wire = Wire()
    ours = {"content-length": str(len(message.body)), "receipt": "r-1"}
    Protocol12(wire).send("/queue/exports", message.body, headers={**frame_headers(message, dialect), **ours})
    (frame,) = wire.written
    return frame


def received(headers: dict[str, str], dialect: Dialect = CLASSIC, body: bytes = b"{}") -> Delivery:
    return delivery_of(3, "exports", dialect, {"ack": "a-1", **headers}, body)


def there_and_back(headers: dict[str, str], dialect: Dialect = CLASSIC, body: bytes = b"{}") -> Delivery:
    """What arrives of a message, if the broker gave every header back as it got it."""
    frame: Any = parse_frame(on_the_wire(OutgoingMessage(Target.WORK, body, headers), dialect)[:-1])
    return received(frame.headers, dialect, frame.body)


# --- Messages ---------------------------------------------------------------------------------------------------------


@DIALECTS
def test_tricky_headers_come_back_as_they_went(dialect: Dialect) -> None:
    assert there_and_back(TRICKY, dialect).headers == TRICKY


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=6), st.binary(max_size=60))
def test_any_text_and_any_body_come_back_as_they_went(headers: dict[str, str], body: bytes) -> None:
    delivery = there_and_back({name: text for name, text in headers.items() if name != EXACT}, body=body)
    assert delivery.headers == {name: text for name, text in headers.items() if name != EXACT}
    assert delivery.body == body


@given(
    st.dictionaries(st.sampled_from(sorted(TRICKY)), st.text("\n\r:\0\\a7", max_size=12), max_size=8),
    st.text("\n\r:\0\\ax", max_size=9),
)
def test_no_header_makes_another_header_or_another_frame(headers: dict[str, str], name: str) -> None:
    """The frame's own lines are those of a message without any header, and one more for all that does not travel as it is."""
    message = OutgoingMessage(Target.WORK, b"body", {**headers, name: "x"})
    frame = on_the_wire(message)
    head, _, body = frame.partition(b"\n\n")
    assert body == b"body\0"
    assert b"\0" not in head
    lines = {line.partition(b":")[0].decode() for line in head.split(b"\n")[1:]}
    ours = {"content-length", "destination", "persistent", "receipt"}
    allowed = {name for name in message.headers if name in {"text", "empty", "blanks", "lines", "signs", "control"}}
    own = {name} if name and not set(name) & set("\n\r:\0\\") else set[str]()
    assert ours <= lines <= ours | {EXACT, "half", "nul"} | allowed | own
    frame_of_all: Any = parse_frame(frame[:-1])
    assert (frame_of_all.headers["destination"], frame_of_all.headers["receipt"]) == ("/queue/exports", "r-1")


@DIALECTS
def test_a_foreign_senders_properties_are_shown_and_are_properties_again(dialect: Dialect) -> None:
    theirs = {
        "correlation-id": "c",
        "reply-to": "/queue/answers",
        "type": "export",
        "priority": "7",
        "JMSXGroupID": "g",
    }
    delivery = received({**theirs, "content-type": "application/json", "mine": "1"}, dialect)
    again = OutgoingMessage(Target.LATER, b"", {**delivery.headers, "sw-hop": "1", "type": "other"}, 5)
    headers = frame_headers(again, dialect)
    assert headers == {
        **{name: text for name, text in theirs.items() if name != "type"},
        "content-type": "application/json",
        "mine": "1",
        "sw-hop": "1",
        EXACT: json.dumps({"headers": {"type": "other"}}),  # what was changed is a text of ours, and no property
        "AMQ_SCHEDULED_DELAY": "5000",
        **dialect.sent,
    }


def test_the_priority_that_brokers_add_to_each_message_is_no_header() -> None:
    assert received({"priority": "4"}).headers == {}
    assert received({"priority": "5"}).headers["priority"] == "5"
    assert there_and_back({"priority": "4"}).headers == {"priority": "4"}, "a sender of ours has set it"


@DIALECTS
def test_what_the_broker_wrote_is_named_and_not_published_again(dialect: Dialect) -> None:
    """Nor what would drop the copy, or send it a second time."""
    own = {"_AMQ_ORIG_QUEUE": "exports", "original-destination": "queue://exports", "JMSXDeliveryCount": "3"}
    frames = {"expires": "1", "timestamp": "1000", "receipt": "r", "destination": "d", "redelivered": "true"}
    schedule = {"AMQ_SCHEDULED_PERIOD": "1000", "AMQ_SCHEDULED_REPEAT": "9", "scheduledJobId": "s"}
    delivery = received({**own, **frames, **schedule, "mine": "1"}, dialect)
    assert delivery.brokers_own == {*own, *schedule} - {"scheduledJobId"}
    assert delivery.headers["original-destination"] == "queue://exports"
    assert not {*frames} & {*delivery.headers}
    again = frame_headers(OutgoingMessage(Target.DEAD, b"", delivery.headers), dialect)
    assert again == {"mine": "1", **dialect.sent}


@pytest.mark.parametrize(
    "forged",
    [
        *(
            "{",
            "[]",
            "7",
            "[" * 100_000,
            '{"headers": 1}',
            '{"headers": []}',
            '{"headers": {"a": 7}}',
            '{"brokers": 7}',
        ),
        *('{"properties": {"a": "x\\nb:c", "a\\nb": "x"}}', '{"brokers": {"a": "", "sw-job-key": ""}}'),
        json.dumps({"headers": {EXACT: "{}"}}),
    ],
    ids=lambda text: text[:40],
)
def test_a_forged_help_is_no_help(forged: str) -> None:
    """Neither from a sender nor in a message of ours: it makes no header of the frame, and removes none."""
    ours = {"a": "x", "sw-job-key": "k"}
    assert frame_headers(OutgoingMessage(Target.WORK, b"", {**ours, EXACT: forged}), CLASSIC) == {
        **ours,
        **CLASSIC.sent,
    }
    delivery = received({**ours, EXACT: forged})
    assert delivery.headers == ours
    assert there_and_back({**ours, EXACT: forged}).headers == ours


def test_a_forged_property_makes_no_line_of_the_frame() -> None:
    bad = {"a\nexpires": "1", "b": "c\0", "reply-to": "x\0SEND"}
    message = OutgoingMessage(Target.WORK, b"", {**bad, EXACT: json.dumps({"properties": bad})})
    assert {*frame_headers(message, CLASSIC)} == {EXACT, *CLASSIC.sent}


def test_a_body_is_handed_over_whole_whatever_it_is() -> None:
    delivery = received({}, body=b"\0" * (3 << 20))
    assert (len(delivery.body), delivery.size) == (3 << 20, 3 << 20)


def test_a_delay_is_in_milliseconds_and_never_zero() -> None:
    def delay(seconds: float, to: Target = Target.LATER) -> str | None:
        return frame_headers(OutgoingMessage(to, b"", {}, seconds), CLASSIC).get("AMQ_SCHEDULED_DELAY")

    assert [delay(1.5), delay(0.0001), delay(86400), delay(0)] == ["1500", "1", "86400000", None]
    assert delay(5, Target.DEAD) is None


@DIALECTS
def test_headers_that_grew_too_large_travel_behind_the_body_and_ours_stay(dialect: Dialect) -> None:
    ours = {"sw-job-key": "k" * 200, "sw-hop": "1", "short": "s"}
    theirs = {"long": "é:\n" * 20_000, "receipt": "r" * 30_000, "sw-reason": "r" * 30_000}
    frame, body = frame_of(OutgoingMessage(Target.LATER, b"{}", {**theirs, **ours}, 5), dialect)
    assert fits(frame)
    assert longest_line(frame) <= LINE_BYTES
    assert {name: frame[name] for name in ours} == ours
    assert frame["AMQ_SCHEDULED_DELAY"] == "5000"
    del frame["AMQ_SCHEDULED_DELAY"]  # as the broker does
    delivery = delivery_of(1, "exports", dialect, frame, body)
    assert (delivery.headers, delivery.body) == ({**theirs, **ours}, b"{}")


@DIALECTS
def test_a_property_that_is_too_long_for_a_line_stays_a_property_of_every_copy(dialect: Dialect) -> None:
    long = {"correlation-id": "c" * 20_000}
    first = delivery_of(1, "exports", dialect, {**long, "ack": "1"}, b"{}")
    for _ in range(2):
        frame, body = frame_of(OutgoingMessage(Target.LATER, first.body, first.headers, 5), dialect)
        assert fits(frame)
        first = delivery_of(1, "exports", dialect, {**frame, "ack": "2", "message-id": "m"}, body)
        assert first.headers["correlation-id"] == long["correlation-id"]
    replayed = frame_headers(OutgoingMessage(Target.WORK, first.body, first.headers), dialect)
    assert replayed["correlation-id"] == long["correlation-id"]


@DIALECTS
def test_no_header_behind_a_body_becomes_a_part_of_the_frame(dialect: Dialect) -> None:
    forged = b'{}{"ack": "9", "message-id": "9", "timestamp": "9", "destination": "9", "n": "1"}'
    frame = {"ack": "1", "message-id": "a,1", "sw-behind": "2"}
    delivery = delivery_of(1, "exports", dialect, frame, forged)
    assert (delivery.id, delivery.sent_at, delivery.headers) == ("1", None, {"n": "1"})
    assert delivery.message_id == dialect.message_id(frame)


def test_headers_that_are_too_many_travel_behind_the_body_and_ours_stay() -> None:
    ours = {"sw-job-key": "k", "sw-hop": "1"}
    theirs = {f"{'n' * (number // 100)}{number:04}": "" for number in range(950)}
    frame, body = frame_of(OutgoingMessage(Target.WORK, b"", {**theirs, **ours}), CLASSIC)
    assert fits(frame)
    assert {name: frame[name] for name in ours} == ours
    assert delivery_of(1, "exports", CLASSIC, frame, body).headers == {**theirs, **ours}


@pytest.mark.parametrize("text", ["a" * 9990, "é" * 4995, ":" * 4995, "\n" * 4995])
def test_the_size_of_a_line_is_that_on_the_wire(text: str) -> None:
    line = next(
        line for line in on_the_wire(OutgoingMessage(Target.WORK, b"", {"n": text})).split(b"\n") if line[:2] == b"n:"
    )
    assert longest_line({"n": text}) == len(line) + 1


# --- Dialects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "dialect", "version"),
    [
        ("ActiveMQ/6.3.1", CLASSIC, (6, 3, 1)),
        ("ActiveMQ/5.18.3", CLASSIC, (5, 18, 3)),
        ("ActiveMQ-Artemis/2.55.0 ActiveMQ Artemis Messaging Engine", ARTEMIS, (2, 55, 0)),
        ("ActiveMQ-Artemis/2.40.0.redhat-00004 x", ARTEMIS, (2, 40, 0)),
    ],
)
def test_a_broker_is_what_it_calls_itself(server: str, dialect: Dialect, version: tuple[int, ...]) -> None:
    assert dialect_of(server, None) is dialect
    assert version_of(server) == version


def test_another_broker_is_refused_with_the_remedy_and_a_forced_dialect_is_obeyed() -> None:
    with pytest.raises(ConfigError, match=r"RabbitMQ's STOMP plugin.*amqp://"):
        dialect_of("RabbitMQ/4.3.0", None)
    for server in ("", "Sprocket/1.0", "x" * 5000):
        with pytest.raises(ConfigError, match=r"\?dialect=classic or \?dialect=artemis") as caught:
            dialect_of(server, None)
        assert len(str(caught.value)) < 400
        assert dialect_of(server, "classic") is CLASSIC
        assert dialect_of(server, "artemis") is ARTEMIS
    assert version_of("Sprocket") == ()


def test_the_id_is_the_part_that_a_redelivery_keeps() -> None:
    assert CLASSIC.message_id({"message-id": "ID:host-1:7:-1:1:1"}) == "ID:host-1:7:-1:1:1"
    assert ARTEMIS.message_id({"message-id": "32,29"}) == ARTEMIS.message_id({"message-id": "77,29"}) == "29"
    assert ARTEMIS.message_id({"message-id": "77,81", "_AMQ_ORIG_MESSAGE_ID": "29"}) == "29", "of a dead letter"
    assert CLASSIC.message_id({}) is None
    assert ARTEMIS.message_id({"message-id": "29"}) is None


@pytest.mark.parametrize(
    ("dialect", "flag", "found"),
    [
        (CLASSIC, "true", Redelivered.YES),
        (CLASSIC, None, Redelivered.NO),
        (ARTEMIS, "true", Redelivered.YES),
        (ARTEMIS, "false", Redelivered.UNKNOWN),
    ],
)
def test_a_redelivery_is_known_as_far_as_the_broker_reports_it(
    dialect: Dialect, flag: str | None, found: Redelivered
) -> None:
    assert received({} if flag is None else {"redelivered": flag}, dialect).redelivered is found


def test_a_dead_letter_names_which_queue_it_comes_from() -> None:
    assert received({"original-destination": "queue://exports"}).origin == "exports"
    assert received({"original-destination": "/queue/exports"}).origin == "exports"
    assert received({"_AMQ_ORIG_QUEUE": "exports"}, ARTEMIS).origin == "exports"
    assert received({}).origin is None


def test_artemis_learns_each_time_that_a_name_is_a_queue() -> None:
    """Otherwise each worker process gets a copy, or a message without a consumer is lost."""
    assert ARTEMIS.sent["destination-type"] == ARTEMIS.subscribed["subscription-type"] == "ANYCAST"
    assert (CLASSIC.destination("a.b"), ARTEMIS.destination("a.b")) == ("/queue/a.b", "a.b")
    for dialect in (CLASSIC, ARTEMIS):
        assert dialect.sent["persistent"] == "true"
        assert dialect.subscribed.items() >= {("activemq.prefetchSize", "1"), ("consumer-window-size", "0")}


# --- Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["exports", "payment-exports", "a.b_c", "shop/exports", "Ausfuhr-Überweisung", "n" * 195]
)
def test_names_that_both_brokers_accept_as_they_are(name: str) -> None:
    check_names(QueueSpec(name, f"{name}.dead"))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "a,b",
            "a*",
            "a>",
            "a#b",
            "a?b=1",
            "a&b",
            "a:b",
            "a::b",
            " a",
            "a ",
            "a b",
            "a\tb",
            "a\nb",
            "a\0b",
            "a\x85",
        ),
        *("/queue/a", "ActiveMQ.DLQ", "activemq.management", "$sys.x", "n" * 201, "é" * 101, "a\ud800"),
    ],
)
def test_a_name_that_a_broker_reads_otherwise_is_refused(name: str) -> None:
    """As several queues, as a wildcard, with options, trimmed, or as a queue of the broker's own."""
    with pytest.raises(ConfigError, match="queue name for STOMP"):
        check_names(QueueSpec(name, "dead"))
    with pytest.raises(ConfigError, match="queue name for STOMP"):
        check_names(QueueSpec("work", name))


def test_one_queue_for_jobs_and_dead_letters_is_refused() -> None:
    with pytest.raises(ConfigError, match="other than the work queue, got 'a': name another"):
        check_names(QueueSpec("a", "a"))


def test_a_delayed_message_waits_in_the_scheduler_of_its_work_queue() -> None:
    spec = QueueSpec("a", "a.dead")
    queues = {to: queue_of(spec, OutgoingMessage(to, b"", {})) for to in Target}
    assert queues == {Target.WORK: "a", Target.LATER: "a", Target.DEAD: "a.dead"}


# --- Errors -----------------------------------------------------------------------------------------------------------

LEAK = "c4n4ry"


def error_frame(message: str, body: str = "", **headers: str) -> BrokerError:
    return BrokerError.of({"message": message, **headers}, body.encode())


def expired() -> ssl.SSLCertVerificationError:
    """As OpenSSL finds a broker's certificate that is too old."""
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.verify_code, error.verify_message = 10, "certificate has expired"
    return error


@pytest.mark.parametrize(
    ("error", "final", "part"),
    [
        (error_frame("User name [bob] or password is invalid."), True, "user and password"),
        (error_frame("Security Error occurred: User name [bob] or password is invalid"), True, "user and password"),
        (error_frame("Bad CONNECT", "Virtual host 'h' access denied"), True, "with an amqp:// URL"),
        (error_frame("User bob is not authorized to read from: queue://exports"), True, "grant the user read"),
        (error_frame("User bob is not authorized to write to: queue://exports"), True, "grant the user"),
        (error_frame("Broker: b1 - Client: w already connected from tcp://127.0.0.1:1"), False, "earlier connection"),
        (error_frame("AMQ339018 Error acknowledging message 1"), False, "AMQ339018"),
        (error_frame("AMQ339016 Error creating subscription 1"), False, "AMQ339016"),
        (error_frame("The maximum frame size was exceeded"), False, "frame size"),
        (error_frame("", ""), False, "without a text"),
        (Foreign(), True, "not STOMP 1.2"),
        (Silent("nothing from the broker for 30 s"), False, "frozen or overloaded"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), True, "61612 for stomp+ssl:"),
        (expired(), True, "renew the broker's certificate"),
        (ssl.SSLError(1, "[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert"), True, "renew the file that ?certfile="),
        (ssl.SSLError(1, "[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert"), True, "truststore"),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), False, "TLS handshake"),
        (ConnectionResetError(0, "the broker closed the connection"), False, "the broker closed"),
        (ConnectionRefusedError(111, "Connection refused"), False, "Connection refused"),
        (TimeoutError(), False, "no reply in time"),
        (KeyError("defect"), False, "defect"),
    ],
    ids=str,
)
def test_every_error_of_the_client_is_one_of_ours(error: BaseException, final: bool, part: str) -> None:
    ours = unavailable(error, "h:61613")
    assert isinstance(ours, Refused) is final
    assert part in str(ours)
    assert "h:61613" in str(ours)
    assert ours.__cause__ is error


def test_errors_of_ours_pass_and_others_are_what_they_are_to_be() -> None:
    with pytest.raises(PublishFailed, match="refused"), translated("h", PublishFailed):
        raise ConnectionRefusedError(111, "refused")
    with pytest.raises(PublishFailed, match="away"), translated("h", PublishFailed):
        raise BrokerUnavailable("away")
    with pytest.raises(Refused, match="no"), translated("h"):
        raise Refused("no")


def test_an_error_names_its_request_and_has_one_short_line() -> None:
    """Classic adds a stack of Java, Artemis nothing."""
    stack = (
        "org.apache.activemq.transport.stomp.ProtocolException: Unexpected ACK\n\tat org.apache.a\n\tat org.apache.b"
    )
    classic = error_frame("Unexpected ACK", stack, **{"receipt-id": "r-1"})
    assert (str(classic), classic.receipt) == ("Unexpected ACK", "r-1")
    assert (str(error_frame("AMQ339018 no", "")), error_frame("x").receipt) == ("AMQ339018 no", "")
    assert len(str(error_frame("x" * 5000, "y" * 5000))) == 200


def test_an_error_repeats_no_message_and_no_frame() -> None:
    """Artemis puts all headers of a refused message, and every byte of an invalid frame, into its error."""
    core = f"CoreMessage[messageID=429, properties=TypedProperties[receipt=r8, token={LEAK}]]@98740808"
    refused = error_frame(f"AMQ339011 Error sending message {core}")
    assert str(refused) == "AMQ339011 Error sending message"
    spelt = ",".join(LEAK)
    invalid = error_frame(f"AMQ339023 Invalid STOMP frame {spelt}", f"AMQ339024: Invalid STOMP frame: {spelt}")
    assert str(invalid) == "AMQ339023 Invalid STOMP frame: AMQ339024: Invalid STOMP frame"


# --- On real brokers --------------------------------------------------------------------------------------------------


def test_tricky_headers_come_back_from_a_broker_as_they_went(stomp_broker: StompBroker, queue: str) -> None:
    """They are written by stomp.py, and read by a witness that shares no code with it."""
    dialect = ARTEMIS if stomp_broker.is_artemis else CLASSIC
    body = bytes(range(256))
    message = OutgoingMessage(Target.WORK, body, TRICKY)
    wire = Wire()
    ours = {"content-length": str(len(body)), "receipt": "r-1"}
    Protocol12(wire).send(dialect.destination(queue), body, headers={**frame_headers(message, dialect), **ours})
    with stomp_broker.client() as client:
        client.send_raw(wire.written[0])
        client.expect("RECEIPT")
        client.subscribe(queue)
        frame = client.message()
        client.ack(frame)
    delivery = delivery_of(1, queue, dialect, frame.headers, frame.body)
    assert delivery.headers == TRICKY
    assert delivery.body == body
    assert delivery.message_id
