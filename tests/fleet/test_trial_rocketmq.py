"""A hundred jobs on each set-up of RocketMQ that operators have: each job starts once and ends done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.brokers.fixtures import had
from tests.brokers.rocketmq import RocketMQ4
from tests.brokers.rocketmq_place import DirectPlace
from tests.brokers.rocketmq_slave import RocketMQ4WithSlave
from tests.faults.proxy import Proxy
from tests.fleet.kit import LIGHT, Fleet, all_report
from tests.fleet.trials import HELD, KEYS, all_done, all_once_and_stopped, two_workers

GATED = {key: {"gate": "gate"} for key in KEYS}
"""All jobs wait for the gate, because a topic has no order: whichever start first hold all slots."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.rocketmq,
    pytest.mark.xdist_group("rocketmq"),
    pytest.mark.timeout(600),
]


def fleet_at(node: RocketMQ4, database: str, folder: Path) -> Iterator[Fleet]:
    """A fleet at this node."""
    node.start()
    with closing(DirectPlace(node)) as place, closing(Fleet(folder, place, database)) as made:
        yield made


@pytest.fixture
def at_ipv6(database: str, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet at a RocketMQ whose name server and broker have the address ::1, and say so to their clients."""
    with had():
        node = RocketMQ4(host="::1")
    with closing(node):
        yield from fleet_at(node, database, tmp_path)


@pytest.fixture
def with_slave(database: str, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet at a master that has a slave."""
    with had():
        node = RocketMQ4WithSlave()
    with closing(node):
        yield from fleet_at(node, database, tmp_path)


def test_ipv6_of_rocketmq(at_ipv6: Fleet, database: str) -> None:
    with Proxy(database, "::1") as ledger:
        at_ipv6.urls["ledger"] = ledger.url
        assert at_ipv6.urls["broker"].startswith("rocketmq://[::1]:")
        at_ipv6.send_all(GATED)
        checked = at_ipv6.command("check", LIGHT)
        checked.ended(0)
        two_workers(at_ipv6, at_ipv6.urls["broker"])
        at_ipv6.open()
        all_done(at_ipv6)
        at_ipv6.empties()
        assert sorted(at_ipv6.lines("starts")) == [f"{key} 1" for key in KEYS]


@pytest.mark.parametrize("ends", ["it comes back", "its slave is promoted"])
def test_a_master_that_is_killed_in_mid_job(with_slave: Fleet, ends: str) -> None:
    """
    A slave has locks and places of its own, so a worker process takes and settles nothing there; the jobs that run go on.

    They are settled, and the next ones taken, when the master is back, or when its operator makes the slave the master.
    """
    node = with_slave.place.broker
    assert isinstance(node, RocketMQ4WithSlave)
    with_slave.send_all(GATED)
    workers = two_workers(with_slave, with_slave.urls["broker"])
    node.broker.kill()
    all_report(workers, "not_ready")
    with_slave.open()
    with_slave.notes("ends", HELD)
    assert len(with_slave.lines("starts")) == HELD
    if ends == "it comes back":
        node.broker.start()
    else:
        node.promote()
    all_once_and_stopped(with_slave, workers)
    queues = node.witness.route(with_slave.queue) or []
    assert {queue.broker.address for queue in queues} == {node.broker_address}
    assert node.waiting(with_slave.queue, with_slave.queue) == 0, "the broker knows that all are done"
