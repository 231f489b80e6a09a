"""
The places (consumer offsets) of a group in the queues of a topic, as a broker's statistics report them.

A place is an offset, and **an offset does not identify a message**.
If a topic is deleted and made again, its offsets begin at 0 again, but a broker of version 4.9.7 still has the group's old places.
A broker also uses offsets again if it has lost its newest messages, or has destroyed an expired queue (`mqadmin cleanExpiredCQ`).
So the adapter also remembers a second number from the statistics: the time at which the message before the place was stored.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from steadyworker.network.errors import Foreign
from steadyworker_rocketmq.frames import RemotingReply
from steadyworker_rocketmq.remoting import TopicQueue

_QUEUES = re.compile(r"\{([^{}]*)\}\s*:\s*\{([^{}]*)\}")
"""Matches a queue and its statistics. The queue is a table that fastjson writes as the key of another table."""


@dataclass(frozen=True, slots=True)
class Place:
    """
    The place (consumer offset) of a group in a queue.

    Attributes:
        consumed: The offset of the first message that the group has not consumed.
        end: The offset that the next message will have.
        stored_at: The time at which the message before the place was stored, in milliseconds since 1970; 0 if the broker does not have the message.
    """

    consumed: int
    end: int
    stored_at: int


class Places:
    """The last known place of each queue."""

    def __init__(self) -> None:
        self._known: dict[TopicQueue, Place] = {}

    def is_of_another_log(self, queue: TopicQueue, place: Place) -> bool:
        """
        Return whether the queue was made again. In this case, another message is before the place.

        Otherwise, remember the place.
        """
        known = self._known.get(queue)
        if known is None or known.consumed != place.consumed or not known.stored_at:
            self._known[queue] = place
            return False
        return place.stored_at not in (0, known.stored_at)


def places_of(reply: RemotingReply) -> dict[int, Place]:
    """Return the places by the number of the queue; raises Foreign if the reply has an unknown form."""
    found = {}
    for queue, statistics in _QUEUES.findall(reply.body.decode("utf-8", "replace")):
        try:
            number = int(json.loads(f"{{{queue}}}")["queueId"])
            table = json.loads(f"{{{statistics}}}")
            stored_at = int(table.get("lastTimestamp", 0))
            found[number] = Place(int(table["consumerOffset"]), int(table["brokerOffset"]), stored_at)
        except (ValueError, KeyError, TypeError) as error:
            raise Foreign("statistics of queues that cannot be read") from error
    return found
