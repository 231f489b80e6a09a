"""RocketMQ conversations that no broker is needed for: each flag, replies that are none, bytes that were missed, and what no event has."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import FLAGS
from tests.diagnosis.amqp_client import OPENING
from tests.diagnosis.page_kit import check, headline, page_of
from tests.diagnosis.remoting_frames import as_binary, as_json, properties
from tests.diagnosis.test_conversation import Told, stomp

SEND, PULL, HEART_BEAT, SEND_BACK, MEMBERS, CHECK, ROUTE, SEND_V2 = 10, 11, 34, 36, 38, 39, 105, 310
REPLY, ONE_WAY = 1, 2
GROUP = "g" * 121
SENT_BACK = {"group": GROUP, "originTopic": "jobs", "offset": "7", "delayLevel": "0", "AccessKey": "my-key"}
COPY = {"a": "p", "b": f"%RETRY%{GROUP}", "i": properties(TRAN_MSG="true", token="hunter2", DELAY="3")}

Write = Callable[..., bytes]


def asked(code: int, fields: dict[str, str], reply: int, remark: str) -> Told:
    told = Told(10911)
    told.client(as_json(code, 7, fields, b"hunter2"))
    told.broker(as_json(reply, 7, flag=REPLY, remark=remark))
    return told


@pytest.mark.parametrize(
    ("reply", "remark"),
    [
        (13, "the message is illegal, maybe msg body or properties length not matched"),
        (1, "MESSAGE_ILLEGAL"),
        (1, "The specified topic is longer than topic max length 127."),
    ],
)
def test_a_refused_retry_and_its_fallback_are_the_story(reply: int, remark: str) -> None:
    told = asked(SEND_BACK, SENT_BACK, reply, remark)
    told.client(as_json(SEND_V2, 8, COPY, b"hunter2"))
    told.broker(as_json(reply, 8, flag=REPLY, remark=remark))
    assert told.flags == ["rocketmq.illegal-retry-topic", "rocketmq.half-topic-grows", "rocketmq.illegal-retry-topic"]
    cause, circle, _ = told.of("flag")
    assert "%RETRY% and the name of the consumer group, has 128 characters" in cause["what"]
    assert cause["remedy"] == (
        "Give the group a name of at most 120 characters that does not depend on topic and tags."
    )
    assert "The client (JAVA 4.9.7) sends this copy because the broker refused the retry" in circle["what"]
    assert "first cause: a refused retry (rocketmq.illegal-retry-topic)" in circle["remedy"]
    page = page_of(told.events)
    check(page)
    assert headline(page).startswith("The broker refused a retry (CONSUMER_SEND_MSG_BACK)")


def test_a_refused_retry_of_a_short_group_has_another_cause() -> None:
    assert asked(SEND_BACK, {**SENT_BACK, "group": "g" * 120}, 13, "illegal").flags == ["rocketmq.message-illegal"]


def test_a_refused_retry_of_a_long_group_for_another_reason_is_no_story() -> None:
    assert asked(SEND_BACK, SENT_BACK, 2, "[TIMEOUT_CLEAN_QUEUE]broker busy").flags == ["rocketmq.broker-busy"]


def test_a_half_message_of_a_producer_is_no_flag() -> None:
    told = asked(SEND_V2, {"a": "p", "b": "jobs", "i": properties(TRAN_MSG="true")}, 0, "")
    assert told.flags == []
    assert told.of("frame")[0]["headers"] == {"topic": "jobs", "producerGroup": "p", "TRAN_MSG": "true"}


@pytest.mark.parametrize(
    ("code", "fields", "reply", "remark", "flag"),
    [
        (SEND, {"topic": "jobs"}, 2, "[REJECTREQUEST]system busy", "rocketmq.broker-busy"),
        (SEND, {"topic": "jobs"}, 10, "", "rocketmq.flush-timeout"),
        (SEND, {"topic": "jobs"}, 11, "", "rocketmq.no-replica"),
        (SEND, {"topic": "jobs"}, 13, "illegal", "rocketmq.message-illegal"),
        (SEND, {"topic": "jobs"}, 14, "service not available now", "rocketmq.store-unavailable"),
        (SEND, {"topic": "jobs"}, 16, "the broker[a] sending message is forbidden", "rocketmq.forbidden"),
        (SEND, {"topic": "nope"}, 17, "topic[nope] not exist", "rocketmq.topic-missing"),
        (ROUTE, {"topic": "nope"}, 17, "No topic route info", "rocketmq.no-route"),
        (PULL, {"topic": "jobs"}, 21, "", "rocketmq.offset-moved"),
        (PULL, {"topic": "jobs"}, 23, "parse the consumer's subscription failed", "rocketmq.filter-expression"),
        (PULL, {"topic": "jobs"}, 26, "subscription group [g] does not exist", "rocketmq.group-missing"),
        (SEND, {"topic": "jobs"}, 1, "java.lang.NullPointerException", "rocketmq.error-reply"),
        (99, {}, 4711, "", "rocketmq.error-reply"),
    ],
)
def test_an_error_of_the_server_is_a_warning(
    code: int, fields: dict[str, str], reply: int, remark: str, flag: str
) -> None:
    told = asked(code, fields, reply, remark)
    assert [(event["id"], event["level"]) for event in told.of("flag")] == [(flag, "warning")]
    assert fields.get("topic", "") in told.of("flag")[0]["what"]


@pytest.mark.parametrize(
    ("code", "fields", "reply", "remark"),
    [
        (PULL, {"topic": "jobs"}, 19, "OFFSET_OVERFLOW_ONE"),
        (PULL, {"topic": "jobs"}, 20, "NO_MATCHED_MESSAGE"),
        (PULL, {"topic": "jobs"}, 24, "the consumer's subscription not exist"),
        (PULL, {"topic": "jobs"}, 25, "the consumer's subscription not latest"),
        (14, {"topic": "jobs"}, 22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"),
        (ROUTE, {"topic": "%RETRY%jobs"}, 17, "No topic route info in name server for the topic: %RETRY%jobs"),
        (MEMBERS, {"consumerGroup": "jobs"}, 1, "no consumer for this group, jobs"),
    ],
)
def test_an_ordinary_reply_is_no_flag(code: int, fields: dict[str, str], reply: int, remark: str) -> None:
    assert asked(code, fields, reply, remark).flags == []


@pytest.mark.parametrize(
    ("reply", "remark", "flag"),
    [
        (1, "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=my-key, org…", "wrong-signature"),
        (16, "check signature failed.", "wrong-signature"),
        (1, "org.apache.rocketmq.acl.common.AclException: No acl config for my-key, org…", "unknown-key"),
        (1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured", "unknown-key"),
        (16, "User:my-key is not found.", "unknown-key"),
        (1, "org.apache.rocketmq.acl.common.AclException: No default permission for jobs, org…", "not-authorized"),
        (16, "User:my-key has no permission to access Topic:jobs from 127.0.0.1, java.lang…", "not-authorized"),
    ],
)  # fmt: skip
def test_a_refused_login_is_an_error_and_names_no_key(reply: int, remark: str, flag: str) -> None:
    told = asked(SEND_BACK, SENT_BACK, reply, remark)
    assert [(event["id"], event["level"]) for event in told.of("flag")] == [(f"rocketmq.{flag}", "error")]
    assert "my-key" not in json.dumps(told.events)


@pytest.mark.parametrize("write", [as_json, as_binary])
def test_no_body_key_signature_or_property_of_an_application_is_in_an_event(write: Write) -> None:
    told = Told(10911)
    secret = {"AccessKey": "hunter2-key", "Signature": "hunter2", "SecurityToken": "hunter2", "other": "hunter2"}
    told.client(write(SEND, 1, {**secret, "topic": "jobs", "properties": properties(KEYS="hunter2", TAGS="hunter2")}))
    told.broker(write(1, 1, {"msgId": "hunter2"}, b"hunter2", flag=REPLY, remark="who is hunter2-key?"))
    told.client(write(SEND_V2, 2, {**secret, **COPY}, b"hunter2"), write(4711, 3, {**secret, **COPY}))
    told.it.ended(1.0, Side.CLIENT, "fin")
    told.it.closed(1.0)
    assert len(told.of("frame")) == 4
    assert "hunter2" not in json.dumps(told.events)


def test_a_program_is_named_once_by_each_side() -> None:
    told = asked(HEART_BEAT, {}, 0, "")
    told.client(as_json(HEART_BEAT, 8))
    assert [event.get("product_version") for event in told.of("frame")] == ["4.9.7", "4.9.7", None]


# --- Replies that do not come -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", Side)
def test_a_request_without_a_reply_is_flagged_when_the_connection_is_closed(by: Side) -> None:
    told = Told(10911)
    told.client(as_json(SEND, 1, {"topic": "jobs"}), as_json(PULL, 2), as_json(15, 3, flag=ONE_WAY), as_json(SEND, 4))
    told.broker(as_json(0, 4, flag=REPLY), as_json(CHECK, 5, flag=ONE_WAY))
    told.wait(3.0)
    told.it.ended(told.t, by, "fin")
    told.it.closed(told.t)
    assert told.flags == ["rocketmq.reply-timeout"]
    (flag,) = told.of("flag")
    assert flag["what"].startswith(f"The {by.label} closed the connection, and 1 request of the client had no reply")
    assert flag["evidence"] == [{"request": "SEND_MESSAGE", "topic": "jobs", "group": "", "waited": "3.0 s"}]


def test_a_client_that_does_not_wait_for_a_reply_is_no_flag() -> None:
    told = Told(10911)
    told.client(as_json(HEART_BEAT, 1))
    told.it.ended(0.5, Side.CLIENT, "fin")
    told.it.closed(0.5)
    assert told.flags == []


def test_the_end_of_the_trace_is_no_missing_reply() -> None:
    told = Told(10911)
    told.client(as_json(SEND, 1))
    told.it.closed(9.0, by_trace=True)
    assert told.flags == []


@pytest.mark.long
def test_many_requests_without_a_reply_take_bounded_memory() -> None:
    told = Told(10911)
    for number in range(20_100):
        told.client(as_json(SEND, number))
    assert len(told.it._spoken._requests[Side.CLIENT]) == 20_000  # type: ignore[union-attr]  # no event shows it
    told.it.ended(9.0, Side.BROKER, "reset")
    told.it.closed(9.0)
    assert told.flags == []


# --- Which protocol it is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [10911, 9876, 5672, 61613, 12345])
@pytest.mark.parametrize("write", [as_json, as_binary])
def test_the_first_bytes_decide_whatever_the_port(port: int, write: Write) -> None:
    told = Told(port)
    for octet in write(ROUTE, 1, {"topic": "jobs"}):
        told.client(bytes([octet]))
    assert [event["name"] for event in told.of("frame")] == ["GET_ROUTEINFO_BY_TOPIC"]


@pytest.mark.parametrize(
    ("port", "begins", "answer", "flag"),
    [
        (10911, b"GET / HTTP/1.1\r\n\r\n", b"", "rocketmq.foreign-bytes"),
        (10911, b"\x16\x03\x01\x02\0\1\0", b"", "rocketmq.foreign-bytes"),
        (10911, bytes(range(200, 220)), b"", "rocketmq.foreign-bytes"),
        (10911, b"\0\0\0\4\1\2\3\4", b"", "rocketmq.bad-frame"),
        (10911, OPENING, b"", "rocketmq.foreign-bytes"),
        (10911, stomp("CONNECT", {}), b"", "rocketmq.foreign-bytes"),
        (10911, as_json(SEND)[:-1], b"", "rocketmq.frame-cut"),
        (10911, as_json(SEND), b"HTTP/1.1 400 Bad Request\r\n\r\n", "trace.unparsable"),
        (5672, as_json(SEND), OPENING, "amqp.unknown-protocol-on-port"),
        (5672, as_json(SEND), b"", "amqp.unknown-protocol-on-port"),
    ],
)
def test_another_protocol_is_named(port: int, begins: bytes, answer: bytes, flag: str) -> None:
    told = Told(port)
    told.client(begins)
    if answer:
        told.broker(answer)
    told.it.ended(0.5, Side.BROKER, "fin")
    told.it.ended(0.5, Side.CLIENT, "fin")
    assert told.flags == [flag]


def test_a_broker_that_does_not_read_is_flagged() -> None:
    told = asked(HEART_BEAT, {}, 0, "")
    told.it.blocked(told.t, Side.BROKER, blocked=True, waiting=1 << 20)
    told.wait(5.0)
    assert told.flags == ["rocketmq.peer-not-reading"]


# --- Bytes that were missed -------------------------------------------------------------------------------------------


@pytest.mark.long
@given(cut=st.integers(1, 1500), step=st.integers(1, 500), binary=st.booleans())
def test_reading_goes_on_behind_bytes_that_were_missed(cut: int, step: int, *, binary: bool) -> None:
    told = asked(HEART_BEAT, {}, 0, "")
    write = as_binary if binary else as_json
    stream = b"".join(write(SEND, number, {"topic": f"t{number}"}, bytes(100)) for number in range(30))
    told.it.missed(told.t, Side.CLIENT, cut)
    for at in range(cut, len(stream), step):
        told.client(stream[at : at + step])
    assert told.of("frame")[-1]["opaque"] == 29
    told.it.ended(9.0, Side.BROKER, "fin")
    told.it.closed(9.0)
    assert told.flags == []


def test_a_capture_can_begin_in_the_middle_of_a_connection() -> None:
    told = Told(10911)
    told.it.connected(0.0, {"broker": "10.0.0.2:10911", "joined": True})
    told.client(b"the rest of a body", as_json(SEND_BACK, 7, SENT_BACK))
    told.broker(b"jects", as_json(0, 6, flag=REPLY), as_json(13, 7, flag=REPLY, remark="illegal"))
    assert told.flags == ["rocketmq.illegal-retry-topic"]


@pytest.mark.long
@given(data=st.binary(max_size=300), side=st.sampled_from(Side), begun=st.booleans())
def test_any_bytes_can_pass_and_every_flag_is_known(data: bytes, side: Side, *, begun: bool) -> None:
    told = asked(HEART_BEAT, {}, 0, "") if begun else Told(10911)
    told.it.data(1.0, side, data)
    told.it.ended(2.0, side, "fin")
    told.it.data(3.0, side.other, data)
    told.it.ended(4.0, side.other, "reset")
    told.it.closed(5.0)
    assert set(told.flags) <= set(FLAGS)
    json.dumps(told.events)
