"""User code as it should be: both checkers accept every line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

import msgspec

from steadyworker import Client, Interrupt, Job, JobStatus, NewJob, Reject, Retry, RetryPolicy, Snooze, Worker
from steadyworker.export import Services
from steadyworker.exports import S3, DuckDBExport, Manifest, RowExport
from steadyworker.outcome import Done
from steadyworker.testing import RunResult, run_one


@dataclass
class ExportRequest:
    merchant: str


class Position(TypedDict):
    page: int


class Refund(msgspec.Struct, tag="refund"):
    payment: str


class Charge(msgspec.Struct, tag="charge"):
    payment: str


class PaymentExports(Worker[ExportRequest, int]):
    queue = "payment-exports"
    time_limit = 3 * 3600
    concurrency = 2
    memory_limit = "2 GiB"
    isolation = "process"
    retry = RetryPolicy(max_attempts=3, dont_retry_on=(ValueError,))

    def setup(self) -> None:
        self.pages = [1, 2, 3]

    def handle(self, job: Job[ExportRequest, int]) -> None:
        for page in self.pages[job.last_checkpoint or 0 :]:
            job.log.info("page", merchant=job.payload.merchant.upper(), page=page)
            job.progress(page, len(self.pages))
            job.checkpoint(page)
            job.check()
        if job.time_left is not None and job.time_left < 1.0:
            raise Retry("too late", delay=timedelta(minutes=1))


class Payments(Worker[Refund | Charge]):
    queue = "payments"
    time_limit = None
    retry = RetryPolicy(wait=timedelta(minutes=1), dont_retry_on=ValueError)

    async def setup(self) -> None: ...

    async def handle(self, job: Job[Refund | Charge]) -> None:
        match job.payload:
            case Refund(payment=payment):
                job.checkpoint({"any": payment})
            case Charge():
                raise Reject("no charges")
        raise Snooze(30)


T = TypeVar("T")


class ShopBase(Worker[T, Position], Generic[T]):
    time_limit = timedelta(hours=1)

    def handle(self, job: Job[T, Position]) -> None:
        if job.last_checkpoint is not None:
            job.checkpoint({"page": job.last_checkpoint["page"] + 1})
        self.each(job.payload)

    def each(self, payload: T) -> None: ...


class Raw(ShopBase[bytes]):
    queue = "raw"

    def each(self, payload: bytes) -> None:
        payload.decode()


class Ours:
    """An export of the user's own; the arguments that it needs not have any type."""

    def write(
        self, services: Services, to: Path, *, format: Any, totals: Mapping[str, str], by: Sequence[str]
    ) -> Manifest:
        services.check()
        return RowExport([(1,)], columns=("id",)).write(services, to, format=format, totals=totals, by=by)


def exported(job: Job[bytes]) -> int:
    made: Manifest = job.export(RowExport([(1,)], columns=("id",)), to="out.csv")
    made = job.export(DuckDBExport("SELECT 1 AS id", tables={}, order_by=("id",)), to="sorted.csv")
    made = job.export(RowExport([(1,)], columns=("id",)), to=S3("s3://bucket/out.csv", region="eu-central-1"))
    return made.rows + job.export(Ours(), to="ours.csv").bytes


async def asend(client: Client, to: type[PaymentExports] | str) -> list[str]:
    request = ExportRequest("m-17")
    return [await client.asend(PaymentExports, request), await client.asend("any", b""), client.send(to, request)]


def send() -> JobStatus:
    with Client("sqlite:broker.db") as client:
        key: str = client.send(PaymentExports, ExportRequest("m-17"), delay=5)
        client.send("payment-exports", {"merchant": "m-17"}, key=key, headers={"tenant": "a"})
        jobs = (NewJob(ExportRequest(merchant), delay=datetime.now(UTC)) for merchant in ("m-18", "m-19"))
        keys: list[str] = client.send_many(PaymentExports, jobs)
        client.send_many("payment-exports", [NewJob({"merchant": "m-20"}, key=keys[0])])
        return client.status(PaymentExports, key)


def tests() -> None:
    ran: RunResult = run_one(PaymentExports, ExportRequest("m-17"), checkpoint=1, stop_at_checkpoint=2)
    run_one(Payments(), Refund("p-1"))
    run_one(Raw, b"raw")
    assert isinstance(ran.outcome, Done)


def hears(job: Job[bytes]) -> None:
    try:
        job.check()
    except Interrupt as interrupt:
        if interrupt.reason != "shutdown":
            raise
