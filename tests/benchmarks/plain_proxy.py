"""
A byte proxy that does nothing else, as the measure of `steadyworker trace`: one thread, epoll, one buffer.

    python -m tests.benchmarks.plain_proxy HOST PORT    prints the port that it listens on, and passes one connection
"""

from __future__ import annotations

import select
import socket
import sys

BUFFER = 1 << 18


def main() -> None:
    """Pass the bytes of one connection, until one side closes it."""
    host, port = sys.argv[1], int(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    client, _ = listener.accept()
    broker = socket.create_connection((host, port))
    other = {client.fileno(): (client, broker), broker.fileno(): (broker, client)}
    epoll = select.epoll()
    for end in (client, broker):
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        epoll.register(end, select.EPOLLIN)
    buffer = memoryview(bytearray(BUFFER))
    while True:
        for number, _ in epoll.poll():
            source, target = other[number]
            size = source.recv_into(buffer)
            if not size:
                return
            sent = 0
            while sent < size:
                try:
                    sent += target.send(buffer[sent:size])
                except BlockingIOError:
                    select.select([], [target], [])


if __name__ == "__main__":
    main()
