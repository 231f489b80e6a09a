"""Prepares the queues: creates missing queues, or checks that all queues exist, and records facts about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pika

from steadyworker.errors import BrokerUnavailable, ConfigError, Finding, TargetMissing
from steadyworker_rabbitmq.checks import limits
from steadyworker_rabbitmq.checks.findings import broker_finding, missing_finding, permission_finding, retry_finding
from steadyworker_rabbitmq.checks.management import ManagementApi
from steadyworker_rabbitmq.checks.probe import PRECONDITION, REFUSED, BrokerProbe
from steadyworker_rabbitmq.checks.queue_state import ExistingQueue
from steadyworker_rabbitmq.connection import hasty, visit
from steadyworker_rabbitmq.errors import channel_id, closed_channel, translated
from steadyworker_rabbitmq.topology import PlannedQueue, Topology
from steadyworker_rabbitmq.url import RabbitmqUrl


@dataclass(frozen=True, slots=True)
class PreparedQueues:
    """
    The facts found while the queues were prepared.

    Attributes:
        consume_arguments: Arguments for `basic.consume` on the work queue.
        delivery_timeout: Seconds after which the broker requeues a delivery of a consumer with these arguments; None for never, or if unknown.
        longer_timeout: The command that makes the delivery timeout long enough for a job.
        counts_holders: True if the work queue counts a cancelled consumer that holds a delivery; only a classic queue does not.
        rejects: True if the work queue is known to move rejected messages to the Worker's dead-letter queue without a loss.
        continues_consumers: True if a new consumer with a cancelled consumer's tag continues that consumer (`limits.continues_consumers`).
    """

    consume_arguments: Mapping[str, int] = field(default_factory=dict)
    delivery_timeout: float | None = None
    longer_timeout: str = ""
    counts_holders: bool = True
    rejects: bool = False
    continues_consumers: bool = False


def prepare(
    connection: pika.BlockingConnection, topology: Topology, management: ManagementApi | None = None
) -> PreparedQueues:
    """
    Prepare the queues in the way that `topology.mode` requires.

    The mode "declare" creates missing queues and changes no existing queue.
    The mode "verify" checks that all queues exist, and the mode "trust" checks nothing.
    The call blocks, and uses channels of its own.
    The call queries `management` for facts that AMQP cannot report; after one failure, the call continues without these facts.

    Raises:
        TargetMissing: A queue does not exist, and the mode is "verify".
        ConfigError: A permission is missing, the broker is too old, or a retry queue would lose messages.
        BrokerUnavailable: The connection was lost during the call.
    """
    broker = BrokerProbe(connection, management)
    if (finding := broker_finding(broker)) is not None:
        raise _fatal(finding)
    work = ExistingQueue(topology.work)
    for planned in topology.queues(broker.version):
        queue = _declared(broker, topology, planned) if topology.mode == "declare" else _seen(broker, topology, planned)
        if planned.role == "work":
            work = queue
        elif planned.role == "retry" and (finding := retry_finding(planned, queue)) is not None:
            raise _fatal(finding)
    timeout = limits.delivery_timeout(broker.version, work, topology.time_limit)
    return PreparedQueues(
        consume_arguments=limits.consume_arguments(broker.version, work.type, topology.time_limit),
        delivery_timeout=timeout.seconds if timeout.known else None,
        longer_timeout=limits.longer_timeout(broker.version, broker.vhost, work, topology.time_limit),
        counts_holders=work.type != "classic",
        rejects=_moves_to(work) == topology.dead,
        continues_consumers=limits.continues_consumers(broker.version, work),
    )


def _moves_to(work: ExistingQueue) -> str | None:
    """
    Return the queue to which the broker moves rejected messages without a loss.

    The result is None if this queue is not known, or if an exchange chooses it.
    Only the work queue's own arguments count.
    An operator can remove a policy at any time, and the broker would then drop the next rejected message.
    Only the strategy `at-least-once` keeps a message until its target has it; this strategy needs `reject-publish`.
    A classic queue refuses this strategy.
    Without this strategy, the broker drops a message that its target cannot take, because the target is full or the target's node is down.
    Source: https://www.rabbitmq.com/docs/quorum-queues#dead-lettering, and seen on 3.10.8 and 4.3.6.
    """
    own = work.arguments or {}
    safe = {"x-dead-letter-exchange": "", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    if any(own.get(name) != value for name, value in safe.items()):
        return None
    target = own.get("x-dead-letter-routing-key")
    return target if isinstance(target, str) else None


def _declared(broker: BrokerProbe, topology: Topology, planned: PlannedQueue) -> ExistingQueue:
    """Create the queue if it is missing, and return its state."""
    refused = broker.declare(planned)
    if refused is None and planned.role != "work":
        return ExistingQueue.as_planned(planned)
    # This also reads a queue that already existed, because the management API can report its policies.
    if (queue := broker.queue(planned, redeclare=True)) is not None:
        return queue
    if refused is None:
        raise TargetMissing(
            f"Expected queue {planned.name!r}, which was just declared, got none: find out which program deletes it."
        )
    if refused.reply_code == REFUSED:
        raise _fatal(permission_finding(broker, topology, f"create queue {planned.name!r}"))
    text = f"Expected to create queue {planned.name!r}, got: {closed_channel(refused)}."
    kind = ConfigError if refused.reply_code == PRECONDITION else BrokerUnavailable
    raise kind(text, id=channel_id(refused))


def _seen(broker: BrokerProbe, topology: Topology, planned: PlannedQueue) -> ExistingQueue:
    """Return the queue's state, without creating it; raise TargetMissing if it does not exist."""
    if topology.mode == "trust":
        # This reads only the type, because the type decides the arguments of a consumer.
        return ExistingQueue(planned.name, type=broker.queue_type(planned.name) if planned.role == "work" else None)
    queue = broker.queue(planned, redeclare=False)
    if queue is None:
        missing = missing_finding(broker, planned)
        raise TargetMissing(str(missing), id=missing.id)
    return queue


def _fatal(finding: Finding) -> ConfigError:
    return ConfigError(str(finding), [finding])


def prepare_at(url: Callable[[], RabbitmqUrl], topology: Topology, purpose: str) -> PreparedQueues:
    """
    Prepare the queues as `prepare` does, on a connection of its own to the current URL.

    `purpose` is the connection's name in the broker's list of connections.
    """
    current = hasty(url())
    with visit(current, purpose) as connection, translated(str(current)):
        return prepare(connection, topology, current.management)
