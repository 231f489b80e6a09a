"""
The numbers of a queue's messages at Classic or Artemis.

| number | Classic | Artemis |
|---|---|---|
| ready, un-acked | the statistics plugin | the queue's attributes |
| delayed, next due | not reported over STOMP | the queue's attributes |
| dead | the statistics plugin; a browse of the broker's own queue of dead letters, if other queues share it | the queue's attributes, and a count with a filter |
| consumers | as `census` counts them | the same |
| age of the oldest ready message | the statistics plugin; a browse, if consumers hold messages | the first message that no consumer holds |

Classic needs two connections, at most three questions to the plugin, two browses, and the census.
Artemis needs one connection, and at most eight questions. Each connection has `QUESTION_WITHIN` seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from steadyworker.adapter import Clock, Depth, QueueSpec, Uncounted
from steadyworker_stomp.checks.artemis import ArtemisManagement, MissingError
from steadyworker_stomp.checks.census import census, connections, uncounted
from steadyworker_stomp.classic import NoStatisticsError, QueueStatistics, browsed, statistics_of
from steadyworker_stomp.connection import Visit, ask
from steadyworker_stomp.dialects import ARTEMIS, CLASSIC, quoted
from steadyworker_stomp.errors import BrokerError, is_right
from steadyworker_stomp.messages import sent_at
from steadyworker_stomp.url import StompUrl

_BROWSED = 100
"""The largest number of messages that a browse of Classic reads for a number."""

_FILTERED = 10_000
"""The largest queue of dead letters in which Artemis counts the letters of one queue; Artemis reads the whole queue for this."""

_NO_PLUGIN = (
    "the broker has no statistics plugin, or its plugin does not reply in JSON; "
    "add <statisticsBrokerPlugin/> to <plugins> in activemq.xml, and restart the broker"
)
_NO_DELAYED = (
    "Classic has delayed messages in its scheduler, which reports nothing over STOMP; "
    "the page Scheduled of the broker's web console shows them"
)


def depth_of(url: StompUrl, spec: QueueSpec, clock: Clock) -> Depth:
    """
    Return the numbers of a queue. The call creates nothing, and consumes nothing.

    Raises:
        BrokerUnavailable: The broker cannot be reached; `Refused` if a later try cannot succeed.
    """
    with ask(url, clock) as visited:
        if visited.dialect is not CLASSIC:
            return _of_artemis(visited, spec, url.moved_to(spec.queue))
        found = _of_classic(visited, spec, url)
    with ask(url, clock) as visited:  # Each of the two questions can end its connection by a refusal.
        counted = census(visited, spec.queue)
    if isinstance(counted, Uncounted):
        return replace(found, why={**found.why, "consumers": _clause(counted)})
    return replace(found, consumers=counted)


def _clause(uncounted: Uncounted) -> str:
    return f"{uncounted.why}; {uncounted.remedy}"


# --- Classic -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _NoNumber:
    """A number that the broker does not report, and the reason."""

    why: str


def _of_classic(visited: Visit, spec: QueueSpec, url: StompUrl) -> Depth:
    """Return the numbers of messages; the number of consumers is None."""
    moved_to = url.moved_to(spec.queue) or CLASSIC.dead_letters
    shared = "{queue}" not in (url.dlq or "")
    late = {"delayed": _NO_DELAYED, "next_due": _NO_DELAYED}
    try:
        work, dead, moved = statistics_of(visited, (spec.queue, spec.dead_letter_queue, moved_to))
    except (NoStatisticsError, BrokerError) as error:
        reason = _NO_PLUGIN if isinstance(error, NoStatisticsError) else _refusal(error)
        return Depth(why={**late, **dict.fromkeys(("ready", "unacked", "dead", "oldest_age"), reason)})
    ready = max(0, work.size - work.held)
    why = dict(late)
    letters: int | _NoNumber = 0 if moved_to == spec.dead_letter_queue else moved.size
    if shared and letters:
        letters = _letters(visited, spec, moved_to, moved)
    if isinstance(letters, _NoNumber):
        why["dead"] = letters.why
    age = _age(visited, spec.queue, work) if ready else None
    if isinstance(age, _NoNumber):
        why["oldest_age"] = age.why
    return Depth(
        ready=ready,
        unacked=work.held,
        dead=None if isinstance(letters, _NoNumber) else dead.size + letters,
        oldest_age=None if isinstance(age, _NoNumber) else age,
        why=why,
    )


def _refusal(error: BrokerError) -> str:
    """Return the reason of a refusal; raise any other error."""
    if not is_right(error):
        raise error
    return (
        f"the broker refused the question ({error}); grant the user read, write and admin in a tempDestinationAuthorizationEntry, "
        "and for the topics ActiveMQ.Advisory.> in activemq.xml"
    )


def _letters(visited: Visit, spec: QueueSpec, moved_to: str, moved: QueueStatistics) -> int | _NoNumber:
    """Return the number of this Worker's dead letters in a queue that other queues share. A selector knows the original queue."""
    if moved.size > _BROWSED:
        return _NoNumber(
            f"{moved_to} has {moved.size} dead letters of all queues, and a count of one queue's letters reads at most "
            f"{_BROWSED}; replay or drop letters, or give the queue an individualDeadLetterStrategy, and name its queue with ?dlq="
        )
    ours = (quoted(f"queue://{queue}") for queue in (spec.queue, spec.dead_letter_queue))
    return sum(1 for _ in browsed(visited, moved_to, moved.size, f"JMSDestination IN ({', '.join(ours)})"))


def _age(visited: Visit, queue: str, work: QueueStatistics) -> float | _NoNumber:
    """
    Return the age of the oldest message that no consumer holds, which is in the queue behind all messages that consumers hold.

    The plugin reports the time of the queue's first message; 5.18 leaves it out.
    A browse also shows the messages that consumers hold, and does not mark them.
    """
    if not work.held and work.first_at is not None:
        return max(0.0, work.now - work.first_at)
    if work.held >= _BROWSED:
        return _NoNumber(
            f"consumers hold {work.held} messages, and a browse for the age reads at most {_BROWSED} messages"
        )
    found = [headers for headers, _ in browsed(visited, queue, work.held + 1)]
    if len(found) <= work.held:
        return _NoNumber("a consumer received the message during the count; count again")
    if "scheduledJobId" in found[-1]:
        return _NoNumber("the oldest ready message was delayed, and Classic does not report since when it is ready")
    sent = sent_at(found[-1])
    return _NoNumber("the oldest ready message has no time") if sent is None else max(0.0, work.now - sent)


# --- Artemis -------------------------------------------------------------------------------------------------------------


def _of_artemis(visited: Visit, spec: QueueSpec, moved_to: str | None) -> Depth:
    try:
        management = ArtemisManagement(visited)
        work = management.attributes(spec.queue) or {}
        delayed, unacked, ready = (
            int(work.get("scheduledCount", 0)),
            int(work.get("deliveringCount", 0)),
            ready_in(work),
        )
        letters = _moved(management, spec, moved_to or management.moved_to(spec.queue))
        dead = int((management.attributes(spec.dead_letter_queue) or {}).get("messageCount", 0))
        return Depth(
            ready=ready,
            delayed=delayed,
            next_due=_next_due(management, spec.queue) if delayed else None,
            unacked=unacked,
            dead=None if isinstance(letters, _NoNumber) else dead + letters,
            consumers=connections(management, spec.queue),
            oldest_age=_first_age(management, spec.queue) if ready else None,
            why={"dead": letters.why} if isinstance(letters, _NoNumber) else {},
        )
    except BrokerError as error:
        return Depth.unknown(_clause(uncounted(visited, error)))


def ready_in(attributes: Mapping[str, str]) -> int:
    """Return the number of messages that Artemis can deliver now, and that no consumer holds, from a queue's attributes."""
    count, delayed, unacked = (
        int(attributes.get(name, 0)) for name in ("messageCount", "scheduledCount", "deliveringCount")
    )
    return max(0, count - delayed - unacked)


def _moved(management: ArtemisManagement, spec: QueueSpec, address: str | None) -> int | _NoNumber:
    """Return the number of this Worker's letters in the queue to which Artemis moves dead letters of several queues."""
    if address is None or address == spec.dead_letter_queue:
        return 0
    size = int((management.attributes(address) or {}).get("messageCount", 0))
    if not size:
        return 0
    if size > _FILTERED:
        return _NoNumber(
            f"{address} has {size} dead letters of all queues, and a count of one queue's letters would read all of them; "
            "replay or drop letters, or set another dead-letter-address for the queue in broker.xml"
        )
    ours = map(quoted, (spec.queue, spec.dead_letter_queue))
    try:
        return int(management.ask(f"queue.{address}", "countMessages", f"{ARTEMIS.origin} IN ({', '.join(ours)})"))
    except MissingError:
        return 0


def _next_due(management: ArtemisManagement, queue: str) -> float | None:
    first = _first(management, queue, "peekFirstScheduledMessageAsJSON")
    return int(first["_AMQ_SCHED_DELIVERY"]) / 1000 if first else None


def _first_age(management: ArtemisManagement, queue: str) -> float | None:
    """Return the age of the first message that no consumer holds, since it was sent or became due, by the broker's clock."""
    first = _first(management, queue, "peekFirstMessageAsJSON")
    if first is None:
        return None
    delay = max(0, int(first.get("_AMQ_SCHED_DELIVERY", 0)) - int(first["timestamp"]))
    return max(0, int(management.ask(f"queue.{queue}", "getFirstMessageAge") or 0) - delay) / 1000


def _first(management: ArtemisManagement, queue: str, operation: str) -> dict[str, Any] | None:
    """Return the first message of a queue, as a table; None if a consumer has received it meanwhile."""
    try:
        found: dict[str, Any] | None = management.ask_json(f"queue.{queue}", operation)
    except MissingError:
        return None
    return found or None
