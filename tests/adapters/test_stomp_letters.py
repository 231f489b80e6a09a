"""Dead letters on ActiveMQ, Classic and Artemis: many of them, killed readers, two readers at once, letters of other queues."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import Any

import pytest

from steadyworker.actions.deadletters import DeadLetterQueue
from steadyworker.adapter import Delivery, OutgoingMessage, QueueSpec, Settings, Target
from steadyworker.clock import SystemClock, Times
from steadyworker.delivery import KEY
from steadyworker.errors import BrokerUnavailable, LettersHeld, Unsettled
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker_stomp import StompAdapter
from steadyworker_stomp import deadletters as reader
from tests.brokers.stomp_broker import StompBroker
from tests.brokers.stomp_client import Frame, StompClient
from tests.diagnosis.explaining import Log
from tests.faults.proxy import Proxy

Eventually = Callable[..., Any]
Open = Callable[..., StompAdapter]


@pytest.fixture
def dead(queue: str) -> str:
    """The dead-letter queue of the test's queue."""
    return f"{queue}.dead"


@pytest.fixture
def open_adapter(stomp_broker: StompBroker, queue: str, dead: str) -> Iterator[Open]:
    """Opens adapters; by default the broker's own dead letters are in a queue of the test, as other tests share the usual one."""
    adapters: list[StompAdapter] = []

    def opened(url: str = "", work: str = queue, *, own: bool = False) -> StompAdapter:
        option = "" if own else "?dlq={queue}.moved"
        adapters.append(StompAdapter((url or stomp_broker.url) + option, QueueSpec(work, dead), Settings()))
        return adapters[-1]

    yield opened
    for adapter in adapters:
        adapter.stop(5)


def letters_of(adapter: StompAdapter, queue: str, patience: float = 60.0) -> DeadLetterQueue:
    """The letters of a work queue, as an operator opens them."""
    ledger = MemoryLedger(SystemClock(), Times())
    return DeadLetterQueue(adapter.dead_letters, ledger, adapter.identity(), queue, patience=patience)


def bury(broker: StompBroker, dead: str, keys: list[str], body: bytes = b"{}") -> None:
    """Send letters in this order; only the last one waits for its receipt."""
    with broker.client() as client:
        for key in keys:
            to = client._to(dead, "destination")
            headers = {
                **to,
                "content-length": str(len(body)),
                "persistent": "true",
                KEY: key,
                "sw-uid": key,
                "sw-worker": "h",
            }
            client.send_frame("SEND", headers, body, receipt=key == keys[-1])


def keys_in(adapter: StompAdapter) -> list[str]:
    with adapter.dead_letters() as letters:
        return [letter.headers[KEY] for letter in letters]


def numbered(count: int) -> list[str]:
    return [f"k-{number}" for number in range(count)]


def test_a_letter_that_arrives_slowly_is_no_vanished_one(
    stomp_broker: StompBroker, dead: str, open_adapter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large letter takes longer than the broker may be silent; here, a slow network makes a smaller one as long."""
    bury(stomp_broker, dead, ["k"], bytes(1_000_000))
    for name in ("_NEXT_WITHIN", "_QUIET"):
        monkeypatch.setattr(reader, name, 0.5)
    with Proxy(stomp_broker.url) as proxy:
        adapter = open_adapter(proxy.url)
        proxy.slow(400_000, "down")
        assert keys_in(adapter) == ["k"]


def move(broker: StompBroker, queue: str, keys: list[str]) -> None:
    """Let the broker move jobs of these keys from this queue to its own dead-letter queue, in this order."""
    with broker.client() as client:
        for key in keys:
            client.send(queue, b"{}", {KEY: key})
        if broker.is_artemis:
            found = broker.jolokia.search(f'org.apache.activemq.artemis:*,subcomponent=queues,queue="{queue}"')
            (mbean,) = found
            broker.jolokia.execute(mbean, "sendMessagesToDeadLetterAddress(java.lang.String)", "")
            return
        client.subscribe(queue)
        for key in keys:
            message = client.message()
            assert message.headers[KEY] == key
            client.send_frame("NACK", {"id": message.headers["ack"]}, receipt=True)


def cut(letters: reader.StompDeadLetters) -> None:
    """End the connections of a reader as its death does: without a word."""
    for each in letters._readers.values():
        each._connection._transport.end()


@pytest.mark.parametrize("count", [150, pytest.param(1_500, marks=pytest.mark.slow)])
def test_many_letters_are_listed_replayed_and_dropped_in_order(
    stomp_broker: StompBroker, queue: str, dead: str, open_adapter: Open, count: int
) -> None:
    """A list changes nothing: the order stays, and no letter counts as delivered."""
    keys = numbered(count)
    bury(stomp_broker, dead, keys)
    letters = letters_of(open_adapter(), queue)
    for _ in range(2):
        assert [letter.key for letter in letters.letters(bodies=False)] == keys
        counts = stomp_broker.counts(dead)
        assert (counts.waiting, counts.delivering, counts.consumers) == (count, 0, 0)
    assert [replayed.key for replayed in letters.replay(keys[:50])] == keys[:50]
    assert stomp_broker.depth(queue) == 50
    with stomp_broker.client() as client:
        for key in keys[:50]:
            client.subscribe(queue, key)
            assert client.message().headers[KEY] == key
    assert [letter.key for letter in letters.drop()] == keys[50:]
    assert stomp_broker.depth(dead) == 0
    assert letters.letters() == []


@pytest.mark.parametrize("count", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_reader_that_dies_twenty_times_loses_nothing(
    stomp_broker: StompBroker, queue: str, dead: str, open_adapter: Open, eventually: Eventually, count: int
) -> None:
    """On Artemis each such end is a failed delivery of every letter held, and the tenth would move the letter."""
    keys = numbered(count)
    bury(stomp_broker, dead, keys)
    adapter = open_adapter()
    for _ in range(20):
        with adapter.dead_letters() as letters:
            assert sorted(letter.headers[KEY] for letter in letters) == keys
            cut(letters)
        eventually(lambda: stomp_broker.counts(dead).consumers == 0)
    assert sorted(keys_in(adapter)) == keys
    assert stomp_broker.depth(dead) == count
    assert stomp_broker.dead(dead) == 0


def test_a_reader_that_dies_in_the_middle_leaves_what_it_did_not_drop(
    stomp_broker: StompBroker, dead: str, open_adapter: Open, eventually: Eventually
) -> None:
    keys = numbered(10)
    bury(stomp_broker, dead, keys)
    adapter = open_adapter()
    with adapter.dead_letters() as letters:
        held = list(letters)
        for letter in held[:3]:
            letters.drop(letter)
        cut(letters)
        with pytest.raises(Unsettled):
            letters.drop(held[3])
    eventually(lambda: stomp_broker.depth(dead) == 7)
    assert sorted(keys_in(adapter)) == keys[3:]


def test_a_reader_whose_connection_ends_while_it_reads_gets_an_error(
    stomp_broker: StompBroker, dead: str, open_adapter: Open
) -> None:
    """Otherwise it would take a part for the whole."""
    bury(stomp_broker, dead, numbered(5))
    with open_adapter().dead_letters() as letters:
        found = iter(letters)
        next(found)
        cut(letters)
        with pytest.raises(BrokerUnavailable):
            list(found)


def test_letters_that_the_broker_moved_are_read_after_ours_and_those_of_other_queues_stay(
    stomp_broker: StompBroker, queue: str, dead: str, open_adapter: Open
) -> None:
    """The broker's own dead-letter queue has letters of all queues: each Worker reads its own, and the others keep their order."""
    other = f"{queue}.other"
    mine, theirs = numbered(3), [f"other-{number}" for number in range(3)]
    for my_key, their_key in zip(mine, theirs, strict=True):
        move(stomp_broker, other, [their_key])
        move(stomp_broker, queue, [my_key])
    bury(stomp_broker, dead, ["ours"])
    adapter, stranger = open_adapter(own=True), open_adapter(own=True, work=other)

    (first, *moved) = patiently(adapter, list)
    assert (first.headers[KEY], first.origin) == ("ours", None)
    assert [(letter.headers[KEY], letter.origin) for letter in moved] == [(key, queue) for key in mine]

    letters = letters_of(adapter, queue)
    found = letters.letters()
    assert [(letter.key, letter.ours) for letter in found] == [("ours", True), *((key, False) for key in mine)]
    assert [replayed.key for replayed in letters.replay(mine)] == mine
    assert stomp_broker.depth(queue) == 3
    assert (stomp_broker.dead(queue), stomp_broker.dead(other)) == (0, 3)
    assert [letter.headers[KEY] for letter in patiently(stranger, list) if letter.origin] == theirs


@pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)
def test_a_letter_that_the_broker_moved_survives_many_readers_that_die(
    stomp_broker: StompBroker, queue: str, open_adapter: Open, eventually: Eventually
) -> None:
    """At the tenth failed delivery in its own dead-letter queue, Artemis would delete it; a copy still names the queue it came from."""
    move(stomp_broker, queue, ["k"])
    adapter = open_adapter(own=True)

    def died(letters: reader.StompDeadLetters) -> list[Delivery]:
        found = list(letters)
        cut(letters)
        return found

    for _ in range(12):
        (letter,) = patiently(adapter, died)
        assert (letter.headers[KEY], letter.body, letter.origin) == ("k", b"{}", queue)
        eventually(lambda: stomp_broker.dead(queue) == 1)
    assert [letter.headers[KEY] for letter in patiently(open_adapter(own=True), list)] == ["k"]


def patiently(adapter: StompAdapter, read: Callable[[reader.StompDeadLetters], list[Delivery]]) -> list[Delivery]:
    """Read, while readers of other tests come and go in the broker's own dead-letter queue."""
    for _ in range(200):
        try:
            with adapter.dead_letters() as letters:
                return read(letters)
        except LettersHeld:
            continue
    pytest.fail("other readers hold the broker's own dead letters")


def test_a_letter_that_arrives_during_the_reading_is_left_to_the_next(
    stomp_broker: StompBroker, dead: str, open_adapter: Open
) -> None:
    keys = numbered(3)
    bury(stomp_broker, dead, keys)
    adapter = open_adapter()
    with adapter.dead_letters() as letters:
        found = []
        for letter in letters:
            found.append(letter.headers[KEY])
            letters.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: f"later than {letter.headers[KEY]}"}))
    assert found == keys
    assert keys_in(adapter) == [*keys, *(f"later than {key}" for key in keys)]


def test_readers_at_once_each_get_every_letter(
    stomp_broker: StompBroker, queue: str, dead: str, open_adapter: Open
) -> None:
    keys = numbered(100)
    bury(stomp_broker, dead, keys)
    readers = [letters_of(open_adapter(), queue) for _ in range(3)]
    begin = Barrier(3)

    def listed(letters: DeadLetterQueue) -> list[str]:
        begin.wait()
        return [letter.key for letter in letters.letters(bodies=False)]

    with ThreadPoolExecutor(3) as threads:
        for seen in threads.map(listed, readers):
            assert sorted(seen) == sorted(keys)
    assert stomp_broker.depth(dead) == 100


def test_a_reader_beside_another_consumer_gets_an_error(
    stomp_broker: StompBroker, queue: str, dead: str, open_adapter: Open
) -> None:
    """A program that consumes the dead letters can hold any of them; a reader that holds them is left undisturbed."""
    keys = numbered(3)
    bury(stomp_broker, dead, keys)
    adapter = open_adapter()
    with stomp_broker.client() as client:
        client.subscribe(dead)
        with pytest.raises(
            LettersHeld, match=f"no other subscription to the dead-letter queue '{dead}', got 1: wait until"
        ):
            keys_in(adapter)
        client.unsubscribe()
    with adapter.dead_letters() as letters:
        found = iter(letters)
        first = next(found).headers[KEY]
        with pytest.raises(LettersHeld):
            letters_of(open_adapter(), queue, patience=0).replay()
        assert [first, *(letter.headers[KEY] for letter in found)] == keys
    assert stomp_broker.depth(queue) == 0, "nothing was replayed"


def test_a_consumer_that_comes_during_the_reading_is_noticed_at_its_end(
    stomp_broker: StompBroker, dead: str, open_adapter: Open
) -> None:
    """It holds a letter, so the reader would take a part for the whole."""
    bury(stomp_broker, dead, numbered(3))
    with stomp_broker.client() as client, open_adapter().dead_letters() as letters:
        found = iter(letters)
        next(found)
        client.subscribe(dead)
        client.message()
        with pytest.raises(LettersHeld):
            list(found)


def test_a_user_without_the_right_to_ask_reads_every_letter(
    stomp_broker: StompBroker, dead: str, open_adapter: Open
) -> None:
    """It cannot see other readers, and learns on Artemis only by waiting that no letter is left."""
    keys = numbered(30)
    bury(stomp_broker, dead, keys)
    adapter = open_adapter(stomp_broker.limited_url)
    if "ActiveMQ/5." in stomp_broker.server:
        with adapter.dead_letters() as letters, pytest.raises(BrokerUnavailable, match=r"topics ActiveMQ\.Advisory\.>"):
            list(letters)
        return
    with adapter.dead_letters() as letters:
        held = list(letters)
        assert [letter.headers[KEY] for letter in held] == keys
        letters.drop(held[0])
    assert keys_in(adapter) == keys[1:]


def test_reading_creates_no_queue(stomp_broker: StompBroker, queue: str, dead: str, open_adapter: Open) -> None:
    assert keys_in(open_adapter()) == []
    pattern = "destinationName" if not stomp_broker.is_artemis else "queue"
    domain = "org.apache.activemq.artemis" if stomp_broker.is_artemis else "org.apache.activemq"
    quote = '"' if stomp_broker.is_artemis else ""
    for name in (dead, f"{queue}.moved"):
        assert stomp_broker.jolokia.search(f"{domain}:*,{pattern}={quote}{name}{quote}") == []


def test_a_list_of_large_letters_keeps_no_bodies(
    stomp_broker: StompBroker, queue: str, dead: str, open_adapter: Open
) -> None:
    """80 MB of bodies pass by, one by one."""
    body = bytes(1_000_000)
    bury(stomp_broker, dead, numbered(80), body)
    letters = letters_of(open_adapter(), queue)
    tracemalloc.start()
    try:
        assert [letter.size for letter in letters.letters(bodies=False)] == [len(body)] * 80
        assert [len(letter.body) for letter in letters.letters(["k-70"])] == [len(body)]
        assert tracemalloc.get_traced_memory()[1] < 20 * len(body)
    finally:
        tracemalloc.stop()


def test_a_reader_that_works_on_a_letter_for_long_keeps_its_connection(
    stomp_broker: StompBroker, queue: str, dead: str
) -> None:
    """
    A client that is as silent as the reader is dropped meanwhile, and its broker logs this cause.

    Its heart-beat is slower than the worker's, because Classic checks only at the end of each such time.
    Artemis 2.55 also informs the client, but closes the connection without waiting for that frame.
    The frame waits for writes to the journal on the same thread (`StompProtocolManager.sendReply`), so it can come too late.
    """
    bury(stomp_broker, dead, ["k"])
    log = Log(stomp_broker.ca_file.parent / "node.log")
    adapter = StompAdapter(f"{stomp_broker.url}?heartbeat=1&dlq={queue}.moved", QueueSpec(queue, dead), Settings())
    with adapter.dead_letters() as letters:
        (letter,) = letters
        with StompClient(stomp_broker.url, headers={"heart-beat": "1500,0"}) as silent:
            errors = [*until_closed(silent)]
            assert all("Did not receive data" in frame.headers["message"] for frame in errors)
            assert len(errors) <= stomp_broker.is_artemis
            cause = "artemis.connection-ttl" if stomp_broker.is_artemis else "stomp.late-heartbeat"
            log.shows(cause, silent.address)
        letters.drop(letter)
    assert stomp_broker.depth(dead) == 0
    adapter.stop(5)


def until_closed(client: StompClient) -> Iterator[Frame]:
    """Yield each frame until the broker closes the connection."""
    with suppress(EOFError):
        while True:
            yield client.receive()


def test_a_copy_made_for_a_letter_of_a_dead_reader_has_all_of_it(
    stomp_broker: StompBroker, dead: str, open_adapter: Open, eventually: Eventually
) -> None:
    headers = {KEY: "k", "name": "a:b\\c\nd é", "empty": "", "sw-reason": "rejected", "correlation-id": "c-1"}
    adapter = open_adapter()
    adapter.publish(OutgoingMessage(Target.DEAD, b"\0body\n", headers))
    for _ in range(3):
        with adapter.dead_letters() as letters:
            (letter,) = letters
            assert {name: letter.headers[name] for name in headers} == headers
            assert letter.body == b"\0body\n"
            cut(letters)
        eventually(lambda: stomp_broker.counts(dead).consumers == 0)
