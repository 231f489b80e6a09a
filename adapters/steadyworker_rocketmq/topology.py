"""
The topics and consumer groups of one queue, and the code that makes them.

| | topic | its type at a proxy | queues |
|---|---|---|---|
| work | the queue's name | NORMAL | `?queues=`, 16 by default |
| retries of gRPC | `<queue>-later` | DELAY | as many |
| dead letters | `<queue>-dead` | NORMAL | 1, so that dead letters have an order |

The adapter asks a name server for the brokers, and each broker makes its part of the topics and groups.
Without `?namesrv=`, an operator makes topics and groups, because a proxy cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from steadyworker.adapter import Clock
from steadyworker.errors import ConfigError
from steadyworker.findings import FindingTexts
from steadyworker_rocketmq.errors import translated
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.remoting import Login, Remoting, RemotingError, RocketmqBroker
from steadyworker_rocketmq.url import RocketmqUrl, seconds_of_levels

_finding = FindingTexts("steadyworker_rocketmq")

MOST_ATTEMPTS = 1_000_000
"""
The number of deliveries after which the broker moves a message to the broker's own dead-letter queue. This must never happen.

SteadyWorker counts attempts itself, and expired invisibilities count as deliveries.
"""


@dataclass(frozen=True, slots=True)
class PreparedTopics:
    """
    The result of the preparation: topics and groups are there, or an operator makes them.

    Attributes:
        made: The brokers have the topics, even if a proxy does not know them yet.
        levels: The brokers' delay levels in seconds, in the order of their numbers; empty with gRPC.
    """

    made: bool
    levels: tuple[float, ...] = ()


def remoting_of(url: RocketmqUrl, clock: Clock) -> Remoting:
    """Return a client of the name servers; raises ValueError if the URL names no name server. In use, the client raises BrokerUnavailable."""
    servers = url.addresses if url.driver == "remoting" else url.namesrv
    if not servers:
        raise ValueError("Expected name servers in the broker's URL, got none: set ?namesrv=host:9876.")
    return Remoting(servers, login_of(url), clock)


def login_of(url: RocketmqUrl) -> Login | None:
    """Return the login of the URL; None if the URL has no login."""
    return Login(url.user, url.password) if url.user else None


def prepare_at(url: RocketmqUrl, names: QueueNames, mode: str, clock: Clock) -> PreparedTopics:
    """
    Make missing topics and groups, if the topology mode is "declare" and a name server is known.

    Raises:
        BrokerUnavailable: A name server or broker cannot be reached; `Refused` if a later try cannot succeed.
    """
    if mode == "declare" and (url.driver == "remoting" or url.namesrv):
        with translated(str(url)), remoting_of(url, clock) as remoting:
            _make(remoting, url, names)
        return PreparedTopics(made=True)
    return PreparedTopics(made=False)


def kinds_of(url: RocketmqUrl, names: QueueNames) -> dict[str, str | None]:
    """Return the topics of a driver, each with its type. The type is None for the driver that uses no proxy."""
    if url.driver == "remoting":
        return {names.work: None, names.dead: None}
    return {names.work: "NORMAL", names.later: "DELAY", names.dead: "NORMAL"}


def groups_of(url: RocketmqUrl, names: QueueNames) -> dict[str, str]:
    """Return the consumer groups of a driver, each with the topic that it reads."""
    groups = {names.group: names.work}
    return groups if url.driver == "remoting" else groups | {names.later_group: names.later}


def delay_levels(remoting: Remoting, brokers: Iterable[RocketmqBroker], url: RocketmqUrl) -> tuple[float, ...]:
    """
    Return the brokers' delay levels in seconds, in the order of their numbers.

    If no broker shows its levels to this login, return the levels of the URL.
    A broker reads its setting `messageDelayLevel` when the broker starts.

    Raises:
        ConfigError: The brokers have different levels, so a number would be another delay at each broker; or a broker's setting is invalid.
    """
    found: dict[str, str] = {}
    for broker in brokers:
        with suppress(RemotingError):  # the login has no right to read the settings
            if text := remoting.settings(broker).get("messageDelayLevel", ""):
                found[broker.name] = text
    try:
        levels = {seconds_of_levels(text) for text in found.values()} or {url.delay_levels}
    except ValueError:
        levels = set()
    if len(levels) == 1:
        return levels.pop()
    shown = ", ".join(f"{text!r} at {name}" for name, text in found.items())
    problem = _finding("rocketmq.delay-levels", levels=shown)
    raise ConfigError(str(problem), [problem])


def _make(remoting: Remoting, url: RocketmqUrl, names: QueueNames) -> None:
    made = set()
    for topic, kind in kinds_of(url, names).items():
        if remoting.route(topic) is None:
            remoting.make_topic(topic, 1 if topic == names.dead else url.queues, kind)
            made.add(topic)
    for group, topic in groups_of(url, names).items():
        is_new = any(remoting.group(broker, group) is None for broker in remoting.brokers())
        if is_new:
            remoting.make_group(group, MOST_ATTEMPTS)
        # 4.9.7 keeps a group's places in a topic that was deleted. With gRPC, an operator may have made the group.
        if is_new or topic in made or url.driver == "grpc":
            _begin_at_first(remoting, topic, group)


def _begin_at_first(remoting: Remoting, topic: str, group: str) -> None:
    """Let a new group or topic begin at the first message. Otherwise the broker may skip the messages that wait."""
    for queue in remoting.route(topic) or []:
        place = remoting.consumed(queue, topic, group)
        if place is None or place > remoting.end(queue, topic):
            remoting.set_consumed(queue, topic, group, remoting.first(queue, topic))
