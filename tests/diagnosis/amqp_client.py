"""AMQP clients over a plain socket, which can break every rule; pamqp encodes their frames."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pamqp import base, body, commands, frame, header

WITHIN = 30.0
CAPABLE = {"authentication_failure_close": True, "consumer_cancel_notify": True, "connection.blocked": True}
LARGEST_BODY = 131_072 - 8
OPENING = b"AMQP\x00\x00\x09\x01"


class RawClient:
    """A connection to the broker of a URL; `capabilities` are those that a good client has, until a test changes them."""

    def __init__(self, url: str, *, context: ssl.SSLContext | None = None) -> None:
        self._url = urlsplit(url)
        assert self._url.hostname
        self.capabilities = dict(CAPABLE)
        self.socket = socket.create_connection((self._url.hostname, self._url.port or 5672), timeout=WITHIN)
        if context:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # --- What it says -------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def method(self, method: base.Frame, channel: int = 1) -> None:
        self.send(frame.marshal(method, channel))

    def login(self, *, heartbeat: int = 0) -> Self:
        """Open all: the connection and channel 1."""
        self.send(OPENING)
        self.expect(commands.Connection.Start)
        properties: dict[str, Any] = {
            "product": "test",
            "password": "hunter2",
            "capabilities": self.capabilities,
            "connection_name": "raw",
        }
        login = f"\0{unquote(self._url.username or '')}\0{unquote(self._url.password or '')}"
        self.method(commands.Connection.StartOk(properties, "PLAIN", login, "en_US"), 0)
        self.expect(commands.Connection.Tune)
        self.method(commands.Connection.TuneOk(2047, 131_072, heartbeat), 0)
        self.method(commands.Connection.Open(unquote(self._url.path[1:]) or "/"), 0)
        self.expect(commands.Connection.OpenOk)
        self.method(commands.Channel.Open())
        self.expect(commands.Channel.OpenOk)
        return self

    # --- What it receives ---------------------------------------------------------------------------------------------

    def expect(self, *kinds: type[base.Frame]) -> Any:
        """Return the next method of these kinds; other frames are dropped."""
        while True:
            found = self._next()
            if isinstance(found, kinds):
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

    def farewell(self) -> str:
        """Return how the broker ends this: the code and text of its close, or nothing."""
        with suppress(EOFError, OSError):
            close = self.expect(commands.Connection.Close, commands.Channel.Close)
            return f"({close.reply_code}, {close.reply_text!r})"
        return ""

    def until_closed(self) -> None:
        """Return when the broker has ended the connection, whatever it sent before."""
        with suppress(OSError):
            while self.socket.recv(65536):
                pass


class AmqpClient(RawClient):
    """A client with an open connection and channel 1; reads and writes in the caller's thread."""

    def __init__(self, url: str, *, heartbeat: int = 0, context: ssl.SSLContext | None = None) -> None:
        super().__init__(url, context=context)
        self.login(heartbeat=heartbeat)

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

    def refused(self) -> None:
        """Return when the broker has closed the connection by a method, and answer it."""
        self.expect(commands.Connection.Close)
        self.method(commands.Connection.CloseOk(), 0)

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
