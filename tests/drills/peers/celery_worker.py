"""
Celery: `celery -A tests.drills.peers.celery_worker worker`; run as a program it sends.

Settings: docs.celeryq.dev, "Optimizing" (long tasks: one message reserved at a time), "Tasks" (late acknowledgement),
and 5.7's bounded answer to a child that was killed.
"""

from __future__ import annotations

import json
import os
import sys

from celery import Celery

from tests.drills.bodies import HEARTBEAT, QUEUE, perform

app = Celery("drill", broker=os.environ["DRILL_URL"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_heartbeat=HEARTBEAT,
    broker_transport_options={"confirm_publish": True},
    task_acks_late=True,
    task_default_queue=QUEUE,
    task_ignore_result=True,
    task_retry_on_worker_lost=True,
    worker_concurrency=1,
    worker_pool="prefork",
    worker_prefetch_multiplier=int(os.environ["DRILL_PREFETCH"]),
)
task = app.task(perform, name="perform", max_retries=2, default_retry_delay=1)

if __name__ == "__main__":
    for line in sys.stdin:
        task.apply_async(kwargs=json.loads(line))
