"""The operator's page: its tables of queues, rights and connections are what a real broker has, demands and counts."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from steadyworker.adapter import Delivered, QueueSpec, Settings, Signal
from steadyworker.delivery import KEY, Delivery, OutgoingMessage, Settle, Settled, Target
from steadyworker_rabbitmq import RabbitmqAdapter
from tests.brokers.rabbitmq import RabbitMQ, Vhost

PAGE = (Path(__file__).parents[2] / "adapters/steadyworker_rabbitmq/README.md").read_text(encoding="utf-8")
QUEUE = "payment-exports"
SPEC = QueueSpec(QUEUE, f"{QUEUE}.dead", time_limit=5)
Adapters = Callable[..., RabbitmqAdapter]


def section(heading: str) -> str:
    return PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def queues() -> dict[str, dict[str, str | int]]:
    """The arguments of each queue in the table."""
    rows = re.findall(rf"^\| `({QUEUE}[^`]*)` \| [^|]* \| (.*) \|$", section("The queues"), re.MULTILINE)
    pairs = {name: [pair.split("=", 1) for pair in re.findall(r"`([^`]*)`", cell)] for name, cell in rows}
    return {
        name: {key: int(value) if re.fullmatch(r"-?\d+", value) else value for key, value in arguments}
        for name, arguments in pairs.items()
    }


def rights() -> dict[str, dict[str, str]]:
    """The three expressions of each role."""
    block = section("Permissions").split("```text\n", 1)[1].split("```", 1)[0]
    _, *rows = [re.split(r"\s*(?<=\s)\|\s", line) for line in block.splitlines()]
    return {role: dict(zip(("configure", "write", "read"), granted, strict=True)) for role, *granted in rows}


ROLES = rights()
WORKER, WORKER_LATER, SENDER, OPERATOR = ROLES


@pytest.fixture
def adapters(rabbitmq: RabbitMQ, vhost: Vhost) -> Iterator[Adapters]:
    """Opens an adapter for a process of this role, with a user of its own that has the role's rights, and no tag."""
    opened: list[tuple[str, RabbitmqAdapter]] = []

    def another(role: str, **settings: Any) -> RabbitmqAdapter:
        name = f"{vhost.name}-{len(opened)}"
        rabbitmq.management("PUT", f"users/{name}", {"password": "secret", "tags": ""})
        rabbitmq.management("PUT", f"permissions/{vhost.name}/{name}", ROLES[role])
        url = vhost.url.replace(f"{vhost.user}:{vhost.password}@", f"{name}:secret@")
        opened.append((name, RabbitmqAdapter(f"{url}?management=off", SPEC, Settings(**settings))))
        return opened[-1][1]

    yield another
    for name, adapter in opened:
        adapter.stop(5)
        rabbitmq.management("DELETE", f"users/{name}")


def message(to: Target = Target.WORK, delay: float = 0.0, key: str = "k-1") -> OutgoingMessage:
    return OutgoingMessage(to, b"{}", {KEY: key}, delay, first=True)


def consume(adapter: RabbitmqAdapter) -> Delivery:
    """Start to consume, and return the first delivery."""
    signals: SimpleQueue[Signal] = SimpleQueue()
    adapter.prefetch(1)
    adapter.start(signals.put)
    while True:
        signal = signals.get(timeout=30)
        if isinstance(signal, Delivered):
            return signal.delivery


def test_the_table_has_every_queue_with_its_arguments(rabbitmq: RabbitMQ, vhost: Vhost, adapters: Adapters) -> None:
    adapters(WORKER).publish(message())
    made = {each["name"]: each["arguments"] for each in rabbitmq.management("GET", f"queues/{vhost.name}")}
    documented = queues()
    work, dead, retry = QUEUE, f"{QUEUE}.dead", documented.pop(f"{QUEUE}.later.1000ms")
    if rabbitmq.version < (4,):
        assert "On RabbitMQ 3, the work queue has no `x-delivery-limit`" in PAGE
        del documented[work]["x-delivery-limit"]
        (limit,) = re.findall(r"dead-letter queue is `x-delivery-limit=(\d+)`", PAGE)
        documented[dead]["x-delivery-limit"] = int(limit)
    for delay in Settings().delays:
        documented[f"{QUEUE}.later.{round(delay * 1000)}ms"] = retry | {"x-message-ttl": round(delay * 1000)}
    assert made == documented


def test_each_role_does_its_work_with_exactly_the_rights_of_the_table(adapters: Adapters) -> None:
    """The worker creates the queues; then each of the others needs less."""
    worker = adapters(WORKER)
    assert worker.findings(SPEC) == []
    worker.publish(message())
    for to in (Target.DEAD, Target.LATER):
        worker.publish(message(to, delay=3600))
    assert worker.settle(consume(worker), Settle.ACK) is Settled.CONFIRMED
    worker.stop(5)

    sender = adapters(SENDER)
    sender.publish(message())
    sender.publish(message(Target.LATER, delay=3600))

    later = adapters(WORKER_LATER)
    assert later.findings(SPEC) == []
    for to in (Target.DEAD, Target.LATER):
        later.publish(message(to, delay=3600))
    assert later.settle(consume(later), Settle.ACK) is Settled.CONFIRMED

    operator = adapters(OPERATOR)
    with operator.dead_letters() as letters:
        first, _ = letters
        letters.publish(message(key="replayed"))
        letters.drop(first)
    with operator.dead_letters() as letters:
        assert len(list(letters)) == 1


@pytest.mark.parametrize("role", [WORKER_LATER, SENDER, OPERATOR])
def test_a_worker_process_with_all_rights_comes_first(adapters: Adapters, role: str) -> None:
    """The other rights create no queue; what is refused then names what to grant."""
    with pytest.raises(Exception, match=r"set_permissions|create it"):
        adapters(role).publish(message())


def test_the_table_counts_the_connections_that_stay(
    rabbitmq: RabbitMQ, vhost: Vhost, adapters: Adapters, eventually: Callable[..., Any]
) -> None:
    def purposes() -> list[str]:
        """What the connections of the virtual host are for; asked four times a second, because an answer costs the broker."""
        threading.Event().wait(0.25)
        connections = rabbitmq.management("GET", f"vhosts/{vhost.name}/connections")
        return sorted(
            each["user_provided_name"].partition(" ")[2] for each in connections if each.get("user_provided_name")
        )

    table = section("Connections")
    worker = adapters(WORKER)
    worker.publish(message())
    consume(worker)
    assert "| worker process | 2 for each Worker: the first consumes" in table
    both = [f"consumes {QUEUE}", f"publishes to {QUEUE}"]
    eventually(lambda: purposes() == both)

    sender = adapters(SENDER)
    sender.publish(message())
    assert "| 1 for each queue to which the sender has sent |" in table
    eventually(lambda: purposes() == sorted([*both, f"publishes to {QUEUE}"]))
    sender.stop(5)

    operator = adapters(OPERATOR)
    with operator.dead_letters() as letters:
        assert "| 1 while the command reads, and 1 more from its first replay on |" in table
        eventually(lambda: purposes() == sorted([*both, f"reads {QUEUE}.dead"]))
        letters.publish(message(key="replayed"))
        eventually(lambda: purposes() == sorted([*both, f"publishes to {QUEUE}", f"reads {QUEUE}.dead"]))
