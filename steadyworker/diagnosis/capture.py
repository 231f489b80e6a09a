"""
The TCP connections in a file of captured packets (`tcpdump -i any -w amqp.pcap port 5672`), as the records of a relay.

The segments of each direction are put in order; bytes that were sent or captured twice come once.
Bytes that the capture lacks are skipped when the other end has acknowledged them, and at the end.
A connection that was open before the capture began is `joined`: its first captured byte can be anywhere in a frame.
libpcap (pcapy-ng, extra `pcap`) reads the file; times are in seconds since 1970.
"""

from __future__ import annotations

import heapq
import ipaddress
import math
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from steadyworker.diagnosis.relay import text_of_address
from steadyworker.diagnosis.tap import Side, TapRecord, What
from steadyworker.errors import ConfigError

MOST_HELD = 4_194_304
"""The largest number of bytes of one direction, with 100 bytes for each segment, that may wait for an earlier segment."""

_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10
_TCP, _HEAD, _SEGMENT = 6, 20, 100  # the protocol's number; the shortest head of IPv4 and TCP; bytes of a held segment
_LINKS = {0: 4, 1: 14, 12: 0, 14: 0, 101: 0, 108: 4, 113: 16, 228: 0, 229: 0, 276: 20}
"""For each link type, the bytes before the IP packet: loopback, Ethernet, IP, and `tcpdump -i any` (113, 276)."""


class _Segment(NamedTuple):
    source: tuple[str, int]
    target: tuple[str, int]
    seq: int
    ack: int | None
    flags: int
    data: bytes
    missing: int  # bytes at the segment's end that were not captured


def read_capture(path: str | os.PathLike[str], port: int) -> Iterator[TapRecord]:
    """
    Return what happened on the connections to this port, in the order of the packets.

    Raises:
        ConfigError: pcapy-ng is not installed, or the file is not a capture of Ethernet, loopback or IP packets.
    """
    try:
        import pcapy  # type: ignore[import-not-found]
    except ImportError as error:
        raise ConfigError("Expected pcapy-ng to read a capture, got none: pip install 'steadyworker[pcap]'.") from error
    try:
        with closing(pcapy.open_offline(os.fspath(path))) as reader:
            if (link := reader.datalink()) not in _LINKS:
                raise ConfigError(
                    f"Expected the packets of Ethernet, loopback or IP in {path}, got the link type {link}: capture with tcpdump -i any."
                )
            yield from _records(reader, _LINKS[link], port)
    except pcapy.PcapError as error:
        if "truncated" not in str(error):
            raise ConfigError(f"Expected a capture in {path} (tcpdump -w), got: {error}.") from error


def _records(reader: Any, start: int, port: int) -> Iterator[TapRecord]:
    known: dict[tuple[tuple[str, int], tuple[str, int]], _CapturedConnection] = {}
    number, at = 0, 0.0
    try:
        while (got := reader.next())[0] is not None:
            seconds, micros = got[0].getts()
            segment = _segment(got[1], got[0].getlen(), start)
            if segment is None or port not in {segment.source[1], segment.target[1]}:
                continue
            at = seconds + micros / 1e6
            side = Side.CLIENT if segment.target[1] == port else Side.BROKER
            ends = (segment.source, segment.target) if side is Side.CLIENT else (segment.target, segment.source)
            connection = known.get(ends)
            opens = segment.flags & _SYN and segment.ack is None
            if connection is None or (opens and connection.first != segment.seq):
                if not (segment.flags & _SYN or segment.data or segment.missing) or segment.flags & _RST:
                    continue
                if connection is not None:
                    yield from connection.advance(at, dict.fromkeys(Side, math.inf), close=True)
                number += 1
                connection = known[ends] = _CapturedConnection(number, segment.seq)
                client, broker = map(text_of_address, ends)
                yield TapRecord(What.OPENED, number, Side.CLIENT, at, facts={"client": client, "tls": False})
                facts = {"broker": broker, "joined": not segment.flags & _SYN}
                yield TapRecord(What.CONNECTED, number, Side.BROKER, at, facts=facts)
            yield from connection.receive(at, segment, side)
    finally:  # a file that ends inside a packet has complete packets, too
        for connection in known.values():
            yield from connection.advance(at, dict.fromkeys(Side, math.inf), close=True)


def _segment(packet: bytes, whole: int, start: int) -> _Segment | None:
    """Return the TCP segment of a packet; None if it has none, or a part of one, or if the head was not captured."""
    try:
        version = packet[start] >> 4
        if version == 4:  # noqa: PLR2004 - IP
            length, fragment, protocol = struct.unpack_from(">2xH2xHxB", packet, start)
            source, target = packet[start + 12 : start + 16], packet[start + 16 : start + 20]
            at = start + (packet[start] & 0x0F) * 4
        else:
            length, protocol = struct.unpack_from(">4xHB", packet, start)
            source, target = packet[start + 8 : start + 24], packet[start + 24 : start + 40]
            at, length, fragment = start + 40, length and length + 40, 0
        source_port, target_port, seq, ack, size, flags = struct.unpack_from(">HHIIBB", packet, at)
    except (struct.error, IndexError):
        return None
    if version not in {4, 6} or protocol != _TCP or fragment & 0x3FFF or at < start + _HEAD:
        return None
    end = start + length if length else whole  # the length is missing if the network card itself cuts the packets
    first = at + max(size >> 4, _HEAD // 4) * 4
    data = packet[first:end]
    ends = ((str(ipaddress.ip_address(source)), source_port), (str(ipaddress.ip_address(target)), target_port))
    return _Segment(*ends, seq, ack if flags & _ACK else None, flags, data, max(0, end - first - len(data)))


class _Direction:
    """One direction: its bytes in order, and the later bytes that came too early; positions count from its first byte."""

    def __init__(self) -> None:
        self.next = 0
        self.end = math.inf  # the position after the last byte
        self._first: int | None = None  # the sequence number of the first byte
        self._held: list[tuple[int, bytes, int]] = []  # a heap: position, bytes, and number of bytes missing after them
        self._waiting = 0

    def position(self, seq: int) -> int:
        """Return the position of a sequence number; after the largest number, sequence numbers begin again."""
        return self.next + (seq - (self._first or 0) - self.next + (1 << 31)) % (1 << 32) - (1 << 31)

    def add(self, segment: _Segment) -> None:
        """Hold the bytes of a segment."""
        size = len(segment.data) + segment.missing
        if size or segment.flags & (_SYN | _FIN):
            seq = segment.seq + bool(segment.flags & _SYN)
            self._first = seq if self._first is None else self._first
            if size:
                heapq.heappush(self._held, (self.position(seq), segment.data, segment.missing))
                self._waiting += len(segment.data) + _SEGMENT
            if segment.flags & _FIN:
                self.end = self.position(seq) + size

    def ready(self, until: float) -> Iterator[bytes | int]:
        """Yield the bytes in order, and the number of those that the capture lacks: none comes any more before `until`."""
        while self._held and (self._held[0][0] <= max(self.next, until) or self._waiting > MOST_HELD):
            place, data, missing = heapq.heappop(self._held)
            self._waiting -= len(data) + _SEGMENT
            rest, behind = data[max(0, self.next - place) :], place + len(data)
            for part, stop in ((0, place), (rest, behind), (0, behind + missing)):
                if stop > self.next:
                    yield part or stop - self.next
                    self.next = stop


class _CapturedConnection:
    """The two directions of a connection; a later connection of the same ports has another sequence number `first`."""

    def __init__(self, number: int, first: int) -> None:
        self.first = first
        self._number = number
        self._open = {side: _Direction() for side in Side}
        self._ended: set[Side] = set()

    def receive(self, at: float, segment: _Segment, side: Side) -> Iterator[TapRecord]:
        """Receive the next segment; its acknowledgement shows that the other side's bytes before it have passed."""
        if not self._open:
            return
        self._open[side].add(segment)
        acknowledged = 0.0 if segment.ack is None else self._open[side.other].position(segment.ack)
        if segment.flags & _RST:
            yield from self.advance(at, dict.fromkeys((side.other, side), math.inf))
            if self._open:
                yield TapRecord(What.RESET, self._number, side, at)
                self._ended = set(Side)
        yield from self.advance(at, {side.other: acknowledged, side: 0.0})

    def advance(self, at: float, untils: Mapping[Side, float], *, close: bool = False) -> Iterator[TapRecord]:
        """Pass on the bytes that are complete; close the connection if both sides have ended, or if nothing more comes."""
        for side, until in untils.items() if self._open else ():
            direction = self._open[side]
            for part in direction.ready(until):
                if isinstance(part, bytes):
                    yield TapRecord(What.DATA, self._number, side, at, part)
                else:
                    facts = {"why": "bytes that the capture lacks"}
                    yield TapRecord(What.SKIPPED, self._number, side, at, size=part, facts=facts)
            if direction.next >= direction.end and side not in self._ended:
                self._ended.add(side)
                yield TapRecord(What.ENDED, self._number, side, at)
        if self._open and (close or len(self._ended) == len(Side)):
            self._open = {}
            yield TapRecord(What.CLOSED, self._number, Side.CLIENT, at, facts={"by_trace": False})
