"""Many messages at each broker: how much they cost, and what a sender knows when the connection is cut in the middle of a batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from steadyworker import BrokerUnavailable, Client, JobState, NewJob, SendError
from steadyworker.backends import questions
from steadyworker.backends.opening import namespace_of, open_adapter_for, open_ledger
from steadyworker.config.resolve import Options, load
from steadyworker.ledger.base import Claimed, JobId
from steadyworker.ledger.lease import registered_name
from steadyworker.outcome import Counters
from tests.brokers.place import Ability, Place
from tests.brokers.rabbitmq import Vhost
from tests.faults.link import Link
from tests.faults.proxy import Proxy
from tests.support.deliveries import received
from tests.support.ledgers import make_ledger

JOBS = [NewJob({"text": "x" * 1_000}, f"k-{number}") for number in range(1_000)]
KEYS = [job.key for job in JOBS if job.key]


@pytest.fixture
def queue(place: Place) -> Iterator[str]:
    name = place.queue("jobs")
    place.make_queue(name)
    yield name
    place.drain()


def arrived(place: Place) -> list[str]:
    """The keys of all messages that are there, but not the first one, which made the connection."""
    return [key for message in place.drain() if (key := str(message.headers["sw-job-key"])) != "before"]


@pytest.mark.needs(
    Ability.REDELIVERS_AT_ONCE
)  # the adapters that publish batches, and send nothing again by themselves
@pytest.mark.parametrize("after", [1_000, 300_000, 800_000], ids=["first", "middle", "second batch"])
def test_each_key_of_a_cut_batch_is_confirmed_unknown_or_unsent_and_that_is_true(
    place: Place, queue: str, after: int
) -> None:
    with Proxy(place.address()) as proxy, Client(place.url(through=proxy)) as client:
        client.send(queue, {}, key="before")  # the queue is prepared, and the connection is open
        for link in proxy.links:
            link.after(after, "up", Link.cut)
        with pytest.raises(SendError) as caught:
            client.send_many(queue, JOBS)
        error = caught.value
        assert sorted([*error.confirmed, *error.unknown, *error.unsent]) == sorted(KEYS)
        assert error.unknown
        there = arrived(place)
        assert len(there) == len(set(there))
        assert set(error.confirmed) <= set(there) <= {*error.confirmed, *error.unknown}
        again = [job for job in JOBS if job.key not in error.confirmed]
        assert client.send_many(queue, again) == [job.key for job in again]
        assert sorted(arrived(place)) == sorted(job.key or "" for job in again)


def test_a_thousand_messages_arrive_once_each(place: Place, queue: str, tmp_path: Path) -> None:
    with Client(place.url()) as client:
        client.send(queue, {}, key="before")
        assert client.send_many(queue, JOBS) == KEYS
    options = load({"broker": place.url(), "state_dir": str(tmp_path)}, {}, tmp_path)
    keys = [each.headers["sw-job-key"] for each in received(options, queue, 1 + len(KEYS))]
    assert sorted(keys) == sorted(["before", *KEYS])


@pytest.mark.needs(Ability.REDELIVERS_AT_ONCE)  # the adapters that publish batches
def test_a_thousand_messages_need_a_round_trip_for_each_batch_and_not_for_each_message(
    place: Place, queue: str
) -> None:
    """At 0.5 s for each round trip, a thousand calls of `send` would take 500 s."""
    with Proxy(place.address()) as proxy, Client(place.url(through=proxy)) as client:
        client.send(queue, {}, key="before")
        proxy.change(("down",), delay=0.5)
        began = time.monotonic()
        client.send_many(queue, [NewJob({}, key) for key in KEYS])
        took = time.monotonic() - began
    assert 1 < took < 100


class TestWhileTheBrokerIsAway:
    """The ledger knows the job and its namespace; the page that asks must not wait for the broker."""

    @pytest.fixture
    def options(self, vhost: Vhost, tmp_path: Path) -> Options:
        options = load({"broker": vhost.url, "state_dir": str(tmp_path)}, {}, tmp_path)
        make_ledger(options)
        with closing(open_ledger(options)) as ledger:
            adapter = open_adapter_for("exports", options)
            try:
                namespace = namespace_of(adapter, options, ledger, "exports")
            finally:
                adapter.stop(5)
            ledger.register("host/boot/1", "host", [registered_name(namespace, "exports")])
            id_ = JobId(namespace, "exports", "k")
            assert ledger.claim(Claimed(id_, None, "host/boot/1", 0, b"d" * 32, Counters()))
        return options

    def away(self, options: Options, url: str) -> Client:
        return Client(url, ledger=options.ledger)

    def test_a_refused_connection_holds_up_neither_a_status_nor_a_cancel(self, options: Options) -> None:
        with self.away(options, "amqp://127.0.0.1:1/") as client:
            assert client.status("exports", "k").state is JobState.RUNNING
            assert client.cancel("exports", "k", "wrong month") is JobState.RUNNING
            unknown = client.status("exports", "other")
        assert unknown.state is JobState.UNKNOWN
        assert "127.0.0.1" in unknown.reason
        with closing(open_ledger(options)) as ledger:
            ((row, _),) = ledger.jobs()
        assert row.cancel_reason == "wrong month"

    def test_a_silent_broker_delays_one_status_by_seconds_and_no_later_one(
        self, options: Options, vhost: Vhost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(questions, "WITHIN", 0.5)
        with Proxy(vhost.url) as proxy, self.away(options, proxy.through(vhost.url)) as client:
            proxy.silent()
            assert client.status("exports", "k").state is JobState.RUNNING
            monkeypatch.setattr(questions, "WITHIN", 600.0)  # a second wait would end the test
            assert client.status("exports", "k").state is JobState.RUNNING
            assert client.cancel("exports", "k") is JobState.RUNNING
            assert proxy.connections == 1

    def test_two_namespaces_of_one_queue_are_an_error_that_names_the_setting(self, options: Options) -> None:
        with closing(open_ledger(options)) as ledger:
            ledger.bind("elsewhere", "exports", "elsewhere")
        with (
            self.away(options, "amqp://127.0.0.1:1/") as client,
            pytest.raises(BrokerUnavailable, match="knows 2 namespaces: set --namespace"),
        ):
            client.status("exports", "k")

    def test_the_setting_of_the_namespace_decides_between_two(self, options: Options, tmp_path: Path) -> None:
        with closing(open_ledger(options)) as ledger:
            ledger.bind("elsewhere", "exports", "elsewhere")
            (namespace,) = {name for name, _ in ledger.bindings()} - {"elsewhere"}
        flags = {"broker": "amqp://127.0.0.1:1/", "ledger": options.ledger, "namespace": namespace}
        with Client.configured(load(flags, {}, tmp_path)) as client:
            assert client.status("exports", "k").state is JobState.RUNNING

    def test_a_queue_that_the_ledger_does_not_have_is_an_error(self, options: Options) -> None:
        with (
            self.away(options, "amqp://127.0.0.1:1/") as client,
            pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1"),
        ):
            client.cancel("reports", "k")
        with closing(open_ledger(options)) as ledger:
            assert len(list(ledger.jobs())) == 1

    def test_a_send_with_again_needs_the_broker(self, options: Options) -> None:
        with self.away(options, "amqp://127.0.0.1:1/") as client, pytest.raises(SendError) as caught:
            client.send("exports", {}, key="k", again=True)
        assert caught.value.unsent == ("k",)


def test_a_waiting_message_at_a_broker_that_shows_none_is_unknown_with_the_reason(vhost: Vhost, tmp_path: Path) -> None:
    options = load({"broker": vhost.url, "state_dir": str(tmp_path)}, {}, tmp_path)
    make_ledger(options)
    with Client.configured(options) as client:
        client.send("exports", {}, key="k")
        status = client.status("exports", "k")
    assert status.state is JobState.UNKNOWN
    assert "This broker cannot show the messages of a queue without delivering them." in status.reason
