"""
Questions to Classic about messages: its statistics plugin, and browsing.

Classic answers a message to `ActiveMQ.Statistics.Destination.<queue>` with the numbers of the queue, if the plugin is on.
Without the plugin, this message would stay in a new queue with that name.
So the reader sends it to a temporary queue of another connection with that name, which the plugin reads in the same way.
Without the plugin, Classic refuses the message, because this temporary queue does not exist; the refusal ends the connection.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from steadyworker_stomp.connection import Received, Visit
from steadyworker_stomp.dialects import CLASSIC
from steadyworker_stomp.errors import BrokerError

_PREFIX = "ActiveMQ.Statistics.Destination"
_TO = f"/remote-temp-queue/{_PREFIX}.queue://"
_REPLIES = "/temp-queue/steadyworker"
_AS_JSON = {"transformation": "jms-map-json"}
_ASKED = {
    "reply-to": _REPLIES,
    f"{_PREFIX}.Include.First.Message.Timestamp": "true",
    f"{_PREFIX}.List.End.With.Null": "true",
}

_AHEAD = 16
"""The largest number of messages of a browse that Classic sends before it receives an acknowledgement."""


class NoStatisticsError(Exception):
    """A Classic without its statistics plugin, or whose statistics cannot be read."""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """
    The statistics of one queue of Classic; all zero for a missing queue.

    Attributes:
        size: The messages in the queue, including those that consumers hold.
        held: The messages that consumers hold.
        first_at: The time at which the first message came into the queue, in seconds since 1970; None if the queue is empty.
        now: The broker's time, in seconds since 1970.
    """

    size: int = 0
    held: int = 0
    first_at: float | None = None
    now: float = 0.0


def statistics_of(visited: Visit, queues: Sequence[str]) -> list[QueueStatistics]:
    """
    Return the statistics of these queues, in this order.

    Raises NoStatisticsError without the plugin, and BrokerError if the broker refuses the question; the connection has then ended.
    Raises Silent or OSError if the connection fails.
    """
    connection = visited.connection
    visited.wait(connection.subscribe(_REPLIES, "statistics", _AS_JSON, ack="auto"))
    found = []
    try:
        for queue in queues:
            asked = connection.send(_TO + queue, b"", _ASKED)
            found.append(_reply(visited))
            visited.wait(asked)
        visited.wait(connection.unsubscribe("statistics"))
    except BrokerError as error:
        if f"temp-queue://{_PREFIX}" in str(error):
            raise NoStatisticsError(str(error)) from error
        raise
    return found


def _reply(visited: Visit) -> QueueStatistics:
    """Return the statistics of one question. Classic sends one message for the queue if it exists, and an empty message as the end."""
    found = QueueStatistics()
    while True:
        headers, body = visited.message("reply of the statistics plugin")
        if headers.get("subscription") != "statistics":
            continue
        try:
            entries = json.loads(body)["map"]
            if not entries:
                return found
            values = dict(map(_pair, entries["entry"]))
            first = values.get("firstMessageTimestamp")
            now = int(headers["timestamp"]) / 1000
            size, held = int(values["size"]), int(values["inflightCount"])
            found = QueueStatistics(size, held, None if first is None else int(first) / 1000, now)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NoStatisticsError(f"statistics that cannot be read: {body[:100]!r}") from error


def _pair(entry: dict[str, Any]) -> tuple[str, Any]:
    """Return the name and the value of an entry: `{"string": name, "long": value}`, or `{"string": [name, text]}`."""
    name = entry["string"]
    if isinstance(name, list):
        return name[0], name[1]
    return name, next(value for kind, value in entry.items() if kind != "string")


def browsed(visited: Visit, queue: str, most: int, selector: str = "") -> Iterator[Received]:
    """
    Yield at most `most` messages of a queue, in its order, including those that consumers hold.

    Classic keeps each message in its place, also after the acknowledgement of a browser, and counts no delivery.
    If the queue is missing, Classic creates it.
    Raises BrokerError, Silent or OSError.
    """
    number, connection = f"browse {queue}", visited.connection
    limit = {"browser": "true", "activemq.prefetchSize": str(min(most, _AHEAD))}
    connection.listen(
        CLASSIC.destination(queue),
        number,
        {**limit, **({"selector": selector} if selector else {})},
        ack="client-individual",
    )
    try:
        for _ in range(most):
            headers, body = visited.message(f"message of the queue {queue!r}")
            while headers.get("subscription") != number:
                headers, body = visited.message(f"message of the queue {queue!r}")
            if headers.get("browser") == "end":
                return
            yield headers, body
            connection.ack(headers["ack"])
    finally:
        with suppress(BrokerError, OSError):  # the connection has ended, and with it the browse
            visited.wait(connection.unsubscribe(number))
