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
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

from steadyworker.diagnosis.relay import text_of_address
from steadyworker.diagnosis.tap import Side, TapRecord, What
from steadyworker.errors import ConfigError

MOST_HELD = 1_000
"""The largest number of segments of one direction that wait for an earlier one; a segment has at most 64 KiB."""

_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10
_LINKS = {0: 4, 1: 14, 12: 0, 14: 0, 101: 0, 108: 4, 113: 16, 228: 0, 229: 0, 276: 20}
"""For each link type, the bytes before the IP packet: loopback, Ethernet, IP, and `tcpdump -i any` (113, 276)."""


class _Segment(NamedTuple):
    ends: tuple[tuple[str, int], tuple[str, int]]
    seq: int
    ack: int
    flags: int
    data: bytes
    size: int  # with the bytes at its end that were not captured


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
    known: dict[tuple[tuple[str, int], ...], tuple[_Direction, _Direction]] = {}
    number, at = 0, 0.0
    try:
        while (got := reader.next())[0] is not None:
            segment = _segment(got[1], got[0].getlen(), start)
            if segment is None or port not in {segment.ends[0][1], segment.ends[1][1]}:
                continue
            seconds, micros = got[0].getts()
            at, flags = seconds + micros / 1e6, segment.flags
            side = Side(segment.ends[1][1] != port)
            ends = segment.ends[:: -1 if side else 1]
            pair = known.get(ends)
            if pair is None or (flags & (_SYN | _ACK) == _SYN and pair[side].first != segment.seq + 1):
                if not (flags & _SYN or segment.size) or flags & _RST:
                    continue
                if pair is not None and _is_open(pair):
                    yield from _close(pair, at)
                number += 1
                pair = known[ends] = _Direction(number, Side.CLIENT), _Direction(number, Side.BROKER)
                client, broker = map(text_of_address, ends)
                yield TapRecord(What.OPENED, number, Side.CLIENT, at, facts={"client": client, "tls": False})
                facts = {"broker": broker, "joined": not flags & _SYN}
                yield TapRecord(What.CONNECTED, number, Side.BROKER, at, facts=facts)
            if _is_open(pair):
                pair[side].add(segment)
                if flags & _ACK:
                    yield from pair[side.other].advance(at, pair[side.other].position(segment.ack))
                yield from pair[side].advance(at)
                if flags & _RST or not _is_open(pair):
                    yield from _close(pair, at, side if flags & _RST else None)
    finally:  # a file that ends inside a packet has complete packets, too
        for pair in filter(_is_open, known.values()):
            yield from _close(pair, at)


def _is_open(pair: tuple[_Direction, _Direction]) -> bool:
    return not all(stream.ended for stream in pair)


def _close(pair: tuple[_Direction, _Direction], at: float, reset_by: Side | None = None) -> Iterator[TapRecord]:
    """Return what still waits in both directions, and the end."""
    for stream in pair:
        yield from stream.advance(at, math.inf)
    if reset_by is not None and _is_open(pair):
        yield TapRecord(What.RESET, pair[0].number, reset_by, at)
    for stream in pair:
        stream.ended = True
    yield TapRecord(What.CLOSED, pair[0].number, Side.CLIENT, at, facts={"by_trace": False})


def _segment(packet: bytes, whole: int, start: int) -> _Segment | None:
    """Return the TCP segment of a packet; None if it has none, or a part of one, or if the head was not captured."""
    try:
        if packet[start] >> 4 == 4:  # noqa: PLR2004 - IP
            length, fragment, protocol = struct.unpack_from(">2xH2xHxB", packet, start)
            first, size, at = start + 12, 4, start + max(packet[start] & 0x0F, 5) * 4
        else:
            length, protocol = struct.unpack_from(">4xHB", packet, start)
            first, size, at, length, fragment = start + 8, 16, start + 40, length and length + 40, 0
        source, target, seq, ack, words, flags = struct.unpack_from(">HHIIBB", packet, at)
    except (struct.error, IndexError):
        return None
    if protocol != 6 or fragment & 0x3FFF:  # noqa: PLR2004 - TCP
        return None
    hosts = (str(ipaddress.ip_address(packet[place : place + size])) for place in (first, first + size))
    end = start + length if length else whole  # the length is missing if the network card itself cuts the packets
    at += max(words >> 4, 5) * 4
    ends = (next(hosts), source), (next(hosts), target)
    return _Segment(ends, seq, ack, flags, packet[at:end], max(0, end - at))


class _Direction:
    """One direction of a connection; positions count from its first byte, whose sequence number is `first`."""

    def __init__(self, number: int, side: Side) -> None:
        self.number, self._side = number, side
        self.first: int | None = None
        self.ended = False
        self._next = 0
        self._end = math.inf  # the position after the last byte
        self._held: list[tuple[int, bytes, int]] = []  # a heap of positions, bytes and sizes

    def position(self, seq: int) -> int:
        """Return the position of a sequence number; after the largest number, sequence numbers begin again."""
        return self._next + (seq - (self.first or 0) - self._next + (1 << 31)) % (1 << 32) - (1 << 31)

    def add(self, segment: _Segment) -> None:
        """Hold the bytes of a segment."""
        seq = segment.seq + bool(segment.flags & _SYN)
        self.first = seq if self.first is None else self.first
        if segment.size:
            heapq.heappush(self._held, (self.position(seq), segment.data, segment.size))
        if segment.flags & _FIN:
            self._end = self.position(seq) + segment.size

    def advance(self, at: float, until: float = 0) -> Iterator[TapRecord]:
        """Return the bytes in order, and the number of those that the capture lacks: none comes any more before `until`."""
        while self._held and (self._held[0][0] <= max(self._next, until) or len(self._held) > MOST_HELD):
            place, data, size = heapq.heappop(self._held)
            rest = data[max(0, self._next - place) :]
            for part, stop in ((b"", place), (rest, place + len(data)), (b"", place + size)):
                if stop > self._next:
                    yield self._record(at, part, stop - self._next)
                    self._next = stop
        if self._next >= self._end and not self.ended:
            self.ended = True
            yield TapRecord(What.ENDED, self.number, self._side, at)

    def _record(self, at: float, part: bytes, size: int) -> TapRecord:
        if part:
            return TapRecord(What.DATA, self.number, self._side, at, part)
        return TapRecord(
            What.SKIPPED, self.number, self._side, at, size=size, facts={"why": "bytes that the capture lacks"}
        )
