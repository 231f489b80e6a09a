"""
What ActiveMQ Classic and Artemis say when a client or an operator does something wrong, and what the catalogue makes of it.

A broker that changes its text fails a test here: the entry of the catalogue then needs its new text.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.brokers.activemq import connector
from tests.brokers.artemis import Artemis
from tests.brokers.fixtures import had
from tests.brokers.stomp_broker import ClassicQueues, StompBroker
from tests.brokers.stomp_client import StompClient
from tests.diagnosis.explaining import Log, explained
from tests.diagnosis.raw_stomp import RawStomp, frame
from tests.diagnosis.wrong_stomp import ON_ARTEMIS, ON_CLASSIC, TO_ANYCAST, Scene, Wrong
from tests.support.stage import eventually

pytestmark = pytest.mark.slow

CLASSIC, ARTEMIS = "classic", "artemis"
only_classic = pytest.mark.parametrize("stomp_kind", [CLASSIC], indirect=True)
only_artemis = pytest.mark.parametrize("stomp_kind", [ARTEMIS], indirect=True)


def log_of(broker: StompBroker) -> Log:
    """Return the log of a broker that the tests started, in this process or in another one."""
    return Log(broker.ca_file.parent / "node.log")


CASES = [
    pytest.param(kind, expected, wrong, id=f"{expected}-{kind}-{number}")
    for kind, cases in ((CLASSIC, ON_CLASSIC), (ARTEMIS, ON_ARTEMIS))
    for number, (expected, wrong) in enumerate(cases)
]
ONLY_IN_THE_LOG = {"stomp.error-frame"}
"""What is only recognized by what the log has around the text."""


@pytest.mark.parametrize(("stomp_kind", "expected", "wrong"), CASES, indirect=["stomp_kind"])
def test_what_a_client_does_wrong(stomp_broker: StompBroker, queue: str, expected: str, wrong: Wrong) -> None:
    """Both the ERROR frame and the broker's log are explained, by this entry alone."""
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    wrong(scene)
    if scene.error and expected not in ONLY_IN_THE_LOG:
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


# --- What is said without a word to the client, or by what an operator does -------------------------------------------


@only_artemis
def test_a_length_that_artemis_cannot_read(stomp_broker: StompBroker, queue: str) -> None:
    """Artemis does not answer, and goes on."""
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    with scene.logged_in() as client:
        client.send(frame("SEND", {"destination": queue, "content-length": "abc"}))
        log.shows("stomp.content-length", "Failed to decode packet")


@only_classic
def test_an_option_that_cannot_be_read(stomp_broker: StompBroker, queue: str) -> None:
    """The subscription is made with the default."""
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    with scene.logged_in() as client:
        headers = {"destination": scene.queue, "id": "1", "activemq.prefetchSize": "abc"}
        scene.receipt(client, "SUBSCRIBE", headers)
        log.shows("activemq.unreadable-option", scene.mark)


@only_classic
def test_a_message_that_expires(stomp_broker: StompBroker, queue: str) -> None:
    """A header of the dead letter says it, and no log."""
    with stomp_broker.client() as client:
        expires = time.time() + 0.05
        client.send(queue, b"x", {"expires": str(int(expires * 1000))})
        eventually(lambda: time.time() > expires, "the end of the message's life")
        client.subscribe(queue)
        eventually(lambda: stomp_broker.dead(queue) == 1, "the dead letter")
    stomp_broker.move_dead(queue, f"{queue}.letters")
    with stomp_broker.client() as client:
        client.subscribe(f"{queue}.letters")
        headers = client.message().headers
    (cause,) = (f"{name}:{value}" for name, value in headers.items() if name == "dlqDeliveryFailureCause")
    assert explained(cause) == {"activemq.expired"}, headers


@only_artemis
def test_a_session_that_is_cleared(stomp_broker: StompBroker, queue: str) -> None:
    """Alone, the two lines are explained; beside the line about the connection, they follow from it."""
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    with scene.logged_in() as client:
        client.reset()
    log.shows("artemis.session-cleared", "resources for session")
    assert "artemis.session-cleared" not in log.explained()


@only_artemis
def test_an_acknowledgement_in_a_transaction(stomp_broker: StompBroker, queue: str) -> None:
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    with scene.logged_in() as client:
        message = scene.message(client)
        client.send(frame("BEGIN", {"transaction": "t1"}))
        scene.receipt(client, "ACK", {**message, "transaction": "t1"})
        log.shows("artemis.ack-in-transaction", "Transactional acknowledgement")


@only_artemis
def test_a_message_that_comes_twice(stomp_broker: StompBroker, queue: str) -> None:
    log = log_of(stomp_broker)
    with stomp_broker.client() as client:
        for _ in range(2):
            client.send(queue, b"x", {"_AMQ_DUPL_ID": queue})
    log.shows("artemis.duplicate-message", queue)


@only_artemis
def test_headers_that_are_too_large(stomp_broker: StompBroker, queue: str) -> None:
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    with scene.logged_in() as client:
        scene.fails(client, "SEND", {**TO_ANYCAST, "destination": queue, "persistent": "true", "h": "x" * 900_000})
    assert explained(scene.error) == {"artemis.send-refused"}
    log.shows("artemis.header-too-large", "header too large")


@only_artemis
@pytest.mark.parametrize(
    ("expected", "settings"),
    [
        ("artemis.no-destination", {"autoCreateQueues": False, "autoCreateAddresses": False}),
        ("artemis.dead-letter", {"maxDeliveryAttempts": 1}),
        ("artemis.dead-letter-dropped", {"maxDeliveryAttempts": 1, "deadLetterAddress": "nowhere"}),
        ("artemis.expired-dropped", {"expiryAddress": ""}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_settings_of_an_address_do(
    stomp_broker: StompBroker, queue: str, expected: str, settings: Mapping[str, object]
) -> None:
    log = log_of(stomp_broker)
    with stomp_broker.address_settings(queue, settings), stomp_broker.client() as client:
        expires = time.time() + 0.05 if expected == "artemis.expired-dropped" else 0.0
        kind = {"destination": queue, "destination-type": "ANYCAST", "persistent": "true"}
        if expires:
            kind["expires"] = str(int(expires * 1000))
        with suppress(OSError):
            for _ in range(6):
                client.send_frame("SEND", kind, b"x" * 20_000)
        if "maxDeliveryAttempts" in settings:
            client.subscribe(queue)
            client.message()
            client.close()
        elif expires:
            eventually(lambda: time.time() > expires, "the end of the message's life")
            client.subscribe(queue)
        log.shows(expected, queue)


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
        policies = {"PAGE": "artemis.paging", "DROP": "artemis.messages-dropped", "FAIL": "artemis.send-refused"}
        for policy, expected in policies.items():
            queue = f"full-{policy.lower()}"
            settings = {"addressFullMessagePolicy": policy, "maxSizeBytes": 30_000, "pageSizeBytes": 10_000}
            with broker.address_settings(queue, settings), broker.client() as client:
                headers = {"destination": queue, "destination-type": "ANYCAST", "persistent": "true"}
                with suppress(OSError):
                    for _ in range(6):
                        client.send_frame("SEND", headers, b"x" * 20_000)
                log.shows(expected, queue)


@only_artemis
def test_a_queue_that_is_removed(stomp_broker: StompBroker, queue: str) -> None:
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    with scene.logged_in() as client:
        scene.message(client)
        stomp_broker.delete_queue(queue)
        assert explained(client.error()) == {"artemis.queue-removed"}
    log.shows("artemis.queue-removed", scene.mark)


@only_artemis
def test_a_connection_that_an_operator_closes(stomp_broker: StompBroker, queue: str) -> None:
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    with scene.logged_in() as client:
        stomp_broker.close_connections_of([client.header("session")])
        assert explained(client.error()) == {"artemis.closed-by-management"}
    log.shows("artemis.closed-by-management", scene.mark)


@only_artemis
def test_a_consumer_that_is_slow(stomp_broker: StompBroker, queue: str) -> None:
    """Artemis measures once a second, and ends the consumer as an operator would."""
    scene, log = Scene(stomp_broker, queue), log_of(stomp_broker)
    settings = {
        "slowConsumerThreshold": 100,
        "slowConsumerCheckPeriod": 1,
        "slowConsumerPolicy": "KILL",
        "slowConsumerThresholdMeasurementUnit": "MESSAGES_PER_SECOND",
    }
    with (
        stomp_broker.address_settings(queue, settings),
        scene.logged_in() as client,
        stomp_broker.client() as publisher,
    ):
        for number in range(300):
            publisher.send(queue, b"x", receipt=number == 299)
        scene.message(client)
        while "closed by management" not in client.receive():
            pass
    log.shows("artemis.slow-consumer", scene.mark)


# --- Brokers that a test sets -----------------------------------------------------------------------------------------


@only_classic
def test_the_limits_of_a_connector(stomp_broker: StompBroker, queue: str) -> None:
    log, scene = log_of(stomp_broker), Scene(stomp_broker, queue)
    limits = (
        "wireFormat.maxFrameSize=20000&transport.connectAttemptTimeout=500&maximumConnections=2&allowLinkStealing=true"
    )
    with connector(stomp_broker, limits) as url:
        with scene.raw(url).connect() as client:
            headers = {"destination": scene.queue, **{f"h{number}": "x" * 5000 for number in range(5)}}
            scene.fails(client, "SEND", headers, b"x" * 900)
            assert explained(scene.error) == {"stomp.frame-too-large"}
        log.shows("stomp.frame-too-large", scene.mark)
        with scene.raw(url) as client:
            assert not client.receive()
        log.shows("stomp.connect-timeout", scene.mark)
        with scene.raw(url).connect(client_id=queue), scene.raw(url).connect(client_id=queue):
            log.shows("activemq.link-stolen", queue)
        eventually(lambda: "maximumConnections' property" in _flooded(url, log), "a connection that is refused")
        log.shows("activemq.too-many-connections", "maximumConnections' property")


def _flooded(url: str, log: Log) -> str:
    """Open three connections where two are allowed; return what the log has."""
    clients = [RawStomp(url) for _ in range(3)]
    for client in clients:
        client.reset()
    return log.written()


@only_classic
def test_a_port_that_is_taken(stomp_broker: StompBroker, queue: str) -> None:
    """The broker answers its operator; a broker that starts has the same text in its log, and ends."""
    (mbean,) = stomp_broker.jolokia.search(ClassicQueues.BROKER)
    taken_url = f"stomp://127.0.0.1:{urlsplit(stomp_broker.url).port}"
    with pytest.raises(Exception, match="Failed to bind") as caught:
        stomp_broker.jolokia.execute(mbean, "addConnector(java.lang.String)", taken_url)
    assert explained(str(caught.value)) == {"activemq.port-in-use"}, queue


@contextmanager
def limit(broker: StompBroker, attribute: str, size: int) -> Iterator[None]:
    """Give Classic another limit for a while."""
    (mbean,) = broker.jolokia.search(ClassicQueues.BROKER)
    before = broker.jolokia.read(mbean, attribute)[mbean][attribute]
    broker.jolokia.write(mbean, attribute, size)
    try:
        yield
    finally:
        broker.jolokia.write(mbean, attribute, before)


@only_classic
def test_the_memory_is_full(stomp_broker: StompBroker, stomp_node: object, queue: str) -> None:
    """A consumer holds many messages, and one more producer waits."""
    log = log_of(stomp_broker)
    with stomp_broker.client() as consumer, stomp_broker.client() as producer:
        consumer.subscribe(queue, greedy=True)
        for number in range(40):
            producer.send(queue, b"x" * 20_000, {"persistent": "false"}, receipt=number == 39)
        with limit(stomp_broker, "MemoryLimit", 300_000):
            producer.send(queue, b"x", {"persistent": "false"}, receipt=False)
            log.shows("activemq.memory-limit", queue)


@only_classic
def test_the_store_is_full(stomp_broker: StompBroker, stomp_node: object, queue: str) -> None:
    log = log_of(stomp_broker)
    with stomp_broker.client() as producer:
        producer.send(queue, b"x" * 2000)
        with limit(stomp_broker, "StoreLimit", 1000):
            producer.send(queue, b"x" * 2000, receipt=False)
            log.shows("activemq.store-full", queue)


# --- Artemis with limits ----------------------------------------------------------------------------------------------


class LimitedArtemis(Artemis):
    """An Artemis that finds its disk too full, and takes one connection at a listener."""

    def _main(self) -> list[str]:
        main = [*super()._main()]
        path = Path(main[1])
        text = path.read_text().replace("<max-disk-usage>-1", "<max-disk-usage>1")
        path.write_text(text.replace("anycastPrefix=/queue/", "connectionsAllowed=1;anycastPrefix=/queue/"))
        return main


@pytest.mark.stomp
def test_artemis_with_a_full_disk_and_few_connections() -> None:
    with had():
        node = LimitedArtemis()
    with closing(node):
        log = Log(node.log)
        node.start()
        log.shows("artemis.disk-full", "max-disk-usage")
        with StompClient(node.other_url), suppress(OSError, EOFError):
            StompClient(node.other_url)
        log.shows("artemis.too-many-connections", "Refusing connection")
        with closing(socket.create_connection(("127.0.0.1", node.plain))) as silent:
            log.shows("artemis.handshake-timeout", "{}:{}".format(*silent.getsockname()))
