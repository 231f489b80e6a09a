"""What happens to a link, to a broker or to a worker process in the middle of a job costs no run and no job."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from steadyworker.ledger.base import State
from tests.brokers.place import Ability, OwnBroker
from tests.faults.proxy import Proxy
from tests.fleet.kit import APART, LIGHT, SOON, Fleet
from tests.support.stage import WITHIN, eventually

HEARTBEAT = 5
LASTS = 60.0
"""Seconds of the long jobs: twelve heartbeats."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["cut", "killed", "frozen"])
def test_long_jobs_outlive_what_happens_after_20_seconds(own_broker: OwnBroker, fleet: Fleet, what: str) -> None:
    """One waits, and one keeps the processor busy in its thread, from which pings of the broker must not starve."""
    _outlive(own_broker, fleet, what, tls=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.needs(Ability.TLS)
@pytest.mark.parametrize("what", ["cut", "killed", "frozen"])
def test_long_jobs_outlive_the_same_over_tls(own_broker: OwnBroker, fleet: Fleet, what: str) -> None:
    _outlive(own_broker, fleet, what, tls=True)


def _outlive(own_broker: OwnBroker, fleet: Fleet, what: str, *, tls: bool) -> None:
    with Proxy(fleet.place.address(tls=tls)) as proxy:
        url = fleet.place.url(heartbeat=HEARTBEAT, through=proxy, tls=tls)
        began = time.monotonic()
        fleet.send_all({"busy": {"busy": LASTS}, "waits": {"gate": "gate"}})
        worker = fleet.worker(LIGHT, broker=url, concurrency=2, script=SOON)
        fleet.notes("starts", 2)
        eventually(lambda: time.monotonic() > began + 20, "20 s")
        assert worker.lines("delivery_lost") == []
        match what:
            case "cut":
                proxy.cut()
            case "killed":
                own_broker.kill()
                fleet.loses([worker], 2)
                own_broker.start()
            case _:
                own_broker.freeze()
                eventually(lambda: time.monotonic() > began + 50, "30 s more")
                own_broker.thaw()
        eventually(lambda: time.monotonic() > began + LASTS, "the end of a long job", within=LASTS)
        fleet.open()
        fleet.ends_clean("busy", "waits")
        if fleet.redelivers_at_once:
            assert len(fleet.logged("delivery_lost")) == 2
        elif what == "cut":
            assert fleet.logged("delivery_lost") == []
    assert sorted(fleet.lines("starts")) == ["busy 1", "waits 1"]


@pytest.mark.also("classic")
def test_a_worker_that_is_killed_with_25_of_100_jobs_in_hand(fleet: Fleet) -> None:
    """Its jobs are started once more by the others, who see that it is dead; no other job is."""
    jobs = [f"job-{number:02}" for number in range(100)]
    fleet.place.make_queue(fleet.queue)
    fleet.send_all({job: {"gate": "gate"} for job in jobs})
    workers = [fleet.worker(LIGHT, concurrency=25, script=SOON) for _ in range(4)]
    fleet.notes("starts", 100)
    workers[0].reports("job_started", 25)  # a note of a handler can be there before the line in the log
    killed = {line["key"] for line in workers[0].lines("job_started")}
    assert len(killed) == 25
    workers[0].signal_all(signal.SIGKILL)
    workers[0].wait()
    fleet.open()
    within = WITHIN + fleet.place.redelivers_within
    eventually(lambda: len(fleet.lines("ends")) == 100, "100 ends", within, fleet.logs)
    fleet.empties()
    assert Counter(fleet.lines("ends")) == Counter(jobs)
    starts = Counter(line.split()[0] for line in fleet.lines("starts"))
    assert starts == {job: 2 if job in killed else 1 for job in jobs}


def _cut(proxy: Proxy, fleet: Fleet) -> None:
    proxy.cut()
    (fleet.folder / "go").touch()


def _killed(proxy: Proxy, fleet: Fleet) -> None:
    assert proxy.links
    fleet.processes[0].signal_all(signal.SIGKILL)
    fleet.processes[0].wait()
    fleet.worker(LIGHT, broker=fleet.place.url(through=proxy))


@pytest.mark.also("classic")
@pytest.mark.parametrize("happens", [_cut, _killed])
def test_a_retry_that_is_disturbed_between_its_copy_and_the_acknowledgement_of_the_original(
    fleet: Fleet, happens: Callable[[Proxy, Fleet], None]
) -> None:
    """The original comes again, beside its copy: it is settled, and the copy runs once."""
    with Proxy(fleet.place.address()) as proxy:
        fleet.send_all({"job": {"delays": [2.0]}})
        url = fleet.place.url(through=proxy)
        fleet.worker(LIGHT, broker=url, script={"pause": "adapter.publish:after:1"})
        eventually((fleet.folder / "paused").exists, "the copy is confirmed", report=fleet.logs)
        happens(proxy, fleet)
        fleet.notes("ends", 1)
        fleet.empties()
        assert fleet.lines("starts") == ["job 1", "job 2"]
        assert fleet.lines("ends") == ["job"]
        assert fleet.reaches(fleet.queue, State.DONE).counters.attempts == 1


@pytest.mark.also("classic")
def test_a_message_that_is_no_job_and_a_job_that_kills_its_process_are_dead_letters_and_the_next_job_runs(
    fleet: Fleet,
) -> None:
    """Each has its cause; the commands list and drop them."""
    fleet.send_all({"killer": {"dies": True}})
    fleet.place.publish(fleet.queue, b"\xff no job", key="poison")
    fleet.send_all({"good": {}})
    fleet.worker(APART, concurrency=2)

    def dead(*arguments: str) -> str:
        command = fleet.command("dead", *arguments, fleet.queue)
        command.ended(0)
        return command.log.read_text()

    def are_dead(count: int) -> None:
        eventually(lambda: fleet.place.dead_letters(fleet.queue) == count, f"{count} dead", report=fleet.logs)

    fleet.notes("ends", 1)
    are_dead(2)
    assert Counter(fleet.lines("starts")) == Counter({"killer 1": 3, "good 1": 1})
    letters = dead("list", "--json")
    assert '"reason":"crash-loop: SIGKILL"' in letters
    assert '"reason":"bad-payload: $: expected UTF-8, got byte 0xff at 0"' in letters
    assert "2 dead letters dropped" in dead("drop", "--all")
    are_dead(0)
    fleet.empties()
