"""Prepares the queues: creates missing queues, or checks that all queues exist, and records facts about them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import pika

from steadyworker.errors import BrokerUnavailable, ConfigError, Finding, SteadyWorkerError, TargetMissing
from steadyworker_rabbitmq.checks import limits
from steadyworker_rabbitmq.checks.findings import broker_finding, missing_finding, permission_finding, retry_finding
from steadyworker_rabbitmq.checks.management import Management
from steadyworker_rabbitmq.checks.probe import PRECONDITION, REFUSED, Broker
from steadyworker_rabbitmq.checks.queue_state import QueueState, as_wanted
from steadyworker_rabbitmq.connection import hasty, visit
from steadyworker_rabbitmq.errors import closed_channel, translated
from steadyworker_rabbitmq.topology import Topology, Wanted
from steadyworker_rabbitmq.url import BrokerUrl


@dataclass(frozen=True, slots=True)
class Prepared:
    """
    The facts found while the queues were prepared.

    Attributes:
        consume_arguments: Arguments for `basic.consume` on the work queue.
        delivery_timeout: Seconds after which the broker takes a delivery back from such a consumer; None for never.
        longer_timeout: The command that makes the delivery timeout long enough for a job.
    """

    consume_arguments: Mapping[str, int] = field(default_factory=dict)
    delivery_timeout: float | None = None
    longer_timeout: str = ""


def prepare(connection: pika.BlockingConnection, topology: Topology, management: Management | None = None) -> Prepared:
    """
    Prepare the queues in the way that `topology.mode` requires.

    The mode "declare" creates missing queues and changes no existing queue.
    "verify" checks that all queues exist, and "trust" checks nothing.
    The call blocks, and uses channels of its own.
    The call queries `management` for facts that AMQP cannot report; after one failure it continues without these facts.

    Raises:
        TargetMissing: A queue does not exist, and the mode is "verify".
        ConfigError: A permission is missing, the broker is too old, or a retry queue would lose messages.
        BrokerUnavailable: The connection was lost during the call.
    """
    broker = Broker(connection, management)
    if (finding := broker_finding(broker)) is not None:
        raise _fatal(finding)
    work = QueueState(topology.work)
    for wanted in topology.queues(broker.version):
        actual = _made(broker, topology, wanted) if topology.mode == "declare" else _seen(broker, topology, wanted)
        if wanted.role == "work":
            work = actual
        elif wanted.role == "retry" and (finding := retry_finding(wanted, actual)) is not None:
            raise _fatal(finding)
    timeout = limits.delivery_timeout(broker.version, work, topology.time_limit)
    return Prepared(
        consume_arguments=limits.consume_arguments(broker.version, work.type, topology.time_limit),
        delivery_timeout=timeout.seconds,
        longer_timeout=limits.longer_timeout(broker.version, broker.vhost, work, topology.time_limit),
    )


def _made(broker: Broker, topology: Topology, wanted: Wanted) -> QueueState:
    """Create the queue if it is missing, and return its state."""
    refused = broker.declare(wanted)
    if refused is None and wanted.role != "work":
        return as_wanted(wanted)
    # This also reads a queue that was just declared, because the management API can report policies for it.
    if (actual := broker.look(wanted, redeclare=True)) is not None:
        return actual
    if refused is None:
        raise TargetMissing(
            f"Expected queue {wanted.name!r}, which was just declared, got none: find out which program deletes it."
        )
    if refused.reply_code == REFUSED:
        raise _fatal(permission_finding(broker, topology, f"create queue {wanted.name!r}"))
    text = f"Expected to create queue {wanted.name!r}, got: {closed_channel(refused)}."
    raise ConfigError(text) if refused.reply_code == PRECONDITION else BrokerUnavailable(text)


def _seen(broker: Broker, topology: Topology, wanted: Wanted) -> QueueState:
    """Return the queue's state, without creating it; raise TargetMissing if it does not exist."""
    if topology.mode == "trust":
        # This reads only the type, because the type decides the arguments of a consumer.
        return QueueState(wanted.name, type=broker.queue_type(wanted.name) if wanted.role == "work" else None)
    actual = broker.look(wanted, redeclare=False)
    if actual is None:
        raise TargetMissing(str(missing_finding(broker, wanted)))
    return actual


def _fatal(finding: Finding) -> ConfigError:
    return ConfigError(str(finding), [finding])


class Preparation:
    """
    The preparation of the queues, which runs once, and whose result is kept; thread-safe.

    Args:
        url: Returns the current URL.
        topology: The plan of the queues.
        purpose: The name of the connection in the broker's list of connections.
    """

    def __init__(self, url: Callable[[], BrokerUrl], topology: Topology, purpose: str) -> None:
        self._url = url
        self._topology = topology
        self._purpose = purpose
        self._lock = threading.Lock()
        self._prepared: Prepared | None = None
        self._attempt: Future[Prepared] | None = None

    @property
    def known(self) -> Prepared | None:
        """The result of the preparation, or None before it; never blocks."""
        return self._prepared

    def prepared(self) -> Prepared:
        """
        Return the result; at the first call, prepare the queues.

        The call blocks, and raises the errors of `prepare`.
        Threads that call it at the same time share one attempt and its result.
        If each thread made its own attempt in turn, the last of many senders would wait for the timeouts of all.
        """
        with self._lock:
            if self._prepared is not None:
                return self._prepared
            theirs = self._attempt
            attempt = self._attempt = theirs or Future()
        if theirs is None:
            self._try(attempt)
        return attempt.result()

    def _try(self, attempt: Future[Prepared]) -> None:
        """Prepare the queues, and set the attempt's result, even after an unexpected error."""
        try:
            url = hasty(self._url())
            with visit(url, self._purpose) as connection, translated(str(url)):
                self._prepared = prepare(connection, self._topology, url.management)
            attempt.set_result(self._prepared)
        except SteadyWorkerError as error:
            attempt.set_exception(error)
        finally:
            self._attempt = None
            if not attempt.done():  # a defect, or an interrupt of this thread alone
                attempt.set_exception(
                    BrokerUnavailable(
                        "Expected the queues to be declared, but the attempt was interrupted: send again."
                    )
                )

    def forget(self) -> None:
        """Discard the result, so that the next use prepares the queues again; for a queue that is missing or has changed."""
        self._prepared = None
