"""One port before a name server and its broker, so that one fault proxy is on the way to both."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from steadyworker.network.url import Address as HostPort
from tests.faults.proxy import Proxy

_WORDS = struct.Struct(">II")

OF_NAME_SERVERS = (105, 106, 206, 216)
"""The requests (`RequestCode`) that go to the name server; all others go to the broker."""


class Node(Protocol):
    """What a front is before."""

    @property
    def name_servers(self) -> Sequence[HostPort]: ...

    @property
    def broker_address(self) -> HostPort: ...


class Front:
    """
    Passes on each request to the one that it is for, and writes its own address for the broker's into a name server's replies.

    A client that comes through a fault proxy reads the proxy's address there, so that all that it does goes through the proxy.
    What is sent to a server that is down ends the connection.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._proxies: list[Proxy] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="rocketmq, front", daemon=True).start()

    def serve(self, proxy: Proxy) -> None:
        """Lead the clients of this proxy, which is before this port, back to it."""
        if proxy not in self._proxies:
            self._proxies.append(proxy)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def advertised(self, peer: int) -> int:
        """Return the port at which a client finds the broker, whose connection comes from the port `peer`."""
        for proxy in self._proxies:
            for link in proxy.links:
                with suppress(OSError):  # it has ended meanwhile
                    if link.sockets[1].getsockname()[1] == peer:
                        return proxy.port
        return self.port

    def _accept(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                client, (_, peer) = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _Connection(self, self._node, client, peer)


class _Connection:
    """One client, and its connections to both servers, each opened by its first request."""

    def __init__(self, front: Front, node: Node, client: socket.socket, peer: int) -> None:
        self._front, self._node, self._client, self._peer = front, node, client, peer
        self._servers: dict[HostPort, socket.socket] = {}
        self._writing = threading.Lock()
        threading.Thread(target=self._serve, name="rocketmq, client", daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError, struct.error, ValueError), self._client.makefile("rb") as asked:
            while True:
                words, data = _frame(asked.read)
                code = json.loads(data[: _WORDS.unpack(words)[1] & 0xFFFFFF])["code"]
                to_names = code in OF_NAME_SERVERS
                self._server(self._node.name_servers[0] if to_names else self._node.broker_address).sendall(
                    words + data
                )
        self._end()

    def _server(self, address: HostPort) -> socket.socket:
        if address not in self._servers:
            server = self._servers[address] = socket.create_connection((address.host, address.port))
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reply = threading.Thread(target=self._reply, args=(address, server), name="rocketmq, server", daemon=True)
            reply.start()
        return self._servers[address]

    def _reply(self, address: HostPort, server: socket.socket) -> None:
        theirs = str(self._node.broker_address).encode()
        with suppress(OSError, struct.error), server.makefile("rb") as replied:
            while True:
                words, data = _frame(replied.read)
                if address == self._node.name_servers[0]:
                    kind = _WORDS.unpack(words)[1]
                    header, body = data[: kind & 0xFFFFFF], data[kind & 0xFFFFFF :]
                    body = body.replace(theirs, b"127.0.0.1:%d" % self._front.advertised(self._peer))
                    words, data = _WORDS.pack(4 + len(header) + len(body), kind), header + body
                with self._writing:
                    self._client.sendall(words + data)
        self._end()

    def _end(self) -> None:
        for end in (self._client, *self._servers.values()):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _frame(read: Callable[[int], bytes]) -> tuple[bytes, bytes]:
    """Read a frame: its two words, and the rest; raises struct.error at the end of the stream."""
    words = read(_WORDS.size)
    return words, read(_WORDS.unpack(words)[0] - 4)
