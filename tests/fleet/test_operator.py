"""What an operator does to a broker in operation is seen by the worker processes, and no job is lost or run twice by it."""

from __future__ import annotations

import json
import shlex
import signal

import pytest

from tests.brokers.rabbitmq import Node
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.fleet.kit import LIGHT, QUEUE, STEADY, Fleet
from tests.support.stage import eventually


def test_a_policy_that_would_delete_queues_ends_a_worker_that_runs_and_prevents_the_next_start(
    rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    """78 both times, with the remedy: the checks are repeated a minute after the start, and daily."""
    broker = rabbitmq_place.url(management=True)
    worker = fleet.worker(LIGHT, broker=broker, script={"recheck": 0.5}).started()
    fleet.send_all({"job": {}})
    fleet.notes("ends", 1)
    # Statistics are up to 10 s old, so a worker that runs would see the policy at some of its queues first.
    worker.signal_all(signal.SIGSTOP)
    policy = {"expires": 600_000}
    rabbitmq_place.set_policy("tidy", policy)
    eventually(lambda: rabbitmq_place.policies_in_statistics() == {json.dumps(policy)}, "the policy in all statistics")
    worker.signal_all(signal.SIGCONT)
    worker.reports("check_error")
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


def test_a_policy_that_would_delete_new_queues_ends_their_first_worker_after_a_minute(
    rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    """
    On an empty virtual host: RabbitMQ reports the policy of a queue only some seconds after the queue is made.

    So the first start makes the queues and runs jobs; the check a minute later reports the policy, and the next one ends the worker process.
    """
    rabbitmq_place.set_policy("tidy", {"expires": 600_000})
    broker = rabbitmq_place.url(management=True)
    worker = fleet.worker(LIGHT, broker=broker, script={"recheck": 2.0}).started()
    fleet.send_all({"job": {}})
    fleet.notes("ends", 1)
    worker.reports("check_error")
    worker.ended(78)
    remedies = {line["remedy"] for line in worker.lines("check_error")}
    assert remedies == {"remove expires from policy 'tidy', or from the operator policy that sets it."}
    check, run = (fleet.command(name, LIGHT, broker=broker) for name in ("check", "run"))
    for command in (check, run):
        command.ended(78)
    shown = " ".join(check.log_end().split())
    for lost in (f"Jobs in '{QUEUE}'", f"Dead letters in '{QUEUE}.dead'", f"Waiting jobs in '{QUEUE}.later.1000ms'"):
        assert f"error: {lost} are lost when the queue is unused for 600 s" in shown
    rabbitmq_place.rabbitmq.management("DELETE", f"policies/{rabbitmq_place.vhost.name}/tidy")
    eventually(lambda: rabbitmq_place.policies_in_statistics() <= {"{}", "[]"}, "no policy in all statistics")
    fleet.command("run", LIGHT, broker=broker, idle_exit=0.1).ended(0)


@pytest.mark.parametrize(
    ("definition", "queues"),
    [
        ({"message-ttl": 500}, ["", ".dead", ".later.1000ms", ".later.10000ms", ".later.2000ms", ".later.5000ms"]),
        ({"max-length": 10}, [".dead"]),
    ],
    ids=["message-ttl", "max-length"],
)
def test_a_policy_for_all_queues_that_limits_them_is_named(
    rabbitmq_place: RabbitmqPlace, fleet: Fleet, definition: dict[str, int], queues: list[str]
) -> None:
    """An operator can want a limit, so `run` warns and starts; no limit of length drops a job, or a copy that waits."""
    broker = rabbitmq_place.url(management=True)
    fleet.command("run", LIGHT, broker=broker, idle_exit=0.1).ended(0)
    rabbitmq_place.set_policy("tidy", definition)
    eventually(
        lambda: rabbitmq_place.policies_in_statistics() == {json.dumps(definition)}, "the policy in all statistics"
    )
    run = fleet.command("run", LIGHT, broker=broker, log_format="json", idle_exit=0.1)
    run.ended(0)
    warnings = [line for line in run.lines("check_warning") if "policy 'tidy'" in line["remedy"]]
    assert sorted(line["what"].split("'")[1] for line in warnings) == sorted(f"{QUEUE}{name}" for name in queues)
    (name,) = definition
    assert all(f"remove {name} from policy 'tidy'" in line["remedy"] for line in warnings)


def test_the_remedy_for_a_sender_without_rights_is_all_that_it_needs(
    rabbitmq_node: Node, rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    """`send` names the right, and `check` the command; once that was run, `send` works, and nothing else does."""
    fleet.send_all({"first": {}})
    name = rabbitmq_place.vhost.name

    def permit(pattern: str) -> None:
        rights = dict.fromkeys(("configure", "write", "read"), pattern)
        rabbitmq_node.management("PUT", f"permissions/{name}/{rabbitmq_place.vhost.user}", rights)

    permit("^$")
    refused = fleet.command("send", fleet.queue, "{}", "--key", "refused")
    refused.ended(69)
    assert r"grant write access to ^amq\.default$ with rabbitmqctl set_permissions" in " ".join(
        refused.log_end().split()
    )
    check = fleet.command("check", LIGHT, "--json")
    check.ended(78)
    (told,) = (line for line in check.log.read_text().splitlines() if line.startswith("{"))
    remedies = {finding["remedy"] for finding in json.loads(told)["findings"]}
    (command,) = {remedy.partition("created the queues: ")[2] for remedy in remedies if "A sender needs less" in remedy}
    program, *words = shlex.split(command)
    assert program == "rabbitmqctl"
    rabbitmq_node.ctl(*words)
    fleet.command("send", fleet.queue, "{}", "--key", "sent").ended(0)
    fleet.worker(LIGHT).ended(78)
    permit(".*")  # from 4.3 on, who has no right at all to a queue may not count its messages either
    assert rabbitmq_place.ready()[QUEUE] == 2
    assert fleet.lines("starts") == []


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
