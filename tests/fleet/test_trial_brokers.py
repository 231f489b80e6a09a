"""A hundred jobs on each set-up of brokers that operators have: each job starts once and ends done, whatever fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.brokers.fixtures import had
from tests.brokers.install import SUITES, rabbitmq_root
from tests.brokers.process import free_ports
from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.brokers.trio import Trio
from tests.faults.proxy import Proxy
from tests.fleet.kit import LIGHT, QUEUE, Fleet, says_all
from tests.fleet.trials import HELD, JOBS, KEYS, all_done, all_once, lose_all, publish_all, set_policy, two_workers
from tests.support.probes import ready
from tests.support.stage import eventually

HEARTBEAT = 3
FROZEN_FOR = 20.0
VALID_FOR = timedelta(seconds=20)
FIRST = {KEYS[0]: JOBS[KEYS[0]]}
"""The job whose sender makes the queues; all others come from elsewhere."""

NEWEST = [*SUITES][-1]
"""What the upgrade leads to, and no older version in its stead: that could be the one before the upgrade."""

pytestmark = pytest.mark.slow


def cut(node: Node, vhost: Vhost) -> None:
    """Close all connections of the virtual host."""
    node.ctl("close_all_connections", "-p", vhost.name, "a trial")


# --- The way to the broker --------------------------------------------------------------------------------------------


def test_ipv6(rabbitmq_place: RabbitmqPlace, fleet: Fleet, database: str) -> None:
    """Broker, management API, ledger and probes have addresses in brackets."""
    with (
        Proxy(rabbitmq_place.address(), "::1") as broker,
        Proxy(rabbitmq_place.rabbitmq.management_url, "::1") as management,
        Proxy(database, "::1") as ledger,
    ):
        fleet.urls = {"broker": f"{broker.url}?management={management.url}", "ledger": ledger.url}
        fleet.send_all(JOBS)
        checked = fleet.command("check", LIGHT)
        checked.ended(0)
        assert "No problems found" in checked.said()
        address = f"[::1]:{free_ports(1)[0]}"
        workers = two_workers(fleet, fleet.urls["broker"])
        workers.append(fleet.worker(LIGHT, health=address))
        ready(address)
        broker.cut()
        ledger.cut()
        lose_all(workers[:2])
        fleet.open()
        all_once(fleet)
        assert management.connections


@pytest.mark.parametrize("whose", ["the broker's", "the worker's"])
def test_a_certificate_that_expires_in_mid_job(
    rabbitmq_node: Node, rabbitmq_place: RabbitmqPlace, fleet: Fleet, whose: str
) -> None:
    """The connections stay; the next ones are refused with the remedy, until there is a new certificate."""
    file = fleet.folder / "worker.pem"
    url = rabbitmq_place.url(tls=True)
    if whose == "the worker's":
        url = f"amqps://{url.rpartition('@')[2]}&certfile={file}"

    def issue(not_after: datetime | None = None) -> None:
        if whose == "the broker's":
            rabbitmq_node.set_certificate(not_after)
            return
        made = rabbitmq_node.ca.issue_cert("worker.example", common_name=rabbitmq_place.vhost.user, not_after=not_after)
        made.private_key_and_cert_chain_pem.write_to_path(file)

    fleet.send_all(JOBS)
    expires = datetime.now(UTC) + VALID_FOR
    issue(expires)
    workers = two_workers(fleet, url)
    left = (expires - datetime.now(UTC)).total_seconds()
    assert left > 0, "they connected in time"
    time.sleep(left + 1)
    assert not fleet.said("delivery_lost"), "an open connection goes on"
    cut(rabbitmq_node, rabbitmq_place.vhost)
    lose_all(workers)
    for worker in workers:
        why = worker.says("not_ready", part="fleet: broker")["why"]
        assert "expired" in why
        assert "renew" in why
    issue()
    says_all(workers, "ready_again")
    fleet.open()
    all_once(fleet)


# --- A cluster of three nodes -----------------------------------------------------------------------------------------


@pytest.fixture
def cluster_place(trio: Trio) -> RabbitmqPlace:
    """A place at the first node of a cluster; it goes with the nodes."""
    return RabbitmqPlace(trio.nodes[0])


@pytest.fixture
def spread(
    trio: Trio, cluster_place: RabbitmqPlace, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fleet]:
    """A fleet on a cluster, each of whose connections goes to a node that is drawn."""
    monkeypatch.setenv("STEADYWORKER_DELAYS", "1,2,5,10")
    made = Fleet(tmp_path, cluster_place, database)
    made.urls["broker"] = f"{trio.url(cluster_place.vhost)}?heartbeat={HEARTBEAT}&management=off"
    yield made
    made.close()


def test_a_cluster_without_a_name_is_refused(trio: Trio, spread: Fleet) -> None:
    """Each node tells its own name: the ledger would know the jobs under three names, and run them again under another one."""
    trio.nodes[0].management("DELETE", "global-parameters/cluster_name")
    refused = spread.worker(LIGHT)
    refused.ended(78)
    (remedy,) = [line["remedy"] for line in refused.lines("startup_refused")]
    name = remedy.split(";")[0].removeprefix("rabbitmqctl set_cluster_name ")
    trio.nodes[1].ctl("set_cluster_name", name)
    spread.send_all(JOBS)
    spread.open()
    for _ in range(3):
        spread.worker(LIGHT, concurrency=3)
    all_once(spread)


def test_the_leader_of_the_queue_is_killed_and_comes_back(
    trio: Trio, cluster_place: RabbitmqPlace, spread: Fleet
) -> None:
    spread.send_all(JOBS)
    two_workers(spread, spread.urls["broker"])
    leader = trio.leader(cluster_place.vhost, QUEUE)
    leader.kill()
    assert trio.leader(cluster_place.vhost, QUEUE) is not leader
    spread.open()
    spread.notes("ends", len(JOBS), 120)
    leader.start()
    all_once(spread)


@pytest.mark.parametrize("frozen", ["the leader", "the majority"])
def test_nodes_that_are_frozen_for_a_while(
    trio: Trio, cluster_place: RabbitmqPlace, spread: Fleet, frozen: str
) -> None:
    """The majority goes on without its leader; a minority waits until the others come back."""
    spread.send_all(JOBS)
    workers = two_workers(spread, spread.urls["broker"])
    leader = trio.leader(cluster_place.vhost, QUEUE)
    nodes = [leader] if frozen == "the leader" else [node for node in trio.nodes if node is not leader]
    for node in nodes:
        node.freeze()
    spread.open()
    time.sleep(FROZEN_FOR)
    for node in nodes:
        node.thaw()
    # Not by the management API: long after its leader was frozen, it shows the queue as it was before (4.3.6).
    all_done(spread)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.ended(0)
    eventually(lambda: not spread.left(), "empty queues, with what the worker processes held", report=spread.logs)
    assert sorted(spread.lines("starts")) == [f"{key} 1" for key in KEYS]


@contextmanager
def partition(alone: Node, others: list[Node]) -> Iterator[None]:
    """Cut a node off from the others, which run, and whose clients reach all: neither side has the other's cookie meanwhile."""
    sides = [(alone, other) for other in others] + [(other, alone) for other in others]

    for number, (node, peer) in enumerate(sides):  # another one on each side, as two equal ones would fit
        node.eval(f"erlang:set_cookie('{peer.name}', wrong{number})")
    for node, peer in sides:
        node.eval(f"erlang:disconnect_node('{peer.name}')")
    try:
        yield
    finally:
        for node, peer in sides:
            node.eval(f"erlang:set_cookie('{peer.name}', erlang:get_cookie())")
        for node, peer in sides:
            node.eval(f"net_kernel:connect_node('{peer.name}')")


def test_a_leader_that_is_cut_off_from_the_other_nodes(trio: Trio, cluster_place: RabbitmqPlace, spread: Fleet) -> None:
    """The majority elects another leader; what the minority holds waits until the partition ends."""
    spread.send_all(JOBS)
    workers = two_workers(spread, spread.urls["broker"])
    leader = trio.leader(cluster_place.vhost, QUEUE)
    others = [node for node in trio.nodes if node is not leader]
    with partition(leader, others):
        assert leader.eval("nodes()") == "[]"
        spread.open()
        time.sleep(FROZEN_FOR)
        assert leader.eval("nodes()") == "[]"
    # Not by the management API, which long after shows the queue as it was before.
    all_done(spread)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.ended(0)
    assert sorted(spread.lines("starts")) == [f"{key} 1" for key in KEYS]


# --- An upgrade of the broker -----------------------------------------------------------------------------------------


@pytest.fixture
def older_node() -> Iterator[Node]:
    """A node of the oldest version that the newest one can take over without another in between."""
    with had(), closing(Node("4.0")) as node:
        rabbitmq_root(NEWEST)
        node.start()
        yield node


@pytest.mark.rabbitmq
def test_an_upgrade_of_the_broker_in_mid_job(
    older_node: Node, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Of one node: three of 4.0 cannot become 4.3, neither node by node nor all at once.

    4.3.6 refuses a running node of 4.0.5 (`incompatible_feature_flags`), and a start beside it asks for all nodes at
    once (`all_mnesia_nodes_must_run`): both tried. It goes by the versions in between, which no suite of Debian has;
    nor has one 3.13, by which 3.10 goes to 4.0.
    """
    monkeypatch.setenv("STEADYWORKER_DELAYS", "1,2,5,10")
    fleet = Fleet(tmp_path, RabbitmqPlace(older_node), database)
    with closing(fleet):
        fleet.send_all(JOBS)
        workers = two_workers(fleet, fleet.urls["broker"])
        older_node.ctl("enable_feature_flag", "all")
        older_node.stop()
        lose_all(workers)
        older_node.replace(NEWEST)
        older_node.start()
        assert older_node.version[:2] == tuple(map(int, NEWEST.split(".")))
        says_all(workers, "ready_again")
        fleet.open()
        all_once(fleet)


# --- Brokers that send from elsewhere ---------------------------------------------------------------------------------


@pytest.fixture
def upstream(rabbitmq: RabbitMQ) -> Iterator[Vhost]:
    """Another virtual host, as another broker would be."""
    made = rabbitmq.add_vhost()
    yield made
    rabbitmq.remove_vhost(made)


@contextmanager
def channel(vhost: Vhost) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
        yield connection.channel()


def goes_through_cuts(node: Node, place: RabbitmqPlace, fleet: Fleet, upstream: Vhost) -> None:
    """Run what comes from upstream, while both ends of the way are cut."""
    workers = two_workers(fleet, fleet.urls["broker"])
    cut(node, upstream)
    cut(node, place.vhost)
    lose_all(workers)
    fleet.open()
    fleet.notes("ends", HELD + 20)
    cut(node, upstream)
    all_once(fleet)


def test_a_shovel_as_source(rabbitmq_node: Node, rabbitmq_place: RabbitmqPlace, fleet: Fleet, upstream: Vhost) -> None:
    """A shovel that is cut sends some messages twice: the second one is answered from the record."""
    with channel(upstream) as theirs:
        theirs.queue_declare("theirs", durable=True)
    publish_all(upstream.url, "theirs", keys=KEYS[1:])
    with rabbitmq_node.plugin("rabbitmq_shovel"):
        fleet.send_all(FIRST)
        value = {
            "src-protocol": "amqp091",
            "src-uri": upstream.url,
            "src-queue": "theirs",
            "dest-protocol": "amqp091",
            "dest-uri": rabbitmq_place.vhost.url,
            "dest-queue": QUEUE,
            "ack-mode": "on-confirm",
            "reconnect-delay": 1,
            "src-prefetch-count": 40,
            "dest-add-forward-headers": True,
            "dest-add-timestamp-header": True,
        }
        rabbitmq_node.management("PUT", f"parameters/shovel/{rabbitmq_place.vhost.name}/moves", {"value": value})
        goes_through_cuts(rabbitmq_node, rabbitmq_place, fleet, upstream)
        rabbitmq_node.management("DELETE", f"parameters/shovel/{rabbitmq_place.vhost.name}/moves")


@pytest.mark.parametrize("what", ["queue", "exchange"])
def test_a_federation_upstream_as_source(
    rabbitmq_node: Node, rabbitmq_place: RabbitmqPlace, fleet: Fleet, upstream: Vhost, what: str
) -> None:
    """A federated queue takes messages only as its consumers want them; an exchange sends what it gets."""
    with rabbitmq_node.plugin("rabbitmq_federation"):
        value = {"uri": upstream.url, "ack-mode": "on-confirm", "reconnect-delay": 1}
        where = f"{rabbitmq_place.vhost.name}/theirs"
        rabbitmq_node.management("PUT", f"parameters/federation-upstream/{where}", {"value": value})
        fleet.send_all(FIRST)
        if what == "queue":
            with channel(upstream) as theirs:
                theirs.queue_declare(QUEUE, durable=True)
            publish_all(upstream.url, QUEUE, keys=KEYS[1:])
            set_policy(rabbitmq_place, {"federation-upstream": "theirs"})
        else:
            with channel(upstream) as theirs, rabbitmq_place.channel() as ours:
                theirs.exchange_declare("orders", "fanout", durable=True)
                ours.exchange_declare("orders", "fanout", durable=True)
                ours.queue_bind(QUEUE, "orders")
            set_policy(rabbitmq_place, {"federation-upstream": "theirs"}, "^orders$", "exchanges")
            eventually(lambda: _linked(rabbitmq_node, upstream), "a link to the exchange upstream")
            publish_all(upstream.url, "", exchange="orders", keys=KEYS[1:])
        goes_through_cuts(rabbitmq_node, rabbitmq_place, fleet, upstream)
        rabbitmq_node.management("DELETE", f"policies/{where}")
        rabbitmq_node.management("DELETE", f"parameters/federation-upstream/{where}")


def _linked(node: Node, upstream: Vhost) -> bool:
    bindings = node.management("GET", f"exchanges/{upstream.name}/orders/bindings/source")
    return bool(bindings)
