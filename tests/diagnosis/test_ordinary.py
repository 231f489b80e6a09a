"""
The ordinary logs of brokers, name servers, proxies, clients and workers have no finding.

`ordinary/*.log` are whole logs: they start, work and stop while every client keeps the rules.
They have logins with and without TLS, sends, deliveries, transactions, delays, queues of all types, operators' commands.
`celery-*.log` is that of a worker that runs a task, and is stopped; host names and paths are neutral.
What the tests' own probes make RabbitMQ 4.3 and ActiveMQ write at their start was left out.
ActiveMQ warns at an ordinary start that its default limits are larger than the machine's disk and heap.
RocketMQ logs errors in ordinary work, too, such as a long poll that ends with its client: they are unknown, and no finding.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from steadyworker.diagnosis.scan import Scanner, Search
from tests.diagnosis.explaining import catalogue

LOGS = {log.stem: log for log in sorted(Path(__file__).with_name("ordinary").glob("*.log"))}
RABBITMQ = ("accepting AMQP connection", "Starting RabbitMQ", "SIGTERM received")
WHOLE = {
    "rabbitmq-3.10": RABBITMQ,
    "rabbitmq-4.3": RABBITMQ,
    "classic-6.3": ("is starting", "Connector stomp+ssl://", "is shutdown"),
    "artemis-2.55": ("AMQ221007: Server is now active", "AMQ601500", "AMQ221002"),
    "rocketmq-4.9-broker": ("new consumer connected", "unregister a consumer", "Shutdown hook over"),
    "rocketmq-5.4-broker": ("new consumer connected", "unregister a consumer", "ShutdownHook"),
}
"""What shows that a log has a start, work and an end."""


@pytest.mark.parametrize("name", LOGS)
def test_an_ordinary_log_has_no_finding(name: str) -> None:
    search = Search(catalogue().values())
    found = {seen.entry.id: seen.record.text for seen in Scanner(name, search).whole([LOGS[name].read_bytes()])}
    assert not found
    assert name.startswith("rocketmq") or not search.unknown.count


@pytest.mark.parametrize(("name", "parts"), WHOLE.items(), ids=list(WHOLE))
def test_it_is_a_whole_log(name: str, parts: tuple[str, ...]) -> None:
    text = LOGS[name].read_text(encoding="utf-8")
    assert len(text.splitlines()) > 200
    assert not [part for part in parts if part not in text]


def test_there_is_a_log_of_each_broker_and_client() -> None:
    others = {f"rocketmq-{name}" for name in ("4.9-namesrv", "4.9-client", "5.4-proxy", "5.4-client")}
    assert {*WHOLE, *others, "celery-5.7"} <= LOGS.keys()
