"""A broker that dies or is restarted under a fleet: no job is lost, and none is started again."""

from __future__ import annotations

import re

import pytest

from tests.brokers.place import OwnBroker
from tests.fleet.kit import LIGHT, SOON, Fleet, all_report
from tests.support.stage import eventually


@pytest.mark.also("artemis")
def test_a_broker_that_is_killed_with_100_jobs_in_flight(own_broker: OwnBroker, fleet: Fleet, queue_kind: str) -> None:
    """Four worker processes, 25 runs each: a half ends while the broker is dead, the other half after its return."""
    fleet.place.make_queue(fleet.queue, queue_kind)
    jobs = {f"job-{number:02}": {"gate": "late" if number % 2 else "early"} for number in range(100)}
    fleet.send_all(jobs)
    workers = [fleet.worker(LIGHT, concurrency=25, script=SOON) for _ in range(4)]
    fleet.notes("starts", 100)
    own_broker.kill()
    fleet.loses(workers, 25)
    fleet.open("early")
    fleet.notes("ends", 50)
    own_broker.start()
    if fleet.redelivers_at_once:
        eventually(lambda: fleet.logged("adopted"), "a redelivery that came home", report=fleet.logs)
        eventually(lambda: fleet.logged("duplicate_acked"), "a redelivery that was answered", report=fleet.logs)
    fleet.open("late")
    fleet.ends_clean(*jobs)
    assert sorted(fleet.lines("starts")) == [f"{key} 1" for key in jobs]


@pytest.mark.usefixtures("own_broker")
def test_a_rolling_restart(fleet: Fleet) -> None:
    """
    A broker that is stopped closes its connections, and says why: the log has it.

    Every run's message comes home, and nothing starts again.

    With one delay for both, each worker process could get the message of the other one's run again and again, in step.
    """
    jobs = [f"job-{number}" for number in range(4)]
    fleet.send_all({job: {"gate": "gate"} for job in jobs})
    patient = [{"times": {"defer_delay": delay, "adopt_window": 60.0}} for delay in (1.0, 5.0)]
    workers = [fleet.worker(LIGHT, concurrency=2, script=script) for script in patient]
    fleet.notes("starts", 4)
    for turn in (1, 2):
        with fleet.place.stopped():
            fleet.loses(workers, 2, turn)
        if fleet.redelivers_at_once:
            eventually(lambda turn=turn: len(fleet.logged("adopted")) == 4 * turn, "all home", report=fleet.logs)  # type: ignore[misc]
        else:
            all_report(workers, "ready_again", turn)
    if fleet.redelivers_at_once:
        causes = [line["cause"] for line in fleet.logged("delivery_lost")]
        assert [bool(re.search(fleet.place.farewell, cause)) for cause in causes] == [True] * 8
    fleet.open()
    fleet.ends_clean(*jobs)
    assert sorted(fleet.lines("starts")) == [f"{job} 1" for job in jobs]
