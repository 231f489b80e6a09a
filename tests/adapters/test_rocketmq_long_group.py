"""What brokers do with a group whose name is too long, if no check stops it: the reason why `names.py` refuses it."""

from __future__ import annotations

import secrets
import struct
from contextlib import suppress

import pytest

from steadyworker_rocketmq.errors import ProxyError
from steadyworker_rocketmq.grpc.client import GrpcSession
from steadyworker_rocketmq.url import parse_url
from tests.brokers.rocketmq import RocketMQ4, RocketMQ5
from tests.brokers.rocketmq_witness import TOOLS, RefusalError
from tests.support.stage import eventually

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(300), pytest.mark.slow]

PULL, SEND_BACK = 11, 36
"""Numbers of requests (`RequestCode`)."""

PLACE = struct.Struct(">q")
"""The message's place in the commit log, 28 bytes behind its beginning."""


def names(length: int) -> tuple[str, str]:
    """Return a topic, and a group of this length that is made from it, as some frameworks make it."""
    topic = f"q-{secrets.token_hex(4)}"
    return topic, f"{topic}_captured-refunded_".ljust(length, "x")


def test_4_9_7_refuses_every_retry_of_a_group_of_121_characters(rocketmq4: RocketMQ4) -> None:
    """A consumer whose message is refused has no other way to get it again: the message is lost."""
    for length in (120, 121):
        topic, group = names(length)
        rocketmq4.make_topic(topic)
        rocketmq4.send(topic)
        witness = rocketmq4.witness
        witness.make_group(group, 16)
        broker = witness.brokers()[0]
        pulled = witness.ask(
            broker.address,
            PULL,
            {
                "topic": topic,
                "consumerGroup": TOOLS,
                "queueId": "0",
                "queueOffset": "0",
                "maxMsgNums": "1",
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "*",
                "subVersion": "0",
                "expressionType": "TAG",
            },
        )
        (place,) = PLACE.unpack_from(pulled["body"], 28)
        fields = {
            "offset": str(place),
            "group": group,
            "delayLevel": "1",
            "originMsgId": "1",
            "originTopic": topic,
            "unitMode": "false",
            "maxReconsumeTimes": "16",
        }
        if length == 120:
            witness.ask(broker.address, SEND_BACK, fields)
            eventually(lambda group=group: rocketmq4.count(f"%RETRY%{group}") == 1, "the retry", 30.0)  # type: ignore[misc]
        else:
            with pytest.raises(RefusalError) as caught:
                witness.ask(broker.address, SEND_BACK, fields)
            assert "MESSAGE_ILLEGAL" in str(caught.value)
        rocketmq4.delete_topic(topic)  # the broker refuses to delete the long retry topic


def test_5_4_0_delivers_nothing_to_a_group_of_121_characters(rocketmq5: RocketMQ5) -> None:
    for length in (120, 121):
        topic, group = names(length)
        rocketmq5.make_topic(topic)
        if length == 120:
            rocketmq5.witness.make_group(group, 16)
        else:  # a member makes its group, as is shipped
            with pytest.raises(RefusalError, match="longer than group max length: 120"):
                rocketmq5.witness.make_group(group, 16)
        session = GrpcSession(parse_url(rocketmq5.url), group, topic)
        found = 0
        try:
            for turn in range(4):
                if turn == 1:  # the group is known by now, so it does not begin behind the message
                    rocketmq5.send(topic)
                with suppress(ProxyError):  # the proxy does not know the session at first
                    found += len(session.receive(1, 30))
        finally:
            session.close()
        assert found == (1 if length == 120 else 0)
        rocketmq5.remove(topic)
