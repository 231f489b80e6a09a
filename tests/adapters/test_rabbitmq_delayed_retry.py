"""Queues that delay by themselves what is given back (RabbitMQ 4.3): our ladder knows nothing of it, and `check` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from steadyworker.adapter import Connected, Delivered, Delivery, Finding, QueueSpec, Redelivered, Settings
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Settled, Target
from steadyworker_rabbitmq import RabbitmqAdapter
from steadyworker_rabbitmq.checks.queue_state import ExistingQueue
from steadyworker_rabbitmq.checks.risks import delayed_retry
from steadyworker_rabbitmq.topology import Topology
from tests.brokers.rabbitmq import RabbitMQ, Vhost

SPEC = QueueSpec("exports", "exports.dead", time_limit=5)
SETTINGS = Settings(delays=(1.0, 2.0))
KEPT = 3.0
"""Seconds for which every queue here keeps what is given back, on the versions that can."""

EARLY = 0.1
"""Seconds that a broker's clock may be off, over these few."""

Eventually = Callable[..., Any]


@pytest.fixture
def url(rabbitmq: RabbitMQ, vhost: Vhost) -> str:
    """A virtual host with a policy that makes all of its queues delay."""
    definition: Mapping[str, object] = (
        {"delayed-retry-type": "all", "delayed-retry-min": int(KEPT * 1000), "delayed-retry-max": 60_000}
        if rabbitmq.version >= (4, 3)
        else {"max-length": 1_000_000}  # older ones know no such policy
    )
    body = {"pattern": ".*", "definition": definition, "apply-to": "queues"}
    rabbitmq.management("PUT", f"policies/{vhost.name}/delays", body)
    return f"{vhost.url}?management={rabbitmq.management_url}"


@pytest.fixture
def adapter(url: str) -> Iterator[RabbitmqAdapter]:
    made = RabbitmqAdapter(url, SPEC, SETTINGS)
    made.prefetch(1)
    yield made
    made.stop(5)


class Signals(list[Any]):
    """All signals of an adapter."""

    def delivery(self, eventually: Eventually, number: int) -> Delivery:
        def deliveries() -> list[Delivery]:
            return [signal.delivery for signal in list(self) if isinstance(signal, Delivered)][number - 1 :]

        found: Delivery = eventually(deliveries)[0]
        return found


def hand_overs(delivery: Delivery) -> tuple[str | None, str | None]:
    """How often the broker has handed it over in vain, and how much of that counts towards a delivery limit."""
    return delivery.headers.get("x-acquired-count"), delivery.headers.get("x-delivery-count")


def test_a_copy_waits_for_its_level_only_and_is_never_handed_over_in_vain(
    adapter: RabbitmqAdapter, eventually: Eventually
) -> None:
    """Nobody gives back what lies in a retry queue: there is nothing for the broker to delay, or to count."""
    signals = Signals()
    adapter.publish(OutgoingMessage(Target.WORK, b"{}", {KEY: "k-1"}))
    adapter.start(signals.append)
    delivery = signals.delivery(eventually, 1)
    for number, delay in enumerate(SETTINGS.delays, 2):
        began = time.monotonic()
        adapter.publish(OutgoingMessage(Target.LATER, b"{}", {KEY: "k-1", "sw-hop": str(number)}, delay))
        assert adapter.settle(delivery, Settle.ACK) is Settled.CONFIRMED
        delivery = signals.delivery(eventually, number)
        assert time.monotonic() - began >= delay
        assert delivery.headers["sw-hop"] == str(number)
        assert (delivery.redelivered, *hand_overs(delivery)) == (Redelivered.NO, None, None)


def test_what_is_given_back_is_kept_for_a_while_and_no_limit_comes_nearer(
    rabbitmq: RabbitMQ, adapter: RabbitmqAdapter, url: str, eventually: Eventually
) -> None:
    """By a release and by a stop; for the operator's time, which `check` reports."""
    keeps = rabbitmq.version >= (4, 3)
    signals, others = Signals(), Signals()
    adapter.publish(OutgoingMessage(Target.WORK, b"{}", {KEY: "k-1"}))
    adapter.start(signals.append)
    held = signals.delivery(eventually, 1)
    began = time.monotonic()
    adapter.settle(held, Settle.RELEASE)
    again = signals.delivery(eventually, 2)
    other = RabbitmqAdapter(url, SPEC, SETTINGS)
    other.prefetch(1)
    other.start(others.append)
    eventually(lambda: any(isinstance(signal, Connected) for signal in others))
    stopped = time.monotonic()
    adapter.stop(5)
    last = others.delivery(eventually, 1)
    if keeps:
        assert stopped - began >= KEPT - EARLY
        assert time.monotonic() - stopped >= KEPT - EARLY
        assert [hand_overs(delivery) for delivery in (again, last)] == [("1", None), ("2", None)]
    assert other.settle(last, Settle.ACK) is Settled.CONFIRMED
    other.stop(5)


def test_dead_letters_that_were_read_come_back_and_check_reports_when(
    rabbitmq: RabbitMQ, adapter: RabbitmqAdapter, eventually: Eventually
) -> None:
    adapter.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: "k-1"}))

    def seen() -> int:
        with adapter.dead_letters() as letters:
            return len(list(letters))

    assert seen() == 1
    eventually(seen)

    def found() -> dict[str, Finding]:
        return {finding.what: finding for finding in adapter.findings(SPEC) if " delays " in finding.what}

    if rabbitmq.version < (4, 3):
        assert found() == {}
        return
    found_ = eventually(lambda: found() if len(found()) > 1 else {})
    dead = "Queue 'exports.dead' delays dead letters that were read (they are hidden for 3 s)."
    given_back = "released deliveries (an interrupted job goes on 3 s later)"
    lost = "deliveries lost with their worker or connection (the job is delivered again after a delay that grows by 3 s with each delivery, to 60 s)"
    remedy = "remove delayed-retry-type from policy 'delays', or from the operator policy that sets it."
    assert {what: (each.level, each.remedy) for what, each in found_.items()} == dict.fromkeys(
        (dead, f"Queue 'exports' delays {given_back} and {lost}."), ("warning", remedy)
    )


def delays(work: ExistingQueue, version: tuple[int, ...] = (4, 3, 6)) -> list[str]:
    """The findings of `check` about the delays of a work queue."""
    (_, planned, *_) = Topology(SPEC, SETTINGS).queues(version)
    return [finding.what for finding in delayed_retry(version, planned, work)]


def queue(kind: str | None, shortest: int | None = 2000, longest: int | None = None, **policy: object) -> ExistingQueue:
    own = {"x-delayed-retry-type": kind, "x-delayed-retry-min": shortest, "x-delayed-retry-max": longest}
    policies: Any = {f"delayed-retry-{key}": value for key, value in policy.items()}
    arguments = {"x-queue-type": "quorum", **{key: value for key, value in own.items() if value is not None}}
    return ExistingQueue("exports", arguments, policies, "p", type="quorum")


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (queue(None), []),
        (queue("disabled"), []),
        (queue("all", None), []),
        (queue("all", type="disabled"), []),
        (
            queue("returned"),
            ["Queue 'exports' delays released deliveries (an interrupted job goes on 2 s later)."],
        ),
        (
            queue("disabled", type="returned", min=500),
            ["Queue 'exports' delays released deliveries (an interrupted job goes on 0.5 s later)."],
        ),
        (
            queue("failed", 2000, 2000),
            [
                "Queue 'exports' delays deliveries lost with their worker or connection (the job is delivered again after 2 s)."
            ],
        ),
        (
            queue("failed", 2000, 1000),
            [
                "Queue 'exports' delays deliveries lost with their worker or connection (the job is delivered again after 1 s)."
            ],
        ),
    ],
)
def test_what_applies_is_reported_and_nothing_else(work: ExistingQueue, expected: list[str]) -> None:
    """As tried on 4.3.6: without both a type and a `-min` nothing is delayed, `-max` caps, and a policy outranks the queue's own."""
    assert delays(work) == expected
    assert delays(work, (4, 2, 0)) == []
