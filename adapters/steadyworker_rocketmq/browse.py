"""
A browse of the work queue: its messages behind the group's offsets, without a delivery.

A pull by another group moves no offset of this group, and does not count as a delivery.
With a proxy, delayed messages wait in the brokers' timers, and no broker shows the messages in its timer.
With `rocketmq:`, a browse also shows the messages that members hold, because an offset moves only when a message is consumed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from steadyworker.adapter import Browsed, Redelivered, Unbrowsed
from steadyworker_rocketmq.depth import TOO_MANY, TooManyError, WaitingQueue, delayed_messages, waiting_in
from steadyworker_rocketmq.errors import refused_question
from steadyworker_rocketmq.messages import delivery_of, wire_of_stored
from steadyworker_rocketmq.remoting import READER, Remoting, RemotingError
from steadyworker_rocketmq.stored import Stored

_MOST = 32
"""The largest number of messages that a broker returns for a pull."""


IN_TIMERS = Unbrowsed("RocketMQ shows no message with an exact delay before the message is due")
"""The part of a queue that a proxy delivers from, and that no broker shows."""


def ready_ones(remoting: Remoting, topics: Iterable[tuple[str, str]], limit: int) -> Iterator[Browsed]:
    """
    Yield at most `limit` messages of these topics behind the offsets of these groups, in the order in which brokers stored them.

    Raises the errors of `Remoting`.
    """
    waiting = [each for topic, group in topics for each in waiting_in(remoting, topic, group)]
    logs = [_log(remoting, each, min(limit, _MOST)) for each in waiting]
    merged = heapq.merge(*logs, key=lambda stored: (stored.stored_at, stored.log_offset))
    return map(_browsed, islice(merged, limit))


def delayed_ones(remoting: Remoting, topic: str, default: Sequence[float], limit: int) -> list[Browsed | Unbrowsed]:
    """
    Return at most `limit` messages that wait for this topic by a delay level, in the order in which they are due.

    If there are too many delayed messages to read them, or this login may not read them, return those that were read, and the reason.
    `default` is as in `delayed_messages`. Raises the errors of `Remoting`.
    """
    found: list[tuple[float, Stored]] = []
    unread: list[Unbrowsed] = []
    try:
        for each in delayed_messages(remoting, topic, default):
            found.append(each)  # noqa: PERF402 - those that were read before an error stay
    except TooManyError:
        unread.append(Unbrowsed(f"not all delayed messages were read: {TOO_MANY}"))
    except RemotingError as error:
        if (why := refused_question(error)) is None:
            raise
        unread.append(Unbrowsed(f"not all delayed messages were read: {why}"))
    found.sort(key=lambda each: each[0])
    return [*(replace(_browsed(stored), due=due) for due, stored in found[:limit]), *unread]


def _log(remoting: Remoting, waiting: WaitingQueue, most: int) -> Iterator[Stored]:
    offset = waiting.place
    while offset < waiting.end:
        found, following = remoting.pull(waiting.queue, waiting.topic, READER, offset, most)
        for stored in found:
            if offset <= stored.offset < waiting.end:
                yield stored
        if following <= offset:
            return  # The broker has deleted the messages meanwhile.
        offset = following


def _browsed(stored: Stored) -> Browsed:
    wire = wire_of_stored(stored)
    found = delivery_of(0, "", "", wire, stored.id, Redelivered.UNKNOWN, stored.born_at)
    return Browsed(found.headers, found.message_id, found.sent_at)
