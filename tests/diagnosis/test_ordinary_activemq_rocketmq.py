"""
The ordinary logs of ActiveMQ Classic, Artemis and RocketMQ have no finding.

They are of brokers, name servers, proxies and clients that start, work and stop while every client keeps the rules:
logins with and without TLS, sends, deliveries, transactions, delays, topics, a consumer that joins and leaves, and a shutdown.
What the tests' own probe of the listeners makes ActiveMQ write at its start was left out; host names and paths are neutral.
RocketMQ logs errors in ordinary work, too, such as a long poll that ends with its client: they are unknown, and no finding.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from steadyworker.diagnosis.scan import Scanner, Search
from tests.diagnosis.log_findings import CATALOGUE

ORDINARY = Path(__file__).with_name("ordinary")
LOGS = sorted(path for kind in ("classic", "artemis", "rocketmq") for path in ORDINARY.glob(f"{kind}-*.log"))

WHOLE = {
    "classic-6.3": ("is starting", "Connector stomp+ssl://", "is shutdown"),
    "artemis-2.55": ("AMQ221007: Server is now active", "AMQ601500", "AMQ221002"),
    "rocketmq-4.9-broker": ("new consumer connected", "unregister a consumer", "Shutdown hook over"),
    "rocketmq-5.4-broker": ("new consumer connected", "unregister a consumer", "ShutdownHook"),
}
"""What shows that a log has a start, work and an end."""


@pytest.mark.parametrize("log", LOGS, ids=[log.stem for log in LOGS])
def test_an_ordinary_log_has_no_finding(log: Path) -> None:
    search = Search(CATALOGUE.values())
    found = {seen.entry.id: seen.record.text for seen in Scanner(log.name, search).whole([log.read_bytes()])}
    assert not found
    assert log.name.startswith("rocketmq") or not search.unknown.count


@pytest.mark.parametrize(("name", "parts"), WHOLE.items(), ids=list(WHOLE))
def test_it_is_a_whole_log(name: str, parts: tuple[str, ...]) -> None:
    text = (ORDINARY / f"{name}.log").read_text(encoding="utf-8")
    assert len(text.splitlines()) > 200
    assert not [part for part in parts if part not in text]


def test_there_is_a_log_of_each_broker_and_client() -> None:
    found = {log.stem for log in LOGS}
    assert {*WHOLE, "rocketmq-4.9-namesrv", "rocketmq-4.9-client", "rocketmq-5.4-proxy", "rocketmq-5.4-client"} <= found
