"""A job that says its password in every way in which a handler can say something, and then ends as its message asks."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
import time
import warnings
from typing import Any

from tenacity import wait_fixed

from steadyworker import Job, Reject, Retry, RetryPolicy, Snooze, Worker
from tests.fleet.jobs import QUEUE
from tests.support.jobs import note


class Leaky(Worker[dict[str, Any], dict[str, str]]):
    """In a child process."""

    queue = QUEUE
    time_limit = 600
    retry = RetryPolicy(max_attempts=2, max_crashes=1, wait=wait_fixed(0.1))

    def handle(self, job: Job[dict[str, Any], dict[str, str]]) -> None:
        secret = job.payload["password"]
        text = f"password={secret} at amqp://app:{secret}@broker/ with Authorization: Bearer {secret}"
        self._say(job, secret, text)
        match job.payload["how"]:
            case "fails":
                raise ConnectionError(text) from OSError(text)
            case "rejected":
                raise Reject(text)
            case "waits":
                raise Retry(text, delay=600.0)
            case "snoozes":
                raise Snooze(600.0)
            case "crashes":
                ctypes.string_at(0)
            case "runs":
                note("starts", job.key)
                while True:
                    job.check()
                    time.sleep(0.05)  # the work of a job that runs until it is interrupted
        job.result({"password": secret})

    def _say(self, job: Job[dict[str, Any], dict[str, str]], secret: str, text: str) -> None:
        job.progress(1, 2, text)
        job.checkpoint({"password": secret, "url": f"amqp://app:{secret}@broker/"})
        job.log.warning(
            "said", password=secret, url=f"amqp://app:{secret}@broker/", text=text, headers=dict(job.headers)
        )
        logging.getLogger("library").warning("cannot say %s", text)
        print(text)
        print(text, file=sys.stderr)
        warnings.warn(text, UserWarning, stacklevel=1)
        if self.isolation == "thread":
            return  # a subprocess of a thread writes into the log by itself
        subprocess.run([sys.executable, "-c", f"import os; os.write(1, {text!r}.encode())"], check=True)

    def on_dead(self, job: Job[dict[str, Any], dict[str, str]], reason: str) -> None:
        note("dead", job.key)
        raise RuntimeError(f"cannot alert amqp://app:{job.payload['password']}@broker/: {reason}")


class LeakyThread(Leaky):
    """In a thread of the worker process."""

    isolation = "thread"
