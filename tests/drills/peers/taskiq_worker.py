"""
Taskiq with taskiq-aio-pika: `taskiq worker tests.drills.peers.taskiq_worker:broker`; run as a program it sends.

Settings: taskiq-python.github.io, "CLI" (a process pool for work that keeps the processor busy, acknowledged when executed).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from taskiq_aio_pika import AioPikaBroker, Queue, QueueType

from tests.drills.bodies import HEARTBEAT, QUEUE, perform

broker = AioPikaBroker(
    f"{os.environ['DRILL_URL']}?heartbeat={HEARTBEAT}",
    qos=int(os.environ["DRILL_PREFETCH"]),
    task_queues=[Queue(name=QUEUE, type=QueueType(os.environ.get("DRILL_QUEUE_TYPE", "quorum")))],
    dead_letter_queue=Queue(name=f"{QUEUE}.dead"),
)
task = broker.task(task_name="perform")(perform)


async def send() -> None:
    """One task for each line of standard input."""
    await broker.startup()
    for line in sys.stdin:
        await task.kiq(**json.loads(line))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(send())
