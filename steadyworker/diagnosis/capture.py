"""
The TCP connections in a file of captured packets, such as `tcpdump -w` writes.

    tcpdump -i any -s 0 -w amqp.pcap port 5672

`read_capture` returns what happened on the connections of one port, in the order of the packets.
Its records have the same form as the relay's records.
`read_capture` puts the segments of each direction in order, and leaves out bytes that were sent or captured twice.
If the other end has acknowledged bytes that were never captured, `read_capture` skips these bytes at once.
It also skips such bytes if too many later bytes wait for them, and at the end of the connection or of the capture.
A connection that was open before the capture began is `joined`: its first captured byte can be anywhere in a frame.
Times are in seconds since 1970.

libpcap (pcapy-ng, extra `pcap`) reads the file, in both formats of such files.
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
_TCP = 6
_HALF, _WHOLE = 1 << 31, 1 << 32
_ETHERNET = 1
_VLAN = {b"\x81\0", b"\x88\xa8", b"\x91\0"}
_EXTENSIONS = {0, 43, 60}  # extension headers of IPv6: hop by hop, routing, destination
_SHORTEST_HEAD = 20  # the bytes of the shortest head, both for IPv4 and for TCP
_OVERHEAD = 100  # the bytes that a segment in the heap takes in addition to its data
_LINKS = {0: 4, _ETHERNET: 14, 12: 0, 14: 0, 101: 0, 108: 4, 113: 16, 228: 0, 229: 0, 276: 20}
"""For each link type, the bytes before the IP packet: loopback, Ethernet, IP, and `tcpdump -i any` (113, 276)."""

_End = tuple[str, int]


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
        reader = pcapy.open_offline(os.fspath(path))
    except pcapy.PcapError as error:
        raise ConfigError(f"Expected a capture in {path} (tcpdump -w), got: {error}.") from error
    with closing(reader):
        if (link := reader.datalink()) not in _LINKS:
            raise ConfigError(
                f"Expected the packets of Ethernet, loopback or IP in {path}, got the link type {link}: "
                "capture with tcpdump -i any."
            )
        connections = _CapturedConnections(port)
        for at, packet, whole in _packets(reader, path, pcapy.PcapError):
            if (segment := _segment(packet, whole, link)) is not None:
                yield from connections.receive(at, segment)
        yield from connections.end()


def _packets(reader: Any, path: str | os.PathLike[str], failure: type[Exception]) -> Iterator[tuple[float, bytes, int]]:
    """
    Return each packet with its time and its size on the network.

    If the file ends inside a packet, the last packet is left out.
    """
    while True:
        try:
            head, packet = reader.next()
        except failure as error:
            if "truncated" in str(error):
                return
            raise ConfigError(f"Expected a capture in {path} (tcpdump -w), got: {error}.") from error
        if head is None:
            return
        seconds, micros = head.getts()
        yield seconds + micros / 1e6, packet, head.getlen()


# --- From a packet to a segment of TCP ---


class _Segment(NamedTuple):
    source: _End
    target: _End
    seq: int
    ack: int | None
    flags: int
    data: bytes
    missing: int  # bytes at the segment's end that were not captured


def _segment(packet: bytes, whole: int, link: int) -> _Segment | None:
    """Return the TCP segment of a packet; None if it has none, or a part of one, or if the head was not captured."""
    start = _LINKS[link]
    while link == _ETHERNET and packet[start - 2 : start] in _VLAN:
        start += 4
    try:
        version = packet[start] >> 4
        if version == 4:  # noqa: PLR2004 - IP
            length, fragment, protocol = struct.unpack_from(">2xH2xHxB", packet, start)
            source, target = packet[start + 12 : start + 16], packet[start + 16 : start + 20]
            at = start + (packet[start] & 0x0F) * 4
        elif version == 6:  # noqa: PLR2004 - IP
            length, protocol = struct.unpack_from(">4xHB", packet, start)
            source, target = packet[start + 8 : start + 24], packet[start + 24 : start + 40]
            at, length, fragment = start + 40, length and length + 40, 0
            while protocol in _EXTENSIONS:
                protocol, at = packet[at], at + 8 + packet[at + 1] * 8
        else:
            return None
        source_port, target_port, seq, ack, size, flags = struct.unpack_from(">HHIIBB", packet, at)
    except (struct.error, IndexError):
        return None
    if protocol != _TCP or fragment & 0x3FFF or at < start + _SHORTEST_HEAD:
        return None
    end = start + length if length else whole  # the length is missing if the network card itself cuts the packets
    first = at + max(size >> 4, _SHORTEST_HEAD // 4) * 4
    data = packet[first:end]
    ends = ((str(ipaddress.ip_address(source)), source_port), (str(ipaddress.ip_address(target)), target_port))
    return _Segment(*ends, seq, ack if flags & _ACK else None, flags, data, max(0, end - first - len(data)))


# --- From segments to streams ---


class _Direction:
    """One direction: its bytes in order, and the later bytes that came too early."""

    def __init__(self) -> None:
        self.closed = False
        self.end: int | None = None  # the position after the last byte, counted from the first byte
        self.next = 0  # the position of the next byte
        self._first: int | None = None  # the sequence number of the first byte
        self._held: list[tuple[int, bytes, int]] = []  # a heap: position, bytes, and number of bytes missing after them
        self._waiting = 0

    def position(self, seq: int) -> int:
        """Return the position of a sequence number; after the largest number, sequence numbers begin again."""
        return self.next + (seq - (self._first or 0) - self.next + _HALF) % _WHOLE - _HALF

    def add(self, segment: _Segment) -> None:
        """Hold the bytes of a segment."""
        size = len(segment.data) + segment.missing
        if not size and not segment.flags & (_SYN | _FIN):
            return
        seq = segment.seq + bool(segment.flags & _SYN)
        if self._first is None:
            self._first = seq
        place = self.position(seq)
        if size:
            heapq.heappush(self._held, (place, segment.data, segment.missing))
            self._waiting += len(segment.data) + _OVERHEAD
        if segment.flags & _FIN:
            self.end = place + size

    def ready(self, until: float = 0) -> Iterator[bytes | int]:
        """
        Yield the bytes that are in order, and the number of bytes that were never captured in the place of such bytes.

        No byte before the position `until` comes any more; if too many bytes wait for earlier bytes, neither do these.
        """
        while self._held and (self._held[0][0] <= max(self.next, until) or self._waiting > MOST_HELD):
            place, data, missing = heapq.heappop(self._held)
            self._waiting -= len(data) + _OVERHEAD
            yield from self._lost(place)
            if fresh := data[self.next - place :]:
                self.next += len(fresh)
                yield fresh
            yield from self._lost(place + len(data) + missing)

    def _lost(self, until: int) -> Iterator[int]:
        if until > self.next:
            lost, self.next = until - self.next, until
            yield lost


class _CapturedConnection:
    """The two directions of a connection; a later connection of the same ports has another sequence number `first`."""

    def __init__(self, number: int, first: int) -> None:
        self.number = number
        self.first = first
        self.over = False
        self._directions = {side: _Direction() for side in Side}

    def receive(self, at: float, segment: _Segment, side: Side) -> Iterator[TapRecord]:
        """Receive the next segment."""
        self._directions[side].add(segment)
        if segment.flags & _RST:
            yield from self._records(at, {}, math.inf)
            yield TapRecord(What.RESET, self.number, side, at)
            yield self._closed(at)
        else:
            yield from self._records(at, {side.other: segment.ack})
            if all(direction.closed for direction in self._directions.values()):
                yield self._closed(at)

    def end(self, at: float) -> Iterator[TapRecord]:
        """End the connection if it is not over yet, because missing bytes will not come any more."""
        if not self.over:
            yield from self._records(at, {}, math.inf)
            yield self._closed(at)

    def _records(self, at: float, acks: Mapping[Side, int | None], until: float = 0) -> Iterator[TapRecord]:
        """Return what is known now; an acknowledgement of a side's bytes shows that the bytes before it have passed."""
        for side, direction in sorted(self._directions.items(), key=lambda each: each[0] not in acks):
            ack = acks.get(side)
            for part in direction.ready(until if ack is None else direction.position(ack)):
                if isinstance(part, bytes):
                    yield TapRecord(What.DATA, self.number, side, at, part)
                else:
                    facts = {"why": "bytes that the capture lacks"}
                    yield TapRecord(What.SKIPPED, self.number, side, at, size=part, facts=facts)
            if direction.end is not None and direction.next >= direction.end and not direction.closed:
                direction.closed = True
                yield TapRecord(What.ENDED, self.number, side, at)

    def _closed(self, at: float) -> TapRecord:
        self.over = True
        return TapRecord(What.CLOSED, self.number, Side.CLIENT, at, facts={"by_trace": False})


class _CapturedConnections:
    """The connections to one port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._count = 0
        self._known: dict[tuple[_End, _End], _CapturedConnection] = {}
        self._last = 0.0

    def receive(self, at: float, segment: _Segment) -> Iterator[TapRecord]:
        """Receive the next segment."""
        self._last = at
        opens = segment.flags & _SYN and segment.ack is None
        from_client = segment.target[1] == self._port
        if from_client and segment.source[1] == self._port:  # both ends have this port
            from_client = bool(opens) or (segment.source, segment.target) in self._known
        elif not from_client and segment.source[1] != self._port:
            return
        ends = (segment.source, segment.target) if from_client else (segment.target, segment.source)
        connection = self._known.get(ends)
        if connection is None or (opens and connection.first != segment.seq):
            if not (segment.flags & _SYN or segment.data or segment.missing) or segment.flags & _RST:
                return
            if connection is not None:
                yield from connection.end(at)
            self._count += 1
            connection = self._known[ends] = _CapturedConnection(self._count, segment.seq)
            client, broker = map(text_of_address, ends)
            yield TapRecord(What.OPENED, self._count, Side.CLIENT, at, facts={"client": client, "tls": False})
            facts = {"broker": broker, "joined": not segment.flags & _SYN}
            yield TapRecord(What.CONNECTED, self._count, Side.BROKER, at, facts=facts)
        if not connection.over:
            yield from connection.receive(at, segment, Side.CLIENT if from_client else Side.BROKER)

    def end(self) -> Iterator[TapRecord]:
        """End all connections, because the capture has ended."""
        for connection in self._known.values():
            yield from connection.end(self._last)
