"""The checks of a Worker's topics and consumer groups."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.errors import Finding
from steadyworker_rocketmq.checks.commands import Commands
from steadyworker_rocketmq.names import Names, is_system_topic
from steadyworker_rocketmq.remoting import Broker, Queue, Remoting, RemotingError
from steadyworker_rocketmq.topology import MOST_ATTEMPTS, groups_of, kinds_of
from steadyworker_rocketmq.url import BrokerUrl

ENOUGH_ATTEMPTS = 1000
"""The smallest limit of deliveries that is enough: each expired invisibility counts as a delivery."""

_STATISTICS = 208
"""The request for a group's places in its topics (`GET_CONSUME_STATS`)."""

_TOPIC = re.compile(r'"topic"\s*:\s*"([^"]+)"')
_SHOWN = 5


def waiting_in(remoting: Remoting, queue: Queue, topic: str, group: str) -> int:
    """
    Return how many messages a broker still has in this queue that the group has not consumed.

    The group's place can be before the first of them, as messages end with the retention, and after the last one: it outlives the topic.
    """
    place, first = remoting.consumed(queue, topic, group), remoting.first(queue, topic)
    return max(0, remoting.end(queue, topic) - max(first, place or 0))


def topic_findings(
    remoting: Remoting, brokers: Sequence[Broker], url: BrokerUrl, names: Names, spec: QueueSpec, settings: Settings
) -> Iterator[Finding]:
    """Yield the findings of all topics; raises what `Remoting` raises."""
    commands = Commands(url.namesrv or (), brokers)
    for topic, kind in kinds_of(url, names).items():
        wanted = 1 if topic == names.dead else url.queues
        readable = remoting.route(topic)
        if readable is None:
            if settings.topology == "verify":
                what = f"Expected the topic {topic!r}, got none."
                remedy = f"{commands.topic(topic, wanted, kind)}; or run once with --topology declare."
                yield Finding("error", what, remedy, id="rocketmq.missing-topic")
            continue
        writable = remoting.route(topic, writable=True) or []
        for access, queues in (("read", readable), ("written", writable)):
            if not queues:
                what = f"Topic {topic!r} has no queue that can be {access}."
                yield Finding(
                    "error",
                    what,
                    commands.topic(topic, _most(readable + writable) or wanted, kind),
                    id="rocketmq.topic-closed",
                )
        got = remoting.topic_type(topic)
        if kind is not None and got not in (None, kind):
            what = (
                f"Topic {topic!r} has the type {got}, so a proxy refuses our messages to it; the type must be {kind}."
            )
            yield Finding(
                "error",
                what,
                f"{commands.topic(topic, _most(writable) or wanted, kind)}; or name another queue.",
                id="rocketmq.topic-type",
            )
        if topic == names.work and url.driver == "remoting":
            yield from _room(remoting, brokers, readable, names, spec, commands)


def group_findings(
    remoting: Remoting, brokers: Sequence[Broker], url: BrokerUrl, names: Names, settings: Settings
) -> Iterator[Finding]:
    """Yield the findings of all consumer groups; raises what `Remoting` raises."""
    commands = Commands(url.namesrv or (), brokers)
    for group, topic in groups_of(url, names).items():
        found = {broker: remoting.group(broker, group) for broker in brokers}
        command = commands.group(group, MOST_ATTEMPTS)
        missing = ", ".join(broker.name for broker, of_broker in found.items() if of_broker is None)
        if missing and settings.topology == "verify":
            what = f"Expected the consumer group {group!r} at broker {missing}, got none."
            yield Finding(
                "error", what, f"{command}; or run once with --topology declare.", id="rocketmq.missing-group"
            )
        for broker, of_broker in found.items():
            if of_broker is None:
                continue
            if of_broker.get("consumeEnable") is False:
                what = f"Broker {broker.name} does not let the group {group!r} consume."
                yield Finding("error", what, command, id="rocketmq.group-closed")
            attempts = of_broker.get("retryMaxTimes")
            if isinstance(attempts, int) and attempts < ENOUGH_ATTEMPTS:
                what = (
                    f"Broker {broker.name} moves a message of group {group!r} to its own dead letters after {1 + attempts} "
                    "deliveries, and each worker that is killed costs one."
                )
                yield Finding("warning", what, command, id="rocketmq.retry-limit", loses="jobs")
        if url.driver == "grpc" and not all(of_broker is None for of_broker in found.values()):
            yield from _skipped(remoting, topic, group)
    if url.driver == "remoting":
        yield from _unread(remoting, names)
    yield from _shared(remoting, brokers, names)


def _room(
    remoting: Remoting,
    brokers: Sequence[Broker],
    queues: Sequence[Queue],
    names: Names,
    spec: QueueSpec,
    commands: Commands,
) -> Iterator[Finding]:
    """Yield a warning if the workers have more slots than the topic has queues."""
    members = {member for broker in brokers for member in remoting.members(names.group, broker.address)}
    workers = max(1, len(members))
    slots = workers * spec.concurrency
    if len(queues) < slots:
        what = (
            f"Topic {names.work!r} has {len(queues)} queues, and a worker holds at most one message of each, "
            f"so {slots - len(queues)} of {slots} slots stay empty ({workers} × concurrency {spec.concurrency})."
        )
        places = len({queue.broker for queue in queues}) or 1
        yield Finding("warning", what, commands.topic(names.work, -(-slots // places), None), id="rocketmq.few-queues")


def _skipped(remoting: Remoting, topic: str, group: str) -> Iterator[Finding]:
    """
    Yield a warning if the first start of a group could skip messages.

    A proxy lets a new group begin behind a queue's messages if the broker no longer has its very first one in memory.
    The driver for brokers itself begins at the first message.
    """
    waiting = 0
    for queue in remoting.route(topic) or []:
        if remoting.consumed(queue, topic, group) is None:
            waiting += remoting.end(queue, topic) - remoting.first(queue, topic)
    if waiting:
        what = f"The group {group!r} has read nothing yet, and its first start can skip {waiting} messages that wait in {topic!r}."
        yield Finding(
            "warning",
            what,
            "start it once with --topology declare, which sets the group to the first message.",
            id="rocketmq.skipped-messages",
        )


def _unread(remoting: Remoting, names: Names) -> Iterator[Finding]:
    """Yield a warning for messages that consumers of another kind gave back, or held at a proxy: this driver does not read them."""
    for topic in (f"%RETRY%{names.group}", *(f"%RETRY%{names.group}{mark}{names.work}" for mark in "_+")):
        waiting = 0
        with suppress(RemotingError):  # a worker needs no right to this topic
            waiting = sum(waiting_in(remoting, queue, topic, names.group) for queue in remoting.route(topic) or [])
        if waiting:
            what = f"{waiting} messages wait in {topic!r}, which rocketmq: does not read, so their jobs do not run."
            remedy = (
                "let the consumers that this group had before read them to the end, and then start the workers again."
            )
            yield Finding("warning", what, remedy, id="rocketmq.unread-retries")


def _shared(remoting: Remoting, brokers: Sequence[Broker], names: Names) -> Iterator[Finding]:
    """Yield a warning if the group has read other topics, because a broker counts the members of all topics together."""
    found: set[str] = set()
    for broker in brokers:
        with suppress(RemotingError):  # the broker does not know the group yet
            reply = remoting.ask(broker.address, _STATISTICS, {"consumerGroup": names.group})
            found.update(_TOPIC.findall(reply.body.decode("utf-8", "replace")))
    others = sorted(topic for topic in found - {names.work} if not is_system_topic(topic))
    if others:
        what = (
            f"The group {names.group!r} reads {', '.join(map(repr, others[:_SHOWN]))}, too, and a broker counts the consumers of all "
            "topics together: `run` would end because of foreign consumers."
        )
        yield Finding(
            "warning",
            what,
            "give each queue a group of its own, such as ?group=shop-{queue} in --broker.",
            id="rocketmq.shared-group",
        )


def _most(queues: Sequence[Queue]) -> int:
    """Return the number of queues of the broker that has the most; a command must not take queues away."""
    return max(Counter(queue.broker for queue in set(queues)).values(), default=0)
