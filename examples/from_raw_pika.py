"""
The move from sixty lines of raw pika with `heartbeat=0` (`from_raw_pika.before.txt`) to a Worker.

| before | with SteadyWorker |
|---|---|
| needs `heartbeat = 0`, or the broker closes the connection during a job | the handler runs in a child process; the process that holds the connection is never busy |
| `consumer_timeout` closes the channel after 30 minutes, the export starts again | the running export goes on, and adopts the redelivery |
| a connection that drops starts the export again | it goes on, and is settled once |
| a killed export starts again from the first row | it continues from the last saved row |
| a retry is immediate, counted in a header, and published without a confirm | a retry has a policy and a delay, and is confirmed before the original is acknowledged |
| a message that kills the process is redelivered without end | it is a dead letter after three starts, with the cause |
| a deploy waits for an hour, or kills the export | the export is interrupted, its position is kept, and no attempt is counted |
| your code writes a part file and renames it | `job.export` makes the whole file or none, with a manifest |

Try it on the embedded queue; with `--broker amqp://…` the same class runs on RabbitMQ:

    steadyworker send from_raw_pika:PaymentExports '{"merchant": "harbour-books"}'
    steadyworker run  from_raw_pika:PaymentExports
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tenacity import wait_exponential_jitter

from steadyworker import Job, RetryPolicy, Worker
from steadyworker.exports import RowExport

OUT = Path("out")


@dataclass
class ExportRequest:
    merchant: str


class PaymentExports(Worker[ExportRequest]):
    queue = "payment-exports"  # the existing queue, with the messages that are in it
    time_limit = 2 * 3600
    retry = RetryPolicy(max_attempts=5, wait=wait_exponential_jitter(initial=5, max=3600))

    def handle(self, job: Job[ExportRequest]) -> None:
        rows = partial(payments_of, job.payload.merchant)
        # The file has the job's name: the export of tomorrow has another key, and never meets the file of today.
        job.export(RowExport(rows, columns=("merchant", "number", "cents")), to=OUT / f"{job.name}.csv")


def payments_of(merchant: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Stand in for the old query: yield the same rows in the same order each time, from row number `start`."""
    for number in range(start, 20_000):
        yield merchant, number, number * 37 % 10_000
