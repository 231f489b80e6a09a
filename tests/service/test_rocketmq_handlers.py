"""What handlers do, and how worker processes stop, on RocketMQ with both drivers: nothing is acknowledged that was not done."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import State
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.names import normal_key
from tests.brokers.rocketmq import RocketMQ4, RocketMQ5, RocketMQNode
from tests.support.stage import Processes, eventually

JOBS = "tests.support.jobs"
QUEUES = ("hostile", "greedy", "steps")
DRIVERS = [
    pytest.param(("rocketmq4", False), id="4", marks=pytest.mark.slow),
    pytest.param(("rocketmq5", False), id="5", marks=pytest.mark.slow),
    pytest.param(("rocketmq5", True), id="5-grpc"),
]

pytestmark = [pytest.mark.rocketmq, pytest.mark.xdist_group("rocketmq"), pytest.mark.timeout(300)]


class Place(Processes):
    """Worker processes at one node."""

    node: RocketMQNode

    def dead(self, queue: str) -> int:
        """Return the number of dead letters."""
        return self.node.count(f"{queue}-dead")

    def starts(self) -> Counter[str]:
        """Return how often each job was started."""
        path = self.folder / "starts"
        return Counter(line.rsplit(" ", 2)[0] for line in path.read_text().splitlines()) if path.exists() else Counter()


@pytest.fixture(params=DRIVERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    fixture, grpc = request.param
    node: RocketMQ4 | RocketMQ5 = request.getfixturevalue(fixture)
    ledger = SqliteLedger(tmp_path / "ledger.db", clock=SystemClock(), times=Times())
    url = f"{node.url}&queues=2&invisible=10" if grpc else f"{node.remoting_url}?queues=2"
    made = Place(tmp_path, ledger, broker_url=url, ledger_url=ledger.url)
    made.node = node
    for queue in QUEUES:
        node.remove(queue)
    yield made
    made.close()
    node.heal()
    for queue in QUEUES:
        node.remove(queue)


ENDS = {
    "nothing": State.DONE,  # returns None
    "value": State.DONE,
    "raises": State.DEAD,
    "system_exit": State.DEAD,
    "kill_itself": State.DEAD,
    "hold_gil": State.DEAD,  # for longer than its time limit
}


def test_whatever_a_handler_does_its_message_is_acknowledged_only_with_its_outcome(place: Place) -> None:
    """Each job has one start; those that failed are dead letters, and no message is left."""
    process = place.worker(f"{JOBS}:Hostile", ledger_reach="host").started()
    for number, do in enumerate(ENDS):
        place.send("hostile", {"do": do}, key=f"{do} {number} with blanks")
    for number, (do, state) in enumerate(ENDS.items()):
        place.reaches("hostile", state, normal_key(f"{do} {number} with blanks"))
    failed = sum(state is State.DEAD for state in ENDS.values())
    eventually(lambda: place.dead("hostile") == failed, f"{failed} dead letters")
    assert [*place.starts().values()] == [1] * len(ENDS)
    process.terminate()
    process.ended(0)
    again = place.worker(f"{JOBS}:Hostile", ledger_reach="host").started()
    place.send("hostile", {"do": "nothing"}, key="the last")
    place.reaches("hostile", State.DONE, normal_key("the last"))
    assert again.poll() is None
    assert place.starts().total() == len(ENDS) + 1
    assert place.dead("hostile") == failed


def test_two_messages_with_one_id_are_explained_by_what_the_sender_did(place: Place) -> None:
    """As a producer of RocketMQ's own sends them, if it gives one message object two bodies: the id is in UNIQ_KEY."""
    place.node.make_topic("steps", 2, "NORMAL")
    process = place.worker(f"{JOBS}:Steps", ledger_reach="host").started()
    id_ = place.node.send("steps", b'{"steps": 1}')
    row = place.reaches("steps", State.DONE, normal_key(id_))
    place.node.send("steps", b'{"steps": 2}', {"UNIQ_KEY": id_})
    line = eventually(lambda: process.lines("delivery_rejected"), "a rejection")[0]
    assert (line["key"], line["fence"], line["reason"]) == (row.id.key, row.fence, "key-conflict")
    assert line["explain"] == "steadyworker.id-conflict"
    assert "UNIQ_KEY" in line["remedy"]
    eventually(lambda: place.dead("steps") == 1, "a dead letter")
    assert place.starts() == {id_: 1}


@pytest.mark.slow
def test_a_job_that_holds_the_gil_for_longer_than_the_invisibility_runs_once(place: Place) -> None:
    """The worker process renews it, and a job holds only the GIL of its child; 25 s are more than two invisibilities."""
    place.worker(f"{JOBS}:Greedy", ledger_reach="host").started()
    place.worker(f"{JOBS}:Greedy", ledger_reach="host").started()
    place.send("greedy", {"seconds": 25}, key="greedy")
    row = place.reaches("greedy", State.DONE, "greedy")
    assert place.starts() == {"greedy": 1}
    assert (row.counters.attempts, row.counters.losses, row.counters.crashes) == (0, 0, 0)


@pytest.mark.parametrize("busy", [True, False], ids=["a running job", "no job"])
def test_a_worker_process_stops_in_time_and_gives_its_job_to_another(place: Place, busy: bool) -> None:
    """With a job that ignores it, and without any."""
    process = place.worker(f"{JOBS}:Steps", ledger_reach="host", stop_within=6).started()
    if busy:
        place.send("steps", {"steps": 3, "gate": "gate", "hears": True}, key="held")
        eventually(lambda: place.starts()["held"] == 1, "the job")
    process.send_signal(signal.SIGTERM)
    process.ended(0)
    if not busy:
        place.send("steps", {"steps": 3}, key="held")
    (place.folder / "gate").touch()
    place.worker(f"{JOBS}:Steps", ledger_reach="host").started()
    place.reaches("steps", State.DONE, "held")
    assert place.starts() == {"held": 2 if busy else 1}
    assert place.dead("steps") == 0
