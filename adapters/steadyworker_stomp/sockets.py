"""The opening of a socket before a deadline, with or without TLS."""

from __future__ import annotations

import select
import socket
import ssl
from contextlib import suppress

from steadyworker.adapter import Clock
from steadyworker.network.url import TCP_OPTIONS


def confirm_at_once(sock: socket.socket) -> None:
    """
    Make the kernel confirm received bytes without its usual delay; call this after each read.

    Classic sends a receipt and then the next message. Its socket keeps the message until our kernel has confirmed the receipt.
    Linux delays this confirmation by 40 ms, so each short job would take 40 ms.
    Linux clears the option by itself (tcp(7)), so each read needs a new call.
    """
    if hasattr(socket, "TCP_QUICKACK"):
        with suppress(OSError):  # The connection has ended. The next read reports this.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def open_socket(
    host: str, port: int, tls: ssl.SSLContext | None, server_name: str, deadline: float, clock: Clock
) -> socket.socket:
    """
    Connect a socket, with TLS if there is a context, before the deadline (monotonic clock).

    Raises:
        OSError: The host was not reached, or its certificate was refused (ssl.SSLError).
    """
    sock = socket.create_connection((host, port), max(0.1, deadline - clock.monotonic()))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in TCP_OPTIONS.items():
            if hasattr(socket, name):  # the options of Linux
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if tls is None:
            return sock
        sock.settimeout(0)
        wrapped = tls.wrap_socket(sock, server_hostname=server_name, do_handshake_on_connect=False)
        _shake_hands(wrapped, deadline, clock)
    except BaseException:
        sock.close()
        raise
    return wrapped


def _shake_hands(sock: ssl.SSLSocket, deadline: float, clock: Clock) -> None:
    poll = select.poll()
    while True:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            poll.register(sock, select.POLLIN)
        except ssl.SSLWantWriteError:
            poll.register(sock, select.POLLOUT)
        except BaseException:
            sock.close()
            raise
        else:
            return
        if not poll.poll(max(0.0, deadline - clock.monotonic()) * 1000):
            sock.close()
            raise TimeoutError
