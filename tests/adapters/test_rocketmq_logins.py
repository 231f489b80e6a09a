"""Logins and rights on RocketMQ, with both drivers: a wrong key ends with exit code 78, and no text has it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from steadyworker.adapter import Adapter, Browsed, Delivered, QueueSpec, Settings, Settle, Signal, Unreachable
from steadyworker.delivery import KEY, OutgoingMessage, Target
from steadyworker.errors import BrokerUnavailable, Finding, PublishFailed
from steadyworker.network.errors import Refused
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from steadyworker_rocketmq.grpc import GrpcAdapter
from tests.brokers.fixtures import had
from tests.brokers.rocketmq import LIMITED, RocketMQ4, RocketMQ5, RocketMQNode
from tests.support.stage import ROOT, eventually

CANARY = "c4n4ry-s3cret"
pytestmark = [pytest.mark.slow, pytest.mark.rocketmq, pytest.mark.xdist_group("rocketmq"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=[RocketMQ4, RocketMQ5], ids=["4", "5"])
def node(request: pytest.FixtureRequest) -> Iterator[RocketMQNode]:
    """A node that asks for logins and rights."""
    with had():
        made: RocketMQNode = request.param(login=True)
    with closing(made):
        made.start()
        for url in dict.fromkeys((made.url, made.remoting_url)):
            adapter = opened(url)
            adapter._preparation.prepared()  # type: ignore[attr-defined]
            adapter.stop(5)
        yield made


@pytest.fixture(params=["grpc", "remoting"])
def url(request: pytest.FixtureRequest, node: RocketMQNode) -> str:
    """The URL of a driver, with the login of a user who has all rights."""
    if request.param == "remoting":
        return node.remoting_url
    if not isinstance(node, RocketMQ5):
        pytest.skip("4.9 has no proxy")
    return node.url


def spec_of(url: str) -> QueueSpec:
    """A queue of each driver's own: all workers of a queue use the same driver."""
    queue = "work" if url.startswith("rocketmq+grpc") else "direct"
    return QueueSpec(queue, f"{queue}.dead")


def opened(url: str) -> Adapter:
    return (GrpcAdapter if url.startswith("rocketmq+grpc") else DirectAdapter)(url, spec_of(url), Settings())


def as_user(url: str, login: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{login}{'@' if login else ''}{parts.netloc.rpartition('@')[2]}").geturl()


def problems(adapter: Adapter) -> list[Finding]:
    return [finding for finding in adapter.findings(adapter._spec) if finding.level == "error"]  # type: ignore[attr-defined]


def test_a_right_key_works(url: str) -> None:
    adapter = opened(url)
    signals: list[Signal] = []
    try:
        assert problems(adapter) == []
        adapter.publish(OutgoingMessage(Target.WORK, b"{}", {KEY: "k-1"}, first=True))
        adapter.start(signals.append)
        adapter.prefetch(1)
        (delivered,) = eventually(lambda: [each for each in signals if isinstance(each, Delivered)], "a delivery")
        adapter.settle(delivered.delivery, Settle.ACK)
        assert eventually(adapter.consumers, "a member") == 1
        with adapter.dead_letters() as letters:
            assert [*letters] == []
    finally:
        adapter.stop(10)


@pytest.mark.parametrize("login", [f"steadyworker:{CANARY}", f"nobody:{CANARY}", ""], ids=["wrong", "unknown", "none"])
def test_a_login_that_is_refused_is_final_and_in_no_text(
    url: str, login: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    adapter = opened(as_user(url, login))
    signals: list[Signal] = []
    try:
        (finding,) = problems(adapter)
        with pytest.raises(PublishFailed) as failed:
            adapter.publish(OutgoingMessage(Target.WORK, b"{}", {KEY: "k-1"}))
        adapter.start(signals.append)
        adapter.prefetch(1)
        (gone,) = eventually(lambda: [each for each in signals if isinstance(each, Unreachable)], "Unreachable")
    finally:
        adapter.stop(5)
    assert gone.final
    for text in (finding.what, str(failed.value), gone.cause):
        assert "no login (" in text
        assert "correct access key and secret in --broker or its file" in text
    chain = [repr(failed.value), repr(failed.value.__cause__), repr(finding), repr(signals), repr(adapter)]
    assert CANARY not in "".join(chain) + caplog.text


@pytest.mark.parametrize("verb", ["run", "check"])
def test_a_worker_with_a_wrong_key_exits_with_78(url: str, verb: str, tmp_path: Path) -> None:
    """Neither its log at level debug, nor its output has the key."""
    done = subprocess.run(
        [sys.executable, "-m", "steadyworker", verb, "tests.support.jobs:Typed"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "STEADYWORKER_BROKER": as_user(url, f"steadyworker:{CANARY}"),
            "STEADYWORKER_STATE_DIR": str(tmp_path / "state"),
            "STEADYWORKER_LOG_LEVEL": "debug",
            "STEADYWORKER_LEDGER_REACH": "host",
        },
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    text = done.stdout + done.stderr
    assert done.returncode == 78, text
    assert "no login" in text
    assert CANARY not in text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


def test_the_rights_of_the_page_are_enough_and_a_missing_one_is_named_with_the_command_that_grants_it(
    node: RocketMQNode, url: str
) -> None:
    """First all topics but the one of dead letters."""
    queue = spec_of(url).queue
    groups = (queue, f"{queue}-later") if queue == "work" else (queue,)
    node.limit(topics=groups, groups=groups)
    adapter = opened(as_user(url, f"{LIMITED}:{node.password}-2"))
    signals: list[Signal] = []

    def sent(to: Target) -> bool:
        try:
            adapter.publish(OutgoingMessage(to, b"{}", {KEY: "k-2"}))
        except PublishFailed:
            return False
        return True

    try:
        eventually(lambda: sent(Target.WORK), "a right that the broker knows")
        adapter.start(signals.append)
        adapter.prefetch(1)
        (delivered,) = eventually(lambda: [each for each in signals if isinstance(each, Delivered)], "a delivery")
        with pytest.raises(PublishFailed) as failed:
            adapter.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: "k-1"}))
        text = str(failed.value)
        assert "a missing right (" in text
        if isinstance(node, RocketMQ5):
            assert "mqadmin createAcl" in text
            assert f"-s User:{LIMITED} -r Topic:{queue}-dead -a Pub,Sub,Get -d Allow" in text
            (finding,) = problems(adapter)
            assert "could not be checked as a whole" in finding.what
            assert f"-s User:{LIMITED} -r Topic:{queue}-dead" in finding.what
        else:
            assert f"add {queue}-dead=PUB|SUB to topicPerms of the access key" in text
        node.limit(topics=(*groups, f"{queue}-dead"), groups=groups)

        eventually(lambda: sent(Target.DEAD), "the granted right")
        assert problems(adapter) == []
        adapter.settle(delivered.delivery, Settle.ACK)
    finally:
        adapter.stop(10)


def test_a_worker_counts_without_the_group_of_rocketmqs_tools_what_needs_no_pull(node: RocketMQNode) -> None:
    """Letters, the age and a browse need this group, and levels the schedule topic, too; each reason names what to grant."""
    urls = dict.fromkeys((node.url, node.remoting_url))
    queues = [spec_of(url).queue for url in urls]
    groups = [*queues, "work-later"]
    topics = [*groups, *(f"{queue}-dead" for queue in queues)]
    as_limited = [opened(as_user(url, f"{LIMITED}:{node.password}-2")) for url in urls]
    for url, queue in zip(urls, queues, strict=True):
        node.remove(queue)
        admin = opened(url)
        for to in (Target.WORK, Target.DEAD, Target.LATER):
            admin.publish(OutgoingMessage(to, b"{}", {KEY: "k-1"}, 3600))

        def sent(admin: Adapter = admin) -> bool:
            found = admin.depth()
            return (found.ready, found.delayed, found.dead) == (1, 1, 1)

        eventually(sent, "the messages")
        admin.stop(5)

    def counted(adapter: Adapter) -> bool:
        try:
            return adapter.depth().ready == 1
        except BrokerUnavailable:  # 4.9.7 does not know the user yet
            return False

    node.limit(topics=topics, groups=groups)
    for adapter, queue in zip(as_limited, queues, strict=True):
        eventually(lambda adapter=adapter: counted(adapter), "a right that the broker knows")  # type: ignore[misc]
        found = adapter.depth()
        refused = {"dead", "oldest_age", *(["delayed", "next_due"] if queue == "direct" else [])}
        assert {name for name, why in found.why.items() if why.startswith("a broker refused the question (")} == refused
        assert (found.ready, found.delayed, found.consumers) == (1, None if queue == "direct" else 1, 0)
        with pytest.raises(Refused, match="missing right"):
            list(adapter.browse(5))  # type: ignore[attr-defined]
    node.limit(topics=[*topics, "SCHEDULE_TOPIC_XXXX"], groups=[*groups, "TOOLS_CONSUMER"])
    for adapter, queue in zip(as_limited, queues, strict=True):
        eventually(lambda adapter=adapter: adapter.depth().dead == 1, "the granted right")  # type: ignore[misc]
        found = adapter.depth()
        assert (found.ready, found.delayed, found.dead) == (1, 1, 1)
        assert found.why.keys() == (set() if queue == "direct" else {"unacked", "next_due"})
        listed = list(adapter.browse(5))  # type: ignore[attr-defined]
        shown = [each.headers[KEY] for each in listed if isinstance(each, Browsed)]
        assert shown == ["k-1"] * (2 if queue == "direct" else 1)
        adapter.stop(5)
