"""
Finds the problems of this broker and a Worker's queues; `findings.toml` has the texts of the findings.

These checks change nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pika

from steadyworker.errors import BrokerUnavailable, Finding
from steadyworker.findings import FindingTexts
from steadyworker.network import owed
from steadyworker_rabbitmq.checks import limits, risks
from steadyworker_rabbitmq.checks.management import ManagementApi, Unanswered
from steadyworker_rabbitmq.checks.probe import BrokerProbe
from steadyworker_rabbitmq.checks.queue_state import ExistingQueue, differences
from steadyworker_rabbitmq.errors import QueueUnavailable, alarm_id
from steadyworker_rabbitmq.topology import PlannedQueue, Role, Topology

_RARE_HEARTBEAT = 300
_HASTY_HEARTBEAT = 5
_LARGEST_BODY = 134_217_728
"""The largest body, in bytes, that the check expects in a work queue. This size is the default limit of RabbitMQ 3."""

_LARGEST_PROBE = (16 << 20) + 1
"""
The largest body, in bytes, that the check sends to find the broker's limit.

The size is limited, because each start of a worker process sends this body.
The size is one byte above the default limit of RabbitMQ 4, so that the check finds this limit.
"""

_ROLES: dict[Role, str] = {"work": "work queue", "retry": "retry queue", "dead": "dead-letter queue"}
_EFFECTS: dict[Role, str] = {
    "work": "no job starts until it is back",
    "retry": "a job that waits there comes when it is back, and other jobs cannot wait there",
    "dead": "no dead letter is stored or read until it is back",
}
"""The effect on jobs and dead letters while the broker cannot reach a queue of this role."""

_NO_POLICY = Unanswered(
    "the management API reports no policy",
    "remove management_agent.disable_metrics_collector from rabbitmq.conf, or correct ?management= in --broker.",
)
"""Up to 4.2, the API never reports the policy of a queue without statistics (seen on 3.10.8 and 4.0.5)."""

_finding = FindingTexts("steadyworker_rabbitmq")


def find(
    connection: pika.BlockingConnection,
    topology: Topology,
    management: ManagementApi | None = None,
    *,
    consuming: bool = False,
    reopen: Callable[[], pika.BlockingConnection] | None = None,
) -> list[Finding]:
    """
    Return all findings, each with its remedy.

    The call blocks, uses its own channels, and creates and changes nothing.
    The call queries `management` for facts that AMQP cannot report; after one failure, it sends no further query.
    A finding then reports the facts that stay unknown.
    RabbitMQ reports the policy of a new queue only after some seconds, so an earlier check does not find this policy.
    If the broker does not reply to a question in time, the call ends the connection, and reports this as a finding.
    `reopen` then opens the next connection.
    An adapter that is already `consuming` waits by itself for permissions and missing queues.
    So if `consuming` is True, the call returns only findings about existing queues, and publishes nothing.

    Raises:
        BrokerUnavailable: The connection was lost during the call.
    """
    broker = BrokerProbe(connection, management, within=owed.QUESTION_WITHIN, reopen=reopen)
    if too_old := broker_finding(broker):
        return [too_old]
    found = [] if consuming else [*_heartbeat(broker), *_reading(broker, topology)]
    work = None
    for planned in topology.queues(broker.version):
        try:
            if topology.mode == "trust":
                found += _trusted(broker, planned)
            elif (queue := broker.queue(planned, redeclare=topology.mode == "declare")) is not None:
                found += _existing(broker, topology, planned, queue)
                if consuming and planned.role == "work" and queue.policy is None and broker.asks and not broker.unasked:
                    found += _unseen(_NO_POLICY, queue, iter(()))
                work = queue if planned.role == "work" else work
            elif not consuming:
                found += _missing(broker, topology, planned)
        except QueueUnavailable as error:
            found.append(_unavailable(planned.role, planned.name, error))
    # `_writing` comes last, because during an alarm the broker stops reading from a connection that has published.
    if not consuming:
        found += _writing(broker, topology, work)
    # Several questions about an unavailable queue lead to the same finding; the caller gets this finding only once.
    return list(dict.fromkeys(found))


def broker_finding(broker: BrokerProbe) -> Finding | None:
    """Return a finding if the broker is not RabbitMQ, or is too old; otherwise None."""
    if broker.product == "RabbitMQ" and broker.version >= limits.OLDEST:
        return None
    oldest, version = (".".join(map(str, each)) for each in (limits.OLDEST, broker.version))
    return _finding("rabbitmq.too-old", oldest=oldest, product=broker.product, version=version)


def refused_finding(error: BrokerUnavailable) -> Finding:
    """Return the finding for a broker that refuses the connection."""
    return _caused(_finding("rabbitmq.refused", error=error), error)


def names_finding(reported: Mapping[str, str], failed: Sequence[BrokerUnavailable] = ()) -> list[Finding]:
    """
    Return an error if hosts report different cluster names, and a warning for each host that did not respond.

    `reported` maps each host to the cluster name that it reports; `failed` has the errors of the other hosts.

    Until an operator runs `set_cluster_name`, each node of a cluster reports its own name as the cluster's name.
    The ledger would then record the jobs of one queue under several names.
    A worker process could then start a job under one name while the job already runs under another name.
    """
    silent = [_caused(_finding("rabbitmq.silent-host", error=error), error) for error in failed]
    first, *others = sorted({*reported.values()}) or [""]
    if not others:
        return silent
    got = ", ".join(f"{name!r} from {host}" for host, name in reported.items())
    return [_finding("rabbitmq.several-cluster-names", names=got, name=shlex.quote(first)), *silent]


def retry_finding(planned: PlannedQueue, queue: ExistingQueue) -> Finding | None:
    """
    Return a finding if a retry queue differs from the plan, because such a queue could misroute or lose waiting jobs.

    An additional argument does no harm.
    But without the management API, the broker reports only one difference, and could hide a harmful difference.
    """
    unseen = queue.arguments is None
    different = [each for each in differences(planned, queue) if unseen or each.expected is not None]
    if not different:
        return None
    return _finding(
        "rabbitmq.retry-queue-differs",
        queue=planned.name,
        differences="; ".join(map(str, different)),
        quoted=shlex.quote(planned.name),
    )


def missing_finding(broker: BrokerProbe, planned: PlannedQueue) -> Finding:
    """Return the finding for a missing queue that the adapter must not create."""
    return _finding(
        "rabbitmq.missing-queue",
        role=_ROLES[planned.role],
        queue=planned.name,
        vhost=broker.vhost,
        arguments=", ".join(f"{name}={value}" for name, value in planned.arguments.items()),
    )


def permission_finding(broker: BrokerProbe, topology: Topology, action: str) -> Finding:
    """Return the finding for a refused permission; the finding's remedy is one command that grants all necessary permissions."""
    queues = rf"^({re.escape(topology.work)}(\.later\..*)?|{re.escape(topology.dead)})$"
    command = ["rabbitmqctl", "set_permissions", "-p", broker.vhost, broker.user]
    return _finding(
        "rabbitmq.missing-permission",
        user=broker.user,
        action=action,
        worker=shlex.join([*command, queues, r"^amq\.default$", queues]),
        sender=shlex.join([*command, "^$", r"^amq\.default$", "^$"]),
    )


def _caused(finding: Finding, error: BrokerUnavailable) -> Finding:
    """Return the finding, with the id of its cause if the cause is known."""
    return replace(finding, id=error.id) if error.id else finding


def _heartbeat(broker: BrokerProbe) -> Iterator[Finding]:
    beat = broker.heartbeat
    if beat < _HASTY_HEARTBEAT:
        yield _finding("rabbitmq.hasty-heartbeat", heartbeat=beat, pause=2 * beat)
    elif beat > _RARE_HEARTBEAT:
        yield _finding("rabbitmq.rare-heartbeat", heartbeat=beat, pause=3 * beat)


def _reading(broker: BrokerProbe, topology: Topology) -> Iterator[Finding]:
    roles: dict[Role, str] = {"work": topology.work, "dead": topology.dead}
    for role, name in roles.items():
        try:
            if not broker.may_consume(name):
                yield permission_finding(broker, topology, f"consume from {name!r}")
        except QueueUnavailable as error:
            yield _unavailable(role, name, error)


def _writing(broker: BrokerProbe, topology: Topology, work: ExistingQueue | None) -> Iterator[Finding]:
    try:
        if not broker.may_publish():
            action = "publish to the default exchange ('amq.default'), which routes to every queue"
            yield permission_finding(broker, topology, action)
        else:
            yield from _message_limit(broker, topology, work)
    except BrokerUnavailable as error:
        if broker.alarm:
            alarm = _finding("rabbitmq.alarm", alarm=broker.alarm)
            yield replace(alarm, id=alarm_id(broker.alarm) or alarm.id)
        else:
            yield _finding("rabbitmq.permission-unknown", user=broker.user, error=error)


def _unavailable(role: Role, name: str, error: QueueUnavailable) -> Finding:
    """Return the finding for an existing queue that the broker cannot reach, or about which the broker does not reply."""
    found = _finding("rabbitmq.unanswered", "queue", role=_ROLES[role], queue=name, effect=_EFFECTS[role], error=error)
    return _caused(found, error)


def _message_limit(broker: BrokerProbe, topology: Topology, work: ExistingQueue | None) -> Iterator[Finding]:
    """
    Yield a warning if the broker refuses a body that the work queue may hold.

    The queue may hold each body that SteadyWorker sends, and each body that a sender sent while the limit was higher.
    The statistics show only the number of messages and their total size.
    If the total size is too large for messages of SteadyWorker alone, another sender has sent some of the messages.
    The check does not find a limit above 16 MiB, which only an operator can set.
    """
    largest = topology.max_body
    messages, in_all = (work.messages, work.message_bytes) if work is not None else (0, 0)
    large = in_all > messages * largest
    if large:
        largest = min(in_all, _LARGEST_BODY)
    probe = min(largest, _LARGEST_PROBE)
    try:
        limit = broker.limit_below(probe)
    except QueueUnavailable as error:
        if broker.alarm:
            raise
        yield _caused(_finding("rabbitmq.unanswered", "message limit", size=probe, error=error), error)
        return
    if limit is not None and large:
        yield _finding(
            "rabbitmq.low-message-limit",
            "large messages",
            limit=limit,
            queue=topology.work,
            count=messages,
            size=in_all,
            largest=largest,
        )
    elif limit is not None:
        yield _finding("rabbitmq.low-message-limit", limit=limit, queue=topology.work, largest=largest)


def _existing(
    broker: BrokerProbe, topology: Topology, planned: PlannedQueue, queue: ExistingQueue
) -> Iterator[Finding]:
    role, version = planned.role, broker.version
    yield from _unfit(planned, queue)
    if queue.type == "stream":
        return
    if not queue.durable:
        yield _finding("rabbitmq.transient-queue", role=_ROLES[role], queue=queue.name, loses=risks.LOSSES[role])
    if role == "retry":
        if found := retry_finding(planned, queue):
            yield found
    else:
        compares = topology.mode != "declare" or queue.arguments is None  # no other finding reports an unknown argument
        if compares and (different := differences(planned, queue)):
            listed = "; ".join(map(str, different))
            yield _finding("rabbitmq.queue-differs", role=_ROLES[role], queue=queue.name, differences=listed)
        yield from risks.delivery_limit(version, broker.vhost, planned, queue, topology.time_limit)
        yield from risks.delayed_retry(version, planned, queue)
    if role == "work":
        timeout = risks.delivery_timeout(version, broker.vhost, queue, topology.time_limit, _why(broker))
        yield from timeout if broker.unasked is None else _unseen(broker.unasked, queue, timeout)
    elif role == "dead" and broker.unasked is not None:
        yield from _unseen(broker.unasked, queue, iter(()))
    yield from risks.losses(planned, queue)
    if role == "work":
        yield from risks.oddities(version, queue)
        yield from risks.dead_letter_target(planned, queue)


def _missing(broker: BrokerProbe, topology: Topology, planned: PlannedQueue) -> Iterator[Finding]:
    """
    Yield findings about a queue that does not exist.

    If the adapter may not create the queue, the finding reports that the queue is missing.
    Otherwise the findings are about a missing permission to create it, and about the limits of the new queue.
    """
    if topology.mode != "declare":
        yield missing_finding(broker, planned)
        return
    if not broker.may_configure(planned.name):
        yield permission_finding(broker, topology, f"create the {_ROLES[planned.role]} {planned.name!r}")
    if planned.role == "work":
        made = ExistingQueue.as_planned(planned)
        reason = ": the queue does not exist yet"
        yield from risks.delivery_timeout(broker.version, broker.vhost, made, topology.time_limit, reason)


def _trusted(broker: BrokerProbe, planned: PlannedQueue) -> Iterator[Finding]:
    """Yield a finding only if the work queue cannot keep jobs; the operator is responsible for everything else."""
    queue = broker.queue(planned, redeclare=False) if planned.role == "work" else None
    if queue is not None:
        yield from _unfit(planned, queue)


def _unfit(planned: PlannedQueue, queue: ExistingQueue) -> Iterator[Finding]:
    """Yield a finding for an auto-delete queue, or for a stream, because an ack removes nothing from a stream."""
    role = _ROLES[planned.role]
    if queue.type == "stream":
        yield _finding("rabbitmq.stream", role=role, queue=queue.name)
    elif queue.auto_delete:
        yield _finding("rabbitmq.auto-delete-queue", role=role, queue=queue.name, loses=risks.LOSSES[planned.role])


def _unseen(error: Unanswered, queue: ExistingQueue, timeout: Iterator[Finding]) -> Iterator[Finding]:
    """
    Yield one finding for all facts that the management API failed to report.

    If the operator switched the API off, yield nothing.
    """
    unseen = "policies" if queue.arguments is not None else "arguments and policies"
    if (late := next(timeout, None)) is None:
        yield _finding("rabbitmq.arguments-unseen", unseen=unseen, queue=queue.name, cause=error, opening=error.remedy)
    else:
        yield _finding(
            "rabbitmq.arguments-unseen",
            "timeout",
            unseen=unseen,
            queue=queue.name,
            cause=error,
            opening=error.remedy,
            late=late.what,
            longer=late.remedy,
        )


def _why(broker: BrokerProbe) -> str:
    """Return the reason why the delivery timeout is unknown, as the end of a sentence."""
    if broker.version < limits.TIMEOUT_POLICIES:
        return ": this version does not report it"
    if not broker.asks:
        return ": the management API is switched off"
    return ": it is reported once a consumer is connected" if broker.unasked is None else " either"
