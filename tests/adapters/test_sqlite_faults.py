"""The broker file is locked, gone, replaced, damaged, another program's: each is named, nothing is lost, and back by itself."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from steadyworker.adapter import Connected, Delivered, Lost, QueueSpec, Settings, Signal, Unreachable
from steadyworker.clock import SystemClock
from steadyworker.delivery import KEY, Delivery, OutgoingMessage, Redelivered, Settle, Target
from steadyworker.errors import BrokerUnavailable, PublishFailed, StaleDelivery, Unsettled
from steadyworker.testing.clock import FakeClock
from steadyworker_sqlite import SqliteAdapter, session, store
from steadyworker_sqlite.errors import Unusable, translated

pytestmark = pytest.mark.long

SPEC = QueueSpec("exports", "exports.dead")
Eventually = Callable[..., Any]
Kind = TypeVar("Kind")


class Worker:
    """One adapter, started, and all signals that it sent."""

    def __init__(self, path: Path, silence: float = 1.5, **settings: Any) -> None:
        self.signals: list[Signal] = []
        self.adapter = SqliteAdapter(path, SPEC, Settings(**settings), silence)
        self.adapter.prefetch(1)
        self.adapter.start(self.signals.append)

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [signal for signal in list(self.signals) if isinstance(signal, kind)]

    def delivery(self, eventually: Eventually, number: int = 1) -> Delivery:
        found: list[Delivered] = eventually(lambda: self.all(Delivered)[number - 1 : number])
        return found[0].delivery


def work(key: str = "k-1", to: Target = Target.WORK, delay: float = 0.0) -> OutgoingMessage:
    return OutgoingMessage(to, b"{}", {KEY: key}, delay)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.db"


@pytest.fixture
def worker(path: Path) -> Iterator[Worker]:
    worker = Worker(path)
    yield worker
    worker.adapter.stop(5)


@pytest.fixture
def passive(path: Path) -> Iterator[Worker]:
    """A worker that declares nothing, with a message: it makes no empty file where ours was."""
    sender = SqliteAdapter(path, SPEC, Settings())
    sender.publish(work())
    sender.stop(5)
    worker = Worker(path, topology="check")
    yield worker
    worker.adapter.stop(5)


PARTS = ("", "-wal", "-shm")


def move(path: Path, to: Path, suffixes: Iterable[str]) -> None:
    """Move the file and what belongs to it, in this order."""
    to.parent.mkdir(exist_ok=True)
    for suffix in suffixes:
        Path(f"{path}{suffix}").rename(f"{to}{suffix}")


@pytest.fixture
def locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], sqlite3.Connection]]:
    """Lock the file as a frozen process would."""
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:

        def lock() -> sqlite3.Connection:
            db.execute("BEGIN IMMEDIATE")
            return db

        yield lock


def test_two_that_make_the_file_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """SQLite fails at once, and does not wait, when two ask for a write-ahead log at the same moment: one in forty times here."""

    def make(path: Path, together: threading.Barrier) -> None:
        together.wait()
        store.Store(path, SystemClock(), create=True).close()

    with ThreadPoolExecutor(2) as pool:
        for number in range(200):
            together = threading.Barrier(2)
            for made in [pool.submit(make, tmp_path / f"broker-{number}.db", together) for _ in range(2)]:
                made.result()


def test_a_locked_file_confirms_nothing_and_heals(
    locked: Callable[[], sqlite3.Connection], worker: Worker, eventually: Eventually
) -> None:
    worker.adapter.publish(work())
    delivery = worker.delivery(eventually)
    db = locked()
    with pytest.raises(PublishFailed, match="another process has kept it locked"):
        worker.adapter.publish(work("k-2"))
    with pytest.raises(Unsettled, match="locked"):
        worker.adapter.settle(delivery, Settle.ACK)
    eventually(lambda: len(worker.all(Lost)) == len(worker.all(Unreachable)) == 1)
    with pytest.raises(StaleDelivery):
        worker.adapter.settle(delivery, Settle.ACK)
    assert len(worker.all(Unreachable)) == 1, "a cause is reported once, not with each try"
    db.execute("ROLLBACK")
    again = worker.delivery(eventually, 2)
    assert again.epoch == worker.all(Connected)[-1].epoch == 2
    assert again.headers[KEY] == "k-1"
    worker.adapter.settle(again, Settle.ACK)


def test_a_file_that_was_removed_is_missed_and_used_again_when_it_returns(
    path: Path, passive: Worker, eventually: Eventually
) -> None:
    delivery = passive.delivery(eventually)
    away = path.parent / "away" / path.name
    move(path, away, PARTS)
    with pytest.raises(Unsettled, match="removed, replaced or emptied"):
        passive.adapter.settle(delivery, Settle.RELEASE)
    eventually(lambda: passive.all(Unreachable))
    assert "it was removed: restore it" in passive.all(Unreachable)[0].cause
    with pytest.raises(PublishFailed, match="it was removed: restore it"):
        passive.adapter.publish(work("k-2"))
    move(away, path, reversed(PARTS))
    assert passive.delivery(eventually, 2).headers[KEY] == "k-1"


def test_what_is_written_to_an_unlinked_file_is_not_confirmed(
    path: Path, worker: Worker, eventually: Eventually
) -> None:
    """An unlinked file would accept every message and keep none."""
    worker.adapter.publish(work("k-1"))
    worker.delivery(eventually)
    before = worker.adapter.identity()
    unlink(path)
    with pytest.raises(PublishFailed, match="removed, replaced or emptied"):
        worker.adapter.publish(work("k-2"))
    with pytest.raises(PublishFailed, match="it was removed: restore it"):
        worker.adapter.publish(work("k-3"))
    eventually(lambda: worker.all(Unreachable))
    assert "it was removed: restore it" in worker.all(Unreachable)[0].cause
    with pytest.raises(BrokerUnavailable, match="it was removed: restore it"):
        worker.adapter.identity()
    assert not path.exists()
    assert before


def test_what_is_written_to_a_file_that_was_emptied_is_not_confirmed(
    path: Path, worker: Worker, eventually: Eventually
) -> None:
    """A program that puts another content into the file, such as `cp`, empties it first, and keeps its inode."""
    worker.adapter.publish(work("k-1"))
    worker.delivery(eventually)
    os.truncate(path, 0)
    with pytest.raises(PublishFailed, match="removed, replaced or emptied"):
        worker.adapter.publish(work("k-2"))
    eventually(lambda: worker.all(Lost))


@pytest.mark.parametrize("empty", [False, True], ids=["missing", "empty"])
@pytest.mark.parametrize("act", ["publish", "identity", "dead letters", "start"])
def test_a_file_that_was_removed_is_never_made_again_by_any_process(
    path: Path, worker: Worker, eventually: Eventually, act: str, empty: bool
) -> None:
    """Nor in an empty file at its place, which may be a copy that has just begun."""
    eventually(lambda: worker.all(Connected))
    unlink(path)
    if empty:
        path.touch()
    with pytest.raises(PublishFailed):
        worker.adapter.publish(work())
    eventually(lambda: worker.all(Unreachable))
    what = "the file is empty" if empty else "it was removed"
    other = SqliteAdapter(path, SPEC, Settings())
    (finding,) = other.findings(SPEC)
    assert finding.what.endswith(f"but {what}.")
    signals: list[Signal] = []
    try:
        if act == "start":
            other.start(signals.append)
            (gone,) = eventually(lambda: [each for each in list(signals) if isinstance(each, Unreachable)])
            assert f"{what}: restore it" in gone.cause
            assert gone.final
        else:
            with pytest.raises((BrokerUnavailable, PublishFailed), match=rf"{what}: .* remove broker\.db\.consumers"):
                {"publish": lambda: other.publish(work()), "identity": other.identity}.get(
                    act, lambda: open_letters(other)
                )()
    finally:
        other.stop(5)
    assert path.stat().st_size == 0 if empty else not path.exists()


def test_another_broker_at_the_path_is_refused_until_the_own_one_is_back(
    path: Path, tmp_path: Path, worker: Worker, eventually: Eventually
) -> None:
    """The namespace of every job is the identity of the broker, so another broker must not have its place."""
    eventually(lambda: worker.all(Connected))
    another = SqliteAdapter(tmp_path / "another" / "broker.db", SPEC, Settings())
    another.publish(work("k-other"))
    another.stop(5)
    away = tmp_path / "away" / path.name
    move(path, away, PARTS)
    move(tmp_path / "another" / "broker.db", path, [""])  # its only process closed it, so it has no other parts
    eventually(lambda: [each for each in worker.all(Unreachable) if "got the broker" in each.cause])
    assert worker.all(Delivered) == []
    unlink(path)
    move(away, path, reversed(PARTS))
    worker.adapter.publish(work("k-1"))
    assert worker.delivery(eventually).headers[KEY] == "k-1"


def test_the_work_to_list_dead_letters_grows_with_their_number_and_not_with_its_square(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine, which no busy neighbour changes; four times the letters, not sixteen times the work."""

    def steps(count: int) -> int:
        adapter = SqliteAdapter(tmp_path / f"{count}.db", SPEC, Settings())
        adapter.publish(work(to=Target.DEAD))
        with closing(sqlite3.connect(adapter.path)) as db, db:
            db.execute(
                "INSERT INTO messages (queue, message_id, headers, due, due_wall, sent_at, body)"
                " SELECT queue, message_id, headers, due - i * 1e-6, due_wall, sent_at, body FROM messages,"
                " (WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT i FROM n)",
                (count,),
            )
        counted = 0

        def step() -> int:
            nonlocal counted
            counted += 1
            return 0

        with adapter.dead_letters() as letters:
            letters._store._db.set_progress_handler(step, 100)
            assert sum(1 for _ in letters) == count
        adapter.stop(5)
        return counted

    assert steps(2000) < 6 * steps(500)


def ends_of_a_batch(adapter: SqliteAdapter, eventually: Eventually) -> list[BaseException]:
    """Let three threads publish in one batch, and return what each raised; none of them may hang."""
    ends: list[BaseException] = []

    def send(key: str) -> None:
        try:
            adapter.publish(work(key))
        except BaseException as raised:  # noqa: BLE001 - a KeyboardInterrupt too
            ends.append(raised)

    publisher = adapter._publisher
    threads = [threading.Thread(target=send, args=(f"k-{number}",), daemon=True) for number in (1, 2, 3)]
    with publisher._using:  # until all of them wait, so that they are one batch
        for thread in threads:
            thread.start()
        eventually(lambda: len(publisher._waiting) == 3)
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    return ends


@pytest.mark.parametrize(
    "error", [RuntimeError("odd"), KeyboardInterrupt(), MemoryError()], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("at", ["put", "peers"])
def test_an_error_in_the_thread_that_commits_for_others_leaves_none_waiting(
    path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually, error: BaseException, at: str
) -> None:
    adapter = SqliteAdapter(path, SPEC, Settings())
    adapter.publish(work("k-0"))
    real, failures = getattr(store.Store, at), [error]

    def fails_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(store.Store, at, fails_once)
    ends = ends_of_a_batch(adapter, eventually)
    assert [raised for raised in ends if raised is error] == [error], "its own thread raises what it is"
    others = [raised for raised in ends if raised is not error]
    assert [type(raised) for raised in others] == [PublishFailed, PublishFailed]
    assert all(raised.__cause__ is error for raised in others)
    adapter.publish(work("k-4"))
    adapter.stop(5)


def test_a_connection_that_cannot_be_closed_after_an_error_leaves_none_waiting(
    path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    adapter = SqliteAdapter(path, SPEC, Settings())
    adapter.publish(work("k-0"))

    def fails(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(store.Store, "put", fails)
        broken.setattr(store.Store, "close", fails)
        ends = ends_of_a_batch(adapter, eventually)
    assert sorted(type(raised).__name__ for raised in ends) == ["MemoryError", "PublishFailed", "PublishFailed"]
    adapter.publish(work("k-4"))
    adapter.stop(5)


def test_the_file_shrinks_when_its_messages_are_gone(path: Path, worker: Worker, eventually: Eventually) -> None:
    eventually(lambda: worker.all(Connected))
    for number in range(400):
        worker.adapter.publish(OutgoingMessage(Target.DEAD, b"x" * 60_000, {KEY: f"k-{number}"}))
    with worker.adapter.dead_letters() as letters:
        for letter in letters:
            letters.drop(letter)

    def pages() -> int:
        with closing(sqlite3.connect(path)) as db:
            return int(db.execute("PRAGMA page_count").fetchone()[0])

    eventually(lambda: pages() * 4096 < 10 << 20)  # of 24 MB


def unlink(path: Path) -> None:
    for part in path.parent.glob(f"{path.name}*"):
        if part.is_file():
            part.unlink()


def open_letters(adapter: SqliteAdapter) -> None:
    with adapter.dead_letters() as letters:
        list(letters)


@pytest.mark.parametrize("content", [b"PK\x03\x04" + b"not a database" * 100, None])
def test_another_programs_file_is_refused_for_good(path: Path, content: bytes | None, eventually: Eventually) -> None:
    """At the first connect that is final: the process ends with 78 instead of waiting for ever."""
    if content is None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE accounts (id INTEGER)")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    worker = Worker(path)
    gone = eventually(lambda: worker.all(Unreachable))
    assert gone[0].final
    assert "name another path" in gone[0].cause
    with pytest.raises(PublishFailed, match="name another path"):
        worker.adapter.publish(work())
    with pytest.raises(BrokerUnavailable, match="name another path"):
        worker.adapter.identity()
    assert [finding.level for finding in worker.adapter.findings(SPEC)] == ["error"]
    worker.adapter.stop(5)
    assert path.read_bytes() == before


@pytest.mark.parametrize("schema", [1, 3], ids=["the one before", "a newer one"])
def test_another_schema_is_refused(path: Path, schema: int) -> None:
    sender = SqliteAdapter(path, SPEC, Settings())
    sender.publish(work())
    sender.stop(5)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA user_version = {schema}")
    with pytest.raises(
        BrokerUnavailable, match=f"schema 2 at .*, got {schema}: finish its jobs with .*, or name another"
    ):
        SqliteAdapter(path, SPEC, Settings()).identity()


def test_a_damaged_file_is_waited_for(path: Path, passive: Worker, eventually: Eventually) -> None:
    """What was good once may be again (a restore that is under way): not final."""
    delivery = passive.delivery(eventually)
    away = path.parent / "away" / path.name
    move(path, away, PARTS)
    path.write_bytes(b"\xff" * 20_000)
    with pytest.raises(Unsettled, match="removed, replaced or emptied"):
        passive.adapter.settle(delivery, Settle.RELEASE)
    gone = eventually(lambda: passive.all(Unreachable))
    assert "not a database" in gone[0].cause
    assert not gone[0].final
    with pytest.raises(PublishFailed, match="not a database"):
        passive.adapter.publish(work("k-2"))
    path.unlink()
    move(away, path, reversed(PARTS))
    assert passive.delivery(eventually, 2).headers[KEY] == "k-1"


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        ("full", "free space"),
        ("read-only", "write permission"),
        ("not a database", "name another path"),
        ("no such folder", "create its folder"),
    ],
)
def test_an_error_of_sqlite_names_its_remedy(tmp_path: Path, make: str, remedy: str) -> None:
    path = tmp_path / "broker.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (x)")

    def fail() -> None:
        match make:
            case "full":
                with closing(sqlite3.connect(path)) as db:
                    db.execute("PRAGMA max_page_count = 2")
                    db.execute("INSERT INTO t VALUES (zeroblob(100000))")
            case "read-only":
                with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
                    db.execute("INSERT INTO t VALUES (1)")
            case "not a database":
                path.write_bytes(b"x" * 5000)
                with closing(sqlite3.connect(path)) as db:
                    db.execute("SELECT * FROM t")
            case _:
                sqlite3.connect(tmp_path / "none" / "broker.db")

    with pytest.raises(BrokerUnavailable, match=remedy) as raised, translated(path):
        fail()
    assert str(path) in str(raised.value)
    assert isinstance(raised.value.__cause__, sqlite3.Error)
    assert isinstance(raised.value, Unusable) == (make == "not a database")


def test_another_process_s_publish_rings_the_bell(
    path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """A waiting consumer does not poll for messages: it receives one although it never asks."""
    monkeypatch.setattr(session, "SEARCH_EVERY", 3600.0)
    worker = Worker(path, silence=3600.0 * 6)
    eventually(lambda: worker.all(Connected))
    sender = SqliteAdapter(path, SPEC, Settings())
    sender.publish(work())
    worker.delivery(eventually)
    sender.publish(work("k-2", Target.LATER, delay=0.2))
    worker.adapter.settle(worker.delivery(eventually), Settle.ACK)
    assert worker.delivery(eventually, 2).headers[KEY] == "k-2"
    sender.stop(5)
    worker.adapter.stop(5)


def test_a_machine_that_slept_evicts_nobody(path: Path, eventually: Eventually) -> None:
    """Everyone was silent then, and no one is dead."""
    clock = FakeClock()
    workers = [Worker(path, silence=30.0, clock=clock) for _ in range(3)]
    eventually(lambda: all(worker.all(Connected) for worker in workers))
    clock.sleep(3600)
    for _ in range(3):
        for worker in workers:
            worker.adapter.prefetch(1)  # wakes its I/O thread
        clock.advance(1)
    sender = workers[0].adapter
    sender.publish(work())
    eventually(lambda: any(worker.all(Delivered) for worker in workers))
    eventually(lambda: sender.consumers() == 3)  # a busy machine may wake an I/O thread late
    bad = [signal for worker in workers for signal in worker.signals if isinstance(signal, (Lost, Unreachable))]
    assert [signal for signal in bad if "database is locked" not in signal.cause] == []  # a busy disk is no eviction
    for worker in workers:
        worker.adapter.stop(5)


def test_a_delay_and_the_flag_survive_a_reboot(
    path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """A due time is kept by the wall clock then, and whether a message was handed over is no longer certain."""
    clock = FakeClock()
    sender = SqliteAdapter(path, SPEC, Settings(clock=clock))
    sender.publish(work("later", Target.LATER, delay=600))
    sender.publish(work("now"))
    sender.stop(5)
    rebooted = FakeClock(wall=clock.wall() + 500)
    monkeypatch.setattr(store, "boot_id", lambda: "another boot")
    worker = Worker(path, clock=rebooted)
    first = worker.delivery(eventually)
    assert (first.headers[KEY], first.redelivered) == ("now", Redelivered.UNKNOWN)
    rebooted.advance(99)
    worker.adapter.settle(first, Settle.ACK)
    assert len(worker.all(Delivered)) == 1
    rebooted.advance(2)
    worker.adapter.publish(work("new"))
    second = worker.delivery(eventually, 2)
    assert (second.headers[KEY], second.redelivered) == ("later", Redelivered.UNKNOWN)
    worker.adapter.settle(second, Settle.ACK)
    assert worker.delivery(eventually, 3).redelivered is Redelivered.NO
    worker.adapter.stop(5)


def test_settling_in_the_sink_is_refused_instead_of_waiting_for_ever(path: Path, eventually: Eventually) -> None:
    adapter = SqliteAdapter(path, SPEC, Settings())
    raised: list[RuntimeError] = []

    def sink(signal: Signal) -> None:
        if isinstance(signal, Delivered):
            try:
                adapter.settle(signal.delivery, Settle.ACK)
            except RuntimeError as error:
                raised.append(error)

    adapter.prefetch(1)
    adapter.start(sink)
    adapter.publish(work())
    eventually(lambda: raised)
    adapter.stop(5)


def test_starting_and_stopping_leaves_nothing_behind(path: Path, eventually: Eventually) -> None:
    def things() -> tuple[set[threading.Thread], int]:
        gc.collect()
        return set(threading.enumerate()), len(list(Path("/proc/self/fd").iterdir()))

    def once() -> None:
        worker = Worker(path)
        worker.adapter.publish(work())
        worker.adapter.settle(worker.delivery(eventually), Settle.ACK)
        with worker.adapter.dead_letters() as dead:
            assert list(dead) == []
        worker.adapter.stop(5)

    once()
    threads, descriptors = things()
    for _ in range(20):
        once()
    now = things()
    # What an earlier test has left may end meanwhile: fewer is fine.
    assert now[0] <= threads
    assert now[1] <= descriptors
    assert list(path.with_name("broker.db.consumers").iterdir()) == []
