"""The conversion between RocketMQ's messages and our headers, without a broker."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.adapter import OutgoingMessage, Redelivered, Target
from steadyworker.delivery import KEY
from steadyworker_rocketmq.messages import (
    COMPRESSION,
    EXACT,
    HEADERS_BYTES,
    WireMessage,
    carried_wire,
    delivery_of,
    fits,
    wire_of,
    wire_of_stored,
)
from steadyworker_rocketmq.names import (
    PROXY_PROPERTIES,
    PROXY_PROPERTIES_BYTES,
    is_system_property,
    problem_of_key,
    problem_of_tag,
)
from steadyworker_rocketmq.stored import Stored

TEXTS = st.text(max_size=40)
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def arrived(wire: WireMessage, message_id: str = "id-1", sent_at: float | None = 5.0) -> tuple[dict[str, str], bytes]:
    delivery = delivery_of(1, "1", "exports", wire, message_id, Redelivered.UNKNOWN, sent_at)
    return dict(delivery.headers), delivery.body


def outgoing(headers: dict[str, str], body: bytes = b"{}", message_id: str | None = None) -> OutgoingMessage:
    return OutgoingMessage(Target.WORK, body, headers, message_id=message_id)


@given(st.dictionaries(TEXTS.filter(lambda name: name != EXACT), TEXTS, max_size=12), st.binary(max_size=20))
def test_every_text_and_body_arrives_as_it_was_sent(headers: dict[str, str], body: bytes) -> None:
    wire = wire_of(outgoing(headers, body))
    assert wire.body
    assert all(text.strip() and not CONTROL.search(text) for text in wire.properties.values())
    assert not any(map(is_system_property, wire.properties))
    assert arrived(wire) == (headers, body)


@given(st.dictionaries(TEXTS, TEXTS, max_size=200), st.integers(0, 40_000))
def test_whatever_is_sent_is_accepted_by_a_proxy_and_arrives_whole(headers: dict[str, str], size: int) -> None:
    sent = {**headers, "long": "x" * size, KEY: "k-1", "sw-round": "3"}
    wire = carried_wire(outgoing(sent))
    copy = wire.copied("A" * 34, 1_700_000_000.123)
    for each in (wire, copy):
        assert len(each.properties) <= PROXY_PROPERTIES
        assert each.size() <= PROXY_PROPERTIES_BYTES
        assert {KEY, "sw-round"} <= each.properties.keys()
        assert arrived(each) == ({name: text for name, text in sent.items() if name != EXACT}, b"{}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[("empty", ""), ("blank", "  "), ("line", "a\nb"), ("nul", "a\0b"), ("half", "\udcff"), ("", "no name")],
        *[("TRAN_MSG", "true"), ("DELAY", "3"), ("PGROUP", "g"), ("RETRY_TOPIC", "t"), ("TIMER_DELAY_SEC", "9")],
        *[("UNIQ_KEY", "x"), ("TAGS", "a||b"), ("TAGS", ""), ("KEYS", "a  b"), ("__RMQ.TRANSIENT.x", "1")],
    ],
)
def test_what_rocketmq_reserves_travels_in_one_property(name: str, text: str) -> None:
    """A copied TRAN_MSG would make the message a half message, which nobody sees."""
    wire = wire_of(outgoing({name: text}))
    assert [*wire.properties] == [EXACT]
    assert wire.tag is None
    assert wire.keys == ()
    assert arrived(wire)[0] == {name: text}


def test_tag_and_keys_are_headers() -> None:
    wire = wire_of(outgoing({"TAGS": "paid", "KEYS": "b a"}))
    assert (wire.tag, wire.keys) == ("paid", ("a", "b"))
    assert arrived(wire)[0] == {"TAGS": "paid", "KEYS": "b a"}
    assert wire_of(outgoing({"KEYS": "a b"})).properties == {}


@pytest.mark.parametrize(("key", "keys"), [("march", ("march",)), ("two words", ())])
def test_the_jobs_key_is_the_messages_key_where_it_can_be(key: str, keys: tuple[str, ...]) -> None:
    wire = wire_of(outgoing({KEY: key}))
    assert wire.keys == keys
    assert arrived(wire)[0] == {KEY: key}


def test_a_copy_has_the_id_and_the_time_of_its_original() -> None:
    first = wire_of(outgoing({KEY: "k-1"}))
    copy = first.copied("id-of-the-original", 17.5)
    delivery = delivery_of(1, "1", "exports", copy.copied("another", 99.0), "a third", Redelivered.UNKNOWN, 200.0)
    assert (delivery.message_id, delivery.sent_at) == ("id-of-the-original", 17.5)
    assert delivery.headers == {KEY: "k-1"}
    assert arrived(wire_of(outgoing({}, message_id="given")), "the broker's")[0] == {}


def test_a_delayed_message_has_its_time_until_it_is_moved() -> None:
    wire = wire_of(outgoing({KEY: "k-1"})).delayed(1234.5)
    assert wire.due == 1234.5
    assert wire.copied("id", 1.0).due == 0.0


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[1]", "null", "1e999", '{"headers": 3, "id": 4, "at": "x", "due": "y"}', "[" * 100_000]
)
def test_a_foreign_table_is_ignored(text: str) -> None:
    wire = WireMessage(b"\0", {EXACT: text, "shop": "a"})
    delivery = delivery_of(1, "1", "exports", wire, "id-1", Redelivered.NO, 5.0)
    assert (delivery.headers, delivery.body, delivery.message_id, delivery.sent_at) == (
        {"shop": "a"}, b"\0", "id-1", 5.0,
    )  # fmt: skip
    assert wire.due == 0.0


@pytest.mark.parametrize("number", ["1" + 400 * "0", "Infinity", "-Infinity", "NaN", "1e12", "-1", "true", "null"])
def test_a_number_that_is_no_time_is_ignored(number: str) -> None:
    """Such a number ended the thread that moves delayed messages, or moved the message again and again."""
    wire = WireMessage(b"{}", {EXACT: f'{{"due": {number}, "at": {number}}}'})
    delivery = delivery_of(1, "1", "exports", wire, "id-1", Redelivered.NO, 5.0)
    assert (wire.due, delivery.sent_at) == (0.0, 5.0)
    copy = wire.copied("id-1", 5.0)
    assert json.loads(copy.properties[EXACT]) == {"id": "id-1", "at": 5.0}


def test_the_size_is_that_of_properties_tag_and_keys() -> None:
    """A proxy counts all of them in its limit."""
    assert WireMessage(b"{}", {"a": "é"}, "tag", ("k1", "k2")).size() == 3 + 3 + 4


def test_more_headers_than_a_proxy_accepts_travel_all() -> None:
    headers = {f"h{number}": "x" for number in range(300)}
    wire = wire_of(outgoing(headers))
    assert len(wire.properties) <= PROXY_PROPERTIES
    assert fits(wire)
    assert arrived(wire)[0] == headers


def test_the_limit_leaves_room_for_what_a_copy_adds() -> None:
    wire = WireMessage(b"x", {"a": "x" * (HEADERS_BYTES - 1)})
    assert fits(wire)
    assert wire.copied("A" * 34, 1_700_000_000.123).size() <= PROXY_PROPERTIES_BYTES
    assert json.loads(wire.copied("A" * 34, 1.0).properties[EXACT])["id"] == "A" * 34


ANY = st.text(st.characters(), max_size=30)


@given(
    st.dictionaries(ANY | st.sampled_from([EXACT, COMPRESSION, "TRAN_MSG", "KEYS", "TAGS", KEY]), ANY, max_size=8),
    st.lists(ANY, max_size=3),
    ANY,
    st.binary(max_size=9),
)
def test_a_copy_of_any_foreign_message_is_accepted_by_a_proxy_and_has_the_same_headers(
    properties: dict[str, str], keys: list[str], tag: str, body: bytes
) -> None:
    foreign = WireMessage(body, properties, tag or None, tuple(keys))
    copy = foreign.copied("id-1", 5.0)
    assert fits(copy)
    assert all(text.strip() and not CONTROL.search(text) for text in (*copy.properties, *copy.properties.values()))
    assert all(problem_of_key(key) is None for key in copy.keys)
    assert copy.tag is None or problem_of_tag(copy.tag) is None
    assert arrived(copy) == arrived(foreign)


def test_a_copy_of_a_foreign_message_that_is_too_large_for_a_proxy_is_whole() -> None:
    """A broker accepts 32 KB of properties from its own clients, a proxy only 16 KB."""
    foreign = WireMessage(b"{}", {"shop": "a", "long": "x" * 30_000})
    copy = foreign.copied("id-1", 5.0)
    assert fits(copy)
    assert arrived(copy) == arrived(foreign)


def test_a_body_that_cannot_be_decompressed_is_marked_in_every_copy() -> None:
    stored = Stored("id-1", "t", 0, 0, b"\x04\x22", "lz4", {"shop": "a", "KEYS": "b  a"}, 5.0, 6.0, 0, "")
    wire = wire_of_stored(stored)
    assert wire.keys == ("b", "a")
    for each in (wire, wire.copied("id-1", 5.0), wire_of(outgoing(arrived(wire)[0], b"\x04\x22"))):
        delivery = delivery_of(1, "1", "exports", each, "id-1", Redelivered.UNKNOWN, 5.0)
        assert (
            delivery.unreadable
            == "expected a body without compression, or compressed by zlib and whole, got one with 'lz4'"
        )
        assert delivery.body == b"\x04\x22"
    plain = wire_of_stored(replace(stored, compression=""))
    assert delivery_of(1, "1", "exports", plain, "id-1", Redelivered.UNKNOWN, 5.0).unreadable is None
