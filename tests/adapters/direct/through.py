"""A name server that leads its clients through a fault proxy: it passes on every request, and writes the proxy's address into the replies."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from tests.brokers.rocketmq import RocketMQNode
from tests.faults.proxy import Proxy

_WORDS = struct.Struct(">II")


class Through:
    """
    The way to one node; a context manager.

    Attributes:
        url: The URL of the node, through this name server.
        proxy: The fault proxy before the node's broker.
    """

    def __init__(self, node: RocketMQNode) -> None:
        self._node = node
        self.proxy = Proxy(f"rocketmq://{node.broker_address}")
        self._listener = socket.create_server(("127.0.0.1", 0))
        parts = urlsplit(node.remoting_url)
        login, at, _ = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=f"{login}{at}127.0.0.1:{self._listener.getsockname()[1]}").geturl()
        threading.Thread(target=self._accept, name="name server", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.proxy.stop()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = self._node.name_servers[0]
        ours, theirs = f"127.0.0.1:{self.proxy.port}", str(self._node.broker_address)
        with (
            suppress(OSError, struct.error),
            client,
            socket.create_connection((server.host, server.port)) as upstream,
            client.makefile("rb") as asked,
            upstream.makefile("rb") as replied,
        ):
            while True:
                upstream.sendall(b"".join(self._frame(asked.read)))
                words, data = self._frame(replied.read)
                kind = _WORDS.unpack(words)[1]
                header, body = data[: kind & 0xFFFFFF], data[kind & 0xFFFFFF :]
                body = body.replace(theirs.encode(), ours.encode())
                client.sendall(_WORDS.pack(4 + len(header) + len(body), kind) + header + body)

    @staticmethod
    def _frame(read: Callable[[int], bytes]) -> tuple[bytes, bytes]:
        words = read(_WORDS.size)
        return words, read(_WORDS.unpack(words)[0] - 4)
