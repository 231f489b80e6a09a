"""
The move from sixty lines of raw pika with `heartbeat=0` (`from_raw_pika.before.txt`) to a Worker.

| there | here |
|---|---|
| `heartbeat = 0`, or the broker cuts us off in the middle | the handler runs in a child process; the process that holds the connection is never busy |
| `consumer_timeout` closes the channel after 30 minutes, the export starts again | the redelivery is bound to the run that is under way |
| a connection that drops starts the export again | it goes on, and is settled once |
| killed: again from the first row | on from the last saved row |
| retries at once, counted in a header, published without a confirm | `RetryPolicy`, delays, confirmed before the original is acknowledged |
| a message that kills the process comes again without end | a dead letter after three starts, with the cause |
| a deploy waits for an hour, or kills | the export is interrupted, its position is kept, no attempt is counted |
| a part file that is renamed, by hand | `job.export`: the whole file or none, with a manifest |

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
    queue = "payment-exports"  # the queue that is there already, with the messages that are sent already
    time_limit = 2 * 3600
    retry = RetryPolicy(max_attempts=5, wait=wait_exponential_jitter(initial=5, max=3600))

    def handle(self, job: Job[ExportRequest]) -> None:
        rows = partial(payments_of, job.payload.merchant)
        job.export(RowExport(rows, columns=("merchant", "number", "cents")), to=OUT / f"{job.payload.merchant}.csv")


def payments_of(merchant: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Stands for the query that was there before: the same rows in the same order each time, from number `start` on."""
    for number in range(start, 20_000):
        yield merchant, number, number * 37 % 10_000
