"""
What ActiveMQ Classic and Artemis say when a client or an operator does something wrong, and what the catalogue makes of it.

There is one provocation of each broker for each kind of failure, and not one for each entry.
A broker that changes its text fails a test here: the entry of the catalogue then needs its new text.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest

from tests.brokers.artemis import Artemis
from tests.brokers.fixtures import had
from tests.brokers.stomp_broker import ClassicQueues, StompBroker
from tests.diagnosis.explaining import Log, explained
from tests.diagnosis.raw_stomp import RawStomp, frame

pytestmark = pytest.mark.slow

CLASSIC, ARTEMIS = "classic", "artemis"
only_classic = pytest.mark.parametrize("stomp_kind", [CLASSIC], indirect=True)
only_artemis = pytest.mark.parametrize("stomp_kind", [ARTEMIS], indirect=True)


def log_of(broker: StompBroker) -> Log:
    """Return the log of a broker that the tests started, in this process or in another one."""
    return Log(broker.ca_file.parent / "node.log")


class Scene:
    """A broker, a queue of its own, and one client that breaks a rule."""

    def __init__(self, broker: StompBroker, queue: str) -> None:
        self.broker, self.name = broker, queue
        self.error = ""
        """The ERROR frame that the client has got."""
        self.mark = ""
        """What is in every record about this client."""
        self.held: socket.socket | None = None
        """What keeps a connection open until the broker has spoken."""

    @property
    def queue(self) -> str:
        return self.name if self.broker.is_artemis else f"/queue/{self.name}"

    def raw(self) -> RawStomp:
        client = RawStomp(self.broker.url)
        self.mark = client.peer
        return client

    def logged_in(self, **headers: str) -> RawStomp:
        return self.raw().connect(**headers)

    def fails(self, client: RawStomp, command: str, headers: Mapping[str, str]) -> None:
        """Send a frame that the broker refuses; without a receipt, Classic's log does not say whose it was."""
        named = {name: self.queue if value == "QUEUE" else value for name, value in headers.items()}
        client.send(frame(command, {**named, "receipt": "r"}))
        self.error = client.error()

    def message(self, client: RawStomp) -> Mapping[str, str]:
        """Send a message and consume it; return what an acknowledgement needs."""
        kind = {"destination-type": "ANYCAST"} if self.broker.is_artemis else {}
        client.send(frame("SEND", {"destination": self.queue, **kind}, b"x"))
        kind = {"subscription-type": "ANYCAST"} if self.broker.is_artemis else {}
        client.send(frame("SUBSCRIBE", {"destination": self.queue, "id": "1", "ack": "client-individual", **kind}))
        assert client.receive().startswith("MESSAGE"), client.met
        return {"id": client.header("ack")}


Wrong = Callable[[Scene], object]


def refused(command: str, headers: Mapping[str, str], user: str = "") -> Wrong:
    """Return a client, of a user with few rights perhaps, that sends this frame; `QUEUE` stands for the destination."""

    def wrong(scene: Scene) -> None:
        with scene.raw() as client:
            client.user = user or client.user
            client.connect()
            scene.fails(client, command, headers)

    return wrong


def first(data: bytes) -> Wrong:
    """Return a client that sends these bytes before anything else; Artemis answers nothing."""

    def wrong(scene: Scene) -> None:
        with scene.raw() as client:
            client.send(data)
            if not scene.broker.is_artemis:
                scene.error = client.error()

    return wrong


def wrong_password(scene: Scene) -> None:
    with scene.raw() as client:
        client.password = "wrong"
        client.connect()
        scene.error = client.met[-1]


def taken(scene: Scene) -> None:
    with scene.logged_in(client_id=scene.name), scene.raw() as second:
        second.connect(client_id=scene.name)
        scene.error = second.met[-1]


def acknowledged_twice(scene: Scene) -> None:
    with scene.logged_in() as client:
        message = scene.message(client)
        client.send(frame("ACK", {**message, "receipt": "r"}))
        assert client.receive().startswith("RECEIPT"), client.met
        scene.fails(client, "ACK", message)


def dropped(scene: Scene) -> None:
    """A client that is gone without a word; Artemis logs that, Classic does not."""
    with scene.logged_in() as client:
        client.reset()


def a_handshake(scene: Scene) -> None:
    """A client that does not trust the broker; up to TLS 1.2 its alert is not encrypted, and Classic shows the name."""
    context = ssl.create_default_context()
    if not scene.broker.is_artemis:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    parts = urlsplit(scene.broker.tls_url)
    with socket.create_connection((str(parts.hostname), parts.port), timeout=20) as plain:
        scene.mark = "{}:{}".format(*plain.getsockname())
        scene.held = plain.dup()  # a broker that is still writing would see the end instead of the alert
        with pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(plain, server_hostname="localhost")


SELECTOR = {"destination": "QUEUE", "id": "1", "selector": "a = = 3"}
ANYCAST = {"destination": "QUEUE", "destination-type": "ANYCAST"}
CASES: list[tuple[str, str, Wrong]] = [
    (CLASSIC, "stomp.client-id-taken", taken),
    (CLASSIC, "stomp.http-on-port", first(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")),
    (CLASSIC, "activemq.tls-alert", a_handshake),
    (CLASSIC, "activemq.wrong-password", wrong_password),
    (CLASSIC, "activemq.not-authorized", refused("SEND", {"destination": "QUEUE"}, "no-send")),
    (CLASSIC, "stomp.double-ack", acknowledged_twice),
    (CLASSIC, "stomp.missing-header", refused("SEND", {})),
    (CLASSIC, "stomp.unknown-command", refused("FOO", {"a": "b"})),
    (CLASSIC, "stomp.frame-too-large", refused("SEND", {"destination": "QUEUE", "content-length": "999999999"})),
    (CLASSIC, "stomp.selector", refused("SUBSCRIBE", SELECTOR)),
    (ARTEMIS, "artemis.foreign-protocol", first(b"AMQP\0\1\0\0")),
    (ARTEMIS, "artemis.tls-handshake", a_handshake),
    (ARTEMIS, "artemis.wrong-password", wrong_password),
    (ARTEMIS, "artemis.send-refused", refused("SEND", ANYCAST, "no-send")),
    (ARTEMIS, "stomp.double-ack", acknowledged_twice),
    (ARTEMIS, "stomp.missing-header", refused("SEND", {})),
    (ARTEMIS, "stomp.unknown-command", refused("FOO", {"a": "b"})),
    (ARTEMIS, "stomp.selector", refused("SUBSCRIBE", {**SELECTOR, "subscription-type": "ANYCAST"})),
    (ARTEMIS, "artemis.connection-lost", dropped),
]


@pytest.mark.parametrize(
    ("stomp_kind", "expected", "wrong"),
    CASES,
    indirect=["stomp_kind"],
    ids=[f"{expected}-{kind}" for kind, expected, _ in CASES],
)
def test_what_a_client_does_wrong(stomp_broker: StompBroker, queue: str, expected: str, wrong: Wrong) -> None:
    """Both the ERROR frame and the broker's log are explained, by this entry alone."""
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    wrong(scene)
    if scene.error:
        assert explained(scene.error) == {expected}, scene.error
    log.shows(expected, scene.mark)
    if scene.held:
        scene.held.close()


def test_a_client_that_is_silent(stomp_broker: StompBroker, queue: str) -> None:
    """Neither broker says a word to the client."""
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    with scene.logged_in(heart_beat="400,400") as client:
        while client.receive():
            pass
    log.shows("artemis.connection-ttl" if stomp_broker.is_artemis else "stomp.late-heartbeat", scene.mark)


@only_artemis
def test_what_the_settings_of_an_address_do(stomp_broker: StompBroker, queue: str) -> None:
    log = log_of(stomp_broker)
    with stomp_broker.address_settings(queue, {"maxDeliveryAttempts": 1}), stomp_broker.client() as client:
        client.send_frame("SEND", {"destination": queue, "destination-type": "ANYCAST", "persistent": "true"}, b"x")
        client.subscribe(queue)
        client.message()
        client.close()
        log.shows("artemis.dead-letter", queue)


@pytest.mark.stomp
def test_what_a_full_address_does() -> None:
    """
    On an Artemis of this test alone.

    2.55.0 can look for pages without end when a queue is removed that is paging: it fills its heap, and answers nobody.
    """
    with had():
        broker = Artemis()
    with closing(broker):
        broker.start()
        log = log_of(broker)
        settings = {"addressFullMessagePolicy": "PAGE", "maxSizeBytes": 30_000, "pageSizeBytes": 10_000}
        with broker.address_settings("full", settings), broker.client() as client:
            headers = {"destination": "full", "destination-type": "ANYCAST", "persistent": "true"}
            with suppress(OSError):
                for _ in range(6):
                    client.send_frame("SEND", headers, b"x" * 20_000)
            log.shows("artemis.paging", "full")


@only_artemis
def test_a_connection_that_an_operator_closes(stomp_broker: StompBroker, queue: str) -> None:
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    with scene.logged_in() as client:
        stomp_broker.close_connections_of([client.header("session")])
        assert explained(client.error()) == {"artemis.closed-by-management"}
    log.shows("artemis.closed-by-management", scene.mark)


@only_classic
def test_the_memory_is_full(stomp_broker: StompBroker, stomp_node: object, queue: str) -> None:
    """A consumer holds many messages, and one more producer waits."""
    log, (mbean,) = log_of(stomp_broker), stomp_broker.jolokia.search(ClassicQueues.BROKER)
    before = stomp_broker.jolokia.read(mbean, "MemoryLimit")[mbean]["MemoryLimit"]
    with stomp_broker.client() as consumer, stomp_broker.client() as producer:
        consumer.subscribe(queue, greedy=True)
        for number in range(40):
            producer.send(queue, b"x" * 20_000, {"persistent": "false"}, receipt=number == 39)
        stomp_broker.jolokia.write(mbean, "MemoryLimit", 300_000)
        try:
            producer.send(queue, b"x", {"persistent": "false"}, receipt=False)
            log.shows("activemq.memory-limit", queue)
        finally:
            stomp_broker.jolokia.write(mbean, "MemoryLimit", before)
