"""A small AMQP client over a plain socket, which can break every rule; pamqp encodes its frames."""

from __future__ import annotations

import socket
import ssl
import struct
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pamqp import base, body, commands, frame, header

WITHIN = 30.0
PROPERTIES: dict[str, Any] = {
    "product": "test",
    "password": "hunter2",
    "capabilities": {"consumer_cancel_notify": True},
}
LARGEST_BODY = 131_072 - 8
OPENING = b"AMQP\x00\x00\x09\x01"


class AmqpClient:
    """One connection to the broker of a URL, with channel 1 open; reads and writes in the caller's thread."""

    def __init__(self, url: str, *, heartbeat: int = 0, context: ssl.SSLContext | None = None, rcvbuf: int = 0) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        self.socket = socket.socket()
        if rcvbuf:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.socket.settimeout(WITHIN)
        self.socket.connect((parts.hostname, parts.port or 5672))
        if context:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self._unread = b""
        self.send(OPENING)
        self.expect(commands.Connection.Start)
        login = f"\0{unquote(parts.username or '')}\0{unquote(parts.password or '')}"
        self.method(commands.Connection.StartOk(PROPERTIES, "PLAIN", login, "en_US"), 0)
        tune: Any = self.expect(commands.Connection.Tune)
        self.method(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, heartbeat), 0)
        self.method(commands.Connection.Open(unquote(parts.path[1:]) or "/"), 0)
        self.expect(commands.Connection.OpenOk)
        self.open(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def open(self, channel: int) -> None:
        self.method(commands.Channel.Open(), channel)
        self.expect(commands.Channel.OpenOk)

    def queue(self, *bodies: bytes) -> str:
        """A queue of this connection alone, with these messages."""
        self.method(commands.Queue.Declare(exclusive=True))
        declared: Any = self.expect(commands.Queue.DeclareOk)
        for each in bodies:
            self.publish(declared.queue, each)
        return str(declared.queue)

    def publish(self, queue: str, data: bytes, channel: int = 1) -> None:
        self.send(publish(queue, data, channel))

    def consume(self, queue: str, *, no_ack: bool = False) -> None:
        self.method(commands.Basic.Consume(queue=queue, no_ack=no_ack))
        self.expect(commands.Basic.ConsumeOk)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def method(self, method: base.Frame, channel: int = 1) -> None:
        self.send(frame.marshal(method, channel))

    def expect(self, kind: type[base.Frame]) -> Any:
        """Return the next method of this kind; other frames are dropped."""
        while True:
            found = self._next()
            if isinstance(found, kind):
                return found

    def _next(self) -> Any:
        while True:
            if len(self._unread) >= 7:
                size = 8 + struct.unpack_from(">I", self._unread, 3)[0]
                if len(self._unread) >= size:
                    _, _, found = frame.unmarshal(self._unread[:size])
                    self._unread = self._unread[size:]
                    return found
            got = self.socket.recv(65536)
            if not got:
                raise EOFError
            self._unread += got

    def refused(self) -> None:
        """Return when the broker has closed the connection by a method, and answer it."""
        self.expect(commands.Connection.Close)
        self.method(commands.Connection.CloseOk(), 0)

    def closed(self) -> None:
        """Return when the broker has closed the connection."""
        try:
            while True:
                self._next()
        except (EOFError, ConnectionResetError):
            self.socket.close()

    def reset(self) -> None:
        """Close with RST, as the kernel does for a program that had unread bytes when it was killed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def publish(queue: str, data: bytes, channel: int = 1) -> bytes:
    """The frames of a message."""
    properties = commands.Basic.Properties(message_id="m-17", headers={"token": "s3cret"})
    parts: list[base.Frame | header.ContentHeader | body.ContentBody] = [
        commands.Basic.Publish(routing_key=queue),
        header.ContentHeader(0, len(data), properties),
        *(body.ContentBody(data[at : at + LARGEST_BODY]) for at in range(0, len(data), LARGEST_BODY)),
    ]
    return b"".join(frame.marshal(part, channel) for part in parts)
