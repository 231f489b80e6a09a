"""
What a queue does to the messages of a long-running job: drops them, takes them back, counts them; each with the line that heals it.

Pure: a queue as it is, the version of its broker, the Worker's time limit.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Literal

from steadyworker.errors import Finding
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
"""Every queue argument that RabbitMQ knows, 3.10 to 4.3; it takes any other too, and does nothing with it."""


_MESSAGES: dict[Role, str] = {"work": "Jobs", "retry": "Copies that wait", "dead": "Dead letters"}


def losses(wanted: Wanted, actual: QueueState) -> Iterator[Finding]:
    """What drops messages that nobody acknowledged, or ends a delay too early."""
    forwards = wanted.role == "work" and actual.text("dead-letter-exchange") is not None
    # Whoever keeps dead letters for a while only may have meant it; a dead letter without our reason is better than none.
    level: Literal["error", "warning"] = "warning" if forwards or wanted.role == "dead" else "error"
    fate = "end as dead letters that nobody ran" if forwards else "are lost"
    messages = f"{_MESSAGES[wanted.role]} in {actual.name!r}"

    ttl = actual.number("message-ttl")
    if ttl is not None and wanted.role != "retry":
        yield Finding(level, f"{messages} {fate} after {ttl / 1000:g} s.", _without(actual, "message-ttl"))
    elif ttl is not None and ttl < int(wanted.arguments["x-message-ttl"]):
        what = f"{messages} come back after {ttl / 1000:g} s, and wait again."
        yield Finding("warning", what, _without(actual, "message-ttl"))

    for key in ("max-length", "max-length-bytes"):
        longest = actual.number(key)
        if longest is not None and actual.text("overflow") != "reject-publish":
            what = f"{messages} {fate} when there are more than {longest} ({key})."
            yield Finding(level, what, f"set overflow to reject-publish, or {_without(actual, key)}")

    expires = actual.number("expires")
    if expires is not None:
        what = f"{messages} are lost with their queue when nobody uses it for {expires / 1000:g} s."
        yield Finding("error", what, _without(actual, "expires"))


def delivery_timeout(
    version: Version, vhost: str, actual: QueueState, time_limit: float | None, unknown: str
) -> Iterator[Finding]:
    """A delivery that is taken back while its job runs; `unknown` says why the timeout could not be asked for, if it could not."""
    timeout = limits.delivery_timeout(version, actual, time_limit)
    if timeout.ours or not limits.outlives(time_limit, timeout.seconds):
        return  # ours is as long as it can be
    longest = "for ever" if time_limit is None else f"{time_limit:g} s"
    how = "" if timeout.known else f" (RabbitMQ's default; what is set could not be asked for{unknown})"
    what = f"A job of {actual.name!r} may run {longest}, but the broker takes a delivery back after {timeout.seconds:g} s{how}."
    yield Finding("warning", what, limits.longer_timeout(version, vhost, actual, time_limit))


def delivery_limit(
    version: Version, vhost: str, wanted: Wanted, actual: QueueState, time_limit: float | None
) -> Iterator[Finding]:
    """A message that is given up after so many hand-overs: a worker process that was killed, a connection that was lost."""
    limit = limits.delivery_limit(version, actual)
    if limit is None:
        return
    remedy = limits.no_limit(version, vhost, actual)
    if wanted.role == "dead":
        yield Finding(
            "warning", f"A dead letter in {actual.name!r} is dropped when it was looked at {limit} times.", remedy
        )
        return
    needed = limits.hand_overs(version, actual, time_limit)
    if needed > limit:
        what = f"One job of {actual.name!r} may take {needed:g} hand-overs; the broker gives it up after {limit}."
        yield Finding("error", what, remedy)
    elif actual.text("dead-letter-exchange") is None:
        what = f"A job of {actual.name!r} is dropped without a trace after {limit} hand-overs: the queue has no dead-letter exchange."
        yield Finding("error", what, remedy)
    else:
        what = f"A job of {actual.name!r} ends as a dead letter after {limit} hand-overs, however far it came."
        yield Finding("warning", what, remedy)


def oddities(version: Version, actual: QueueState) -> Iterator[Finding]:
    """What works and will surprise."""
    name, arguments = actual.name, actual.arguments or {}
    if actual.type == "classic":
        held = ", and a consumer that hangs holds its message for ever" if version >= limits.CONSUMER_TIMEOUTS else ""
        what = f"Queue {name!r} is classic: it lives on one node{held}."
        yield Finding("warning", what, "move its messages to a quorum queue when you can; it is used as it is.")
    for argument in sorted(arguments):
        if argument.startswith("x-") and argument not in KNOWN_ARGUMENTS:
            near = difflib.get_close_matches(argument, KNOWN_ARGUMENTS, n=1)
            meant = f": {near[0]} was meant" if near else ""
            what = f"Queue {name!r} has the argument {argument}, which RabbitMQ does not know and ignores{meant}."
            yield Finding("warning", what, "make the queue anew with the right name, or leave the argument out.")
    if arguments.get("x-single-active-consumer") is True:
        what = f"Queue {name!r} has a single active consumer: every other worker process waits until that one is gone."
        yield Finding("warning", what, "make the queue anew without x-single-active-consumer.")


def delayed_retry(version: Version, wanted: Wanted, actual: QueueState) -> Iterator[Finding]:
    """What the broker itself keeps back of what it takes back: we never ask for it (`topology.py` says why)."""
    if version < limits.DELAYED_RETRIES or actual.type not in (
        "quorum",
        None,
    ):  # older ones take the arguments and do nothing
        return
    kind, shortest, longest = (_delayed_retry(actual, key) for key in ("type", "min", "max"))
    if not isinstance(shortest, int) or shortest <= 0 or kind not in ("all", "failed", "returned"):
        return
    longest = longest if isinstance(longest, int) else shortest
    wait = f"{min(shortest, longest) / 1000:g} s"
    up_to = f"{wait} for each time, up to {longest / 1000:g} s" if longest > shortest else wait
    fates = {
        "returned": f"what is given back: a job that was interrupted goes on {wait} later",
        "failed": f"what was lost with its worker or connection: the job is handed over again after {up_to}",
    }
    fate = ", and ".join(fates[each] for each in ("returned", "failed") if kind in (each, "all"))
    if wanted.role == "dead":
        if kind == "failed":
            return
        fate = f"what was looked at: a dead letter is not seen again for {wait}"
    remedy = (
        f"take delayed-retry-type out of policy {actual.policy_name!r}, or out of the operator policy that sets it."
        if "delayed-retry-type" in (actual.policy or {})
        else f"make queue {actual.name!r} anew without x-delayed-retry-type."
    )
    yield Finding("warning", f"Queue {actual.name!r} keeps back {fate}.", remedy)


def _delayed_retry(actual: QueueState, key: str) -> object:
    """As it applies: here, and nowhere else, a policy's value outranks the queue's own."""
    own = (actual.arguments or {}).get(f"x-delayed-retry-{key}")
    return (actual.policy or {}).get(f"delayed-retry-{key}", own)


def _without(actual: QueueState, key: str) -> str:
    if actual.obeys_policy(key):
        return f"take {key} out of policy {actual.policy_name!r}, or out of the operator policy that sets it."
    return f"make queue {actual.name!r} anew without x-{key}."
