"""The broker loses the message of a job that a worker process has claimed: the job ends once, and the log says what happened."""

from __future__ import annotations

import os
import signal
import time

import pika
import pytest

from steadyworker.ledger.base import State
from tests.brokers.place import Place, Places
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.fleet.kit import LIGHT, QUEUE, STEADY, Fleet
from tests.fleet.lost import BRIEF, LOST_AFTER, RESERVING, SOON_LOST
from tests.support.stage import WITHIN, WorkerProcess, eventually

BACKLOG = 10_000


def killed(worker: WorkerProcess) -> None:
    """SIGKILL to all of it."""
    worker.signal_all(signal.SIGKILL)
    worker.wait()


def takes_over_from_ten(fleet: Fleet, worker: WorkerProcess) -> None:
    """This worker process finds the job whose message is lost, and ends it; its first run was killed at position 10."""
    line = worker.reports("message_lost", within=2 * WITHIN)
    assert (line["key"], line["fate"], line["state"], line["level"]) == ("job", "runs", "running", "warning")
    assert line["owner"]
    assert line["explain"] == "steadyworker.message-lost"
    fleet.notes("starts", 2)
    fleet.open()
    fleet.ends_clean("job", losses=1)
    assert fleet.lines("starts") == ["job 0", "job 10"]
    assert len(fleet.logged("message_lost")) == 1


def stays(condition: str, seconds: float, fleet: Fleet, *events: str) -> None:
    """Wait for so long, and fail if any worker process logs one of these events meanwhile."""
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > until or any(fleet.logged(event) for event in events), condition, 2 * seconds)
    assert {event: fleet.logged(event) for event in events if fleet.logged(event)} == {}, condition


def test_a_queue_is_deleted_while_the_worker_of_a_long_job_is_killed(fleet: Fleet) -> None:
    """Another worker process of the fleet ends the job, and says that the message was lost."""
    fleet.send_all({"job": {}})
    first = fleet.worker(STEADY, script=SOON_LOST)
    fleet.notes("waiting", 1)
    second = fleet.worker(STEADY, script=SOON_LOST).started()
    fleet.place.delete(fleet.queue)
    killed(first)
    takes_over_from_ten(fleet, second)


@pytest.mark.parametrize("place_kind", ["4.x", "rocketmq4", "classic", "artemis"], indirect=True)
@pytest.mark.slow
def test_a_queue_is_purged_while_the_worker_of_a_long_job_is_killed(fleet: Fleet) -> None:
    """The message is back in its queue when its operator purges it; who consumes next finds nothing, and the job goes on."""
    fleet.send_all({"job": {}})
    first = fleet.worker(STEADY, script=SOON_LOST)
    fleet.notes("waiting", 1)
    killed(first)
    eventually(lambda: fleet.left() == {fleet.queue: 1}, "the message is back", report=lambda: str(fleet.left()))
    fleet.place.purge(fleet.queue)
    eventually(lambda: fleet.left() == {}, "the queue is empty")
    takes_over_from_ten(fleet, fleet.worker(STEADY, script=SOON_LOST))


@pytest.mark.slow
def test_a_queue_that_is_deleted_under_verify_is_named_and_the_job_goes_on_when_it_exists_again(
    rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    fleet.send_all({"job": {}})
    first = fleet.worker(STEADY, topology="verify", script=SOON_LOST)
    fleet.notes("waiting", 1)
    second = fleet.worker(STEADY, topology="verify", script=SOON_LOST).started()
    rabbitmq_place.delete(QUEUE)
    killed(first)
    assert QUEUE in second.reports("not_ready")["why"]
    stays("a queue that does not exist", 2 * LOST_AFTER, fleet, "message_lost", "ready_again")
    rabbitmq_place.make_queue(QUEUE)
    second.reports("ready_again")
    takes_over_from_ten(fleet, second)


@pytest.mark.slow
@pytest.mark.parametrize("place_kind", ["4.x", "classic", "artemis"], indirect=True)
def test_a_retry_whose_copy_is_purged_while_it_waits(place: Place, fleet: Fleet) -> None:
    """The next attempt runs from the ledger's copy, after its delay."""
    fleet.send_all({"job": {"delays": [10.0]}})
    worker = fleet.worker(LIGHT, script=SOON_LOST)
    worker.reports("job_settled", settlement="later")
    assert fleet.reaches(fleet.queue, State.MOVED).counters.attempts == 1
    place.purge(f"{QUEUE}.later.10000ms" if isinstance(place, RabbitmqPlace) else fleet.queue)
    eventually(lambda: fleet.left() == {}, "the copy is gone")
    line = worker.reports("message_lost", within=2 * WITHIN)
    assert (line["fate"], line["state"]) == ("runs", "moved")
    fleet.ends_clean("job", attempts=1)
    first, second = (float(line.split()[1]) for line in fleet.lines("times"))
    assert second - first >= 10
    assert fleet.lines("starts") == ["job 1", "job 2"]


def used_up(place: RabbitmqPlace) -> None:
    """A foreign program takes the message and dies, until the broker drops it."""
    for count in range(30):
        with place.channel() as channel:
            if channel.basic_get(QUEUE)[0] is None:
                assert count == 20
                return
    pytest.fail("expected a delivery limit of 20, got 30 deliveries")


@pytest.mark.slow
@pytest.mark.parametrize("rabbitmq_series", ["4.x"], indirect=True)  # earlier ones have no limit by default
def test_a_quorum_queue_without_dead_letters_drops_its_twentieth_delivery(
    rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    rabbitmq_place.declare(QUEUE, **{"x-queue-type": "quorum"})
    fleet.send_all({"job": {}})
    first = fleet.worker(STEADY, script=SOON_LOST)
    fleet.notes("waiting", 1)
    killed(first)
    eventually(lambda: fleet.left() == {QUEUE: 1}, "the message is back")
    used_up(rabbitmq_place)
    assert fleet.left() == {}
    takes_over_from_ten(fleet, fleet.worker(STEADY, script=SOON_LOST))


@pytest.mark.slow
def test_a_time_to_live_drops_the_message_of_a_killed_worker(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    """The worker process took it in time; it comes back too late to be delivered."""
    fleet.worker(STEADY, script=SOON_LOST).started()
    first = fleet.processes[0]
    rabbitmq_place.delete(QUEUE)
    rabbitmq_place.declare(QUEUE, **{"x-queue-type": "quorum", "x-message-ttl": 5000})
    fleet.consumed_by(1)
    fleet.send_all({"job": {}})
    fleet.notes("waiting", 1)
    sent = time.monotonic()
    eventually(lambda: time.monotonic() > sent + 6, "the end of its time to live")
    killed(first)
    eventually(lambda: fleet.left() == {}, "the message is dropped")
    takes_over_from_ten(fleet, fleet.worker(STEADY, script=SOON_LOST))


@pytest.mark.slow
def test_a_worker_that_is_quiet_or_drains_or_has_had_its_jobs_takes_no_lost_one(
    rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    """
    Each of the three has a free slot; the one that was quiet takes the job when it consumes again.

    Without a broker, `test_orphan_conditions.py` has each: `test_a_draining_process_takes_none`, `of_stage` of the test before it,
    and `test_max_jobs_counts_the_run_of_an_orphan`.
    """
    fleet.send_all({"job": {}})
    first = fleet.worker(STEADY, script=SOON_LOST)
    fleet.notes("waiting", 1)
    fleet.send_all({"last": {"gate": "gate"}, "drains": {"gate": "gate", "deaf": True}})
    spent = fleet.worker(LIGHT, concurrency=2, max_jobs=1, script=SOON_LOST)
    spent.reports("job_started")
    drains = fleet.worker(LIGHT, concurrency=2, stop_within=300, script=SOON_LOST)
    drains.reports("job_started")
    quiet = fleet.worker(STEADY, script=SOON_LOST).started()
    os.kill(quiet.pid, signal.SIGUSR1)
    drains.terminate()
    drains.reports("stage_changed", stage="draining")
    quiet.reports("stage_changed", stage="quiet")
    rabbitmq_place.delete(QUEUE)
    killed(first)
    stays("nobody takes it", 2 * LOST_AFTER, fleet, "message_lost")
    fleet.open()
    for worker in (spent, drains):
        worker.ended(0)
    os.kill(quiet.pid, signal.SIGUSR2)
    assert quiet.reports("message_lost", within=2 * WITHIN)["key"] == "job"
    fleet.notes("ends", 3)
    assert sorted(fleet.lines("ends")) == ["drains", "job", "last"]
    assert sorted(fleet.lines("starts")) == ["drains 1", "job 0", "job 10", "last 1"]
    assert len(fleet.logged("message_lost")) == 1


@pytest.mark.slow
def test_two_fleets_on_one_ledger_take_only_their_own(
    places: Places, rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    """Another queue at the same broker, and the same queue at another broker: neither takes what the fleet has lost."""
    fleet.send_all({"job": {}})
    first = fleet.worker(STEADY, script=SOON_LOST)
    fleet.notes("waiting", 1)
    fleet.worker(LIGHT, env={"FLEET_QUEUE": "beside"}, script=SOON_LOST).started()
    other = places.open()
    try:
        fleet.worker(STEADY, broker=other.url(), namespace="other", script=SOON_LOST).started()
        rabbitmq_place.delete(QUEUE)
        killed(first)
        stays("nobody takes it", 2 * LOST_AFTER, fleet, "message_lost")
        takes_over_from_ten(fleet, fleet.worker(STEADY, script=SOON_LOST))
    finally:
        other.close()


# --- a queue that is never empty ---------------------------------------------------------------------------------------


def publish_backlog(place: RabbitmqPlace, body: bytes) -> None:
    """Send ten thousand messages as a foreign program does."""
    with place.channel() as channel:
        for number in range(BACKLOG):
            given = pika.BasicProperties(message_id=f"waits-{number:05}", delivery_mode=2)
            channel.basic_publish("", QUEUE, body, given)
    eventually(lambda: place.ready().get(QUEUE, 0) >= BACKLOG, "ten thousand messages")


@pytest.mark.slow
def test_a_message_behind_ten_thousand_others_is_not_called_lost(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    """The copy of a retry is the last one of a queue that takes longer than a message may be late."""
    fleet.send_all({"job": {"delays": [1.0]}})
    publish_backlog(rabbitmq_place, b"{}")
    began = time.monotonic()
    fleet.worker(LIGHT, concurrency=2, script=SOON_LOST)
    eventually(lambda: not fleet.left() and "job" in fleet.lines("ends"), "all ends", 240, fleet.logs)
    assert time.monotonic() - began > LOST_AFTER
    assert [line for line in fleet.lines("starts") if line.startswith("job")] == ["job 1", "job 2"]
    assert [line.split()[0] for line in fleet.lines("starts")].index("job", 1) > BACKLOG * 0.9
    assert len(fleet.lines("starts")) == BACKLOG + 2
    assert fleet.logged("message_lost") == []


@pytest.mark.slow
def test_a_lost_message_gets_a_slot_of_a_queue_that_is_never_empty(rabbitmq_place: RabbitmqPlace, fleet: Fleet) -> None:
    """A foreign program takes the message of a killed worker process; the next ones have work all the time."""
    fleet.send_all({"job": {"seconds": 10}})
    first = fleet.worker(BRIEF, script=SOON_LOST)
    fleet.notes("starts", 1)
    killed(first)
    with rabbitmq_place.consumer(QUEUE) as foreign:
        assert foreign.take(WITHIN)
        foreign.ack()
    publish_backlog(rabbitmq_place, b'{"seconds": 0.02}')
    began = time.monotonic()
    second = fleet.worker(BRIEF, concurrency=2, script=RESERVING)
    assert second.reports("message_lost", within=3 * WITHIN)["unseen_for"] > 2 * LOST_AFTER
    assert time.monotonic() - began > LOST_AFTER
    assert rabbitmq_place.ready()[QUEUE] > 0
    rabbitmq_place.purge(QUEUE)
    eventually(lambda: "job" in fleet.lines("ends"), "the job's end", report=fleet.logs)
    assert [line.split()[0] for line in fleet.lines("starts")].count("job") == 2
    assert len(fleet.logged("message_lost")) == 1
