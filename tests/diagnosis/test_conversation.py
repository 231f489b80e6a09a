"""Conversations that no broker is needed for: silences, bytes that were missed, both protocols in every state."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands, frame, header

from steadyworker.diagnosis.conversation import Conversation, Known
from steadyworker.diagnosis.line import MOST_FLAGS
from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import Event, Wire
from tests.diagnosis.amqp_client import LARGEST_BODY, OPENING, publish
from tests.diagnosis.told import BEAT, START, Told, stomp

pytestmark = pytest.mark.long


def deliver(tag: int) -> bytes:
    message = publish("jobs", b"{}").partition(b"\xce")[2]  # without its method
    return frame.marshal(commands.Basic.Deliver("ctag", tag, exchange="", routing_key="jobs"), 1) + message


def test_a_client_that_leaves_before_the_broker_is_reached_is_opened_and_closed() -> None:
    """Nothing is known of the broker then, so it refused nothing."""
    events: list[Event] = []
    it = Conversation(Wire(0.0, [events.append]), 1, Known.at(5672))
    it.opened(1.0, {"client": "127.0.0.1:1"})
    it.data(1.0, Side.CLIENT, stomp("CONNECT", {}))
    it.ended(2.0, Side.CLIENT, "reset")
    it.closed(2.0)
    assert [(event["kind"], event.get("client"), event.get("how")) for event in events] == [
        ("open", "127.0.0.1:1", None),
        ("frame", None, None),
        ("close", None, "reset"),
    ]


# --- Silence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [Side.CLIENT, Side.BROKER])
def test_a_late_beat_has_its_side_and_its_lateness(late: Side) -> None:
    told = Told()
    told.amqp(beat=4)
    say = {Side.CLIENT: told.client, Side.BROKER: told.broker}
    for _ in range(4):
        say[late.other](BEAT, after=2.0)
    assert told.flags == ["amqp.late-heartbeat" if late is Side.CLIENT else "amqp.broker-silent"]
    say[late](BEAT, after=0.5)
    (flag,) = told.of("flag")
    assert flag["level"] == "warning"
    assert flag["what"].startswith(f"The {late.label} sent nothing for 4.4 s, and had agreed to a heartbeat of 4 s")
    about = "Run jobs outside of the thread" if late is Side.CLIENT else "Look at the broker's host"
    assert flag["remedy"].startswith(about)
    (gap,) = told.of("gap")
    assert (gap["from"], gap["seconds"], gap["allowed"]) == (late.label, 8.5, 4)


def test_beats_in_time_are_no_flag() -> None:
    told = Told()
    told.amqp(beat=4)
    for _ in range(20):
        told.client(BEAT, after=1.0)
        told.broker(BEAT, after=1.0)
        told.client(BEAT, after=1.5)
        told.broker(BEAT, after=0.5)
    assert told.flags == []
    assert told.of("gap") == []


def test_a_close_of_a_silent_connection_names_both_sides() -> None:
    told = Told()
    told.amqp(beat=4)
    for _ in range(6):
        told.broker(BEAT, after=2.0)
    told.it.ended(told.t, Side.BROKER, "reset")
    told.it.closed(told.t)
    assert [(event["level"], event["id"]) for event in told.of("flag")] == [
        ("warning", "amqp.late-heartbeat"),
        ("error", "amqp.late-heartbeat"),
    ]
    assert told.of("flag")[-1]["what"] == (
        "The client sent nothing for 12.0 s, and had agreed to a heartbeat of 4 s: it is 8.0 s late, and the broker closed the connection."
    )
    assert [event["seconds"] for event in told.of("gap")] == [12.0]


def test_no_heartbeat_is_agreed_and_no_silence_is_late() -> None:
    told = Told()
    told.amqp(beat=0)
    told.wait(3600)
    assert told.flags == []


@pytest.mark.parametrize("end", [b"\n", b""])
def test_the_end_of_line_behind_a_frame_is_no_heartbeat_and_a_later_one_is(end: bytes) -> None:
    told = Told(61613)
    told.stomp("300,0", "0,300")
    told.client(stomp("SEND", {"destination": "/queue/jobs"}, b"{}") + end)
    assert told.of("heartbeat") == []
    told.client(b"\n", after=0.1)
    assert len(told.of("heartbeat")) == 1


def test_a_stomp_broker_that_is_silent_has_a_remedy_about_the_broker() -> None:
    told = Told(61613)
    told.stomp("0,500", "500,0")
    told.wait(2.0)
    assert told.flags == ["stomp.broker-silent"]
    assert told.of("flag")[0]["remedy"].startswith("Look at the broker's host")


@pytest.mark.parametrize(
    ("asked", "given", "client"),
    [
        *((wrong, "0,1000", 0.0) for wrong in ("0,0\x1f", "1000\x1c,0", "\u00b2,0", "\u0661,0")),
        ("1000 ,\t0", "0, 2000", 2.0),
    ],
)
def test_a_heart_beat_header_may_have_blanks_and_nothing_else_beside_its_numbers(
    asked: str, given: str, client: float
) -> None:
    told = Told(61613)
    told.stomp(asked, given)
    assert told.of("tuned")[0]["heartbeat_client"] == client


def test_an_acknowledgement_after_a_rollback_is_no_flag() -> None:
    told = Told()
    told.amqp()
    told.client(commands.Tx.Select())
    told.broker(commands.Tx.SelectOk())
    told.consume(20)
    told.broker(deliver(1))
    told.client(commands.Basic.Ack(1), commands.Tx.Rollback())
    told.broker(commands.Tx.RollbackOk())
    told.client(commands.Basic.Ack(1), commands.Tx.Commit())
    assert told.flags == []


def test_a_message_of_two_subscriptions_is_acknowledged_once_in_each() -> None:
    """In STOMP 1.1, a topic gives both the same message-id, and the ACK names the subscription."""
    told = Told(61613)
    told.stomp()
    for name in ("1", "2"):
        told.client(stomp("SUBSCRIBE", {"id": name, "destination": "/topic/jobs", "ack": "client-individual"}))
        told.broker(stomp("MESSAGE", {"subscription": name, "message-id": "m"}, b"{}"))
    for name in ("1", "2", "2"):
        assert told.flags == []
        told.client(stomp("ACK", {"subscription": name, "message-id": "m"}))
    assert told.flags == ["stomp.double-ack"]


def test_an_acknowledgement_after_an_abort_is_no_flag() -> None:
    told = Told(61613)
    told.stomp()
    told.client(stomp("SUBSCRIBE", {"id": "0", "destination": "/queue/a", "ack": "client-individual"}))
    told.broker(stomp("MESSAGE", {"subscription": "0", "message-id": "m1", "ack": "a1", "destination": "/queue/a"}))
    for transaction in ("t1", "t2"):
        told.client(stomp("ACK", {"id": "a1", "transaction": transaction}))
        told.client(stomp("ABORT", {"transaction": transaction}))
    assert told.flags == []
    told.client(stomp("ACK", {"id": "a1"}), stomp("ACK", {"id": "a1"}))
    assert "stomp.double-ack" in told.flags


@pytest.mark.parametrize(
    ("port", "closes", "flags"),
    [
        (5671, Side.CLIENT, []),
        (5671, Side.BROKER, []),
        (7777, Side.CLIENT, []),
        (7777, Side.BROKER, ["amqp.tls-on-port"]),
        (5672, Side.CLIENT, ["amqp.tls-on-port"]),
        (5672, Side.BROKER, ["amqp.tls-on-port"]),
    ],
)
def test_tls_without_a_byte_of_the_broker_is_a_flag_at_a_plain_port_or_if_the_broker_closes(
    port: int, closes: Side, flags: list[str]
) -> None:
    told = Told(port)
    told.client(b"\x16\x03\x01\x00\x10\x01" + b"x" * 15)
    told.it.ended(0.1, closes, "fin")
    assert told.flags == flags
    assert len(told.of("skipped")) == (0 if flags else 1)


@pytest.mark.parametrize(("side", "flag"), [(Side.BROKER, "broker-not-reading"), (Side.CLIENT, "peer-not-reading")])
@pytest.mark.parametrize("family", ["amqp", "stomp"])
def test_the_remedy_is_about_the_side_that_does_not_read(family: str, side: Side, flag: str) -> None:
    told = Told(5672 if family == "amqp" else 61613)
    told.amqp() if family == "amqp" else told.stomp()
    told.it.blocked(told.t, side, blocked=True, waiting=100_000)
    told.wait(5.0)
    assert told.flags == [f"{family}.{flag}"]


@pytest.mark.parametrize("side", Side)
def test_a_side_that_cannot_be_read_is_not_silent(side: Side) -> None:
    told = Told()
    told.amqp(beat=2)
    told.it.blocked(told.t, side, blocked=True, waiting=100_000)
    told.wait(3.0)
    assert told.flags == ["amqp.late-heartbeat" if side is Side.CLIENT else "amqp.broker-silent"]
    told.it.blocked(told.t, side, blocked=False, waiting=0)
    told.wait(2.0)
    assert len(told.flags) == 1
    told.wait(1.0)
    assert len(set(told.flags)) == 2


@pytest.mark.parametrize(("closes", "flags"), [(Side.CLIENT, ["amqp.broker-not-reading"]), (Side.BROKER, [])])
def test_a_close_by_the_side_that_could_not_write_names_the_other_one(closes: Side, flags: list[str]) -> None:
    told = Told()
    told.amqp()
    told.it.blocked(told.t, Side.BROKER, blocked=True, waiting=100_000)
    told.wait(2.0)
    (queue,) = told.of("queue")
    assert (queue["side"], queue["bytes"], queue["since"]) == ("broker", 100_000, 1.0)
    told.it.ended(told.t, closes, "reset")
    assert told.flags == flags


def test_a_side_that_does_not_read_because_its_peer_does_not_read_is_not_named() -> None:
    told = Told()
    told.amqp()
    told.it.blocked(told.t, Side.BROKER, blocked=True, waiting=100_000)
    told.wait(1.0)
    told.it.blocked(told.t, Side.CLIENT, blocked=True, waiting=100)
    told.wait(10.0)
    assert told.flags == ["amqp.broker-not-reading"]


# --- Logins and ports -------------------------------------------------------------------------------------------------


REFUSED = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."


@pytest.mark.parametrize("closes", [[commands.Connection.Close(403, REFUSED, 0, 0)], []])
def test_a_refused_login_is_named(closes: list[base.Frame]) -> None:
    """A client without the capability `authentication_failure_close` gets no Connection.Close."""
    told = Told()
    told.client(OPENING)
    told.broker(START)
    told.client(commands.Connection.StartOk(response="\0guest\0hunter2"))
    told.broker(*closes)
    told.it.ended(told.t, Side.BROKER, "fin")
    assert told.flags == ["rabbitmq.login-refused"]
    assert "hunter2" not in json.dumps(told.events)


def test_a_refusal_of_a_queue_is_no_refused_login() -> None:
    told = Told()
    told.amqp()
    told.broker(commands.Connection.Close(403, "ACCESS_REFUSED - access to vhost 'x' refused", 10, 40))
    assert told.flags == ["amqp.connection-error"]


@pytest.mark.parametrize("reason", ["User name [u] or password is invalid.", "Bad CONNECT", "Security Error occurred"])
def test_a_refused_login_of_stomp_is_named(reason: str) -> None:
    told = Told(61613)
    told.client(stomp("CONNECT", {"login": "u", "passcode": "hunter2"}))
    told.broker(stomp("ERROR", {"message": reason}))
    assert told.flags == ["stomp.login-refused"]


ALERT = b"\x15\x03\x03\x00\x02\x02\x0a"
HELLO = b"\x16\x03\x01\x00\x10\x01" + b"x" * 15
CONNECT = stomp("CONNECT", {"accept-version": "1.2", "passcode": "hunter2"})
HTTP = b"GET /health HTTP/1.1\r\nHost: rabbit\r\nAuthorization: Basic hunter2\r\n\r\n"


@pytest.mark.parametrize(
    ("port", "first", "answer", "flag"),
    [
        (5672, OPENING, ALERT, "amqp.plain-on-tls-port"),
        (5671, OPENING, b"", "amqp.plain-on-tls-port"),
        (61613, CONNECT, ALERT, "stomp.plain-on-tls-port"),
        (5672, HTTP, OPENING, "amqp.http-on-port"),
        (5672, HELLO, OPENING, "amqp.tls-on-port"),
        (5672, CONNECT, b"", "amqp.stomp-on-port"),
        (61613, HTTP, b"", "stomp.http-on-port"),
        (61613, HELLO, b"", "stomp.tls-on-port"),
        (61613, OPENING, b"", "trace.unparsable"),
    ],
)
def test_a_client_of_another_protocol_than_the_brokers_is_named(
    port: int, first: bytes, answer: bytes, flag: str
) -> None:
    """The answers are those of RabbitMQ and ActiveMQ."""
    told = Told(port)
    told.client(first)
    if answer:
        told.broker(answer)
    told.it.ended(0.1, Side.BROKER, "fin")
    assert told.flags == [flag]
    assert "hunter2" not in json.dumps(told.events)


# --- Frames that do not fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", ["3", "20", "five"])
def test_a_wrong_content_length_is_named(length: str) -> None:
    told = Told(61613)
    told.stomp()
    told.client(stomp("SEND", {"destination": "/queue/jobs", "content-length": length}, b"12345"))
    told.client(stomp("SEND", {"destination": "/queue/jobs"}, b"{}")[:12])
    told.it.ended(told.t, Side.CLIENT, "fin")
    assert told.flags[0] == "stomp.content-length"
    assert "stomp.frame-cut" not in told.flags[:1]


@pytest.mark.parametrize(("size", "whole"), [(500, True), (500, False), (100_000, True)])
def test_a_second_header_inside_of_a_frame_is_named(size: int, *, whole: bool) -> None:
    """A forked process connects again with the socket of its parent, which is in the middle of a write."""
    told = Told()
    told.amqp()
    message = publish("jobs", b"x" * size)
    told.client(message[: size // 3], OPENING, *([message[size // 3 :]] if whole else []))
    told.it.ended(told.t, Side.CLIENT, "fin")
    (flag,) = told.of("flag")
    assert flag["id"] == "amqp.second-header"
    assert "inside of a frame" in flag["what"]
    assert flag["evidence"][-1]["characters"] == "AMQP protocol header"


def test_a_body_that_contains_a_protocol_header_is_no_flag() -> None:
    told = Told()
    told.amqp()
    told.client(publish("jobs", b"x" * 1000 + OPENING))
    assert told.flags == []


def test_a_frame_that_another_one_cuts_is_found_in_bytes_that_came_before() -> None:
    cut, inner = publish("jobs", bytes(2_000)), frame.marshal(commands.Queue.Declare(queue="inside"), 2)
    told = Told()
    told.amqp()
    told.client(cut[:500], inner, cut[500:-500], cut[-500:])
    assert told.flags == ["amqp.interleaved-frames"]
    (flag,) = told.of("flag")
    assert "another method frame begins 431 bytes behind its first byte" in flag["what"]


def test_the_ids_that_an_application_gave_are_shortened() -> None:
    told = Told()
    told.amqp()
    properties = commands.Basic.Properties(message_id="customer-4711-jane-doe", correlation_id="invoice-of-jane-doe")
    told.client(commands.Basic.Publish(routing_key="jobs"), frame.marshal(header.ContentHeader(0, 0, properties), 1))
    written = json.dumps(told.events)
    assert told.of("content")[0]["properties"]["message_id"] == "customer…"
    assert "jane" not in written


# --- Deliveries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefetch", "flags"), [(0, ["amqp.unlimited-prefetch"]), (1000, [])])
def test_a_pile_of_deliveries_without_a_prefetch_is_flagged_once(prefetch: int, flags: list[str]) -> None:
    told = Told()
    told.amqp()
    told.consume(prefetch)
    for tag in range(1, 500):
        told.broker(deliver(tag))
    assert told.flags == flags
    for flag in told.of("flag"):
        assert flag["evidence"] == [{"consumer": "ctag", "queue": "jobs", "prefetch": "none", "waiting": 300}]


def test_acks_in_any_order_are_no_flag() -> None:
    told = Told()
    told.amqp()
    told.consume(20)
    for tag in range(1, 21):
        told.broker(deliver(tag))
    told.client(
        commands.Basic.Ack(3), commands.Basic.Nack(1), commands.Basic.Reject(2), commands.Basic.Ack(10, multiple=True)
    )
    told.client(commands.Basic.Ack(20), commands.Basic.Ack(0, multiple=True))
    assert told.flags == []
    told.client(commands.Basic.Ack(7))
    assert told.flags == ["amqp.double-ack"]


@pytest.mark.parametrize(
    ("method", "flag"),
    [
        (commands.Channel.Close(406, "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms.", 0, 0), "amqp.delivery-timeout"),
        (commands.Channel.Close(406, "PRECONDITION_FAILED - unknown delivery tag 1", 60, 80), "amqp.unknown-delivery-tag"),
        (commands.Channel.Close(404, "NOT_FOUND - no queue 'x' in vhost '/'", 50, 10), "amqp.channel-error"),
        (commands.Connection.Close(320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'", 0, 0), "amqp.connection-forced"),
        (commands.Connection.Close(501, "FRAME_ERROR - type 65, all octets = <<>>: {frame_too_large,1342177289,131064}", 0, 0), "amqp.second-header"),
        (commands.Connection.Close(501, "FRAME_ERROR - type 2, all octets = <<>>: {frame_too_large,200029,131064}", 0, 0), "amqp.frame-too-large"),
        (commands.Connection.Close(501, "FRAME_ERROR - type 8, all octets = <<>>: {invalid_frame_end_marker,0}", 0, 0), "amqp.invalid-frame-end"),
        (commands.Connection.Close(504, "CHANNEL_ERROR - expected 'channel.open'", 60, 40), "amqp.dead-channel"),
        (commands.Connection.Close(505, "UNEXPECTED_FRAME - expected content header for class 60", 60, 40), "amqp.interleaved-frames"),
        (commands.Connection.Close(541, "INTERNAL_ERROR", 50, 10), "rabbitmq.internal-error"),
    ],
)  # fmt: skip
def test_the_brokers_text_at_a_close_is_flagged(method: base.Frame, flag: str) -> None:
    told = Told()
    told.amqp()
    told.broker(method)
    assert told.flags == [flag]


def test_an_old_flag_explains_no_later_close() -> None:
    told = Told()
    told.amqp()
    told.broker(commands.Channel.Close(404, "NOT_FOUND - no queue 'x' in vhost '/'", 50, 10))
    told.broker(commands.Connection.Close(320, "CONNECTION_FORCED - shutdown", 0, 0), after=60)
    assert told.flags == ["amqp.channel-error", "amqp.connection-forced"]


def test_a_client_that_does_not_wait_for_open_ok_is_no_flag() -> None:
    told = Told()
    told.amqp()
    told.client(commands.Channel.Open(), publish("jobs", b"{}", 2), channel=2)
    told.broker(commands.Channel.OpenOk(), channel=2)
    assert told.flags == []
    told.client(commands.Channel.Open(), channel=2)
    assert told.flags == ["amqp.channel-opened-twice"]


def test_a_normal_close_is_no_flag() -> None:
    told = Told()
    told.amqp()
    told.broker(commands.Connection.Close(200, "Goodbye", 0, 0))
    told.client(commands.Connection.CloseOk())
    told.it.ended(told.t, Side.BROKER, "fin")
    assert told.flags == []


def test_a_flood_of_one_flag_is_counted_and_not_listed() -> None:
    told = Told()
    told.amqp()
    for tag in range(1, 101):
        told.client(commands.Basic.Ack(tag))
    told.it.closed(told.t)
    assert told.flags == ["amqp.unknown-delivery-tag"] * MOST_FLAGS
    assert told.wire.flags["amqp.unknown-delivery-tag"] == 100


# --- Bytes that were missed -------------------------------------------------------------------------------------------


def test_reading_goes_on_behind_bytes_that_were_missed() -> None:
    """In the middle of a body, and without a word about tags or frames whose beginning was not read."""
    told = Told()
    told.amqp()
    told.consume(10)
    stream = b"".join(deliver(tag) for tag in range(1, 40))
    cut = len(stream) // 2 - 20
    told.broker(stream[:100])
    told.it.missed(told.t, Side.BROKER, cut - 100)
    for at in range(cut, len(stream), 37):
        told.broker(stream[at : at + 37])
    told.client(commands.Basic.Ack(39), commands.Basic.Ack(39))
    told.it.ended(told.t, Side.BROKER, "fin")
    assert told.flags == []
    tags = [event["delivery_tag"] for event in told.of("method") if event["name"] == "Basic.Deliver"]
    assert tags[0] == 1
    assert tags[-1] == 39
    assert 15 < len(tags) < 25
    assert told.wire.skipped == cut - 100


def test_stomp_goes_on_behind_bytes_that_were_missed() -> None:
    told = Told(61613)
    told.stomp()
    stream = b"".join(stomp("MESSAGE", {"message-id": f"m{n}"}, b"MESSAGE in a body") + b"\n" for n in range(20))
    told.broker(stream[:20])
    told.it.missed(told.t, Side.BROKER, 280)
    for at in range(300, len(stream), 7):
        told.broker(stream[at : at + 7])
    told.it.ended(told.t, Side.BROKER, "fin")
    assert told.flags == []
    assert told.of("frame")[-1]["headers"]["message-id"] == "m19"


@given(cut=st.integers(0, 3000), step=st.integers(1, 500))
def test_any_place_can_be_the_first_after_a_gap(cut: int, step: int) -> None:
    told = Told()
    told.amqp()
    stream = b"".join(publish(f"q{n}", bytes([0xCE, 1, 0, 1] * 30)) for n in range(30))
    told.it.missed(told.t, Side.CLIENT, cut)
    for at in range(cut, len(stream), step):
        told.client(stream[at : at + step])
    assert told.flags == []
    assert told.of("method")[-1]["routing_key"] == "q29"


def test_a_search_keeps_few_bytes() -> None:
    told = Told()
    told.amqp()
    told.it.missed(0.0, Side.CLIENT, 1)
    for _ in range(100):
        told.client(bytes([1, 0, 1, 0, 0, 0, 9, 0, 60, 0, 40]) * 1000)
        assert len(told.it._searching[Side.CLIENT]) < 2 * 131_072


def test_a_client_of_another_protocol_that_gets_no_answer_takes_no_memory() -> None:
    told = Told()
    for _ in range(100):
        told.client(b"POST / HTTP/1.1\r\n" + bytes(10_000))
    assert told.flags == ["amqp.http-on-port"]
    assert not told.it._first


# --- The whole --------------------------------------------------------------------------------------------------------


@given(
    data=st.binary(max_size=300), side=st.sampled_from(Side), begun=st.booleans(), port=st.sampled_from([5672, 61613])
)
def test_any_bytes_can_pass_and_every_flag_is_known(data: bytes, side: Side, port: int, *, begun: bool) -> None:
    told = Told(port)
    if begun:
        told.amqp() if port == 5672 else told.stomp()
    told.it.data(1.0, side, data)
    told.it.ended(2.0, side, "fin")
    told.it.data(3.0, side.other, data)
    told.it.ended(4.0, side.other, "reset")
    told.it.closed(5.0)
    json.dumps(told.events)


def test_a_large_message_is_one_event() -> None:
    told = Told()
    told.amqp()
    told.client(publish("jobs", bytes(3 * LARGEST_BODY)))
    (body,) = told.of("body")
    assert (body["frames"], body["size"]) == (3, 3 * (LARGEST_BODY + 8))
