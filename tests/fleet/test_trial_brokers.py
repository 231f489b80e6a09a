"""A hundred jobs on each set-up of brokers that operators have: each job starts once and ends done, whatever fails."""

from __future__ import annotations

import shutil
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
from tests.brokers.place import OwnBroker, Place
from tests.brokers.process import free_ports
from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.brokers.stomp_node import StompNode
from tests.faults.proxy import Proxy
from tests.fleet.kit import LIGHT, QUEUE, Fleet, all_report
from tests.fleet.trials import HELD, JOBS, KEYS, all_once, lose_all, publish_all, set_policy, two_workers
from tests.support.probes import ready
from tests.support.stage import WorkerProcess, eventually

HEARTBEAT = 3
VALID_FOR = timedelta(seconds=20)
FIRST = {KEYS[0]: JOBS[KEYS[0]]}
"""The job whose sender makes the queues; all others come from elsewhere."""

NEWEST = [*SUITES][-1]
"""What the upgrade leads to, and no older version in its stead: that could be the one before the upgrade."""

pytestmark = pytest.mark.slow


def cut(node: Node, vhost: Vhost) -> None:
    """Close all connections of the virtual host."""
    node.ctl("close_all_connections", "-p", vhost.name, "a trial")


def reports_why(worker: WorkerProcess, text: str) -> str:
    """Wait until it logs that it is not ready for a cause with this text, and return the cause."""

    def said() -> list[str]:
        return [line["why"] for line in worker.lines("not_ready") if text in line["why"]]

    causes: list[str] = eventually(said, text, report=worker.log_end)
    return causes[0]


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
        assert "No problems found" in checked.log_end()
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


@pytest.mark.parametrize("place_kind", ["classic", "artemis"], indirect=True)
def test_ipv6_of_activemq(place: Place, fleet: Fleet, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with RabbitMQ, which has a management API beside."""
    with Proxy(place.address(), "::1") as broker, Proxy(database, "::1") as ledger:
        fleet.urls = {"broker": place.url(through=broker), "ledger": ledger.url}
        monkeypatch.delenv("STEADYWORKER_NAMESPACE")  # the fixture's, which is for the other address
        fleet.send_all(JOBS)
        checked = fleet.command("check", LIGHT)
        checked.ended(0)
        workers = two_workers(fleet, fleet.urls["broker"])
        broker.cut()
        ledger.cut()
        lose_all(workers)
        fleet.open()
        all_once(fleet)


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
    assert not fleet.logged("delivery_lost"), "an open connection goes on"
    cut(rabbitmq_node, rabbitmq_place.vhost)
    lose_all(workers)
    for worker in workers:
        why = worker.reports("not_ready", part="fleet: broker")["why"]
        assert "expired" in why
        assert "renew" in why
    issue()
    all_report(workers, "ready_again")
    fleet.open()
    all_once(fleet)


@pytest.mark.parametrize("place_kind", ["4.x", "classic", "artemis"], indirect=True)
def test_an_authority_that_is_rotated_in_mid_job(place: Place, own_broker: OwnBroker, fleet: Fleet) -> None:
    """The worker processes refuse the broker, and say that their file is the old one, until it has the new authority."""
    assert isinstance(own_broker, Node | StompNode)
    ours = fleet.folder / "ca.pem"
    shutil.copy(own_broker.ca_file, ours)
    fleet.send_all(JOBS)
    workers = two_workers(fleet, place.url(tls=True).replace(str(own_broker.ca_file), str(ours)))
    eventually(lambda: len(place.connections()) >= 2, "two connections, as the broker lists them", report=fleet.logs)
    own_broker.set_authority()
    place.close_connections()
    lose_all(workers)
    for worker in workers:
        why = reports_why(worker, "an untrusted certificate")
        assert "?cafile=" in why
    shutil.copy(own_broker.ca_file, ours)
    all_report(workers, "ready_again")
    fleet.open()
    all_once(fleet)


def test_an_authority_of_logins_that_is_rotated_in_mid_job(
    rabbitmq_node: Node, rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    """A worker process without a password first learns the new authority, and then has a certificate of it."""
    ours, file = fleet.folder / "ca.pem", fleet.folder / "worker.pem"

    def issue() -> None:
        made = rabbitmq_node.ca.issue_cert("worker.example", common_name=rabbitmq_place.vhost.user)
        made.private_key_and_cert_chain_pem.write_to_path(file)

    issue()
    shutil.copy(rabbitmq_node.ca_file, ours)
    address = rabbitmq_place.address(tls=True).rpartition("@")[2]
    fleet.send_all(JOBS)
    workers = two_workers(fleet, f"amqps://{address}?cafile={ours}&certfile={file}")
    rabbitmq_node.set_authority()
    shutil.copy(rabbitmq_node.ca_file, ours)
    cut(rabbitmq_node, rabbitmq_place.vhost)
    lose_all(workers)
    for worker in workers:
        assert "certfile" in reports_why(worker, "UNKNOWN_CA")
    issue()
    all_report(workers, "ready_again")
    fleet.open()
    all_once(fleet)


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
        all_report(workers, "ready_again")
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
