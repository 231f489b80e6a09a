"""
The topics and consumer groups of one queue, and how they are made.

| | topic | its type at a proxy | queues |
|---|---|---|---|
| work | the queue's name | NORMAL | `?queues=`, 16 by default |
| retries of gRPC | `<queue>-later` | DELAY | as many |
| dead letters | `<queue>-dead` | NORMAL | 1, so that they have an order |

A name server tells the brokers, and each broker makes its part.
Without `?namesrv=`, an operator makes topics and groups, because a proxy cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

from steadyworker.adapter import Clock
from steadyworker_rocketmq.errors import translated
from steadyworker_rocketmq.names import Names
from steadyworker_rocketmq.remoting import Login, Remoting
from steadyworker_rocketmq.url import BrokerUrl

MOST_ATTEMPTS = 1_000_000
"""
The number of deliveries after which the broker moves a message to its own dead-letter queue, which must never happen.

SteadyWorker counts attempts itself, and expired invisibilities count as deliveries.
"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """
    The proof that topics and groups are there, or that an operator makes them.

    Attributes:
        made: The brokers have the topics, even if a proxy does not know them yet.
    """

    made: bool


def remoting_of(url: BrokerUrl, clock: Clock) -> Remoting:
    """Return a client of the name servers; raises BrokerUnavailable in use, and ValueError if the URL names none."""
    servers = url.addresses if url.driver == "remoting" else url.namesrv
    if not servers:
        raise ValueError("Expected name servers in the broker's URL, got none: set ?namesrv=host:9876.")
    login = Login(url.user, url.password) if url.user else None
    return Remoting(servers, login, clock)


def prepare_at(url: BrokerUrl, names: Names, mode: str, clock: Clock) -> Prepared:
    """
    Make what is missing, if the topology mode is "declare" and a name server is known.

    Raises:
        BrokerUnavailable: A name server or broker cannot be reached; `Refused` if a later try cannot succeed.
    """
    if mode == "declare" and (url.driver == "remoting" or url.namesrv):
        with translated(str(url)), remoting_of(url, clock) as remoting:
            _make(remoting, url, names)
        return Prepared(made=True)
    return Prepared(made=False)


def kinds_of(url: BrokerUrl, names: Names) -> dict[str, str | None]:
    """Return the topics of a driver, each with its type; the type is None for the driver that uses no proxy."""
    if url.driver == "remoting":
        return {names.work: None, names.dead: None}
    return {names.work: "NORMAL", names.later: "DELAY", names.dead: "NORMAL"}


def _make(remoting: Remoting, url: BrokerUrl, names: Names) -> None:
    for topic, kind in kinds_of(url, names).items():
        if remoting.route(topic) is None:
            remoting.make_topic(topic, 1 if topic == names.dead else url.queues, kind)
    groups = {names.group: names.work}
    if url.driver == "grpc":
        groups[names.later_group] = names.later
    for group, topic in groups.items():
        if any(remoting.group(broker, group) is None for broker in remoting.brokers()):
            remoting.make_group(group, MOST_ATTEMPTS)
            _begin_at_first(remoting, topic, group)


def _begin_at_first(remoting: Remoting, topic: str, group: str) -> None:
    """Let a new group begin at the first message; otherwise the broker may begin it behind those that wait."""
    for queue in remoting.route(topic) or []:
        if remoting.consumed(queue, topic, group) is None:
            remoting.set_consumed(queue, topic, group, remoting.first(queue, topic))
