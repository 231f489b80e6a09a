"""What a STOMP client can do wrong at ActiveMQ Classic and Artemis, each with the entry of the catalogue that explains it."""

from __future__ import annotations

import socket
import ssl
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from tests.brokers.stomp_broker import StompBroker
from tests.diagnosis.raw_stomp import RawStomp, frame


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

    def raw(self, url: str = "", context: ssl.SSLContext | None = None) -> RawStomp:
        client = RawStomp(url or self.broker.url, context=context)
        self.mark = client.peer
        return client

    def logged_in(self, **headers: str) -> RawStomp:
        return self.raw().connect(**headers)

    def fails(self, client: RawStomp, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a frame that the broker refuses; without a receipt, Classic's log does not say whose it was."""
        client.send(frame(command, {**headers, "receipt": "r"}, body))
        self.error = client.error()

    def message(self, client: RawStomp, **headers: str) -> Mapping[str, str]:
        """Send a message and consume it; return what an acknowledgement needs."""
        kind = {"destination-type": "ANYCAST"} if self.broker.is_artemis else {}
        client.send(frame("SEND", {"destination": self.queue, **kind}, b"x"))
        kind = {"subscription-type": "ANYCAST"} if self.broker.is_artemis else {}
        named = {"destination": self.queue, "id": "1", "ack": "client-individual", **kind, **headers}
        client.send(frame("SUBSCRIBE", named))
        assert client.receive().startswith("MESSAGE"), client.met
        return {"id": client.header("ack")}

    def receipt(self, client: RawStomp, command: str, headers: Mapping[str, str]) -> None:
        client.send(frame(command, {**headers, "receipt": "r"}))
        assert client.receive().startswith("RECEIPT"), client.met


Wrong = Callable[[Scene], object]


# --- Frames that a broker refuses -------------------------------------------------------------------------------------


def refused(command: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Wrong:
    """Return a client that logs in, and sends this frame; `QUEUE` stands for the destination."""

    def wrong(scene: Scene) -> None:
        named = {name: scene.queue if value == "QUEUE" else value for name, value in (headers or {}).items()}
        with scene.logged_in() as client:
            scene.fails(client, command, named, body)

    return wrong


def first(data: bytes, *, listener: str = "url") -> Wrong:
    """Return a client that sends these bytes before anything else."""

    def wrong(scene: Scene) -> None:
        with scene.raw(getattr(scene.broker, listener)) as client:
            client.send(data)
            if listener == "url" and not scene.broker.is_artemis:
                scene.error = client.error()
            elif listener != "url":
                client.receive()

    return wrong


def login(**headers: str) -> Wrong:
    """Return a client whose CONNECT has these headers; `user` and `password` are those of the URL."""

    def wrong(scene: Scene) -> None:
        with scene.raw() as client:
            client.user, client.password = headers.pop("user", client.user), headers.pop("password", client.password)
            client.connect(**headers)
            scene.error = client.met[-1]

    return wrong


def as_user(name: str, command: str, headers: Mapping[str, str]) -> Wrong:
    """Return a client of a user who may not do this."""

    def wrong(scene: Scene) -> None:
        named = {header: scene.queue if value == "QUEUE" else value for header, value in headers.items()}
        with scene.raw() as client:
            client.user = name
            client.connect()
            scene.fails(client, command, named)

    return wrong


def taken(scene: Scene) -> None:
    with scene.logged_in(client_id=scene.name), scene.raw() as second:
        second.connect(client_id=scene.name)
        scene.error = second.met[-1]


def acknowledged_twice(scene: Scene) -> None:
    with scene.logged_in() as client:
        message = scene.message(client)
        scene.receipt(client, "ACK", message)
        scene.fails(client, "ACK", message)


def acknowledged_after_the_subscription(scene: Scene) -> None:
    with scene.logged_in() as client:
        message = scene.message(client)
        scene.receipt(client, "UNSUBSCRIBE", {"id": "1"})
        scene.fails(client, "ACK", message)


def subscribed_twice(scene: Scene) -> None:
    with scene.logged_in() as client:
        scene.message(client)
        scene.fails(client, "SUBSCRIBE", {"destination": scene.queue, "id": "1", "subscription-type": "ANYCAST"})


def begun_twice(scene: Scene) -> None:
    with scene.logged_in() as client:
        client.send(frame("BEGIN", {"transaction": "t1"}))
        scene.fails(client, "BEGIN", {"transaction": "t1"})


def nack_in_a_transaction(scene: Scene) -> None:
    with scene.logged_in() as client:
        message = scene.message(client)
        client.send(frame("BEGIN", {"transaction": "t1"}))
        scene.fails(client, "NACK", {**message, "transaction": "t1"})


def durable_in_use(scene: Scene) -> None:
    headers = {"destination": f"/topic/{scene.name}", "activemq.subscriptionName": "n"}
    with scene.logged_in(client_id=scene.name) as client:
        client.send(frame("SUBSCRIBE", {**headers, "id": "1"}))
        scene.fails(client, "SUBSCRIBE", {**headers, "id": "2"})
        client.send(frame("UNSUBSCRIBE", {"id": "1"}))
    scene.mark = f"client {scene.name} "


def connected_twice(scene: Scene) -> None:
    with scene.logged_in() as client:
        scene.fails(client, "CONNECT", {"accept-version": "1.2", "login": client.user, "passcode": client.password})


def many_headers(scene: Scene) -> None:
    with scene.logged_in() as client:
        scene.fails(client, "SEND", {"destination": scene.queue, **{f"h{number}": "1" for number in range(1100)}})


def without_a_name(scene: Scene) -> None:
    """Classic closes the connection without a word."""
    with scene.logged_in() as client:
        client.send(frame("SEND", {"destination": "/queue/"}))
        client.receive()


def bad_cron(scene: Scene) -> None:
    with scene.logged_in() as client:
        client.send(frame("SEND", {"destination": scene.queue, "AMQ_SCHEDULED_CRON": "bad cron"}))
        client.receive()


def slow(scene: Scene) -> None:
    """A consumer of a topic, which takes three messages of many."""
    topic = {"destination": f"/topic/{scene.name}"}
    with scene.logged_in() as client, scene.raw().connect() as publisher:
        scene.mark = client.peer
        headers = {"id": "1", "ack": "client", "activemq.prefetchSize": "3", **topic}
        scene.receipt(client, "SUBSCRIBE", headers)
        for _ in range(30):
            publisher.send(frame("SEND", topic))
        scene.receipt(publisher, "SEND", topic)


def dropped(scene: Scene) -> None:
    """A client that is gone without a word; Artemis logs that, Classic does not."""
    with scene.logged_in() as client:
        client.reset()


def a_handshake(listener: str, *, change: Callable[[ssl.SSLContext], object] = lambda _: None, trusts: bool) -> Wrong:
    """Return a client whose handshake fails, or that is refused after it."""

    def wrong(scene: Scene) -> None:
        context = ssl.create_default_context(cafile=scene.broker.ca_file if trusts else None)
        change(context)
        parts = urlsplit(getattr(scene.broker, listener))
        with socket.create_connection((str(parts.hostname), parts.port), timeout=20) as plain:
            scene.mark = "{}:{}".format(*plain.getsockname())
            plain.settimeout(3 if listener == "url" else 20)
            scene.held = plain.dup()  # a broker that is still writing would see the end instead of the alert
            with suppress(OSError), context.wrap_socket(plain, server_hostname="localhost") as client:
                client.sendall(frame("CONNECT", {}))
                client.recv(100)

    return wrong


def old_tls(context: ssl.SSLContext) -> None:
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1


def tls_1_2(context: ssl.SSLContext) -> None:
    """Up to TLS 1.2, an alert about the certificate is not encrypted, and Java shows its name."""
    context.maximum_version = ssl.TLSVersion.TLSv1_2


HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
TOPIC, QUEUED = {"destination": "/topic/t", "id": "1"}, {"destination": "QUEUE", "id": "1"}
ANYCAST, TO_ANYCAST = (
    {**QUEUED, "subscription-type": "ANYCAST"},
    {"destination": "QUEUE", "destination-type": "ANYCAST"},
)

ON_CLASSIC: list[tuple[str, Wrong]] = [
    ("stomp.client-id-taken", taken),
    ("stomp.http-on-port", first(HTTP)),
    ("stomp.no-connect", first(frame("SEND", {"destination": "/queue/x"}, b"x"))),
    ("stomp.tls-on-port", a_handshake("url", trusts=False)),
    ("activemq.plain-on-tls-port", first(frame("CONNECT", {"accept-version": "1.2"}), listener="tls_url")),
    ("activemq.tls-alert", a_handshake("tls_url", change=tls_1_2, trusts=False)),
    ("activemq.client-certificate", a_handshake("mutual_url", trusts=True)),
    ("activemq.tls-version", a_handshake("tls_url", change=old_tls, trusts=True)),
    ("stomp.second-connect", connected_twice),
    ("stomp.version", login(accept_version="3.0")),
    ("stomp.heartbeat-header", login(heart_beat="abc")),
    ("activemq.wrong-password", login(password="wrong")),
    ("activemq.wrong-password", login(user="")),
    ("activemq.not-authorized", as_user("no-consume", "SUBSCRIBE", QUEUED)),
    ("activemq.not-authorized", as_user("no-send", "SEND", QUEUED)),
    ("activemq.not-authorized", as_user("limited", "SUBSCRIBE", TOPIC)),
    ("stomp.double-ack", refused("ACK", {"id": "nonsense"})),
    ("stomp.double-ack", refused("NACK", {"id": "nonsense"})),
    ("stomp.double-ack", acknowledged_twice),
    ("stomp.missing-header", refused("ACK")),
    ("stomp.missing-header", refused("SUBSCRIBE", {"destination": "QUEUE"})),
    ("stomp.missing-header", refused("SUBSCRIBE", {"id": "1"})),
    ("stomp.missing-header", refused("UNSUBSCRIBE")),
    ("stomp.missing-header", refused("SEND", {}, b"x")),
    ("stomp.missing-header", refused("BEGIN")),
    ("stomp.unknown-subscription", refused("UNSUBSCRIBE", {"id": "77"})),
    ("stomp.unknown-transaction", refused("COMMIT", {"transaction": "t9"})),
    ("stomp.unknown-transaction", refused("ABORT", {"transaction": "t9"})),
    ("stomp.unknown-transaction", refused("SEND", {"destination": "QUEUE", "transaction": "t9"})),
    ("stomp.transaction-twice", begun_twice),
    ("stomp.unknown-command", refused("FOO", {"a": "b"})),
    ("stomp.header-too-long", refused("SEND", {"destination": "QUEUE", "h": "x" * 11_000})),
    ("stomp.header-too-long", many_headers),
    ("stomp.header-too-long", refused("S" * 3000)),
    ("stomp.frame-too-large", refused("SEND", {"destination": "QUEUE", "content-length": "999999999"})),
    ("stomp.content-length", refused("SEND", {"destination": "QUEUE", "content-length": "2"}, b"abcdef")),
    ("stomp.content-length", refused("SEND", {"destination": "QUEUE", "content-length": "abc"})),
    ("stomp.content-length", refused("SEND", {"destination": "QUEUE", "content-length": "-3"})),
    ("stomp.selector", refused("SUBSCRIBE", {**QUEUED, "selector": "a = = 3"})),
    ("activemq.durable-queue", refused("SUBSCRIBE", {**QUEUED, "activemq.subscriptionName": "n"})),
    ("activemq.durable-in-use", durable_in_use),
    ("activemq.nack-in-transaction", nack_in_a_transaction),
    ("activemq.temporary-destination-gone", refused("SEND", {"destination": "/remote-temp-queue/x"})),
    ("activemq.empty-destination", without_a_name),
    ("activemq.bad-schedule", bad_cron),
    ("activemq.slow-consumer", slow),
]

ON_ARTEMIS: list[tuple[str, Wrong]] = [
    ("artemis.foreign-protocol", a_handshake("url", trusts=False)),
    ("artemis.foreign-protocol", first(b"AMQP\0\1\0\0")),
    ("artemis.tls-handshake", a_handshake("tls_url", trusts=False)),
    ("artemis.tls-client-certificate", a_handshake("mutual_url", trusts=True)),
    ("artemis.tls-version", a_handshake("tls_url", change=old_tls, trusts=True)),
    ("artemis.connection-lost", dropped),
    ("artemis.wrong-password", login(password="wrong")),
    ("artemis.wrong-password", login(user="")),
    ("artemis.subscription-refused", as_user("no-consume", "SUBSCRIBE", ANYCAST)),
    ("artemis.send-refused", as_user("no-send", "SEND", TO_ANYCAST)),
    ("artemis.routing-type", refused("SUBSCRIBE", {**QUEUED, "subscription-type": "FOO"})),
    ("stomp.version", login(accept_version="3.0")),
    ("stomp.heartbeat-header", login(heart_beat="abc")),
    ("stomp.double-ack", refused("ACK", {"id": "nonsense"})),
    ("stomp.double-ack", acknowledged_twice),
    ("stomp.double-ack", acknowledged_after_the_subscription),
    ("stomp.missing-header", refused("ACK")),
    ("stomp.missing-header", refused("UNSUBSCRIBE")),
    ("stomp.missing-header", refused("SUBSCRIBE", {"id": "1"})),
    ("stomp.missing-header", refused("SEND", {}, b"x")),
    ("stomp.missing-header", refused("BEGIN")),
    ("stomp.unknown-subscription", refused("UNSUBSCRIBE", {"id": "77"})),
    ("stomp.duplicate-subscription", subscribed_twice),
    ("stomp.unknown-transaction", refused("COMMIT", {"transaction": "t9"})),
    ("stomp.unknown-transaction", refused("ABORT", {"transaction": "t9"})),
    ("stomp.transaction-twice", begun_twice),
    ("stomp.unknown-command", refused("FOO", {"a": "b"})),
    ("stomp.undefined-escape", refused("SEND", {"destination": "QUEUE", "h": "a\\tb"})),
    ("stomp.selector", refused("SUBSCRIBE", {**ANYCAST, "selector": "a = = 3"})),
    ("stomp.error-frame", refused("SUBSCRIBE", {**ANYCAST, "consumer-window-size": "abc"})),
]
