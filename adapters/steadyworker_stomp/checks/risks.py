"""
Settings of addresses and queues with which Artemis drops messages, lets them expire or gives them up.

Each finding has a remedy.
The functions are pure: their argument is what Artemis's management reports about one queue.
Artemis reports only the settings in broker.xml. For every other setting, Artemis's default is in force.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from steadyworker.errors import Finding, Loss
from steadyworker.findings import FindingTexts

Level = Literal["error", "warning"]

_ATTEMPTS = 10
"""The default of max-delivery-attempts."""

SPARE_DELIVERIES = 5
"""The number of deliveries to allow for one job, because connections and worker processes can be lost while the job runs."""

_finding = FindingTexts("steadyworker_stomp")


@dataclass(frozen=True, slots=True)
class ArtemisQueue:
    """
    A queue as Artemis reports it.

    Attributes:
        name: The queue.
        work: True for the work queue; False for the dead-letter queue.
        settings: The address settings in force.
        queue: The queue's own attributes; None if the queue does not exist.
        routing: The routing types of the address; empty if the address does not exist.
        dropped: The number of messages to the address that the broker has dropped since its start, because no queue took them.
    """

    name: str
    work: bool
    settings: Mapping[str, Any]
    queue: Mapping[str, str] | None = None
    routing: Sequence[str] = ()
    dropped: int = 0

    @property
    def messages(self) -> str:
        """The name for the queue's messages in a finding."""
        return "Jobs" if self.work else "Dead letters"

    @property
    def level(self) -> Level:
        """The level of a finding about a loss. It is lower for dead letters, because an operator can want a limit on them."""
        return "error" if self.work else "warning"

    @property
    def loss(self) -> Loss:
        """The name for what is lost with the queue's messages."""
        return "jobs" if self.work else "letters"

    def number(self, name: str, default: int = -1) -> int:
        """Return a setting that is a number."""
        found = self.settings.get(name, default)
        return found if isinstance(found, int) and not isinstance(found, bool) else default

    def is_on(self, name: str, *, default: bool = False) -> bool:
        """Return a setting that is on or off."""
        return self.settings.get(name, default) is True

    def own(self, name: str, setting: str, default: str) -> str:
        """Return an attribute of the queue; if the queue does not exist, return the setting for new queues."""
        if self.queue is not None:
            return str(self.queue.get(name, default))
        found = self.settings.get(setting, default)
        return str(found).lower() if isinstance(found, bool) else str(found)

    def removal(self, element: str) -> str:
        """Return the remedy that removes an attribute from the queue; `element` sets the attribute's default in broker.xml."""
        if self.queue is None:
            return f"remove {element} from the address-setting in broker.xml that matches {self.name!r}"
        return f"delete queue {self.name!r} when it is empty, and create it again without this attribute"


def risks(state: ArtemisQueue, *, dlq: str | None, letters_kept: bool | None) -> Iterator[Finding]:
    """
    Yield every risk of one queue.

    Args:
        state: What Artemis reports.
        dlq: The queue that the URL's option `dlq` names.
        letters_kept: Whether the dead-letter address has a queue; None if there is no such address, or if this is unknown.
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


def _attempts(state: ArtemisQueue, *, letters_kept: bool | None) -> Iterator[Finding]:
    """Yield a finding if the broker gives up a message after a number of lost connections."""
    attempts = state.number("maxDeliveryAttempts", _ATTEMPTS)
    if attempts < 0:
        return
    address = state.settings.get("deadLetterAddress")
    if not address or letters_kept is False:
        cause = f"dead-letter address {address!r} has no queue" if address else "there is no dead-letter address"
        yield _finding(
            "artemis.limit-without-dead-letter",
            level=state.level,
            loses=state.loss,
            messages=state.messages,
            queue=state.name,
            attempts=attempts,
            cause=cause,
        )
    elif not state.work:
        return  # The messages stay dead letters, in another queue that `dead` reads.
    elif attempts < SPARE_DELIVERIES:
        yield _finding("artemis.low-delivery-limit", queue=state.name, spare=SPARE_DELIVERIES, attempts=attempts)
    else:
        yield _finding("artemis.delivery-limit", queue=state.name, attempts=attempts)


def _other_letters(state: ArtemisQueue, dlq: str | None) -> Iterator[Finding]:
    address = state.settings.get("deadLetterAddress")
    if state.work and dlq is not None and address and address != dlq:
        yield _finding("artemis.other-dead-letter-queue", queue=state.name, address=address, dlq=dlq)


def _expiry(state: ArtemisQueue) -> Iterator[Finding]:
    """Yield a finding for every setting that adds an expiry time to a message without an expiry time."""
    if state.is_on("noExpiry"):
        return
    times = {"expiry-delay": state.number("expiryDelay"), "max-expiry-delay": state.number("maxExpiryDelay")}
    after = {element: milliseconds for element, milliseconds in times.items() if milliseconds >= 0}
    if after:
        first = min(after, key=lambda element: after[element])
        address = state.settings.get("expiryAddress")
        fate = f"moved to {address!r} without being run" if address and state.work else f"moved to {address!r}"
        yield _finding(
            "artemis.expiry",
            level=state.level,
            loses=state.loss,
            messages=state.messages,
            queue=state.name,
            fate=fate if address else "lost",
            seconds=after[first] / 1000,
            element=first,
        )


def _full(state: ArtemisQueue) -> Iterator[Finding]:
    """Yield a finding if the broker confirms messages and still drops them when the address is full."""
    for setting, element in (
        ("addressFullMessagePolicy", "address-full-policy"),
        ("pageFullMessagePolicy", "page-full-policy"),
    ):
        if state.settings.get(setting) == "DROP":
            yield _finding(
                "artemis.full-policy-drop",
                level=state.level,
                loses=state.loss,
                messages=state.messages,
                queue=state.name,
                policy=element,
            )


def _slow_consumers(state: ArtemisQueue) -> Iterator[Finding]:
    threshold = state.number("slowConsumerThreshold")
    if state.work and threshold >= 0 and state.settings.get("slowConsumerPolicy") == "KILL":
        yield _finding("artemis.slow-consumers-killed", queue=state.name, threshold=threshold)


def _unrouted(state: ArtemisQueue) -> Iterator[Finding]:
    """
    Yield a warning if the broker confirms messages and still drops them because no queue exists.

    This happens to messages whose senders name no routing type.
    """
    if state.dropped:
        count = "1 message" if state.dropped == 1 else f"{state.dropped} messages"
        yield _finding("artemis.unrouted-messages", queue=state.name, count=count)
    elif state.queue is None and state.routing and "ANYCAST" not in state.routing:
        yield _finding("artemis.unrouted-messages", "multicast", queue=state.name)


def _kind(state: ArtemisQueue) -> Iterator[Finding]:
    """Yield a finding for a queue whose kind cannot keep jobs."""
    if state.own("routingType", "", "ANYCAST") != "ANYCAST":
        yield _finding("artemis.multicast-queue", queue=state.name)
    if state.own("durable", "", "true") != "true":
        yield _finding("artemis.transient-queue", loses=state.loss, queue=state.name)
    if state.own("filter", "", ""):
        yield _finding("artemis.filtered-queue", loses=state.loss, queue=state.name)
    if state.is_on("defaultNonDestructive"):
        yield _finding("artemis.non-destructive", queue=state.name)


def _losses(state: ArtemisQueue) -> Iterator[Finding]:
    """Yield a finding for every attribute that makes the queue drop messages."""
    name, level, loss = state.name, state.level, state.loss
    if state.own("purgeOnNoConsumers", "defaultPurgeOnNoConsumers", "false") == "true":
        removal = state.removal("default-purge-on-no-consumers")
        yield _finding(
            "artemis.purge-on-no-consumers",
            level=level,
            loses=loss,
            messages=state.messages,
            queue=name,
            removal=removal,
        )
    ring = state.own("ringSize", "defaultRingSize", "-1")
    if ring != "-1":
        yield _finding(
            "artemis.ring-queue",
            level=level,
            loses=loss,
            messages=state.messages,
            queue=name,
            longest=ring,
            removal=state.removal("default-ring-size"),
        )
    if state.own("lastValue", "defaultLastValueQueue", "false") == "true":
        removal = state.removal("default-last-value-queue")
        yield _finding("artemis.last-value-queue", level=level, loses=loss, queue=name, removal=removal)
    count = state.number("autoDeleteQueuesMessageCount", 0)
    if state.is_on("autoDeleteQueues", default=True) and count != 0:
        contents = "all its messages" if count < 0 else f"up to {count} messages"
        yield _finding("artemis.auto-delete-queue", level=level, loses=loss, queue=name, contents=contents)


def _oddities(state: ArtemisQueue) -> Iterator[Finding]:
    """Yield a warning for every attribute of a work queue that holds up jobs."""
    if not state.work:
        return
    if state.own("exclusive", "defaultExclusiveQueue", "false") == "true":
        removal = state.removal("default-exclusive-queue")
        yield _finding("artemis.exclusive-queue", queue=state.name, removal=removal)
    consumers = state.own("maxConsumers", "defaultMaxConsumers", "-1")
    if consumers != "-1":
        removal = state.removal("default-max-consumers")
        yield _finding("artemis.max-consumers", queue=state.name, consumers=consumers, removal=removal)
    if state.own("paused", "", "false") == "true":
        yield _finding("artemis.paused-queue", queue=state.name)
