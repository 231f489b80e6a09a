"""Numbers and bytes that were something else, written as what they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.diagnosis.protocols import (
    FRAME_HEAD,
    OPENINGS,
    SpelledRow,
    characters,
    erlang_binary,
    first_line,
    recognize,
    spell,
    spell_bytes,
    spell_length,
)


def head(raw: bytes) -> dict[str, int]:
    """The numbers that a reader of AMQP frames takes seven bytes for."""
    return {"type": raw[0], "channel": int.from_bytes(raw[1:3], "big"), "size": int.from_bytes(raw[3:7], "big")}


def test_the_numbers_of_the_log_line_are_a_protocol_header() -> None:
    found = spell({"type": 65, "channel": 19793, "size": 1342177289})
    assert found
    assert found.raw == b"AMQP\0\0\x09"
    assert (found.protocol, found.kind) == ("AMQP protocol header", "amqp")
    assert found.rows == (
        SpelledRow("type", 65, "41", "A"),
        SpelledRow("channel", 19793, "4D 51", "MQ"),
        SpelledRow("size", 1342177289, "50 00 00 09", "P\\0\\0\\t"),
    )


@pytest.mark.parametrize(
    ("opening", "protocol"),
    [
        (b"AMQP\0\0\x09\x01", "AMQP protocol header"),
        (b"AMQP\1\1\0\x09", "AMQP protocol header"),
        (b"AMQP\0\1\0\0", "AMQP 1.0 protocol header"),
        (b"GET / HTTP/1.1\r\n", "HTTP request"),
        (b"POST /x HTTP/1.1\r\n", "HTTP request"),
        (b"CONNECT a:80 HTTP/1.1\r\n", "HTTP request"),
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP response"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "TLS ClientHello"),
        (b"\x16\x03\x03\x00\x9b\x01\x00\x00\x97", "TLS ClientHello"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "TLS alert"),
        (b"STOMP\naccept-version:1.2\n\n\0", "STOMP frame"),
        (b"CONNECT\r\naccept-version:1.2\r\n\r\n\0", "STOMP frame"),
        (b"PING\r\n", "PING"),
        (b"*1\r\n$4\r\nPING\r\n", "PING"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", "PROXY protocol header"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH banner"),
    ],
)
def test_what_opens_is_distinguished_by_its_bytes_and_by_the_numbers_they_were_taken_for(
    opening: bytes, protocol: str
) -> None:
    if opening[:7] != b"CONNECT":  # so far STOMP and HTTP are the same
        numbers = spell(head(opening[:7].ljust(7, b"\0")))
        assert numbers
        assert numbers.protocol == protocol
    assert spell_bytes(opening).protocol == protocol
    found = recognize(opening)
    assert found
    assert found.name == protocol


@pytest.mark.parametrize(
    ("number", "text", "protocol"),
    [
        (1195725856, "GET ", "HTTP request"),
        (1213486160, "HTTP", "HTTP response"),
        (369295617, "\\x16\\x03\\x01\\x01", "TLS ClientHello"),
        (1398034253, "STOM", "STOMP frame"),
        (1095586128, "AMQP", "AMQP protocol header"),
        (1346981447, "PING", "PING"),
        (65_536, "\\0\\x01\\0\\0", None),
    ],
)
def test_a_length_is_four_characters(number: int, text: str, protocol: str | None) -> None:
    found = spell_length(number)
    assert found
    assert found.rows == (SpelledRow("length", number, number.to_bytes(4, "big").hex(" ").upper(), text),)
    assert found.protocol == protocol


@given(st.binary(min_size=7, max_size=7))
def test_the_bytes_come_back_from_the_numbers(raw: bytes) -> None:
    found = spell(head(raw))
    assert found
    assert found.raw == raw == spell_bytes(raw).raw
    assert found == spell_bytes(raw)
    assert [row.hex for row in found.rows] == [
        raw[:1].hex().upper(),
        raw[1:3].hex(" ").upper(),
        raw[3:].hex(" ").upper(),
    ]


@given(st.integers(0, 255), st.integers(0, 2047), st.integers(0, 131_064))
def test_an_ordinary_frame_opens_nothing(kind: int, channel: int, size: int) -> None:
    found = spell({"type": kind, "channel": channel, "size": size})
    assert found
    assert found.protocol in {None, "TLS ClientHello", "TLS alert"}
    assert found.protocol is None or (kind in {0x15, 0x16} and channel >> 8 == 3)


def test_numbers_that_no_frame_has_are_not_spelled() -> None:
    assert spell({}) is None
    assert spell({"type": 256}) is None
    assert spell({"type": 1, "channel": 65_536, "size": 1}) is None
    assert spell({"size": -1}) is None
    assert spell_length(2**32) is None


def test_type_and_size_without_the_channel_are_no_run_of_bytes() -> None:
    found = spell({"type": 65, "size": 1342177289})
    assert found
    assert [row.field for row in found.rows] == ["type", "size"]
    assert found.protocol == "AMQP protocol header"
    size = dict(FRAME_HEAD)["size"]
    assert found.raw == b"P\0\0\x09"[:size]


@pytest.mark.parametrize(
    ("printed", "raw"),
    [
        ('<<"GET / HT">>', b"GET / HT"),
        ("<<22,3,1,2,0,1,0,1>>", b"\x16\x03\x01\x02\x00\x01\x00\x01"),
        ('<<"AMQP",3,1,0,0>>', b"AMQP\3\1\0\0"),
        ('<<"a\\"b\\n\\x{e9}\\101\\\\">>', b'a"b\n\xe9A\\'),
        ("<<>>", b""),
        (' <<"abc"...>> ', b"abc"),
        ("<<22,3,1,...>>", b"\x16\x03\x01"),
        ("<<1,2,>>", b"\1\2"),
        ("<<300>>", None),
        ("<<1 2>>", None),
        ("GET", None),
        ('<<"open>>', None),
    ],
)
def test_a_binary_as_erlang_prints_it_is_bytes(printed: str, raw: bytes | None) -> None:
    assert erlang_binary(printed) == raw


def test_each_opening_recognizes_its_own_bytes_first_or_has_the_same_name() -> None:
    for opening in OPENINGS:
        for begins in opening.begins:
            found = recognize(begins)
            assert found
            assert found.name == opening.name


def test_characters_and_lines() -> None:
    assert characters(b"a\\\0\t\r\n\x16\xe9~") == "a\\\\\\0\\t\\r\\n\\x16\\xe9~"
    assert first_line(b"GET / HTTP/1.1\r\nA: b\r\n") == b"GET / HTTP/1.1\r\n"
    assert first_line(b"abc") == b"abc"
