"""What stomp.py says when something is wrong, in its log and in its exceptions, and what the catalogue makes of it."""

from __future__ import annotations

import logging
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import pytest
import stomp  # type: ignore[import-untyped]
from stomp.exception import ConnectFailedException, NotConnectedException  # type: ignore[import-untyped]

from tests.brokers.stomp_broker import StompBroker
from tests.diagnosis.explaining import explained

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)]

WITHIN = 20.0


class Keeper(logging.Handler):
    """The log of the library, as a program writes it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: SimpleQueue[str] = SimpleQueue()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put(self.format(record))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    keeper, logger = Keeper(), logging.getLogger("stomp.py")
    monkeypatch.setattr(logger, "disabled", False)  # as a test of settings for logs may have left it
    monkeypatch.setattr(logger, "level", logging.WARNING)
    logger.addHandler(keeper)
    yield keeper
    logger.removeHandler(keeper)


class Listener(stomp.ConnectionListener):  # type: ignore[misc] # the library has no types
    """Keeps what the broker reports, and waits for the end of the connection."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.ended = threading.Event()

    def on_error(self, frame: Any) -> None:
        self.errors += [f"ERROR message:{frame.headers.get('message', '')}", str(frame.body)]

    def on_disconnected(self) -> None:
        self.ended.set()


def connection(port: int, **options: object) -> stomp.Connection12:
    made = stomp.Connection12(
        [("127.0.0.1", port)], try_loopback_connect=False, reconnect_attempts_max=1, **{"heartbeats": (0, 0), **options}
    )
    made.set_listener("test", Listener())
    return made


def raised(kind: type[Exception], action: Callable[[], object]) -> str:
    """Return the traceback of what the action raises, as a log has it."""
    with pytest.raises(kind) as caught:
        action()
    return "".join(traceback.format_exception(caught.value))


@contextmanager
def mute() -> Iterator[int]:
    """A server that agrees to a login, and says no more; yield its port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1000)
                client.sendall(b"CONNECTED\nversion:1.2\nheart-beat:500,0\n\n\0")
                client.recv(1000)  # until the client closes

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(WITHIN)


def test_a_port_that_is_closed(stomp_broker: StompBroker, log: Keeper) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as closed:
        port = closed.getsockname()[1]
    said = raised(ConnectFailedException, lambda: connection(port).connect("a", "b", wait=True))
    line = log.lines.get(timeout=WITHIN)
    assert explained(line) == {"stomppy.refused"}, line
    assert explained(f"{line}\n{said}") == {"stomppy.refused"}, stomp_broker


def test_a_login_that_fails(stomp_broker: StompBroker) -> None:
    """The exception does not say why; the ERROR frame does."""
    client = connection(urlsplit(stomp_broker.url).port or 0)
    said = raised(ConnectFailedException, lambda: client.connect(stomp_broker.user, "wrong", wait=True))
    assert explained(said) == {"stomppy.connect-failed"}
    assert explained("\n".join(client.get_listener("test").errors)) == {"activemq.wrong-password"}


def test_a_certificate_that_is_not_trusted(stomp_broker: StompBroker, log: Keeper) -> None:
    port = urlsplit(stomp_broker.tls_url).port or 0
    client = connection(port)
    client.set_ssl([("127.0.0.1", port)])
    raised(ConnectFailedException, lambda: client.connect("a", "b", wait=True))
    line = log.lines.get(timeout=WITHIN)
    assert explained(line) == {"stomppy.untrusted-certificate"}, line


def test_a_broker_that_is_silent(stomp_broker: StompBroker, log: Keeper) -> None:
    with mute() as port:
        client = connection(port, heartbeats=(0, 500))
        client.connect("a", "b", wait=True)
        line = log.lines.get(timeout=WITHIN)
        assert client.get_listener("test").ended.wait(WITHIN)
    assert explained(line) == {"stomppy.heartbeat-timeout"}, line
    said = raised(NotConnectedException, lambda: client.send("/queue/a", "x"))
    assert explained(f"{line}\n{said}") == {"stomppy.heartbeat-timeout"}, stomp_broker
