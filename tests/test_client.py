"""What a sender is promised: confirmed before it returns, the same key the same job, safe in threads and forks."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest

from steadyworker.adapter import Adapter, Browsed, Depth, OutgoingMessage, Target, Unbrowsed
from steadyworker.backends.batches import publish_all
from steadyworker.backends.connections import job_queue
from steadyworker.backends.opening import namespace_of, open_adapter_for, open_ledger
from steadyworker.client import Client, JobStatus, NewJob, QueueSearch, message
from steadyworker.config.resolve import Options, load
from steadyworker.delivery import KEY, Delivery
from steadyworker.errors import (
    BadPayload,
    BrokerUnavailable,
    ConfigError,
    NotPublished,
    PublishFailed,
    SendError,
    SteadyWorkerError,
    TargetFull,
    UnknownQueue,
)
from steadyworker.job import Job
from steadyworker.ledger.base import Claimed, Ending, JobId, KeptMessage, Ledger, Moving, Row, State, Verdict
from steadyworker.outcome import Counters, JobState
from steadyworker.worker import Worker
from steadyworker_sqlite import SqliteAdapter
from tests.support.deliveries import received
from tests.support.ledgers import make_ledger


@dataclass
class Request:
    merchant: str


class Exports(Worker[Request, int]):
    queue = "exports"
    time_limit = 60

    def handle(self, job: Job[Request, int]) -> None:
        """Never run here: these tests only send."""


class Orders(Worker[bytes]):
    queue = "orders"
    time_limit = 60
    key_header = "order-id"

    def handle(self, job: Job[bytes]) -> None:
        """Never run here: these tests only send."""


@dataclass(frozen=True)
class Place:
    """A broker and a ledger on disk."""

    options: Options

    @property
    def urls(self) -> tuple[str, str]:
        return self.options.broker, self.options.ledger

    def client(self) -> Client:
        return Client.configured(self.options)

    def received(self, queue: str, count: int) -> list[Delivery]:
        """The next deliveries of a queue, acknowledged."""
        return received(self.options, queue, count)

    @contextmanager
    def job(self, queue: str, key: str, round_: int = 0) -> Iterator[tuple[Ledger, JobId]]:
        ledger = open_ledger(self.options)
        adapter = open_adapter_for(queue, self.options)
        try:
            yield ledger, JobId(namespace_of(adapter, self.options, ledger, queue), queue, key, round_)
        finally:
            adapter.stop(5)
            ledger.close()

    def run(self, queue: str, key: str, then: Callable[[Ledger, Row], object] = lambda ledger, row: None) -> None:
        """A run of the job, as far as `then` takes it."""
        with self.job(queue, key) as (ledger, id_):
            row = ledger.claim(Claimed(id_, None, "host/boot/1", 0, b"d" * 32, Counters()))
            assert row is not None
            then(ledger, row)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A place at which a worker process has been, so that it has a ledger."""
    options = load({"state_dir": str(tmp_path)}, {}, tmp_path)
    make_ledger(options)
    return Place(options)


def test_a_sent_job_is_there_when_send_returns(place: Place) -> None:
    with place.client() as client:
        key = client.send(Exports, Request("m-17"), key="export-m-17", headers={"tenant": "north"})
    (delivery,) = place.received("exports", 1)
    assert key == "export-m-17"
    assert delivery.body == b'{"merchant":"m-17"}'
    assert delivery.headers == {"sw-job-key": "export-m-17", "tenant": "north"}


def test_each_job_without_a_key_gets_one_of_its_own(place: Place) -> None:
    with place.client() as client:
        keys = {client.send(Exports, Request("m-17")) for _ in range(3)}
    assert len(keys) == 3
    assert {delivery.headers["sw-job-key"] for delivery in place.received("exports", 3)} == keys


@pytest.mark.parametrize("key", ["../../etc/passwd", "Ä", "k" * 201, "two words", ".hidden"])
def test_an_odd_key_is_replaced_by_its_digest(place: Place, key: str) -> None:
    with place.client() as client:
        first, second = (client.send(Exports, Request("m-17"), key=key) for _ in range(2))
        assert client.status(Exports, key).state is JobState.QUEUED
    assert first == second
    assert first.startswith("h-")
    assert len(first) == 66


def test_a_queue_can_be_named_without_its_code(place: Place) -> None:
    with place.client() as client:
        client.send("exports", {"merchant": "m-17"}, key="a")
        client.send("exports", b"raw", key="b")
    assert [delivery.body for delivery in place.received("exports", 2)] == [b'{"merchant":"m-17"}', b"raw"]


def test_a_delayed_job_comes_no_earlier(place: Place) -> None:
    with place.client() as client:
        client.send(Exports, Request("later"), key="later", delay=timedelta(seconds=1))
        client.send(Exports, Request("now"), key="now")
    assert [delivery.headers["sw-job-key"] for delivery in place.received("exports", 2)] == ["now", "later"]


@pytest.mark.parametrize(
    ("payload", "field"), [({"merchant": 17}, "merchant"), ({}, "merchant"), ({"merchant": "m", "month": 6}, "month")]
)
def test_a_payload_that_the_worker_does_not_declare_is_refused(
    place: Place, payload: Mapping[str, object], field: str
) -> None:
    with place.client() as client, pytest.raises(BadPayload, match=field):
        client.send(Exports, payload)  # type: ignore[misc]


def test_a_payload_over_the_limit_is_refused(place: Place) -> None:
    with place.client() as client, pytest.raises(BadPayload, match="1048576"):
        client.send(Orders, bytes(2 << 20))


class TestAWorkersOwnKeyHeader:
    def test_carries_the_key(self, place: Place) -> None:
        with place.client() as client:
            client.send(Orders, b"x", key="o-9")
        assert place.received("orders", 1)[0].headers == {"order-id": "o-9", "sw-job-key": "o-9"}

    def test_is_the_key_when_only_it_is_given(self, place: Place) -> None:
        with place.client() as client:
            assert client.send(Orders, b"x", headers={"order-id": "o-9"}) == "o-9"

    def test_cannot_give_another_key(self, place: Place) -> None:
        with place.client() as client, pytest.raises(ValueError, match="o-9"):
            client.send(Orders, b"x", key="o-8", headers={"order-id": "o-9"})


@pytest.mark.parametrize(
    "wrong",
    [
        *({"key": ""}, {"delay": -1}, {"delay": float("nan")}, {"delay": "soon"}, {"delay": timedelta(days=4000)}),
        *({"headers": {"sw-hop": "1"}}, {"headers": {"n": 1}}),
    ],
)
def test_what_cannot_be_is_refused(place: Place, wrong: dict[str, object]) -> None:
    with place.client() as client, pytest.raises((ValueError, TypeError), match="Expected"):
        client.send("exports", {}, **wrong)  # type: ignore[arg-type]


ODD = os.fsdecode(b"caf\xe9.csv")
"""A file name that is not UTF-8: it has a lone surrogate, which no broker and no database takes."""


@pytest.mark.parametrize(
    "odd", [{"headers": {"file": ODD}}, {"headers": {ODD: "x"}}, {"key": ODD}, {"headers": {"order-id": ODD}}]
)
def test_a_lone_surrogate_is_refused_before_anything_is_sent(place: Place, odd: dict[str, Any]) -> None:
    with place.client() as client:
        with pytest.raises(ValueError, match=r"valid Unicode, got .* has a lone surrogate at 3, .*: decode the bytes"):
            client.send(Orders, b"x", **odd)
        assert client.send(Orders, b"x", key="the first")
    assert len(place.received("orders", 1)) == 1


@pytest.mark.parametrize("name", ["no such/queue", f"exports-{ODD}"])
def test_a_queue_name_that_cannot_be_is_refused(place: Place, name: str) -> None:
    with place.client() as client, pytest.raises(ConfigError, match="queue name"):
        client.send(name, {})


class TestAgain:
    def test_is_round_0_for_a_key_that_nobody_knows(self, place: Place) -> None:
        with place.client() as client:
            client.send(Exports, Request("m"), key="k", again=True)
        assert "sw-round" not in place.received("exports", 1)[0].headers

    @pytest.mark.parametrize("to", ["exports", Exports])
    def test_creates_a_missing_broker_file_as_any_other_send(self, place: Place, tmp_path: Path, to: Any) -> None:
        new = Place(replace(place.options, broker=f"sqlite:{tmp_path}/new.db"))
        with new.client() as client:
            assert client.send(to, {"merchant": "m"} if to == "exports" else Request("m"), key="k", again=True) == "k"
        assert [each.headers["sw-job-key"] for each in new.received("exports", 1)] == ["k"]

    def test_is_one_round_further_than_the_last(self, place: Place) -> None:
        place.run("exports", "k", lambda ledger, row: ledger.done(row.token))
        with place.client() as client:
            client.send(Exports, Request("m"), key="k", again=True)
        assert place.received("exports", 1)[0].headers["sw-round"] == "1"


class TestStatus:
    def test_of_a_message_that_waits_is_queued(self, place: Place) -> None:
        with place.client() as client:
            client.send(Exports, Request("m"), key="k")
            assert client.status(Exports, "k") == JobStatus("k", JobState.QUEUED)

    def test_of_a_message_that_is_due_later_has_its_time(self, place: Place) -> None:
        due = datetime.now(UTC) + timedelta(hours=2)
        with place.client() as client:
            client.send(Exports, Request("m"), key="k", delay=due)
            status = client.status(Exports, "k")
        assert status.state is JobState.DELAYED
        assert status.due_at == pytest.approx(due.timestamp(), abs=5)

    def test_of_an_unknown_key_gives_what_was_searched(self, place: Place) -> None:
        with place.client() as client:
            client.send(Exports, Request("m"), key="other")
            status = client.status(Exports, "k")
        why = "The ledger has no record of this job, and a search of 1 message in its queue has not found it."
        assert status == JobStatus("k", JobState.UNKNOWN, reason=why)

    @pytest.mark.parametrize(("ready", "of"), [(7, ", of 9,"), (None, "")])
    def test_of_a_key_that_a_broker_did_not_show_names_what_was_not_read(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, ready: int | None, of: str
    ) -> None:
        """The message can be there all the same, and how many messages there are is said if the broker counts them."""

        def shows_a_part(self: SqliteAdapter, limit: int) -> Iterator[Browsed | Unbrowsed]:
            yield Browsed({KEY: "other"})
            yield Unbrowsed("8 messages are hidden")
            yield Unbrowsed("Expo shows no delayed messages; read its web page")

        monkeypatch.setattr(SqliteAdapter, "browse", shows_a_part)
        monkeypatch.setattr(SqliteAdapter, "depth", lambda self: Depth(ready=ready, delayed=2))
        with place.client() as client:
            client.send(Exports, Request("m"), key="other")
            status, search = client.status(Exports, "k"), client.find(Exports, "k")
        stopped = "The search has not read the whole queue: 8 messages are hidden; Expo shows no delayed messages; read its web page."
        assert search == QueueSearch(None, 1, stopped, 9 if ready else None)
        why = f"The ledger has no record of this job, and a search of 1 message{of} in its queue has not found it. {stopped}"
        assert status == JobStatus("k", JobState.UNKNOWN, reason=why)

    def test_of_a_workers_own_key_header_is_found_in_the_queue(self, place: Place) -> None:
        with place.client() as client:
            client.send("orders", b"x", headers={"order-id": "o-9"})
            assert client.status(Orders, "o-9") == JobStatus("o-9", JobState.QUEUED)

    def test_of_a_retry_has_the_time_at_which_it_is_due(self, place: Place) -> None:
        def fail(ledger: Ledger, row: Row) -> None:
            assert ledger.moving(row.token, Verdict(Moving.RETRY, "no disk", Counters(attempts=1), 600, "OSError"))
            assert ledger.moved(row.token, 600)

        place.run("exports", "k", fail)
        with place.client() as client:
            status = client.status(Exports, "k")
        assert (status.state, status.attempts, status.reason) == (JobState.RETRYING, 1, "no disk")
        assert status.due_at == pytest.approx(time.time() + 600, abs=20)

    def test_is_awaited_and_so_is_a_cancel(self, place: Place) -> None:
        place.run("exports", "k")

        async def both() -> None:
            async with place.client() as client:
                assert (await client.astatus(Exports, "k")).state is JobState.RUNNING
                assert await client.acancel(Exports, "k", "wrong month") is JobState.RUNNING

        asyncio.run(both())
        with place.job("exports", "k") as (ledger, id_):
            row = ledger.read(id_)
        assert row is not None
        assert row.cancel_reason == "wrong month"

    def test_of_a_run_under_way(self, place: Place) -> None:
        place.run("exports", "k")
        with place.client() as client:
            status = client.status(Exports, "k")
        assert (status.key, status.state, status.attempts) == ("k", JobState.RUNNING, 0)
        assert status.started_at is not None
        assert status.ended_at is None

    def test_of_a_job_that_is_done_has_its_result_as_plain_data(self, place: Place) -> None:
        place.run("exports", "k", lambda ledger, row: ledger.done(row.token, Ending("done", result=b'{"rows":17}')))
        place.run("exports", "none", lambda ledger, row: ledger.done(row.token, Ending("done")))
        with place.client() as client:
            statuses = [client.status(Exports, key) for key in ("k", "none")]
        assert [(status.state, status.result) for status in statuses] == [
            (JobState.DONE, {"rows": 17}),
            (JobState.DONE, None),
        ]

    def test_is_that_of_the_last_round(self, place: Place) -> None:
        place.run("exports", "k", lambda ledger, row: ledger.done(row.token))
        with place.job("exports", "k", 1) as (ledger, id_):
            assert ledger.claim(Claimed(id_, None, "host/boot/1", 0, b"d" * 32, Counters())) is not None
        with place.client() as client:
            status = client.status("exports", "k")
        assert status.state is JobState.RUNNING


class TestCancel:
    def test_marks_a_run_under_way(self, place: Place) -> None:
        place.run("exports", "k")
        with place.client() as client:
            assert client.cancel(Exports, "k", "wrong month") is JobState.RUNNING
        with place.job("exports", "k") as (ledger, id_):
            row = ledger.read(id_)
        assert row is not None
        assert row.cancel_reason == "wrong month"

    def test_reaches_a_job_that_has_not_come_yet(self, place: Place) -> None:
        with place.client() as client:
            assert client.cancel(Exports, "k", "wrong month") is None
        with place.job("exports", "k") as (ledger, id_):
            row = ledger.read(id_)
        assert row is not None
        assert (row.state, row.cancel_reason, row.body_sha256) == (State.INTERRUPTED, "wrong month", None)

    @pytest.mark.parametrize("ask", ["cancel", "status", "send again"])
    def test_an_unknown_queue_gets_no_record_by_a_question(self, place: Place, ask: str) -> None:
        with place.job("exports", "k") as (ledger, id_), place.client() as client:
            if ask == "cancel":
                with pytest.raises(UnknownQueue, match=r"got 'exprts': did you mean exports\?"):
                    client.cancel("exprts", "k", "wrong month")
            elif ask == "status":
                status = client.status("exprts", "k")
                assert status.state is JobState.UNKNOWN
                assert "got 'exprts': did you mean exports?" in status.reason
            else:
                assert client.send("exprts", {}, key="k", again=True) == "k"
            assert list(ledger.queues(id_.namespace)) == ["exports"]
            assert list(ledger.jobs()) == []

    def test_a_queue_that_only_has_messages_is_known(self, place: Place) -> None:
        with place.client() as client:
            client.send("exports", {}, key="k")
            assert client.cancel("exports", "k", "wrong month") is None

    def test_may_have_any_reason_and_keeps_no_password(self, place: Place) -> None:
        place.run("exports", "k")
        with place.client() as client:
            client.cancel(Exports, "k", f"{ODD}: amqp://joe:hunter2@host\0" + "x" * 5000)
        with place.job("exports", "k") as (ledger, id_):
            row = ledger.read(id_)
            assert row is not None
            assert row.cancel_reason is not None
            assert row.cancel_reason.startswith(r"caf\udce9.csv: amqp://joe:***@host\x00xxx")
            assert len(row.cancel_reason) == 2000

    def test_leaves_a_job_that_ended_as_it_is(self, place: Place) -> None:
        place.run("exports", "k", lambda ledger, row: ledger.done(row.token))
        with place.client() as client:
            assert client.cancel(Exports, "k", "too late") is JobState.DONE
            status = client.status(Exports, "k")
        assert status.state is JobState.DONE


def test_asend_is_send_awaited(place: Place) -> None:
    async def both() -> list[str]:
        with place.client() as client:
            first = client.asend(Exports, Request("a"), key="a")
            second = client.asend("exports", {"merchant": "b"}, key="b")
            return list(await asyncio.gather(first, second))

    assert asyncio.run(both()) == ["a", "b"]
    assert len(place.received("exports", 2)) == 2


def test_threads_share_one_client(place: Place) -> None:
    with place.client() as client:
        senders = [
            threading.Thread(target=lambda n=n: [client.send(Exports, Request("m"), key=f"{n}-{i}") for i in range(10)])
            for n in range(8)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    keys = {delivery.headers["sw-job-key"] for delivery in place.received("exports", 80)}
    assert len(keys) == 80


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_connects_for_itself(place: Place) -> None:
    """A pre-forking web server: parent and child both send through the client that the parent had used already."""
    with place.client() as client:
        client.send(Exports, Request("before"), key="before")
        child = multiprocessing.get_context("fork").Process(
            target=lambda: client.send(Exports, Request("child"), key="child")
        )
        child.start()
        child.join(20)
        client.send(Exports, Request("parent"), key="parent")
    assert child.exitcode == 0
    keys = [delivery.headers["sw-job-key"] for delivery in place.received("exports", 3)]
    assert keys == ["before", "child", "parent"]


def test_a_closed_client_reports_that_it_is_closed(place: Place) -> None:
    client = place.client()
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.send(Exports, Request("m"))


def test_making_a_client_opens_nothing(place: Place) -> None:
    before = sorted(place.options.state_dir.rglob("*"))
    place.client().close()
    assert sorted(place.options.state_dir.rglob("*")) == before


@pytest.mark.parametrize("to", ["exports", Exports])
def test_a_question_to_a_mistyped_path_creates_no_broker(tmp_path: Path, to: Any) -> None:
    options = load({"broker": f"sqlite:{tmp_path}/brokr.db", "state_dir": str(tmp_path / "state")}, {}, tmp_path)
    make_ledger(replace(options, broker="amqp://127.0.0.1:1/"))
    missing = rf"{tmp_path}/brokr\.db, got: no such file: start a worker, or send a message, to create it"
    with Client.configured(options) as client:
        for ask in (client.status, client.cancel, client.retry):
            with pytest.raises(BrokerUnavailable, match=missing):
                ask(to, "k")
        why = f"there is no broker file at {tmp_path}/brokr.db: correct --broker, or send a first job"
        stopped = f"The search has not read the whole queue: {why}."
        assert client.find(to, "k") == QueueSearch(None, 0, stopped, 0)
        assert [each.name for each in tmp_path.iterdir()] == ["state"]
        client.send(to, Request("m"), key="k")
        assert client.status(to, "k").state is JobState.QUEUED


def test_a_mistyped_path_does_not_hide_the_ledgers_record(place: Place) -> None:
    place.run("exports", "k")
    mistyped = load({"broker": "sqlite:brokr.db", "ledger": place.options.ledger}, {}, place.options.state_dir)
    with Client.configured(mistyped) as client:
        assert client.status(Exports, "k").state is JobState.RUNNING
        assert "no such file" in client.status(Exports, "other").reason


def test_clients_leave_nothing_open(place: Place) -> None:
    def once() -> None:
        with place.client() as client:
            client.send(Exports, Request("m"))
            client.status(Exports, "k")

    once()
    descriptors, threads = len(list(Path("/proc/self/fd").iterdir())), set(threading.enumerate())
    for _ in range(10):
        once()
    # What an earlier test has left may end meanwhile: fewer is fine.
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
    assert set(threading.enumerate()) <= threads


def test_a_broker_that_cannot_be_reached_is_a_send_error_with_the_key(tmp_path: Path) -> None:
    """Not confirmed is said, and with which key to send again."""
    (tmp_path / "file").touch()
    place = Place(load({"broker": f"sqlite:{tmp_path}/file/broker.db", "state_dir": str(tmp_path)}, {}, tmp_path))
    with place.client() as client, pytest.raises(SendError, match="k-1"):
        client.send(Exports, Request("m"), key="k-1")


def test_a_cancel_needs_no_reason(place: Place) -> None:
    place.run("exports", "k")
    with place.client() as client:
        client.cancel(Exports, "k")
        status = client.status(Exports, "k")
    assert status.state is JobState.RUNNING


def test_a_client_is_an_asynchronous_context_too(place: Place) -> None:
    async def send() -> Client:
        async with place.client() as client:
            assert await client.asend(Exports, Request("a"), key="k") == "k"
        return client

    closed = asyncio.run(send())
    with pytest.raises(RuntimeError, match="an open Client"):
        closed.send(Exports, Request("a"))


@pytest.mark.parametrize(
    ("to", "arguments", "error", "said"),
    [
        (Exports(), {}, TypeError, "got an instance of Exports: pass Exports itself"),
        ("app:Exports", {}, ConfigError, r"got 'app:Exports': pass the class \(`from app import Exports`\)"),
        ("orders\n", {}, ConfigError, r"Expected a queue name .*no control characters"),
        (Exports, {"key": 17}, TypeError, r"a key of text, got 17: write str\(17\)"),
        (Exports, {"key": b"x"}, TypeError, r"a key of text, got b'x': write b'x'\.decode\(\)"),
        (Exports, {"headers": [("a", "b")]}, TypeError, "headers as a mapping.*, got a list"),
        (Exports, {"headers": []}, TypeError, "headers as a mapping.*, got a list"),
        (Orders, {"headers": {"order-id": 17}}, TypeError, "headers of text, got 'order-id': 17"),
        (None, {}, TypeError, "Expected a Worker class or the name of a queue, got None"),
        (Exports, {"delay": "soon"}, ValueError, "a text such as '1h 30m', got 'soon'"),
        (Exports, {"delay": None}, ValueError, "a text such as '1h 30m', got None"),
        (Exports, {"delay": True}, ValueError, "a text such as '1h 30m', got True"),
    ],
)
def test_a_wrong_argument_is_named_with_what_to_pass(
    place: Place, to: Any, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with place.client() as client, pytest.raises(error, match=said):
        client.send(to, Request("a"), **arguments)


def test_a_status_that_waits_for_the_broker_holds_up_no_send(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's identity is asked for once for each queue, and a silent broker does not answer for 20 s."""
    asked, answer = threading.Event(), threading.Event()
    identity = SqliteAdapter.identity

    def slow(self: SqliteAdapter) -> str:
        asked.set()
        assert answer.wait(30)
        return identity(self)

    monkeypatch.setattr(SqliteAdapter, "identity", slow)
    with place.client() as client, ThreadPoolExecutor(2) as pool:
        status = pool.submit(client.status, Exports, "k-1")
        assert asked.wait(30)
        sent = pool.submit(client.send, Exports, Request("a"), key="k-1")
        try:
            assert sent.result(20) == "k-1"
            assert not status.done()
        finally:
            answer.set()
        assert status.result(20).state is JobState.QUEUED


@pytest.mark.parametrize(
    ("key", "error", "said"),
    [
        (17, TypeError, r"a key of text, got 17: write str\(17\)"),
        (b"x", TypeError, r"a key of text, got b'x': write b'x'\.decode\(\)"),
        ("", ValueError, "a key that is not empty"),
        ("a\udce9", ValueError, "a key of valid Unicode"),
    ],
)
def test_a_key_is_checked_alike_when_a_job_is_sent_looked_up_or_cancelled(
    place: Place, key: Any, error: type[Exception], said: str
) -> None:
    with place.client() as client:
        for call in (
            lambda: client.send(Exports, Request("a"), key=key),
            lambda: client.status(Exports, key),
            lambda: client.cancel(Exports, key),
        ):
            with pytest.raises(error, match=said):
                call()
    with closing(open_ledger(place.options)) as ledger:
        assert list(ledger.jobs()) == []


def test_a_delay_may_be_a_text(place: Place) -> None:
    queue = job_queue(Exports, place.options)
    assert message(queue, Request("a"), key="k", delay="1h 30m", headers={}).delay == 5400
    assert message(queue, Request("a"), key="k", delay="60", headers={}).delay == 60


class TestADelayUntilATime:
    def test_is_the_time_that_is_left(self, place: Place) -> None:
        queue, at = job_queue(Exports, place.options), datetime.now(UTC) + timedelta(hours=2)
        for zone in (UTC, timezone(timedelta(hours=-9))):
            sent = message(queue, Request("a"), key="k", delay=at.astimezone(zone), headers={})
            assert sent.delay == pytest.approx(7200, abs=5)
            assert sent.to is Target.LATER

    def test_in_the_past_is_now(self, place: Place) -> None:
        at = datetime.now(UTC) - timedelta(days=1)
        sent = message(job_queue(Exports, place.options), Request("a"), key="k", delay=at, headers={})
        assert (sent.delay, sent.to) == (0, Target.WORK)

    def test_needs_a_time_zone(self, place: Place) -> None:
        naive = datetime(2030, 1, 1, 6, 0)  # noqa: DTZ001 - the mistake
        with place.client() as client, pytest.raises(ValueError, match="a datetime with a time zone, got datetime"):
            client.send(Exports, Request("a"), delay=naive)


class TestSendMany:
    def test_sends_every_job_in_order_with_its_own_key(self, place: Place) -> None:
        jobs = [NewJob(Request(f"m-{n}"), f"k-{n}", headers={"n": str(n)}) for n in range(1_200)]
        with place.client() as client:
            assert client.send_many(Exports, iter(jobs)) == [f"k-{n}" for n in range(1_200)]
        received = place.received("exports", 1_200)
        assert [each.headers for each in received] == [{"sw-job-key": f"k-{n}", "n": str(n)} for n in range(1_200)]
        assert [each.body for each in received[:2]] == [b'{"merchant":"m-0"}', b'{"merchant":"m-1"}']

    def test_of_no_job_sends_nothing(self, place: Place) -> None:
        with place.client() as client:
            assert client.send_many(Exports, []) == []

    def test_is_awaited_in_an_asynchronous_program(self, place: Place) -> None:
        async def send() -> list[str]:
            async with place.client() as client:
                return await client.asend_many(Exports, [NewJob(Request("a")), NewJob(Request("b"), "k")])

        made, given = asyncio.run(send())
        assert [each.headers["sw-job-key"] for each in place.received("exports", 2)] == [made, given]
        assert given == "k"

    def test_of_a_job_that_runs_again_is_one_round_further(self, place: Place) -> None:
        place.run("exports", "k", lambda ledger, row: ledger.done(row.token))
        with place.client() as client:
            client.send_many(Exports, [NewJob(Request("m"), "k", again=True), NewJob(Request("m"), "new", again=True)])
        assert [each.headers.get("sw-round") for each in place.received("exports", 2)] == ["1", None]

    @pytest.mark.parametrize(
        ("job", "error", "said"),
        [
            (NewJob({"merchant": 17}, "k-2"), BadPayload, r"\$\.merchant: expected str"),
            (NewJob(Request("m"), "k-1"), ValueError, "different keys, got 'k-1' twice"),
            (NewJob(Request("m"), ""), ValueError, "a key that is not empty"),
            (NewJob(Request("m"), "k-2", delay="soon"), ValueError, "got 'soon'"),
            (NewJob(Request("m"), "k-2", headers={"sw-hop": "1"}), ValueError, "do not begin with 'sw-'"),
            (NewJob(Request("m" * (2 << 20)), "k-2"), BadPayload, "1048576"),
        ],
    )
    def test_with_a_wrong_job_sends_nothing(
        self, place: Place, job: NewJob[Any], error: type[Exception], said: str
    ) -> None:
        with place.client() as client:
            with pytest.raises(error, match=said):
                client.send_many(Exports, [NewJob(Request("m"), "k-1"), job])
            client.send(Exports, Request("m"), key="the-first")
        assert [each.headers["sw-job-key"] for each in place.received("exports", 1)] == ["the-first"]

    def test_with_a_wrong_header_behind_a_whole_batch_sends_nothing(self, place: Place) -> None:
        """Only the broker's adapter knows the limit of headers."""
        jobs = [NewJob(Request("m"), f"k-{n}", headers={"n": "x" * (70_000 if n == 700 else 1)}) for n in range(1_000)]
        with place.client() as client:
            with pytest.raises(ValueError, match="Expected headers of at most 65536 bytes"):
                client.send_many(Exports, jobs)
            client.send(Exports, Request("m"), key="the-first")
        assert [each.headers["sw-job-key"] for each in place.received("exports", 1)] == ["the-first"]

    def test_of_large_payloads_goes_in_batches_of_a_mebibyte(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes: list[list[int]] = []
        publish_many = SqliteAdapter.publish_many

        def counted(self: SqliteAdapter, messages: Sequence[OutgoingMessage]) -> Sequence[PublishFailed | None]:
            sizes.append([len(each.body) for each in messages])
            return publish_many(self, messages)

        monkeypatch.setattr(SqliteAdapter, "publish_many", counted)
        large = 400_000
        with place.client() as client:
            client.send_many(Orders, [NewJob(bytes(size)) for size in (large, large, large, 1 << 20, 1, 1)])
        assert sizes == [[large, large], [large], [1 << 20], [1, 1]]

    def test_names_each_key_of_a_broken_batch_once(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second of three batches: its first message is confirmed, one is unknown, and the rest were not published."""
        batches: list[int] = []

        def publish_many(self: SqliteAdapter, messages: Sequence[OutgoingMessage]) -> Sequence[PublishFailed | None]:
            batches.append(len(messages))
            if len(batches) == 1:
                return [None] * len(messages)
            return [None, PublishFailed("cut"), *[TargetFull("full")] * (len(messages) - 2)]

        monkeypatch.setattr(SqliteAdapter, "publish_many", publish_many)
        keys = [f"k-{n}" for n in range(1_100)]
        with place.client() as client, pytest.raises(SendError) as caught:
            client.send_many(Exports, [NewJob(Request("m"), key) for key in keys])
        error = caught.value
        assert batches == [500, 500]
        assert error.confirmed == tuple(keys[:501])
        assert error.unknown == ("k-501",)
        assert error.unsent == tuple(keys[502:])
        assert str(error) == (
            "cut Of 1,100 jobs, 501 were sent, 1 may or may not have arrived (k-501), and 598 were not sent "
            "(k-502, k-503, k-504, k-505, k-506, …): send those again with the same keys."
        )

    def test_to_a_broker_that_cannot_be_reached_sends_nothing(self, place: Place) -> None:
        with Client("amqp://127.0.0.1:1/", ledger=place.options.ledger) as client, pytest.raises(SendError) as caught:
            client.send_many("exports", [NewJob({}, "a"), NewJob({}, "b")])
        error = caught.value
        assert (error.confirmed, error.unknown, error.unsent) == ((), (), ("a", "b"))

    def test_by_an_adapter_without_batches_publishes_each_message(self, place: Place) -> None:
        """Such as a third party's adapter."""
        lock, published = threading.Lock(), list[str]()

        class Single:
            def publish(self, message: OutgoingMessage) -> None:
                with lock:
                    published.append(message.headers["sw-job-key"])
                match message.headers["sw-job-key"]:
                    case "k-3":
                        raise PublishFailed("cut")
                    case "k-5":
                        raise ValueError("a header is too long")

        queue = job_queue("exports", place.options)
        batch = [message(queue, {}, key=f"k-{n}", delay=0, headers={}) for n in range(10)]
        results = publish_all(cast(Adapter, Single()), batch)
        assert sorted(published) == [f"k-{n}" for n in range(10)]
        assert {n: type(error) for n, error in enumerate(results) if error} == {3: PublishFailed, 5: NotPublished}


@pytest.mark.parametrize("url", ["amqp://127.0.0.1:1/", "amqp://no-such-host.invalid/"], ids=["refused", "unknown"])
def test_the_error_for_a_broker_that_cannot_be_reached_is_that_the_job_was_not_sent(place: Place, url: str) -> None:
    client = Client(url, ledger=place.options.ledger)
    with client, pytest.raises(SendError, match="The job 'k' was not sent") as raised:
        client.send("exports", {}, key="k")
    assert "may or may not" not in str(raised.value)


def waits(place: Place, delay: float) -> Row:
    """A job that failed once, and waits for its retry; the ledger has kept its message."""
    verdict = Verdict(Moving.RETRY, "ValueError: no", Counters(attempts=1), delay)
    with place.job("exports", "k") as (ledger, id_):
        kept = KeptMessage(b"{}", b"{}")
        row = ledger.claim(Claimed(id_, None, "host/boot/1", 0, b"d" * 32, Counters(), kept))
        assert row is not None
        assert ledger.moving(row.token, verdict)
        assert ledger.moved(row.token, delay)
    return row


def test_a_job_that_waits_is_retried_now_or_at_another_time(place: Place) -> None:
    row = waits(place, 3600.0)
    with place.client() as client:
        client.reschedule(Exports, "k", timedelta(hours=2))
        with closing(open_ledger(place.options)) as ledger:
            later = ledger.read(row.id)
        client.retry(Exports, "k")
        with pytest.raises(SteadyWorkerError, match="The job 'k-7' is not in the ledger: send the job"):
            client.retry(Exports, "k-7")
        with pytest.raises(ValueError, match="Expected a delay"):
            client.reschedule(Exports, "k", -1)
    with closing(open_ledger(place.options)) as ledger:
        now = ledger.read(row.id)
        assert [action.what for action in ledger.facts.actions()] == ["retry", "reschedule"]
    assert later is not None
    assert now is not None
    assert (later.hop, round(later.due_in / 60)) == (row.hop + 1, 120)
    assert (now.hop, now.due_in) == (row.hop + 2, 0.0)
    (delivery,) = received(place.options, "exports", 1)
    assert delivery.headers["sw-hop"] == str(now.hop + 1)
