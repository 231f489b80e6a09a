"""
Each finding has one home for its texts: the `findings.toml` of the package that reports it.

`check-texts.txt` shows all of them as `check` prints them, for a reader; `python -m tests.test_findings` writes it again.
"""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import pytest

from steadyworker.errors import Finding
from steadyworker.findings import TABLE, FindingText, FindingTexts, general, read_texts

ROOT = Path(__file__).parents[1]
TEXTS = Path(__file__).with_name("check-texts.txt")
TABLES = {path.parent.name: path for folder in ("steadyworker", "adapters") for path in (ROOT / folder).rglob(TABLE)}

VALUES: dict[str, dict[str, object]] = {
    "backends": {
        "former": "old-cluster/vhost",
        "identity": "broker-1.example:61613",
        "namespace": "broker-2.example:61613,broker-3.example:61613",
        "other": "--broker-file",
        "otherwise": "; if it is another broker, set --namespace 'broker-1.example:61613'",
        "queue": "exports",
    },
    "config": {
        "attribute": "time_limit",
        "error": "Expected a file of SQLite, got something else.",
        "expected": "a whole number of at least 1",
        "meant": "concurrency",
        "other": "--broker-file",
        "path": "/var/lib/steadyworker/broker.db",
        "setting": "--broker",
        "value": "'ten'",
        "worker": "exports:PaymentExports",
    },
    "ledger": {
        "ahead": "db-2.example:5432",
        "apart": 12.0,
        "behind": "db-1.example:5432",
        "error": "Expected a file of SQLite, got something else.",
        "folder": "/var/lib/steadyworker",
        "free": 12,
        "fsync": "on",
        "kind": "nfs4",
        "least": 64,
        "limit": "1.0 GiB",
        "path": "/var/lib/steadyworker/broker.db",
        "size": "1.2 GiB",
        "synchronous": "off",
        "url": "postgresql://joe@db.example/jobs",
    },
    "network": {
        "addresses": "broker-1.example:5672",
        "instead": "amqps:// in --broker",
    },
    "service": {
        "consumers": "3 consumers",
        "enough": 62.0,
        "error": "Expected a file of SQLite, got something else.",
        "hours": 5.25,
        "jobs": "2 jobs",
        "kills_after": 30.0,
        "limit": "1 GiB",
        "listed": 2,
        "meant": "concurrency",
        "name": "concurency",
        "platform": "darwin",
        "problem": "Expected a namespace of at most 200 characters, got one of 300.",
        "queue": "exports",
        "reason": "the management API does not respond",
        "remedy": "restart the workers, so that they open the new file.",
        "scheme": "sqlite",
        "slots": "2 GiB",
        "stop_within": 60.0,
        "unit": "steadyworker@1.service",
        "worker": "exports:PaymentExports",
    },
    "slots": {},
    "spark": {
        "error": "Expected pyspark for SparkExport, got no such module: pip install 'steadyworker[spark]'.",
        "seconds": 300.0,
        "server": "spark-1.example:15002",
    },
    "steadyworker_rabbitmq": {
        "action": "consume from 'exports'",
        "after": "a delay that grows by 3 s with each delivery, to 60 s",
        "alarm": "low on memory",
        "argument": "x-dead-leter-exchange",
        "arguments": "x-queue-type=quorum, x-delivery-limit=-1",
        "cause": "http://host-1:15672 does not respond (timed out)",
        "command": "rabbitmqctl set_policy -p / steadyworker-exports '^exports$' '{\"delivery-limit\": -1}' --apply-to queues",
        "count": 3,
        "differences": "x-overflow: expected 'reject-publish', got none",
        "duration": "10800 s",
        "effect": "no job starts until it is back",
        "error": "Expected a file of SQLite, got something else.",
        "expected": "exports.dead",
        "fate": "are lost",
        "heartbeat": 600,
        "key": "max-length",
        "largest": 134217728,
        "late": "A job of 'exports' may run 10800 s, but the broker takes a delivery back after 1800 s.",
        "limit": 20,
        "longer": "write consumer_timeout = 11700000 into rabbitmq.conf",
        "longest": 50000,
        "messages": "Jobs",
        "name": "rabbit@host-1",
        "names": "'rabbit@host-1' from host-1:5672, 'rabbit@host-2' from host-2:5672",
        "near": "x-dead-letter-exchange",
        "needed": 25.0,
        "oldest": "3.10",
        "opening": "run rabbitmq-plugins enable rabbitmq_management, or switch it off (?management=off).",
        "pause": 1800,
        "policy": "tidy",
        "product": "RabbitMQ",
        "queue": "exports",
        "quoted": "exports.later.1000ms",
        "reason": ": the management API is switched off",
        "removal": "remove expires from policy 'tidy', or from the operator policy that sets it.",
        "role": "work queue",
        "seconds": 60.0,
        "sender": "rabbitmqctl set_permissions -p / shop '^$' '^amq\\.default$' '^$'",
        "size": 16777217,
        "target": "undelivered",
        "timeout": 1800.0,
        "unseen": "policies",
        "user": 1000,
        "version": "3.9.27",
        "vhost": "/",
        "wait": "3 s",
        "worker": "rabbitmqctl set_permissions -p / shop '^exports(\\.later\\..*|\\.dead)?$' '^amq\\.default$' '^exports(\\.later\\..*|\\.dead)?$'",
    },
    "steadyworker_rocketmq": {
        "access": "read",
        "apart": "ahead of",
        "broker": "broker-a",
        "command": "mqadmin updateTopic -n localhost:9876 -c DefaultCluster -t exports -r 16 -w 16",
        "concurrency": 4,
        "count": 17,
        "cve": "CVE-2023-33246",
        "deliveries": 17,
        "empty": 4,
        "error": "Expected a file of SQLite, got something else.",
        "follows": "so a worker process gets delayed messages early, and holds each back until its time",
        "got": "FIFO",
        "group": "exports",
        "harm": "run programs on the broker's host",
        "hours": 72,
        "levels": "'1s 5s 10s' at broker-a, '1s 5s 30s' at broker-b",
        "library": "rocketmq-client-python",
        "limit": 4194304,
        "oldest": "4.9.7",
        "queues": 16,
        "remedy": "restart the workers, so that they open the new file.",
        "role": "ASYNC_MASTER",
        "seconds": 95.0,
        "size": 65536,
        "slots": 20,
        "subject": "Broker broker-a",
        "topic": "exports",
        "topics": "'reports', 'invoices'",
        "user": 1000,
        "version": "4.9.5",
        "wanted": "NORMAL",
        "workers": 5,
    },
    "steadyworker_sqlite": {
        "error": "Expected a file of SQLite, got something else.",
        "kind": "nfs4",
        "loss": "another file has its place",
        "path": "/var/lib/steadyworker/broker.db",
        "queue": "exports",
        "remedy": "restart the workers, so that they open the new file.",
        "user": 1000,
    },
    "steadyworker_stomp": {
        "action": "consume from",
        "address": "DLQ",
        "attempts": 3,
        "broker": "ActiveMQ Classic",
        "cause": "there is no dead-letter address",
        "consumers": 2,
        "contents": "all its messages",
        "count": "3 messages",
        "cve": "CVE-2023-46604",
        "dlq": "exports.dlq",
        "element": "max-expiry-delay",
        "error": "Expected a connection to the STOMP broker at broker-1.example:61613, got: no reply in time; check that the broker is up, and that no firewall is in between.",
        "fate": "moved to 'ExpiryQueue' without being run",
        "harm": "run programs on the broker's host",
        "heartbeat": 90,
        "limit": 1114112,
        "longest": 1000,
        "messages": "Jobs",
        "oldest": "5.18",
        "pause": 360,
        "policy": "address-full-policy",
        "question": "whether 'exports' exists",
        "questions": "whether the user may send to 'exports'; which settings 'exports' has",
        "queue": "exports",
        "reason": "the broker sends no advisory messages, which list the consumers",
        "refusal": "User joe is not authorized to read from: queue://exports",
        "removal": "delete queue 'exports' when it is empty, and create it again without this attribute",
        "remedy": 'set advisorySupport="true" on <broker> in activemq.xml, and restart the broker',
        "right": "read",
        "role": "work queue",
        "seconds": 60.0,
        "size": 1048576,
        "spare": 5,
        "threshold": 10,
        "user": "joe",
        "version": "5.17.6",
    },
    "system": {
        "file": "the ledger",
        "folder": "/var/lib/steadyworker",
        "owner": 1001,
        "path": "/var/lib/steadyworker/broker.db",
        "rights": 436,
        "user": 1000,
    },
}
"""A real value for each field of the templates, by package."""

OF_ONE: dict[str, dict[str, object]] = {
    "config.unknown-setting": {"setting": "--brokr", "meant": "--broker", "worker": "PaymentExports"},
    "config.wrong-value": {
        "setting": "--topology",
        "expected": "one of declare, verify, trust",
        "value": "'verfy'",
        "meant": "verify",
    },
    "config.workers-not-tables": {"path": "steadyworker.toml", "value": "3"},
    "config.wrong-duration": {"path": "steadyworker.toml", "value": "'3 hrs'", "worker": "PaymentExports"},
    "config.unreadable-file": {"path": "steadyworker.toml", "error": "Permission denied"},
    "config.no-toml": {"path": "steadyworker.toml", "error": "Invalid value (at line 3, column 15)"},
    "config.unreadable-value-file": {"setting": "--broker-file", "path": "broker.url", "error": "Permission denied"},
    "check.misspelt-attribute": {"name": "concurency"},
    "check.unknown-worker-table": {"name": "PaymentExport", "meant": "PaymentExports"},
    "ledger.missing": {
        "error": "Expected the ledger sqlite:/var/lib/steadyworker/ledger.db, which a worker process creates at its start, got no file."
    },
    "ledger.older": {
        "error": "Expected the ledger sqlite:/var/lib/steadyworker/ledger.db to have schema 9, got schema 8, of an earlier version."
    },
    "ledger.unusable": {
        "error": "Expected a ledger at /var/lib/steadyworker/ledger.db, got a file of another program."
    },
    "ledger.unreachable": {"error": "connection refused (db.example:5432)"},
    "check.broker-unreachable": {"error": "connection refused (broker-1:5672)"},
    "ledger.uncounted-consumers": {"remedy": "start the management API, or correct ?management= in --broker"},
    "rabbitmq.refused": {"error": "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."},
    "rabbitmq.silent-host": {"error": "connection refused (host-2:5672)"},
    "rabbitmq.permission-unknown": {"user": "shop", "error": "the broker blocks connections that publish"},
    "rabbitmq.missing-permission": {"user": "shop"},
    "rabbitmq.unanswered": {"error": "no reply within 10 s"},
    "rocketmq.refused": {"error": "Expected a login of RocketMQ, got a wrong signature (check signature failed)."},
    "rocketmq.name-server-unreachable": {"error": "connection refused (localhost:9876)"},
    "rocketmq.broker-unreachable": {"error": "no reply from 172.17.0.3:10911 within 10 s"},
    "rocketmq.proxy-unreachable": {"error": "The proxy localhost:8081 does not respond: connection refused."},
    "rocketmq.members-uncounted": {
        "error": "connection refused (localhost:8080)",
        "remedy": "set ?members=PROXY:REMOTING-PORT in --broker",
    },
    "rocketmq.missing-group": {"command": "mqadmin updateSubGroup -n localhost:9876 -c DefaultCluster -g exports"},
    "rocketmq.group-closed": {
        "command": "mqadmin updateSubGroup -n localhost:9876 -c DefaultCluster -g exports -s true"
    },
    "rocketmq.retry-limit": {
        "command": "mqadmin updateSubGroup -n localhost:9876 -c DefaultCluster -g exports -r 1000000"
    },
    "rocketmq.transactions-unseen": {"user": "shop"},
    "rocketmq.topic-closed": {"command": "mqadmin updateTopicPerm -n localhost:9876 -c DefaultCluster -t exports -p 6"},
    "embedded.file-replaced": {"remedy": "restart the workers, so that they open the new file."},
}
"""Values of single findings, in which the package's value would make no sense."""


class Call(NamedTuple):
    """A place of the code that makes a finding."""

    place: str
    package: str
    names: tuple[str, ...]
    """All ids and cases that stand in the call, because a call can choose between two."""
    values: frozenset[str]
    level: bool
    fixed: bool
    """Whether each value is named in the call."""


def fields(text: FindingText) -> frozenset[str]:
    parsed = [part for template in (text.what, text.remedy) for part in string.Formatter().parse(template)]
    return frozenset(name for _, name, _, _ in parsed if name is not None)


def texts(package: str) -> list[FindingText]:
    return list(read_texts(TABLES[package].read_text(encoding="utf-8")))


def calls() -> Iterator[Call]:
    for folder in ("steadyworker", "adapters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            makers = {
                ast.unparse(node.targets[0]): ast.literal_eval(node.value.args[0]).rpartition(".")[2]
                for node in tree.body
                if isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and ast.unparse(node.value.func) == "FindingTexts"
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and (package := makers.get(ast.unparse(node.func))) is not None:
                    constants = [
                        part.value for each in node.args for part in ast.walk(each) if isinstance(part, ast.Constant)
                    ]
                    given = {word.arg for word in node.keywords}
                    yield Call(
                        f"{path.relative_to(ROOT)}:{node.lineno}",
                        package,
                        tuple(value for value in constants if isinstance(value, str)),
                        frozenset(name for name in given - {"level", "loses"} if name is not None),
                        "level" in given,
                        None not in given,
                    )


CALLS = list(calls())


def meant(call: Call) -> list[FindingText]:
    """The texts that a call can mean: those with its ids, and with its cases if it names any."""
    known = texts(call.package)
    cases = {text.case for text in known} & set(call.names)
    return [text for text in known if text.id in call.names and (text.case in cases if cases else not text.case)]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.place)
def test_each_call_gives_its_template_the_values(call: Call) -> None:
    assert call.fixed, "name each value in the call, so that this test can compare them"
    found = meant(call)
    assert found, f"{call.package} has no text for {call.names}"
    for text in found:
        assert call.values == fields(text), text.id
        assert call.level != (text.level is not None), f"{text.id}: the level stands in the table or in the call"


@pytest.mark.parametrize("package", TABLES)
def test_each_text_is_used_and_complete(package: str) -> None:
    used = {(text.id, text.case) for call in CALLS if call.package == package for text in meant(call)}
    first: dict[str, FindingText] = {}
    names = set()
    for text in texts(package):
        assert (text.id, text.case) not in names, f"{text.id} stands twice: give one of them a case"
        names.add((text.id, text.case))
        if text.what or text.remedy:
            assert (text.id, text.case) in used, f"no code reports {text.id} {text.case}"
            assert text.what, text.id
            assert text.remedy, text.id
        assert text.title or general(text.what) != f"<{text.what[1:-1]}>", f"{text.id} needs a title"
        assert first.setdefault(text.id, text).why, f"{text.id} has no why"


def test_explain_finds_each_table() -> None:
    assert {point.value.rpartition(".")[2] for point in entry_points(group="steadyworker.findings")} == TABLES.keys()


def test_a_finding_without_its_value_is_an_error() -> None:
    finding = FindingTexts("steadyworker_sqlite")
    with pytest.raises(KeyError, match="queue"):
        finding("embedded.missing-queue", path="broker.db")
    with pytest.raises(KeyError):
        finding("embedded.no-such-id")


def test_a_value_with_braces_stays_as_it_is() -> None:
    found = FindingTexts("steadyworker_sqlite")("embedded.missing-queue", path="{0}", queue="{queue}")
    assert found.what == "Expected the queue '{queue}' in {0}, got none."


def rendered() -> str:
    """Return all texts as `check` prints them, with the values above."""
    lines = ["The texts of `steadyworker check`, with example values.", ""]
    for package in sorted(TABLES):
        for text in texts(package):
            if text.what:
                values = {**VALUES[package], **OF_ONE.get(text.id, {})}
                finding = Finding(
                    text.level or "warning", text.what.format(**values), text.remedy.format(**values), id=text.id
                )
                lines += [
                    f"{text.id}{text.case and ' (' + text.case + ')'}  {text.level or 'any level'}",
                    f"  {finding.what}",
                    f"  → {finding.remedy}",
                ]
    return "\n".join(lines) + "\n"


def test_the_file_for_readers_has_each_text() -> None:
    needed = {package: {name for text in texts(package) for name in fields(text)} for package in TABLES}
    assert {package: {*values} for package, values in VALUES.items()} == needed, (
        "give each field a real value in VALUES"
    )
    assert TEXTS.read_text(encoding="utf-8") == rendered(), "run `python -m tests.test_findings`"


if __name__ == "__main__":
    TEXTS.write_text(rendered(), encoding="utf-8")
