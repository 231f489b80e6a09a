"""A STOMP client that keeps no rule: it sends any bytes, and reads a frame as the text that a person would see."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

WITHIN = 20.0


def frame(command: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return the bytes of a frame; nothing is escaped."""
    lines = [command, *(f"{name}:{value}" for name, value in headers.items()), "", ""]
    return "\n".join(lines).encode() + body + b"\0"


class RawStomp:
    """
    One connection to the listener of a URL.

    Attributes:
        peer: The address of this end, as the broker's log has it.
        met: The frames that the broker has sent, as texts, in their order.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.user, self.password = unquote(parts.username or ""), unquote(parts.password or "")
        self._socket = socket.create_connection((str(parts.hostname), parts.port), timeout=WITHIN)
        self.peer = "{}:{}".format(*self._socket.getsockname())
        self.met: list[str] = []
        self._read = b""

    def connect(self, **headers: str) -> Self:
        """Log in, and return when the broker has agreed or refused; `client_id` is the header `client-id`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        login = {"login": self.user, "passcode": self.password}
        self.send(frame("CONNECT", {"accept-version": "1.2", "host": "localhost", **login, **named}))
        self.receive()
        return self

    def send(self, data: bytes) -> Self:
        self._socket.sendall(data)
        return self

    def receive(self) -> str:
        """Return the next frame as a text, also if the broker closes within it; empty if it closes without one."""
        while b"\0" not in self._read.lstrip(b"\r\n"):
            try:
                more = self._socket.recv(1 << 16)
            except ConnectionResetError:
                more = b""
            if not more:
                self._read += b"\0"
                break
            self._read += more
        text, _, self._read = self._read.lstrip(b"\r\n").partition(b"\0")
        self.met.append(text.decode("utf-8", "replace").replace("\\c", ":"))  # as every client shows it
        return self.met[-1]

    def error(self) -> str:
        """Return the next ERROR frame; frames before it are skipped."""
        while not (text := self.receive()).startswith("ERROR"):
            assert text, f"expected an ERROR frame, got {self.met}"
        return text

    def header(self, name: str) -> str:
        """Return a header of the frame that came last."""
        lines = (line.partition(":") for line in self.met[-1].splitlines())
        return next(value for key, _, value in lines if key == name)

    def reset(self) -> None:
        """Close without a word, as the kernel does for a process that was killed with unread bytes."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._socket.close()
