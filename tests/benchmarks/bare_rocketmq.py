"""
RocketMQ's clients in a loop, without SteadyWorker: `python -m tests.benchmarks.bare_rocketmq grpc|direct`, as a drill's worker.

`grpc` is rocketmq-python-client: its SimpleConsumer receives as many messages as the prefetch says, and acknowledges each.
`direct` pulls through SteadyWorker's own `remoting.py`, because the library for it, rocketmq-client-python, loses running messages.
It has all queues to itself, locks none, and writes the group's place after each message.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from steadyworker.adapter import QueueSpec
from steadyworker.clock import SystemClock
from steadyworker_rocketmq.direct.member import GroupMember
from steadyworker_rocketmq.names import names_of
from steadyworker_rocketmq.topology import remoting_of
from steadyworker_rocketmq.url import parse_url
from tests.drills.bodies import perform

QUEUE, PREFETCH = os.environ["DRILL_QUEUE"], int(os.environ["DRILL_PREFETCH"])
URL = parse_url(os.environ["STEADYWORKER_BROKER"])
PAUSE = 0.01
BEAT_EVERY = 10.0


def grpc() -> None:
    """Receive and acknowledge, as the library's page does it."""
    import rocketmq  # type: ignore[import-untyped]

    configuration = rocketmq.ClientConfiguration(str(URL), rocketmq.Credentials("", ""))
    consumer = rocketmq.SimpleConsumer(configuration, QUEUE, {QUEUE: rocketmq.FilterExpression()}, await_duration=5)
    consumer.startup()
    while True:
        try:
            messages: Any = consumer.receive(PREFETCH, 60)
        except Exception:  # noqa: BLE001 - the proxy does not know it yet
            time.sleep(PAUSE)
            continue
        for message in messages:
            perform(**json.loads(message.body))
            consumer.ack(message)


def direct() -> None:
    """Pull from one queue after the other, and write the place after each message."""
    clock = SystemClock()
    # Only so that the stage sees a consumer.
    member = GroupMember(remoting_of(URL, clock), names_of(QueueSpec(QUEUE, f"{QUEUE}.dead"), None), "bare", clock)
    member.open()
    beaten = 0.0
    with remoting_of(URL, clock) as remoting:
        queues = remoting.route(QUEUE) or []
        places = {queue: remoting.consumed(queue, QUEUE, QUEUE) or 0 for queue in queues}
        while True:
            if time.monotonic() > beaten + BEAT_EVERY:
                beaten = time.monotonic()
                member.beat(joined=True)
            found = 0
            for queue in queues:
                messages, _ = remoting.pull(queue, QUEUE, QUEUE, places[queue], PREFETCH)
                for message in messages:
                    perform(**json.loads(message.body))
                    places[queue] = message.offset + 1
                    remoting.set_consumed(queue, QUEUE, QUEUE, places[queue])
                found += len(messages)
            if not found:
                time.sleep(PAUSE)


if __name__ == "__main__":
    grpc() if "grpc" in sys.argv else direct()
