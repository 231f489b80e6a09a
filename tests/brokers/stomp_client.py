"""
A small STOMP 1.2 client for tests, over a plain socket: a witness that shares no code with the adapter.

It reads and writes in the caller's thread, sends no heartbeat by itself, and does not reconnect.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

WITHIN = 30.0
"""Seconds until a frame that a test waits for must have arrived."""

ESCAPES = {"\\": "\\\\", "\r": "\\r", "\n": "\\n", ":": "\\c"}
UNESCAPES = {escape: character for character, escape in ESCAPES.items()}


class StompError(Exception):
    """The broker's ERROR frame, or another frame than the one that was expected."""


@dataclass(frozen=True)
class Frame:
    """A frame as it travels, its headers unescaped; of a header that comes twice, the first counts."""

    command: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def encoded(self) -> bytes:
        """Return the bytes of the frame; CONNECT alone is not escaped."""
        lines = [self.command]
        for name, value in self.headers.items():
            pair = (name, value) if self.command == "CONNECT" else (_escaped(name), _escaped(value))
            lines.append(":".join(pair))
        return "\n".join([*lines, "", ""]).encode() + self.body + b"\0"


class StompClient:
    """One connection to the broker of a URL (`stomp://`, `stomp+ssl://`), logged in by its user and password."""

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """
        Connect; `headers` go into CONNECT too, and `certificate` is a file of the chain and one of the key.

        Raises OSError when the broker cannot be reached, or when a certificate is refused.
        Raises StompError when the broker refuses the login.
        """
        parts = urlsplit(url)
        assert parts.hostname, "expected stomp://USER:PASSWORD@HOST:PORT, got a URL without a host"
        self._socket = socket.create_connection((parts.hostname, parts.port or 61613), timeout=WITHIN)
        self._read = bytearray()
        self._receipts = count(1)
        self._early: list[Frame] = []
        try:
            if parts.scheme == "stomp+ssl":
                context = ssl.create_default_context(cafile=ca_file)
                if certificate:
                    context.load_cert_chain(*certificate)
                self._socket = context.wrap_socket(self._socket, server_hostname=parts.hostname)
            login = {"login": unquote(parts.username or ""), "passcode": unquote(parts.password or "")}
            ours = {"accept-version": "1.2", "host": parts.hostname, "heart-beat": "0,0", **login}
            self.send_frame("CONNECT", {**ours, **(headers or {})})
            self.connected = self.expect("CONNECTED")
        except BaseException:
            self._socket.close()
            raise
        self.is_artemis = "Artemis" in self.connected.headers.get("server", "")

    @property
    def address(self) -> str:
        """The client's own address, as brokers name it in their logs."""
        host, port, *_ = self._socket.getsockname()
        return f"{host}:{port}"

    # --- Frames -------------------------------------------------------------------------------------------------------

    def send_raw(self, data: bytes) -> None:
        """Send these bytes, whatever they mean."""
        self._socket.sendall(data)

    def send_frame(self, command: str, headers: Mapping[str, str], body: bytes = b"", *, receipt: bool = False) -> None:
        """Send a frame; with `receipt`, return when the broker's receipt has come."""
        if not receipt:
            self.send_raw(Frame(command, headers, body).encoded())
            return
        name = f"r{next(self._receipts)}"
        self.send_raw(Frame(command, {**headers, "receipt": name}, body).encoded())
        while (frame := self._frame(WITHIN)).command == "MESSAGE":  # messages overtake receipts
            self._early.append(frame)
        if (frame.command, frame.headers.get("receipt-id")) != ("RECEIPT", name):
            raise StompError(f"expected RECEIPT {name} for {command}, got {frame}")

    def receive(self, within: float = WITHIN) -> Frame:
        """Return the next frame; raises TimeoutError without one, EOFError when the broker has closed."""
        return self._early.pop(0) if self._early else self._frame(within)

    def expect(self, command: str, within: float = WITHIN) -> Frame:
        """Return the next frame, which must be of this command; raises StompError for another."""
        if (frame := self.receive(within)).command != command:
            raise StompError(f"expected {command}, got {frame}")
        return frame

    # --- What a client of a queue does --------------------------------------------------------------------------------

    def send(
        self, queue: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, receipt: bool = True
    ) -> None:
        """Send a persistent message to this queue; with `receipt`, return when the broker has confirmed it and all before it."""
        length = {"content-length": str(len(body)), "persistent": "true"}
        self.send_frame("SEND", {**self._to(queue, "destination"), **length, **(headers or {})}, body, receipt=receipt)

    def subscribe(self, queue: str, name: str = "0", *, greedy: bool = False, ack: str = "client-individual") -> None:
        """
        Consume this queue, and return when the broker has confirmed the subscription.

        The broker delivers one message at a time; to a greedy consumer, as many as its default allows.
        """
        window = {} if greedy else {"activemq.prefetchSize": "1", "consumer-window-size": "0"}
        self.send_frame(
            "SUBSCRIBE", {**self._to(queue, "subscription"), **window, "id": name, "ack": ack}, receipt=True
        )

    def unsubscribe(self, name: str = "0") -> None:
        """End this subscription: the broker delivers what it holds to another consumer."""
        self.send_frame("UNSUBSCRIBE", {"id": name}, receipt=True)

    def message(self, within: float = WITHIN) -> Frame:
        """Return the next frame, which must be a message."""
        return self.expect("MESSAGE", within)

    def ack(self, message: Frame) -> None:
        """Acknowledge a message, and return when the broker has confirmed that."""
        self.send_frame("ACK", {"id": message.headers["ack"]}, receipt=True)

    def disconnect(self) -> None:
        """Send DISCONNECT, and close when the broker has confirmed it."""
        self.send_frame("DISCONNECT", {}, receipt=True)
        self.close()

    def close(self) -> None:
        """Close the socket without DISCONNECT."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _to(self, queue: str, what: str) -> dict[str, str]:
        """Return the headers that name a queue; as it is shipped, Artemis takes any name for a topic without the type."""
        if self.is_artemis:
            return {"destination": queue, f"{what}-type": "ANYCAST"}
        return {"destination": f"/queue/{queue}"}

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _frame(self, within: float) -> Frame:
        self._socket.settimeout(within)
        while True:
            if (frame := self._parsed()) is not None:
                return frame
            if not (more := self._socket.recv(1 << 20)):
                raise EOFError(f"the broker closed the connection, after {bytes(self._read[-500:])!r}")
            self._read += more

    def _parsed(self) -> Frame | None:
        """Return the first frame of what was read, if it is complete; what is before it are heartbeats."""
        start = len(self._read) - len(self._read.lstrip(b"\r\n"))
        end = self._read.find(b"\n\n", start)
        if end < 0:
            return None
        command, *lines = self._read[start:end].decode().split("\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            pair = (name, value) if command == "CONNECTED" else (_unescaped(name), _unescaped(value))
            headers.setdefault(*pair)
        body = end + 2
        stop = body + int(headers["content-length"]) if "content-length" in headers else self._read.find(b"\0", body)
        if not body <= stop < len(self._read):
            return None
        frame = Frame(command, headers, bytes(self._read[body:stop]))
        del self._read[: stop + 1]
        return frame


def _escaped(text: str) -> str:
    return "".join(ESCAPES.get(character, character) for character in text)


def _unescaped(text: str) -> str:
    pieces = iter(text)
    return "".join(UNESCAPES[f"\\{next(pieces)}"] if piece == "\\" else piece for piece in pieces)
