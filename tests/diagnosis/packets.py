"""Packets of TCP connections for the tests of captures, and files of them in both formats."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FIN, SYN, RST, PUSH, ACK = 1, 2, 4, 8, 16
ETHERNET = bytes(12)
PORT = 5672
Packet = tuple[float, bytes]


def tcp(source: int, target: int, seq: int, ack: int, flags: int, data: bytes = b"", *, options: bytes = b"") -> bytes:
    """A segment; its checksum is 0, as on a network card that computes it itself."""
    words = 5 + len(options) // 4
    return (
        struct.pack(">HHIIBBHHH", source, target, seq % 2**32, ack % 2**32, words << 4, flags, 512, 0, 0)
        + options
        + data
    )


def ipv4(source: str, target: str, payload: bytes, *, fragment: int = 0, length: int | None = None) -> bytes:
    whole = 20 + len(payload) if length is None else length
    ends = ipaddress.IPv4Address(source).packed + ipaddress.IPv4Address(target).packed
    return struct.pack(">BBHHHBBH", 0x45, 0, whole, 0, fragment, 64, 6, 0) + ends + payload


def ipv6(source: str, target: str, payload: bytes, *, extension: bytes = b"") -> bytes:
    ends = ipaddress.IPv6Address(source).packed + ipaddress.IPv6Address(target).packed
    following = 0 if extension else 6
    return struct.pack(">IHBB", 6 << 28, len(extension + payload), following, 64) + ends + extension + payload


def ethernet(packet: bytes) -> bytes:
    """A frame of Ethernet, with the padding that short frames have."""
    kind = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    return (ETHERNET + kind + packet).ljust(60, b"\0")


@dataclass
class Talk:
    """A connection whose packets a test asks for; the sequence numbers of both ends count by themselves."""

    client: str = "10.0.0.1"
    broker: str = "10.0.0.2"
    client_port: int = 40_000
    port: int = PORT
    numbers: dict[bool, int] = field(default_factory=lambda: {True: 1000, False: 5000})

    def packet(self, data: bytes = b"", flags: int = ACK, *, by_client: bool = True) -> bytes:
        ends = [(self.client, self.client_port), (self.broker, self.port)]
        (source, source_port), (target, target_port) = ends if by_client else reversed(ends)
        seq, ack = self.numbers[by_client], self.numbers[not by_client]
        self.numbers[by_client] += len(data) + bool(flags & SYN) + bool(flags & FIN)
        return ipv4(source, target, tcp(source_port, target_port, seq, ack if flags & ACK else 0, flags, data))

    def opened(self) -> list[bytes]:
        return [self.packet(flags=SYN), self.packet(flags=SYN | ACK, by_client=False), self.packet()]


def timed(packets: Iterable[bytes], *, since: float = 1_700_000_000.0) -> list[Packet]:
    """The packets at every quarter of a second."""
    return [(since + number / 4, packet) for number, packet in enumerate(packets)]


def write_pcap(path: Path, packets: Sequence[Packet], *, link: int = 101, longest: int = 65_535) -> Path:
    parts = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, longest, link)]
    for at, packet in packets:
        kept = packet[:longest]
        parts.append(struct.pack("<IIII", int(at), round(at % 1 * 1e6), len(kept), len(packet)) + kept)
    path.write_bytes(b"".join(parts))
    return path


def write_pcapng(path: Path, packets: Sequence[Packet], *, link: int = 101) -> Path:
    def block(kind: int, content: bytes) -> bytes:
        content = content.ljust((len(content) + 3) // 4 * 4, b"\0")
        size = len(content) + 12
        return struct.pack("<II", kind, size) + content + struct.pack("<I", size)

    parts = [
        block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)),
        block(1, struct.pack("<HHI", link, 0, 65_535)),
    ]
    for at, packet in packets:
        micros = round(at * 1e6)
        head = struct.pack("<IIIII", 0, micros >> 32, micros & 0xFFFFFFFF, len(packet), len(packet))
        parts.append(block(6, head + packet))
    path.write_bytes(b"".join(parts))
    return path
