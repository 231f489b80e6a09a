"""
The risks of a queue's arguments and policies for long-running jobs: dropped, requeued or counted messages.

Each finding has its remedy.
The functions are pure: they get the state of a queue, the version of its broker, and the Worker's time limit.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Literal

from steadyworker.errors import Finding, Loss
from steadyworker_rabbitmq.checks import limits
from steadyworker_rabbitmq.checks.queue_state import QueueState
from steadyworker_rabbitmq.topology import Role, Version, Wanted

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
"""What is lost with the messages of each queue."""


def losses(wanted: Wanted, actual: QueueState) -> Iterator[Finding]:
    """Yield a finding for every setting that drops messages without an ack, or ends a delay too early."""
    forwards = wanted.role == "work" and actual.text("dead-letter-exchange") is not None
    # An operator can want a limit on dead letters, and a job that the broker dead-letters is not lost: both are only warnings.
    level: Literal["error", "warning"] = "warning" if forwards or wanted.role == "dead" else "error"
    fate = "become dead letters without being run" if forwards else "are lost"
    messages = f"{_MESSAGES[wanted.role]} in {actual.name!r}"
    loses = LOSSES[wanted.role]

    ttl = actual.number("message-ttl")
    if ttl is not None and wanted.role != "retry":
        yield Finding(
            level,
            f"{messages} {fate} after {ttl / 1000:g} s.",
            _without(actual, "message-ttl"),
            id="rabbitmq.message-ttl",
            loses=loses,
        )
    elif ttl is not None and ttl < int(wanted.arguments["x-message-ttl"]):
        what = f"{messages} return to the work queue too early, after {ttl / 1000:g} s, and must wait again."
        yield Finding("warning", what, _without(actual, "message-ttl"), id="rabbitmq.short-retry-ttl")

    for key in ("max-length", "max-length-bytes"):
        longest = actual.number(key)
        if longest is not None and actual.text("overflow") != "reject-publish":
            what = f"{messages} {fate} when the queue holds more than {longest} ({key})."
            remedy = f"set overflow to reject-publish, or {_without(actual, key)}"
            yield Finding(level, what, remedy, id="rabbitmq.max-length", loses=loses)

    expires = actual.number("expires")
    if expires is not None:
        what = f"{messages} are lost when the queue is unused for {expires / 1000:g} s: it then expires (expires)."
        yield Finding("error", what, _without(actual, "expires"), id="rabbitmq.queue-expires", loses=loses)


def dead_letter_target(wanted: Wanted, actual: QueueState) -> Iterator[Finding]:
    """
    Yield a warning if the broker dead-letters the work queue's messages to another queue than the Worker's dead-letter queue.

    This checks only the default exchange, because the queues behind an operator's own exchange are unknown.
    """
    target = actual.text("dead-letter-routing-key")
    expected = wanted.arguments["x-dead-letter-routing-key"]
    if actual.text("dead-letter-exchange") != "" or target in (None, expected):
        return
    what = (
        f"When the broker gives up a job of {actual.name!r}, it moves the job to queue {target!r}, "
        f"but `steadyworker dead` reads {expected!r}, the Worker's dead_letter_queue."
    )
    if "dead-letter-routing-key" in (actual.policy or {}) and not actual.sets("dead-letter-routing-key"):
        remedy = f"set dead-letter-routing-key in policy {actual.policy_name!r} to {expected!r}."
    else:
        remedy = f"set dead_letter_queue = {target!r} on the Worker, or delete the queue when it is empty, and start the Worker before anything else creates the queue."
    yield Finding("warning", what, remedy, id="rabbitmq.other-dead-letter-queue")


def delivery_timeout(
    version: Version, vhost: str, actual: QueueState, time_limit: float | None, unknown: str
) -> Iterator[Finding]:
    """
    Yield a warning if the broker can take a delivery back while its job runs.

    `unknown` is the reason to report if the timeout could not be read.
    """
    timeout = limits.delivery_timeout(version, actual, time_limit)
    if timeout.ours or not limits.outlives(time_limit, timeout.seconds):
        return  # our consumer sets a timeout that is long enough, or the longest that AMQP permits
    longest = "without limit" if time_limit is None else f"{time_limit:g} s"
    how = "" if timeout.known else f" (RabbitMQ's default; the value in force could not be read{unknown})"
    what = f"A job of {actual.name!r} may run {longest}, but the broker takes a delivery back after {timeout.seconds:g} s{how}."
    yield Finding(
        "warning", what, limits.longer_timeout(version, vhost, actual, time_limit), id="rabbitmq.short-delivery-timeout"
    )


def delivery_limit(
    version: Version, vhost: str, wanted: Wanted, actual: QueueState, time_limit: float | None
) -> Iterator[Finding]:
    """
    Yield a finding if the broker drops or dead-letters a message after a number of deliveries.

    The broker also counts deliveries that were lost with a worker or a connection.
    """
    limit = limits.delivery_limit(version, actual)
    if limit is None:
        return
    remedy = limits.no_limit(version, vhost, actual)
    if wanted.role == "dead":
        yield Finding(
            "warning",
            f"The broker drops a dead letter in {actual.name!r} that has been read {limit} times.",
            remedy,
            id="rabbitmq.dead-letters-dropped",
            loses="letters",
        )
        return
    needed = limits.deliveries_needed(version, actual, time_limit)
    if needed > limit:
        what = f"One job of {actual.name!r} may need {needed:g} deliveries, but the broker gives a message up after {limit}."
        yield Finding("error", what, remedy, id="rabbitmq.low-delivery-limit")
    elif actual.text("dead-letter-exchange") is None:
        what = (
            f"The broker drops a job of {actual.name!r} after {limit} deliveries, without a dead letter, "
            "because the queue has no dead-letter exchange."
        )
        yield Finding("error", what, remedy, id="rabbitmq.limit-without-dead-letter", loses="jobs")
    else:
        what = f"A job of {actual.name!r} becomes a dead letter after {limit} deliveries, whatever its progress."
        yield Finding("warning", what, remedy, id="rabbitmq.delivery-limit")


def oddities(version: Version, actual: QueueState) -> Iterator[Finding]:
    """Yield a warning for every setting that works but could surprise the operator."""
    name, arguments = actual.name, actual.arguments or {}
    if actual.type == "classic":
        held = ", and has no delivery timeout for a consumer that hangs" if version >= limits.CONSUMER_TIMEOUTS else ""
        what = f"Queue {name!r} is classic: it lives on one node{held}."
        yield Finding(
            "warning",
            what,
            "move its messages to a quorum queue when you can; until then this queue is used.",
            id="rabbitmq.classic-queue",
        )
    for argument in sorted(arguments):
        if argument.startswith("x-") and argument not in KNOWN_ARGUMENTS:
            near = difflib.get_close_matches(argument, KNOWN_ARGUMENTS, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            what = f"Queue {name!r} has the argument {argument}, which RabbitMQ ignores as unknown{meant}."
            yield Finding(
                "warning",
                what,
                "delete the queue and create it again with the right argument, or without this one.",
                id="rabbitmq.unknown-argument",
            )
    if arguments.get("x-single-active-consumer") is True:
        what = f"Queue {name!r} has a single active consumer: one worker process gets all jobs, until it ends."
        yield Finding(
            "warning",
            what,
            "delete the queue and create it again without x-single-active-consumer.",
            id="rabbitmq.single-active-consumer",
        )


def delayed_retry(version: Version, wanted: Wanted, actual: QueueState) -> Iterator[Finding]:
    """
    Yield a warning if the queue itself delays returned messages.

    The adapter never uses this feature of 4.3; `topology.py` gives the reasons.
    """
    if version < limits.DELAYED_RETRIES or actual.type not in (
        "quorum",
        None,
    ):  # older versions accept the arguments and ignore them
        return
    kind, shortest, longest = (_delayed_retry(actual, key) for key in ("type", "min", "max"))
    if not isinstance(shortest, int) or shortest <= 0 or kind not in ("all", "failed", "returned"):
        return
    longest = longest if isinstance(longest, int) else shortest
    wait = f"{min(shortest, longest) / 1000:g} s"
    after = f"a delay that grows by {wait} with each delivery, to {longest / 1000:g} s" if longest > shortest else wait
    fates = {
        "returned": f"released deliveries (an interrupted job goes on {wait} later)",
        "failed": f"deliveries lost with their worker or connection (the job is delivered again after {after})",
    }
    fate = " and ".join(fates[each] for each in ("returned", "failed") if kind in (each, "all"))
    if wanted.role == "dead":
        if kind == "failed":
            return
        fate = f"dead letters that were read (they are hidden for {wait})"
    remedy = (
        f"remove delayed-retry-type from policy {actual.policy_name!r}, or from the operator policy that sets it."
        if "delayed-retry-type" in (actual.policy or {})
        else f"delete queue {actual.name!r} and create it again without x-delayed-retry-type."
    )
    yield Finding("warning", f"Queue {actual.name!r} delays {fate}.", remedy, id="rabbitmq.delayed-retry")


def _delayed_retry(actual: QueueState, key: str) -> object:
    """Return the value in force: only for these keys, a policy's value outranks the queue's own value."""
    own = (actual.arguments or {}).get(f"x-delayed-retry-{key}")
    return (actual.policy or {}).get(f"delayed-retry-{key}", own)


def _without(actual: QueueState, key: str) -> str:
    if actual.obeys_policy(key):
        return f"remove {key} from policy {actual.policy_name!r}, or from the operator policy that sets it."
    return f"delete queue {actual.name!r} and create it again without x-{key}."
