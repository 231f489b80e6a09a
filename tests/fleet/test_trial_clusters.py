"""A hundred jobs on a cluster of three RabbitMQ nodes: each job starts once and ends done, whichever nodes fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.brokers.fixtures import NEWEST
from tests.brokers.install import SUITES
from tests.brokers.rabbitmq import Node
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.brokers.trio import Trio
from tests.fleet.kit import LIGHT, QUEUE, Fleet
from tests.fleet.trials import HELD, JOBS, all_once, all_once_and_stopped, two_workers
from tests.support.stage import eventually

HEARTBEAT = 3
OUTAGE = 20.0
"""Seconds for which nodes are away: longer than heartbeats allow, and than an election takes."""
OLDEST_AND_NEWEST = pytest.mark.parametrize("rabbitmq_series", [next(iter(SUITES)), NEWEST], indirect=True)

pytestmark = pytest.mark.slow


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


def outage() -> None:
    """Let a fault last: its length is what is tested, and no event marks it."""
    time.sleep(OUTAGE)


@OLDEST_AND_NEWEST
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


@OLDEST_AND_NEWEST
@pytest.mark.parametrize("left", ["the leader", "a follower"])
def test_the_majority_of_a_quorum_queue_is_killed_and_comes_back(
    trio: Trio, cluster_place: RabbitmqPlace, spread: Fleet, left: str
) -> None:
    """The jobs that run end without the broker; what they settle, and all others, wait until the majority is back."""
    spread.send_all(JOBS)
    workers = two_workers(spread, spread.urls["broker"])
    leader = trio.leader(cluster_place.vhost, QUEUE)
    followers = [node for node in trio.nodes if node is not leader]
    killed = followers if left == "the leader" else [leader, followers[0]]
    for node in killed:
        node.kill()
    spread.open()
    spread.notes("ends", HELD)
    outage()
    assert len(spread.lines("starts")) == HELD, "without a majority, the queue delivers nothing"
    for node in killed:
        node.start()
    all_once_and_stopped(spread, workers)
    eventually(lambda: not spread.left(), "empty queues, with what the worker processes held", report=spread.logs)


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
    outage()
    for node in nodes:
        node.thaw()
    all_once_and_stopped(spread, workers)
    eventually(lambda: not spread.left(), "empty queues, with what the worker processes held", report=spread.logs)


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
        outage()
        assert leader.eval("nodes()") == "[]"
    all_once_and_stopped(spread, workers)
