"""Captures: what each end sent comes back in order, whatever was captured twice, late, or not at all."""

from __future__ import annotations

import builtins
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands, frame

from steadyworker.diagnosis.capture import MOST_HELD, read_capture
from steadyworker.diagnosis.conversation import Known
from steadyworker.diagnosis.tap import Side, TapRecord, What
from steadyworker.diagnosis.tracing import Conversations
from steadyworker.diagnosis.wire import Wire
from steadyworker.errors import ConfigError
from tests.diagnosis.packets import (
    ACK,
    ETHERNET,
    FIN,
    PORT,
    PUSH,
    RST,
    Talk,
    ethernet,
    ipv4,
    ipv6,
    tcp,
    timed,
    write_pcap,
    write_pcapng,
)
from tests.diagnosis.traffic import OPENING, framed

pytestmark = pytest.mark.long

BEAT = framed(8, 0, b"")


def events(tmp_path: Path, packets: Iterable[bytes], **options: Any) -> list[TapRecord]:
    return list(read_capture(write_pcap(tmp_path / "a.pcap", timed(packets), **options), PORT))


def sent(found: Iterable[TapRecord], *, by_client: bool = True) -> list[bytes | int]:
    """The bytes of one direction, and the numbers of those that are missing."""
    side = Side.CLIENT if by_client else Side.BROKER
    return [
        bytes(record.data) or record.size
        for record in found
        if record.side is side and record.what in {What.DATA, What.SKIPPED}
    ]


def ends(found: Iterable[TapRecord]) -> list[TapRecord]:
    return [record for record in found if record.what in {What.ENDED, What.RESET}]


@pytest.mark.parametrize("write", [write_pcap, write_pcapng])
def test_a_connection_is_read_from_both_formats(write: Callable[..., Path], tmp_path: Path) -> None:
    talk = Talk()
    packets = [
        *talk.opened(),
        talk.packet(OPENING, ACK | PUSH),
        talk.packet(by_client=False),
        talk.packet(BEAT, by_client=False),
        talk.packet(flags=FIN | ACK),
        talk.packet(flags=FIN | ACK, by_client=False),
        talk.packet(),
    ]
    assert list(read_capture(write(tmp_path / "a.pcap", timed(packets)), PORT)) == [
        TapRecord(What.OPENED, 1, Side.CLIENT, 1_700_000_000.0, facts={"client": "10.0.0.1:40000", "tls": False}),
        TapRecord(What.CONNECTED, 1, Side.BROKER, 1_700_000_000.0, facts={"broker": "10.0.0.2:5672", "joined": False}),
        TapRecord(What.DATA, 1, Side.CLIENT, 1_700_000_000.75, OPENING),
        TapRecord(What.DATA, 1, Side.BROKER, 1_700_000_001.25, BEAT),
        TapRecord(What.ENDED, 1, Side.CLIENT, 1_700_000_001.5),
        TapRecord(What.ENDED, 1, Side.BROKER, 1_700_000_001.75),
        TapRecord(What.CLOSED, 1, Side.CLIENT, 1_700_000_001.75, facts={"by_trace": False}),
    ]


V6 = ipv6("fe80::1", "fe80::2", tcp(40_000, PORT, 1, 1, ACK, b"abc"))
V4 = ipv4("10.0.0.1", "10.0.0.2", tcp(40_000, PORT, 1, 1, ACK, b"abc", options=bytes(12)))


@pytest.mark.parametrize(
    ("link", "packet", "client"),
    [
        (0, b"\2\0\0\0" + V4, "10.0.0.1:40000"),
        (1, ethernet(V4), "10.0.0.1:40000"),
        (1, ethernet(V6), "[fe80::1]:40000"),
        (101, V6, "[fe80::1]:40000"),
        (113, bytes(14) + b"\x08\x00" + V4, "10.0.0.1:40000"),
        (276, b"\x08\x00" + bytes(18) + V4, "10.0.0.1:40000"),
        (101, ipv4("10.0.0.1", "10.0.0.2", tcp(40_000, PORT, 1, 1, ACK, b"abc"), length=0), "10.0.0.1:40000"),
    ],
)
def test_packets_of_every_kind_of_link_are_read(link: int, packet: bytes, client: str, tmp_path: Path) -> None:
    opened, connected, data, closed = events(tmp_path, [packet], link=link)
    assert (opened.facts["client"], connected.facts["joined"]) == (client, True)
    assert (data.data, closed.what) == (b"abc", What.CLOSED)


def test_what_is_no_segment_of_the_port_is_left_out(tmp_path: Path) -> None:
    other = tcp(1, 2, 1, 1, ACK, b"abc")
    packets = [
        b"",
        b"\x45",
        ipv4("10.0.0.1", "10.0.0.2", other),
        ipv4("10.0.0.1", "10.0.0.2", b"\0\1"),
        ipv4("10.0.0.1", "10.0.0.2", tcp(1, PORT, 1, 1, ACK, b"abc"), fragment=0x2000),
        ipv4("10.0.0.1", "10.0.0.2", tcp(1, PORT, 1, 1, ACK)),  # of an old connection, without any bytes
        ipv4("10.0.0.1", "10.0.0.2", tcp(1, PORT, 1, 1, RST)),
        ipv6("::1", "::2", b"", extension=b"\x11"),
    ]
    assert events(tmp_path, packets) == []
    assert events(tmp_path, [ETHERNET + b"\x08\x06" + bytes(40)], link=1) == []


@pytest.mark.parametrize("words", [0, 4, 5, 15])
def test_a_head_of_any_length_that_is_cut_anywhere_is_no_error(words: int, tmp_path: Path) -> None:
    for kept in range(1, 48):
        read_cut(words, kept, tmp_path)


def read_cut(words: int, kept: int, tmp_path: Path) -> None:
    talk = Talk()
    first, *others = talk.opened()
    cut = [bytes([0x40 | words]) + packet[1:kept] for packet in (*others, talk.packet(b"AMQP\0\0\x09\x01"))]
    events = list(read_capture(write_pcap(tmp_path / "cut.pcap", timed([first, *cut])), PORT))
    assert events[0].what is What.OPENED


def test_what_was_captured_twice_or_late_comes_once_and_in_order(tmp_path: Path) -> None:
    talk = Talk()
    first, second, third = talk.packet(b"abc"), talk.packet(b"def"), talk.packet(b"ghi")
    overlap = ipv4(talk.client, talk.broker, tcp(talk.client_port, PORT, 1002, 1, ACK, b"cdefg"))
    packets = [*talk.opened()[:0], first, first, third, overlap, second, second, third]
    assert b"".join(map(bytes, sent(events(tmp_path, packets)))) == b"abcdefghi"
    assert len(sent(events(tmp_path, packets))) == 3


def test_numbers_that_begin_again_are_no_gap(tmp_path: Path) -> None:
    talk = Talk(numbers={True: 2**32 - 5, False: 2**32 - 1})
    packets = [*talk.opened(), *(talk.packet(b"abc") for _ in range(4)), talk.packet(b"xyz", by_client=False)]
    packets[4], packets[5] = packets[5], packets[4]
    found = events(tmp_path, packets)
    assert sent(found) == [b"abc"] * 4
    assert sent(found, by_client=False) == [b"xyz"]


def test_bytes_that_were_never_captured_are_missing_when_the_other_end_acknowledges_them(tmp_path: Path) -> None:
    talk = Talk()
    packets = [*talk.opened(), talk.packet(b"abc")]
    talk.packet(b"lost")
    acknowledged = talk.packet(by_client=False)  # just these bytes, and none of the next ones
    packets += [talk.packet(b"def"), acknowledged, talk.packet(b"ghi")]

    found = events(tmp_path, packets)

    assert sent(found) == [b"abc", 4, b"def", b"ghi"]
    missing = next(record for record in found if record.what is What.SKIPPED)
    assert missing.t == 1_700_000_000 + 5 / 4  # when the acknowledgement came


def test_bytes_that_were_never_captured_are_missing_at_the_end(tmp_path: Path) -> None:
    talk = Talk()
    packets = [*talk.opened(), talk.packet(b"abc")]
    talk.packet(b"lost")
    packets += [talk.packet(b"def"), talk.packet(flags=FIN | ACK)]
    found = events(tmp_path, packets)
    assert sent(found) == [b"abc", 4, b"def"]
    assert ends(found) == [TapRecord(What.ENDED, 1, Side.CLIENT, 1_700_000_000 + 5 / 4)]

    packets.append(talk.packet(flags=RST | ACK, by_client=False))
    found = events(tmp_path, packets)
    assert sent(found) == [b"abc", 4, b"def"]
    assert [record.what for record in found[-3:]] == [What.ENDED, What.RESET, What.CLOSED]


def test_a_capture_of_the_first_bytes_of_each_packet_names_what_it_lacks(tmp_path: Path) -> None:
    talk = Talk()
    packets = [*talk.opened(), talk.packet(b"a" * 100), talk.packet(b"b" * 30), talk.packet(b"c" * 100)]
    found = events(tmp_path, [*packets, packets[3]], longest=80)
    assert sent(found) == [b"a" * 40, 60, b"b" * 30, b"c" * 40, 60]


def test_a_reset_ends_a_connection_and_the_same_ports_may_open_another(tmp_path: Path) -> None:
    talk = Talk()
    packets = [*talk.opened(), talk.packet(b"abc"), talk.packet(flags=RST, by_client=False), talk.packet(b"late")]
    again = Talk(numbers={True: 70_000, False: 90_000})
    opening = again.opened()
    packets += [opening[0], opening[0], *opening[1:], again.packet(b"def")]

    found = events(tmp_path, packets)

    assert [(record.what, record.link) for record in found] == [
        *((What.OPENED, 1), (What.CONNECTED, 1), (What.DATA, 1), (What.RESET, 1), (What.CLOSED, 1)),
        *((What.OPENED, 2), (What.CONNECTED, 2), (What.DATA, 2), (What.CLOSED, 2)),
    ]
    assert ends(found) == [TapRecord(What.RESET, 1, Side.BROKER, 1_700_000_001.0)]
    assert sent(found) == [b"abc", b"def"]


def test_two_connections_at_a_time_are_kept_apart(tmp_path: Path) -> None:
    one, two = Talk(), Talk(client_port=40_001)
    packets = [*one.opened(), *two.opened(), one.packet(b"a"), two.packet(b"b"), one.packet(b"c", by_client=False)]
    found = events(tmp_path, packets)
    assert [(record.link, record.data) for record in found if record.what is What.DATA] == [
        (1, b"a"),
        (2, b"b"),
        (1, b"c"),
    ]


def test_a_file_that_ends_inside_a_packet_is_read_up_to_it(tmp_path: Path) -> None:
    talk = Talk()
    path = write_pcap(tmp_path / "a.pcap", timed([*talk.opened(), talk.packet(b"abc"), talk.packet(b"def")]))
    path.write_bytes(path.read_bytes()[:-2])
    assert sent(read_capture(path, PORT)) == [b"abc"]


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, Path(__file__)):
        with pytest.raises(ConfigError, match=r"Expected a capture in .*tcpdump -w"):
            list(read_capture(path, PORT))
    path = write_pcap(tmp_path / "a.pcap", timed([V4]), link=147)
    with pytest.raises(ConfigError, match="got the link type 147"):
        list(read_capture(path, PORT))
    path = write_pcap(tmp_path / "a.pcap", timed([V4]))
    path.write_bytes(path.read_bytes() + struct.pack("<IIII", 0, 0, 2**31, 5) + b"abcde")
    with pytest.raises(ConfigError, match="Expected a capture"):
        list(read_capture(path, PORT))


def test_a_missing_pcapy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "pcapy":
            raise ModuleNotFoundError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install 'steadyworker\[pcap\]'"):
        list(read_capture("a.pcap", PORT))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_whatever_is_shuffled_doubled_or_dropped_the_streams_come_back(tmp_path: Path, data: st.DataObject) -> None:
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    numbers = {True: data.draw(st.integers(0, 2**32 - 1)), False: data.draw(st.integers(0, 2**32 - 1))}
    talk, whole = Talk(numbers=numbers), {True: b"", False: b""}
    packets = talk.opened()
    dropped = {True: 0, False: 0}
    for _ in range(data.draw(st.integers(0, 40))):
        by_client, content = chance.random() < 0.5, chance.randbytes(chance.randrange(1, 50))
        whole[by_client] += content
        packet = talk.packet(content, by_client=by_client)
        match chance.randrange(8):
            case 0:
                dropped[by_client] += len(content)
            case 1:
                packets += [packet, packet]
            case 2:
                packets.insert(max(3, len(packets) - 1), packet)
            case _:
                packets.append(packet)
    packets += [talk.packet(b"!"), talk.packet(b"!", by_client=False)]

    found = events(tmp_path, packets)

    for by_client, content in whole.items():
        at = missing = 0
        for part in sent(found, by_client=by_client):
            if isinstance(part, int):
                at, missing = at + part, missing + part
            else:
                assert (content + b"!")[at : at + len(part)] == part
                at += len(part)
        assert at == len(content) + 1
        assert missing >= dropped[by_client]


def test_a_hole_that_is_never_acknowledged_holds_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    talk = Talk()
    packets = [*talk.opened(), talk.packet(b"abc")]
    talk.packet(b"lost")
    packets += [talk.packet(bytes(6_000)) for _ in range(2 * MOST_HELD)]
    path = write_pcap(tmp_path / "a.pcap", timed(packets))
    tracemalloc.start()
    try:
        size = sum(len(part) if isinstance(part, bytes) else part for part in sent_one_by_one(path))
        assert tracemalloc.get_traced_memory()[1] < 1.2 * MOST_HELD * 6_000
    finally:
        tracemalloc.stop()
    assert size == 7 + 6_000 * 2 * MOST_HELD


def sent_one_by_one(path: Path) -> Iterable[bytes | int]:
    for event in read_capture(path, PORT):
        yield from sent([event])


# --- With the conversation behind it ---------------------------------------------------------------------------------


def read(path: Path, port: int = PORT) -> list[dict[str, Any]]:
    """What a trace writes of a capture."""
    records, found = read_capture(path, port), list[dict[str, Any]]()
    if (first := next(records, None)) is not None:
        conversations = Conversations(Wire(first.t, [found.append]), Known.at(port))
        for record in chain((first,), records):
            conversations.receive(record)
    return found


def frames(found: Iterable[dict[str, Any]], *, side: str = "broker") -> list[str]:
    return [event.get("name", event["kind"]) for event in found if event["from"] == side and event["kind"] in FRAMES]


FRAMES = {"header", "method", "content", "body", "heartbeat"}


def message(number: int, size: int = 300) -> bytes:
    deliver = frame.marshal(commands.Basic.Deliver("ctag", number, False, "", "jobs"), 1)
    return deliver + framed(2, 1, struct.pack(">HHQH", 60, 0, size, 0)) + framed(3, 1, b"\1" * size)


MESSAGE = ["Basic.Deliver", "content", "body"]


def test_a_capture_that_begins_inside_a_message_flags_nothing(tmp_path: Path) -> None:
    talk = Talk()
    wire = framed(3, 1, b"\1" * 30) + framed(3, 1, b"\1" * 30) + message(2) + message(3)
    found = read(write_pcap(tmp_path / "a.pcap", timed([talk.packet(wire, by_client=False)])))
    assert frames(found) == MESSAGE * 2
    assert not [event for event in found if event["kind"] == "flag"]


def test_behind_bytes_that_are_missing_the_next_whole_frames_are_read(tmp_path: Path) -> None:
    talk = Talk()
    parts = [message(1), message(2, size=1000), BEAT, message(3), BEAT, message(4)]
    packets = [*talk.opened(), talk.packet(OPENING), *(talk.packet(part, by_client=False) for part in parts)]

    whole = read(write_pcap(tmp_path / "a.pcap", timed(packets)))
    assert frames(whole) == [*MESSAGE * 2, "heartbeat", *MESSAGE, "heartbeat", *MESSAGE]
    # The first 600 bytes of each packet: the second message lacks the rest of its body.
    cut = read(write_pcap(tmp_path / "a.pcap", timed(packets), longest=600))
    assert frames(cut) == [*MESSAGE, *MESSAGE[:2], *MESSAGE, "heartbeat", *MESSAGE]
    del packets[6:8]  # the first heartbeat of the broker is lost, and then the third message
    holed = read(write_pcap(tmp_path / "a.pcap", timed([*packets, talk.packet()])))
    assert frames(holed) == [*MESSAGE * 2, *MESSAGE]
    for found in (cut, holed):
        assert not [event for event in found if event["kind"] == "flag"]


# --- A real one: pika 1.4 and RabbitMQ 3.10 on the loopback of Linux, with frame_max=4096 and heartbeat=2 -------------

REAL = Path(__file__).parent / "captures" / "rabbitmq-3.10-pika.pcap"
REAL_PORT = 27_600


def real_packets() -> list[tuple[float, bytes]]:
    """The packets of the real capture, without the head of its file."""
    data, at, found = REAL.read_bytes(), 24, list[tuple[float, bytes]]()
    while at < len(data):
        seconds, micros, size, _ = struct.unpack_from("<IIII", data, at)
        found.append((seconds + micros / 1e6, data[at + 16 : at + 16 + size]))
        at += 16 + size
    return found


def test_a_real_capture_is_read_whole() -> None:
    found = list(read_capture(REAL, REAL_PORT))
    assert not found[1].facts["joined"]
    assert [(record.side, record.what) for record in ends(found)] == [
        *((Side.CLIENT, What.ENDED), (Side.BROKER, What.RESET)),
    ]
    assert [record.t for record in ends(found)] == pytest.approx([1_795_577_333.805498, 1_795_577_333.805665], abs=1e-6)
    written = read(REAL, REAL_PORT)
    assert frames(written, side="client") == [
        *("AMQP 0-9-1", "Connection.StartOk", "Connection.TuneOk", "Connection.Open", "Channel.Open"),
        *("Confirm.Select", "Queue.Declare", "Basic.Publish", "content", "body"),
        *("Basic.Publish", "content", "Basic.Qos", "Basic.Consume", "Basic.Ack", "Basic.Ack", "Basic.Cancel"),
        *("heartbeat", "heartbeat", "heartbeat", "Queue.Delete", "Channel.Close", "Connection.Close"),
    ]
    assert frames(written) == [
        *("Connection.Start", "Connection.Tune", "Connection.OpenOk", "Channel.OpenOk", "Confirm.SelectOk"),
        *("Queue.DeclareOk", "Basic.Ack", "Basic.Ack", "Basic.QosOk", "Basic.ConsumeOk"),
        *("Basic.Deliver", "content", "body", "Basic.Deliver", "content", "Basic.CancelOk"),
        *("heartbeat", "heartbeat", "heartbeat", "Queue.DeleteOk", "Channel.CloseOk", "Connection.CloseOk"),
    ]
    start = next(event for event in written if event.get("name") == "Connection.Start")
    assert start["server_properties"]["version"] == "3.10.8"


@pytest.mark.parametrize("longest", [100, 65_535])
def test_a_real_capture_that_begins_anywhere_or_is_cut_gives_a_part_of_it_and_no_flag(
    longest: int, tmp_path: Path
) -> None:
    whole = list(map(timeless, read(REAL, REAL_PORT)))
    packets = real_packets()
    for first in range(len(packets)):
        found = read(write_pcap(tmp_path / "a.pcap", packets[first:], link=1, longest=longest), REAL_PORT)
        assert not [event for event in found if event["kind"] == "flag"], first
        for side in ("client", "broker"):
            rest = iter([event for event in whole if event["from"] == side])
            part = [timeless(event) for event in found if event["from"] == side and event["kind"] in FRAMES - {"body"}]
            assert all(event in rest for event in part), (first, side, frames(found, side=side))


def timeless(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in {"t", "second"}}
