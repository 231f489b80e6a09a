"""
Findings: the problems of this broker and a Worker's queues, each with its remedy.

These checks change nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

import pika

from steadyworker.errors import BrokerUnavailable, Finding
from steadyworker.network import owed
from steadyworker_rabbitmq.checks import limits, risks
from steadyworker_rabbitmq.checks.management import Management, Unanswered
from steadyworker_rabbitmq.checks.probe import Broker
from steadyworker_rabbitmq.checks.queue_state import QueueState, as_wanted, differences
from steadyworker_rabbitmq.errors import QueueUnavailable, alarm_id
from steadyworker_rabbitmq.topology import Role, Topology, Wanted

_RARE_HEARTBEAT = 300
_HASTY_HEARTBEAT = 5
_LARGEST_BODY = 134_217_728
"""The largest body in bytes that the work queue is taken to hold: the default limit of RabbitMQ 3."""

_LARGEST_PROBE = (16 << 20) + 1
"""
The largest body in bytes with which the check looks for the broker's limit, because each start of a worker process sends it.

It is one byte above the default limit of RabbitMQ 4, so that the check finds this limit.
"""

_ROLES: dict[Role, str] = {"work": "work queue", "retry": "retry queue", "dead": "dead-letter queue"}


def find(
    connection: pika.BlockingConnection,
    topology: Topology,
    management: Management | None = None,
    *,
    consuming: bool = False,
    reopen: Callable[[], pika.BlockingConnection] | None = None,
) -> list[Finding]:
    """
    Return all findings, each with its remedy.

    The call blocks, uses its own channels, and creates and changes nothing.
    The call queries `management` for facts that AMQP cannot report, but not again after one failure.
    A finding then reports the facts that stay unknown.
    A question that gets no answer in time ends the connection, and is a finding, too; `reopen` opens the next connection.
    If the adapter is already `consuming`, it waits by itself for permissions and missing queues.
    In this case the call returns only findings about existing queues, and publishes nothing.

    Raises:
        BrokerUnavailable: The connection was lost during the call.
    """
    broker = Broker(connection, management, within=owed.QUESTION_WITHIN, reopen=reopen)
    if too_old := broker_finding(broker):
        return [too_old]
    found = [] if consuming else [*_heartbeat(broker), *_reading(broker, topology)]
    work = None
    for wanted in topology.queues(broker.version):
        try:
            if topology.mode == "trust":
                found += _trusted(broker, wanted)
            elif (actual := broker.look(wanted, redeclare=topology.mode == "declare")) is not None:
                found += _queue(broker, topology, wanted, actual)
                work = actual if wanted.role == "work" else work
            elif not consuming:
                found += _missing(broker, topology, wanted)
        except QueueUnavailable as error:
            found.append(_unavailable(wanted.role, wanted.name, error))
    # `_writing` comes last, because during an alarm the broker stops reading from a connection that has published.
    if not consuming:
        found += _writing(broker, topology, work)
    return list(dict.fromkeys(found))  # several questions about an unavailable queue have one finding


def broker_finding(broker: Broker) -> Finding | None:
    """Return a finding if the broker is not RabbitMQ, or too old; else None."""
    if broker.product == "RabbitMQ" and broker.version >= limits.OLDEST:
        return None
    got = f"{broker.product} {'.'.join(map(str, broker.version))}"
    what = (
        f"Expected RabbitMQ {'.'.join(map(str, limits.OLDEST))} or newer, got {got}: "
        "this broker would lose jobs that wait for a retry."
    )
    return Finding("error", what, "upgrade the broker, or name another with --broker.", id="rabbitmq.too-old")


def names_finding(reported: Mapping[str, str], failed: Sequence[BrokerUnavailable] = ()) -> list[Finding]:
    """
    Return an error if hosts report different cluster names, and a warning for each host that did not respond.

    `reported` has the name by host, and `failed` the errors of the other hosts.

    Until `set_cluster_name` was run, each node of a cluster reports its own name as the cluster's.
    The ledger would then record the jobs of one queue under several names, and a job that runs under one name could be started again under another.
    """
    silent = [
        Finding(
            "warning",
            f"A host of --broker did not answer, so it was not checked: {error}",
            "start the broker there, or remove the host from --broker.",
            id=error.id or "check.broker-unreachable",
        )
        for error in failed
    ]
    names = sorted({*reported.values()})
    if len(names) < 2:  # noqa: PLR2004 - two names differ
        return silent
    got = ", ".join(f"{name!r} from {host}" for host, name in reported.items())
    what = (
        f"Expected one cluster name from all hosts of --broker, got {got}: jobs would be recorded under each of them."
    )
    remedy = (
        f"rabbitmqctl set_cluster_name {shlex.quote(names[0])}; if these are several clusters, name one in --broker."
    )
    return [Finding("error", what, remedy, id="rabbitmq.several-cluster-names"), *silent]


def retry_finding(wanted: Wanted, actual: QueueState) -> Finding | None:
    """Return a finding if a retry queue differs from the plan, because such a queue could misroute or lose waiting jobs."""
    different = [each for each in differences(wanted, actual) if each.wanted is not None]
    if not different:
        return None
    what = f"The retry queue {wanted.name!r} would lose or misroute waiting jobs: {'; '.join(map(str, different))}."
    return Finding(
        "error",
        what,
        f"rabbitmqctl delete_queue {shlex.quote(wanted.name)} --if-empty, and run again with --topology declare.",
        id="rabbitmq.retry-queue-differs",
    )


def missing_finding(broker: Broker, wanted: Wanted) -> Finding:
    """Return the finding for a missing queue that the adapter must not create."""
    arguments = ", ".join(f"{name}={value}" for name, value in wanted.arguments.items())
    what = f"Expected the {_ROLES[wanted.role]} {wanted.name!r} in virtual host {broker.vhost!r}, got none."
    return Finding(
        "error",
        what,
        f"create it as a durable queue with {arguments}; or run once with --topology declare.",
        id="rabbitmq.missing-queue",
    )


def permission_finding(broker: Broker, topology: Topology, what_for: str) -> Finding:
    """Return the finding for a refused permission; its remedy is one command that grants all necessary permissions."""
    queues = rf"^({re.escape(topology.work)}(\.later\..*)?|{re.escape(topology.dead)})$"
    words = ["rabbitmqctl", "set_permissions", "-p", broker.vhost, broker.user, queues, r"^amq\.default$", queues]
    what = f"User {broker.user!r} may not {what_for}."
    sender = ["rabbitmqctl", "set_permissions", "-p", broker.vhost, broker.user, "^$", r"^amq\.default$", "^$"]
    return Finding(
        "error",
        what,
        f"{shlex.join(words)} (this command replaces the user's permissions, "
        "so first add to its patterns what rabbitmqctl list_user_permissions shows). "
        f"A sender needs less, once a worker process has created the queues: {shlex.join(sender)}",
        id="rabbitmq.missing-permission",
    )


def _heartbeat(broker: Broker) -> Iterator[Finding]:
    remedy = "set the option heartbeat in --broker to a value from 30 to 60, or leave it out."
    if broker.heartbeat < _HASTY_HEARTBEAT:
        what = f"With a heartbeat of {broker.heartbeat} s, a pause of {2 * broker.heartbeat} s (swapping, a frozen host) ends the connection."
        yield Finding("warning", what, remedy, id="rabbitmq.hasty-heartbeat")
    elif broker.heartbeat > _RARE_HEARTBEAT:
        what = f"With a heartbeat of {broker.heartbeat} s, the jobs of a host that died wait up to {3 * broker.heartbeat} s for another host."
        yield Finding("warning", what, remedy, id="rabbitmq.rare-heartbeat")


def _reading(broker: Broker, topology: Topology) -> Iterator[Finding]:
    roles: dict[Role, str] = {"work": topology.work, "dead": topology.dead}
    for role, name in roles.items():
        try:
            if not broker.may_consume(name):
                yield permission_finding(broker, topology, f"consume from {name!r}")
        except QueueUnavailable as error:
            yield _unavailable(role, name, error)


def _writing(broker: Broker, topology: Topology, work: QueueState | None) -> Iterator[Finding]:
    try:
        if not broker.may_publish():
            what_for = "publish to the default exchange ('amq.default'), which routes to every queue"
            yield permission_finding(broker, topology, what_for)
        else:
            yield from _message_limit(broker, topology, work)
    except BrokerUnavailable as error:
        if broker.alarm:
            yield Finding(
                "warning",
                f"The broker accepts no messages ({broker.alarm}), so no job is retried, and it is not known whether the user may publish.",
                "free memory or disk space on the broker, and check again.",
                id=alarm_id(broker.alarm) or "pika.blocked-timeout",
            )
            return
        what = f"The check could not find out whether user {broker.user!r} may publish: {error}"
        yield Finding(
            "warning",
            what,
            "check again when the broker accepts messages; until then no job is retried.",
            id="rabbitmq.permission-unknown",
        )


def _unavailable(role: Role, name: str, error: QueueUnavailable) -> Finding:
    """Return the finding for a queue that exists and cannot be reached, or for a question about it without an answer."""
    effects: dict[Role, str] = {
        "work": "no job starts until it is back",
        "retry": "a job that waits there comes when it is back, and other jobs cannot wait there",
        "dead": "no dead letter is stored or read until it is back",
    }
    what = f"The {_ROLES[role]} {name!r} was not checked, and {effects[role]}: {error}"
    remedy = "start the node that has the queue, or wait until the broker answers, and check again (rabbitmqctl list_queues name state)."
    return Finding("warning", what, remedy, id=error.id or "rabbitmq.unanswered")


def _message_limit(broker: Broker, topology: Topology, work: QueueState | None) -> Iterator[Finding]:
    """
    Yield a warning if the broker refuses a body that the work queue may hold.

    The queue may hold what SteadyWorker sends, and what a sender sent while the limit was higher.
    The statistics show only the bytes of all messages: more bytes than SteadyWorker sends at most are from another sender.
    A limit above 16 MiB, which an operator has set, is not found.
    """
    largest, held = topology.max_body, ""
    if work is not None and work.message_bytes > work.messages * largest:
        largest = min(work.message_bytes, _LARGEST_BODY)
        held = f" Its messages ({work.messages}) have {work.message_bytes} bytes in all."
    probe = min(largest, _LARGEST_PROBE)
    try:
        limit = broker.limit_below(probe)
    except QueueUnavailable as error:
        if broker.alarm:
            raise
        what = f"The check could not find out whether the broker accepts a body of {probe} bytes: {error}"
        yield Finding(
            "warning", what, "check again when the broker answers faster.", id=error.id or "rabbitmq.unanswered"
        )
        return
    if limit is not None:
        what = (
            f"The broker refuses bodies above {limit} bytes (max_message_size), but queue {topology.work!r} may hold larger ones."
            f"{held} Such a job cannot be retried: after a failure it becomes a dead letter, or waits in its queue."
        )
        remedy = f"set max_message_size = {largest} or more in rabbitmq.conf, and restart the broker; or send references to the data."
        yield Finding("warning", what, remedy, id="rabbitmq.low-message-limit")


def _queue(broker: Broker, topology: Topology, wanted: Wanted, actual: QueueState) -> Iterator[Finding]:
    if unfit := _unfit(wanted, actual):
        yield unfit
    if actual.type == "stream":
        return
    if not actual.durable:
        what = f"The {_ROLES[wanted.role]} {wanted.name!r} is not durable: a restart of the broker deletes it with all its messages."
        yield Finding(
            "error",
            what,
            "delete it when it is empty, and create it again as a durable queue.",
            id="rabbitmq.transient-queue",
            loses=risks.LOSSES[wanted.role],
        )
    if wanted.role == "retry":
        if found := retry_finding(wanted, actual):
            yield found
    elif topology.mode != "declare":
        yield from _differs(wanted, actual)
    yield from _risks(broker, topology, wanted, actual, _why(broker))
    if wanted.role == "work":
        yield from risks.oddities(broker.version, actual)
        yield from risks.dead_letter_target(wanted, actual)


def _missing(broker: Broker, topology: Topology, wanted: Wanted) -> Iterator[Finding]:
    """Yield findings for a queue that does not exist: its absence, and the risks of policies that will apply to it."""
    if topology.mode != "declare":
        yield missing_finding(broker, wanted)
        return
    if not broker.may_configure(wanted.name):
        yield permission_finding(broker, topology, f"create the {_ROLES[wanted.role]} {wanted.name!r}")
    planned = broker.with_policies(as_wanted(wanted))
    yield from _risks(broker, topology, wanted, planned, ": the queue does not exist yet")


def _trusted(broker: Broker, wanted: Wanted) -> Iterator[Finding]:
    """Yield a finding only for a work queue that cannot keep jobs; the operator is responsible for everything else."""
    actual = broker.look(wanted, redeclare=False) if wanted.role == "work" else None
    if actual is not None and (unfit := _unfit(wanted, actual)):
        yield unfit


def _unfit(wanted: Wanted, actual: QueueState) -> Finding | None:
    """Return a finding for a stream, from which an ack removes nothing, or for an auto-delete queue; else None."""
    queue = f"The {_ROLES[wanted.role]} {wanted.name!r}"
    if actual.type == "stream":
        what = f"{queue} is a stream, from which an ack removes no message."
        return Finding("error", what, "use a quorum queue.", id="rabbitmq.stream")
    if actual.auto_delete:
        what = (
            f"{queue} is auto-delete: when its last consumer leaves, the broker deletes it with all waiting messages."
        )
        return Finding(
            "error",
            what,
            "delete it when it is empty, and create it again as a durable queue without auto-delete.",
            id="rabbitmq.auto-delete-queue",
            loses=risks.LOSSES[wanted.role],
        )
    return None


def _risks(
    broker: Broker, topology: Topology, wanted: Wanted, actual: QueueState, why_unknown: str
) -> Iterator[Finding]:
    """Yield the risks of arguments and policies for the messages of a queue that exists or is planned."""
    version, vhost = broker.version, broker.vhost
    if wanted.role != "retry":
        yield from risks.delivery_limit(version, vhost, wanted, actual, topology.time_limit)
        yield from risks.delayed_retry(version, wanted, actual)
    if wanted.role == "work":
        timeout = risks.delivery_timeout(version, vhost, actual, topology.time_limit, why_unknown)
        unseen = broker.unasked or (broker.unreadable if actual.policy is None else None)
        yield from timeout if unseen is None else _unseen(unseen, actual, timeout)
    yield from risks.losses(wanted, actual)


def _differs(wanted: Wanted, actual: QueueState) -> Iterator[Finding]:
    """Yield one warning with every difference from the plan, for queues that the operator created."""
    if different := differences(wanted, actual):
        what = (
            f"The {_ROLES[wanted.role]} {wanted.name!r} differs from what --topology declare would create: "
            f"{'; '.join(map(str, different))}."
        )
        yield Finding(
            "warning",
            what,
            "nothing, if this is intended; to change its arguments, delete the queue and create it again.",
            id="rabbitmq.queue-differs",
        )


def _unseen(why: Unanswered, actual: QueueState, timeout: Iterator[Finding]) -> Iterator[Finding]:
    """
    Yield one finding for all facts that the management API failed to report.

    If the operator switched the API off, yield nothing.
    """
    unseen = "policies" if actual.arguments is not None else "arguments and policies"
    what = f"The {unseen} of queue {actual.name!r} could not be read: {why}. One of them may drop messages."
    remedy = why.remedy
    for finding in timeout:
        what, remedy = f"{what} {finding.what}", f"{remedy} For the timeout: {finding.remedy}"
    yield Finding("warning", what, remedy, id="rabbitmq.arguments-unseen")


def _why(broker: Broker) -> str:
    """Return the reason why the delivery timeout is unknown, as the end of a sentence."""
    if broker.version < limits.TIMEOUT_POLICIES:
        return ": this version does not report it"
    if not broker.asks:
        return ": the management API is switched off"
    return ": it is reported once a consumer is connected" if broker.unasked is None else " either"
