"""What an operator does to a broker in operation is seen by the worker processes, and no job is lost or run twice by it."""

from __future__ import annotations

from tests.brokers.rabbitmq import Node
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.fleet.kit import LIGHT, QUEUE, STEADY, Fleet


def test_a_policy_that_would_delete_queues_ends_a_worker_that_runs_and_prevents_the_next_start(
    rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    """78 both times, with the remedy: the checks are repeated a minute after the start, and daily."""
    broker = rabbitmq_place.url(management=True)
    worker = fleet.worker(LIGHT, broker=broker, script={"recheck": 0.5}).started()
    fleet.send_all({"job": {}})
    fleet.notes("ends", 1)
    rabbitmq_place.set_policy("tidy", {"expires": 600_000})
    worker.says("check_error")
    worker.ended(78)
    late = fleet.worker(LIGHT, broker=broker)
    late.ended(78)
    told = {line["what"]: line["remedy"] for line in worker.lines("check_error")}
    assert told == {line["what"]: line["remedy"] for line in late.lines("startup_refused")}
    (remedy,) = {remedy for what, remedy in told.items() if f"Jobs in '{QUEUE}'" in what}
    assert remedy == "remove expires from policy 'tidy', or from the operator policy that sets it."
    assert len(told) == 6
    reasons = worker.lines("worker_stopped")[0]["reasons"]
    assert any("policy 'tidy'" in reason for reason in reasons)


def test_a_cluster_that_is_renamed_runs_no_job_twice(
    rabbitmq_node: Node, rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    """A worker under the new name would not know the jobs of those under the old one: it is refused, with the remedy."""
    old = rabbitmq_node.management("GET", "cluster-name")["name"]
    former = fleet.worker(STEADY).started()
    fleet.send_all({"job": {}})
    fleet.notes("waiting", 1)
    try:
        rabbitmq_node.management("PUT", "cluster-name", {"name": "renamed"})
        late = fleet.worker(STEADY)
        late.ended(78)
        remedy = late.lines("startup_refused")[0]["remedy"]
        namespace = f"{old}:{rabbitmq_place.vhost.name}"
        assert f"--namespace '{namespace}'" in remedy
        assert fleet.lines("starts") == ["job 0"]

        fleet.worker(STEADY, namespace=namespace).started()
        former.terminate()
        former.ended(0)
        assert fleet.notes("starts", 2) == ["job 0", "job 10"]
        fleet.worker(STEADY).ended(78)
        fleet.open()
        fleet.notes("ends", 1)
        fleet.empties()
        assert fleet.lines("starts") == ["job 0", "job 10"]
    finally:
        rabbitmq_node.management("PUT", "cluster-name", {"name": old})
