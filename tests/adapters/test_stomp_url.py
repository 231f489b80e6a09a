"""What the URLs of ActiveMQ express besides what all do (tests/network/test_url.py), and which of them name one broker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.backends.opening import former_identity, name_findings, namespace_of
from steadyworker.clock import Times
from steadyworker.config import resolve as config
from steadyworker.config.resolve import Options
from steadyworker.errors import ConfigError
from steadyworker.ledger.lease import registered_name
from steadyworker.names import NAMESPACE
from steadyworker.network.url import Address
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker_stomp import StompAdapter
from steadyworker_stomp.url import HEARTBEAT, StompUrl, parse_url

SPEC = QueueSpec("exports", "exports.dead")


def adapter(hosts: str, scheme: str = "stomp") -> StompAdapter:
    return StompAdapter(f"{scheme}://{hosts}", SPEC, Settings())


# --- What a URL sets --------------------------------------------------------------------------------------------------


def test_a_url_without_anything_is_the_broker_of_this_host_without_a_login() -> None:
    assert parse_url("stomp://localhost") == StompUrl((Address("localhost", 61613),), None, "", None, HEARTBEAT)
    assert parse_url("stomp+ssl://localhost").addresses == (Address("localhost", 61612),)


def test_everything_that_a_url_can_set() -> None:
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
    ("url", "part"),
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
def test_what_is_wrong_is_named(url: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert part in str(caught.value)
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


# --- The namespace ----------------------------------------------------------------------------------------------------

LIST = "mq:61613,proxy:7000"


class Jobs:
    """A ledger, and worker processes that use it, each at the hosts and with the namespace that a test names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ledger = MemoryLedger(FakeClock(), Times())

    def options(self, namespace: str | None) -> Options:
        return config.load({"state_dir": self._folder, "namespace": namespace}, os.environ, self._folder)

    def namespace(self, reached: StompAdapter, namespace: str | None = None) -> str:
        found = namespace_of(reached, self.options(namespace), self.ledger, "exports")
        assert [*name_findings(reached, self.options(namespace), self.ledger, "exports")] == []
        return found

    def refused(self, reached: StompAdapter, namespace: str | None = None) -> str:
        """Return the refusal, which leaves no binding for the next process."""
        before = self.ledger.queues(namespace or reached.identity())
        with pytest.raises(ConfigError) as raised:
            namespace_of(reached, self.options(namespace), self.ledger, "exports")
        if namespace:
            assert self.ledger.queues(namespace) == before
        return str(raised.value)

    def lives(self, namespace: str) -> None:
        self.ledger.register("owner", "host", [registered_name(namespace, "exports")])

    def dies(self) -> None:
        self.ledger.unregister("owner")


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def test_a_list_that_shares_a_host_with_that_of_living_workers_is_refused_with_the_namespace(jobs: Jobs) -> None:
    """Otherwise the ledger would have the jobs of one queue under two names, and each could run twice."""
    former, second = "a:61613,b:61613", adapter("b,c")
    assert jobs.namespace(adapter("a,b")) == former
    jobs.lives(former)
    assert former_identity(second, jobs.options(None), jobs.ledger, "exports") == former
    assert f"--namespace {former!r}" in jobs.refused(second)
    assert jobs.namespace(adapter("c,d")) == "c:61613,d:61613"
    assert jobs.namespace(second, former) == former


def test_the_list_of_all_hosts_as_namespace_serves_processes_that_reach_the_broker_in_several_ways(jobs: Jobs) -> None:
    """Through a proxy or without one, whichever process is the first."""
    reached = [adapter("proxy:7000"), adapter("mq"), adapter("mq,spare")]
    assert [jobs.namespace(each, LIST) for each in reached] == [LIST] * 3


def test_a_list_as_namespace_without_any_host_and_port_of_the_url_is_refused_before_it_is_bound(jobs: Jobs) -> None:
    """The first process would bind it, and all that come later, which are right, would be refused for ever."""
    assert (
        "Expected --namespace, a list of hosts and ports ('mq:61613'), to contain one that is in --broker"
        in jobs.refused(adapter("proxy:7000"), "mq:61613")
    )
    for elsewhere in ("other", "mq:7000", "proxy", "q:61613"):
        assert f"got '{adapter(elsewhere).identity()}'" in jobs.refused(adapter(elsewhere), LIST)
    assert jobs.namespace(adapter("mq"), "mq:61613") == "mq:61613"


def test_a_name_that_is_no_list_belongs_to_the_first_list_of_hosts(jobs: Jobs) -> None:
    assert jobs.namespace(adapter("mq:7000"), "prod") == "prod"
    for other in ("mq:7001", "proxy:7000"):
        assert "got 'mq:7001'" in (error := jobs.refused(adapter("mq:7001"), "prod")), other
        assert "Expected broker 'mq:7000', to which namespace 'prod'" in error


def test_two_brokers_on_one_host_share_no_namespace_that_names_neither_and_may_have_one_each(jobs: Jobs) -> None:
    one, two = adapter("mq:7000"), adapter("mq:7001")
    for broker in (one, two):
        jobs.refused(broker, "mq:7002")
    assert jobs.namespace(one, "mq:7000") == "mq:7000"
    jobs.lives("mq:7000")
    assert "if it is another broker, set --namespace 'mq:7001'" in jobs.refused(two)
    assert "if it is another broker, set --namespace 'mq:7001'" in jobs.refused(two, "other")
    assert jobs.namespace(two, "mq:7001") == "mq:7001"


def test_the_former_list_as_namespace_keeps_the_jobs_when_the_port_changes_to_that_of_tls(jobs: Jobs) -> None:
    """Only if there are jobs under it: otherwise it is another broker's list."""
    secure = adapter("mq", "stomp+ssl")
    jobs.refused(secure, "mq:61613")
    assert jobs.namespace(adapter("mq")) == "mq:61613"
    jobs.lives("mq:61613")
    assert jobs.namespace(secure, "mq:61613") == "mq:61613"


@pytest.mark.parametrize("hosts", ["proxy:7000", "mq"])
@pytest.mark.parametrize("namespace", [LIST, "mq:61613,spare:61613"])
def test_a_namespace_is_refused_while_workers_live_under_the_list_without_it(
    jobs: Jobs, hosts: str, namespace: str
) -> None:
    """The broker gives the jobs of the ones to the others, whose namespace knows neither them nor what is done."""
    if "spare" in namespace:
        hosts = hosts.replace("proxy:7000", "spare")
    assert jobs.namespace(adapter("mq")) == "mq:61613"
    jobs.lives("mq:61613")
    refused = jobs.refused(adapter(hosts), namespace)
    assert "Expected the namespace 'mq:61613', under which worker processes now run" in refused
    assert "set --namespace 'mq:61613' for all workers and senders" in refused
    jobs.dies()
    assert jobs.namespace(adapter(hosts), namespace) == namespace


def test_a_name_that_is_no_list_is_refused_while_workers_live_under_the_hosts(jobs: Jobs) -> None:
    jobs.lives("mq:61613")
    assert "Expected the namespace 'mq:61613'" in jobs.refused(adapter("mq"), "prod")
    (finding,) = name_findings(adapter("mq"), jobs.options("prod"), jobs.ledger, "exports")
    assert finding.level == "error"
    assert jobs.namespace(adapter("other"), "prod") == "prod"


def test_workers_without_the_namespace_are_refused_while_others_live_under_it(jobs: Jobs) -> None:
    assert jobs.namespace(adapter("proxy:7000"), LIST) == LIST
    jobs.lives(LIST)
    assert f"--namespace {LIST!r}" in jobs.refused(adapter("mq"))
