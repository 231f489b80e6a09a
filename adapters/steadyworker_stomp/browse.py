"""
A browse of the work queue: its messages without a delivery.

Classic has browsers over STOMP. They show the messages that consumers hold, too, and no delayed messages.
Artemis ignores the header `browser`, so the adapter asks its management for the messages. The reply has no bodies.
In a list of messages, Artemis cuts a header of more than 256 characters, and the browse leaves out such a header.
Artemis lists the first 200 messages at most (`management-browse-page-size`), and all delayed messages.
For each part that a browse leaves out, it yields the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from steadyworker.adapter import Browsed, Clock, QueueSpec, Unbrowsed
from steadyworker.network.errors import Refused
from steadyworker_stomp.checks.artemis import ArtemisManagement, MissingError
from steadyworker_stomp.checks.census import seen, uncounted
from steadyworker_stomp.classic import NoStatisticsError, browsed, statistics_of
from steadyworker_stomp.connection import Visit, ask, brief, visit
from steadyworker_stomp.depth import ready_in
from steadyworker_stomp.dialects import ARTEMIS, CLASSIC
from steadyworker_stomp.errors import BrokerError, translated
from steadyworker_stomp.messages import delivery_of
from steadyworker_stomp.url import StompUrl

_SCHEDULED = 1000
"""The largest number of delayed messages for which a browse asks Artemis, which lists all of them at once."""

_NO_DELAYED = Unbrowsed(
    "Classic shows no delayed messages over STOMP; the page Scheduled of the broker's web console shows them"
)

_CUT = re.compile(r", \+ \d+ more\Z")
"""Matches the end of a text that Artemis has cut."""

_OF_THE_LIST = frozenset({"address", "messageID", "type", "durable", "expiration", "userID", "timestamp", "priority"})
"""The names that Artemis adds to the headers in a list."""


def browse(url: StompUrl, spec: QueueSpec, limit: int, clock: Clock) -> Iterator[Browsed | Unbrowsed]:
    """
    Yield at most `limit` messages of the queue, in its order, and the reason for each part that is left out.

    If Classic has neither its statistics plugin nor advisory messages for this user, the call creates a missing queue.

    Raises:
        BrokerUnavailable: The broker cannot be reached; `Refused` if a later try cannot succeed.
    """
    with ask(url, clock) as asked:
        if asked.dialect is not CLASSIC:
            yield from _of_artemis(asked, spec, limit)
            return
        exists = seen(asked, spec.queue)
    if _has_messages(url, spec.queue, clock) if exists is None else exists:  # a browse would create the queue
        with visit(brief(url), clock) as visited, translated(visited.place):
            for headers, body in browsed(visited, spec.queue, limit):
                found = delivery_of(0, spec.queue, CLASSIC, headers, body)
                yield Browsed(found.headers, found.message_id, found.sent_at)
    yield _NO_DELAYED


def _has_messages(url: StompUrl, queue: str, clock: Clock) -> bool:
    """Return whether Classic has messages in this queue; True if Classic does not report it to this user."""
    with ask(url, clock) as asked:
        try:
            (found,) = statistics_of(asked, [queue])
        except (NoStatisticsError, BrokerError):
            return True
        return found.size > 0


def _of_artemis(asked: Visit, spec: QueueSpec, limit: int) -> list[Browsed | Unbrowsed]:
    queue, delayed, why = spec.queue, list[dict[str, Any]](), list[str]()
    try:
        management = ArtemisManagement(asked)
        # Counted before the list: a message that comes meanwhile is none that the caller has missed.
        count = ready_in(management.attributes(queue) or {})
        ready = management.ask_json(f"queue.{queue}", "listMessagesAsJSON", "")[:limit]
        if len(ready) < limit:
            if len(ready) < count:
                why.append(
                    f"Artemis has listed the first {len(ready):,} of {count:,} ready messages; "
                    "management-browse-page-size in broker.xml is the limit"
                )
            scheduled = management.ask(f"queue.{queue}", "getScheduledCount")
            if scheduled > _SCHEDULED:
                why.append(f"{scheduled:,} messages are delayed, and a search asks Artemis for at most {_SCHEDULED:,}")
            elif scheduled:
                delayed = sorted(management.ask_json(f"queue.{queue}", "listScheduledMessagesAsJSON"), key=_due)
    except MissingError:
        return []
    except BrokerError as error:
        unasked = uncounted(asked, error)
        text = f"Expected Artemis to list the messages of {queue!r}, got: {unasked.why}: {unasked.remedy}."
        raise Refused(text, id="artemis.not-authorized") from error
    found = [_message(each, queue) for each in ready]
    found += [replace(_message(each, queue), due=_due(each)) for each in delayed]
    if cut := sum(_has_cut_key(each, spec) for each in (*ready, *delayed)):
        why.append(f"{cut:,} of the keys have more than 256 characters, and Artemis cuts them in its lists")
    return [*found[:limit], *map(Unbrowsed, why)]


def _has_cut_key(listed: dict[str, Any], spec: QueueSpec) -> bool:
    """Return whether Artemis has cut the sender's header with the key; the keys of SteadyWorker's own senders are shorter."""
    key = listed.get(spec.key_header) if spec.key_header else None
    return isinstance(key, str) and _CUT.search(key) is not None


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
