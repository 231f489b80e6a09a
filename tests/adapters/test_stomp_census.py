"""What ActiveMQ's adapter asks both brokers: who consumes a queue, whether it exists, and the settings of its address."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import Any, TypeVar, cast

import pytest

from steadyworker.adapter import Connected, QueueSpec, Settings, Signal, SystemClock, Uncounted
from steadyworker.errors import BrokerUnavailable
from steadyworker_stomp import StompAdapter
from steadyworker_stomp.checks.artemis import (
    ArtemisManagement,
    FailedError,
    MissingError,
    dead_letter_address,
    newest,
    waiting,
)
from steadyworker_stomp.checks.census import census, has_queue, subscriptions
from steadyworker_stomp.connection import Visit, brief, visit
from steadyworker_stomp.dialects import ARTEMIS
from steadyworker_stomp.url import parse_url
from tests.brokers.stomp_broker import StompBroker
from tests.brokers.stomp_node import StompNode

Value = TypeVar("Value")
Eventually = Callable[..., Any]
ARTEMIS_ONLY = pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)


@contextmanager
def visiting(url: str) -> Iterator[Visit]:
    with visit(brief(parse_url(url)), SystemClock()) as visited:
        yield visited


def asked(url: str, question: Callable[[Visit], Value]) -> Value:
    """The answer to a question, each with a visit of its own."""
    with visiting(url) as visited:
        return question(visited)


def test_each_connection_is_one_consumer_however_many_subscriptions_it_has(
    stomp_broker: StompBroker, queue: str
) -> None:
    def counted() -> tuple[int | Uncounted, int | None]:
        url = stomp_broker.url
        return asked(url, lambda at: census(at, queue)), asked(url, lambda at: subscriptions(at, queue))

    assert counted() == (0, 0)
    with stomp_broker.client() as one, stomp_broker.client() as two:
        for number in range(5):
            one.subscribe(queue, str(number))
        two.subscribe(queue, "0")
        two.subscribe(f"{queue}.other", "1")
        assert counted() == (2, 6)
        one.unsubscribe("0")
        assert counted() == (2, 5)
        two.unsubscribe("0")
        assert counted() == (1, 4)


def test_an_adapter_is_a_consumer_while_it_has_a_prefetch(
    stomp_broker: StompBroker, queue: str, eventually: Eventually
) -> None:
    one, two = (StompAdapter(stomp_broker.url, QueueSpec(queue, f"{queue}.dead"), Settings()) for _ in range(2))
    signals: list[Signal] = []
    one.start(signals.append)
    eventually(lambda: any(isinstance(signal, Connected) for signal in signals))
    assert two.consumers() == 0
    one.prefetch(3)
    eventually(lambda: two.consumers() == 1)
    one.prefetch(0)
    eventually(lambda: two.consumers() == 0)
    one.stop(5)
    two.stop(5)


def test_a_list_of_many_consumers_is_whole(stomp_broker: StompBroker, queue: str, eventually: Eventually) -> None:
    """Classic sends the list as messages, and their end is known by the message behind them; eight at once, so that the broker is busy."""
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        for number in range(40):
            client = stack.enter_context(stomp_broker.client())
            for name in range(1 + number % 3):
                client.subscribe(queue, str(name))
        found = list(threads.map(lambda _: asked(stomp_broker.url, lambda at: census(at, queue)), range(40)))
    assert found == [40] * 40
    eventually(
        lambda: stomp_broker.consumers(queue) == 0
    )  # Artemis fails to remove a queue whose consumers are leaving


@ARTEMIS_ONLY
def test_a_number_is_known_while_consumers_come_and_go(stomp_broker: StompBroker, queue: str) -> None:
    """Artemis 2.55 fails to list its consumers while one of them begins or ends; that must not be taken for a missing right."""
    ended = Event()

    def come_and_go() -> None:
        with stomp_broker.client() as client:
            while not ended.is_set():
                client.subscribe(queue, "a")
                client.unsubscribe("a")

    with stomp_broker.client() as stays, ThreadPoolExecutor(4) as threads:
        stays.subscribe(queue)
        coming = [threads.submit(come_and_go) for _ in range(3)]
        try:
            found = [asked(stomp_broker.url, lambda at: census(at, queue)) for _ in range(80)]
        finally:
            ended.set()
        for each in coming:
            each.result()
    assert all(found)


@pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)
def test_a_program_that_browses_is_no_consumer(stomp_broker: StompBroker, queue: str) -> None:
    """As the console of Classic does it; Artemis has no browsers over STOMP."""
    with stomp_broker.client() as client:
        client.send(queue)
        client.send_frame(
            "SUBSCRIBE",
            {"destination": f"/queue/{queue}", "id": "b", "browser": "true", "ack": "client"},
            receipt=True,
        )
        assert asked(stomp_broker.url, lambda at: census(at, queue)) == 0


def test_a_user_without_the_right_to_ask_gets_no_number_each_time(stomp_broker: StompBroker, queue: str) -> None:
    """Why, and never 0: the refusal and the mark of the end can arrive in one read."""
    with stomp_broker.client() as client:
        client.subscribe(queue)
        for _ in range(20):
            assert isinstance(asked(stomp_broker.limited_url, lambda at: census(at, queue)), Uncounted)
            assert asked(stomp_broker.limited_url, lambda at: subscriptions(at, queue)) is None
            assert asked(stomp_broker.limited_url, lambda at: has_queue(at, f"{queue}.missing"))
    adapter = StompAdapter(stomp_broker.limited_url, QueueSpec(queue, f"{queue}.dead"), Settings())
    found = adapter.consumers()
    assert isinstance(found, Uncounted)
    assert found.why.startswith("the broker refused the question (")
    assert "grant the user's" in found.remedy
    assert adapter.exists()


def test_a_search_for_a_queue_creates_none(stomp_broker: StompBroker, queue: str) -> None:
    def exists(name: str) -> bool:
        return asked(stomp_broker.url, lambda at: has_queue(at, name))

    def search() -> list[bool]:
        return [exists(name) for name in (queue, f"{queue}.x", queue[:-1])]

    assert search() == [False, False, False]
    assert asked(stomp_broker.url, lambda at: census(at, queue)) == 0
    assert search() == [False, False, False]
    with stomp_broker.client() as client:
        client.send(queue)
    assert search() == [True, False, False]


def test_a_connection_that_ends_during_a_question_is_an_error(stomp_broker: StompBroker, queue: str) -> None:
    """It must not be taken for a missing right, nor for an empty list."""
    with visiting(stomp_broker.url) as visited:
        visited.connection._transport.end()
        with pytest.raises(OSError, match=r"closed the connection|Broken pipe"):
            census(visited, queue)
    adapter = StompAdapter("stomp://127.0.0.1:1", QueueSpec(queue, f"{queue}.dead"), Settings())
    for question in (adapter.consumers, adapter.exists):
        with pytest.raises(BrokerUnavailable):
            question()


@ARTEMIS_ONLY
def test_the_address_of_dead_letters_is_read(stomp_broker: StompBroker, queue: str) -> None:
    def found(name: str, url: str = stomp_broker.url) -> str | None:
        return asked(url, lambda at: dead_letter_address(at, name, "by default"))

    assert found(queue) == "DLQ"
    for address in (f"{queue}.moved", ""):
        with stomp_broker.address_settings(queue, {"deadLetterAddress": address}):
            assert found(queue) == (address or None)
    assert found(queue, stomp_broker.limited_url) == "by default"


@ARTEMIS_ONLY
def test_messages_that_wait_are_listed_by_number_and_later_ones_have_larger_numbers(
    stomp_broker: StompBroker, queue: str
) -> None:
    with stomp_broker.client() as client, stomp_broker.client() as consumer:
        for key in ("a", "b"):
            client.send(queue, headers={"name": key})
        before = asked(stomp_broker.url, newest)
        client.send(queue, headers={"name": "c"})
        first, second, third = asked(stomp_broker.url, lambda at: waiting(at, queue, "")) or []
        assert before is not None
        assert first < second <= before < third
        assert asked(stomp_broker.url, lambda at: waiting(at, queue, "name = 'b'")) == [second]
        consumer.subscribe(queue)
        assert consumer.message().headers["message-id"].endswith(f",{first}")
        assert asked(stomp_broker.url, lambda at: waiting(at, queue, "")) == [second, third]
    assert asked(stomp_broker.limited_url, newest) is None
    assert asked(stomp_broker.limited_url, lambda at: waiting(at, queue, "")) is None


@ARTEMIS_ONLY
def test_the_queue_for_replies_needs_no_default_routing_type(stomp_node: StompNode, queue: str) -> None:
    """With ANYCAST, the first temporary queue makes its address one of both kinds, and Artemis refuses the second one."""
    anycast = {"defaultQueueRoutingType": "ANYCAST", "defaultAddressRoutingType": "ANYCAST"}
    with (
        stomp_node.address_settings("steadyworker.replies", {**anycast, "autoDeleteAddresses": False}),
        stomp_node.client() as client,
    ):
        client.subscribe(queue)
        assert [asked(stomp_node.url, lambda at: census(at, queue)) for _ in range(3)] == [1] * 3
        spec = QueueSpec(queue, f"{queue}.dead")
        adapter = StompAdapter(stomp_node.url, spec, Settings())
        assert [finding.id for finding in adapter.findings(spec)] == ["artemis.delivery-limit"]
        adapter.stop(5)
        with ThreadPoolExecutor(8) as threads:  # visits that share the queue get their own replies only
            names = [queue, *[f"{queue}.missing-{number}" for number in range(20)]]
            found = [*threads.map(lambda name: asked(stomp_node.url, lambda at: has_queue(at, name)), names)]
        assert found == [True] + [False] * 20
    stomp_node.remove_queues("steadyworker.replies")


@ARTEMIS_ONLY
def test_a_question_that_artemis_does_not_know_is_an_error(stomp_broker: StompBroker, queue: str) -> None:
    with visiting(stomp_broker.url) as visited:
        management = ArtemisManagement(visited)
        with pytest.raises(MissingError):
            management.ask(f"queue.{queue}", "isPaused")
        with pytest.raises(FailedError, match="noSuchOperation"):
            management.ask("broker", "noSuchOperation")
        assert management.ask("broker", "getVersion")


class MadeUpArtemis:
    """The visit of a management with prepared answers, which counts its questions."""

    dialect = ARTEMIS
    within = 10.0

    def __init__(self, *answers: tuple[bool, object]) -> None:
        self.connection = self
        self.asked = 0
        self._answers = iter(answers)

    def subscribe(self, *_: object, **__: object) -> None: ...

    def send(self, *_: object, **__: object) -> None:
        self.asked += 1

    def wait(self, _: object) -> None: ...

    def message(self, _: str) -> tuple[dict[str, str], bytes]:
        succeeded, result = next(self._answers)
        headers = {"message-id": "a,1", "_AMQ_OperationSucceeded": str(succeeded).lower()}
        return headers, json.dumps([result]).encode()


RACE = (False, 'Cannot invoke "toString()" because "this.session" is null')


def test_a_list_that_fails_is_asked_for_again() -> None:
    artemis = MadeUpArtemis(RACE, RACE, (True, '[{"connectionID": "a"}]'))
    assert census(cast("Visit", artemis), "jobs") == 1
    assert artemis.asked == 3


def test_a_list_that_fails_each_time_is_no_missing_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steadyworker_stomp.checks.census._PAUSE", 0)
    artemis = MadeUpArtemis(*[RACE] * 100)
    with pytest.raises(FailedError, match="session"):
        census(cast("Visit", artemis), "jobs")
    assert artemis.asked == 20


def test_a_refusal_in_a_reply_is_a_missing_right_at_once() -> None:
    artemis = MadeUpArtemis((False, "AMQ229032: User: limited does not have permission='VIEW'"))
    assert isinstance(census(cast("Visit", artemis), "jobs"), Uncounted)
    assert artemis.asked == 1
