"""
The risks of a queue's arguments and policies for long-running jobs: dropped, requeued or counted messages.

The functions are pure: their input is the state of a queue, the version of its broker, and the Worker's time limit.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Literal

from steadyworker.errors import Finding, Loss
from steadyworker.findings import FindingTexts
from steadyworker_rabbitmq.checks import limits
from steadyworker_rabbitmq.checks.queue_state import ExistingQueue
from steadyworker_rabbitmq.topology import PlannedQueue, Role, Version

KNOWN_ARGUMENTS = frozenset(
    f"x-{name}"
    for name in (
        *("queue-type", "message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "max-priority"),
        *("dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy", "delivery-limit"),
        *("single-active-consumer", "consumer-timeout", "consumer-disconnected-timeout", "queue-leader-locator"),
        *("quorum-initial-group-size", "quorum-target-group-size", "max-in-memory-length", "max-in-memory-bytes"),
        *("queue-mode", "queue-version", "queue-master-locator", "initial-cluster-size", "max-age"),
        *("stream-max-segment-size-bytes", "stream-filter-size-bytes"),
        *("delayed-retry-type", "delayed-retry-min", "delayed-retry-max"),
    )
)
"""Every queue argument of RabbitMQ 3.10 to 4.3; the broker also accepts unknown arguments, and ignores them."""


_MESSAGES: dict[Role, str] = {"work": "Jobs", "retry": "Waiting jobs", "dead": "Dead letters"}
LOSSES: dict[Role, Loss] = {"work": "jobs", "retry": "jobs", "dead": "letters"}
"""The effect if a queue of this role loses messages."""

_finding = FindingTexts("steadyworker_rabbitmq")


def losses(planned: PlannedQueue, queue: ExistingQueue) -> Iterator[Finding]:
    """Yield a finding for every setting that drops messages without an ack, or ends a delay too early."""
    forwards = planned.role == "work" and queue.text("dead-letter-exchange") is not None
    unknown = queue.policy is None  # the policy can name a dead-letter exchange, or an overflow that drops nothing
    # Three cases are only warnings: an operator can want a limit on dead letters, a job that the broker dead-letters is not lost,
    # and an unknown policy can prevent the loss.
    level: Literal["error", "warning"] = "warning" if forwards or unknown or planned.role == "dead" else "error"
    fate = "become dead letters without being run" if forwards else "can be lost" if unknown else "are lost"
    messages, loses, name = _MESSAGES[planned.role], LOSSES[planned.role], queue.name

    ttl = queue.number("message-ttl")
    if ttl is not None and planned.role != "retry":
        yield _finding(
            "rabbitmq.message-ttl",
            level=level,
            loses=loses,
            messages=messages,
            queue=name,
            fate=fate,
            seconds=ttl / 1000,
            removal=_without(queue, "message-ttl"),
        )
    elif ttl is not None and ttl < int(planned.arguments["x-message-ttl"]):
        removal = _without(queue, "message-ttl")
        yield _finding("rabbitmq.short-retry-ttl", queue=name, seconds=ttl / 1000, removal=removal)

    for key in ("max-length", "max-length-bytes"):
        longest = queue.number(key)
        if longest is not None and queue.text("overflow") != "reject-publish":
            yield _finding(
                "rabbitmq.max-length",
                level=level,
                loses=loses,
                messages=messages,
                queue=name,
                fate=fate,
                longest=longest,
                key=key,
                removal=_without(queue, key),
            )

    expires = queue.number("expires")
    if expires is not None:
        yield _finding(
            "rabbitmq.queue-expires",
            loses=loses,
            messages=messages,
            queue=name,
            seconds=expires / 1000,
            removal=_without(queue, "expires"),
        )


def dead_letter_target(planned: PlannedQueue, queue: ExistingQueue) -> Iterator[Finding]:
    """
    Yield a warning if the broker dead-letters the work queue's messages to a queue other than the Worker's dead-letter queue.

    The function checks only the default exchange, because it does not know the queues that are bound to an operator's own exchange.
    """
    key = "dead-letter-routing-key"
    target, expected = queue.text(key), planned.arguments[f"x-{key}"]
    if queue.text("dead-letter-exchange") != "" or target in (None, expected):
        return
    if key in (queue.policy or {}) and not queue.sets(key):
        policy = queue.policy_name
        yield _finding(
            "rabbitmq.other-dead-letter-queue",
            "policy",
            queue=queue.name,
            target=target,
            expected=expected,
            policy=policy,
        )
    else:
        yield _finding("rabbitmq.other-dead-letter-queue", queue=queue.name, target=target, expected=expected)


def delivery_timeout(
    version: Version, vhost: str, queue: ExistingQueue, time_limit: float | None, unknown: str
) -> Iterator[Finding]:
    """
    Yield a warning if the broker can requeue a delivery while its job runs.

    `unknown` is the reason to report if the timeout is unknown.
    """
    timeout = limits.delivery_timeout(version, queue, time_limit)
    if timeout.ours or not limits.outlives(time_limit, timeout.seconds):
        return  # our consumer sets a timeout that is long enough, or the longest timeout that AMQP permits
    duration = "without limit" if time_limit is None else f"{time_limit:g} s"
    command = limits.longer_timeout(version, vhost, queue, time_limit)
    if timeout.known:
        yield _finding(
            "rabbitmq.short-delivery-timeout",
            queue=queue.name,
            duration=duration,
            timeout=timeout.seconds,
            command=command,
        )
    else:
        yield _finding(
            "rabbitmq.short-delivery-timeout",
            "default",
            queue=queue.name,
            duration=duration,
            timeout=timeout.seconds,
            reason=unknown,
            command=command,
        )


def delivery_limit(
    version: Version, vhost: str, planned: PlannedQueue, queue: ExistingQueue, time_limit: float | None
) -> Iterator[Finding]:
    """
    Yield a finding if the broker drops or dead-letters a message after a number of deliveries.

    The broker also counts deliveries that were lost with a worker or a connection.
    If the policy is unknown, no finding is an error, because a policy can name a dead-letter exchange, and a longer delivery timeout.
    """
    limit = limits.delivery_limit(version, queue)
    if limit is None:
        return
    command = limits.no_limit(version, vhost, queue)
    needed = limits.deliveries_needed(version, queue, time_limit)
    name, known = queue.name, queue.policy is not None
    if planned.role == "dead":
        yield _finding("rabbitmq.dead-letters-dropped", loses="letters", queue=name, limit=limit, command=command)
    elif known and needed > limit:
        yield _finding("rabbitmq.low-delivery-limit", queue=name, needed=needed, limit=limit, command=command)
    elif queue.text("dead-letter-exchange") is not None:
        yield _finding("rabbitmq.delivery-limit", queue=name, limit=limit, command=command)
    elif known:
        yield _finding("rabbitmq.limit-without-dead-letter", loses="jobs", queue=name, limit=limit, command=command)


def oddities(version: Version, queue: ExistingQueue) -> Iterator[Finding]:
    """Yield a warning for every setting that works but could surprise the operator."""
    name, arguments = queue.name, queue.arguments or {}
    if queue.type == "classic":
        unlimited = version >= limits.CONSUMER_TIMEOUTS
        yield _finding("rabbitmq.classic-queue", "no timeout" if unlimited else "", queue=name)
    for argument in sorted(arguments):
        if argument.startswith("x-") and argument not in KNOWN_ARGUMENTS:
            if near := difflib.get_close_matches(argument, KNOWN_ARGUMENTS, n=1):
                yield _finding("rabbitmq.unknown-argument", "misspelt", queue=name, argument=argument, near=near[0])
            else:
                yield _finding("rabbitmq.unknown-argument", queue=name, argument=argument)
    if arguments.get("x-single-active-consumer") is True:
        yield _finding("rabbitmq.single-active-consumer", queue=name)


def delayed_retry(version: Version, planned: PlannedQueue, queue: ExistingQueue) -> Iterator[Finding]:
    """
    Yield a warning if the queue itself delays returned messages.

    The adapter never uses this feature of 4.3; `topology.py` gives the reasons.
    """
    # Older versions accept the arguments and ignore them.
    if version < limits.DELAYED_RETRIES or queue.type not in ("quorum", None):
        return
    kind, shortest, longest = (_delayed_retry(queue, key) for key in ("type", "min", "max"))
    if not isinstance(shortest, int) or shortest <= 0:
        return
    longest = longest if isinstance(longest, int) else shortest
    wait = f"{min(shortest, longest) / 1000:g} s"
    after = f"a delay that grows by {wait} with each delivery, to {longest / 1000:g} s" if longest > shortest else wait
    removal = (
        f"remove delayed-retry-type from policy {queue.policy_name!r}, or from the operator policy that sets it."
        if "delayed-retry-type" in (queue.policy or {})
        else f"delete queue {queue.name!r} and create it again without x-delayed-retry-type."
    )
    match planned.role, kind:
        case "dead", "all" | "returned":
            yield _finding("rabbitmq.delayed-retry", "dead letters", queue=queue.name, wait=wait, removal=removal)
        case "work", "all":
            yield _finding("rabbitmq.delayed-retry", "all", queue=queue.name, wait=wait, after=after, removal=removal)
        case "work", "returned":
            yield _finding("rabbitmq.delayed-retry", "returned", queue=queue.name, wait=wait, removal=removal)
        case "work", "failed":
            yield _finding("rabbitmq.delayed-retry", "failed", queue=queue.name, after=after, removal=removal)


def _delayed_retry(queue: ExistingQueue, key: str) -> object:
    """Return the value in force. For these keys alone, a policy's value outranks the queue's own value."""
    own = (queue.arguments or {}).get(f"x-delayed-retry-{key}")
    return (queue.policy or {}).get(f"delayed-retry-{key}", own)


def _without(queue: ExistingQueue, key: str) -> str:
    if queue.obeys_policy(key):
        return f"remove {key} from policy {queue.policy_name!r}, or from the operator policy that sets it."
    return f"delete queue {queue.name!r} and create it again without x-{key}."
