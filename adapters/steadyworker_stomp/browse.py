"""
A browse of the work queue: its messages without a delivery.

Classic has browsers over STOMP. They show the messages that consumers hold, too, and no delayed messages.
Artemis ignores the header `browser`, so the adapter asks its management for the messages. The reply has no bodies.
In a list of messages, Artemis cuts a header of more than 256 characters, and the browse leaves out such a header.
Artemis lists the first 200 messages at most (`management-browse-page-size`), and all delayed messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from steadyworker.adapter import Browsed, Clock
from steadyworker.network.errors import Refused
from steadyworker_stomp.checks.artemis import ArtemisManagement, MissingError
from steadyworker_stomp.checks.census import seen, uncounted
from steadyworker_stomp.classic import NoStatisticsError, browsed, statistics_of
from steadyworker_stomp.connection import Visit, ask, brief, visit
from steadyworker_stomp.dialects import ARTEMIS, CLASSIC
from steadyworker_stomp.errors import BrokerError, translated
from steadyworker_stomp.messages import delivery_of
from steadyworker_stomp.url import StompUrl

_SCHEDULED = 1000
"""The largest number of delayed messages for which a browse asks Artemis, which lists all of them at once."""

_CUT = re.compile(r", \+ \d+ more\Z")
"""Matches the end of a text that Artemis has cut."""

_OF_THE_LIST = frozenset({"address", "messageID", "type", "durable", "expiration", "userID", "timestamp", "priority"})
"""The names that Artemis adds to the headers in a list."""


def browse(url: StompUrl, queue: str, limit: int, clock: Clock) -> Iterator[Browsed]:
    """
    Yield at most `limit` messages of a queue, in its order.

    If Classic has neither its statistics plugin nor advisory messages for this user, the call creates a missing queue.

    Raises:
        BrokerUnavailable: The broker cannot be reached; `Refused` if a later try cannot succeed.
    """
    with ask(url, clock) as asked:
        if asked.dialect is not CLASSIC:
            yield from _of_artemis(asked, queue, limit)
            return
        exists = seen(asked, queue)
    if not (_has_messages(url, queue, clock) if exists is None else exists):  # a browse would create the queue
        return
    with visit(brief(url), clock) as visited, translated(visited.place):
        for headers, body in browsed(visited, queue, limit):
            found = delivery_of(0, queue, CLASSIC, headers, body)
            yield Browsed(found.headers, found.message_id, found.sent_at)


def _has_messages(url: StompUrl, queue: str, clock: Clock) -> bool:
    """Return whether Classic has messages in this queue; True if Classic does not report it to this user."""
    with ask(url, clock) as asked:
        try:
            (found,) = statistics_of(asked, [queue])
        except (NoStatisticsError, BrokerError):
            return True
        return found.size > 0


def _of_artemis(asked: Visit, queue: str, limit: int) -> list[Browsed]:
    try:
        management = ArtemisManagement(asked)
        ready = management.ask_json(f"queue.{queue}", "listMessagesAsJSON", "")[:limit]
        delayed: list[dict[str, Any]] = []
        if len(ready) < limit and 0 < management.ask(f"queue.{queue}", "getScheduledCount") <= _SCHEDULED:
            delayed = sorted(management.ask_json(f"queue.{queue}", "listScheduledMessagesAsJSON"), key=_due)
    except MissingError:
        return []
    except BrokerError as error:
        why = uncounted(asked, error)
        text = f"Expected Artemis to list the messages of {queue!r}, got: {why.why}: {why.remedy}."
        raise Refused(text, id="artemis.not-authorized") from error
    found = [_message(each, queue) for each in ready]
    found += [replace(_message(each, queue), due=_due(each)) for each in delayed]
    return found[:limit]


def _due(listed: dict[str, Any]) -> float:
    """Return the time at which a delayed message is due, in seconds since 1970."""
    return int(listed["_AMQ_SCHED_DELIVERY"]) / 1000


def _message(listed: dict[str, Any], queue: str) -> Browsed:
    """Convert a message of a list."""
    headers = {name: text for name, text in listed.items() if name not in _OF_THE_LIST and isinstance(text, str)}
    headers = {name: text for name, text in headers.items() if _CUT.search(text) is None}
    known = {"message-id": f"list,{listed['messageID']}", "timestamp": str(listed["timestamp"])}
    found = delivery_of(0, queue, ARTEMIS, {**headers, **known}, b"")
    return Browsed(found.headers, found.message_id, found.sent_at)
