"""The checks of a Worker's topics and consumer groups."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.errors import Finding
from steadyworker.findings import FindingTexts
from steadyworker_rocketmq.checks.commands import Commands
from steadyworker_rocketmq.names import QueueNames, is_system_topic
from steadyworker_rocketmq.remoting import Remoting, RemotingError, RocketmqBroker, TopicQueue
from steadyworker_rocketmq.topology import MOST_ATTEMPTS, groups_of, kinds_of
from steadyworker_rocketmq.url import RocketmqUrl

_finding = FindingTexts("steadyworker_rocketmq")

ENOUGH_ATTEMPTS = 1000
"""The smallest limit of deliveries that is enough. It is large, because each expired invisibility counts as a delivery."""

_STATISTICS = 208
"""The request for a group's places in its topics (`GET_CONSUME_STATS`)."""

_TOPIC = re.compile(r'"topic"\s*:\s*"([^"]+)"')
_SHOWN = 5


def waiting_in(remoting: Remoting, queue: TopicQueue, topic: str, group: str) -> int:
    """
    Return the number of messages in this queue of a broker that the group has not consumed.

    The group's offset can be lower than the offset of the queue's first message, because the broker deletes messages after its retention time.
    The group's offset can also be higher than the offset of the last message, because it outlives the topic.
    """
    place, first = remoting.consumed(queue, topic, group), remoting.first(queue, topic)
    return max(0, remoting.end(queue, topic) - max(first, place or 0))


def topic_findings(
    remoting: Remoting,
    brokers: Sequence[RocketmqBroker],
    url: RocketmqUrl,
    names: QueueNames,
    spec: QueueSpec,
    settings: Settings,
) -> Iterator[Finding]:
    """Yield the findings of all topics; raises the errors of `Remoting`."""
    commands = Commands(url.namesrv or (), brokers)
    for topic, kind in kinds_of(url, names).items():
        wanted = 1 if topic == names.dead else url.queues
        readable = remoting.route(topic)
        if readable is None:
            if settings.topology == "verify":
                yield _finding("rocketmq.missing-topic", topic=topic, command=commands.topic(topic, wanted, kind))
            continue
        writable = remoting.route(topic, writable=True) or []
        for access, queues in (("read", readable), ("written", writable)):
            if not queues:
                command = commands.topic(topic, _most(readable + writable) or wanted, kind)
                yield _finding("rocketmq.topic-closed", topic=topic, access=access, command=command)
        got = remoting.topic_type(topic)
        if kind is not None and got not in (None, kind):
            command = commands.topic(topic, _most(writable) or wanted, kind)
            yield _finding("rocketmq.topic-type", topic=topic, got=got, wanted=kind, command=command)
        if topic == names.work and url.driver == "remoting":
            yield from _room(remoting, brokers, readable, names, spec, commands)


def group_findings(
    remoting: Remoting, brokers: Sequence[RocketmqBroker], url: RocketmqUrl, names: QueueNames, settings: Settings
) -> Iterator[Finding]:
    """Yield the findings of all consumer groups; raises the errors of `Remoting`."""
    commands = Commands(url.namesrv or (), brokers)
    for group, topic in groups_of(url, names).items():
        found = {broker: remoting.group(broker, group) for broker in brokers}
        command = commands.group(group, MOST_ATTEMPTS)
        missing = ", ".join(broker.name for broker, of_broker in found.items() if of_broker is None)
        if missing and settings.topology == "verify":
            yield _finding("rocketmq.missing-group", group=group, broker=missing, command=command)
        for broker, of_broker in found.items():
            if of_broker is None:
                continue
            if of_broker.get("consumeEnable") is False:
                yield _finding("rocketmq.group-closed", broker=broker.name, group=group, command=command)
            attempts = of_broker.get("retryMaxTimes")
            if isinstance(attempts, int) and attempts < ENOUGH_ATTEMPTS:
                yield _finding(
                    "rocketmq.retry-limit",
                    loses="jobs",
                    broker=broker.name,
                    group=group,
                    deliveries=1 + attempts,
                    command=command,
                )
        if url.driver == "grpc" and not all(of_broker is None for of_broker in found.values()):
            yield from _skipped(remoting, topic, group)
    if url.driver == "remoting":
        yield from _unread(remoting, names)
    yield from _shared(remoting, brokers, names)


def _room(
    remoting: Remoting,
    brokers: Sequence[RocketmqBroker],
    queues: Sequence[TopicQueue],
    names: QueueNames,
    spec: QueueSpec,
    commands: Commands,
) -> Iterator[Finding]:
    """Yield a warning if the workers have more slots than the topic has queues."""
    members = {member for broker in brokers for member in remoting.members(names.group, broker.address)}
    workers = max(1, len(members))
    slots = workers * spec.concurrency
    if len(queues) < slots:
        places = len({queue.broker for queue in queues}) or 1
        yield _finding(
            "rocketmq.few-queues",
            topic=names.work,
            queues=len(queues),
            empty=slots - len(queues),
            slots=slots,
            workers=workers,
            concurrency=spec.concurrency,
            command=commands.topic(names.work, -(-slots // places), None),
        )


def _skipped(remoting: Remoting, topic: str, group: str) -> Iterator[Finding]:
    """
    Yield a warning if the first start of a group could skip messages.

    If a broker no longer has a queue's very first message in memory, a new group at a proxy begins past the queue's messages.
    The driver for brokers always begins at the first message.
    """
    waiting = 0
    for queue in remoting.route(topic) or []:
        if remoting.consumed(queue, topic, group) is None:
            waiting += remoting.end(queue, topic) - remoting.first(queue, topic)
    if waiting:
        yield _finding("rocketmq.skipped-messages", group=group, count=waiting, topic=topic)


def _unread(remoting: Remoting, names: QueueNames) -> Iterator[Finding]:
    """
    Yield a warning for messages that this driver does not read.

    Consumers of another kind gave these messages back, or held them at a proxy.
    """
    for topic in (f"%RETRY%{names.group}", *(f"%RETRY%{names.group}{mark}{names.work}" for mark in "_+")):
        waiting = 0
        with suppress(RemotingError):  # a worker needs no right to this topic
            waiting = sum(waiting_in(remoting, queue, topic, names.group) for queue in remoting.route(topic) or [])
        if waiting:
            yield _finding("rocketmq.unread-retries", count=waiting, topic=topic)


def _shared(remoting: Remoting, brokers: Sequence[RocketmqBroker], names: QueueNames) -> Iterator[Finding]:
    """Yield a warning if the group has read other topics, because a broker counts the group's members for all topics together."""
    found: set[str] = set()
    for broker in brokers:
        with suppress(RemotingError):  # the broker does not know the group yet
            reply = remoting.ask(broker.address, _STATISTICS, {"consumerGroup": names.group})
            found.update(_TOPIC.findall(reply.body.decode("utf-8", "replace")))
    others = sorted(topic for topic in found - {names.work} if not is_system_topic(topic))
    if others:
        topics = ", ".join(map(repr, others[:_SHOWN]))
        yield _finding("rocketmq.shared-group", group=names.group, topics=topics)


def _most(queues: Sequence[TopicQueue]) -> int:
    """
    Return the largest number of queues that one broker has.

    The finding's command sets this number at each broker, so that no broker loses a queue.
    """
    return max(Counter(queue.broker for queue in set(queues)).values(), default=0)
