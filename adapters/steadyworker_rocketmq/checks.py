"""
Findings: the problems of these brokers, topics and groups, each with its remedy.

These checks ask the name servers and the brokers, and change nothing.
Without `?namesrv=`, a proxy tells only whether the work topic exists, and a note says what was not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.errors import Finding, Level
from steadyworker_rocketmq.names import Names
from steadyworker_rocketmq.remoting import Broker, Queue, Remoting
from steadyworker_rocketmq.topology import MOST_ATTEMPTS, kinds_of
from steadyworker_rocketmq.url import BrokerUrl

Version = tuple[int, ...]

OLDEST: Mapping[str, Version] = {"grpc": (5, 3), "remoting": (4, 9, 7)}
"""The oldest version that each driver supports; 4.9.7 and 5.4.0 are tried."""

_ENOUGH_ATTEMPTS = 1000
"""The smallest limit of deliveries that is enough: each expired invisibility counts as a delivery."""

_SHORT_RETENTION = 24
"""Hours of retention below which a weekend's dead letters, or a backlog of long jobs, can vanish."""

_HALF, _UNDECIDED = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"

_WEAKNESSES = (
    ("CVE-2023-33246", "run programs on the broker's host", {4: (4, 9, 6), 5: (5, 1, 1)}),
    ("CVE-2023-37582", "run programs on the name server's host", {4: (4, 9, 7), 5: (5, 1, 2)}),
    ("CVE-2024-23321", "read user names and secrets, if it has any valid login", {4: (4, 9, 8), 5: (5, 3, 0)}),
)


def find(remoting: Remoting, url: BrokerUrl, names: Names, spec: QueueSpec, settings: Settings) -> Iterator[Finding]:
    """Yield all findings of brokers that can be reached; raises what `Remoting` raises."""
    brokers = remoting.brokers()
    for broker in brokers:
        yield from _broker(remoting, broker, url)
        yield from _group(remoting, broker, names.group, settings)
        yield from _system_topics(remoting, broker)
    if settings.topology == "trust":
        return
    for topic, kind in kinds_of(url, names).items():
        queues = remoting.route(topic)
        if queues is None:
            if settings.topology == "verify":
                yield _missing(topic, kind)
            continue
        if kind is not None and (got := remoting.topic_type(topic)) not in (None, kind):
            what = (
                f"Topic {topic!r} has the type {got}, so a proxy refuses our messages to it; the type must be {kind}."
            )
            yield Finding(
                "error", what, f"mqadmin updateTopic -t {topic} -a +message.type={kind}, or name another queue."
            )
        if topic == names.work:
            yield from _work(remoting, queues, names, url, spec)


def unseen() -> Finding:
    """Return a note for a URL without name servers."""
    what = "The URL names no name server, so version, group, topic types and retention were not checked, and dead letters cannot be read."
    return Finding("note", what, "add ?namesrv=host:9876 to --broker.")


def _broker(remoting: Remoting, broker: Broker, url: BrokerUrl) -> Iterator[Finding]:
    text = remoting.version(broker)
    version = _version(text)
    oldest = OLDEST[url.driver]
    if version and version < oldest:
        what = f"Expected RocketMQ {'.'.join(map(str, oldest))} or newer, got {text} at {broker.name}, which is not supported."
        yield Finding("warning", what, "upgrade the broker.")
    for cve, harm, fixed in _WEAKNESSES:
        if version and version < fixed.get(version[0], (0,)):
            what = f"Every host that reaches broker {broker.name} ({text}) can {harm} ({cve})."
            yield Finding("warning", what, "upgrade the broker, or close its ports to all but its clients.")
    settings = remoting.settings(broker)
    hours = settings.get("fileReservedTime", "")
    if hours.isdecimal():
        what = f"Broker {broker.name} deletes every message after {hours} h, read or not: jobs that wait, and dead letters, too."
        level: Level = "warning" if int(hours) < _SHORT_RETENTION else "note"
        yield Finding(level, what, "set fileReservedTime in broker.conf to the longest time that a message may wait.")
    size = settings.get("maxMessageSize", "")
    if size.isdecimal() and int(size) < (url_limit := 1 << 20):
        what = f"Broker {broker.name} accepts messages of at most {size} bytes, and our default limit is {url_limit}."
        yield Finding("warning", what, f"set maxMessageSize in broker.conf above {url_limit}, or send smaller bodies.")


def _group(remoting: Remoting, broker: Broker, group: str, settings: Settings) -> Iterator[Finding]:
    found = remoting.group(broker, group)
    if found is None:
        if settings.topology == "verify":
            what = f"Expected the consumer group {group!r} at broker {broker.name}, got none."
            yield Finding(
                "error",
                what,
                f"mqadmin updateSubGroup -g {group} -r {MOST_ATTEMPTS}; or run once with --topology declare.",
            )
        return
    if found.get("consumeEnable") is False:
        what = f"Broker {broker.name} does not let the group {group!r} consume."
        yield Finding("error", what, f"mqadmin updateSubGroup -g {group} -s true")
    attempts = found.get("retryMaxTimes")
    if isinstance(attempts, int) and attempts < _ENOUGH_ATTEMPTS:
        what = (
            f"Broker {broker.name} moves a message of group {group!r} to its own dead letters after {attempts} deliveries, "
            "and each worker that is killed costs one."
        )
        yield Finding("warning", what, f"mqadmin updateSubGroup -g {group} -r {MOST_ATTEMPTS}")


def _system_topics(remoting: Remoting, broker: Broker) -> Iterator[Finding]:
    """Yield a warning for transactions that wait for a decision, or got none."""
    for topic, what in (
        (_HALF, "messages of transactions that are not decided"),
        (_UNDECIDED, "messages of transactions without a decision, which it has given up"),
    ):
        queues = [queue for queue in remoting.route(topic) or [] if queue.broker == broker]
        count = sum(remoting.end(queue, topic) - remoting.first(queue, topic) for queue in queues)
        if count > (1000 if topic == _HALF else 0):
            yield Finding(
                "warning",
                f"Broker {broker.name} has {count} {what} ({topic}).",
                "see the producers' logs: a transaction checker is missing, or answers UNKNOWN.",
            )


def _work(remoting: Remoting, queues: list[Queue], names: Names, url: BrokerUrl, spec: QueueSpec) -> Iterator[Finding]:
    if url.driver == "remoting" and len(queues) < spec.concurrency:
        what = f"Topic {names.work!r} has {len(queues)} queues, and a worker holds at most one message of each; its concurrency is {spec.concurrency}."
        yield Finding("warning", what, f"mqadmin updateTopic -t {names.work} -r 16 -w 16")
    waiting = sum(
        remoting.end(queue, names.work) - remoting.first(queue, names.work)
        for queue in queues
        if remoting.consumed(queue, names.work, names.group) is None
    )
    if waiting and any(remoting.group(queue.broker, names.group) is not None for queue in queues):
        what = f"The group {names.group!r} has read nothing yet, and its first start can skip {waiting} messages that wait in {names.work!r}."
        yield Finding(
            "warning", what, "start it once with --topology declare, which sets the group to the first message."
        )


def _missing(topic: str, kind: str | None) -> Finding:
    attribute = f" -a +message.type={kind}" if kind else ""
    what = f"Expected the topic {topic!r}, got none."
    return Finding("error", what, f"mqadmin updateTopic -t {topic}{attribute}; or run once with --topology declare.")


def _version(text: str) -> Version:
    parts = text.partition("-")[0].split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()
