"""
How long a delivery may take and how often a message may be handed over, on each version, and the line that changes it.

| version | a delivery is taken back after | set by | a quorum queue gives a message up after |
|---|---|---|---|
| 3.10, 3.11 | 30 min | rabbitmq.conf, for the whole node | never |
| 3.12, 3.13 | 30 min | policy, queue argument, rabbitmq.conf | never |
| 4.0 to 4.2 | 30 min | as 3.12 | 20 hand-overs, a connection lost counts |
| 4.3, quorum | 30 min | each consumer for itself, and as before | 20 hand-overs, a delivery timeout does not count |
| 4.3, classic or stream | never | nothing | never |

All of it read off running brokers (3.10.8, 4.0.5, 4.3.6) and the sources between.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass

from steadyworker_rabbitmq.checks.queue_state import QueueState, QueueType
from steadyworker_rabbitmq.topology import KEEPS_PLACE, Version

OLDEST: Version = (3, 10)
"""Quorum queues with a time to live, and dead-lettering that loses nothing, both began here."""

TIMEOUT_POLICIES: Version = (3, 12)
CONSUMER_TIMEOUTS: Version = (4, 3)
DELAYED_RETRIES: Version = (4, 3)
DELIVERY_LIMITS: Version = (4, 0)

DEFAULT_TIMEOUT = 1800.0
DEFAULT_LIMIT = 20

MARGIN = 900.0
"""Seconds that a delivery may be older than its run: a ledger that was away, a copy that nobody took at once."""

UNLIMITED = 7 * 86400.0
"""
Seconds asked for a job without a time limit.

The timeout is there for consumers that are connected and never settle.
Ours find that out by themselves, and a frozen host loses its connection by heartbeats; so a week is no risk, and yet an end.
"""

SPARE_HAND_OVERS = 5
"""As `steadyworker.service.checks`: what one job may need beside its delivery timeouts."""

_LONGEST = 2**32 - 1
"""Milliseconds: what an Erlang timer takes."""


@dataclass(frozen=True, slots=True)
class Timeout:
    """Seconds until a delivery is taken back (None: never), whether that is known or the version's default, and whether we set it."""

    seconds: float | None
    known: bool = True
    ours: bool = False


def wanted_timeout(time_limit: float | None) -> float:
    """Seconds that the delivery timeout should have; never less than the broker's default."""
    return UNLIMITED if time_limit is None else max(DEFAULT_TIMEOUT, time_limit + MARGIN)


def consume_arguments(version: Version, queue_type: QueueType | None, time_limit: float | None) -> dict[str, int]:
    """What we set ourselves, as a consumer; a classic queue refuses it (406), and older brokers ignore it."""
    if version < CONSUMER_TIMEOUTS or queue_type != "quorum":
        return {}
    return {"x-consumer-timeout": _milliseconds(wanted_timeout(time_limit))}


def delivery_timeout(version: Version, work: QueueState, time_limit: float | None) -> Timeout:
    """What applies to our consumer of the work queue."""
    if own := consume_arguments(version, work.type, time_limit):
        return Timeout(own["x-consumer-timeout"] / 1000, ours=True)
    if version >= CONSUMER_TIMEOUTS and work.type is not None and work.type != "quorum":
        return Timeout(None)
    told = work.consumer_timeout
    if told is None and version >= TIMEOUT_POLICIES:
        told = work.number("consumer-timeout")
    return Timeout(DEFAULT_TIMEOUT, known=False) if told is None else Timeout(told / 1000)


def delivery_limit(version: Version, queue: QueueState) -> int | None:
    """Hand-overs after which a quorum queue gives a message up; None: never, or nobody could say."""
    if queue.type != "quorum" or queue.arguments is None:
        return None
    values = [queue.arguments.get("x-delivery-limit"), (queue.policy or {}).get("delivery-limit")]
    numbers = [value for value in values if isinstance(value, int)]
    limits = [number for number in numbers if 0 <= number < KEEPS_PLACE]
    if limits:
        return min(limits)
    return None if numbers or version < DELIVERY_LIMITS else DEFAULT_LIMIT


def outlives(time_limit: float | None, timeout: float | None) -> bool:
    """Whether a job may run when its delivery is taken back: the delivery is always a little older than the run."""
    return timeout is not None and (time_limit is None or time_limit >= timeout)


def hand_overs(version: Version, work: QueueState, time_limit: float | None) -> float:
    """How often one job may be handed over and counted: some to spare, and from 4.3 on a delivery timeout is no failure."""
    timeout = delivery_timeout(version, work, time_limit).seconds
    if timeout is None or version >= CONSUMER_TIMEOUTS:
        return SPARE_HAND_OVERS
    return SPARE_HAND_OVERS + (float("inf") if time_limit is None else time_limit // timeout)


def longer_timeout(version: Version, vhost: str, queue: QueueState, time_limit: float | None) -> str:
    """The line that raises the delivery timeout to what a job of this time limit needs."""
    milliseconds = _milliseconds(wanted_timeout(time_limit))
    if version < TIMEOUT_POLICIES:
        now = shlex.quote(f"application:set_env(rabbit, consumer_timeout, {milliseconds}).")
        return f"write consumer_timeout = {milliseconds} into rabbitmq.conf; until its restart: rabbitmqctl eval {now}"
    if queue.sets("consumer-timeout"):
        return f"make queue {queue.name!r} anew without x-consumer-timeout: the lower of argument and policy applies."
    return policy_line(vhost, queue, "consumer-timeout", milliseconds)


def no_limit(version: Version, vhost: str, queue: QueueState) -> str:
    """The line that takes the delivery limit away, or raises it where it cannot be."""
    if queue.sets("delivery-limit"):
        return f"make queue {queue.name!r} anew without x-delivery-limit: the lower of argument and policy applies."
    if version < DELIVERY_LIMITS:
        return f"take delivery-limit out of policy {queue.policy_name!r}."
    return policy_line(vhost, queue, "delivery-limit", -1)


def policy_line(vhost: str, queue: QueueState, key: str, value: int) -> str:
    """The command that sets one key for one queue; as only one policy applies to a queue, an existing one is named instead."""
    if queue.policy_name is not None:
        return f'set "{key}": {value} in policy {queue.policy_name!r}, which applies to this queue.'
    name, pattern = f"steadyworker-{queue.name}", f"^{re.escape(queue.name)}$"
    words = ["rabbitmqctl", "set_policy", "-p", vhost, name, pattern, json.dumps({key: value}), "--apply-to", "queues"]
    return shlex.join(words)


def _milliseconds(seconds: float) -> int:
    return min(_LONGEST, round(seconds * 1000))
