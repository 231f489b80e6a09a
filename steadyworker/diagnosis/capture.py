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
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from steadyworker.diagnosis.tap import Side, TapRecord, What
from steadyworker.errors import ConfigError

MOST_HELD = 4_194_304
"""The largest number of bytes of one direction, with 100 bytes for each segment, that may wait for an earlier segment."""

_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10
_TCP = 6
_HALF, _WHOLE = 1 << 31, 1 << 32
_IPV4, _IPV6 = 0x0800, 0x86DD
_TAGS = {0x8100, 0x88A8, 0x9100}  # VLAN
_EXTENSIONS = {0, 43, 60}  # extension headers of IPv6: hop by hop, routing, destination
_SHORTEST_HEAD = 20  # the bytes of the shortest head, both for IPv4 and for TCP
_OVERHEAD = 100  # the bytes that a segment in the heap takes in addition to its data


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
            if (segment := _segment(packet, whole, _LINKS[link])) is not None:
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


@dataclass(frozen=True, slots=True)
class _Segment:
    source: _End
    target: _End
    seq: int
    ack: int | None
    flags: int
    data: bytes
    missing: int  # bytes at the segment's end that were not captured


def _ethernet(packet: bytes) -> tuple[int, int]:
    at = 12
    kind = int.from_bytes(packet[at : at + 2], "big")
    while kind in _TAGS:
        at += 4
        kind = int.from_bytes(packet[at : at + 2], "big")
    return at + 2, kind


def _ip(start: int) -> Callable[[bytes], tuple[int, int]]:
    """Return the function that finds an IP packet after `start` bytes; the packet's first half-byte is the IP version."""
    return lambda packet: (start, {4: _IPV4, 6: _IPV6}.get(packet[start] >> 4 if len(packet) > start else 0, 0))


_LINKS: dict[int, Callable[[bytes], tuple[int, int]]] = {
    0: _ip(4),  # loopback of BSD and macOS
    1: _ethernet,
    12: _ip(0),
    14: _ip(0),
    101: _ip(0),
    108: _ip(4),
    113: lambda packet: (16, int.from_bytes(packet[14:16], "big")),  # tcpdump -i any
    228: _ip(0),
    229: _ip(0),
    276: lambda packet: (20, int.from_bytes(packet[0:2], "big")),  # tcpdump -i any, since 2021
}
"""For each link type, a function that returns the place and the kind of the IP packet."""


def _segment(packet: bytes, whole: int, link: Callable[[bytes], tuple[int, int]]) -> _Segment | None:
    """Return the TCP segment of a packet; None if the packet has no segment or a part of one, or if the head was not captured."""
    start, kind = link(packet)
    try:
        if kind == _IPV4:
            length, fragment, protocol = struct.unpack_from(">2xH2xHxB", packet, start)
            source, target = packet[start + 12 : start + 16], packet[start + 16 : start + 20]
            at = start + (packet[start] & 0x0F) * 4
            if protocol != _TCP or fragment & 0x3FFF or at < start + _SHORTEST_HEAD:
                return None
        elif kind == _IPV6:
            length, protocol = struct.unpack_from(">4xHB", packet, start)
            source, target = packet[start + 8 : start + 24], packet[start + 24 : start + 40]
            at = start + 40
            length = length and length + 40
            while protocol in _EXTENSIONS:
                protocol, at = packet[at], at + 8 + packet[at + 1] * 8
            if protocol != _TCP:
                return None
        else:
            return None
        source_port, target_port, seq, ack, head, flags = struct.unpack_from(">HHIIBB", packet, at)
    except (struct.error, IndexError):
        return None
    end = start + length if length else whole  # the length is missing if the network card itself cuts the packets
    first = at + max(head >> 4, _SHORTEST_HEAD // 4) * 4
    data = packet[first:end]
    return _Segment(
        (_address(source), source_port),
        (_address(target), target_port),
        seq,
        ack if flags & _ACK else None,
        flags,
        data,
        max(0, end - first - len(data)),
    )


def _address(raw: bytes) -> str:
    return str(ipaddress.ip_address(raw))


# --- From segments to streams ---


class _Direction:
    """One direction: its bytes in order, and the later bytes that came too early."""

    def __init__(self, connection: int, side: Side) -> None:
        self.closed = False
        self._connection = connection
        self._side = side
        self._first: int | None = None  # the sequence number of the first byte
        self._next = 0  # the position of the next byte, counted from the first byte
        self._held: list[tuple[int, bytes, int]] = []  # a heap: position, bytes, and number of bytes missing after them
        self._waiting = 0  # bytes in the heap
        self._end: int | None = None  # the position after the last byte

    @property
    def has_hole(self) -> bool:
        """Whether bytes wait for earlier bytes."""
        return bool(self._held)

    def receive(self, at: float, segment: _Segment) -> Iterator[TapRecord]:
        """
        Return the bytes of this segment, and the bytes that waited for them.

        If earlier bytes are missing, hold the bytes of this segment.
        """
        size = len(segment.data) + segment.missing
        if not size and not segment.flags & (_SYN | _FIN):
            return
        seq = segment.seq + 1 if segment.flags & _SYN else segment.seq
        if self._first is None:
            self._first = seq % _WHOLE
        place = self._position(seq)
        if size:
            heapq.heappush(self._held, (place, segment.data, segment.missing))
            self._waiting += len(segment.data) + _OVERHEAD
            yield from self._drain(at)
            if self._waiting > MOST_HELD:
                yield from self.skip_holes(at)
        if segment.flags & _FIN:
            self._end = place + size

    def skip_holes(self, at: float, acknowledged: int | None = None) -> Iterator[TapRecord]:
        """Skip bytes that were never captured: the bytes before this acknowledgement, or all such bytes."""
        while self._held:
            place = self._held[0][0]
            if acknowledged is not None and self._position(acknowledged) < place:
                return
            yield from self._miss(at, place - self._next)
            yield from self._drain(at)

    def close(self, at: float) -> Iterator[TapRecord]:
        """Return the record of this end's close as soon as the end's last byte has been returned."""
        if self._end is not None and self._next >= self._end and not self.closed:
            self.closed = True
            yield TapRecord(What.ENDED, self._connection, self._side, at)

    def _position(self, seq: int) -> int:
        """Return the position of a sequence number; after the largest number, sequence numbers begin again."""
        expected = (self._first or 0) + self._next
        return self._next + (seq - expected + _HALF) % _WHOLE - _HALF

    def _drain(self, at: float) -> Iterator[TapRecord]:
        """Return the bytes that no longer wait for earlier bytes."""
        while self._held and self._held[0][0] <= self._next:
            place, data, missing = heapq.heappop(self._held)
            self._waiting -= len(data) + _OVERHEAD
            if fresh := data[self._next - place :]:
                self._next += len(fresh)
                yield TapRecord(What.DATA, self._connection, self._side, at, fresh)
            yield from self._miss(at, place + len(data) + missing - self._next)

    def _miss(self, at: float, size: int) -> Iterator[TapRecord]:
        if size > 0:
            self._next += size
            facts = {"why": "bytes that the capture lacks"}
            yield TapRecord(What.SKIPPED, self._connection, self._side, at, size=size, facts=facts)


class _CapturedConnection:
    """The two directions of a connection; a later connection of the same ports has another sequence number `first`."""

    def __init__(self, number: int, first: int) -> None:
        self.number = number
        self.first = first
        self.over = False
        self._directions = {side: _Direction(number, side) for side in Side}

    def receive(self, at: float, segment: _Segment, side: Side) -> Iterator[TapRecord]:
        """Receive the next segment."""
        own, other = self._directions[side], self._directions[side.other]
        if segment.ack is not None and other.has_hole:
            yield from other.skip_holes(at, segment.ack)
        yield from own.receive(at, segment)
        if segment.flags & _RST:
            yield from self._rest(at)
            yield TapRecord(What.RESET, self.number, side, at)
        else:
            for direction in (other, own):
                yield from direction.close(at)
            self.over = own.closed and other.closed
        if self.over:
            yield self._closed(at)

    def end(self, at: float) -> Iterator[TapRecord]:
        """End the connection if it is not over yet, because missing bytes will not come any more."""
        if not self.over:
            yield from self._rest(at)
            yield self._closed(at)

    def _rest(self, at: float) -> Iterator[TapRecord]:
        self.over = True
        for direction in self._directions.values():
            yield from direction.skip_holes(at)
            yield from direction.close(at)

    def _closed(self, at: float) -> TapRecord:
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
            client, broker = map(_text, ends)
            yield TapRecord(What.OPENED, self._count, Side.CLIENT, at, facts={"client": client, "tls": False})
            facts = {"broker": broker, "joined": not segment.flags & _SYN}
            yield TapRecord(What.CONNECTED, self._count, Side.BROKER, at, facts=facts)
        if not connection.over:
            yield from connection.receive(at, segment, Side.CLIENT if from_client else Side.BROKER)

    def end(self) -> Iterator[TapRecord]:
        """End all connections, because the capture has ended."""
        for connection in self._known.values():
            yield from connection.end(self._last)


def _text(end: _End) -> str:
    host, port = end
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
