"""What ActiveMQ's adapter counts and browses on Classic and Artemis: exact numbers, a reason for each other one, and no trace at the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from steadyworker.adapter import Adapter, Browsed, Depth, QueueSpec, Settings, Target, Unbrowsed
from steadyworker.delivery import KEY, OutgoingMessage, Settle
from steadyworker.errors import BrokerUnavailable
from steadyworker.network.errors import Refused
from steadyworker_stomp import StompAdapter, browse, depth
from tests.adapters.stomp_kit import Worker, work
from tests.brokers.activemq import Classic
from tests.brokers.stomp_broker import StompBroker

Eventually = Callable[..., Any]
Open = Callable[..., StompAdapter]
ON_ARTEMIS = pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)
ON_CLASSIC = pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)

LATE = {"delayed", "next_due"}
"""What Classic does not report over STOMP."""

OF_PLUGIN = {"ready", "unacked", "dead", "oldest_age"}
"""What Classic reports by its statistics plugin."""

NOT_DELAYED = "Classic shows no delayed messages over STOMP; the page Scheduled of the broker's web console shows them"

MANY = 100_000
"""More dead letters than other tests leave in the broker's own queue at the same time."""


@pytest.fixture
def open_adapter(stomp_broker: StompBroker, queue: str) -> Iterator[Open]:
    opened: list[Adapter] = []

    def open_(url: str = stomp_broker.url) -> StompAdapter:
        opened.append(made := StompAdapter(url, QueueSpec(queue, f"{queue}.dead"), Settings()))
        return made

    yield open_
    for adapter in opened:
        adapter.stop(5)


def numbers(found: Depth) -> tuple[int | None, ...]:
    return found.ready, found.delayed, found.unacked, found.dead, found.consumers


def is_classic_5(broker: StompBroker) -> bool:
    return broker.server.startswith("ActiveMQ/5")


def bury(broker: StompBroker, queue: str, count: int) -> None:
    """Let the broker move messages of this queue to its own dead-letter queue."""
    with broker.client() as client:
        for _ in range(count):
            client.send(queue)
        if broker.is_artemis:
            (mbean,) = broker.jolokia.search(f'org.apache.activemq.artemis:*,subcomponent=queues,queue="{queue}"')
            broker.jolokia.execute(mbean, "sendMessagesToDeadLetterAddress(java.lang.String)", "")
            return
        client.subscribe(queue)
        for _ in range(count):
            client.send_frame("NACK", {"id": client.message().headers["ack"]}, receipt=True)


def test_every_number_is_exact_and_stays_as_it_is(
    stomp_broker: StompBroker,
    queue: str,
    open_adapter: Open,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also the letters that the broker has moved, without those of other queues; and another count finds the same."""
    monkeypatch.setattr(depth, "_BROWSED", MANY)
    bury(stomp_broker, queue, 2)
    bury(stomp_broker, f"{queue}.other", 1)
    sender = open_adapter()
    for number in range(5):
        sender.publish(work(f"k-{number}"))
    for number in range(2):
        sender.publish(OutgoingMessage(Target.LATER, b"{}", {KEY: f"late-{number}"}, 3600))
    sender.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: "dead"}))
    worker = Worker(stomp_broker.url, queue, 2).start()
    held = worker.delivery(2)
    delayed = 2 if stomp_broker.is_artemis else None
    before = stomp_broker.all_counts(queue)
    for _ in range(3):
        found = open_adapter().depth()
        assert numbers(found) == (3, delayed, 2, 3, 1)
        assert found.why.keys() == (set() if stomp_broker.is_artemis else LATE)
    if stomp_broker.is_artemis:
        assert sender.depth().next_due == pytest.approx(time.time() + 3600, abs=30)
    assert stomp_broker.all_counts(queue) == before
    worker.adapter.prefetch(0)
    worker.adapter.settle(held, Settle.ACK)
    worker.adapter.stop(5)
    eventually(lambda: numbers(open_adapter().depth()) == (4, delayed, 0, 3, 0))


def test_the_age_is_of_the_oldest_message_that_no_consumer_holds(
    stomp_broker: StompBroker, queue: str, open_adapter: Open
) -> None:
    """A long job's own message is older."""
    sender = open_adapter()
    assert sender.depth().oldest_age is None
    sender.publish(work("held"))
    worker = Worker(stomp_broker.url, queue).start()
    worker.delivery()
    assert sender.depth().oldest_age is None, "no message is ready"
    threading.Event().wait(1.0)
    began = time.time()
    for key in ("k-1", "k-2"):
        sender.publish(work(key))
    threading.Event().wait(0.2)
    age = sender.depth().oldest_age
    assert age is not None
    assert 0.2 <= age <= time.time() - began + 0.01
    worker.adapter.stop(5)


def test_the_age_of_a_delayed_message_begins_when_it_is_due(
    stomp_broker: StompBroker, queue: str, open_adapter: Open, eventually: Eventually
) -> None:
    sender = open_adapter()
    sender.publish(OutgoingMessage(Target.LATER, b"{}", {KEY: "k-1"}, 1.5))
    due = time.time() + 1.5
    eventually(lambda: sender.depth().ready == 1)
    found = sender.depth()
    if is_classic_5(stomp_broker):
        assert found.oldest_age is None
        assert "was delayed" in found.why["oldest_age"]
        return
    early = 0.0 if stomp_broker.is_artemis else 1.0  # Classic's scheduler delivers up to a second early.
    assert found.oldest_age is not None
    assert 0 <= found.oldest_age <= time.time() - due + early + 0.01


@ON_CLASSIC
def test_classic_reports_no_time_of_a_delayed_message_behind_held_ones(
    stomp_broker: StompBroker, queue: str, open_adapter: Open, eventually: Eventually
) -> None:
    """The message has only the time at which it was sent, which can be hours before it is due."""
    sender = open_adapter()
    sender.publish(work("held"))
    worker = Worker(stomp_broker.url, queue).start()
    worker.delivery()
    sender.publish(OutgoingMessage(Target.LATER, b"{}", {KEY: "k-1"}, 1.0))
    eventually(lambda: sender.depth().ready == 1)
    found = sender.depth()
    assert found.oldest_age is None
    assert "was delayed" in found.why["oldest_age"]
    worker.adapter.stop(5)


@ON_CLASSIC
def test_many_held_messages_hide_the_age(
    stomp_broker: StompBroker, queue: str, open_adapter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depth, "_BROWSED", 2)
    with stomp_broker.client() as client:
        for _ in range(3):
            client.send(queue)
        for number in range(2):
            client.subscribe(queue, str(number))
            client.message()
        found = open_adapter().depth()
    assert numbers(found)[::2] == (1, 2, 1)
    assert found.oldest_age is None
    assert found.why["oldest_age"] == "consumers hold 2 messages, and a browse for the age reads at most 2 messages"


def test_too_many_letters_of_all_queues_are_not_counted(
    stomp_broker: StompBroker, queue: str, open_adapter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count of one queue's letters would read all of them; None is never mistaken for 0."""
    monkeypatch.setattr(depth, "_BROWSED", MANY)
    bury(stomp_broker, queue, 1)
    bury(stomp_broker, f"{queue}.other", 1)
    assert open_adapter().depth().dead == 1
    for limit in ("_BROWSED", "_FILTERED"):
        monkeypatch.setattr(depth, limit, 1)
    found = open_adapter().depth()
    assert (found.ready, found.dead) == (0, None)
    assert "dead letters of all queues" in found.why["dead"]


def test_a_queue_of_dead_letters_of_its_own_is_counted_whole(
    stomp_broker: StompBroker, queue: str, open_adapter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`?dlq=` names it, so that the adapter needs no look at the letters."""
    monkeypatch.setattr(depth, "_BROWSED", 0)
    with stomp_broker.client() as client:
        for _ in range(3):
            client.send(f"{queue}.moved", headers={"_AMQ_ORIG_QUEUE": queue} if stomp_broker.is_artemis else {})
    assert open_adapter(f"{stomp_broker.url}?dlq={{queue}}.moved").depth().dead == 3
    assert open_adapter(f"{stomp_broker.url}?dlq={queue}.dead").depth().dead == 0, "each letter counts once"


# --- What is missing --------------------------------------------------------------------------------------------------


def test_each_number_that_needs_a_right_has_the_right_as_its_reason(
    stomp_broker: StompBroker, queue: str, open_adapter: Open
) -> None:
    with stomp_broker.client() as client:
        client.send(queue, b"{}", {KEY: "k-1"})
        found = open_adapter(stomp_broker.limited_url).depth()
        if stomp_broker.is_artemis:
            assert found == Depth.unknown(found.why["ready"])
            assert "grant the user's role the rights manage and send for activemq.management" in found.why["ready"]
            with pytest.raises(Refused, match=r"grant the user's role the rights manage and send"):
                list(open_adapter(stomp_broker.limited_url).browse(5))
        elif is_classic_5(stomp_broker):  # A temporary queue needs the same right.
            assert found.why.keys() == LATE | OF_PLUGIN | {"consumers"}
            assert all("ActiveMQ.Advisory.>" in found.why[name] for name in OF_PLUGIN | {"consumers"})
        else:
            assert numbers(found) == (1, None, 0, 0, None)
            assert found.why.keys() == LATE | {"consumers"}
            assert '<authorizationEntry topic="ActiveMQ.Advisory.>"' in found.why["consumers"]
            browsed = shown(open_adapter(stomp_broker.limited_url).browse(5))
            assert [each.headers for each in browsed] == [{KEY: "k-1"}]


def test_classic_without_its_plugin_counts_no_messages_and_is_left_as_it_was(bare_classic: Classic) -> None:
    """A question in the plugin's own way would leave a queue and a message behind."""

    def queues() -> list[str]:
        kinds = ("Queue", "TempQueue")
        found = (bare_classic.jolokia.search(f"org.apache.activemq:*,destinationType={kind}") for kind in kinds)
        return sorted(name for names in found for name in names)

    with bare_classic.client() as client:
        client.send("exports", b"{}", {KEY: "k-1"})
    before = queues()
    adapter = StompAdapter(bare_classic.url, QueueSpec("exports", "exports.dead"), Settings())
    found = adapter.depth()
    assert numbers(found) == (None,) * 5
    assert found.why.keys() == LATE | OF_PLUGIN | {"consumers"}
    assert all("<statisticsBrokerPlugin/>" in found.why[name] for name in OF_PLUGIN)
    assert 'advisorySupport="true"' in found.why["consumers"]
    assert [each.headers for each in shown(adapter.browse(5))] == [{KEY: "k-1"}]
    assert queues() == before
    adapter.stop(5)


def test_an_absent_broker_is_an_error(queue: str) -> None:
    adapter = StompAdapter("stomp://127.0.0.1:1", QueueSpec(queue, f"{queue}.dead"), Settings())
    for question in (adapter.depth, lambda: list(adapter.browse(5))):
        with pytest.raises(BrokerUnavailable):
            question()


# --- Browsing ---------------------------------------------------------------------------------------------------------


def shown(found: Iterator[Browsed | Unbrowsed]) -> list[Browsed]:
    return [each for each in found if isinstance(each, Browsed)]


def keys(found: Iterable[Browsed | Unbrowsed]) -> list[str]:
    return [each.headers[KEY] for each in found if isinstance(each, Browsed)]


def reasons(found: Iterable[Browsed | Unbrowsed]) -> list[str]:
    return [each.why for each in found if isinstance(each, Unbrowsed)]


def test_a_browse_of_many_messages_consumes_none(stomp_broker: StompBroker, queue: str, open_adapter: Open) -> None:
    """Artemis lists at most 200. No delivery is counted: a consumer afterwards receives a message that is not marked."""
    wanted = [f"k-{number}" for number in range(450)]  # Classic reads 400 messages at a time
    with stomp_broker.client() as client:
        for key in wanted:
            client.send(queue, b"{}", {KEY: key}, receipt=key == wanted[-1])
        before = stomp_broker.counts(queue)
        for _ in range(3):
            assert keys(open_adapter().browse(240)) == wanted[: 200 if stomp_broker.is_artemis else 240]
            assert keys(islice(open_adapter().browse(100), 2)) == wanted[:2]
        assert stomp_broker.counts(queue) == before
        assert before.waiting == 450
        found = list(open_adapter().browse(1000))
        assert keys(found) == wanted[: 200 if stomp_broker.is_artemis else 450]
        if stomp_broker.is_artemis:
            limit = "management-browse-page-size in broker.xml is the limit"
            assert reasons(found) == [f"Artemis has listed the first 200 of 450 ready messages; {limit}"]
        else:
            assert reasons(found) == [NOT_DELAYED]
        client.subscribe(queue)
        assert client.message().headers.get("redelivered", "false") == "false"


def test_a_browsed_message_is_as_a_delivered_one(stomp_broker: StompBroker, queue: str, open_adapter: Open) -> None:
    sender = open_adapter()
    headers = {KEY: "k-1", "quoted": 'a "b" \\ c\nd', "priority": "7", "message-id": "a sender's own"}
    sender.publish(OutgoingMessage(Target.WORK, b"{}", headers))
    (browsed,) = shown(sender.browse(5))
    worker = Worker(stomp_broker.url, queue).start()
    delivered = worker.delivery()
    assert browsed == Browsed(delivered.headers, delivered.message_id, delivered.sent_at)
    worker.adapter.stop(5)


@ON_ARTEMIS
def test_artemis_shows_delayed_messages_and_no_held_ones(
    stomp_broker: StompBroker, queue: str, open_adapter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = open_adapter()
    for key, delay in (("late", 3600), ("soon", 1800)):
        sender.publish(OutgoingMessage(Target.LATER, b"{}", {KEY: key}, delay))
    for key in ("held", "k-1"):
        sender.publish(work(key))
    worker = Worker(stomp_broker.url, queue).start()
    worker.delivery()
    ready, soon, late = shown(sender.browse(5))
    assert keys((ready, soon, late)) == ["k-1", "soon", "late"]
    assert ready.due is None
    assert soon.due == pytest.approx(time.time() + 1800, abs=30)
    assert late.due == pytest.approx(time.time() + 3600, abs=30)
    assert keys(sender.browse(2)) == ["k-1", "soon"]
    monkeypatch.setattr(browse, "_SCHEDULED", 1)  # Artemis lists all of them or none
    found = list(sender.browse(5))
    assert keys(found) == ["k-1"]
    assert reasons(found) == ["2 messages are delayed, and a search asks Artemis for at most 1"]
    worker.adapter.stop(5)


@ON_ARTEMIS
def test_a_header_that_artemis_cuts_is_left_out(stomp_broker: StompBroker, queue: str, open_adapter: Open) -> None:
    sender = open_adapter()
    sender.publish(work("k-1", long="x" * 300, short="x" * 256))
    (browsed,) = shown(sender.browse(5))
    assert browsed.headers == {KEY: "k-1", "short": "x" * 256}


@ON_ARTEMIS
def test_a_key_that_artemis_cuts_is_a_reason(stomp_broker: StompBroker, queue: str) -> None:
    adapter = StompAdapter(stomp_broker.url, QueueSpec(queue, f"{queue}.dead", key_header="order"), Settings())
    for name in ("order", "other"):
        adapter.publish(OutgoingMessage(Target.WORK, b"{}", {KEY: "k-1", name: "x" * 300}))
    found = list(adapter.browse(5))
    assert keys(found) == ["k-1", "k-1"]
    assert reasons(found) == ["1 of the keys have more than 256 characters, and Artemis cuts them in its lists"]
    adapter.stop(5)


@ON_CLASSIC
def test_a_browse_without_the_right_to_ask_creates_no_queue(
    stomp_broker: StompBroker, queue: str, open_adapter: Open
) -> None:
    """The statistics plugin reports that there is no message."""
    assert reasons(found := list(open_adapter(stomp_broker.limited_url).browse(5))) == [NOT_DELAYED]
    assert keys(found) == []
    assert not open_adapter().exists()
