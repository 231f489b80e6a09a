"""The reader of AMQP: what encoders wrote comes back, however it is cut; what is broken is flagged, in bounded memory."""

from __future__ import annotations

import builtins
import struct
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from steadyworker.diagnosis.amqp import UNLIMITED, AmqpReader
from steadyworker.diagnosis.fields import DEEPEST, LEFT_OUT, MOST_VALUES
from steadyworker.diagnosis.frames import (
    LONGEST_RAW,
    BodyFrame,
    ContentHeader,
    Flaw,
    Heartbeat,
    Item,
    Method,
    ProtocolHeader,
)
from steadyworker.errors import ConfigError
from tests.diagnosis.broken_bytes import edits, mutated, peak
from tests.diagnosis.traffic import (
    OPENING,
    Part,
    cut,
    first_break,
    framed,
    pieces,
    seen,
    table_of,
    traces,
)

pytestmark = pytest.mark.long

FRAME_MAX = 131_072
BLINDING = {"http", "tls", "stomp", "amqp-1.0", "frame-too-large", "frame-end", "frame-type", "cut"}
usual = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def read(chunks: Iterable[bytes], *, opening: bool = True, frame_max: int = FRAME_MAX) -> list[Item]:
    reader = AmqpReader(frame_max=frame_max, opening=opening)
    return [item for chunk in chunks for item in reader.feed(chunk)] + reader.end()


def flaws(items: Iterable[Item]) -> list[Flaw]:
    return [item for item in items if isinstance(item, Flaw)]


def one_flaw(wire: bytes, **options: Any) -> Flaw:
    (flaw,) = flaws(read([wire], **options))
    return flaw


def publish(properties: commands.Basic.Properties, content: bytes = b"", channel: int = 1) -> bytes:
    about = header.ContentHeader(0, len(content), properties)
    wire = frame.marshal(commands.Basic.Publish(), channel) + frame.marshal(about, channel)
    return wire + (frame.marshal(body.ContentBody(content), channel) if content else b"")


def content_header(payload: bytes, *, opening: bytes = OPENING) -> list[Item]:
    """What is read of a message whose header has these bytes behind its size."""
    about = framed(2, 1, struct.pack(">HHQ", 60, 0, 0) + payload)
    return read([opening + frame.marshal(commands.Basic.Publish(), 1) + about])[2:]


# --- What was written comes back -------------------------------------------------------------------------------------


@usual
@given(st.data())
def test_what_encoders_write_comes_back_from_any_pieces(data: st.DataObject) -> None:
    parts: list[Part] = data.draw(traces())
    wire = b"".join(part.wire for part in parts)

    items = read(data.draw(pieces(wire)))

    assert [seen(item) for item in items] == [part.seen for part in parts]
    ends = [item.offset + item.size for item in items]
    assert [item.offset for item in items] == [0, *ends[:-1]]
    assert ends[-1] == len(wire)


def test_every_cut_of_a_message_in_two_or_three_gives_the_same() -> None:
    properties = commands.Basic.Properties(headers={"a": [1, {"b": None}]}, delivery_mode=2, message_id="m")
    wire = OPENING + publish(properties, b"0123456789") + OPENING + framed(8, 0, b"")
    expected = read([wire])
    assert [type(item) for item in expected] == [
        *(ProtocolHeader, Method, ContentHeader, BodyFrame, ProtocolHeader, Heartbeat),
    ]
    for first in range(len(wire) + 1):
        for second in range(first, len(wire) + 1, 7):
            assert read(cut(wire, [first, second])) == expected
    assert read(bytes([octet]) for octet in wire) == expected


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"b\xff", -1), (b"B\xff", 255), (b"s\xff\xfe", -2), (b"U\xff\xfe", -2), (b"u\xff\xfe", 65_534),
        (b"I\xff\xff\xff\xfe", -2), (b"i\xff\xff\xff\xfe", 2**32 - 2),
        (b"l" + b"\xff" * 8, -1), (b"L" + b"\xff" * 8, -1), (b"T" + b"\xff" * 8, 2**64 - 1),
        (b"f\x3f\xc0\0\0", 1.5), (b"d\x3f\xf8" + bytes(6), 1.5), (b"t\7", True), (b"V", None), (b"\0", None),
        (b"D\2\0\0\0\x7b", Decimal("1.23")), (b"x\0\0\0\2ab", b"ab"), (b"S\0\0\0\2\xc3\xa9", "é"),
        (b"S\0\0\0\2\xff\xfe", b"\xff\xfe"), (b"A\0\0\0\3b\1V", [1, None]), (b"F\0\0\0\4\1kb\1", {"k": 1}),
    ],
)  # fmt: skip
def test_every_type_of_value_is_read(raw: bytes, value: object) -> None:
    table = table_of({"before": (b"V", None), "k": (raw, value), "behind": (b"b\1", 1)})
    (about,) = content_header(struct.pack(">H", 1 << 13) + table)
    assert isinstance(about, ContentHeader)
    assert about.properties == {"headers": {"before": None, "k": value, "behind": 1}}


def test_bits_share_an_octet() -> None:
    names = ("passive", "durable", "exclusive", "auto_delete", "nowait")
    for index in range(32):
        bits: dict[str, Any] = {name: bool(index >> bit & 1) for bit, name in enumerate(names)}
        declare = commands.Queue.Declare(0, "q", **bits)

        _, method = read([OPENING + frame.marshal(declare, 7)])

        assert isinstance(method, Method)
        assert method.fields == {"ticket": 0, "queue": "q", **bits, "arguments": {}}


def test_a_method_that_only_old_clients_use_is_known() -> None:
    _, method = read([OPENING + framed(1, 1, struct.pack(">HH", 30, 10) + b"\5/data" + b"\x1d")])
    assert isinstance(method, Method)
    assert (method.name, method.fields["realm"], method.fields["active"]) == ("Access.Request", "/data", True)
    assert method.fields["passive"] is False


def test_text_that_is_no_utf8_is_read_and_a_name_that_is_none_is_flagged() -> None:
    table = table_of({"long": (b"S\0\0\0\2\xff\xfe", None), "bytes": (b"x\0\0\0\2\xff\xfe", None)})
    flaw, about = content_header(struct.pack(">H", 1 << 13 | 1 << 15) + b"\3a\xe9b" + table)

    assert isinstance(about, ContentHeader)
    assert about.properties["content_type"] == "a\\xe9b"
    assert about.properties["headers"] == {"long": b"\xff\xfe", "bytes": b"\xff\xfe"}
    assert isinstance(flaw, Flaw)
    assert (flaw.kind, flaw.what, flaw.raw) == ("bad-text", "the content header: a name is no UTF-8", b"")


def test_no_flaw_shows_a_header_of_an_application_or_a_login() -> None:
    wrong = table_of({"iban": (b"S\0\0\0\6DE8937", None), "anna": (b"Zoops", None)})
    (flaw, _) = content_header(struct.pack(">H", 1 << 13) + wrong)
    login = framed(1, 0, struct.pack(">HH", 10, 11) + wrong + b"\5PLAIN\0\0\0\0\5en_US")
    for each in (flaw, one_flaw(OPENING + login)):
        assert isinstance(each, Flaw)
        assert each.what.endswith(": a value has a type that AMQP does not have")
        assert each.raw == b""
    (shown,) = flaws(read([OPENING + framed(1, 1, struct.pack(">HHH", 50, 10, 0) + b"\1q\0" + wrong)]))
    assert "a value has a type b'Z' that AMQP does not have" in shown.what


@pytest.mark.parametrize("flag", [1, 2])
def test_a_property_that_amqp_does_not_have_is_flagged(flag: int) -> None:
    flaw, about = content_header(struct.pack(">H", 1 << 12 | flag) + b"\2")
    assert isinstance(about, ContentHeader)
    assert about.properties == {"delivery_mode": 2}
    assert isinstance(flaw, Flaw)
    assert (flaw.kind, flaw.what) == ("bad-method", "the content header has a property that AMQP does not have")


def test_what_is_too_deep_or_too_much_is_left_out_and_the_rest_is_read() -> None:
    deep: tuple[bytes, Any] = (b"b\7", 7)
    for _ in range(DEEPEST + 3):
        deep = (b"F" + table_of({"k": deep}), None)
    many = (b"A" + struct.pack(">I", 2 * MOST_VALUES) + b"b\1" * MOST_VALUES, None)
    headers = table_of({"deep": deep, "many": many, "last": (b"V", None)})
    (about,) = content_header(struct.pack(">H", 1 << 13 | 1 << 7) + headers + b"\2id")

    assert isinstance(about, ContentHeader)
    assert about.properties["message_id"] == "id"
    found: Any = about.properties["headers"]
    assert set(found) == {"deep", "many", LEFT_OUT}
    assert found["many"][-1].endswith("bytes left out")
    inner, depth = found["deep"], 0
    while "k" in inner:
        inner, depth = inner["k"], depth + 1
    assert depth == DEEPEST - 1
    assert inner[LEFT_OUT].endswith("bytes left out")


# --- What is broken is flagged ---------------------------------------------------------------------------------------


def test_a_second_header_is_read_and_the_frames_behind_it_too() -> None:
    _, second, beat = read([OPENING, OPENING, framed(8, 0, b"")])
    assert second == ProtocolHeader(8, 8, OPENING, second=True)
    assert beat == Heartbeat(16, 8, 0)


@pytest.mark.parametrize(
    ("wire", "kind", "shown"),
    [
        (b"GET /health HTTP/1.1\r\nAuthorization: Basic eA==\r\n\r\n", "http", b"GET /health HTTP/1.1\r\n"),
        (b"HTTP/1.1 400 Bad Request\r\n", "http", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        (b"CONNECT\nlogin:guest\npasscode:secret\n\n\0", "stomp", b"CONNECT\n"),
        (b"AMQP\3\1\0\0", "amqp-1.0", b"AMQP\3\1\0\0"),
        (b"AMQP\0\1\0\0", "amqp-1.0", b"AMQP\0\1\0\0"),
    ],
)
@pytest.mark.parametrize("before", [b"", OPENING + framed(8, 0, b"")])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_another_protocol_is_named(wire: bytes, kind: str, shown: bytes, before: bytes, size: int) -> None:
    whole = before + wire
    reader = AmqpReader(opening=True)
    found = flaws(item for chunk in cut(whole, range(0, len(whole), size)) for item in reader.feed(chunk))

    assert [(flaw.kind, flaw.offset) for flaw in found] == [(kind, len(before))]
    assert found[0].raw == shown if size == 1000 else shown.startswith(found[0].raw)
    assert reader.blind
    assert reader.feed(OPENING) == reader.end() == []


@pytest.mark.parametrize(("wire", "kind"), [(b"STOMP\n", "stomp"), (b"GET /\n", "http"), (b"AMQP\0", "cut")])
def test_a_few_bytes_are_judged_when_the_stream_ends(wire: bytes, kind: str) -> None:
    flaw = one_flaw(wire)
    assert (flaw.kind, flaw.raw) == (kind, wire)


def test_a_client_begins_with_a_header_and_a_broker_does_not() -> None:
    tune = frame.marshal(commands.Connection.Tune(), 0)
    assert one_flaw(tune).kind == "unparsable"
    assert [type(item) for item in read([tune], opening=False)] == [Method]
    assert read([OPENING], opening=False) == [ProtocolHeader(0, 8, OPENING, second=False)]


def test_the_size_is_compared_with_the_agreed_maximum_before_anything_is_held() -> None:
    for kind in (1, 2, 3, 8):
        head = struct.pack(">BHI", kind, 5, 4096 - 7)
        assert one_flaw(OPENING + head, frame_max=4096).kind == "frame-too-large"
    assert not flaws(read([OPENING + framed(3, 5, bytes(4096 - 8))], frame_max=4096)[:-2])
    assert one_flaw(OPENING + struct.pack(">BHI", 1, 0, UNLIMITED), frame_max=0).kind == "frame-too-large"
    for kind, size in ((1, 1 << 20), (2, 1 << 20), (3, UNLIMITED)):
        head = struct.pack(">BHI", kind, 5, size)
        assert one_flaw(OPENING + head, frame_max=0xFFFF_FFFF).kind == "frame-too-large"
        assert one_flaw(OPENING + struct.pack(">BHI", kind, 5, size - 8), frame_max=0xFFFF_FFFF).kind == "cut"
    reader = AmqpReader(opening=True)
    assert len(reader.feed(OPENING + framed(3, 5, bytes(5000)))) == 3
    reader.frame_max = 4096
    (flaw,) = reader.feed(framed(3, 5, bytes(5000)))
    assert isinstance(flaw, Flaw)
    assert (flaw.kind, flaw.raw) == ("frame-too-large", struct.pack(">BHI", 3, 5, 5000))


@pytest.mark.parametrize("kind", [1, 2, 3, 8])
def test_another_octet_at_the_end_of_a_frame_blinds(kind: int) -> None:
    wire = OPENING + framed(kind, 9, b"12345")[:-1] + b"A" + framed(8, 0, b"")
    flaw = one_flaw(wire)
    assert (flaw.kind, flaw.offset, flaw.size) == ("frame-end", 8, 13)
    assert flaw.raw == struct.pack(">BHI", kind, 9, 5) + b"A"
    assert "0x41 instead of the end octet 0xCE" in flaw.what


@pytest.mark.parametrize("kind", [0, 4, 7, 9, 65, 255])
def test_a_type_that_amqp_does_not_have_blinds(kind: int) -> None:
    flaw = one_flaw(OPENING + framed(kind, 1, b"12345"))
    assert (flaw.kind, flaw.offset) == ("frame-type", 8)
    assert flaw.raw == framed(kind, 1, b"12345")


@pytest.mark.parametrize("left", [1, 6, 7, 8, 29])
def test_the_end_of_the_stream_inside_a_frame_is_a_cut_that_shows_no_login(left: int) -> None:
    login = frame.marshal(commands.Connection.StartOk({}, "PLAIN", "\0guest\0secret", "en_US"), 0)
    flaw = one_flaw(OPENING + login[:left])
    assert (flaw.kind, flaw.offset, flaw.size) == ("cut", 8, left)
    assert flaw.raw == login[: min(left, 7)]
    message = publish(commands.Basic.Properties(), b"x" * 40)
    flaw = one_flaw(OPENING + message[:-left])
    assert (flaw.kind, flaw.size) == ("cut", 48 - left)
    assert f"after {48 - left} of 48 bytes of a body frame" in flaw.what


def test_methods_that_do_not_fit_are_flagged_and_the_reader_stays_in_step() -> None:
    unknown = framed(1, 1, struct.pack(">HH", 60, 99) + b"abc")
    short = framed(1, 1, b"\0\x3c")
    longer = framed(1, 1, struct.pack(">HHQBB", 60, 80, 5, 0, 9))
    halved = framed(1, 1, struct.pack(">HHI", 60, 80, 5))
    items = read([OPENING + unknown + short + longer + halved + framed(8, 0, b"")])

    assert [(type(item), getattr(item, "kind", "")) for item in items[1:]] == [
        (Flaw, "bad-method"),
        (Flaw, "bad-method"),
        *((Flaw, "bad-method"), (Method, "")),
        *((Flaw, "bad-method"), (Method, "")),
        (Heartbeat, ""),
    ]
    assert [item.offset for item in items[1:]] == [8, 23, *[33] * 2, *[55] * 2, 71]


@pytest.mark.parametrize(
    "table",
    [
        b"\0\0\0\3\1aZ",  # no such type
        b"\0\0\0\4\1aI\0",  # a number longer than the table
        b"\0\0\0\7\1aS\0\0\0\xff",  # a text longer than the table
        b"\0\0\0\7\1aA\0\0\0\xff",
        b"\0\0\0\2\7a",
        b"\0\0\0\2\1a",
    ],
)
def test_a_bad_table_is_flagged_and_what_follows_it_is_read(table: bytes) -> None:
    flaw, about = content_header(struct.pack(">H", 1 << 13 | 1 << 7) + table + b"\2id")
    assert isinstance(flaw, Flaw)
    assert flaw.kind == "bad-table"
    assert isinstance(about, ContentHeader)
    assert about.properties["message_id"] == "id"

    flaw, about = content_header(struct.pack(">H", 1 << 13) + b"\0\0\1\0" + b"\1aV")  # longer than the frame
    assert isinstance(flaw, Flaw)
    assert flaw.kind == "bad-method"


def test_messages_that_mix_on_one_channel_are_flagged_and_on_two_channels_not() -> None:
    method, about, content = (
        frame.marshal(commands.Basic.Publish(), 1),
        frame.marshal(header.ContentHeader(0, 4), 1),
        framed(3, 1, b"1234"),
    )
    other = publish(commands.Basic.Properties(), b"1234", channel=2)
    assert not flaws(read([OPENING + method + other + about + other + content]))
    for wire in (
        method + method,
        method + content,
        about + content,
        method + about + method + about + content,
        method + about + framed(3, 1, b"12345"),
        method + about + content + content,
        method + about + about + content,
    ):
        first = flaws(read([OPENING + wire]))[0]
        assert first.kind == "interleaved"
        assert "on channel 1" in first.what


def test_a_heartbeat_has_neither_bytes_nor_a_channel() -> None:
    for wire in (framed(8, 3, b""), framed(8, 0, b"x")):
        _, flaw, beat = read([OPENING + wire])
        assert isinstance(flaw, Flaw)
        assert flaw.kind == "unparsable"
        assert isinstance(beat, Heartbeat)


def test_a_missing_pamqp_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("pamqp"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install 'steadyworker\[trace\]'"):
        AmqpReader(opening=True)


# --- Broken at random ------------------------------------------------------------------------------------------------


def judge(wire: bytes, chunks: Sequence[bytes], frame_max: int) -> None:
    """The reader leaves the frames where a second opinion does, and says so; it never returns a place twice."""
    items = read(chunks, frame_max=frame_max)
    found = [flaw for flaw in flaws(items) if flaw.kind in BLINDING or flaw is items[-1]]
    expected = first_break(wire, frame_max)
    for flaw in flaws(items):
        assert len(flaw.raw) <= LONGEST_RAW
    if expected is None:
        assert not [flaw for flaw in found if flaw.kind in BLINDING]
    else:
        kind, offset = expected
        last = found[-1]
        assert last.offset == offset, (last, expected)
        # At the end of the stream, a few bytes can be another protocol, and are more than a cut.
        others = {
            "foreign": {"http", "tls", "stomp", "frame-type", "unparsable"},
            "cut": {"cut", "http", "tls", "stomp"},
        }
        assert last.kind in others.get(kind, {kind})
    offsets = [item.offset for item in items]
    assert offsets == sorted(offsets)
    whole = [item for item in items if not isinstance(item, Flaw)]
    for before, behind in pairwise(whole):
        assert before.offset + before.size <= behind.offset


@usual
@given(st.data())
def test_mutated_streams_are_flagged_where_the_frames_break(data: st.DataObject) -> None:
    parts: list[Part] = data.draw(traces())
    wire = mutated(b"".join(part.wire for part in parts), data.draw(edits))
    judge(wire, data.draw(pieces(wire)), data.draw(st.sampled_from([512, 4096, FRAME_MAX])))


@usual
@given(st.binary(max_size=2000), st.data())
def test_any_bytes_are_read(wire: bytes, data: st.DataObject) -> None:
    for before in (b"", OPENING):
        judge(before + wire, data.draw(pieces(before + wire)), FRAME_MAX)


def memory(chunks: Iterable[bytes]) -> int:
    return peak(AmqpReader(frame_max=FRAME_MAX, opening=True), chunks)


BASIC_PUBLISH = frame.marshal(commands.Basic.Publish(), 1)


def headers_of(table: bytes) -> bytes:
    """A message whose headers are these bytes, as long as a frame may be."""
    payload = struct.pack(">HHQHI", 60, 0, 0, 1 << 13, len(table)) + table
    assert len(payload) <= FRAME_MAX - 8
    return BASIC_PUBLISH + framed(2, 1, payload)


ROOM = FRAME_MAX - 8 - 18
BOMBS = {
    "voids": headers_of(b"".join(struct.pack(">BHs", 2, number, b"V") for number in range(ROOM // 4))),
    "numbers": headers_of(b"\1aA" + struct.pack(">I", (ROOM - 7) // 9 * 9) + b"l\x7f1234567" * ((ROOM - 7) // 9)),
    "tables": headers_of(b"".join(b"\1aF" + struct.pack(">I", size) for size in range(ROOM - 7, 0, -7))),
    "bad names": headers_of(b"\1\xffV" * (ROOM // 3)),
    "a body of 1.3 GB": struct.pack(">BHI", 3, 1, 1_342_177_289),
    "a method of 1.3 GB": struct.pack(">BHI", 1, 1, 1_342_177_289),
    "bodies": framed(3, 1, bytes(FRAME_MAX - 8)) * 50,
    "methods without an end": framed(1, 1, bytes(FRAME_MAX - 8))[:-1] + b"\0",
}


@pytest.mark.parametrize("name", BOMBS)
def test_no_frame_takes_more_memory_than_the_frame_limit_and_a_constant(name: str) -> None:
    wire = OPENING + BOMBS[name]
    assert memory(cut(wire, range(0, len(wire), 4096))) < FRAME_MAX + 300_000
