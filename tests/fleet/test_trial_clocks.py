"""Clocks that differ by hours between a worker process and all others: each job runs once, when it is due."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from steadyworker.ledger.base import State
from tests.brokers.install import HOST, faketime_program
from tests.brokers.place import Place
from tests.brokers.rocketmq_place import LATER
from tests.fleet.kit import LIGHT, Fleet

LATE = 20.0
"""Seconds that a delayed job may come late."""

pytestmark = pytest.mark.slow


def skewed(offset: str) -> tuple[str, ...]:
    """Return what runs a process with another wall clock, in the same process; the clocks by which it waits are the machine's."""
    faketime_program()  # which would be another process between the test and the worker process
    (library,) = HOST.glob("usr/lib/*/faketime/libfaketime.so.1")
    return ("env", f"LD_PRELOAD={library}", f"FAKETIME={offset}", "FAKETIME_DONT_FAKE_MONOTONIC=1")


@pytest.mark.parametrize("offset", ["+5h", "-5h"])
@pytest.mark.parametrize("place_kind", ["4.x", "classic", "artemis", "rocketmq4"], indirect=True)
def test_a_worker_process_whose_wall_clock_is_hours_off(fleet: Fleet, offset: str) -> None:
    """The delay that a sender with another clock asks for, and those of the worker process's own retries, are what they are."""
    fleet.worker(LIGHT, around=skewed(offset), concurrency=3).started()
    began = time.monotonic()
    fleet.command("send", fleet.queue, "{}", "--key", "later", "--delay", "5s").ended(0)
    fleet.send_all({"retried": {"delays": [1.0, 2.0]}})
    fleet.notes("ends", 2)
    noted = [line.split() for line in fleet.lines("times")]
    (later,) = [float(at) for key, at in noted if key == "later"]
    assert 5 <= later - began < 5 + LATE
    waits = [after - before for before, after in pairwise(float(at) for key, at in noted if key == "retried")]
    assert [delay <= wait < delay + LATE for delay, wait in zip([1.0, 2.0], waits, strict=True)] == [True, True], waits
    fleet.empties()
    assert sorted(fleet.lines("starts")) == ["later 1", "retried 1", "retried 2", "retried 3"]


@pytest.mark.parametrize("place_kind", ["rocketmq5"], indirect=True)
def test_a_proxy_that_takes_times_and_no_delays(place: Place, fleet: Fleet) -> None:
    """A retry of a worker process that is five hours ahead comes as much later, and not early; its start says why."""
    worker = fleet.worker(LIGHT, around=skewed("+5h"), concurrency=2).started()
    (warning,) = [line for line in worker.lines("check_warning") if "clock" in line["what"]]
    assert "behind the clock of this machine" in warning["what"]
    assert "NTP" in warning["remedy"]
    fleet.send_all({"retried": {"delays": [1.0]}, "ends": {}})
    fleet.notes("ends", 1)
    worker.reports("job_settled", key="retried", settlement="later")
    worker.terminate()
    worker.ended(0)
    assert fleet.reaches(fleet.queue, State.MOVED, "retried").counters.attempts == 1
    assert place.ready()[f"{fleet.queue}{LATER}"] == 1, "the copy waits at the broker"
    assert sorted(fleet.lines("starts")) == ["ends 1", "retried 1"]
