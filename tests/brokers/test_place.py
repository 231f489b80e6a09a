"""What each place at a broker keeps of its Protocol: the drills and the fleet lean on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from steadyworker import Client
from steadyworker.adapter import Connected, Lost, QueueSpec, Settings, Signal, Unreachable
from steadyworker.backends.registry import open_adapter
from steadyworker.delivery import KEY, OutgoingMessage, Target
from steadyworker.errors import SendError
from tests.brokers.place import Ability, Depth, OwnBroker, Place, Places
from tests.conftest import Eventually
from tests.faults.proxy import Proxy

WITHIN = 30.0
EMPTY = Depth(0, 0, 0)


@pytest.fixture
def queue(place: Place) -> str:
    """A queue of the kind that SteadyWorker makes."""
    name = place.queue("jobs")
    place.make_queue(name)
    return name


def test_a_message_is_taken_as_it_was_published_and_is_gone_when_it_is_acknowledged(
    place: Place, queue: str, eventually: Eventually
) -> None:
    place.publish(queue, b"\x00\xff {}", key="one", headers={"colour": "blue"})
    eventually(lambda: place.ready() == {queue: 1})  # Artemis counts a message a moment after its receipt
    with place.consumer(queue) as consumer:
        first = consumer.take(WITHIN)
        assert first
        assert (first.queue, first.body, first.key, first.headers["colour"]) == (queue, b"\x00\xff {}", "one", "blue")
        assert first.redelivered in (False, None)
        place.publish(queue, b"second")
        assert consumer.take(0) == first, "it holds one at most"
        if Ability.COUNTS_HELD in place.abilities:
            eventually(lambda: place.depths()[queue] == Depth(1, 1, 2))
            eventually(lambda: place.ready() == {queue: 1})  # Artemis counts a moment later
        else:
            assert place.depths()[queue].total == place.ready()[queue] >= 1
        consumer.ack()
        second = consumer.take(WITHIN)
        assert second
        assert (second.body, second.key) == (b"second", None)
        consumer.ack()
        assert consumer.take(0.1) is None
    eventually(lambda: place.ready() == {queue: 0})
    eventually(lambda: place.depths() == {queue: EMPTY})


@pytest.mark.also("rocketmq4")
def test_a_message_that_is_given_back_goes_to_another_consumer_and_not_to_the_same(place: Place, queue: str) -> None:
    place.publish(queue, b"job", key="job")
    with place.consumer(queue) as first, place.consumer(queue) as second:
        taken, holder, other = None, first, second
        while not taken:  # the broker chooses the consumer
            taken, holder, other = other.take(0.1), other, holder
        holder.give_back()
        again = other.take(WITHIN)
        assert again
        assert (again.body, again.key) == (b"job", "job")
        assert again.redelivered in (True, None)
        if Ability.COUNTS_DELIVERIES in place.abilities:
            assert (taken.redelivered, again.redelivered) == (False, True)
            assert (taken.deliveries or 0, again.deliveries) == (0, 1)
        assert place.consumers(queue) == 1


@pytest.mark.also("rocketmq4")
def test_a_consumer_that_leaves_gives_its_message_back(place: Place, queue: str, eventually: Eventually) -> None:
    place.publish(queue, b"job")
    assert place.consumers(queue) == 0
    with place.consumer(queue) as consumer:
        assert consumer.take(WITHIN)
        assert place.consumers(queue) == 1
        if Ability.COUNTS_HELD in place.abilities:
            assert place.ready() == {queue: 0}
    eventually(lambda: place.ready() == {queue: 1})
    assert place.consumers(queue) == 0
    assert place.consumers(place.queue("unknown")) == 0


@pytest.mark.needs(Ability.CLOSES_CONNECTIONS)
def test_a_worker_is_seen_and_closed_by_the_broker_and_our_own_connections_are_not(
    place: Place, queue: str, eventually: Eventually
) -> None:
    """A worker is an adapter that consumes: not every broker tells who only sends."""
    adapter = open_adapter(place.url(), QueueSpec(queue, f"{queue}.dead"), Settings())
    signals: list[Signal] = []
    with place.consumer(queue) as ours:
        try:
            adapter.start(signals.append)
            adapter.prefetch(2)
            eventually(lambda: place.consumers(queue) == 2)
            names = eventually(place.connections)
            place.close_connections()
            eventually(lambda: any(isinstance(signal, Lost) for signal in signals))
            eventually(lambda: place.consumers(queue) == 2)  # it connects again
            eventually(lambda: not names & place.connections())
        finally:
            adapter.stop(WITHIN)
        place.publish(queue, b"job")
        assert ours.take(WITHIN), "the broker has not closed this one"


def test_a_worker_behind_a_proxy_is_seen_and_cut_off_and_our_own_connections_are_not(
    place: Place, queue: str, eventually: Eventually
) -> None:
    """What is held is settled after it, where the broker does not deliver it again at once."""
    with Proxy(place.address()) as proxy:
        adapter = open_adapter(place.url(through=proxy), QueueSpec(queue, f"{queue}.dead"), Settings())
        signals: list[Signal] = []
        with place.consumer(queue):
            assert not place.connections()
            try:
                adapter.start(signals.append)
                adapter.prefetch(1)
                eventually(lambda: place.consumers(queue) == 2)
                assert eventually(place.connections)
                proxy.refuse()
                place.close_connections()
                eventually(lambda: any(isinstance(signal, Unreachable) for signal in signals))
                proxy.accept()
                eventually(lambda: isinstance(signals[-1], Connected))
                assert any(isinstance(signal, Lost) for signal in signals) == (
                    Ability.REDELIVERS_AT_ONCE in place.abilities
                )
            finally:
                adapter.stop(WITHIN)


@pytest.mark.parametrize("through", ["no proxy", "a proxy"])
def test_a_url_leads_to_the_place_with_or_without_a_proxy(
    place: Place, queue: str, through: str, tmp_path: Path
) -> None:
    with Proxy(place.address()) as proxy:
        url = place.url(heartbeat=7, through=proxy if through == "a proxy" else None)
        assert ("heartbeat=7" in url) == (Ability.HEARTBEATS in place.abilities)
        with Client(broker=url, ledger=f"sqlite:{tmp_path}/ledger.db") as client:
            client.send(queue, {}, key="a")
        assert bool(proxy.connections) == (through == "a proxy")
        with Proxy(place.address()) as other:
            assert other.through(place.address()) == place.address(through=other)
    assert place.ready()[queue] == 1


@pytest.mark.also("rocketmq4")
def test_a_place_sees_nothing_of_another_one(places: Places, place: Place, queue: str) -> None:
    other = places.open()
    try:
        theirs = other.queue("jobs")
        other.make_queue(theirs)
        other.publish(theirs, b"theirs")
        assert (place.ready(), other.ready()) == ({queue: 0}, {theirs: 1})
        assert [*place.depths()] == [queue]
    finally:
        other.close()


@pytest.mark.also("rocketmq4")
def test_a_queue_is_purged_and_deleted_and_what_is_left_is_drained(place: Place, queue: str) -> None:
    dead = place.queue("jobs.dead")
    place.make_queue(dead)
    for body in (b"first", b"second"):
        place.publish(dead, body, key=body.decode())
    place.publish(queue, b"purged")
    place.purge(queue)
    assert place.ready() == {queue: 0, dead: 2}
    assert place.dead_letters(queue) == 2
    assert [(message.queue, message.key) for message in place.drain()] == [(dead, "first"), (dead, "second")]
    assert place.drain() == []
    assert place.dead_letters(queue) == 0
    place.delete(dead)
    assert [*place.ready()] == [queue]


@pytest.mark.also("rocketmq4")
def test_a_message_that_waits_for_its_time_is_counted_and_drained(
    place: Place, queue: str, eventually: Eventually
) -> None:
    adapter = open_adapter(place.url(), QueueSpec(queue, f"{queue}.dead"), Settings())
    try:
        adapter.publish(OutgoingMessage(Target.LATER, b"late", {KEY: "late"}, delay=3600))
    finally:
        adapter.stop(WITHIN)
    eventually(lambda: sum(depth.total for depth in place.depths().values()) == 1)
    assert sum(place.ready().values()) == 1
    assert [message.body for message in place.drain()] == [b"late"]
    eventually(lambda: sum(depth.total for depth in place.depths().values()) == 0)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_broker_of_our_own_keeps_its_messages_when_it_is_killed_stopped_and_frozen(
    own_broker: OwnBroker, place: Place, queue: str, tmp_path: Path
) -> None:
    place.publish(queue, b"job")
    own_broker.kill()
    own_broker.start()
    with Client(broker=place.url(tls=Ability.TLS in place.abilities), ledger=f"sqlite:{tmp_path}/ledger.db") as client:
        with place.stopped(), pytest.raises(SendError):
            client.send(queue, {}, key="job")
        own_broker.freeze()
        own_broker.heal()
        client.send(queue, {}, key="job")
    assert place.ready()[queue] == 2
