"""From a body to the declared type: limits, strictness, and errors that name the field."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from collections.abc import Hashable, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.errors import BadPayload, ConfigError
from steadyworker.payload import MAX_BYTES, decoder, encode


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class Order:
    merchant: str
    lines: list[Line] = field(default_factory=list)


class Refund(msgspec.Struct, tag="refund", omit_defaults=True):
    payment: str
    part: int = 100


class Charge(msgspec.Struct, tag="charge"):
    payment: str


class Request(TypedDict):
    merchant: str
    days: int


class Model(pydantic.BaseModel):
    merchant: str
    amounts: list[int] = pydantic.Field(default_factory=list, alias="sums")


class Rates(pydantic.BaseModel):
    rates: list[float | None] = pydantic.Field(alias="of")


REFUSED: dict[str, tuple[Any, bytes, str]] = {
    "wrong type": (Order, b'{"merchant": 1}', "$.merchant: expected str, got int"),
    "wrong type deep inside": (
        Order,
        b'{"merchant": "m", "lines": [{"sku": 1}]}',
        "$.lines[0].sku: expected str, got int",
    ),
    "missing field": (Order, b"{}", "$.merchant: missing"),
    "missing field deep inside": (Order, b'{"merchant": "m", "lines": [{}]}', "$.lines[0].sku: missing"),
    "no object": (Order, b"[]", "$: expected object, got array"),
    "empty": (Order, b"", "$: expected JSON: Expecting value: line 1 column 1 (char 0)"),
    "two values": (Any, b"1 2", "$: expected JSON: Extra data: line 1 column 3 (char 2)"),
    "NaN": (Any, b'{"amount": NaN}', "$.amount: expected JSON, got NaN"),
    "infinity deep inside": (Any, b'{"a": [0, {"b": -Infinity}]}', "$.a[1].b: expected JSON, got -Infinity"),
    "a number that becomes infinite": (Any, b'{"amount": 1e999}', "$.amount: expected a number that is finite"),
    "huge integer": (Any, b'{"id": %s}' % (b"9" * 5000), "$.id: expected an integer of at most 64 digits, got 5000"),
    "duplicate key": (Any, b'{"amount": 1, "amount": 2}', "$.amount: duplicate key"),
    "duplicate key by escapes": (Any, b'{"a": {"b": 1, "\\u0062": 2}}', "$.a.b: duplicate key"),
    "lone surrogate": (Any, b'{"name": "\\ud800"}', "$.name: expected text, got a lone surrogate"),
    "lone surrogate in a key": (Any, b'{"\\udfff": 1}', "$: expected text, got a lone surrogate"),
    "bad UTF-8": (Any, b'{"name": "\xff"}', "$: expected UTF-8, got byte 0xff at 10"),
    "another encoding": (Any, '{"a": 1}'.encode("utf-16"), "$: expected UTF-8, got byte 0xff at 0"),
    "unknown tag": (Refund | Charge, b'{"type": "gift", "payment": "p"}', "$.type: invalid value 'gift'"),
    "pydantic, wrong type": (
        Model,
        b'{"merchant": "m", "sums": [1, "x"]}',
        "$.sums[1]: input should be a valid integer, unable to parse string as an integer",
    ),
    "pydantic, missing field": (Model, b"{}", "$.merchant: field required"),
    "typed dict": (Request, b'{"merchant": "m", "days": "x"}', "$.days: expected int, got str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_names_the_field_and_what_was_expected(case: str) -> None:
    type_, body, reason = REFUSED[case]
    with pytest.raises(BadPayload) as refused:
        decoder(type_)(body)
    assert str(refused.value) == reason


DEEP = b"[" * 33 + b"]" * 33


@pytest.mark.parametrize("body", [DEEP, b"[" * 1_000_000, b'{"a":' * 33 + b"1" + b"}" * 33, b'["]",' * 33 + b"]" * 33])
def test_depth_is_bounded_before_anything_is_parsed(body: bytes) -> None:
    with pytest.raises(BadPayload, match=r"^\$: expected at most 32 levels of nesting, got more$"):
        decoder(Any)(body)


@pytest.mark.parametrize("body", [b"[" * 32 + b"]" * 32, json.dumps("[" * 99).encode(), b"[" + b"[]," * 99 + b"[]]"])
def test_brackets_that_are_no_depth_are_fine(body: bytes) -> None:
    assert decoder(Any)(body) == json.loads(body)


@pytest.mark.parametrize("type_", [Any, Order, bytes])
def test_size_is_bounded_before_anything_else(type_: Any) -> None:
    with pytest.raises(BadPayload, match=f"expected at most {MAX_BYTES} bytes, got {MAX_BYTES + 1}"):
        decoder(type_)(b" " * (MAX_BYTES + 1))


HOSTILE = {
    "many empty objects": b"[" + b"{}," * 340_000 + b"{}]",
    "an endless string": b'"' + b"\\" * 1_000_000,
    "quotes and backslashes": b'["' + b'\\"' * 500_000 + b'"]',
    "a long number": b"1" * 1_000_000,
    "a long fraction": b"0." + b"1" * 1_000_000,
    "brackets in strings": b"[" + b'"[[[[",' * 140_000 + b"1]",
    "many duplicate keys": b"{" + b'"a":1,' * 170_000 + b'"a":1}',
    "many keys": b"{" + b",".join(b'"%d":1' % number for number in range(95_000)) + b"}",
}


@pytest.mark.long
@pytest.mark.parametrize("case", HOSTILE)
def test_time_and_memory_are_bounded_whatever_comes(case: str) -> None:
    assert len(HOSTILE[case]) <= MAX_BYTES + 3
    decode = decoder(Order, MAX_BYTES + 3)
    tracemalloc.start()
    began = time.thread_time()
    with pytest.raises(BadPayload):
        decode(HOSTILE[case])
    assert time.thread_time() - began < 10  # with tracemalloc's cost, on a busy machine
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20


def test_each_kind_of_type_decodes() -> None:
    assert decoder(Order)(b'{"merchant": "m", "lines": [{"sku": "a"}]}') == Order("m", [Line("a")])
    assert decoder(Refund | Charge)(b'{"type": "refund", "payment": "p"}') == Refund("p")
    assert decoder(Request)(b'{"merchant": "m", "days": 1}') == {"merchant": "m", "days": 1}
    assert decoder(Model)(b'{"merchant": "m", "sums": [1]}') == Model(merchant="m", sums=[1])
    assert decoder(bytes)(b"\xff\x00") == b"\xff\x00"
    assert decoder(Literal["a", "b"])(b'"a"') == "a"
    assert decoder(Order)(b'{"merchant": "m", "more": 1}') == Order("m")  # a newer sender may know more than we


def test_a_type_that_json_cannot_be_is_refused_at_once() -> None:
    class Own:
        pass

    with pytest.raises(ConfigError, match="use a dataclass, msgspec"):
        decoder(Own)


class Unknown:
    """A class that no JSON can be decoded to."""


@dataclass
class Nested:
    rows: list[tuple[int, Unknown]]


@dataclass
class Tree:
    children: list[Tree]
    handle: Unknown | None = None
    later: Unknown = field(default_factory=Unknown)


@pytest.mark.parametrize(
    ("type_", "place"),
    [
        (dict[str, Unknown], r"$[…]"),
        (dict[Unknown, int], "$ (key)"),
        (list[Unknown], "$[…]"),
        (Nested, "$.rows[…][1]"),
    ],
)
def test_a_type_with_a_part_that_json_cannot_be_is_refused_with_its_place(type_: Any, place: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f", whose {place} is <class '")):
        decoder(type_)


@pytest.mark.parametrize("type_", [dict[str, object], list[Sized], tuple[Hashable, object]])
def test_a_part_that_any_json_is_an_instance_of_can_be_decoded(type_: Any) -> None:
    body = b'{"a": "b"}' if type_ == dict[str, object] else b'["a", "b"]'
    assert decoder(type_)(body) == type_({"a": "b"} if type_ == dict[str, object] else ["a", "b"])


def test_a_part_that_a_payload_can_leave_out_may_be_of_any_class() -> None:
    tree = decoder(Tree)(b'{"children": [{"children": []}], "handle": null}')
    assert [child.children for child in tree.children] == [[]]


SENT: list[tuple[Any, Any, Any]] = [
    (Order, Order("m", [Line("a", 2)]), Order("m", [Line("a", 2)])),
    (Order, {"merchant": "m", "lines": [{"sku": "a"}]}, Order("m", [Line("a")])),
    (Refund | Charge, Refund("p"), Refund("p")),
    (Refund | Charge, {"type": "charge", "payment": "p"}, Charge("p")),
    (Request, {"merchant": "m", "days": 3}, {"merchant": "m", "days": 3}),
    (Model, Model(merchant="m", sums=[1, 2]), Model(merchant="m", sums=[1, 2])),
    (Model, {"merchant": "m", "sums": [1]}, Model(merchant="m", sums=[1])),
    (dict[str, list[Line] | None], {"a": [{"sku": "b"}], "c": None}, {"a": [Line("b")], "c": None}),
    (Any, {"anything": [1, None, 1.5, "null"]}, {"anything": [1, None, 1.5, "null"]}),
    (bytes, b"\xff", b"\xff"),
]


@pytest.mark.parametrize(("type_", "value", "received"), SENT)
def test_what_is_sent_is_what_the_worker_decodes(type_: Any, value: Any, received: Any) -> None:
    decoded = decoder(type_)(encode(value, type_))
    assert (decoded, type(decoded)) == (received, type(received))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_not_sent(number: float) -> None:
    """Both encoders would write null, which another type may take for "nothing"."""
    for type_, value, path in (
        (Any, {"amount": number}, "$.amount"),
        (Any, number, "$"),
        (dict[str, list[float | None]], {"sums": [1.0, None, number]}, "$.sums[2]"),
        (Rates, Rates(of=[1.5, None, number]), "$.of[2]"),
    ):
        with pytest.raises(BadPayload, match=re.escape(f"{path}: expected a number that is finite, got {number}")):
            encode(value, type_)


UNKNOWN: list[tuple[Any, Any, str]] = [
    (Order, {"merchant": "m", "marchent": "x"}, "$.marchent"),
    (Order, {"merchant": "m", "lines": [{"sku": "a"}, {"sku": "b", "cuont": 2}]}, "$.lines[1].cuont"),
    (Refund | Charge, {"type": "charge", "payment": "p", "part": 50}, "$.part"),
    (dict[str, Line], {"x": {"sku": "a", "y": 1}}, "$.x.y"),
    (list[Line | None], [None, {"sku": "a", "y": 1}], "$[1].y"),
    (Request, {"merchant": "m", "days": 1, "hours": 2}, "$.hours"),
    (Model, {"merchant": "m", "amonts": []}, "$.amonts"),
]


@pytest.mark.parametrize(("type_", "value", "path"), UNKNOWN)
def test_a_field_that_nobody_would_read_is_not_sent(type_: Any, value: Any, path: str) -> None:
    with pytest.raises(BadPayload) as refused:
        encode(value, type_)
    assert str(refused.value) == f"{path}: unknown field; the payload type has none of that name"


def test_the_error_for_what_cannot_be_sent_has_the_cause() -> None:
    with pytest.raises(BadPayload, match=r"\$\.merchant: expected str, got int"):
        encode({"merchant": 1}, Order)
    with pytest.raises(BadPayload, match="cannot be written as JSON"):
        encode({"merchant": object()}, Order)
    with pytest.raises(BadPayload, match=r"\$: expected bytes, got str"):
        encode("text", bytes)
    with pytest.raises(BadPayload, match="send a reference to large data"):
        encode(Order("m" * MAX_BYTES), Order)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_all_of_json_within_the_limits_passes_unchanged(value: Any) -> None:
    assert decoder(Any)(json.dumps(value).encode()) == value


@given(st.binary(max_size=200))
def test_no_body_raises_anything_but_bad_payload(body: bytes) -> None:
    for type_ in (Any, Order, Model):
        with suppress(BadPayload):
            decoder(type_)(body)


@pytest.mark.parametrize("around", [lambda raw: raw, lambda raw: {"of": [raw]}, Line])
def test_json_that_is_written_already_may_hold_null(around: Any) -> None:
    raw = msgspec.Raw(b'{"a":null}')
    assert encode(around(raw), Any) == msgspec.json.encode(around(raw))


def test_no_infinite_number_hides_beside_json_that_is_written_already() -> None:
    with pytest.raises(BadPayload, match=r"\$\.x: expected a number that is finite, got nan"):
        encode({"raw": msgspec.Raw(b"null"), "x": float("nan")}, Any)
