"""The demo's Worker: `payment_exports.py`, with a year's faults in one minute."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import demo_data
from payment_exports import ExportRequest, PaymentExports, Source
from tenacity import wait_fixed

from steadyworker import Job, RetryPolicy
from steadyworker.exports import SparkExport

FAILS_TWICE, KILLS_ITSELF = "fails-twice", "kills-itself"
THIRD = 3

_ROWS_PER_SECOND = 20_000


class DemoExports(PaymentExports):
    retry = RetryPolicy(max_attempts=5, wait=wait_fixed(1))

    def handle(self, job: Job[ExportRequest]) -> None:
        if job.key == KILLS_ITSELF:
            os.kill(os.getpid(), signal.SIGKILL)  # like the kernel when memory runs out
        if job.key == FAILS_TWICE and job.attempt < THIRD:
            raise ConnectionError("the payments are not reachable")
        super().handle(job)

    def source(self, place: str) -> Source:
        return _FarAway(super().source(place))


class _FarAway:
    """A source that delays the rows of the middle merchant, so that the demo can kill its export half-way."""

    def __init__(self, near: Source) -> None:
        self._near, self.columns = near, near.columns

    def count(self, merchant: str) -> int:
        return self._near.count(merchant)

    def rows(self, merchant: str, start: int) -> Iterator[Any]:
        for batch in self._near.rows(merchant, start):
            if merchant == demo_data.MIDDLE:
                time.sleep(len(batch) / _ROWS_PER_SECOND)
            yield batch

    def query(self, merchant: str) -> SparkExport | None:
        return self._near.query(merchant)
