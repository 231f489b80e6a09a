"""The embedded queue counts its messages exactly, whoever held them, and a browse shows them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steadyworker.adapter import Browsed, Delivered, Delivery, Depth, QueueSpec, Settings, Signal, Unbrowsed
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Target
from steadyworker.errors import BrokerUnavailable
from steadyworker.testing.clock import FakeClock
from steadyworker_sqlite import SqliteAdapter
from steadyworker_sqlite.store import Store

SPEC = QueueSpec("exports", "exports.dead", concurrency=4)
EMPTY = Depth(ready=0, delayed=0, unacked=0, dead=0, consumers=0)
Eventually = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.db"


@pytest.fixture
def sender(path: Path) -> Iterator[SqliteAdapter]:
    adapter = SqliteAdapter(path, SPEC, Settings())
    yield adapter
    adapter.stop(5)


@pytest.fixture
def worker(path: Path) -> Iterator[tuple[SqliteAdapter, list[Delivery]]]:
    """A started adapter, and its deliveries."""
    deliveries: list[Delivery] = []

    def receive(signal: Signal) -> None:
        if isinstance(signal, Delivered):
            deliveries.append(signal.delivery)

    adapter = SqliteAdapter(path, SPEC, Settings())
    adapter.start(receive)
    yield adapter, deliveries
    adapter.stop(5)


def send(adapter: SqliteAdapter, key: str, to: Target = Target.WORK, delay: float = 0.0) -> None:
    adapter.publish(OutgoingMessage(to, b"{}", {KEY: key}, delay, message_id=key))


def browsed(adapter: SqliteAdapter) -> list[Browsed]:
    found = list(adapter.browse(5))
    messages = [each for each in found if isinstance(each, Browsed)]
    assert found == messages
    return messages


def numbers(depth: Depth) -> tuple[int | None, ...]:
    return depth.ready, depth.delayed, depth.unacked, depth.dead, depth.consumers


def test_every_number_is_exact(
    sender: SqliteAdapter, worker: tuple[SqliteAdapter, list[Delivery]], eventually: Eventually
) -> None:
    adapter, deliveries = worker
    for key in "abcde":
        send(sender, key)
    for key in "fg":
        send(sender, key, Target.LATER, 3600)
    for key in "hij":
        send(sender, key, Target.DEAD)
    adapter.prefetch(2)
    eventually(lambda: len(deliveries) == 2)
    assert numbers(sender.depth()) == (3, 2, 2, 3, 1)
    with sender.dead_letters() as letters:
        assert len(list(letters)) == 3
        assert numbers(sender.depth()) == (3, 2, 2, 3, 1), "a letter that a reader holds is in the queue"
    adapter.prefetch(0)
    adapter.settle(deliveries[0], Settle.ACK)
    adapter.settle(deliveries[1], Settle.RELEASE)
    eventually(lambda: numbers(sender.depth()) == (4, 2, 0, 3, 0))
    assert sender.depth().why == {}


def test_the_messages_of_a_dead_consumer_are_ready(
    path: Path, sender: SqliteAdapter, worker: tuple[SqliteAdapter, list[Delivery]], eventually: Eventually
) -> None:
    """Without another worker process, no process releases them; the number is right all the same, and stays as it is."""
    adapter, deliveries = worker
    send(sender, "a")
    adapter.prefetch(1)
    eventually(lambda: deliveries)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE consumers SET presence = 'of-a-killed-process'")
        before = db.execute("SELECT seq, consumer, count FROM deliveries").fetchall()
        assert numbers(sender.depth()) == (1, 0, 0, 0, 0)
        assert [each.message_id for each in browsed(sender)] == ["a"]
        assert db.execute("SELECT seq, consumer, count FROM deliveries").fetchall() == before


def test_times_are_right_while_messages_wait(path: Path) -> None:
    clock = FakeClock()
    adapter = SqliteAdapter(path, SPEC, Settings(clock=clock))
    send(adapter, "late", Target.LATER, 100)
    send(adapter, "soon", Target.LATER, 30)
    sent_at = clock.wall()
    found = adapter.depth()
    assert found.next_due == pytest.approx(sent_at + 30)
    assert (found.oldest_age, found.why) == (None, {})
    clock.advance(40)
    found = adapter.depth()
    assert found.next_due == pytest.approx(sent_at + 100)
    assert found.oldest_age == pytest.approx(10)
    assert numbers(found) == (1, 1, 0, 0, 0)
    soon, late = browsed(adapter)
    assert soon == Browsed({KEY: "soon"}, "soon", sent_at)
    assert late.due == pytest.approx(sent_at + 100)
    assert replace(late, due=None) == Browsed({KEY: "late"}, "late", sent_at)
    adapter.stop(5)


def test_a_held_message_is_not_browsed(
    sender: SqliteAdapter, worker: tuple[SqliteAdapter, list[Delivery]], eventually: Eventually
) -> None:
    adapter, deliveries = worker
    for key in "abc":
        send(sender, key)
    adapter.prefetch(1)
    eventually(lambda: deliveries)
    assert [each.headers[KEY] for each in browsed(sender)] == ["b", "c"]


def test_other_queues_of_the_file_are_not_counted(path: Path, sender: SqliteAdapter) -> None:
    send(sender, "a")
    other = SqliteAdapter(path, QueueSpec("imports", "exports.dead"), Settings())
    send(other, "b")
    send(other, "c", Target.DEAD)
    assert numbers(sender.depth()) == (1, 0, 0, 1, 0)
    assert [each.headers[KEY] for each in browsed(sender)] == ["a"]
    other.stop(5)


def test_depth_creates_no_file_and_reports_a_removed_one(path: Path, sender: SqliteAdapter) -> None:
    assert sender.depth() == EMPTY
    why = f"there is no broker file at {path}: correct --broker, or send a first job"
    assert list(sender.browse(5)) == [Unbrowsed(why)], "a misspelt path is no empty queue"
    assert list(path.parent.iterdir()) == []
    send(sender, "a")
    path.unlink()
    for ask in (sender.depth, lambda: sender.browse(5)):
        with pytest.raises(BrokerUnavailable, match="removed"):
            ask()
    assert not path.exists()


def test_a_question_leaves_an_empty_file_as_it_is(path: Path) -> None:
    """The file can be a copy that has just begun, or another program's."""
    path.touch()
    asker = SqliteAdapter(path, SPEC, Settings(create=False))
    try:
        assert asker.depth() == EMPTY
        assert (asker.exists(), asker.consumers(), asker.findings(SPEC)) == (False, 0, [])
        with pytest.raises(BrokerUnavailable, match="no such file"):
            asker.identity()
        with pytest.raises(BrokerUnavailable, match="no such file"), asker.dead_letters():
            pass
        assert path.stat().st_size == 0
        asker.publish(OutgoingMessage(Target.WORK, b"", {}))
        assert asker.exists()
    finally:
        asker.stop(5)


def test_a_large_queue_is_counted_by_its_index(path: Path, sender: SqliteAdapter) -> None:
    """The plan of the counts has no scan of the table of messages, whose pages hold the bodies."""
    send(sender, "a")
    seen: list[str] = []
    with closing(Store(path, FakeClock(), create=False)) as store:
        store._db.set_trace_callback(seen.append)
        store.depth("exports", "exports.dead", [1], 0)
        store._db.set_trace_callback(None)
        (counts,) = seen
        plan = [row[3] for row in store._db.execute(f"EXPLAIN QUERY PLAN {counts}")]
    assert [step for step in plan if step.startswith("SCAN m")] == []
    assert [step for step in plan if "messages" in step and "COVERING" not in step and "PRIMARY KEY" not in step] == []
