"""
Delivery timeouts and delivery limits of each version, and the command that changes them.

The README of this adapter has a table of the timeouts and limits ("Delivery timeout and delivery limit").
These facts come from tests on running brokers (3.10.8, 4.0.5, 4.3.6), and from the source code of the versions between.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass

from steadyworker_rabbitmq.checks.queue_state import ExistingQueue, QueueType
from steadyworker_rabbitmq.topology import KEEPS_PLACE, Version

OLDEST: Version = (3, 10)
"""
The oldest supported version.

It is the first version with message TTL in quorum queues, and with dead-lettering that loses nothing.
"""

TIMEOUT_POLICIES: Version = (3, 12)
CONTINUED_CONSUMERS: Version = (4, 0)
CONSUMER_TIMEOUTS: Version = (4, 3)
DELAYED_RETRIES: Version = (4, 3)
DELIVERY_LIMITS: Version = (4, 0)

DEFAULT_TIMEOUT = 1800.0
DEFAULT_LIMIT = 20

MARGIN = 900.0
"""The seconds by which a delivery can be older than its run, for example because the delivery waited for the ledger or a slot."""

UNLIMITED = 7 * 86400.0
"""
The delivery timeout, in seconds, for a job without a time limit.

The broker's timeout catches consumers that stay connected and never settle.
A worker process detects such a consumer itself.
If the whole host freezes, it sends no heartbeats, so the broker closes the host's connections.
So a limit of one week is safe.
"""

SPARE_REDELIVERIES = 5
"""The number of deliveries that one job can need for reasons other than delivery timeouts."""

_LONGEST = 2**32 - 1
"""The longest Erlang timer, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Timeout:
    """
    The delivery timeout that applies to our consumer.

    Attributes:
        seconds: Seconds until the broker requeues a delivery; None for never.
        known: True if the broker reported the timeout; False if `seconds` is the version's default.
        ours: True if our consumer sets the timeout itself.
    """

    seconds: float | None
    known: bool = True
    ours: bool = False


def wanted_timeout(time_limit: float | None) -> float:
    """Return the recommended delivery timeout in seconds; it is never less than the broker's default."""
    return UNLIMITED if time_limit is None else max(DEFAULT_TIMEOUT, time_limit + MARGIN)


def consume_arguments(version: Version, queue_type: QueueType | None, time_limit: float | None) -> dict[str, int]:
    """
    Return the delivery timeout as a consumer argument, for a quorum queue of 4.3 or newer; otherwise no argument.

    A classic queue would refuse the argument (406), and an older broker would ignore it.
    """
    if version < CONSUMER_TIMEOUTS or queue_type != "quorum":
        return {}
    return {"x-consumer-timeout": _milliseconds(wanted_timeout(time_limit))}


def continues_consumers(version: Version, work: ExistingQueue) -> bool:
    """
    Return whether a new consumer with a cancelled consumer's tag continues that consumer, so that the queue counts both as one.

    A quorum queue of 4.0 or newer does this, if it has no single active consumer (seen on 4.0.5 and 4.3.6).
    3.10.8 closes the connection instead (INTERNAL_ERROR).
    There, the broker's channel numbers the deliveries from 0 again, and crashes on the next delivery.
    According to their source code, later versions up to 3.12.3 can withhold a delivery that is on its way during the change.
    In a queue with a single active consumer, the new consumer can have to wait for another consumer to leave.
    The new consumer then never gets a message, because the queue still counts it as cancelled (seen on 4.0.5 and 4.3.6).
    If the queue's arguments are unknown, the queue could have a single active consumer, so the result is False.
    """
    if version < CONTINUED_CONSUMERS or work.type != "quorum" or work.arguments is None:
        return False
    return not work.arguments.get("x-single-active-consumer")


def delivery_timeout(version: Version, work: ExistingQueue, time_limit: float | None) -> Timeout:
    """Return the delivery timeout that applies to our consumer of the work queue."""
    if own := consume_arguments(version, work.type, time_limit):
        return Timeout(own["x-consumer-timeout"] / 1000, ours=True)
    if version >= CONSUMER_TIMEOUTS and work.type is not None and work.type != "quorum":
        return Timeout(None)
    milliseconds = work.consumer_timeout
    if milliseconds is None and version >= TIMEOUT_POLICIES:
        milliseconds = work.number("consumer-timeout")
    return Timeout(DEFAULT_TIMEOUT, known=False) if milliseconds is None else Timeout(milliseconds / 1000)


def delivery_limit(version: Version, queue: ExistingQueue) -> int | None:
    """
    Return the delivery limit of a quorum queue; None if the queue has no limit, or if the limit is unknown.

    If the policy is unknown, only the queue's own limit is known, because a policy can remove the default limit.
    """
    if queue.type != "quorum" or queue.arguments is None:
        return None
    values = [queue.arguments.get("x-delivery-limit"), (queue.policy or {}).get("delivery-limit")]
    numbers = [value for value in values if isinstance(value, int)]
    limits = [number for number in numbers if 0 <= number < KEEPS_PLACE]
    if limits:
        return min(limits)
    return None if numbers or queue.policy is None or version < DELIVERY_LIMITS else DEFAULT_LIMIT


def outlives(time_limit: float | None, timeout: float | None) -> bool:
    """
    Return whether a job can still run when its delivery times out.

    This is also true for a time limit equal to the timeout, because a delivery is always a little older than its run.
    """
    return timeout is not None and (time_limit is None or time_limit >= timeout)


def deliveries_needed(version: Version, work: ExistingQueue, time_limit: float | None) -> float:
    """
    Return the number of deliveries that one job can need: the number of its delivery timeouts, plus `SPARE_REDELIVERIES`.

    From 4.3 on, a delivery timeout does not count towards the limit.
    """
    timeout = delivery_timeout(version, work, time_limit).seconds
    if timeout is None or version >= CONSUMER_TIMEOUTS:
        return SPARE_REDELIVERIES
    return SPARE_REDELIVERIES + (float("inf") if time_limit is None else time_limit // timeout)


def longer_timeout(version: Version, vhost: str, queue: ExistingQueue, time_limit: float | None) -> str:
    """Return the command or setting that makes the delivery timeout long enough for a job with this time limit."""
    milliseconds = _milliseconds(wanted_timeout(time_limit))
    if version < TIMEOUT_POLICIES:
        now = shlex.quote(f"application:set_env(rabbit, consumer_timeout, {milliseconds}).")
        return (
            f"write consumer_timeout = {milliseconds} into rabbitmq.conf; "
            f"to apply it without a restart, run rabbitmqctl eval {now}"
        )
    if queue.sets("consumer-timeout"):
        return _unraisable(queue, "x-consumer-timeout")
    return policy_line(vhost, queue, "consumer-timeout", milliseconds)


def no_limit(version: Version, vhost: str, queue: ExistingQueue) -> str:
    """Return the command or change that removes the delivery limit."""
    own = (queue.arguments or {}).get("x-delivery-limit")
    if isinstance(own, int) and own >= 0:
        return _unraisable(queue, "x-delivery-limit")
    if version < DELIVERY_LIMITS or own is not None:  # only a policy can give such a queue a limit
        return f"remove delivery-limit from policy {queue.policy_name!r}, or from the operator policy that sets it."
    return policy_line(vhost, queue, "delivery-limit", -1)


def policy_line(vhost: str, queue: ExistingQueue, key: str, value: int) -> str:
    """
    Return the command that sets one key for one queue by a policy.

    Only one policy applies to a queue.
    If the queue already has a policy, return a sentence that names the policy to change.
    If the policy is unknown, the command has a condition, because a new policy could replace the operator's policy.
    """
    if queue.policy_name is not None:
        return f'set "{key}": {value} in policy {queue.policy_name!r}, which applies to this queue.'
    name, pattern = f"steadyworker-{queue.name}", f"^{re.escape(queue.name)}$"
    words = ["rabbitmqctl", "set_policy", "-p", vhost, name, pattern, json.dumps({key: value}), "--apply-to", "queues"]
    if queue.policy is not None:
        return shlex.join(words)
    listed = f"if a policy matches queue {queue.name!r} ({shlex.join(['rabbitmqctl', 'list_policies', '-p', vhost])})"
    return f'{listed}, set "{key}": {value} in this policy; otherwise {shlex.join(words)}'


def _unraisable(queue: ExistingQueue, argument: str) -> str:
    return (
        f"delete queue {queue.name!r} and create it again without {argument}: "
        "a policy cannot raise this argument, because the lower value of the two applies."
    )


def _milliseconds(seconds: float) -> int:
    return min(_LONGEST, round(seconds * 1000))
