"""The page of the STOMP adapter: its tables of options, rights and connections are what the code reads, and a broker demands and counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from steadyworker.adapter import QueueSpec, Settings, Uncounted
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Settled, Target
from steadyworker.network.url import TLS_OPTIONS
from steadyworker_stomp import StompAdapter
from steadyworker_stomp.url import FORM, HEARTBEAT
from tests.adapters.stomp_kit import Worker, work
from tests.brokers.stomp_broker import LIMITED, ArtemisQueues, ClassicQueues
from tests.brokers.stomp_node import StompNode

PAGE = (Path(__file__).parents[2] / "adapters/steadyworker_stomp/README.md").read_text(encoding="utf-8")

ROLES = (
    *("send", "consume", "createDurableQueue", "deleteDurableQueue", "createNonDurableQueue", "deleteNonDurableQueue"),
    *("manage", "browse", "createAddress", "deleteAddress"),
)
"""The rights of Artemis, in the order in which its management takes them."""


def section(heading: str) -> str:
    return PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def rows(heading: str) -> list[list[str]]:
    lines = re.findall(r"^\| (.*) \|$", section(heading), re.MULTILINE)
    return [line.split(" | ") for line in lines if not line.startswith(("--", "|-"))][1:]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


# --- Options ----------------------------------------------------------------------------------------------------------


def test_the_table_has_every_option_and_the_default_heartbeat() -> None:
    table = rows("The URL")
    named = [name for row in table for name in quoted(row[0])]
    assert sorted(named) == sorted([*FORM.options, *TLS_OPTIONS])
    assert f"{HEARTBEAT} by default" in next(row[1] for row in table if row[0] == "`heartbeat`")
    assert f"The default port is {FORM.ports['stomp']}, or {FORM.ports['stomp+ssl']} with TLS." in PAGE


# --- Rights -----------------------------------------------------------------------------------------------------------


def granted(*roles: str) -> dict[str, set[str]]:
    """The rights on Artemis that these rows of the table give, by address; a row without a name belongs to that above it."""
    found: dict[str, set[str]] = {}
    name = ""
    for row in rows("Rights"):
        name = row[0].strip("| ") or name
        if name in roles:
            for address in quoted(row[1]):
                found.setdefault(address, set()).update(quoted(row[-1]))
    assert found, roles
    return found


@contextmanager
def exactly(node: StompNode, queue: str, rights: dict[str, set[str]]) -> Iterator[None]:
    """Give the limited user exactly these rights to these addresses of Artemis, and to the queue and its dead letters."""
    (mbean,) = node.jolokia.search(ArtemisQueues.BROKER)
    operation = f"addSecuritySettings({','.join(['java.lang.String'] * (len(ROLES) + 1))})"
    given = {address.replace("payment-exports", queue): right for address, right in rights.items()}
    with ExitStack() as stack:
        for address in {queue, f"{queue}.dead", *given}:
            before = json.loads(node.jolokia.execute(mbean, "getRolesAsJSON(java.lang.String)", address))
            earlier = [",".join(role["name"] for role in before if role[right]) for right in ROLES]
            stack.callback(node.jolokia.execute, mbean, operation, address, *earlier)
            users = [f"user,{LIMITED}" if right in given.get(address, ()) else "user" for right in ROLES]
            node.jolokia.execute(mbean, operation, address, *users)
        yield


@pytest.fixture
def spec(queue: str) -> QueueSpec:
    return QueueSpec(queue, f"{queue}.dead")


COUNTS = "the count of consumers, Artemis"


@pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)
def test_each_role_does_its_work_with_the_rights_of_the_table(stomp_node: StompNode, spec: QueueSpec) -> None:
    """The worker process creates the queues, and counts; then each of the others needs less."""
    url = stomp_node.limited_url
    with exactly(stomp_node, spec.queue, granted("worker process", COUNTS)):
        worker = Worker(url, spec.queue).start()
        try:
            worker.adapter.publish(work())
            for to in (Target.LATER, Target.DEAD):
                worker.adapter.publish(OutgoingMessage(to, b"{}", {KEY: "k-2"}, 3600))
            assert worker.adapter.settle(worker.delivery(), Settle.ACK) is Settled.CONFIRMED
            assert worker.adapter.consumers() == 1
        finally:
            worker.adapter.stop(10)
        found = findings(url, spec)
        assert [each for each in found if "lost connections" not in each] == []
    with exactly(stomp_node, spec.queue, granted("sender")):
        publish(url, spec)
    with exactly(stomp_node, spec.queue, granted("`steadyworker dead …`", "`steadyworker dead replay`")):
        operator = StompAdapter(url, spec, Settings())
        try:
            with operator.dead_letters() as letters:
                (letter,) = letters
                letters.publish(OutgoingMessage(Target.WORK, letter.body, {KEY: "replayed"}))
                letters.drop(letter)
        finally:
            operator.stop(10)
    assert stomp_node.depth(f"{spec.queue}.dead") == 0
    assert stomp_node.depth(spec.queue) == 2


@pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)
def test_a_role_does_not_do_the_work_of_another(stomp_node: StompNode, spec: QueueSpec) -> None:
    """Otherwise the rights of the table would not be the ones in force here."""
    publish(stomp_node.url, spec)
    with exactly(stomp_node, spec.queue, granted("sender", COUNTS)):
        (consume,) = [each for each in findings(stomp_node.limited_url, spec) if "may not" in each]
        assert f"may not consume from {spec.queue!r}" in consume
    with exactly(stomp_node, spec.queue, granted("worker process")):
        (count,) = [each for each in findings(stomp_node.limited_url, spec) if "may not" in each or "cannot" in each]
        assert "cannot count the consumers" in count


@pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)
def test_a_queue_for_replies_that_cannot_be_made_is_no_missing_right_to_count(
    stomp_node: StompNode, spec: QueueSpec
) -> None:
    """The cause and the remedy name the address of the replies."""
    rights = granted("worker process", COUNTS)
    rights["steadyworker.replies"] = set()
    adapter = StompAdapter(stomp_node.limited_url, spec, Settings())
    with exactly(stomp_node, spec.queue, rights):
        found = adapter.consumers()
    assert isinstance(found, Uncounted)
    assert found.why.startswith("the broker refused a queue for its reply (AMQ")
    assert found.remedy.startswith('add <address name="steadyworker.replies"><multicast/></address> to broker.xml, ')
    adapter.stop(5)


def findings(url: str, spec: QueueSpec) -> Sequence[str]:
    adapter = StompAdapter(url, spec, Settings())
    try:
        return [finding.what for finding in adapter.findings(spec)]
    finally:
        adapter.stop(10)


def publish(url: str, spec: QueueSpec) -> None:
    adapter = StompAdapter(url, spec, Settings())
    try:
        adapter.publish(work())
    finally:
        adapter.stop(10)


# --- Connections ------------------------------------------------------------------------------------------------------


def connections(node: StompNode) -> int:
    """The connections of clients that the broker has."""
    if node.is_artemis:
        (mbean,) = node.jolokia.search(ArtemisQueues.BROKER)
        return len(json.loads(node.jolokia.execute(mbean, "listConnectionsAsJSON()")))
    views = "connector=clientConnectors,connectorName=*,connectionViewType=clientId,connectionName=*"
    return len(node.jolokia.search(f"org.apache.activemq:type=Broker,brokerName=*,{views}"))


def test_the_table_counts_the_connections_that_stay(
    stomp_node: StompNode, spec: QueueSpec, eventually: Callable[..., Any]
) -> None:
    table = {row[0]: row[1] for row in rows("Connections")}
    assert table["worker process"].startswith("2 for each Worker: one consumes; ")
    eventually(lambda: connections(stomp_node) == 0)
    worker = Worker(stomp_node.url, spec.queue).start()
    sender = StompAdapter(stomp_node.url, spec, Settings())
    operator = StompAdapter(stomp_node.url, spec, Settings())
    try:
        worker.connected()
        eventually(lambda: connections(stomp_node) == 1)
        worker.adapter.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: "k"}))
        eventually(lambda: connections(stomp_node) == 2)
        assert table["sender (`Client`)"] == "1 for each queue to which the sender has sent"
        sender.publish(work())
        eventually(lambda: connections(stomp_node) == 3)
        assert (
            table["`steadyworker dead …`"]
            == "1 for each existing dead-letter queue while the command reads, and 1 more once it replays"
        )
        with operator.dead_letters() as letters:
            assert len(list(letters)) == 1
            eventually(lambda: connections(stomp_node) == 3 + reading(stomp_node))
            letters.publish(OutgoingMessage(Target.WORK, b"{}", {KEY: "again"}))
            eventually(lambda: connections(stomp_node) == 4 + reading(stomp_node))
        eventually(lambda: connections(stomp_node) == 4)
    finally:
        for adapter in (worker.adapter, sender, operator):
            adapter.stop(10)
    eventually(lambda: connections(stomp_node) == 0)


def reading(node: StompNode) -> int:
    """The dead-letter queues that exist: the Worker's, and the broker's own, which Classic creates with its first letter."""
    broker = "org.apache.activemq:type=Broker,brokerName=*"
    own = f"{broker},destinationType=Queue,destinationName={ClassicQueues.LETTERS}"
    return 2 if node.is_artemis or node.jolokia.search(own) else 1
