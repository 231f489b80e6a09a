"""
FastStream: `faststream run tests.drills.peers.faststream_worker:app`; run as a program it sends.

Settings: faststream.ag2.ai, "RabbitMQ" (prefetch, acknowledgement after the handler), and a graceful time-out longer than the
longest job, as its maintainers answer in issue 1648.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from tests.drills.bodies import HEARTBEAT, QUEUE, perform

broker = RabbitBroker(
    f"{os.environ['DRILL_URL']}?heartbeat={HEARTBEAT}",
    default_channel=Channel(prefetch_count=int(os.environ["DRILL_PREFETCH"])),
    graceful_timeout=3600,
)
app = FastStream(broker)
queue = RabbitQueue(QUEUE, durable=True)
broker.subscriber(queue, ack_policy=AckPolicy.NACK_ON_ERROR)(perform)


async def send() -> None:
    """One message for each line of standard input."""
    async with broker:
        await broker.declare_queue(queue)
        for line in sys.stdin:
            await broker.publish(json.loads(line), queue, persist=True)


if __name__ == "__main__":
    asyncio.run(send())
