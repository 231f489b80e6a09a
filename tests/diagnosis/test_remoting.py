"""The reader of RocketMQ's remoting protocol: what was written comes back, however it is cut; what is broken is flagged, in bounded memory."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadyworker.diagnosis.boundary import keep_for_remoting, next_remoting
from steadyworker.diagnosis.frames import FLAWS, LONGEST_RAW, Flaw, Item, RemotingFrame
from steadyworker.diagnosis.remoting import FIELDS, LONGEST_HEAD, RemotingReader, begins, version_of
from tests.diagnosis.broken_bytes import edits, mutated, peak
from tests.diagnosis.remoting_frames import LANGUAGES, as_binary, as_json, framed
from tests.diagnosis.traffic import cut, pieces

usual = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
MOST = 1 << 24


def read(chunks: Iterable[bytes], *, max_frame: int = MOST) -> list[Item]:
    reader = RemotingReader(max_frame=max_frame)
    return [item for chunk in chunks for item in reader.feed(chunk)] + reader.end()


def flaws(items: Iterable[Item]) -> list[Flaw]:
    return [item for item in items if isinstance(item, Flaw)]


def frames(items: Iterable[Item]) -> list[RemotingFrame]:
    return [item for item in items if isinstance(item, RemotingFrame)]


# --- What was written comes back -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A frame as it goes over the wire, and what a reader must see in it."""

    wire: bytes
    seen: tuple[Any, ...]


numbers = st.integers(-(2**31), 2**31 - 1)
small = st.integers(-(2**15), 2**15 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=30)
names = st.sampled_from(FIELDS) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """A frame in JSON, or a binary one, of which only numbers are read; unknown fields are left out of what is seen."""
    fields, body = draw(st.dictionaries(names, texts, max_size=6)), draw(st.binary(max_size=200))
    remark, language = draw(st.none() | texts), draw(st.sampled_from(sorted(LANGUAGES)))
    opaque, flag, version = draw(numbers), draw(st.integers(0, 3)), draw(st.integers(0, 500))
    code, write = draw(st.tuples(numbers, st.just(as_json)) | st.tuples(small, st.just(as_binary)))
    wire = write(code, opaque, fields, body, flag=flag, remark=remark, language=language, version=version)
    if write is as_binary:
        return Part(wire, (code, opaque, flag, "", version, "", {}, len(body)))
    known = {name: value for name, value in fields.items() if name in FIELDS}
    return Part(wire, (code, opaque, flag, language, version, remark or "", known, len(body)))


def seen(frame: RemotingFrame) -> tuple[Any, ...]:
    said = (frame.code, frame.opaque, frame.flag, frame.language, frame.version, frame.remark)
    return *said, dict(frame.fields), frame.body_size


@pytest.mark.long
@usual
@given(st.lists(parts(), max_size=6), st.data())
def test_what_was_written_comes_back_however_it_is_cut(written: list[Part], data: st.DataObject) -> None:
    wire = b"".join(part.wire for part in written)
    items = read(data.draw(pieces(wire)))
    assert not flaws(items)
    assert [seen(frame) for frame in frames(items)] == [part.seen for part in written]
    assert [item.size for item in items] == [len(part.wire) for part in written]
    assert all(before.offset + before.size == behind.offset for before, behind in pairwise(items))
    assert all(begins(part.wire[:size]) for part in written for size in (8, 9, 300))


SESSION = (
    as_json(310, 1, {"a": "p", "b": "jobs", "i": "TRAN_MSG\1true\2", "unitMode": "false"}, b"body")
    + as_json(0, 1, {"queueId": 3, "x": None}, flag=1, remark="größer")
    + as_binary(36, 2, {"group": "jobs", "offset": "7"})
    + as_json(34, 3, None, b'{"clientID":"a"}')
)


@pytest.mark.long
def test_every_cut_of_a_session_in_two_or_three_gives_the_same() -> None:
    expected = read([SESSION])
    assert [frame.code for frame in frames(expected)] == [310, 0, 36, 34]
    assert frames(expected)[0].fields == {"a": "p", "b": "jobs", "i": "TRAN_MSG\1true\2"}
    assert frames(expected)[1].fields == {"queueId": "3"}
    assert not flaws(expected)
    for first in range(len(SESSION) + 1):
        for second in range(first, len(SESSION) + 1, 7):
            assert read(cut(SESSION, [first, second])) == expected
    assert read(bytes([octet]) for octet in SESSION) == expected


def test_versions_are_those_that_the_brokers_report() -> None:
    """4.5.2 and 4.9.7 said these numbers in tests/diagnosis/test_trace_rocketmq.py, and 5.4.0 in the adapter's tests."""
    assert [version_of(number) for number in (317, 407, 493, 212, 213, 211)] == [
        *("4.5.2", "4.9.7", "5.4.0", "4.0.0", "4.0.0", "")
    ]


# --- What is broken is flagged ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "kind"),
    [
        (b"AMQP\0\0\x09\x01", "amqp"),
        (b"AMQP\3\1\0\0", "amqp-1.0"),
        (b"GET /health HTTP/1.1\r\nAuthorization: Basic eA==\r\n\r\n", "http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "tls"),
        (b"CONNECT\naccept-version:1.2\n\n\0", "stomp"),
        (b"PING\r\n\r\n", "unparsable"),
        (b"\xff" * 20, "frame-too-large"),
        (b"\0\0\0\x20\x02\0\0\x10" + bytes(28), "bad-frame"),  # a header of a third kind
        (b"\0\0\0\x20\0\0\0\0" + bytes(28), "bad-frame"),  # no header
        (b"\0\0\0\x20\0\0\0\x1d" + bytes(28), "bad-frame"),  # a header that is longer than its frame
        (b"\0\0\0\x03\0\0\0\1", "bad-frame"),
    ],
)
@pytest.mark.parametrize("before", [b"", as_json(34)])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_is_no_frame_is_named(wire: bytes, kind: str, before: bytes, size: int) -> None:
    whole = before + wire
    reader = RemotingReader()
    found = flaws(item for chunk in cut(whole, range(0, len(whole), size)) for item in reader.feed(chunk))

    assert [(flaw.kind, flaw.offset, flaw.raw) for flaw in found] == [(kind, len(before), wire[:8])]
    assert ("at the start" in found[0].what) == (not before)
    assert not begins(wire)
    assert reader.blind
    assert reader.feed(as_json(34)) == reader.end() == []


@pytest.mark.parametrize(
    ("wire", "kind"), [(b"GET /", "http"), (b"AMQP\0", "amqp"), (b"\x16\x03\x01", "tls"), (b"\0\0\0", "cut")]
)
def test_a_few_bytes_are_judged_when_the_stream_ends(wire: bytes, kind: str) -> None:
    (flaw,) = flaws(read([wire]))
    assert (flaw.kind, flaw.offset, flaw.size) == (kind, 0, len(wire))


def test_the_end_of_the_stream_inside_a_frame_is_a_cut_that_shows_nothing_of_it() -> None:
    wire = as_json(310, 1, {"AccessKey": "s3cret"}, b"s3cret")
    for left in range(1, len(wire)):
        (flaw,) = flaws(read([wire[:left]]))
        assert (flaw.kind, flaw.offset, flaw.size, flaw.raw) == ("cut", 0, left, b"")
        assert "s3cret" not in flaw.what


@pytest.mark.parametrize(
    "header",
    [
        b"no json",
        b"{}",
        b"[]",
        b'{"code":"36"}',
        b'{"code":36,"remark":"\xff"}',
        b'{"code":36,"extFields":[]}',
        b'{"code":36,"extFields":{"topic":{}}}',
        b'{"code":36,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_header_in_json_that_cannot_be_read_leaves_the_reader_in_step(header: bytes) -> None:
    items = read([framed(0, header, b"body") + as_json(34)])
    assert [flaw.kind for flaw in flaws(items)] == ["bad-frame"]
    assert flaws(items)[0].raw == b""
    assert [frame.code for frame in frames(items)] == [34]


def test_a_binary_header_that_is_cut_anywhere_leaves_the_reader_in_step() -> None:
    header = as_binary(36, 1, {"group": "jobs"}, remark="said")[8:]
    for size in range(1, 13):
        items = read([framed(1, header[:size]) + as_json(34)])
        assert [flaw.kind for flaw in flaws(items)] == ["bad-frame"]
        assert [frame.code for frame in frames(items)] == [34]


def test_a_header_without_measure_is_skipped() -> None:
    items = read([framed(0, b" " * (LONGEST_HEAD + 1), b"body") + as_json(34)])
    assert [flaw.kind for flaw in flaws(items)] == ["frame-too-large"]
    assert [frame.code for frame in frames(items)] == [34]


# --- A frame behind bytes that were missed ---------------------------------------------------------------------------


@pytest.mark.long
@usual
@given(st.lists(parts(), min_size=1, max_size=3), st.binary(max_size=100).filter(lambda raw: 0 not in raw), st.data())
def test_a_frame_is_found_behind_bytes_that_were_missed(
    written: list[Part], before: bytes, data: st.DataObject
) -> None:
    wire = before + b"".join(part.wire for part in written)
    kept, came, at = b"", 0, None
    for piece in data.draw(pieces(wire)):
        kept, came = kept + piece, came + len(piece)
        at = next_remoting(kept)
        if at is not None:
            break
        kept = keep_for_remoting(kept)
    assert at is not None
    assert came - len(kept) + at == len(before)


# --- Broken at random ------------------------------------------------------------------------------------------------


def second_opinion(wire: bytes, max_frame: int) -> tuple[list[int], bool]:
    """Where the frames begin, and whether the bytes then break the rules, by a program that has all of them before it."""
    starts: list[int] = []
    at = 0
    while at < len(wire):
        starts.append(at)
        if len(wire) - at < 8:
            return starts, True
        length, kind = struct.unpack_from(">IB", wire, at)
        header = int.from_bytes(wire[at + 5 : at + 8], "big")
        if length + 4 > max_frame or kind > 1 or not 0 < header <= length - 4 or at + 4 + length > len(wire):
            return starts, True
        at += 4 + length
    return starts, False


def judge(wire: bytes, chunks: Sequence[bytes], max_frame: int = MOST) -> None:
    items = read(chunks, max_frame=max_frame)
    starts, broken = second_opinion(wire, max_frame)
    assert list(dict.fromkeys(item.offset for item in items)) == starts
    for flaw in flaws(items):
        assert flaw.kind in FLAWS
        assert len(flaw.raw) <= LONGEST_RAW
    if broken:
        assert isinstance(items[-1], Flaw)


@pytest.mark.long
@usual
@given(st.data())
def test_mutated_streams_are_flagged_where_the_frames_break(data: st.DataObject) -> None:
    whole = b"".join(part.wire for part in data.draw(st.lists(parts(), max_size=6)))
    wire = mutated(whole, data.draw(edits))
    judge(wire, data.draw(pieces(wire)), data.draw(st.sampled_from([50, MOST])))


@pytest.mark.slow
@usual
@given(st.binary(max_size=2000), st.data())
def test_any_bytes_are_read(wire: bytes, data: st.DataObject) -> None:
    for before in (b"", as_json(34), as_json(34, 1, None, bytes(9))[:-3], b"\0\0\1\0\0\0\0\x20"):
        judge(before + wire, data.draw(pieces(before + wire)))


BOMBS = {
    "many fields": as_json(310, 1, {f"{number:x}": "" for number in range(18_000)}),
    "one field": as_json(310, 1, {"i": "\1" * 40_000}),
    "many binary fields": as_binary(310, 1, {f"{number:x}": "" for number in range(20_000)}),
    "brackets": framed(0, b'{"code":1,"x":' + b"[" * 200_000),
    "a header without measure": framed(0, b"[" * 5_000_000),
    "a large body": as_json(34, 1, None, bytes(5_000_000)),
    "a length of 4 GB": b"\xff\xff\xff\xff\0\0\0\x10" + bytes(100_000),
    "a header of 16 MB that does not come": b"\0\xff\xff\xfc\0\xff\xff\xf0",
    "small frames": as_json(34) * 5_000,
}


@pytest.mark.parametrize("wire", BOMBS.values(), ids=BOMBS)
def test_no_frame_takes_more_memory_than_a_few_times_its_largest_head(wire: bytes) -> None:
    assert peak(RemotingReader(), cut(wire, range(0, len(wire), 4096))) < 5 * LONGEST_HEAD
