"""
The bench of `fault_suite.py`: what the tests of every network broker's faults need, and what a subclass fills in.

::

    class MyBench(FaultBench):
        tls_scheme = "my+ssl"

        @pytest.fixture(autouse=True)
        def access(self, my_broker):
            self.url, self.password = my_broker.url, my_broker.password

        @pytest.fixture
        def node(self, my_node):
            return my_node

        ...

    class TestMyFaults(MyBench, FaultSuite): ...
    class TestMyFaultsOverTls(MyBench, TlsFaultSuite): ...

The suite knows neither virtual hosts nor channels: a broker has a URL with a login, a queue and a number of messages.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import urlsplit

import pytest
import trustme

from steadyworker.adapter import Adapter, Delivered, Delivery, QueueSpec, Settings, Signal
from steadyworker.delivery import KEY, OutgoingMessage, Settled, Target
from steadyworker.network import backoff, owed
from tests.faults.proxy import Proxy

CANARY = "c4n4ry-pa55word"
"""A password that no text may have."""

Eventually = Callable[..., Any]
Kind = TypeVar("Kind")


class Node(Protocol):
    """A broker that this test may end; the fixture that makes it heals it after the test."""

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def start(self) -> None: ...


@dataclass(frozen=True)
class Tls:
    """The broker's TLS listener: a URL with the login of this test and without options, and who signed its certificate."""

    url: str
    ca_file: Path

    @property
    def trusted(self) -> str:
        """The URL with the option by which the adapter trusts this broker."""
        return option(self.url, f"cafile={self.ca_file}")


@dataclass(frozen=True)
class Wire:
    """The network between the adapter and the broker: a proxy, the broker's URL through it, and the URL without it."""

    proxy: Proxy
    url: str
    direct: str


class Worker:
    """One adapter, and all that it has sent."""

    def __init__(self, adapter: Adapter, spec: QueueSpec, prefetch: int) -> None:
        self.received: list[Signal] = []
        self.adapter, self.spec = adapter, spec
        self.adapter.prefetch(prefetch)

    def start(self) -> None:
        self.adapter.start(self.received.append)

    @property
    def outlives(self) -> bool:
        """Whether a delivery outlives its connection."""
        return not self.adapter.capabilities.loses_unacked

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [signal for signal in list(self.received) if isinstance(signal, kind)]

    def delivery(self, eventually: Eventually, number: int = 1) -> Delivery:
        eventually(lambda: self.all(Delivered)[number - 1 :])
        return self.all(Delivered)[number - 1].delivery


class OpenWorker(Protocol):
    """Opens a worker of this test's queue, which is stopped after the test; settings are those of `Settings`."""

    def __call__(self, url: str = "", *, prefetch: int = 1, concurrency: int = 1, **settings: Any) -> Worker: ...


class Logs(logging.Handler):
    """Every text that any library logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


class FaultBench:
    """
    Base of the fault tests.

    A subclass sets `url` and `password` in an autouse fixture, implements the methods that raise NotImplementedError here,
    and overrides the fixtures `node`, `tls` and `change_password`.
    It overrides the other attributes where its broker or its adapter differs.

    Attributes:
        url: The broker's plain URL with a login, and without options.
        password: The password in `url`; it needs no percent-encoding.
        queue: The queue of this test alone; `<queue>.dead` is its dead-letter queue.
        tls_scheme: The scheme of URLs with TLS.
        loggers: The names of the loggers of the client library, which log much at DEBUG.
        wrong_password: What Unreachable says after a wrong password.
        ended: What Lost says after the broker was stopped by its operator; empty if the broker gives no reason.
        silent: What Lost says of a broker that sends no heartbeats.
        handshake: The bytes within which a plain handshake is cut, from the broker to the adapter.
        fillers: The messages that follow a short handshake, so that there is always something to cut; the broker may
            give up a message after some deliveries, and delivers at most 608 times.
        large: The bytes of a large body.
        settled: What the broker's answer to a settlement is.
        waits_behind: Whether a message waits for the delivery of another worker, if it lies behind it.
        forgets: The acknowledgements that a broker may forget in a restart, although it has confirmed them.
        needs_no_login: The calls of an adapter that succeed with a wrong password, because they ask somebody else.
        down: The hosts that are passed by, each with a comma behind it; PORT is one that refuses.
    """

    url: str
    password: str
    queue = "exports"
    tls_scheme: str
    loggers: tuple[str, ...] = ()
    wrong_password = "user and password"
    ended = ""
    silent = "heartbeat"
    handshake = 600
    fillers = 1
    large = 20_000_000
    settled = Settled.CONFIRMED
    waits_behind = False
    forgets = 0
    needs_no_login: tuple[str, ...] = ()
    down = "nowhere.invalid,127.0.0.1:PORT,"

    # --- What a subclass fills in -------------------------------------------------------------------------------------

    @pytest.fixture
    def node(self) -> Node:
        """Return the broker of `url` as one that this test may end."""
        raise NotImplementedError

    @pytest.fixture
    def tls(self) -> Tls:
        """Return the TLS listener of the broker of `url`."""
        raise NotImplementedError

    @pytest.fixture
    def change_password(self) -> Callable[[str], None]:
        """Return a function that changes the password of the login in `url` at the broker."""
        raise NotImplementedError

    def make_adapter(self, url: str, spec: QueueSpec, settings: Settings) -> Adapter:
        """Return a new adapter."""
        raise NotImplementedError

    def prepare(self, adapter: Adapter) -> None:
        """Have the adapter do what it does once, such as to make its queues, and leave no connection open."""
        raise NotImplementedError

    def give_up_after(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the adapter give up after these seconds if a broker accepts a connection, and says nothing."""
        raise NotImplementedError

    def send(self, *keys: str, body: bytes = b"{}") -> None:
        """Send a persistent message per key to `queue`, which exists, as a foreign program does; return when the broker has them."""
        raise NotImplementedError

    def depth(self) -> int:
        """Return the number of messages in `queue` that no consumer holds, as a foreign program sees it."""
        raise NotImplementedError

    def through(self, proxy: Proxy, url: str) -> str:
        """Return the URL of the same server, through the proxy; a broker that tells its own address must tell the proxy's."""
        return proxy.through(url)

    def missed_within(self, seconds: int, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
        """Return the URL by which the adapter misses a silent broker after some times these seconds."""
        del monkeypatch  # for an adapter whose URL has no option for it
        return option(url, f"heartbeat={seconds}")

    # --- What the tests use -------------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No test waits for a minute; `tests/network/test_backoff.py` has the waits as they are."""
        monkeypatch.setattr(backoff, "LONGEST", 2.0)

    def answer_within(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the adapter wait no longer than this for any reply that the broker owes."""
        monkeypatch.setattr(owed, "ANSWER_WITHIN", seconds)

    def try_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the adapter wait for no time between two tries to connect."""
        for wait in ("FIRST", "REFUSED", "LONGEST"):
            monkeypatch.setattr(backoff, wait, 0.0)

    def make_worker(self, url: str = "", *, prefetch: int = 1, concurrency: int = 1, **settings: Any) -> Worker:
        """Return a worker that the caller stops; `open_worker` stops its workers by itself."""
        spec = QueueSpec(self.queue, f"{self.queue}.dead", concurrency=concurrency, time_limit=5)
        known = Settings(**{"delays": (1.0, 2.0), **settings})
        return Worker(self.make_adapter(url or self.url, spec, known), spec, prefetch)

    @pytest.fixture
    def open_worker(self) -> Iterator[OpenWorker]:
        """Workers of this test's queue; at its end they are stopped, and no signal had a password."""
        workers: list[Worker] = []

        def another(url: str = "", **options: Any) -> Worker:
            workers.append(self.make_worker(url, **options))
            return workers[-1]

        yield another
        for worker in workers:
            worker.adapter.stop(5)
        heard = repr(
            [[signal for signal in worker.received if not isinstance(signal, Delivered)] for worker in workers]
        )
        assert self.password not in heard
        assert CANARY not in heard

    @pytest.fixture
    def wire(self) -> Iterator[Wire]:
        """Return the way to the plain listener."""
        with Proxy(self.url) as proxy:
            yield Wire(proxy, self.through(proxy, self.url), self.url)

    @pytest.fixture
    def logs(self) -> Iterator[Logs]:
        """All that is logged, the client library's debug lines included."""
        handler = Logs()
        loggers = [logging.getLogger(), *map(logging.getLogger, self.loggers)]
        before = [logger.level for logger in loggers]
        loggers[0].addHandler(handler)
        for logger in loggers:
            logger.setLevel(logging.DEBUG)
        yield handler
        loggers[0].removeHandler(handler)
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


class Impostor:
    """A TLS server that is not the broker; it ends each connection, and keeps what was said to it before."""

    def __init__(self, folder: Path) -> None:
        self.received: list[bytes] = []
        """What was said inside TLS."""
        self.refused = 0
        """How many clients ended the handshake."""
        self.ca_file = folder / "impostor.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._context)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="impostor", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                client, _ = self._listener.accept()
                with client:
                    self._listen(client)

    def _listen(self, client: socket.socket) -> None:
        client.settimeout(10)
        try:
            with self._context.wrap_socket(client, server_side=True) as secure:
                if said := secure.recv(1 << 16):
                    self.received.append(said)
        except OSError:
            self.refused += 1


def option(url: str, text: str) -> str:
    """Return the URL with this option more: `name=value`, or some that `&` joins."""
    return f"{url}{'&' if '?' in url else '?'}{text}"


def at(url: str, hosts: str) -> str:
    """Return the URL with these hosts, and the login as it is."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login}{at}{hosts}").geturl()


def hosts_of(url: str) -> str:
    """Return the hosts and ports of the URL, without the login."""
    return urlsplit(url).netloc.rpartition("@")[2]


def work(key: str = "k-1", to: Target = Target.WORK, delay: float = 0.0, body: bytes = b"{}") -> OutgoingMessage:
    """Return a message as the runner publishes it."""
    return OutgoingMessage(to, body, {KEY: key}, delay)
