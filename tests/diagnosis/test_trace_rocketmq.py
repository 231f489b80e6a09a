"""
What a trace in front of a real RocketMQ sees and flags.

A client takes the broker's address from the name server: `Way` is before both, and names the trace as the broker.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from steadyworker.network.errors import Silent
from steadyworker.network.url import Address
from steadyworker_rocketmq.remoting import RemotingError
from tests.adapters.remoting_kit import remoting_at
from tests.brokers.fixtures import had
from tests.brokers.maven import compiler, java
from tests.brokers.rocketmq import HALF, OPENED, RocketMQ4, RocketMQ45, RocketMQNode, rocketmq_program
from tests.brokers.rocketmq_front import Front
from tests.brokers.rocketmq_witness import QueueAt
from tests.diagnosis.explaining import explained
from tests.diagnosis.page_kit import check, headline, page_of, page_text
from tests.diagnosis.traced import Traced
from tests.support.stage import eventually

SOURCE = Path(__file__).with_name("RocketRetry.java")
TOO_LONG = "checkout-listens-to-payments_captured-or-refunded_".ljust(121, "x")
BODY, PROPERTY = "the body of a message", "s3cret"
"""What the client sends, and no event has."""

ROUTE, SEND = 105, 10


class Way(Front):
    """The way from a trace to the name server and the broker; it leads clients back to the trace."""

    trace: Traced

    def advertised(self, peer: int) -> int:
        return self.trace.port


@contextmanager
def traced(node: RocketMQNode) -> Iterator[Traced]:
    way = Way(node)
    with closing(way), Traced(f"127.0.0.1:{way.port}") as trace:
        way.trace = trace
        yield trace


@contextmanager
def retried(node: RocketMQNode, trace: Traced, topic: str, group: str, home: Path) -> Iterator[None]:
    """The Java client of the node's version, whose consumer fails with a message, until the context ends."""
    with had():
        path = f"{home}:{rocketmq_program(node.LINE) / 'lib'}/*"
        subprocess.run([str(compiler()), "-cp", path, "-d", str(home), str(SOURCE)], check=True, timeout=120)
    command = [str(java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *OPENED, f"-Duser.home={home}"]
    command += [
        f"-Drocketmq.client.logRoot={home}",
        "-cp",
        path,
        "RocketRetry",
        f"127.0.0.1:{trace.port}",
        topic,
        group,
    ]
    with (
        home.joinpath("out").open("wb") as out,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT) as client,
    ):
        try:
            yield
            client.communicate(timeout=60)
            assert client.returncode == 0, home.joinpath("out").read_text()
        finally:
            client.kill()


@pytest.mark.rocketmq
@pytest.mark.xdist_group("rocketmq")
@pytest.mark.timeout(300)
def test_a_retry_that_no_broker_can_store_and_the_half_topic_that_grows(tmp_path: Path) -> None:
    """The fifth story, whole: broker and client of its time, the name of the group, and the circle through the half topic."""
    with had():
        node = RocketMQ45(delay_levels=" ".join(["1s"] * 18))
    with closing(node):
        node.start()
        node.make_topic("jobs")

        def in_half_topic() -> int:
            return sum(node.witness.end(QueueAt(broker, 0), HALF) for broker in node.witness.brokers())

        with traced(node) as trace:
            with retried(node, trace, "jobs", TOO_LONG, tmp_path):
                cause = trace.wait_flag("rocketmq.illegal-retry-topic", level="error")
                circle = trace.wait_flag("rocketmq.half-topic-grows", level="error")
                eventually(lambda: in_half_topic() > 2, "a half topic that grows", 60)  # the first one was committed
            trace.wait_kind("close", who="client")
            trace.stop()
        broker_log = node.log.read_text(encoding="utf-8")

    assert trace.flags() == ["rocketmq.illegal-retry-topic", "rocketmq.half-topic-grows"], shown(trace)
    assert "refused a retry (CONSUMER_SEND_MSG_BACK) with MESSAGE_ILLEGAL" in cause["what"]
    assert "has 128 characters, and the broker stores topics of at most 127" in cause["what"]
    assert cause["evidence"][0] == {"name": TOO_LONG, "characters": 121, "allowed": 120}
    assert "Give the group a name of at most 120 characters" in cause["remedy"]
    assert "The client (JAVA 4.5.2) sends this copy because the broker refused the retry" in circle["what"]
    assert circle["evidence"][0]["TRAN_MSG"] == "true"

    # The logs name the same cause, and the page does, too.
    client_log = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.log"))
    assert "rocketmq.illegal-retry-topic" in explained(broker_log)
    assert "rocketmq.illegal-retry-topic" in explained(client_log)
    page = page_of(trace.events)
    check(page)
    assert headline(page).startswith("The broker refused a retry (CONSUMER_SEND_MSG_BACK) with MESSAGE_ILLEGAL")
    assert "The client (JAVA 4.5.2) sends this copy" in page_text(page)
    assert not {BODY, PROPERTY} & {said for said in (BODY, PROPERTY) if said in json.dumps(trace.events) + page}


@pytest.fixture
def topic(rocketmq4: RocketMQ4) -> Iterator[str]:
    name = f"traced-{secrets.token_hex(4)}"
    rocketmq4.make_topic(name)
    yield name
    rocketmq4.remove(name)


def test_a_retry_of_a_group_with_a_name_that_fits_is_no_flag(rocketmq4: RocketMQ4, topic: str, tmp_path: Path) -> None:
    """A message of a transaction that is retried has no flag, and nothing without a name."""
    with traced(rocketmq4) as trace:
        with retried(rocketmq4, trace, topic, topic.ljust(120, "x"), tmp_path):
            trace.wait_kind("frame", name="SUCCESS", to="CONSUMER_SEND_MSG_BACK")
        trace.wait_kind("close", who="client")
        trace.stop()
    assert trace.flags() == [], shown(trace)
    names = {(event["from"], event["name"]) for event in trace.of("frame")}
    assert {("client", "SEND_MESSAGE_V2"), ("client", "END_TRANSACTION"), ("client", "UNREGISTER_CLIENT")} <= names
    assert {name for _, name in names if name.startswith(("request", "result"))} == set()


def test_a_topic_that_is_missing(rocketmq4: RocketMQ4, topic: str) -> None:
    with traced(rocketmq4) as trace, remoting_at(rocketmq4) as remoting:
        at = Address("127.0.0.1", trace.port)
        for code, fields in ((ROUTE, {"topic": "nope"}), (SEND, sent("nope"))):
            with pytest.raises(RemotingError):
                remoting.ask(at, code, fields, b"x")
        remoting.ask(at, SEND, sent(topic), b"x")
        assert "-t nope`" in trace.wait_flag("rocketmq.no-route")["remedy"]
        trace.wait_flag("rocketmq.topic-missing")
    assert trace.flags() == ["rocketmq.no-route", "rocketmq.topic-missing"], shown(trace)


def test_a_broker_that_does_not_reply(rocketmq4: RocketMQ4, topic: str) -> None:
    with Traced(str(rocketmq4.broker_address)) as trace, remoting_at(rocketmq4, within=2) as remoting:
        at = Address("127.0.0.1", trace.port)
        remoting.ask(at, SEND, sent(topic), b"x")
        rocketmq4.broker.freeze()
        with pytest.raises(Silent):
            remoting.ask(at, SEND, sent(topic), b"x")
        flag = trace.wait_flag("rocketmq.reply-timeout")  # while the broker is frozen, and has closed nothing
        rocketmq4.thaw()
    assert flag["what"] == ("The client closed the connection, and 1 request of the client had no reply of the broker.")
    assert flag["evidence"][0]["request"] == "SEND_MESSAGE"


def shown(trace: Traced) -> str:
    """What the flags say, to be shown when others were expected."""
    return "\n".join(flag["what"] for flag in trace.of("flag"))


def sent(topic: str) -> dict[str, str]:
    """The fields of a request that sends a message to a topic, which the broker must not make by itself."""
    return {
        "producerGroup": "p",
        "topic": topic,
        "defaultTopic": "no-such-default",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "0",
        "flag": "0",
        "properties": "",
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
