"""The broker, which the page asks in the background: its numbers, its silence, its return, and what the questions cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from steadyworker import Client, Job, Worker
from steadyworker.adapter import Adapter
from steadyworker.backends.opening import open_adapter_for
from steadyworker.clock import SystemClock, Times
from steadyworker.config.resolve import Options, load
from steadyworker.dashboard import app, asking
from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.application import application, opens
from steadyworker.dashboard.asking import BrokerAsker
from steadyworker.dashboard.cli import dashboard as command
from steadyworker.depth import Depth
from steadyworker.errors import BrokerUnavailable
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.lease import registered_name
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.brokers.place import OwnBroker, Place
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.cli.night import SECRET
from tests.conftest import Eventually
from tests.dashboard.kit import request

QUEUE = "exports"


class Exports(Worker[dict[str, str]]):
    queue = QUEUE
    dead_letter_queue = "exports.lost"
    time_limit = "1h"

    def handle(self, job: Job[dict[str, str]]) -> None:
        raise AssertionError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "EVERY", 0.05)


class BrokerOfTest:
    """An adapter that counts its questions, and waits while `free` is not set."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.error: Exception | None = None
        self.threads: list[threading.Thread] = []
        self.stopped = False

    def identity(self) -> str:
        return "shop"

    def depth(self) -> Depth:
        self.threads.append(threading.current_thread())
        self.free.wait()
        if self.error is not None:
            raise self.error
        return Depth(ready=7, consumers=2)

    def stop(self, within: float) -> None:
        del within
        self.stopped = True
        self.free.set()


def ledger_of(*namespaces: str) -> MemoryLedger:
    ledger = MemoryLedger(SystemClock(), Times())
    for namespace in namespaces:
        ledger.bind(namespace, QUEUE, namespace)
    return ledger


@contextmanager
def asked(
    ledger: Ledger, options: Options, open_adapter: Callable[[str], Adapter]
) -> Iterator[tuple[BrokerAsker, Any]]:
    """An asker, and the page that shows its numbers."""
    asker = BrokerAsker(options, ledger, SystemClock(), open_adapter)
    try:
        yield asker, application(ledger, checked_access(), asker=asker)
    finally:
        asker.close()


def options_of(tmp_path: Path, broker: str) -> Options:
    return load({"broker": broker, "state_dir": str(tmp_path)}, {}, tmp_path)


@contextmanager
def asked_at(place: Place, ledger: MemoryLedger, tmp_path: Path) -> Iterator[tuple[BrokerAsker, Any]]:
    """The page beside a real broker, whose work queue has three messages."""
    options = options_of(tmp_path, place.url())
    adapter = open_adapter_for(QUEUE, options, create=False)
    place.make_queue(QUEUE)
    for number in range(3):
        place.publish(QUEUE, b"{}", key=f"key-{number}")
    ledger.bind(adapter.identity(), QUEUE, adapter.identity())
    with asked(ledger, options, partial(open_adapter_for, options=options, create=False)) as page:
        yield page
    adapter.stop(1.0)


def ready(page: Any) -> str:
    """Return the words from the number of ready messages on."""
    words = request(page, "/queues").words
    return words[words.index("Measured exports") :]


def test_the_page_has_the_numbers_of_the_sqlite_queue_now(tmp_path: Path, eventually: Eventually) -> None:
    options = options_of(tmp_path, f"sqlite:{tmp_path}/broker.db")
    with Client(broker=options.broker, ledger=options.ledger) as client:
        client.send(Exports, {}, key="one")
        client.send(Exports, {}, key="later", delay=3600)
        name = open_adapter_for(QUEUE, options, create=False).identity()
        ledger = ledger_of(name)
        with asked(ledger, options, partial(open_adapter_for, options=options, create=False)) as (_, page):
            assert "never" in ready(page)  # the first page waits for no reply
            eventually(lambda: "exports embedded queue 1 " in ready(page))
            client.send(Exports, {}, key="two")
            eventually(lambda: "exports embedded queue 2 " in ready(page))
            assert request(page, "/queues").words.count("no new numbers") == 0


def test_the_page_has_the_numbers_of_rabbitmq_now(
    rabbitmq_place: RabbitmqPlace, tmp_path: Path, eventually: Eventually
) -> None:
    ledger = ledger_of()
    with asked_at(rabbitmq_place, ledger, tmp_path) as (asker, page):
        ((name, _),) = ledger.bindings()
        eventually(lambda: f"exports {name} 3 " in ready(page))
        with rabbitmq_place.consumer(QUEUE) as consumer:
            assert consumer.take(10.0)
            ledger.register("worker-1", "host-1", [registered_name(name, QUEUE)])
            # The consumers stand beside the worker processes: one of each, so each consumer is explained.
            eventually(lambda: f"exports {name} 2 " in ready(page) and " 0 1 1 " in ready(page))
        assert asker.state().problem == ""
        assert rabbitmq_place.vhost.password not in request(page, "/queues").text


def test_a_broker_that_stops_and_starts_under_the_page(
    rabbitmq_place: RabbitmqPlace, own_broker: OwnBroker, tmp_path: Path, eventually: Eventually
) -> None:
    with asked_at(rabbitmq_place, ledger_of(), tmp_path) as (asker, page):
        eventually(lambda: " 3 " in ready(page))
        assert "no new numbers" not in request(page, "/queues").words
        own_broker.kill()
        eventually(lambda: "The page has no new numbers of the broker" in request(page, "/queues").words)
        assert " 3 " in ready(page)  # the last numbers, with their age
        own_broker.start()
        eventually(lambda: ready(page) and asker.state().problem == "", within=60.0)
        assert "no new numbers" not in request(page, "/queues").words


def test_a_broker_that_stalls_delays_no_page(
    rabbitmq_place: RabbitmqPlace,
    own_broker: OwnBroker,
    tmp_path: Path,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "LATE", 0.5)
    with asked_at(rabbitmq_place, ledger_of(), tmp_path) as (asker, page):
        eventually(lambda: " 3 " in ready(page))
        own_broker.freeze()
        eventually(lambda: "no new numbers" in request(page, "/queues").words)
        began = time.monotonic()
        for _ in range(20):
            assert " 3 " in ready(page)
        assert time.monotonic() - began < 5.0
        own_broker.thaw()
        eventually(lambda: ready(page) and asker.state().problem == "", within=60.0)


def test_one_thread_asks_for_all_viewers_and_no_page_waits(
    tmp_path: Path, eventually: Eventually, monkeypatch: Any
) -> None:
    monkeypatch.setattr(asking, "LATE", 0.05)
    broker = BrokerOfTest()
    broker.free.clear()
    options = options_of(tmp_path, f"amqp://app:{SECRET}@broker/")
    with asked(ledger_of("shop"), options, lambda _: cast(Adapter, broker)) as (_, page):
        for _ in range(5):
            assert "exports shop unknown" in ready(page)
        eventually(lambda: ": The present question has had no reply for" in request(page, "/queues").words)
        assert len(broker.threads) == 1
        assert SECRET not in request(page, "/queues").text
        broker.free.set()
        eventually(lambda: "exports shop 7 " in ready(page))
        assert set(broker.threads) == {broker.threads[0]}
        broker.error = BrokerUnavailable(f"Expected the broker, got refused by amqp://app:{SECRET}@broker/.")
        eventually(lambda: "The page has no new numbers of the broker" in request(page, "/queues").words)
        assert "exports shop 7 " in ready(page)
        assert SECRET not in request(page, "/queues").text
    assert broker.stopped
    broker.threads[0].join(10.0)
    assert not broker.threads[0].is_alive()


def test_the_page_asks_only_while_a_person_reads_it(tmp_path: Path, eventually: Eventually, monkeypatch: Any) -> None:
    broker = BrokerOfTest()
    options = options_of(tmp_path, "amqp://broker/")
    with asked(ledger_of("shop"), options, lambda _: cast(Adapter, broker)) as (_, page):
        request(page, "/actions")  # a page without numbers of a broker asks for none
        assert broker.threads == []
        monkeypatch.setattr(asking, "VIEWED_WITHIN", 0.0)
        request(page, "/queues")
        eventually(lambda: broker.threads and not broker.threads[0].is_alive())
        assert len(broker.threads) == 1
        request(page, "/")
        eventually(lambda: len(broker.threads) == 2)
        assert broker.threads[1] is not broker.threads[0]


def test_the_queue_of_another_broker_keeps_the_numbers_of_its_worker_processes(
    tmp_path: Path, eventually: Eventually
) -> None:
    broker, ledger = BrokerOfTest(), ledger_of("other", "shop")
    ledger.facts.record_depth("other", QUEUE, Depth(ready=30))
    with asked(ledger, options_of(tmp_path, "amqp://broker/"), lambda _: cast(Adapter, broker)) as (asker, page):
        eventually(lambda: "exports shop 7 " in request(page, "/queues").words)
        assert "exports other 30 " in request(page, "/queues").words
        assert asker.state().problem == ""


def test_a_refused_queue_is_a_problem_and_not_a_zero(tmp_path: Path, eventually: Eventually) -> None:
    class GoneError(BrokerUnavailable):
        """An error about one queue."""

    broker = BrokerOfTest()
    broker.error = GoneError("Expected queue 'exports', got: no majority.")
    with asked(ledger_of("shop"), options_of(tmp_path, "amqp://broker/"), lambda _: cast(Adapter, broker)) as (
        asker,
        page,
    ):
        eventually(lambda: "Expected queue 'exports', got: no majority" in request(page, "/queues").words)
        assert "exports shop unknown" in ready(page)
        assert asker.state().problem == ""


@pytest.mark.parametrize("broker", [None, "sqlite:broker.db"])
def test_only_a_named_broker_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: str | None) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = SqliteLedger(tmp_path / "ledger.db", clock=SystemClock(), times=Times(), create=True)
    ledger.bind("shop", QUEUE, "shop")
    ledger.close()
    page = app(ledger=f"sqlite:{tmp_path}/ledger.db", broker=broker)
    assert ("Broker sqlite:" in request(page, "/queues").words) == (broker is not None)
    assert not (tmp_path / "broker.db").exists()


def test_the_adapter_is_that_of_the_worker_whom_the_command_names(tmp_path: Path) -> None:
    """Only a Worker has the name of its own dead-letter queue."""
    options = load({"broker": f"sqlite:{tmp_path}/broker.db", "state_dir": str(tmp_path)}, {}, tmp_path)
    opened: list[object] = []

    def open_adapter(spec: object, options: Options, *, create: bool) -> object:
        del options
        opened.append((getattr(spec, "dead_letter_queue", spec), create))
        return object()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("steadyworker.dashboard.application.open_adapter_for", open_adapter)
        opened_as = opens(command._named((f"{__name__}:Exports",), options), options)
        opened_as(QUEUE)
        opened_as("another")
    assert opened == [("exports.lost", False), ("another", False)]
