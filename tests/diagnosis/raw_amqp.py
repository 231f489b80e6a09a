"""A client of AMQP 0-9-1 that may break every rule: frames as bytes on a socket of its own, made by pika's encoders."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, urlsplit

from pika import frame, spec
from pika.amqp_object import Method

HEADER = b"AMQP\x00\x00\x09\x01"
CAPABLE = {"authentication_failure_close": True, "consumer_cancel_notify": True, "connection.blocked": True}


@dataclass
class RawAmqp:
    """One connection; each step of its opening can be done by hand, with other values than a good client has."""

    url: str
    port: int = 0
    capabilities: dict[str, bool] = field(default_factory=lambda: dict(CAPABLE))

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self.user, self.password = unquote(parts.username or ""), unquote(parts.password or "")
        self.vhost = unquote(parts.path[1:])
        self.socket = socket.create_connection(("127.0.0.1", self.port or parts.port or 5672), timeout=30)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, *parts: bytes | Method, channel: int = 1) -> None:
        """Write bytes as they are, and methods as frames of this channel."""
        self.socket.sendall(
            b"".join(part if isinstance(part, bytes) else frame.Method(channel, part).marshal() for part in parts)
        )

    def hear(self) -> object:
        """Return the next frame; raises EOFError when the broker has closed the connection."""
        while True:
            used, found = frame.decode_frame(self._received)
            if found is not None:
                self._received = self._received[used:]
                return found
            more = self.socket.recv(65536)
            if not more:
                raise EOFError
            self._received += more

    def method(self, wanted: type[Method] | None = None) -> Method:
        """Return the next method, or the next one of this type."""
        while True:
            heard = self.hear()
            if isinstance(heard, frame.Method) and (wanted is None or isinstance(heard.method, wanted)):
                return heard.method

    def start(self, mechanism: str = "PLAIN", response: str | None = None) -> RawAmqp:
        """Open as far as the login."""
        self.say(HEADER)
        self.method(spec.Connection.Start)
        properties = {"product": "raw", "capabilities": self.capabilities, "connection_name": "raw"}
        secret = f"\0{self.user}\0{self.password}" if response is None else response
        self.say(spec.Connection.StartOk(properties, mechanism, secret, "en_US"), channel=0)
        return self

    def tune(self, channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 0) -> RawAmqp:
        """Open as far as the limits."""
        self.method(spec.Connection.Tune)
        self.say(spec.Connection.TuneOk(channel_max, frame_max, heartbeat), channel=0)
        return self

    def enter(self, vhost: str | None = None) -> RawAmqp:
        """Open the virtual host."""
        self.say(spec.Connection.Open(self.vhost if vhost is None else vhost), channel=0)
        self.method(spec.Connection.OpenOk)
        return self

    def open(self, *, heartbeat: int = 0, channel: int = 1) -> RawAmqp:
        """Open all: the connection and one channel."""
        self.start().tune(heartbeat=heartbeat).enter()
        self.say(spec.Channel.Open(), channel=channel)
        self.method(spec.Channel.OpenOk)
        return self

    def farewell(self) -> str:
        """Return how the broker ends this: its close's code and text, else what it sent, else nothing."""
        heard: list[str] = []
        with suppress(EOFError, OSError):
            while True:
                method = self.method()
                if isinstance(method, spec.Connection.Close | spec.Channel.Close):
                    heard.append(f"({method.reply_code}, {method.reply_text!r})")
                    break
        return "\n".join(heard)

    def until_closed(self) -> bytes:
        """Return all bytes until the broker ends the connection."""
        heard = b""
        with suppress(OSError):
            while more := self.socket.recv(65536):
                heard += more
        return heard
