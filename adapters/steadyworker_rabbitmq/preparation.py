"""The queues made ready: once, by whoever needs them first, and again when one turns out to be missing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from pika import BlockingConnection

from steadyworker.errors import BrokerUnavailable
from steadyworker_rabbitmq.declare import Prepared, prepare
from steadyworker_rabbitmq.errors import translated
from steadyworker_rabbitmq.pika_internals import Connection
from steadyworker_rabbitmq.topology import Topology
from steadyworker_rabbitmq.url import Where

BLOCKED_FOR = 10.0
"""Seconds: on a visit nothing is published but the question whether we may, and an alarm (memory, disk) is answer enough."""


_HASTY = 10
"""The heartbeat, in seconds, of a visit: it waits for nothing but answers, and misses a broker that gives none within 30 s."""


def hasty(where: Where) -> Where:
    """The same broker, for a visit that is not to last."""
    return replace(where, heartbeat=min(where.heartbeat, _HASTY))


@contextmanager
def visit(where: Where, purpose: str) -> Iterator[BlockingConnection]:
    """
    A connection for a moment, to the first of the hosts that answers; blocks its caller.

    Raises BrokerUnavailable when none does, `Refused` where waiting does not help; errors inside are the caller's to translate.
    """
    connection = _connected(where, purpose)
    try:
        yield connection
    finally:
        with suppress(Exception):  # nobody is left to be told
            connection.close()


def _connected(where: Where, purpose: str) -> BlockingConnection:
    errors: list[BrokerUnavailable] = []
    for address in random.sample(where.addresses, len(where.addresses)):
        try:
            with translated(str(address)):
                parameters = where.parameters(address, purpose)
                parameters.blocked_connection_timeout = BLOCKED_FOR
                return BlockingConnection(parameters, _impl_class=Connection)
        except BrokerUnavailable as error:
            errors.append(error)
    raise errors[-1]


class Preparation:
    """
    What is known of the queues, once they are ready; thread-safe.

    Args:
        where: Where the broker is now.
        topology: The plan.
        purpose: What the connection is called in the broker's list.
    """

    def __init__(self, where: Callable[[], Where], topology: Topology, purpose: str) -> None:
        self._where = where
        self._topology = topology
        self._purpose = purpose
        self._lock = threading.Lock()
        self._prepared: Prepared | None = None

    @property
    def known(self) -> Prepared | None:
        """What is known, without asking."""
        return self._prepared

    def prepared(self) -> Prepared:
        """Make the queues ready unless they are; blocks; raises what `declare.prepare` raises."""
        with self._lock:
            if self._prepared is None:
                where = hasty(self._where())
                with visit(where, self._purpose) as connection, translated(str(where)):
                    self._prepared = prepare(connection, self._topology, where.management)
            return self._prepared

    def forget(self) -> None:
        """One of them is not there: look again before the next use."""
        self._prepared = None
