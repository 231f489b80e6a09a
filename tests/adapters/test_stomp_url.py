"""What the URLs of ActiveMQ say besides what all do (tests/network/test_url.py), and which of them name one broker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from steadyworker import config
from steadyworker.adapter import QueueSpec, Settings
from steadyworker.backends.opening import former_identity, namespace_of
from steadyworker.clock import Times
from steadyworker.errors import ConfigError
from steadyworker.ledger.memory import MemoryLedger
from steadyworker.names import NAMESPACE
from steadyworker.network.url import Address
from steadyworker.runner.consumer_audit import registered_name
from steadyworker.testing.clock import FakeClock
from steadyworker_stomp import StompAdapter
from steadyworker_stomp.url import HEARTBEAT, BrokerUrl, parse_url

SPEC = QueueSpec("exports", "exports.dead")


def adapter(hosts: str, scheme: str = "stomp") -> StompAdapter:
    return StompAdapter(f"{scheme}://{hosts}", SPEC, Settings())


# --- What a URL says --------------------------------------------------------------------------------------------------


def test_a_url_without_anything_is_the_broker_of_this_host_without_a_login() -> None:
    assert parse_url("stomp://localhost") == BrokerUrl((Address("localhost", 61613),), None, "", None, HEARTBEAT)
    assert parse_url("stomp+ssl://localhost").addresses == (Address("localhost", 61612),)


def test_everything_that_a_url_can_say() -> None:
    found = parse_url("stomp://us%40er:p%3Aw@one:7000,two?heartbeat=5&dialect=artemis&dlq=lost.letters")
    assert found.addresses == (Address("one", 7000), Address("two", 61613))
    assert (found.user, found.password, found.heartbeat) == ("us@er", "p:w", 5)
    assert (found.dialect, found.dlq) == ("artemis", "lost.letters")


@pytest.mark.parametrize(
    ("option", "moved_to"),
    [("", None), ("?dlq=lost", "lost"), ("?dlq=DLQ.{queue}", "DLQ.exports"), ("?dlq=DLQ.%7Bqueue%7D", "DLQ.exports")],
)
def test_the_brokers_dead_letter_queue_can_be_one_of_each_work_queue(option: str, moved_to: str | None) -> None:
    assert parse_url(f"stomp://h{option}").moved_to("exports") == moved_to


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("stomp://h/vhost", "no path in the broker's URL, got '/vhost'"),
        ("stomp://h?dialect=rabbitmq", "dialect to be classic or artemis in the broker's URL, got 'rabbitmq'"),
        ("stomp://h?dialekt=classic", "did you mean dialect?"),
        ("stomp://h?management=off", "'management'"),
        ("stomp://bob:a%0Ab@h", "without control characters"),
        ("stomp://bo%00b:ab@h", "without control characters"),
        ("stomps://h", "something else"),
    ],
)
def test_what_is_wrong_is_named(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert says in str(caught.value)
    assert "a\nb" not in str(caught.value)


def test_a_path_of_slashes_alone_is_none() -> None:
    assert parse_url("stomp://h/") == parse_url("stomp://h")


# --- Which URLs name one broker ---------------------------------------------------------------------------------------


def test_the_hosts_name_the_broker_in_any_order_with_any_login_and_option() -> None:
    same = ["b,a", "a,b", "a:61613,b", "bob:secret@b:61613,a?heartbeat=5"]
    assert {adapter(hosts).identity() for hosts in same} == {"a:61613,b:61613"}


@pytest.mark.parametrize("hosts", ["a", "b,a", "[::1]:7000,broker-1.example,10.0.0.1"])
def test_the_identity_can_be_set_as_namespace(hosts: str) -> None:
    assert NAMESPACE.problem(adapter(hosts).identity()) is None


@pytest.mark.parametrize("hosts", ["a", "a,c", "c,b", "a:7000", "x@b"])
def test_another_list_that_shares_a_host_may_be_the_same_broker(hosts: str) -> None:
    """Another port of a host too: it can be the same broker's listener for TLS."""
    assert adapter(hosts).may_have_been("a:61613,b:61613")
    assert adapter(hosts, "stomp+ssl").may_have_been("a:61613,b:61613")


@pytest.mark.parametrize("hosts", ["c", "ab", "c,d", "[::1]"])
def test_a_list_that_shares_no_host_is_another_broker(hosts: str) -> None:
    assert not adapter(hosts).may_have_been("a:61613,b:61613")
    assert adapter("[::1]").may_have_been("[::1]:7000,a:61613")


def test_a_list_that_shares_a_host_with_that_of_living_workers_is_refused_with_the_namespace(tmp_path: Path) -> None:
    """Otherwise the ledger would have the jobs of one queue under two names, and each could run twice."""
    ledger = MemoryLedger(FakeClock(), Times())
    options = config.load({"state_dir": tmp_path}, os.environ, tmp_path)
    first, second, other = adapter("a,b"), adapter("b,c"), adapter("c,d")
    assert namespace_of(first, options, ledger, "exports") == "a:61613,b:61613"
    ledger.register("owner", "host", [registered_name("a:61613,b:61613", "exports")])
    assert former_identity(second, options, ledger, "exports") == "a:61613,b:61613"
    with pytest.raises(ConfigError, match="--namespace 'a:61613,b:61613'"):
        namespace_of(second, options, ledger, "exports")
    assert namespace_of(other, options, ledger, "exports") == "c:61613,d:61613"
    named = config.load({"state_dir": tmp_path, "namespace": "a:61613,b:61613"}, os.environ, tmp_path)
    assert namespace_of(second, named, ledger, "exports") == "a:61613,b:61613"


def test_the_list_of_all_hosts_as_namespace_serves_processes_that_reach_the_broker_in_several_ways(
    tmp_path: Path,
) -> None:
    """Through a proxy, whoever is first."""
    ledger = MemoryLedger(FakeClock(), Times())
    everything = "mq:61613,proxy:7000"
    options = config.load({"state_dir": tmp_path, "namespace": everything}, os.environ, tmp_path)
    reached = [adapter("proxy:7000"), adapter("mq", "stomp+ssl"), adapter("mq")]
    assert [namespace_of(each, options, ledger, "exports") for each in reached] == [everything] * 3
    with pytest.raises(ConfigError, match="belong since their first use"):
        namespace_of(adapter("other"), options, ledger, "exports")
