"""A Celery application for provocations; the environment says where its broker is."""

from __future__ import annotations

import os
import signal
import time

from celery import Celery

app = Celery("celery_app", broker=os.environ["AMQP_URL"])
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_heartbeat=10,
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=2,
    task_default_queue=os.environ["QUEUE"],
    task_time_limit=float(os.environ.get("TIME_LIMIT", "0")) or None,
)


@app.task(name="sleep")
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@app.task(name="die")
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="fail")
def fail() -> None:
    raise ValueError("account 17")
