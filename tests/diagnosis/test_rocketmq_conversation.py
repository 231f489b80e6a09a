"""RocketMQ in a trace: the retry that no broker can store, however its bytes are cut, and what no event has."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.diagnosis.rocketmq import RemotingReader
from steadyworker.diagnosis.tap import Side
from tests.diagnosis.amqp_client import OPENING
from tests.diagnosis.broken_bytes import peak
from tests.diagnosis.remoting_frames import as_json, framed, properties
from tests.diagnosis.told import Told
from tests.diagnosis.traffic import cut

SEND, HEART_BEAT, SEND_BACK, ROUTE, SEND_V2 = 10, 34, 36, 105, 310
REPLY = 1
GROUP = "g" * 121
SENT_BACK = {"group": GROUP, "originTopic": "jobs", "offset": "7", "delayLevel": "0", "AccessKey": "hunter2"}
COPY = {"a": "p", "b": f"%RETRY%{GROUP}", "i": properties(TRAN_MSG="true", token="hunter2", DELAY="3")}


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
@pytest.mark.parametrize("size", [1, 13, 1 << 16])
def test_a_refused_retry_and_its_fallback_are_the_story(reply: int, remark: str, size: int) -> None:
    told = Told(10911)
    for say, frame in (
        (told.client, as_json(SEND_BACK, 7, SENT_BACK, b"hunter2")),
        (told.broker, as_json(reply, 7, flag=REPLY, remark=f"{remark} hunter2")),
        (told.client, framed(1, b"hunter2", b"hunter2") + as_json(SEND_V2, 8, COPY, b"hunter2")),
        (told.broker, as_json(reply, 8, flag=REPLY, remark=remark)),
    ):  # fmt: skip
        say(*cut(frame, range(0, len(frame), size)))
    assert told.flags == ["rocketmq.illegal-retry-topic", "rocketmq.half-topic-grows", "rocketmq.illegal-retry-topic"]
    cause, circle, _ = told.of("flag")
    assert "%RETRY% and the name of the consumer group, has 128 characters" in cause["what"]
    assert cause["remedy"] == (
        "Give the group a name of at most 120 characters that does not depend on topic and tags."
    )
    assert "The client (JAVA 4.9.7) sends this copy because the broker refused the retry" in circle["what"]
    assert "first cause: a refused retry (rocketmq.illegal-retry-topic)" in circle["remedy"]
    assert [event["name"] for event in told.of("frame")][::2] == ["CONSUMER_SEND_MSG_BACK", "SEND_MESSAGE_V2"]
    assert "hunter2" not in json.dumps(told.events)


@pytest.mark.parametrize(
    ("code", "fields", "reply"),
    [
        (SEND_BACK, {**SENT_BACK, "group": "g" * 120}, 13),
        (SEND_BACK, SENT_BACK, 2),
        (SEND_BACK, SENT_BACK, 0),
        (SEND_V2, {"a": "p", "b": "jobs", "i": properties(TRAN_MSG="true")}, 0),
        (ROUTE, {"topic": "nope"}, 17),
    ],
)
def test_another_reply_is_no_story(code: int, fields: dict[str, str], reply: int) -> None:
    assert asked(code, fields, reply, "illegal").flags == []


@pytest.mark.parametrize("port", [10911, 9876, 5672, 61613, 12345])
def test_the_first_bytes_decide_whatever_the_port(port: int) -> None:
    told = Told(port)
    for octet in as_json(ROUTE, 1, {"topic": "jobs"}):
        told.client(bytes([octet]))
    assert [event["name"] for event in told.of("frame")] == ["GET_ROUTEINFO_BY_TOPIC"]


@pytest.mark.parametrize(
    ("sent", "flag"),
    [
        (as_json(SEND)[:-1], "rocketmq.frame-cut"),
        (b"GET / HTTP/1.1\r\n\r\n", "trace.unparsable"),
        (OPENING, "trace.unparsable"),
        (as_json(SEND) + b"\1\2\3\4\5\6\7\x08", "trace.unparsable"),
        (as_json(SEND) + framed(0, b"{no json}"), "trace.unparsable"),
    ],
)
def test_broken_bytes_are_flagged(sent: bytes, flag: str) -> None:
    told = Told(10911)
    told.client(sent)
    told.it.ended(0.5, Side.BROKER, "fin")
    told.it.ended(0.5, Side.CLIENT, "fin")
    assert told.flags == [flag]


def test_a_broker_that_does_not_read_is_flagged() -> None:
    told = asked(HEART_BEAT, {}, 0, "")
    told.it.blocked(told.t, Side.BROKER, blocked=True, waiting=1 << 20)
    told.wait(5.0)
    assert told.flags == ["rocketmq.peer-not-reading"]


def test_a_connection_that_was_open_before_is_not_read() -> None:
    told = Told(10911)
    told.it.connected(0.0, {"broker": "10.0.0.2:10911", "joined": True})
    told.client(b"the rest of a body", as_json(SEND_BACK, 7, SENT_BACK))
    told.it.ended(0.5, Side.CLIENT, "fin")
    assert (told.flags, [event["size"] for event in told.of("bytes")]) == (
        [],
        [18, len(as_json(SEND_BACK, 7, SENT_BACK))],
    )


def test_missed_bytes_end_the_reading() -> None:
    told = asked(HEART_BEAT, {}, 0, "")
    told.it.missed(told.t, Side.CLIENT, 10)
    told.client(as_json(SEND_BACK, 8, SENT_BACK))
    told.it.ended(1.0, Side.CLIENT, "fin")
    assert ([event["name"] for event in told.of("frame")], told.flags) == (["HEART_BEAT", "SUCCESS"], [])


@pytest.mark.long
@given(data=st.binary(max_size=300), side=st.sampled_from(Side), begun=st.booleans())
def test_any_bytes_can_pass(data: bytes, side: Side, *, begun: bool) -> None:
    told = asked(HEART_BEAT, {}, 0, "") if begun else Told(10911)
    told.it.data(1.0, side, data)
    told.it.ended(2.0, side, "fin")
    told.it.data(3.0, side.other, data)
    told.it.ended(4.0, side.other, "reset")
    told.it.closed(5.0)
    json.dumps(told.events)


def test_bodies_and_large_headers_take_no_memory() -> None:
    body, head = as_json(SEND, 1, {}, bytes(1 << 22)), framed(0, b"{" + bytes((1 << 20) - 1))
    assert peak(RemotingReader(), cut(body + head, range(0, len(body + head), 1 << 16))) < 1_000_000
