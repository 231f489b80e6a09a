"""A broker, or a worker process, that stands still for a while and wakes up in another world."""

from __future__ import annotations

import signal
import time

import pytest

from steadyworker.ledger.base import State
from tests.brokers.place import OwnBroker
from tests.fleet.kit import LIGHT, SOON, STEADY, Fleet, all_report
from tests.support.stage import WITHIN

HEARTBEAT = 2
HASTY = {"times": {"lease": 8.0, "renew": 2.0, "trust_for": 6.0, "margin": 2.0, "defer_delay": 1.0}}


@pytest.mark.also("artemis")
def test_a_broker_that_is_frozen_for_longer_than_heartbeats_allow(own_broker: OwnBroker, fleet: Fleet) -> None:
    """Its silence sets the runs adrift; what it says when it wakes finds them as they were."""
    jobs = [f"job-{number}" for number in range(4)]
    fleet.send_all({job: {"gate": "gate"} for job in jobs})
    url = fleet.place.url(heartbeat=HEARTBEAT)
    workers = [fleet.worker(LIGHT, broker=url, concurrency=2, script=SOON) for _ in range(2)]
    fleet.notes("starts", 4)
    own_broker.freeze()
    fleet.loses(workers, 2)
    all_report(workers, "not_ready")
    own_broker.thaw()
    all_report(workers, "ready_again")
    fleet.open()
    fleet.ends_clean(*jobs)
    assert sorted(fleet.lines("starts")) == [f"{job} 1" for job in jobs]


def test_a_worker_that_is_frozen_past_its_lease_is_refused_everywhere(fleet: Fleet) -> None:
    """The broker gives its message to another, which follows while the lease lasts, and then takes the job over."""
    fleet.send_all({"job": {}})
    url = fleet.place.url(heartbeat=HEARTBEAT)
    first = fleet.worker(STEADY, broker=url, script=HASTY)
    fleet.notes("waiting", 1)
    row = fleet.reaches(fleet.queue, State.RUNNING)
    second = fleet.worker(STEADY, broker=url, script=HASTY).started()
    first.signal_all(signal.SIGSTOP)
    if fleet.redelivers_at_once:  # elsewhere the lease ends before the broker gives up the first one
        second.reports("delivery_deferred")
    within = WITHIN + fleet.place.redelivers_within
    assert second.reports("taken_over", within=within)["losses"] == 1
    fleet.notes("starts", 2)
    fleet.open()
    second.reports("job_settled", outcome="done")
    first.signal_all(signal.SIGCONT)
    first.reports("fenced")  # by the ledger's word, whether it hears that before its lost connection's or after
    fleet.ends_clean("job", losses=1)
    assert fleet.lines("starts") == ["job 0", "job 10"]
    saved = [line.split() for line in fleet.lines("saved")]
    assert [int(position) for fence, position in saved if int(fence) == row.fence] == [*range(1, 11)], "refused since"
    assert [int(position) for fence, position in saved if int(fence) != row.fence] == [*range(11, 101)]
    assert [line["fence"] for line in fleet.logged("job_settled")] == [fleet.row(fleet.queue).fence]  # type: ignore[union-attr]


@pytest.mark.slow  # it stands still for three leases
def test_everything_that_stands_still_together_goes_on_together(own_broker: OwnBroker, fleet: Fleet) -> None:
    """A host that is suspended with all that runs on it: each owner wakes to a lease that is over, and finds its job its own."""
    jobs = [f"job-{number}" for number in range(4)]
    fleet.send_all({job: {"gate": "gate"} for job in jobs})
    url = fleet.place.url(heartbeat=HEARTBEAT)
    workers = [fleet.worker(LIGHT, broker=url, concurrency=2, script=HASTY) for _ in range(2)]
    fleet.notes("starts", 4)
    for worker in workers:
        worker.signal_all(signal.SIGSTOP)
    own_broker.freeze()
    time.sleep(30)  # this is what is tested
    own_broker.thaw()
    for worker in workers:
        worker.signal_all(signal.SIGCONT)
    fleet.open()
    fleet.ends_clean(*jobs)
    assert sorted(fleet.lines("starts")) == [f"{job} 1" for job in jobs]
