"""
The ends of a relayed connection; an end is a socket towards a client or the broker, plain or with TLS.

Nothing here waits: a call that cannot be done now raises BlockingIOError.
Then the relay tries again when the socket is ready.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import ssl
import struct
import termios
from collections.abc import Callable
from contextlib import suppress

from typing_extensions import override

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with a time of 0: `close` sends RST instead of FIN
_CIPHERTEXT = 1 << 16


class End:
    """
    A socket without TLS.

    Attributes:
        socket: The socket.
        receive: A function that receives bytes into a buffer, and returns their number.
            It returns 0 when the other side has closed its direction.
        sent: The number of bytes that the socket has accepted.
        mask: The events that epoll watches for this end; None if epoll does not watch this end.
        hung: Whether both directions had ended before all bytes were received; then epoll has nothing to watch.
        ready: Whether bytes can be sent, because the socket is connected and the handshake of TLS is done.
    """

    receive: Callable[[memoryview], int]

    def __init__(self, connection: socket.socket, *, connected: bool) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the method's only parameter
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.receive = connection.recv_into
        self.sent = 0
        self.mask: int | None = None
        self.hung = False
        self.ready = connected

    def advance(self) -> None:
        """Note that the socket is connected, or raise the error of the connect."""
        error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, f"connect: {error}")
        self.ready = True

    def wants(self) -> int:
        """Return the epoll events that this end itself waits for; a socket becomes writable when it is connected."""
        return 0 if self.ready else select.EPOLLOUT

    @property
    def buffered(self) -> bool:
        """Whether bytes can be received although the socket itself has no bytes; this is never so without TLS."""
        return False

    @property
    def owes(self) -> bool:
        """Whether accepted bytes wait for room in the socket; this is never so without TLS."""
        return False

    def send(self, data: memoryview | bytes) -> int:
        """Send bytes, and return the number of bytes that the socket has accepted."""
        sent = self.socket.send(data)
        self.sent += sent
        return sent

    def push(self) -> None:
        """Send the accepted bytes that still wait."""

    def finish(self) -> None:
        """Close this direction with FIN."""
        self.socket.shutdown(socket.SHUT_WR)


class TlsEnd(End):
    """A socket with TLS; the handshake begins when the socket is connected."""

    def __init__(
        self, connection: socket.socket, context: ssl.SSLContext, *, connected: bool, server_name: str | None
    ) -> None:
        super().__init__(connection, connected=False)
        self._connected = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._unsent = b""
        self._finished = False
        self.receive = self._receive

    @override
    def advance(self) -> None:
        """Go on with the connect, and then with the handshake."""
        if not self._connected:
            super().advance()
            self.ready, self._connected = False, True
        try:
            while not self.ready:
                try:
                    self._tls.do_handshake()
                    self.ready = True
                except ssl.SSLWantReadError:
                    self._push()
                    if not self._pull():
                        raise ConnectionResetError("The other side closed the connection in the handshake.") from None
        except BlockingIOError:
            return
        finally:
            self._push()

    @override
    def wants(self) -> int:
        if not self._connected:
            return select.EPOLLOUT
        return (0 if self.ready else select.EPOLLIN) | (select.EPOLLOUT if self._unsent else 0)

    @property
    @override
    def buffered(self) -> bool:
        return self._tls.pending() > 0 or self._incoming.pending > 0

    @property
    @override
    def owes(self) -> bool:
        return bool(self._unsent)

    def _receive(self, into: memoryview) -> int:
        while True:
            try:
                return self._tls.read(len(into), into)  # type: ignore[return-value]  # the count, where a buffer is given
            except ssl.SSLWantReadError:
                self._push()  # the reply to a change of keys
                self._pull()
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return 0

    @override
    def send(self, data: memoryview | bytes) -> int:
        if not self.ready or self._unsent:
            raise BlockingIOError
        written = self._tls.write(data)
        self._push()
        return written

    @override
    def push(self) -> None:
        self._push()
        if self._finished and not self._unsent:
            super().finish()

    @override
    def finish(self) -> None:
        """Send the alert that ends the direction, and then FIN."""
        with suppress(ssl.SSLError):  # a complete unwrap would wait for the other side's alert
            self._tls.unwrap()
        self._push()
        self._finished = True
        if not self._unsent:
            super().finish()

    def _pull(self) -> bool:
        got = self.socket.recv(_CIPHERTEXT)
        if got:
            self._incoming.write(got)
        else:
            self._incoming.write_eof()
        return bool(got)

    def _push(self) -> None:
        self._unsent += self._outgoing.read()
        with suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[super().send(self._unsent) :]


def unconfirmed(end: End) -> int:
    """Return the bytes in the kernel's send queue that the other side has not confirmed."""
    found: bytes = fcntl.ioctl(end.socket, termios.TIOCOUTQ, b"\0\0\0\0")
    return int.from_bytes(found, "little" if struct.pack("=I", 1)[0] else "big")


def abort(end: End) -> None:
    """Close the socket with RST."""
    end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.socket.close()


def text_of_address(address: tuple[str | int, ...]) -> str:
    """Return `host:port`, with brackets around a host of IPv6."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def text_of(error: OSError) -> str:
    """Return an error's text for people, without the place in a C file that errors of TLS name."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return str(error) if error.errno is None else os.strerror(error.errno)


def facts_of(error: OSError) -> dict[str, str]:
    """Return an error's text as the fact `error`, unless the text means only that the connection was reset."""
    return {"error": text_of(error)} if isinstance(error, ssl.SSLError) or error.errno != errno.ECONNRESET else {}
