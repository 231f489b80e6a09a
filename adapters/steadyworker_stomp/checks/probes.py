"""
Probes: requests whose effect shows a fact. STOMP has no request that asks for such a fact.

A broker checks rights first, so a request without consequences shows whether the user has the right:

- A subscription that receives no message. On Classic its prefetch is 0; on Artemis its selector matches no message.
- A message in a transaction that is aborted. No consumer sees the message, and the broker keeps nothing.

Both requests would create a missing queue, so these two probes are for existing queues only.
A refusal ends the connection, so each of these probes uses a new connection.
The other probes use a temporary queue, which ends with its connection. Only Classic has such queues over STOMP.
"""

from __future__ import annotations

from collections.abc import Callable

from steadyworker_stomp.connection import Visit
from steadyworker_stomp.dialects import CLASSIC
from steadyworker_stomp.errors import BrokerError

_TEMPORARY = "/temp-queue/steadyworker"

_HEADERS = 10_000
"""The bytes of headers that a probe adds to the body, because the broker limits the whole frame."""


def refusal(visited: Visit, request: Callable[[Visit], None]) -> BrokerError | None:
    """Return the broker's refusal of a request; None if the broker granted it."""
    try:
        request(visited)
    except BrokerError as error:
        return error
    return None


def consume(visited: Visit, queue: str) -> None:
    """Subscribe to the queue without receiving a message, and end the subscription; raises BrokerError."""
    nothing = {"activemq.prefetchSize": "0"} if visited.dialect is CLASSIC else {"selector": "swNone IS NOT NULL"}
    headers = {**visited.dialect.subscribed, **nothing}
    visited.wait(visited.connection.subscribe(visited.dialect.destination(queue), "right", headers))
    visited.wait(visited.connection.unsubscribe("right"))


def send(visited: Visit, queue: str) -> None:
    """Send an empty message to the queue in a transaction, and abort, so that no consumer sees the message; raises BrokerError."""
    transaction = "right"
    visited.wait(visited.connection.transact("BEGIN", transaction))
    headers = {**visited.dialect.sent, "transaction": transaction}
    visited.wait(visited.connection.send(visited.dialect.destination(queue), b"", headers))
    visited.wait(visited.connection.transact("ABORT", transaction))


def honours_prefetch(visited: Visit) -> bool:
    """
    Return whether a subscription receives no second message before it acknowledges the first; raises Silent if no message comes.

    Two messages wait when the first subscription begins.
    If the first subscription receives only one message, the broker sends the other message to the second subscription.
    """
    connection = visited.connection
    for _ in range(2):
        visited.wait(connection.send(_TEMPORARY, b"", {}))
    holders: list[str | None] = []
    for number in ("first", "second"):
        visited.wait(connection.subscribe(_TEMPORARY, number, visited.dialect.subscribed))
        headers, _ = visited.message("message of a temporary queue")
        holders.append(headers.get("subscription"))
    for number in ("first", "second"):
        visited.wait(connection.unsubscribe(number))
    return holders == ["first", "second"]


def accepts(visited: Visit, size: int) -> bool:
    """
    Return whether the broker accepts a message with a body of this size.

    Classic closes the connection as soon as it has read the frame's headers, so its ERROR frame can be lost.
    """
    try:
        visited.wait(visited.connection.send(_TEMPORARY, b" " * (size + _HEADERS), {}))
    except TimeoutError:
        raise
    except (BrokerError, OSError):
        return False
    return True
