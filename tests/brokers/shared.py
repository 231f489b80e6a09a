"""
The brokers that all tests of a run share, one of each kind and version.

With xdist the controlling process owns them, as it outlives every xdist worker; a worker asks it by a socket.
A broker starts when the first test asks for it, and is gone with the controlling process, however that ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Protocol

from tests.brokers.activemq import Classic
from tests.brokers.address import Address
from tests.brokers.artemis import Artemis
from tests.brokers.install import SUITES, MissingError
from tests.brokers.postgres import Cluster
from tests.brokers.process import BrokerError, Guard
from tests.brokers.rabbitmq import Node
from tests.brokers.rocketmq import RocketMQ4, RocketMQ5
from tests.brokers.s3proxy import S3Proxy

POSTGRES = "postgres"
S3PROXY = "s3proxy"


class Broker(Protocol):
    """A broker that the tests start, of any kind."""

    @property
    def address(self) -> Address: ...

    @property
    def pid(self) -> int: ...

    @property
    def log(self) -> Path: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


MAKERS: dict[str, Callable[[], Broker]] = {
    **{f"rabbitmq-{series}": partial(Node, series) for series in SUITES},
    "classic": Classic,
    "artemis": Artemis,
    "classic-5.18": partial(Classic, "5.18"),
    "rocketmq-4.9": RocketMQ4,
    "rocketmq-5.4": RocketMQ5,
    POSTGRES: Cluster,
    S3PROXY: S3Proxy,
}
"""Makes a broker, ready to start, by its name."""

STOMP = ("classic", "artemis", "classic-5.18")
"""The names of those that speak STOMP; the last one is for `--all-brokers`."""

Ask = Callable[[str], Address]
"""Return where the broker of this name is; starts it, or raises MissingError when it cannot be brought here."""


class Owner:
    """Starts each broker that is asked for once, and answers xdist workers through a socket."""

    def __init__(self) -> None:
        self._guard = Guard("brokers")
        self.socket = str(self._guard.folder / "socket")
        self._brokers: dict[str, Broker] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._listener = Listener(self.socket, "AF_UNIX", backlog=64)
        self._threads = [threading.Thread(target=self._listen, name="brokers", daemon=True)]
        self._threads[0].start()

    def ask(self, name: str) -> Address:
        """Return where this broker is, and start it when it is the first time."""
        with self._locks.setdefault(name, threading.Lock()):
            if name not in self._brokers:
                self._brokers[name] = MAKERS[name]()
            broker = self._brokers[name]
            broker.start()
        return broker.address

    def close(self) -> None:
        """End every broker; to be called when no xdist worker runs any more."""
        with suppress(OSError), closing(Client(self.socket, "AF_UNIX")) as last:
            last.send("")
        for thread in self._threads:
            thread.join(30)
        self._listener.close()
        with ExitStack() as ended:
            for broker in self._brokers.values():
                ended.callback(broker.close)
        self._guard.close()

    def _listen(self) -> None:
        while True:
            connection = self._listener.accept()
            name = connection.recv()
            if not name:
                connection.close()
                return
            self._threads.append(threading.Thread(target=self._answer, args=(connection, name), daemon=True))
            self._threads[-1].start()

    def _answer(self, connection: Connection, name: str) -> None:
        with connection:
            try:
                connection.send(self.ask(name))
            except (MissingError, BrokerError, OSError) as error:
                connection.send(error)


def ask_by(socket: str) -> Ask:
    """Return the call by which an xdist worker asks the process that owns the brokers."""

    def ask(name: str) -> Address:
        with closing(Client(socket, "AF_UNIX")) as connection:
            connection.send(name)
            answer = connection.recv()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Address)
        return answer

    return ask
