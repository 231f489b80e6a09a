"""The page of the RocketMQ adapter: its tables of options, topics and rights are what the code reads and makes."""

from __future__ import annotations

import re
from pathlib import Path

from steadyworker.adapter import QueueSpec
from steadyworker_rocketmq.checks.versions import OLDEST
from steadyworker_rocketmq.names import names_of, problems
from steadyworker_rocketmq.topology import kinds_of
from steadyworker_rocketmq.url import _OPTIONS_OF, FORM, INVISIBLE, QUEUES, parse_url

PAGE = (Path(__file__).parents[2] / "adapters/steadyworker_rocketmq/README.md").read_text(encoding="utf-8")
SPEC = QueueSpec("payment-exports", "payment-exports.dead")


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    return [line.split(" | ") for line in lines if not line.startswith("--")][1:]


def test_the_table_has_every_option_with_its_driver_and_its_default() -> None:
    table = {row[0].strip("`"): row[1:] for row in rows("The URL")}
    assert sorted(table) == sorted(FORM.options)
    for name, (driver, meaning) in table.items():
        expected = "gRPC" if name in _OPTIONS_OF["grpc"] else "remoting" if name in _OPTIONS_OF["remoting"] else "both"
        assert driver == expected, name
        if name in ("queues", "invisible"):
            assert f"{QUEUES if name == 'queues' else INVISIBLE} by default" in meaning
    assert (
        f"The default port is {FORM.ports['rocketmq+grpc']} for proxies, and {FORM.ports['rocketmq']} for name servers."
        in PAGE
    )


def test_the_table_has_every_topic_with_its_type() -> None:
    table = {row[0].strip("`"): row[-1] for row in rows("Topics and groups")}
    url = parse_url("rocketmq+grpc://proxy")
    assert table == kinds_of(url, names_of(SPEC, None))


def test_the_longest_groups_are_those_of_the_page() -> None:
    for text, has_later in (
        ("A group has at most 120 characters", False),
        ("With gRPC, a group has at most 114", True),
    ):
        assert text in PAGE
        longest = int(text.split("at most ")[1].split(" ")[0])
        assert [*problems(names_of(SPEC, "g" * longest, has_later=has_later))] == []


def test_the_oldest_versions_are_those_of_the_page() -> None:
    grpc, remoting = (".".join(map(str, OLDEST[driver])) for driver in ("grpc", "remoting"))
    assert f"| for | RocketMQ {grpc} and newer, with a proxy | RocketMQ {remoting} and newer |" in PAGE
