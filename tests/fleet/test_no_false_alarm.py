"""No message is called lost, and no job starts again, because the broker, the ledger or all hosts were away for a while."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest

from tests.brokers.place import OwnBroker, Place
from tests.brokers.postgres import Cluster
from tests.fleet.kit import LIGHT, Fleet, all_report
from tests.fleet.lost import SOON_LOST
from tests.support.stage import WorkerProcess, eventually

AWAY = 75.0
"""Ten minutes, by clocks that run eight times faster."""
SUSPENDED = 38.0
"""Five minutes."""
HEARTBEAT = 2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def passes(seconds: float) -> None:
    """Let so many seconds pass."""
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > until, f"{seconds} s", 2 * seconds)


KEYS = [f"job-{number}" for number in range(4)]


def busy(fleet: Fleet) -> list[WorkerProcess]:
    """
    Start three worker processes that run five jobs, and have slots for more; a sixth job waits for its retry at the broker.

    The first one runs `interrupted` alone.
    """
    fleet.send_all({"interrupted": {"gate": "gate"}})
    workers = [_worker(fleet, 1)]
    fleet.notes("starts", 1)
    fleet.send_all({key: {"gate": "gate"} for key in KEYS})
    workers += [_worker(fleet, 3), _worker(fleet, 3)]
    fleet.notes("starts", 5)
    fleet.send_all({"retried": {"delays": [10.0]}})
    eventually(lambda: fleet.logged("job_settled", key="retried", settlement="later"), "a retry", report=fleet.logs)
    return workers


def _worker(fleet: Fleet, slots: int) -> WorkerProcess:
    """Start a worker process whose runs go on while the ledger is away."""
    url = fleet.place.url(heartbeat=HEARTBEAT)
    return fleet.worker(LIGHT, broker=url, concurrency=slots, on_ledger_loss="finish", script=SOON_LOST)


def ends_without_alarm(fleet: Fleet, interrupted: int) -> None:
    """Let all jobs end: those that ran go on, and the retry and the interrupted one come as ever."""
    fleet.open()
    fleet.notes("ends", len(KEYS) + 2, 180)
    fleet.empties()
    assert sorted(fleet.lines("ends")) == sorted(["interrupted", "retried", *KEYS])
    starts = Counter(line.split()[0] for line in fleet.lines("starts"))
    assert starts == {"interrupted": interrupted, "retried": 2, **dict.fromkeys(KEYS, 1)}
    assert fleet.logged("message_lost") == []


@pytest.mark.parametrize("place_kind", ["4.x", "artemis", "rocketmq5"], indirect=True)
def test_a_broker_is_away_for_ten_minutes(own_broker: OwnBroker, fleet: Fleet) -> None:
    """Meanwhile, a retry becomes due, and a worker process ends that had a job in hand."""
    workers = busy(fleet)
    own_broker.kill()
    all_report(workers, "not_ready")
    workers[0].terminate()
    passes(AWAY)
    own_broker.start()
    ends_without_alarm(fleet, 2)


def test_a_ledger_is_away_for_ten_minutes(rabbitmq_place: Place, postgres_cluster: Cluster, fleet: Fleet) -> None:
    """Likewise; each living owner has renewed its leases before anyone looks for a lost message."""
    workers = busy(fleet)
    postgres_cluster.kill()
    all_report(workers, "not_ready")
    workers[0].terminate()
    passes(AWAY)
    postgres_cluster.start()
    ends_without_alarm(fleet, 2)


@pytest.mark.parametrize("place_kind", ["4.x", "artemis", "rocketmq5"], indirect=True)
def test_all_hosts_are_suspended_for_five_minutes(
    own_broker: OwnBroker, postgres_cluster: Cluster, fleet: Fleet
) -> None:
    """Broker, ledger and workers wake up again, in this order."""
    workers = busy(fleet)
    for worker in workers:
        worker.signal_all(signal.SIGSTOP)
    postgres_cluster.freeze()
    own_broker.freeze()
    passes(SUSPENDED)
    own_broker.thaw()
    postgres_cluster.thaw()
    for worker in workers:
        worker.signal_all(signal.SIGCONT)
    ends_without_alarm(fleet, 1)


@pytest.mark.parametrize("place_kind", ["4.x"], indirect=True)
def test_the_workers_alone_are_suspended_for_five_minutes(place: Place, fleet: Fleet) -> None:
    """Their broker and ledger go on, so each lease is over when its owner wakes up: it is the owner's still."""
    workers = busy(fleet)
    assert place.consumers(fleet.queue) > 0
    for worker in workers:
        worker.signal_all(signal.SIGSTOP)
    passes(SUSPENDED)
    for worker in workers:
        worker.signal_all(signal.SIGCONT)
    ends_without_alarm(fleet, 1)
