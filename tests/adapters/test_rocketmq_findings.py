"""What `check` finds on RocketMQ: each finding has its remedy, a healthy broker has none, and and the check changes nothing."""

from __future__ import annotations

import importlib.metadata
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steadyworker.adapter import Adapter, QueueSpec, Settings
from steadyworker.clock import SystemClock
from steadyworker.errors import BrokerUnavailable, ConfigError, Finding
from steadyworker_rocketmq.checks import brokers
from steadyworker_rocketmq.checks.versions import version_findings, version_of
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from steadyworker_rocketmq.grpc import GrpcAdapter
from steadyworker_rocketmq.url import parse_url
from tests.brokers.process import free_ports
from tests.brokers.rocketmq import RocketMQ5, RocketMQNode
from tests.brokers.rocketmq_witness import Witness
from tests.support.stage import eventually

RETENTION = "deletes every message after 72 h"
REVIVAL = "can lose a message that a killed worker held"
FLUSH = "confirms a message before it is on a disk or at another broker"
USUAL = (RETENTION, REVIVAL, FLUSH, "CVE-2024-23321", "sends back for the last time")
"""What 4.9.7 and 5.4.0 have as these tests start them."""

Find = Callable[..., list[Finding]]


class Case:
    """One driver at one node, and a queue of this test alone."""

    def __init__(self, node: RocketMQNode, *, grpc: bool) -> None:
        self.node = node
        self.is_grpc = grpc
        self.url = node.url if grpc else node.remoting_url
        self.queue = f"q-{secrets.token_hex(4)}"
        self.later = f"{self.queue}-later"
        self.dead = f"{self.queue}-dead"

    def adapter(self, url: str = "", concurrency: int = 1, group: str = "", **settings: Any) -> Adapter:
        url = url or self.url
        url += f"{'&' if '?' in url else '?'}group={group}" if group else ""
        spec = QueueSpec(self.queue, f"{self.queue}.dead", concurrency=concurrency)
        return (GrpcAdapter if url.startswith("rocketmq+grpc") else DirectAdapter)(url, spec, Settings(**settings))

    def found(self, url: str = "", *, usual: bool = False, **settings: Any) -> list[Finding]:
        """The findings, without the usual ones."""
        adapter = self.adapter(url, **settings)
        try:
            findings = adapter.findings(adapter._spec)  # type: ignore[attr-defined]
        finally:
            adapter.stop(5)
        return [each for each in findings if usual or not any(text in each.what for text in USUAL)]

    def make(self) -> None:
        """Make topics and groups as a worker does."""
        adapter = self.adapter()
        adapter._preparation.prepared()  # type: ignore[attr-defined]
        adapter.stop(5)

    def repair(self, remedy: str) -> None:
        """Run the commands of a remedy."""
        commands = re.findall(r"mqadmin [^;]*?(?=; or | && |$)", remedy)
        assert commands, remedy
        for command in commands:
            assert "success" in self.node.mqadmin(command)


DRIVERS = [
    pytest.param(("rocketmq4", False), id="4"),
    pytest.param(("rocketmq5", True), id="5-grpc"),
    pytest.param(("rocketmq5", False), id="5", marks=pytest.mark.slow),
]
GRPC = pytest.mark.parametrize("case", DRIVERS[1:2], indirect=True)
DIRECT = pytest.mark.parametrize("case", [DRIVERS[0], DRIVERS[2]], indirect=True)


@pytest.fixture(params=DRIVERS)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    fixture, grpc = request.param
    made = Case(request.getfixturevalue(fixture), grpc=grpc)
    yield made
    made.node.heal()
    made.node.remove(made.queue)


pytestmark = [pytest.mark.rocketmq, pytest.mark.xdist_group("rocketmq"), pytest.mark.timeout(300)]


def only(findings: list[Finding], level: str, text: str) -> Finding:
    """The one finding that there is, of this level and with this text."""
    (finding,) = findings
    assert finding.level == level, finding
    assert text in finding.what
    return finding


# --- A healthy broker -------------------------------------------------------------------------------------------------


def test_a_healthy_broker_has_no_problem_and_is_not_changed(case: Case) -> None:
    case.make()
    case.node.send(case.queue)
    before = (case.node.topics(case.queue), case.node.groups(case.queue), case.node.count(case.queue))
    for topology in ("declare", "verify", "trust"):
        assert case.found(topology=topology) == []
    assert (case.node.topics(case.queue), case.node.groups(case.queue), case.node.count(case.queue)) == before
    (retention, *rest) = [each for each in case.found(usual=True) if RETENTION in each.what] + [None]
    assert rest == [None]
    assert retention is not None
    assert retention.level == "note"
    assert "fileReservedTime" in retention.remedy


def test_how_a_broker_can_lose_the_message_of_a_claimed_job(case: Case) -> None:
    """These brokers flush late and have no slave; only a proxy's clients need the revival."""
    (flush,) = [each for each in case.found(usual=True) if FLUSH in each.what]
    assert (flush.level, flush.loses) == ("note", "jobs")
    assert "(flushDiskType=ASYNC_FLUSH, brokerRole=ASYNC_MASTER)" in flush.what
    with case.node.set("flushDiskType", "SYNC_FLUSH"):
        assert [each for each in case.found(usual=True) if FLUSH in each.what] == []
    revival = [each for each in case.found(usual=True) if REVIVAL in each.what]
    assert [(each.level, each.loses) for each in revival] == [("note", "jobs")] * case.is_grpc
    assert all("(5.4.0)" in each.what and "popConsumerKVServiceEnable=true" in each.remedy for each in revival)


def test_a_check_makes_nothing(case: Case) -> None:
    assert case.found() == []
    assert case.node.topics(case.queue) == []
    assert case.node.groups(case.queue) == []


# --- Name servers, brokers, proxies -----------------------------------------------------------------------------------


@DIRECT
def test_a_name_server_that_is_away_is_no_finding(case: Case) -> None:
    (port,) = free_ports(1)
    with pytest.raises(BrokerUnavailable, match="Connection refused"):
        case.found(f"rocketmq://127.0.0.1:{port}")


@pytest.mark.slow
@DIRECT
def test_a_name_server_without_a_broker(case: Case) -> None:
    case.node.broker.kill()
    finding = only(case.found(), "warning", "The name server knows no broker")
    assert "namesrvAddr" in finding.remedy


def test_a_broker_that_the_name_server_names_and_this_host_does_not_reach(case: Case) -> None:
    """As with brokerIP1 of a container's own network; another broker is checked all the same."""
    (port,) = free_ports(1)
    fields = {"brokerName": "broker-z", "brokerAddr": f"127.0.0.1:{port}", "clusterName": "DefaultCluster"}
    fields |= {"haServerAddr": "127.0.0.1:1", "brokerId": "0", "compressed": "false", "bodyCrc32": "0"}
    case.make()
    foreign = Witness(case.node.name_servers[0], case.node.login, connection="broker-z")
    foreign.ask(case.node.name_servers[0], "REGISTER_BROKER", fields)  # as long as this connection is open
    finding = only(case.found(), "warning", f"at 127.0.0.1:{port}, the address of broker broker-z at the name server")
    foreign.close()
    assert finding.what.startswith("Broker broker-z could not be checked as a whole: ")
    assert "brokerIP1" in finding.remedy


@GRPC
def test_a_name_server_that_is_away_hides_nothing_that_the_proxy_reports(case: Case) -> None:
    (port,) = free_ports(1)
    assert isinstance(case.node, RocketMQ5)
    url = f"rocketmq+grpc://{case.node.grpc_address}?members=off&namesrv=127.0.0.1:{port}"
    finding = only(case.found(url), "warning", "The name server does not respond")
    assert "namesrv=" in finding.remedy


@GRPC
def test_a_proxy_that_is_away_is_no_finding_and_one_of_two_is(case: Case) -> None:
    (port,) = free_ports(1)
    case.make()
    assert isinstance(case.node, RocketMQ5)
    options = f"members={case.node.proxy_address}&namesrv={case.node.name_servers[0]}"
    with pytest.raises(BrokerUnavailable, match="Connection refused"):
        case.found(f"rocketmq+grpc://127.0.0.1:{port}?{options}")
    finding = only(
        case.found(f"rocketmq+grpc://127.0.0.1:{port},{case.node.grpc_address}?{options}"),
        "warning",
        f"at 127.0.0.1:{port}, got",
    )
    assert "this proxy" in finding.remedy


@GRPC
def test_a_remoting_port_of_a_proxy_that_counts_no_members(case: Case) -> None:
    (port,) = free_ports(1)
    assert isinstance(case.node, RocketMQ5)
    url = f"rocketmq+grpc://{case.node.grpc_address}?members=127.0.0.1:{port}&namesrv={case.node.name_servers[0]}"
    finding = only(case.found(url), "warning", f"The consumers of group {case.queue!r} could not be counted")
    assert "members=off" in finding.remedy
    assert case.found(url.replace(f"127.0.0.1:{port}", "off")) == []


@GRPC
def test_without_a_name_server_the_proxy_reports_topics(case: Case) -> None:
    """A topic that the worker cannot make is an error; a note lists what was not checked."""
    assert isinstance(case.node, RocketMQ5)
    url = f"rocketmq+grpc://{case.node.grpc_address}?members=off&namesrv=off"
    *missing, note = case.found(url)
    assert [each.level for each in (*missing, note)] == ["error"] * 3 + ["note"]
    assert "names no name server" in note.what
    for finding, topic, kind in zip(
        missing, (case.queue, case.later, case.dead), ("NORMAL", "DELAY", "NORMAL"), strict=True
    ):
        assert f"Expected the topic {topic!r}, got none" in finding.what
        assert f"-a +message.type={kind}" in finding.remedy
    assert len(case.found(url, topology="trust")) == 1


@GRPC
def test_without_a_name_server_a_wrong_type_is_found(case: Case) -> None:
    assert isinstance(case.node, RocketMQ5)
    for topic, kind in ((case.queue, "FIFO"), (case.later, "DELAY"), (case.dead, "NORMAL")):
        case.node.make_topic(topic, kind=kind)
    *wrong, _ = case.found(f"rocketmq+grpc://{case.node.grpc_address}?members=off&namesrv=off")
    only(wrong, "error", f"Topic {case.queue!r} has the type FIFO, so a proxy refuses our messages")


# --- Versions and settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "driver", "parts"),
    [
        ("4.9.7", "remoting", ["CVE-2024-23321"]),
        ("4.9.5", "remoting", ["4.9.7 or newer, got 4.9.5", "CVE-2023-33246", "CVE-2023-37582", "CVE-2024-23321"]),
        ("4.9.8", "remoting", []),
        ("5.1.0", "remoting", ["CVE-2023-33246", "CVE-2023-37582", "CVE-2024-23321"]),
        ("5.1.2", "grpc", ["5.3 or newer, got 5.1.2", "CVE-2024-23321"]),
        ("5.3.0", "grpc", []),
        ("5.4.0", "grpc", ["loses a message that another application's consumer sends back for the last time"]),
        ("5.4.0-SNAPSHOT", "remoting", ["sends back for the last time"]),
        ("5.5.0", "grpc", []),
        ("", "grpc", []),
    ],
)
def test_versions(text: str, driver: Any, parts: list[str]) -> None:
    found = [*version_findings(text, driver, "broker-a")]
    assert len(found) == len(parts)
    for finding, part in zip(found, parts, strict=True):
        assert part in finding.what
        assert finding.level == ("note" if "sends back" in part else "warning")
    assert version_of("5.4.0-SNAPSHOT") == (5, 4, 0)


@pytest.mark.parametrize(
    ("version", "settings", "loses"),
    [
        ((5, 0, 0), {}, False),
        ((5, 1, 0), {}, True),
        ((5, 4, 0), {}, True),
        ((5, 5, 0), {"popConsumerKVServiceEnable": "false"}, True),
        ((5, 4, 0), {"popConsumerKVServiceEnable": "true"}, False),
        ((), {}, False),
    ],
)
def test_versions_whose_revival_loses_messages(
    version: tuple[int, ...], settings: dict[str, str], *, loses: bool
) -> None:
    assert len([*brokers.revival_findings(version, settings, "broker-a")]) == loses


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"flushDiskType": "ASYNC_FLUSH", "brokerRole": "ASYNC_MASTER"}, True),
        ({"flushDiskType": "ASYNC_FLUSH", "brokerRole": "SYNC_MASTER"}, False),
        ({"flushDiskType": "ASYNC_FLUSH", "enableDLegerCommitLog": "true"}, False),
        ({"flushDiskType": "SYNC_FLUSH"}, False),
        ({}, False),
    ],
)
def test_brokers_that_confirm_what_no_disk_and_no_other_broker_has(settings: dict[str, str], *, found: bool) -> None:
    url = parse_url("rocketmq://localhost")
    assert len([*brokers.setting_findings(settings, "broker-a", url, Settings())]) == found


def test_a_short_retention(case: Case) -> None:
    with case.node.set("fileReservedTime", "12"):
        finding = only(case.found(), "warning", "deletes every message after 12 h, read or not")
    assert "fileReservedTime in broker.conf" in finding.remedy


def test_a_broker_that_accepts_smaller_bodies_than_senders_may_send(case: Case) -> None:
    with case.node.set("maxMessageSize", "65536"):
        finding = only(
            case.found(), "warning", "accepts bodies of at most 65536 bytes, and the limit of senders is 1048576"
        )
        assert "maxMessageSize=1048576" in finding.remedy
        assert case.found(max_body=65536) == []


@GRPC
def test_a_broker_that_refuses_every_receive_of_a_proxy(case: Case) -> None:
    with case.node.set("timerWheelEnable", "false"):
        finding = only(case.found(), "error", "refuses every receive of a proxy")
    assert "timerWheelEnable" in finding.remedy


class Shifted(SystemClock):
    """The clock of a machine that is hours ahead, or behind."""

    def __init__(self, seconds: float) -> None:
        self.wall = lambda: time.time() + seconds


@pytest.mark.parametrize(("seconds", "apart"), [(18_000, "behind"), (-18_000, "ahead of")])
def test_a_broker_whose_clock_differs(case: Case, seconds: float, apart: str) -> None:
    """It matters to the delays of a proxy only, and a healthy broker above has none."""
    case.make()
    eventually(lambda: not case.is_grpc or case.found(clock=Shifted(seconds)), "a broker that reports its clock")
    found = case.found(clock=Shifted(seconds))
    if not case.is_grpc:
        assert found == []
        return
    finding = only(found, "warning", f"s {apart} the clock of this machine")
    (reported,) = re.findall(r"is (\d+) s", finding.what)
    assert 17_990 <= int(reported) <= 18_010
    assert ("begin late by as much" in finding.what) is (apart == "behind")
    assert "NTP" in finding.remedy


@DIRECT
def test_delay_levels_are_read_and_those_without_a_meaning_are_an_error(case: Case) -> None:
    """The worker ends with the same text."""
    with case.node.set("messageDelayLevel", "10s 5s 1h"):
        assert case.found() == []
    with case.node.set("messageDelayLevel", "10s 5 weeks"):
        finding = only(case.found(), "error", "got '10s 5 weeks' at broker-a")
        adapter = case.adapter()
        with pytest.raises(ConfigError) as raised:
            adapter._preparation.prepared()  # type: ignore[attr-defined]
        adapter.stop(5)
    assert str(raised.value) == str(finding)


# --- Topics -----------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_an_error_where_the_worker_must_not_make_it(case: Case) -> None:
    found = case.found(topology="verify")
    topics = [case.queue, *([case.later] if case.is_grpc else []), case.dead]
    groups = [case.queue, *([case.later] if case.is_grpc else [])]
    assert [each.what for each in found] == [
        *(f"Expected the topic {topic!r}, got none." for topic in topics),
        *(f"Expected the consumer group {group!r} at broker broker-a, got none." for group in groups),
    ]
    assert {each.level for each in found} == {"error"}
    assert case.found(topology="declare") == case.found(topology="trust") == []


@pytest.mark.slow
def test_the_commands_for_what_is_missing_make_it(case: Case) -> None:
    """With as many queues as the worker would make."""
    for finding in case.found(topology="verify"):
        case.repair(finding.remedy)
    assert case.found(topology="verify") == []
    witness = case.node.witness
    assert [len(witness.route(topic) or []) for topic in (case.queue, case.dead)] == [16, 1]
    (broker,) = witness.brokers()
    assert witness.groups(broker)[case.queue]["retryMaxTimes"] == 1_000_000


@GRPC
@pytest.mark.parametrize("kind", ["FIFO", "DELAY", "TRANSACTION"])
def test_a_topic_of_another_type(case: Case, kind: str) -> None:
    case.make()
    case.node.make_topic(case.queue, 16, kind)
    finding = only(case.found(), "error", f"Topic {case.queue!r} has the type {kind}, so a proxy refuses our messages")
    assert "-r 16 -w 16 -a +message.type=NORMAL" in finding.remedy


@pytest.mark.slow
@GRPC
def test_the_command_for_a_topic_of_another_type_keeps_its_queues(case: Case) -> None:
    case.make()
    case.node.make_topic(case.later, 5, "NORMAL")
    finding = only(case.found(), "error", f"Topic {case.later!r} has the type NORMAL")
    case.repair(finding.remedy)
    assert case.found() == []
    assert len(case.node.witness.route(case.later) or []) == 5


@pytest.mark.parametrize(("perm", "access"), [(2, "read"), (4, "written")])
def test_a_topic_without_a_queue_that_can_be_used(case: Case, perm: int, access: str) -> None:
    case.make()
    fields = {"topic": case.queue, "defaultTopic": "TBW102", "readQueueNums": "16", "writeQueueNums": "16"}
    fields |= {"perm": str(perm), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    case.node.witness.ask(case.node.broker_address, "UPDATE_AND_CREATE_TOPIC", fields)
    findings = [each for each in case.found() if "has no queue that can be" in each.what]
    finding = only(findings, "error", f"Topic {case.queue!r} has no queue that can be {access}.")
    assert "-r 16 -w 16" in finding.remedy


@DIRECT
@pytest.mark.parametrize("retries", ["%RETRY%{}", "%RETRY%{0}_{0}"], ids=["given-back", "from-a-proxy"])
def test_messages_that_wait_where_this_driver_does_not_read(case: Case, retries: str) -> None:
    """As after a change from another client, or from the driver for proxies; what is consumed does not wait."""
    case.make()
    topic = retries.format(case.queue)
    case.node.make_topic(topic)
    case.node.send(topic)
    finding = only(case.found(), "warning", f"1 messages wait in {topic!r}, which rocketmq: does not read")
    assert "consumers that this group had before" in finding.remedy
    (queue,) = case.node.witness.route(topic) or []
    case.node.witness.set_consumed(queue, topic, case.queue, 1)
    assert case.found() == []
    case.node.delete_topic(topic)


@DIRECT
def test_messages_that_wait_in_one_queue_are_not_hidden_by_the_place_in_another_one(case: Case) -> None:
    """A group keeps its places when a topic is deleted and made again, so a place can be behind a queue's end."""
    case.make()
    topic = f"%RETRY%{case.queue}"
    case.node.make_topic(topic, 2)
    case.node.send(topic)
    _, second = case.node.witness.route(topic) or []
    case.node.witness.set_consumed(second, topic, case.queue, 3)
    only(case.found(), "warning", f"1 messages wait in {topic!r}")
    case.node.delete_topic(topic)


@DIRECT
def test_fewer_queues_than_slots(case: Case) -> None:
    """Of all workers that are members of the group."""
    case.make()
    assert case.found(concurrency=16) == []
    finding = only(case.found(concurrency=20), "warning", f"Topic {case.queue!r} has 16 queues")
    assert "so 4 of 20 slots stay empty (1 × concurrency 20)" in finding.what
    assert finding.remedy.endswith(f"-t {case.queue} -r 20 -w 20")
    workers = [case.adapter(concurrency=10) for _ in range(2)]
    try:
        for worker in workers:
            worker.start(lambda _: None)
            worker.prefetch(10)
        members = case.node.witness.members
        eventually(lambda: len(members(case.queue, case.node.broker_address)) == 2, "two members")
        only(case.found(concurrency=10), "warning", "so 4 of 20 slots stay empty (2 × concurrency 10)")
    finally:
        for worker in workers:
            worker.stop(5)


# --- Groups -----------------------------------------------------------------------------------------------------------


def test_a_group_with_a_small_maximum(case: Case) -> None:
    case.make()
    case.node.witness.make_group(case.queue, 16)
    finding = only(
        case.found(), "warning", f"moves a message of group {case.queue!r} to its own dead letters after 17 deliveries"
    )
    assert f"-g {case.queue} -r 1000000" in finding.remedy


@pytest.mark.slow
def test_the_command_for_a_group_that_must_not_consume_keeps_its_maximum(case: Case) -> None:
    case.make()
    ns = case.node.name_servers[0]
    case.node.mqadmin(f"mqadmin updateSubGroup -n {ns} -c DefaultCluster -g {case.queue} -r 1000000 -s false")
    finding = only(case.found(), "error", f"does not let the group {case.queue!r} consume")
    case.repair(finding.remedy)
    assert case.found() == []


@GRPC
def test_a_group_whose_first_start_could_skip_what_waits(case: Case) -> None:
    """An operator has made it; the worker then sets it to the first message, as the remedy proposes."""
    case.node.make_topic(case.queue, 2, "NORMAL")
    witness = case.node.witness
    witness.make_group(case.queue, 1_000_000)
    for _ in range(3):
        case.node.send(case.queue)
    finding = only(case.found(), "warning", f"its first start can skip 3 messages that wait in {case.queue!r}")
    assert "--topology declare" in finding.remedy
    case.make()
    assert [witness.consumed(queue, case.queue, case.queue) for queue in witness.route(case.queue) or []] == [0, 0]
    assert case.found() == []


# --- Transactions -----------------------------------------------------------------------------------------------------


def test_transactions_that_nobody_decides(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decided ones, which stay in the half topic too, are not counted."""
    case.node.make_topic(case.queue, 1, "NORMAL")
    monkeypatch.setattr(brokers, "MANY_UNDECIDED", -1)
    found = case.found()
    left = re.findall(r"has (\d+) messages of transactions that are not decided", str(found)) or [0]  # by other tests
    monkeypatch.setattr(brokers, "MANY_UNDECIDED", int(left[0]) + 2)
    assert not any("not decided" in each.what for each in case.found())
    for _ in range(3):
        case.node.send(case.queue, b"half", {"TRAN_MSG": "true", "PGROUP": case.queue})
    # A broker makes the topic at its first such message, and then registers it at the name server.
    found = eventually(lambda: [each for each in case.found() if "not decided" in each.what], "a finding")
    finding = only(found, "warning", "messages of transactions that are not decided (RMQ_SYS_TRANS_HALF_TOPIC)")
    assert "checker" in finding.remedy


@pytest.mark.slow
def test_transactions_that_the_broker_has_given_up(case: Case) -> None:
    case.node.make_topic(case.queue, 1, "NORMAL")
    with case.node.set("transactionCheckMax", "1"):
        case.node.send(case.queue, b"half", {"TRAN_MSG": "true", "PGROUP": case.queue})
        eventually(case.node.gave_up, "a message that is given up", 60)
    finding = only(case.found(), "warning", "messages of transactions without a decision (TRANS_CHECK_MAX_TIME_TOPIC)")
    assert "until the broker's retention ends" in finding.remedy
    case.node.forget_given_up()


# --- The client library -----------------------------------------------------------------------------------------------


@GRPC
def test_both_client_libraries_are_installed(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip writes when it installs the other one beside ours."""
    other = tmp_path / "rocketmq_client_python-2.0.0.dist-info"
    other.mkdir()
    other.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: rocketmq-client-python\nVersion: 2.0.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.metadata.version("rocketmq-client-python") == "2.0.0"
    finding = only(case.found(), "warning", "rocketmq-client-python 2.0.0 is installed, too")
    assert "pip uninstall rocketmq-client-python" in finding.remedy


def test_the_other_client_library_in_the_place_of_ours(tmp_path: Path) -> None:
    tmp_path.joinpath("rocketmq").mkdir()
    tmp_path.joinpath("rocketmq", "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "import steadyworker_rocketmq.grpc"],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (
        "got rocketmq-client-python, which has the same import name: pip uninstall rocketmq-client-python"
        in done.stderr
    )
