"""
What a trace in front of a real RocketMQ sees and flags.

A client takes the broker's address from the name server: `Way` is before both, and names the trace as the broker.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.brokers.fixtures import had
from tests.brokers.maven import compiler, java
from tests.brokers.rocketmq import HALF, OPENED, RocketMQ45, RocketMQNode, rocketmq_program
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


def shown(trace: Traced) -> str:
    """What the flags say, to be shown when others were expected."""
    return "\n".join(flag["what"] for flag in trace.of("flag"))
