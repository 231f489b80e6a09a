"""The reader of STOMP: what clients wrote comes back, however it is cut; what is broken is flagged, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stomp.protocol import Protocol11, Protocol12  # type: ignore[import-untyped]
from stomp.utils import convert_frame  # type: ignore[import-untyped]

from steadyworker.diagnosis.frames import LONGEST_RAW, Flaw, Heartbeat, Item, StompFrame
from steadyworker.diagnosis.protocols import STOMP_COMMANDS
from steadyworker.diagnosis.stomp import LONGEST_HEAD, MOST_HEADERS, StompReader
from tests.diagnosis.broken_bytes import edits, mutated, peak
from tests.diagnosis.traffic import cut, pieces

usual = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
Seen = tuple[Any, ...]


def read(chunks: Iterable[bytes], *, max_frame: int = 1_000_000, version: str | None = None) -> list[Item]:
    reader = StompReader(max_frame=max_frame)
    reader.version = version or reader.version
    return joined([item for chunk in chunks for item in reader.feed(chunk)] + reader.end())


def joined(items: Sequence[Item]) -> list[Item]:
    """Heartbeats that follow one another are one, because a cut between them makes two."""
    found: list[Item] = []
    for item in items:
        if isinstance(item, Heartbeat) and found and isinstance(last := found[-1], Heartbeat):
            found[-1] = replace(last, size=last.size + item.size)
        else:
            found.append(item)
    return found


def flaws(items: Iterable[Item]) -> list[Flaw]:
    return [item for item in items if isinstance(item, Flaw)]


def frames(items: Iterable[Item]) -> list[StompFrame]:
    return [item for item in items if isinstance(item, StompFrame)]


def one_flaw(wire: bytes, **options: Any) -> Flaw:
    (flaw,) = flaws(read([wire], **options))
    return flaw


# --- What was written comes back -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A frame or some ends of line as they go over the wire, and what a reader must see in them."""

    wire: bytes
    seen: Seen


class Recorder:
    """In the place of stomp.py's connection: keeps what would be sent."""

    def __init__(self) -> None:
        self.wire = b""

    def set_listener(self, *_: object) -> None: ...

    def transmit(self, frame: Any) -> None:
        self.wire += b"".join(convert_frame(frame))


plain = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n:\\"), min_size=1, max_size=12)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=20)
bodies = st.binary(max_size=300)
commands = st.sampled_from(sorted(STOMP_COMMANDS - {"CONNECT", "STOMP", "CONNECTED"}))


@st.composite
def by_stomp_py(draw: st.DrawFn) -> Part:
    """A frame as stomp.py sends it; it escapes values, and no names."""
    protocols = [Protocol11, Protocol12]
    recorder = Recorder()
    command, content = draw(commands), draw(bodies)
    headers = draw(st.dictionaries(plain, texts, max_size=5).filter(lambda headers: "content-length" not in headers))
    if content:
        headers["content-length"] = str(len(content))
    draw(st.sampled_from(protocols))(recorder).send_frame(command, dict(headers), content)
    return Part(recorder.wire, ("frame", command, headers, len(content)))


ESCAPES = {"\\": "\\\\", "\n": "\\n", ":": "\\c", "\r": "\\r"}


def escaped(text: str) -> bytes:
    return "".join(ESCAPES.get(one, one) for one in text).encode()


@st.composite
def by_hand(draw: st.DrawFn) -> Part:
    """A frame with every freedom of STOMP 1.2: CR LF, escaped names, repeated headers, a body without a length."""
    eol = draw(st.sampled_from([b"\n", b"\r\n"]))
    command = draw(commands)
    free = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
    headers = draw(st.lists(st.tuples(free, free), max_size=5))
    headers = [(name, value) for name, value in headers if name != "content-length"]
    content = draw(bodies)
    if draw(st.booleans()):
        headers.insert(draw(st.integers(0, len(headers))), ("content-length", str(len(content))))
        headers.append(("content-length", "7"))
    else:
        content = content.replace(b"\0", b"")
    lines = [command.encode(), *(escaped(name) + b":" + escaped(value) for name, value in headers), b""]
    kept: dict[str, str] = {}
    for name, value in headers:
        kept.setdefault(name, value)
    return Part(eol.join(lines) + eol + content + b"\0", ("frame", command, kept, len(content)))


beats = st.lists(st.sampled_from([b"\n", b"\r\n"]), min_size=1, max_size=4).map(b"".join)
parts = st.lists(by_stomp_py() | by_hand() | beats.map(lambda wire: Part(wire, ("beat", len(wire)))), max_size=8)


def seen(items: Iterable[Item]) -> list[Seen]:
    found: list[Seen] = []
    for item in items:
        match item:
            case StompFrame():
                found.append(("frame", item.command, dict(item.headers), item.body_size))
            case Heartbeat():
                found.append(("beat", item.size))
            case Flaw():
                found.append(("flaw", item.kind, item.what))
    return found


@pytest.mark.long
@usual
@given(st.data())
def test_what_clients_write_comes_back_from_any_pieces(data: st.DataObject) -> None:
    drawn: list[Part] = data.draw(parts)
    wire = b"".join(part.wire for part in drawn)
    expected: list[Seen] = []
    for part in drawn:
        if part.seen[0] == "beat" and expected and expected[-1][0] == "beat":
            expected[-1] = ("beat", expected[-1][1] + part.seen[1])
        else:
            expected.append(part.seen)

    items = read(data.draw(pieces(wire)))

    assert seen(items) == expected
    ends = [item.offset + item.size for item in items]
    assert [item.offset for item in items] == [0, *ends][: len(items)]
    assert not items or ends[-1] == len(wire)


SESSION = (
    b"\n\r\nCONNECT\r\naccept-version:1.1,1.2\r\nheart-beat:0,0\r\n\r\n\0\n"
    b"SEND\ndestination:/queue/a\\cb\ndestination:/queue/other\ncontent-length:5\ncontent-length:9\n\na\0b\0c\0\n\n"
    b"ACK\nid:\xe2\x82\xac\n\n\0\r\n"
)


def test_every_cut_of_a_session_in_two_or_three_gives_the_same() -> None:
    expected = read([SESSION])
    assert [frame.command for frame in frames(expected)] == ["CONNECT", "SEND", "ACK"]
    assert frames(expected)[1].headers == {"destination": "/queue/a:b", "content-length": "5"}
    assert not flaws(expected)
    for first in range(len(SESSION) + 1):
        for second in range(first, len(SESSION) + 1, 5):
            assert read(cut(SESSION, [first, second])) == expected
    assert read(bytes([octet]) for octet in SESSION) == expected


@pytest.mark.parametrize(
    ("version", "value", "flagged"),
    [("1.0", "a\\nb\\x", False), ("1.1", "a\nb\\x", True), ("1.2", "a\nb\\x", True)],
)
def test_the_version_decides_about_escapes(version: str, value: str, *, flagged: bool) -> None:
    items = read([b"SEND\nk: a\\nb\\x \n\n\0"], version=version)
    (frame,) = frames(items)
    assert frame.headers["k"] == (value if version == "1.0" else f" {value} ")
    assert [flaw.kind for flaw in flaws(items)] == ["bad-escape"] * flagged


@pytest.mark.parametrize(
    ("frame", "version"),
    [
        (b"CONNECTED\nversion:1.1\n\n\0", "1.1"),
        (b"CONNECTED\nsession:1\n\n\0", "1.0"),
        (b"CONNECT\naccept-version:1.0,1.1,1.2\n\n\0", "1.2"),
        (b"STOMP\naccept-version:1.1\n\n\0", "1.1"),
        (b"CONNECT\nlogin:x\n\n\0", "1.0"),
    ],
)
def test_the_version_is_learned_from_the_frames_that_connect(frame: bytes, version: str) -> None:
    reader = StompReader()
    assert len(reader.feed(frame)) == 1
    assert reader.version == version


def test_a_frame_that_connects_has_no_escapes() -> None:
    (frame,) = read([b"CONNECT\naccept-version:1.2\npasscode:a\\nb:c\n\n\0"])
    assert isinstance(frame, StompFrame)
    assert frame.headers["passcode"] == "a\\nb:c"


# --- What is broken is flagged ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "kind", "shown"),
    [
        (b"AMQP\0\0\x09\x01", "amqp", b"AMQP\0\0\x09\x01"),
        (b"AMQP\3\1\0\0", "amqp-1.0", b"AMQP\3\1\0\0"),
        (b"GET /health HTTP/1.1\r\nAuthorization: Basic eA==\r\n\r\n", "http", b"GET /health HTTP/1.1\r\n"),
        (b"CONNECT host:80 HTTP/1.1\r\n\r\n", "http", b"CONNECT host:80 HTTP/1.1\r\n"),
        (b"HTTP/1.1 400 Bad Request\r\n", "http", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        (b"hello there\n", "bad-frame", b""),  # the bytes can be a part of a body or a login
        (b"\xff" * 20, "bad-frame", b""),  # the bytes can be a part of a body or a login
        (b"A" * 70, "bad-frame", b""),  # the bytes can be a part of a body or a login
    ],
)
@pytest.mark.parametrize("before", [b"", b"\n", b"SEND\n\n\0"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_is_no_frame_is_named(wire: bytes, kind: str, shown: bytes, before: bytes, size: int) -> None:
    whole = before + wire
    reader = StompReader()
    found = flaws(item for chunk in cut(whole, range(0, len(whole), size)) for item in reader.feed(chunk))

    assert [(flaw.kind, flaw.offset) for flaw in found] == [(kind, len(before))]
    assert found[0].raw == shown if size == 1000 else shown.startswith(found[0].raw)
    assert ("at the start" in found[0].what) == (not before)
    assert reader.blind
    assert reader.feed(b"SEND\n\n\0") == reader.end() == []


@pytest.mark.parametrize(
    ("wire", "kind"), [(b"GET /", "http"), (b"AMQP\0", "amqp"), (b"\x16\x03\x01", "tls"), (b"SEN", "cut")]
)
def test_a_few_bytes_are_judged_when_the_stream_ends(wire: bytes, kind: str) -> None:
    flaw = one_flaw(wire)
    assert (flaw.kind, flaw.raw) == (kind, wire)


@pytest.mark.parametrize("left", [1, 3, 8, 20, 38, 44])
def test_the_end_of_the_stream_inside_a_frame_is_a_cut_that_shows_no_login(left: int) -> None:
    wire = b"CONNECT\nlogin:guest\npasscode:secret\n\nbody of it\0"
    flaw = one_flaw(wire[:left])
    assert (flaw.kind, flaw.offset, flaw.size) == ("cut", 0, left)
    assert b"CONNECT\n".startswith(flaw.raw.ljust(0))
    assert "secret" not in flaw.what


@pytest.mark.parametrize(
    ("wire", "kind"),
    [
        (b"SEND\nno colon\n\n\0", "bad-frame"),
        (b"FETCH\n\n\0", "bad-frame"),
        (b"SEND\ncontent-length:five\n\nhello\0", "bad-frame"),
        (b"SEND\ncontent-length:5\x1d\n\nhello\0", "bad-frame"),
        (b"SEND\ncontent-length:-5\n\nhello\0", "bad-frame"),
        (b"SEND\ncontent-length:" + b"9" * 5000 + b"\n\nhello\0", "bad-frame"),
        (b"SEND\nk:\xff\n\n\0", "bad-text"),
        (b"SEND\nk:\\t\n\n\0", "bad-escape"),
        (b"SEND\nk:a\\\n\n\0", "bad-escape"),
    ],
)
def test_a_bad_frame_is_flagged_and_the_reader_stays_in_step(wire: bytes, kind: str) -> None:
    items = read([wire + b"ACK\nid:1\n\n\0"])
    assert [flaw.kind for flaw in flaws(items)] == [kind]
    assert [frame.command for frame in frames(items)] == [wire.split(b"\n")[0].decode(), "ACK"]
    assert frames(items)[0].size == len(wire)


def test_no_flaw_in_a_frame_that_connects_shows_its_headers() -> None:
    for flaw in flaws(read([b"CONNECT\npasscode=secret\npasscode:secret\xff\n\n\0"])):
        assert flaw.raw == b""
        assert "secret" not in flaw.what


@pytest.mark.parametrize(
    ("wire", "what"),
    [
        (b"SEND\n\nbinary\0card=4111 cvv=123\0", "a line in the place of a frame, which is no command"),
        (b"CONNECT\nlogin:u\npasscode:p\0hunter2\n\n\0secret\n", "a line in the place of a frame, which is no command"),
        (b"AUTH s3cr3t\r\n", "a line at the start, which is no command"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", "PROXY protocol header at the start, which is no command"),
    ],
)
def test_no_flaw_shows_a_line_that_is_no_command(wire: bytes, what: str) -> None:
    flaw = one_flaw(wire)
    assert (flaw.kind, flaw.what, flaw.raw) == ("bad-frame", what, b"")


def test_a_body_that_does_not_end_where_it_should_blinds() -> None:
    flaw = one_flaw(b"SEND\ncontent-length:3\n\nhello\0")
    assert (flaw.kind, flaw.offset, flaw.raw) == ("frame-end", 0, b"l")
    assert "0x6C instead of NUL" in flaw.what


def test_what_is_larger_than_allowed_blinds_before_it_is_read() -> None:
    assert one_flaw(b"SEND\ncontent-length:101\n\n", max_frame=100).kind == "frame-too-large"
    assert not flaws(read([b"SEND\ncontent-length:100\n\n" + bytes(101)], max_frame=100))
    for size in (1, 7, 1000):
        wire = b"SEND\n\n" + b"x" * 101
        assert [flaw.offset + flaw.size for flaw in flaws(read(cut(wire, range(0, 200, size)), max_frame=100))] == [106]
    assert not flaws(read([b"SEND\n\n" + b"x" * 100 + b"\0"], max_frame=100))
    assert one_flaw(b"SEND\n" + b"k:v\n" * LONGEST_HEAD).kind == "frame-too-large"


def test_a_flood_of_headers_or_flaws_is_cut_off() -> None:
    head = b"".join(b"k%d:v\n" % number for number in range(MOST_HEADERS + 50))
    (frame,) = read([b"SEND\n" + head + b"\n\0"])
    assert isinstance(frame, StompFrame)
    assert len(frame.headers) == MOST_HEADERS
    assert len(flaws(read([b"SEND\n" + b"k\n" * 500 + b"\n\0"]))) == 1


# --- Broken at random ------------------------------------------------------------------------------------------------


def second_opinion(wire: bytes, max_frame: int) -> tuple[list[int], bool]:
    """Where the frames end, and whether the bytes then break the rules, by a program that has all of them before it."""
    ends: list[int] = []
    at = 0
    while True:
        at += len(wire[at:]) - len(wire[at:].lstrip(b"\r\n"))
        if at == len(wire):
            return ends, False
        found = re.compile(rb"[A-Z]{1,32}\r?\n(?:.*\n)*?\r?\n").match(wire, at)
        if not found or found.end() - at > LONGEST_HEAD or wire[at : at + 4] == b"AMQP":
            return ends, True
        lengths = re.findall(rb"^content-length:(.*)\n", found[0], re.MULTILINE)
        stop = found.end()
        if lengths and re.fullmatch(rb"[ \t]*\d{1,18}[ \t]*\r?", lengths[0]):
            if int(lengths[0]) > max_frame:
                return ends, True
            stop += int(lengths[0])
        else:
            stop = wire.find(b"\0", stop)
        if stop < 0 or stop - found.end() > max_frame or wire[stop : stop + 1] != b"\0":
            return ends, True
        at = stop + 1
        ends.append(at)


def judge(wire: bytes, chunks: Sequence[bytes], max_frame: int = 1_000_000) -> None:
    items = read(chunks, max_frame=max_frame)
    ends, broken = second_opinion(wire, max_frame)
    assert [frame.offset + frame.size for frame in frames(items)] == ends
    for flaw in flaws(items):
        assert len(flaw.raw) <= LONGEST_RAW
    if broken:
        assert isinstance(items[-1], Flaw)
    for before, behind in pairwise(item for item in items if not isinstance(item, Flaw)):
        assert before.offset + before.size == behind.offset


@pytest.mark.long
@usual
@given(st.data())
def test_mutated_streams_are_flagged_where_the_frames_break(data: st.DataObject) -> None:
    wire = mutated(b"".join(part.wire for part in data.draw(parts)), data.draw(edits))
    judge(wire, data.draw(pieces(wire)), data.draw(st.sampled_from([50, 1_000_000])))


@usual
@given(st.binary(max_size=2000), st.data())
def test_any_bytes_are_read(wire: bytes, data: st.DataObject) -> None:
    for before in (b"", b"SEND\n\n\0", b"SEND\ncontent-length:30\n"):
        judge(before + wire, data.draw(pieces(before + wire)))


BOMBS = {
    "many headers": b"SEND\n" + b"".join(b"%x:\n" % number for number in range(9000)) + b"\n\0",
    "many flaws": b"SEND\n" + b"k\n" * 30_000 + b"\n\0",
    "bad escapes": b"SEND\n" + b"k:\\t\n" * 12_000 + b"\n\0",
    "headers without an end": b"SEND\n" + b"k:v\n" * 100_000,
    "a large body": b"SEND\ncontent-length:50000000\n\n" + bytes(5_000_000),
    "a body without an end": b"SEND\n\n" + b"x" * 5_000_000,
    "a body of 9 EB": b"SEND\ncontent-length:" + b"9" * 18 + b"\n\n",
    "a length of many digits": b"SEND\ncontent-length:" + b"9" * 60_000 + b"\n\n",
    "a line without an end": b"A" * 1_000_000,
    "ends of line": b"\n" * 500_000,
}


@pytest.mark.parametrize("wire", BOMBS.values(), ids=BOMBS)
def test_no_more_memory_than_a_few_times_the_largest_head(wire: bytes) -> None:
    assert peak(StompReader(), cut(wire, range(0, len(wire), 4096))) < 5 * LONGEST_HEAD
