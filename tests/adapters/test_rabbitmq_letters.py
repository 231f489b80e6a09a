"""Dead letters on RabbitMQ, as operators handle them: shared queues, letters that are moved by hand, two readers at once."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier
from typing import Any

import pika
import pytest

from steadyworker.actions.deadletters import DeadLetterQueue
from steadyworker.adapter import Finding, OutgoingMessage, QueueSpec, Settings, Target
from steadyworker.cli.dead import _record
from steadyworker.clock import SystemClock, Times
from steadyworker.delivery import KEY
from steadyworker.errors import LettersHeld
from steadyworker.ledger.base import Ledger, State
from steadyworker.names import normal_key
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker_rabbitmq import RabbitmqAdapter
from steadyworker_rabbitmq import deadletters as reader
from tests.brokers.rabbitmq import RabbitMQ, Vhost
from tests.faults.proxy import Proxy
from tests.support.stage import Processes, WorkerProcess, processes_at

FAILS, FAILS_TOO = "tests.support.jobs:Fails", "tests.support.jobs:FailsToo"
DEAD = "shared.dead"
SETTINGS = Settings(delays=(0.1,))
Eventually = Callable[..., Any]
OpenLetters = Callable[[str, Ledger], DeadLetterQueue]


@pytest.fixture
def place(tmp_path: Path, vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """Worker processes on RabbitMQ, with a ledger in a file."""
    monkeypatch.setenv("STEADYWORKER_DELAYS", "1")
    with processes_at(f"{vhost.url}?management=off", tmp_path) as made:
        yield made


@pytest.fixture
def channel(vhost: Vhost) -> Iterator[Any]:
    """A channel of another program, such as an operator's."""
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as connection:
        yield connection.channel()


@pytest.fixture
def open_letters(vhost: Vhost) -> Iterator[OpenLetters]:
    """The letters of a work queue, as an operator opens them; their queue is shared."""
    adapters: list[RabbitmqAdapter] = []

    def letters(queue: str, ledger: Ledger) -> DeadLetterQueue:
        adapters.append(RabbitmqAdapter(vhost.url, QueueSpec(queue, DEAD), SETTINGS))
        return DeadLetterQueue(adapters[-1].dead_letters, ledger, adapters[-1].identity(), queue)

    yield letters
    for adapter in adapters:
        adapter.stop(5)


def depth(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def work_on(place: Processes, target: str) -> WorkerProcess:
    return place.worker(target, ledger_reach="host").started()


def test_two_workers_with_one_dead_letter_queue_keep_their_letters_apart(
    place: Processes, vhost: Vhost, channel: Any, open_letters: OpenLetters, eventually: Eventually
) -> None:
    """The same key in both queues: list, replay and drop of one Worker leave the other's letters where they are."""
    for target, queue in ((FAILS, "fails"), (FAILS_TOO, "fails-too")):
        work_on(place, target)
        place.send(queue, {}, key="k")
    for queue in ("fails", "fails-too"):
        place.reaches(queue, State.DEAD, "k")
    place.open()
    mine, theirs = open_letters("fails", place.ledger), open_letters("fails-too", place.ledger)

    assert [letter.headers["sw-queue"] for letter in mine.letters()] == ["fails"]
    assert mine.others == {"fails-too": 1}
    eventually(lambda: depth(channel, DEAD) == 2)
    assert [replayed.key for replayed in mine.replay()] == ["k"]
    place.reaches("fails", State.DONE, "k")
    assert sorted(place.lines("starts")) == ["fails k 1 0", "fails k.r1 1 1", "fails-too k 1 0"]

    eventually(lambda: depth(channel, DEAD) == 1)
    assert mine.drop() == []
    assert mine.others == {"fails-too": 1}
    eventually(lambda: depth(channel, DEAD) == 1)
    assert [replayed.key for replayed in theirs.replay(["k"])] == ["k"]
    place.reaches("fails-too", State.DONE, "k")
    assert place.lines("starts")[3:] == ["fails-too k.r1 1 1"]
    assert depth(channel, DEAD) == 0


def test_a_letter_that_the_broker_made_belongs_to_the_queue_from_which_the_broker_moved_it(
    vhost: Vhost, channel: Any, open_letters: OpenLetters, eventually: Eventually
) -> None:
    """A copy whose delay is over has been moved twice: by its retry queue, and from its work queue."""
    ledger = MemoryLedger(SystemClock(), Times())
    letters = {queue: open_letters(queue, ledger) for queue in ("a", "b")}
    for queue, target in (("a", Target.WORK), ("b", Target.LATER)):
        adapter = RabbitmqAdapter(vhost.url, QueueSpec(queue, DEAD), SETTINGS)
        adapter.publish(OutgoingMessage(target, b"{}", {KEY: f"of {queue}"}, 0.1))
        adapter.stop(5)
        eventually(lambda queue=queue: depth(channel, queue) == 1)
        method, _, _ = channel.basic_get(queue)
        channel.basic_nack(method.delivery_tag, requeue=False)
    for queue in ("a", "b"):
        eventually(lambda: depth(channel, DEAD) == 2)
        (letter,) = letters[queue].letters()
        assert (letter.headers[KEY], letter.ours) == (f"of {queue}", False)
        assert letters[queue].others == {"b" if queue == "a" else "a": 1}


def test_letters_that_are_moved_back_as_they_are_run_once_more(
    place: Processes, channel: Any, eventually: Eventually
) -> None:
    """As the management page's Move messages does it, and a shovel that died before its acknowledgement: with a copy."""
    work_on(place, FAILS)
    for key in ("k", "copied"):
        place.send("fails", {}, key=key)
        place.reaches("fails", State.DEAD, key)
    place.open()
    eventually(lambda: depth(channel, DEAD) == 2)
    for key in ("k", "copied"):
        method, properties, body = channel.basic_get(DEAD)
        assert properties.headers[KEY] == key
        for _ in range(2 if key == "copied" else 1):
            channel.basic_publish("", "fails", body, properties)
        channel.basic_ack(method.delivery_tag)
    place.send("fails", {}, key="the last")
    for key in ("k", "copied", "the last"):
        place.reaches("fails", State.DONE, normal_key(key))
    eventually(lambda: depth(channel, "fails") == 0)

    assert place.lines("starts")[2:4] == ["fails k.r1 1 1", "fails copied.r1 1 1"]
    assert len(place.lines("starts")) == 5
    assert depth(channel, DEAD) == 0


def test_a_deleted_dead_letter_queue_loses_no_job(
    place: Processes, channel: Any, open_letters: OpenLetters, eventually: Eventually
) -> None:
    """The ledger has the message of the dead job, so it is listed as gone, and its replay goes on from its checkpoint."""
    work_on(place, FAILS)
    place.send("fails", {}, key="k")
    place.reaches("fails", State.DEAD, "k")
    eventually(lambda: depth(channel, DEAD) == 1)
    channel.queue_delete(DEAD)
    place.open()
    letters = open_letters("fails", place.ledger)
    assert letters.letters() == []
    assert [letter.key for letter in letters.kept()] == ["k"]
    assert [(replayed.key, replayed.round) for replayed in letters.replay(["k"])] == [("k", 1)]
    place.reaches("fails", State.DONE, "k")
    assert place.lines("starts") == ["fails k 1 0", "fails k.r1 1 1"]


def test_a_letter_that_is_moved_to_another_worker_is_a_new_job_there(
    place: Processes, channel: Any, eventually: Eventually
) -> None:
    """Neither its round nor its attempts count there."""
    work_on(place, FAILS)
    place.send("fails", {}, key="k")
    place.reaches("fails", State.DEAD, "k")
    place.open()
    work_on(place, FAILS_TOO)
    eventually(lambda: depth(channel, DEAD) == 1)
    method, properties, body = channel.basic_get(DEAD)
    place.send("fails-too", {}, key="another")  # from here on the queue exists
    channel.basic_publish("", "fails-too", body, properties)
    channel.basic_ack(method.delivery_tag)
    place.reaches("fails-too", State.DONE, "k")
    assert "fails-too k 1 0" in place.lines("starts")


def test_two_operators_at_once_each_see_every_letter(
    vhost: Vhost, channel: Any, open_letters: OpenLetters, eventually: Eventually
) -> None:
    """Each saw the letters that the other one did not hold yet, without an error."""
    ledger = MemoryLedger(SystemClock(), Times())
    adapter = RabbitmqAdapter(vhost.url, QueueSpec("a", DEAD), SETTINGS)
    keys = [f"k-{number}" for number in range(300)]
    for key in keys:
        adapter.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: key, "sw-uid": key}))
    adapter.stop(5)
    operators = [open_letters("a", ledger) for _ in range(3)]
    begin = Barrier(3)

    def listed(operator: DeadLetterQueue) -> list[str]:
        begin.wait()
        return [letter.key for letter in operator.letters(bodies=False)]

    with ThreadPoolExecutor(3) as threads:
        for seen in threads.map(listed, operators):
            assert sorted(seen) == sorted(keys)
    eventually(lambda: depth(channel, DEAD) == 300)


def test_a_reader_that_cannot_see_every_letter_is_refused(
    vhost: Vhost, channel: Any, open_letters: OpenLetters
) -> None:
    """A program that consumes the dead letters may hold any of them; so may one that takes them without being a consumer."""
    letters = open_letters("a", MemoryLedger(SystemClock(), Times()))
    letters._patience = 0.0
    adapter = RabbitmqAdapter(vhost.url, QueueSpec("a", DEAD), SETTINGS)
    adapter.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: "k"}))
    channel.basic_consume(DEAD, lambda *_: None)
    with pytest.raises(LettersHeld, match=f"no other consumer of the dead-letter queue '{DEAD}', got 1: wait until"):
        letters.letters()
    channel.close()
    letters._patience = 10.0
    assert [letter.key for letter in letters.letters()] == ["k"]
    letters._patience = 0.0
    with adapter.dead_letters() as mine:
        assert len(list(mine)) == 1
        with pytest.raises(LettersHeld):
            letters.replay()
    letters._patience = 10.0
    adapter.stop(5)
    assert [letter.key for letter in letters.letters()] == ["k"], "nothing was replayed"


def test_a_reader_that_has_ended_and_is_still_counted_refuses_no_other(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy 3.10 counts a consumer until its letters are back in the queue."""
    adapter = RabbitmqAdapter(vhost.url, QueueSpec("a", DEAD), SETTINGS)
    adapter.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: "k"}))
    count, counts = reader.RabbitmqDeadLetters._count, iter([(0, 1)])
    monkeypatch.setattr(reader.RabbitmqDeadLetters, "_count", lambda self, on: next(counts, None) or count(self, on))
    with adapter.dead_letters() as letters:
        assert len(list(letters)) == 1
    adapter.stop(5)


def test_a_letter_that_vanishes_while_it_is_read_is_reported(
    vhost: Vhost, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the reader would believe that a part is the whole."""
    monkeypatch.setattr(reader, "_NEXT_WITHIN", 0.2)
    adapter = RabbitmqAdapter(vhost.url, QueueSpec("a", DEAD), SETTINGS)
    for key in ("k-1", "k-2"):
        adapter.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: key}))
    count = reader.RabbitmqDeadLetters._count

    def removed_after_the_count(self: Any, on: Any) -> tuple[int, int]:
        found = count(self, on)
        if found[1] == 0:
            channel.basic_get(DEAD, auto_ack=True)
        return found

    monkeypatch.setattr(reader.RabbitmqDeadLetters, "_count", removed_after_the_count)
    with (
        adapter.dead_letters() as letters,
        pytest.raises(LettersHeld, match=r"Expected 2 dead letters .* got 1: another"),
    ):
        list(letters)
    adapter.stop(5)


def test_a_letter_that_arrives_slowly_is_no_vanished_one(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter of 512 MiB takes longer than the broker may be silent; here, a slow network makes a small one as long."""
    monkeypatch.setattr(reader, "_NEXT_WITHIN", 0.5)
    with Proxy(vhost.url) as proxy:
        adapter = RabbitmqAdapter(f"{proxy.url}?management=off", QueueSpec("a", DEAD), SETTINGS)
        adapter.publish(OutgoingMessage(Target.DEAD, bytes(1_000_000), {KEY: "k"}))
        proxy.slow(400_000, "down")
        with adapter.dead_letters() as letters:
            assert [len(letter.body) for letter in letters] == [1_000_000]
        adapter.stop(5)


def test_more_letters_than_a_consumer_may_hold_are_read_in_order(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MOST_AT_ONCE", 3)
    adapter = RabbitmqAdapter(vhost.url, QueueSpec("a", DEAD), SETTINGS)
    keys = [f"k-{number}" for number in range(8)]
    for key in keys:
        adapter.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: key}))
    with adapter.dead_letters() as letters:
        assert [letter.headers[KEY] for letter in letters] == keys
    with adapter.dead_letters() as letters:
        assert sorted(letter.headers[KEY] for letter in letters) == keys
    adapter.stop(5)


def test_a_list_of_large_letters_keeps_no_bodies(vhost: Vhost, open_letters: OpenLetters) -> None:
    """80 MB of bodies pass by; also those that the broker has pushed wait at the broker until they are read."""
    adapter = RabbitmqAdapter(vhost.url, QueueSpec("a", DEAD), SETTINGS)
    body = bytes(1_000_000)
    for number in range(80):
        adapter.publish(OutgoingMessage(Target.DEAD, body, {KEY: f"k-{number}"}))
    adapter.stop(5)
    letters = open_letters("a", MemoryLedger(SystemClock(), Times()))
    tracemalloc.start()
    try:
        assert [letter.size for letter in letters.letters(bodies=False)] == [len(body)] * 80
        assert [len(letter.body) for letter in letters.letters(["k-70"])] == [len(body)]
        assert tracemalloc.get_traced_memory()[1] < 20 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("timestamp", [1_700_000_000, 1_700_000_000_000, 1_700_000_000_000_000_000, 2**64 - 1])
def test_a_letter_with_a_timestamp_in_another_unit_is_listed(
    vhost: Vhost, channel: Any, open_letters: OpenLetters, timestamp: int
) -> None:
    channel.queue_declare(DEAD, durable=True, arguments={"x-queue-type": "quorum"})
    channel.basic_publish("", DEAD, b"{}", pika.BasicProperties(message_id="k", timestamp=timestamp))
    (letter,) = open_letters("a", MemoryLedger(SystemClock(), Times())).letters()
    assert _record(letter)["sent_at"] == ("2023-11-14T22:13:20Z" if timestamp == 1_700_000_000 else None)


def test_floats_in_headers_keep_their_fractions(vhost: Vhost, channel: Any, eventually: Eventually) -> None:
    """As a handler sees them, in a letter, and in a copy; pika itself reads 19.99 as 19."""
    adapter = RabbitmqAdapter(vhost.url, QueueSpec("a", DEAD), SETTINGS)
    adapter.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: "first"}))  # from here on the queues exist
    channel.basic_publish(
        "", DEAD, b"{}", Floats(content_type="text/plain", content_encoding="utf-8", headers={"n": 7})
    )
    expected = {"price": "19.99", "half": "0.5", "list": "[1.5, 2]", "table": '{"deep": -2.25}', "n": "7"}
    eventually(lambda: depth(channel, DEAD) == 2)
    with adapter.dead_letters() as letters:
        _, letter = letters
        assert {name: letter.headers[name] for name in expected} == expected
        letters.publish(OutgoingMessage(Target.DEAD, letter.body, letter.headers))
        letters.drop(letter)
    eventually(lambda: depth(channel, DEAD) == 2)
    with adapter.dead_letters() as letters:
        (copy,) = (letter for letter in letters if "n" in letter.headers)
        assert (copy.headers["price"], copy.headers["n"]) == ("19.99", "7")
    adapter.stop(5)


class Floats(pika.BasicProperties):  # type: ignore[misc]  # pika has no type hints
    """Properties with floats among their headers, which pika cannot write."""

    def encode(self) -> list[bytes]:
        pieces: list[bytes] = super().encode()
        place = next(at for at, piece in enumerate(pieces) if piece == b"n")
        entries = b"".join(
            (
                b"\x05priced" + struct.pack(">d", 19.99),
                b"\x04halff" + struct.pack(">f", 0.5),
                b"\x04listA" + struct.pack(">I", 14) + b"d" + struct.pack(">d", 1.5) + b"I" + struct.pack(">i", 2),
                b"\x05tableF" + struct.pack(">I", 14) + b"\x04deepd" + struct.pack(">d", -2.25),
            )
        )
        table = next(at for at in range(place, -1, -1) if pieces[at] == struct.pack(">I", 7))
        pieces[table] = struct.pack(">I", 7 + len(entries)) + entries
        return pieces


def test_check_names_a_queue_whose_letters_go_where_the_worker_does_not_read(rabbitmq: RabbitMQ, vhost: Vhost) -> None:
    """As `send QUEUE` makes it before a Worker names another dead-letter queue."""
    sender = RabbitmqAdapter(vhost.url, QueueSpec("a", "a.dead"), SETTINGS)
    sender.publish(OutgoingMessage(Target.WORK, b"{}", {KEY: "k"}))
    spec = QueueSpec("a", DEAD)
    worker = RabbitmqAdapter(f"{vhost.url}?management={rabbitmq.management_url}", spec, SETTINGS)

    def found(adapter: RabbitmqAdapter, spec: QueueSpec) -> list[Finding]:
        return [finding for finding in adapter.findings(spec) if "gives up" in finding.what]

    (finding,) = found(worker, spec)
    assert finding.what.startswith(
        "When the broker gives up a job of 'a', it moves the job to queue 'a.dead', but `steadyworker dead` reads"
    )
    assert finding.remedy.startswith("set dead_letter_queue = 'a.dead' on the Worker")
    assert found(sender, QueueSpec("a", "a.dead")) == []
    for adapter in (sender, worker):
        adapter.stop(5)
