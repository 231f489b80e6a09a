"""Classic and Artemis do what the tests of the STOMP adapter build on."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.brokers import maven
from tests.brokers.activemq import Classic, classic_program
from tests.brokers.fixtures import had
from tests.brokers.install import MissingError
from tests.brokers.maven import java_program
from tests.brokers.stomp_broker import Counts, StompBroker
from tests.brokers.stomp_client import Frame, StompClient, StompError
from tests.brokers.stomp_node import StompNode
from tests.brokers.stomp_place import StompPlace
from tests.conftest import Eventually

CLASSIC = pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)

# --- What a queue has -------------------------------------------------------------------------------------------------


def test_a_message_is_counted_while_it_waits_while_it_is_held_and_not_after_its_ack(
    stomp_broker: StompBroker, queue: str, eventually: Eventually
) -> None:
    body, headers = b"m-17\0\n", {"a:b": "c\n\\d", "e": " é "}
    with stomp_broker.client() as client:
        assert stomp_broker.counts(queue) == Counts()
        client.send(queue, body, headers)
        client.send(queue, b"m-18")
        eventually(lambda: stomp_broker.counts(queue) == Counts(waiting=2))  # Artemis counts a moment later

        client.subscribe(queue)
        message = client.message()
        assert (message.body, {name: message.headers[name] for name in headers}) == (body, headers)
        assert stomp_broker.counts(queue) == Counts(waiting=1, delivering=1, consumers=1)

        client.ack(message)
        client.ack(client.message())
        assert stomp_broker.counts(queue) == Counts(consumers=1)


def test_a_message_that_is_given_back_goes_to_another_consumer(stomp_broker: StompBroker, queue: str) -> None:
    with stomp_broker.client() as one, stomp_broker.client() as other:
        one.send(queue, b"m-17")
        one.subscribe(queue)
        one.message()
        other.subscribe(queue)
        assert stomp_broker.consumers(queue) == 2
        one.unsubscribe()

        assert other.message().body == b"m-17"
        assert stomp_broker.delivering(queue) == 1


def test_purged_messages_and_removed_queues_are_gone(stomp_broker: StompBroker, queue: str) -> None:
    with stomp_broker.client() as client:
        for name in (queue, f"{queue}.dead"):
            client.send(name, b"m-17")
    stomp_broker.purge(queue)
    assert (stomp_broker.depth(queue), stomp_broker.depth(f"{queue}.dead")) == (0, 1)
    stomp_broker.remove_queues(queue)
    assert stomp_broker.depth(f"{queue}.dead") == 0


def test_dead_letters_are_counted_by_their_queue_and_removed_with_it(
    stomp_broker: StompBroker, queue: str, eventually: Eventually
) -> None:
    with stomp_broker.client() as client:
        for name in (f"{queue}.1", f"{queue}.2"):
            client.send(name, b"m-17")
    _die(stomp_broker, f"{queue}.1")

    eventually(lambda: stomp_broker.dead(f"{queue}.1") == 1)
    assert stomp_broker.dead(f"{queue}.2") == 0
    stomp_broker.remove_queues(queue)
    assert stomp_broker.dead(f"{queue}.1") == 0


def test_dead_letters_of_some_queues_are_moved_to_one_of_them(
    stomp_broker: StompBroker, queue: str, eventually: Eventually
) -> None:
    with stomp_broker.client() as client:
        client.send(queue, b"m-17")
    _die(stomp_broker, queue)
    eventually(lambda: stomp_broker.dead(queue) == 1)
    stomp_broker.move_dead("another-", f"{queue}.letters")
    assert stomp_broker.dead(queue) == 1
    stomp_broker.move_dead(queue, f"{queue}.letters")
    assert (stomp_broker.dead(queue), stomp_broker.depth(f"{queue}.letters")) == (0, 1)


def test_what_the_broker_gave_up_is_marked_among_what_is_left_at_a_place(
    stomp_broker: StompBroker, eventually: Eventually
) -> None:
    place = StompPlace(stomp_broker)
    queue = place.queue("work")
    with closing(place):
        place.publish(queue, b"given up")
        _die(stomp_broker, queue)
        eventually(lambda: stomp_broker.dead(queue) == 1)
        place.publish(queue, b"waits")
        assert {message.body: message.given_up for message in place.drain()} == {b"given up": True, b"waits": False}


def _die(broker: StompBroker, queue: str) -> None:
    """Make its only message a dead letter: by a NACK, and on Artemis, which drops that, by ten losses."""
    for _ in range(10 if broker.is_artemis else 1):
        with broker.client() as client:
            client.subscribe(queue)
            message = client.message()
            if not broker.is_artemis:
                client.send_frame("NACK", {"id": message.headers["ack"]}, receipt=True)


@CLASSIC
def test_the_statistics_plugin_counts_as_jolokia_does(stomp_broker: StompBroker, queue: str) -> None:
    with stomp_broker.client() as client:
        client.send(queue, b"m-17")
        client.send_frame("SUBSCRIBE", {"id": "s", "destination": "/temp-queue/s", "transformation": "jms-map-json"})
        asked = {"destination": f"/queue/ActiveMQ.Statistics.Destination.{queue}", "reply-to": "/temp-queue/s"}
        client.send_frame("SEND", asked)
        entries = json.loads(client.message().body)["map"]["entry"]

        assert {"string": "size", "long": 1} in entries


# --- Who may come in, and by which door -------------------------------------------------------------------------------


@pytest.mark.parametrize("instead", ["steadyworker:wrong@", "stranger:{password}@", ""])
def test_a_login_is_required(stomp_broker: StompBroker, instead: str) -> None:
    login = f"{stomp_broker.user}:{stomp_broker.password}@"
    url = stomp_broker.url.replace(login, instead.format(password=stomp_broker.password))
    with pytest.raises(StompError, match="password is invalid") as refused:
        StompClient(url)
    assert stomp_broker.password not in str(refused.value)


def test_tls_reaches_the_broker_whose_certificate_the_node_signed(stomp_broker: StompBroker) -> None:
    _skip_without(stomp_broker.tls_url)
    with StompClient(stomp_broker.tls_url, ca_file=stomp_broker.ca_file) as client:
        assert client.connected.headers["server"] == stomp_broker.server
    with pytest.raises(ssl.SSLCertVerificationError):
        StompClient(stomp_broker.tls_url)


def test_one_door_is_for_clients_with_a_certificate(stomp_broker: StompBroker) -> None:
    _skip_without(stomp_broker.mutual_url)
    with stomp_broker.client(stomp_broker.mutual_url) as client:
        assert client.connected.headers["server"] == stomp_broker.server
    with pytest.raises(ssl.SSLError, match="alert"):
        StompClient(stomp_broker.mutual_url, ca_file=stomp_broker.ca_file)


def test_the_other_door_reads_a_queues_prefix_on_both_brokers(stomp_broker: StompBroker, queue: str) -> None:
    _skip_without(stomp_broker.other_url)
    with stomp_broker.client(stomp_broker.other_url) as client:
        client.send_frame("SEND", {"destination": f"/queue/{queue}"}, b"m-17", receipt=True)
    assert stomp_broker.depth(queue) == 1


def test_the_limited_user_works_but_cannot_ask_who_consumes(stomp_broker: StompBroker, queue: str) -> None:
    _skip_without(stomp_broker.limited_url)
    refusals = []
    for url in (stomp_broker.url, stomp_broker.limited_url):
        with stomp_broker.client(url) as client:
            client.send(queue, url.encode())
            client.subscribe(queue)
            client.ack(client.message())
            refusals.append(_answer(client, queue).command == "ERROR")
    assert refusals == [False, True]


def _skip_without(url: str) -> None:
    """Skip the test if a broker that the tests did not start has no such listener or user."""
    if not url:
        pytest.skip("the broker that was given has no URL for this")


def _answer(client: StompClient, queue: str) -> Frame:
    """Return what the broker answers when the client asks for the consumers of a queue."""
    if client.is_artemis:
        client.subscribe(f"{queue}.reply", "reply", ack="auto")
        asked = {"_AMQ_ResourceName": f"queue.{queue}", "_AMQ_Attribute": "ConsumerCount"}
        client.send_frame("SEND", {"destination": "activemq.management", "reply-to": f"{queue}.reply", **asked})
    else:
        client.send_frame("SUBSCRIBE", {"id": "a", "destination": f"/topic/ActiveMQ.Advisory.Consumer.Queue.{queue}"})
    return client.receive()


def test_the_wire_names_the_broker(stomp_broker: StompBroker, stomp_kind: str) -> None:
    named = {"classic": "ActiveMQ/6.3.1", "classic-5.18": "ActiveMQ/5.18.3", "artemis": "ActiveMQ-Artemis/2.55.0"}
    assert stomp_broker.server.startswith(named.get(stomp_kind, "ActiveMQ"))


def test_rabbitmqs_plugin_names_itself_too(rabbitmq_stomp: str) -> None:
    with StompClient(rabbitmq_stomp, headers={"host": "/"}) as client:
        assert client.connected.headers["server"].startswith("RabbitMQ/")


# --- What happens to a node -------------------------------------------------------------------------------------------


def test_persistent_and_scheduled_messages_survive_kill_9(stomp_node: StompNode, queue: str) -> None:
    with stomp_node.client() as client:
        client.send(queue, b"m-17")
        before = int(time.time() * 1000)  # as the broker's clock, which counts from its receipt of the message
        client.send(queue, b"m-18", {"AMQ_SCHEDULED_DELAY": "3000"})
        stomp_node.kill()
        with pytest.raises(OSError, match=r"."), closing(stomp_node.client()):
            pass
    stomp_node.start()

    with stomp_node.client() as client:
        client.subscribe(queue, greedy=True)
        messages = [client.message() for _ in range(2)]
        # A node that takes longer than 3 s to start finds both due.
        assert sorted(message.body for message in messages) == [b"m-17", b"m-18"]
        assert time.time() * 1000 - before >= 3000


def test_a_frozen_node_sends_nothing_and_is_healed(stomp_node: StompNode, queue: str) -> None:
    with stomp_node.client() as client:
        client.send(queue, b"m-17")
        stomp_node.freeze()
        client.send_frame("SUBSCRIBE", {"id": "0", "destination": "nothing", "receipt": "r"})
        with pytest.raises(TimeoutError):
            client.receive(0.3)
        stomp_node.heal()
        assert client.receive().command == "RECEIPT"
    assert stomp_node.depth(queue) == 1


def test_clients_see_that_a_node_stops_and_that_it_closes_their_connections(
    stomp_node: StompNode, queue: str, eventually: Eventually
) -> None:
    for end in (stomp_node.close_connections, stomp_node.stop):
        with stomp_node.client() as client:
            client.subscribe(queue)
            end()
            _wait_for_the_end(client)
        stomp_node.start()
        eventually(lambda: stomp_node.consumers(queue) == 0)


def _wait_for_the_end(client: StompClient) -> None:
    """Read until the broker has closed; Artemis says why in an ERROR before."""
    with suppress(EOFError, ConnectionError):
        while client.expect("ERROR"):
            pass


@CLASSIC
def test_an_expired_certificate_is_refused_until_the_node_is_healed(stomp_node: StompNode) -> None:
    stomp_node.set_certificate(datetime.now(UTC) - timedelta(hours=1))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        stomp_node.client(stomp_node.tls_url)
    stomp_node.heal()
    stomp_node.client(stomp_node.tls_url).close()


@CLASSIC
def test_a_delayed_message_waits(stomp_broker: StompBroker) -> None:
    assert "scheduledJobId" in _delayed(stomp_broker).headers


def test_without_its_scheduler_a_classic_delivers_a_delayed_message_at_once(bare_classic: Classic) -> None:
    message = _delayed(bare_classic)
    assert message.headers["AMQ_SCHEDULED_DELAY"] == "300"
    assert "scheduledJobId" not in message.headers


def _delayed(broker: StompBroker) -> Frame:
    with broker.client() as client:
        client.send_frame("SUBSCRIBE", {"id": "d", "destination": "/temp-queue/d"}, receipt=True)
        client.send_frame("SEND", {"destination": "/temp-queue/d", "AMQ_SCHEDULED_DELAY": "300"}, b"m-17")
        return client.message()


# --- Where the programs come from -------------------------------------------------------------------------------------


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine without Java and Maven, and without the right to install them."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("tests.brokers.maven.JVMS", tmp_path)
    monkeypatch.setattr("tests.brokers.maven.may_install", lambda: False)
    maven._program.cache_clear()
    yield
    maven._program.cache_clear()


@pytest.mark.stomp
def test_what_was_made_once_needs_no_tool_and_what_was_not_names_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with had():
        program = classic_program("6.3")
    request.getfixturevalue("bare_machine")
    assert classic_program("6.3") == program
    assert (program / "classes" / "ClassicBroker.class").exists()

    monkeypatch.setenv("STEADYWORKER_TEST_CACHE", str(tmp_path))
    with pytest.raises(MissingError, match=r"javac of Java 17 or newer .* sudo apt-get install default-jdk-headless"):
        classic_program("6.3")
    with pytest.raises(MissingError, match=r"expected one of 5\.18, 6\.3"):
        classic_program("4.0")


@pytest.mark.stomp
@pytest.mark.slow  # Maven looks for it in every repository that it knows
def test_an_artifact_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEADYWORKER_TEST_CACHE", str(tmp_path))
    with pytest.raises(MissingError, match="activemq-broker"):
        java_program("none", ("org.apache.activemq:activemq-broker:0.0.0",), Path(maven.__file__))
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == ["none.half"]
