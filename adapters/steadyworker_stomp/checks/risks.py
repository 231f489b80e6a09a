"""
The risks of Artemis's address settings and queues for jobs: messages that are dropped, expire or are given up.

Each finding has its remedy.
The functions are pure: they get what Artemis's management reports about one queue.
Artemis reports only the settings that broker.xml has; for the others, its defaults are in force.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from steadyworker.errors import Finding, Loss

Level = Literal["error", "warning"]

_ATTEMPTS = 10
"""The default of max-delivery-attempts."""

SPARE_DELIVERIES = 5
"""Deliveries to allow for one job, because connections and worker processes can be lost while it runs."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """
    What Artemis reports about a queue.

    Attributes:
        name: The queue.
        work: True for the work queue, False for the dead-letter queue.
        settings: The address settings in force.
        queue: The queue's own attributes; None if it does not exist.
        routing: The routing types of the address; none if it does not exist.
        dropped: The messages to the address that the broker has dropped since its start, because no queue took them.
    """

    name: str
    work: bool
    settings: Mapping[str, Any]
    queue: Mapping[str, str] | None = None
    routing: Sequence[str] = ()
    dropped: int = 0

    @property
    def messages(self) -> str:
        """The queue's messages, for people."""
        return f"{'Jobs' if self.work else 'Dead letters'} in {self.name!r}"

    @property
    def level(self) -> Level:
        """The level of a loss: an operator can want a limit on dead letters."""
        return "error" if self.work else "warning"

    @property
    def loss(self) -> Loss:
        """What is lost with the queue's messages."""
        return "jobs" if self.work else "letters"

    def number(self, name: str, default: int = -1) -> int:
        """Return a setting that is a number."""
        found = self.settings.get(name, default)
        return found if isinstance(found, int) and not isinstance(found, bool) else default

    def is_on(self, name: str, *, default: bool = False) -> bool:
        """Return a setting that is on or off."""
        return self.settings.get(name, default) is True

    def own(self, name: str, setting: str, default: str) -> str:
        """Return an attribute of the queue; the setting for new queues if the queue does not exist."""
        if self.queue is not None:
            return str(self.queue.get(name, default))
        found = self.settings.get(setting, default)
        return str(found).lower() if isinstance(found, bool) else str(found)

    def without(self, element: str) -> str:
        """Return the remedy that removes an element of broker.xml."""
        return f"remove {element} from the address-setting in broker.xml that matches {self.name!r}."

    def again(self, element: str) -> str:
        """Return the remedy that creates the queue without an attribute, whose default is this element of broker.xml."""
        if self.queue is None:
            return self.without(element)
        return f"delete queue {self.name!r} when it is empty, and create it again without this attribute."


def risks(state: QueueState, *, dlq: str | None, letters_kept: bool | None) -> Iterator[Finding]:
    """
    Yield every risk of one queue.

    Args:
        state: What Artemis reports.
        dlq: The queue that the URL's option `dlq` names.
        letters_kept: Whether the dead-letter address has a queue; None if there is no such address, or if it is unknown.
    """
    yield from _attempts(state, letters_kept=letters_kept)
    yield from _other_letters(state, dlq)
    yield from _expiry(state)
    yield from _full(state)
    yield from _slow_consumers(state)
    yield from _unrouted(state)
    yield from _kind(state)
    yield from _losses(state)
    yield from _oddities(state)


def _attempts(state: QueueState, *, letters_kept: bool | None) -> Iterator[Finding]:
    """Yield a finding if the broker gives a message up after a number of lost connections."""
    attempts = state.number("maxDeliveryAttempts", _ATTEMPTS)
    if attempts < 0:
        return
    remedy = (
        f"set <max-delivery-attempts>-1</max-delivery-attempts> in the address-setting that matches {state.name!r}: "
        "SteadyWorker counts crashes itself."
    )
    address = state.settings.get("deadLetterAddress")
    if not address or letters_kept is False:
        why = f"dead-letter address {address!r} has no queue" if address else "there is no dead-letter address"
        what = f"{state.messages} are lost after {attempts} lost connections, because {why}."
        yield Finding(state.level, what, remedy, id="artemis.limit-without-dead-letter", loses=state.loss)
    elif not state.work:
        return  # they stay dead letters, in another queue that `dead` reads
    elif attempts < SPARE_DELIVERIES:
        what = f"One job of {state.name!r} may lose {SPARE_DELIVERIES} connections, but the broker gives a message up after {attempts}."
        yield Finding("error", what, remedy, id="artemis.low-delivery-limit")
    else:
        what = (
            f"A job of {state.name!r} becomes a dead letter after {attempts} lost connections, whatever its progress."
        )
        yield Finding("warning", what, remedy, id="artemis.delivery-limit")


def _other_letters(state: QueueState, dlq: str | None) -> Iterator[Finding]:
    address = state.settings.get("deadLetterAddress")
    if state.work and dlq is not None and address and address != dlq:
        what = (
            f"When the broker gives up a job of {state.name!r}, it moves the job to {address!r}, "
            f"but `steadyworker dead` reads {dlq!r}, which the option dlq names."
        )
        yield Finding(
            "warning",
            what,
            "remove the option dlq from --broker: Artemis reports the right queue itself.",
            id="artemis.other-dead-letter-queue",
        )


def _expiry(state: QueueState) -> Iterator[Finding]:
    """Yield a finding for every setting that gives a message without an expiry time such a time."""
    if state.is_on("noExpiry"):
        return
    times = {"expiry-delay": state.number("expiryDelay"), "max-expiry-delay": state.number("maxExpiryDelay")}
    after = {element: milliseconds for element, milliseconds in times.items() if milliseconds >= 0}
    if after:
        first = min(after, key=lambda element: after[element])
        address = state.settings.get("expiryAddress")
        fate = f"moved to {address!r} without being run" if address and state.work else f"moved to {address!r}"
        fate = fate if address else "lost"
        what = f"{state.messages} are {fate} after {after[first] / 1000:g} s ({first})."
        yield Finding(state.level, what, state.without(first), id="artemis.expiry", loses=state.loss)


def _full(state: QueueState) -> Iterator[Finding]:
    """Yield a finding if the broker confirms messages that it drops."""
    for setting, element in (
        ("addressFullMessagePolicy", "address-full-policy"),
        ("pageFullMessagePolicy", "page-full-policy"),
    ):
        if state.settings.get(setting) == "DROP":
            what = f"{state.messages} are lost when the address is full: the broker confirms them, and drops them ({element} DROP)."
            remedy = f"set {element} to PAGE, BLOCK or FAIL in broker.xml."
            yield Finding(state.level, what, remedy, id="artemis.full-policy-drop", loses=state.loss)


def _slow_consumers(state: QueueState) -> Iterator[Finding]:
    threshold = state.number("slowConsumerThreshold")
    if state.work and threshold >= 0 and state.settings.get("slowConsumerPolicy") == "KILL":
        what = (
            f"The broker closes the connection of a consumer of {state.name!r} that takes long for each message "
            f"(slow-consumer-policy KILL, threshold {threshold}): that is every worker with a long job."
        )
        yield Finding(
            "error",
            what,
            f"set <slow-consumer-policy>NOTIFY</slow-consumer-policy>, or {state.without('slow-consumer-threshold')}",
            id="artemis.slow-consumers-killed",
        )


def _unrouted(state: QueueState) -> Iterator[Finding]:
    """Yield a warning if the broker drops messages that it confirms, because their senders name no routing type and no queue exists."""
    name = state.name
    if state.dropped:
        times = "message" if state.dropped == 1 else "messages"
        what = f"Since its start, the broker has confirmed and dropped {state.dropped} {times} to {name!r}, because no queue took them."
    elif state.queue is None and state.routing and "ANYCAST" not in state.routing:
        what = f"The address {name!r} is multicast and has no queue: the broker confirms and drops each message to it."
    else:
        return
    remedy = (
        "let each sender set the header destination-type:ANYCAST, or create the queue before the first message: "
        f'<address name="{name}"><anycast><queue name="{name}"/></anycast></address> in broker.xml; then send the lost jobs again.'
    )
    yield Finding("warning", what, remedy, id="artemis.unrouted-messages")


def _kind(state: QueueState) -> Iterator[Finding]:
    """Yield a finding for a queue of a kind that cannot keep jobs."""
    name = state.name
    again = f"delete queue {name!r} when it is empty, and create it again"
    if state.own("routingType", "", "ANYCAST") != "ANYCAST":
        what = f"The queue {name!r} is a multicast queue: every such queue of its address gets a copy of each message."
        yield Finding("error", what, f"{again} as an anycast queue.", id="artemis.multicast-queue")
    if state.own("durable", "", "true") != "true":
        what = f"The queue {name!r} is not durable: a restart of the broker deletes it with all its messages."
        yield Finding("error", what, f"{again} as a durable queue.", id="artemis.transient-queue", loses=state.loss)
    if state.own("filter", "", ""):
        what = (
            f"The queue {name!r} has a filter: the broker confirms every message that does not match it, and drops it."
        )
        yield Finding("error", what, f"{again} without the filter.", id="artemis.filtered-queue", loses=state.loss)
    if state.is_on("defaultNonDestructive"):
        what = f"The broker keeps a message of {name!r} after its acknowledgement (non-destructive), so jobs come again without end."
        yield Finding("error", what, state.without("default-non-destructive"), id="artemis.non-destructive")


def _losses(state: QueueState) -> Iterator[Finding]:
    """Yield a finding for every attribute that makes the queue drop messages."""
    name, level = state.name, state.level
    if state.own("purgeOnNoConsumers", "defaultPurgeOnNoConsumers", "false") == "true":
        what = f"{state.messages} are lost when the last consumer leaves, for instance at a deploy (purge-on-no-consumers)."
        yield Finding(
            level,
            what,
            state.again("default-purge-on-no-consumers"),
            id="artemis.purge-on-no-consumers",
            loses=state.loss,
        )
    ring = state.own("ringSize", "defaultRingSize", "-1")
    if ring != "-1":
        what = f"{state.messages} are lost when the queue holds more than {ring} (ring-size)."
        yield Finding(level, what, state.again("default-ring-size"), id="artemis.ring-queue", loses=state.loss)
    if state.own("lastValue", "defaultLastValueQueue", "false") == "true":
        what = f"The queue {name!r} is a last-value queue: a message can replace an older one, whose job is lost."
        yield Finding(
            level, what, state.again("default-last-value-queue"), id="artemis.last-value-queue", loses=state.loss
        )
    count = state.number("autoDeleteQueuesMessageCount", 0)
    if state.is_on("autoDeleteQueues", default=True) and count != 0:
        up_to = "with all its messages" if count < 0 else f"with up to {count} messages"
        what = f"When the last consumer leaves, the broker deletes queue {name!r} {up_to}, for instance at a deploy."
        yield Finding(
            level,
            what,
            state.without("auto-delete-queues-message-count"),
            id="artemis.auto-delete-queue",
            loses=state.loss,
        )


def _oddities(state: QueueState) -> Iterator[Finding]:
    """Yield a warning for every attribute of a work queue that holds up jobs."""
    name = state.name
    if not state.work:
        return
    if state.own("exclusive", "defaultExclusiveQueue", "false") == "true":
        what = f"The queue {name!r} is exclusive: one slot of one worker process gets all jobs, until it ends."
        yield Finding("warning", what, state.again("default-exclusive-queue"), id="artemis.exclusive-queue")
    consumers = state.own("maxConsumers", "defaultMaxConsumers", "-1")
    if consumers != "-1":
        what = f"The queue {name!r} accepts {consumers} consumers, and each slot of each worker process is one."
        yield Finding("warning", what, state.again("default-max-consumers"), id="artemis.max-consumers")
    if state.own("paused", "", "false") == "true":
        yield Finding(
            "warning",
            f"The queue {name!r} is paused, so no job starts.",
            "resume it in the broker's console.",
            id="artemis.paused-queue",
        )
