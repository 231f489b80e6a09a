"""
The numbers of a queue's messages, from the offsets of its group. Only the brokers know the offsets; a proxy reports none.

| number | `rocketmq+grpc:` | `rocketmq:` |
|---|---|---|
| ready | the messages behind the group's offsets, also in the topics of retries and of delayed messages that are due |
the same in the work topic |
| un-acked | not reported | not reported; 0 without members, and known if this adapter is the only member |
| delayed | the brokers' timer metrics | the brokers' schedule topic, of which at most `PULLS` pulls are read |
| next due | not reported | the schedule topic |
| dead | the three topics of dead letters, of which at most `PULLS` pulls are read | the same |
| age | the first messages of the queues that have ready ones | the same |

With a proxy, the group's offset moves when a message is delivered, so the messages that consumers hold are not behind the offset.
With locks, the offset moves when a message is consumed. No broker reports which queues are locked.

Each topic costs a route, its statistics at each broker, and a question for each queue in which messages wait. A pull reads at most 32 messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from steadyworker.adapter import Clock, Depth, Uncounted
from steadyworker.network.errors import Foreign
from steadyworker_rocketmq.deadletters import letter_topics, undropped
from steadyworker_rocketmq.direct.places import Place, places_of
from steadyworker_rocketmq.errors import refused_question
from steadyworker_rocketmq.frames import of_kind, part
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.remoting import READER, Remoting, RemotingError, RocketmqBroker, TopicQueue
from steadyworker_rocketmq.stored import Stored
from steadyworker_rocketmq.url import seconds_of_levels

PULLS = 32
"""The largest number of pulls by which a count reads the messages of a log. A broker returns at most 32 messages or 256 KB for a pull."""

_QUEUES = 64
"""The largest number of queues whose first messages a count reads for the age."""

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
"""The brokers' topic of messages with a delay level: its queue n has the messages of level n + 1."""

_DELAY_OFFSETS, _TIMER_METRICS, _TOPIC_STATISTICS, _STATISTICS = 45, 61, 202, 208
_NOT_SUPPORTED = 3

_LEVEL = re.compile(r"(\d+)\s*:\s*(\d+)")
_ENDS = re.compile(r'\{[^{}]*"queueId"\s*:\s*(\d+)[^{}]*\}\s*:\s*\{([^{}]*)\}')
_OFFSET = re.compile(r'"(m(?:ax|in)Offset)"\s*:\s*(\d+)')

_UNMARKED = "with pop consumption, no broker reports how many messages consumers hold; `steadyworker jobs` lists the running jobs"
TOO_MANY = "the brokers report the number of delayed messages of all topics only, and there are too many to read them"
_NO_NEXT = "a broker reports how many messages are delayed in a topic, and not when the first one is due"

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Unreported:
    """A number that the brokers do not report, and the reason."""

    why: str


class TooManyError(Exception):
    """There are more delayed messages than one count may read."""


@dataclass(frozen=True, slots=True)
class WaitingQueue:
    """
    A queue of a topic that has messages behind the offset of a group.

    Attributes:
        topic: The topic.
        queue: The queue.
        place: The offset of the first message.
        end: The offset that the next message will have.
    """

    topic: str
    queue: TopicQueue
    place: int
    end: int


def depth_of_group(remoting: Remoting, names: QueueNames, clock: Clock, consumers: int | Uncounted) -> Depth:
    """Return the numbers of a queue whose messages a proxy delivers (`rocketmq+grpc:`); raises the errors of `Remoting`."""
    waiting = _asked(lambda: [each for topic, group in topics_of(names) for each in waiting_in(remoting, topic, group)])
    ready = waiting if isinstance(waiting, Unreported) else sum(each.end - each.place for each in waiting)
    age = waiting if isinstance(waiting, Unreported) else _asked(lambda: _age(remoting, waiting, clock))
    return _depth(
        ready=ready,
        delayed=(delayed := _asked(lambda: _timed(remoting, names.later))),
        next_due=None if delayed == 0 else Unreported(_NO_NEXT),
        unacked=Unreported(_UNMARKED),
        dead=_asked(lambda: _dead(remoting, names)),
        consumers=Unreported(f"{consumers.why}; {consumers.remedy}") if isinstance(consumers, Uncounted) else consumers,
        oldest_age=age,
    )


def depth_of_locked(
    remoting: Remoting,
    names: QueueNames,
    default: Sequence[float],
    clock: Clock,
    held: Callable[[Sequence[str]], Mapping[TopicQueue, int] | None],
) -> Depth:
    """
    Return the numbers of a queue whose messages members hold by locks (`rocketmq:`); raises the errors of `Remoting`.

    Args:
        remoting: The client of the brokers.
        names: The names of topics and groups.
        default: The delay levels in seconds, for brokers that do not show their levels to this login.
        clock: The clock.
        held: Returns the offsets of the messages that the members with these ids hold, by their queues; None if this is unknown.
    """
    members = remoting.members(names.group)
    waiting = _asked(lambda: waiting_in(remoting, names.work, names.group))
    ready: int | Unreported
    unacked: int | Unreported
    age: float | Unreported | None
    if isinstance(waiting, Unreported):
        ready = unacked = age = waiting
    elif (locked := held(members) if waiting else {}) is None:
        count = sum(each.end - each.place for each in waiting)
        ready = unacked = age = Unreported(
            f"{count} messages are ready or held, and no broker reports which queues members have locked; "
            "`steadyworker jobs` lists the running jobs"
        )
    else:
        free = [replace(each, place=each.place + (locked.get(each.queue) == each.place)) for each in waiting]
        ready = sum(each.end - each.place for each in free)
        unacked = sum(each.end - each.place for each in waiting) - ready
        age = _asked(lambda: _age(remoting, [each for each in free if each.place < each.end], clock))
    due = _asked(lambda: _scheduled(remoting, names.work, default))
    return _depth(
        ready=ready,
        delayed=due if isinstance(due, Unreported) else len(due),
        next_due=due if isinstance(due, Unreported) else min(due, default=None),
        unacked=unacked,
        dead=_asked(lambda: _dead(remoting, names)),
        consumers=len(members),
        oldest_age=age,
    )


def topics_of(names: QueueNames) -> Iterator[tuple[str, str]]:
    """
    Yield the topics whose messages a proxy delivers to the workers or to their movers, each with its group.

    A message whose invisibility ended comes again from a topic for retries; versions differ in its name.
    """
    for topic, group in ((names.work, names.group), (names.later, names.later_group)):
        yield topic, group
        for mark in "_+":
            yield f"%RETRY%{group}{mark}{topic}", group


def waiting_in(remoting: Remoting, topic: str, group: str) -> list[WaitingQueue]:
    """Return the queues of a topic that have messages behind the group's offset; raises the errors of `Remoting`."""
    queues = remoting.route(topic) or []
    places: dict[RocketmqBroker, Mapping[int, Place]] = {}
    found = []
    for queue in queues:
        if queue.broker not in places:
            fields = {"consumerGroup": group, "topic": topic}
            places[queue.broker] = places_of(remoting.ask(queue.broker.address, _STATISTICS, fields))
        known = places[queue.broker].get(queue.number)
        if known is None:  # The statistics leave out topics to which no member of the group subscribes.
            consumed, end = remoting.consumed(queue, topic, group) or 0, remoting.end(queue, topic)
        else:
            consumed, end = known.consumed, known.end
        if consumed == end:
            continue
        first = remoting.first(queue, topic)  # The broker deletes messages after its retention time.
        place = (
            first if consumed > end else max(first, consumed)
        )  # A place above the end is of a topic that was deleted.
        if place < end:
            found.append(WaitingQueue(topic, queue, place, end))
    return found


def scheduled_in(remoting: Remoting, broker: RocketmqBroker) -> dict[int, tuple[int, int]]:
    """Return, for each delay level with messages that are not due yet, the offset of the first one, and the end."""
    due = dict(_pairs(_LEVEL, remoting.ask(broker.address, _DELAY_OFFSETS).body))
    body = remoting.ask(broker.address, _TOPIC_STATISTICS, {"topic": SCHEDULE}).body.decode("utf-8", "replace")
    found = {}
    for number, statistics in _ENDS.findall(body):
        offsets = dict(_OFFSET.findall(statistics))
        level, end = int(number) + 1, int(offsets.get("maxOffset", 0))
        first = max(int(offsets.get("minOffset", 0)), due.get(level, 0))
        if first < end:
            found[level] = first, end
    return found


def delayed_messages(remoting: Remoting, topic: str, default: Sequence[float]) -> Iterator[tuple[float, Stored]]:
    """
    Yield the messages that wait for this topic by a delay level, each with its due time.

    Raises TooManyError if `PULLS` pulls are not enough, because all topics of the brokers have their delayed messages together.
    Raises the errors of `Remoting`.

    Args:
        remoting: The client of the brokers.
        topic: The topic.
        default: The delay levels in seconds, for a broker that does not show its levels to this login.
    """
    pulls = PULLS
    for broker in remoting.brokers():
        levels: Sequence[float] = ()
        for level, (first, end) in scheduled_in(remoting, broker).items():
            levels = levels or _levels_of(remoting, broker, default)
            offset = first
            while offset < end:
                if not pulls:
                    raise TooManyError
                pulls -= 1
                found, following = remoting.pull(TopicQueue(broker, level - 1), SCHEDULE, READER, offset)
                for stored in found:
                    if stored.offset < end and stored.properties.get("REAL_TOPIC") == topic:
                        yield stored.stored_at + levels[min(level, len(levels)) - 1], stored
                if following <= offset:
                    break
                offset = following


# ---------------------------------------------------------------------------------------------------------------------


def _depth(**numbers: float | Unreported | None) -> Depth:
    known = {name: number for name, number in numbers.items() if not isinstance(number, Unreported)}
    why = {name: number.why for name, number in numbers.items() if isinstance(number, Unreported)}
    return replace(Depth(why=why), **known)  # type: ignore[arg-type]  # each name is an attribute


def _asked(question: Callable[[], Value | Unreported]) -> Value | Unreported:
    """Return the answer to a question, or the reason why a broker refused the question."""
    try:
        return question()
    except RemotingError as error:
        if (why := refused_question(error)) is None:
            raise
        return Unreported(why)


def _age(remoting: Remoting, waiting: Sequence[WaitingQueue], clock: Clock) -> float | Unreported | None:
    """Return the age of the oldest message, since a broker stored it in a topic from which messages are delivered."""
    if len(waiting) > _QUEUES:
        return Unreported(
            f"messages wait in {len(waiting)} queues, and a count reads the first ones of at most {_QUEUES}"
        )
    firsts = [remoting.pull(each.queue, each.topic, READER, each.place, 1)[0] for each in waiting]
    stored = [message.stored_at for found in firsts for message in found]
    return max(0.0, clock.wall() - min(stored)) if stored else None


def _timed(remoting: Remoting, topic: str) -> int | Unreported:
    """Return the number of messages in the timers of the brokers that are for this topic."""
    count = 0
    for broker in remoting.brokers():
        reply = remoting.ask(broker.address, _TIMER_METRICS, allowed=(_NOT_SUPPORTED,))
        if reply.code == _NOT_SUPPORTED:
            return Unreported(
                f"the broker {broker.name} has no timer metrics, which count delayed messages; use RocketMQ 5.3 or newer"
            )
        of_topic = part(part(reply.table(), "timingCount", dict), topic, dict)
        count += of_kind(of_topic.get("count", 0), int, "a number of delayed messages")
    return count


def _scheduled(remoting: Remoting, topic: str, default: Sequence[float]) -> list[float] | Unreported:
    """Return the due times of the messages that wait for this topic by a delay level."""
    try:
        return [due for due, _ in delayed_messages(remoting, topic, default)]
    except TooManyError:
        return Unreported(TOO_MANY)


def _levels_of(remoting: Remoting, broker: RocketmqBroker, default: Sequence[float]) -> Sequence[float]:
    try:
        return seconds_of_levels(remoting.settings(broker).get("messageDelayLevel", ""))
    except (RemotingError, ValueError):  # the login has no right to read the settings
        return default


def _dead(remoting: Remoting, names: QueueNames) -> int | Unreported:
    count = undropped(remoting, letter_topics(names), PULLS)
    if count is None:
        return Unreported(
            "a topic is a log of letters and of marks of dropped ones, and there are too many to read them; "
            "`steadyworker dead list` shows the letters"
        )
    return count


def _pairs(form: re.Pattern[str], body: bytes) -> Iterator[tuple[int, int]]:
    """Yield pairs of numbers. fastjson writes a number as the key of a table without quotes, which is no JSON."""
    text = body.decode("utf-8", "replace")
    if "offsetTable" not in text:
        raise Foreign("offsets of delayed messages that cannot be read")
    for name, value in form.findall(text.partition("offsetTable")[2]):
        yield int(name), int(value)
