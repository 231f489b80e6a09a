"""Deliberate mistakes: both checkers find one on every line that is marked, and none elsewhere."""

# ruff: noqa: B018, RSE102 - mistakes are what this file is for
from __future__ import annotations

from dataclasses import dataclass

from steadyworker import Client, Job, NewJob, Retry, RetryPolicy, Snooze, Worker
from steadyworker.exports import RowExport
from steadyworker.testing import run_one


@dataclass
class ExportRequest:
    merchant: str


class Attributes(Worker[ExportRequest, int]):
    queue = 3  # mistake
    time_limit = b"1h"  # mistake
    isolation = "fork"  # mistake
    unkeyed = "drop"  # mistake
    concurrency = None  # mistake
    retry = 3  # mistake

    def handle(self, job: Job[ExportRequest, int]) -> None: ...


class Exports(Worker[ExportRequest, int]):
    queue = "exports"
    time_limit = 60
    retry = RetryPolicy(max_attempts="3")  # mistake

    def handle(self, job: Job[ExportRequest, int]) -> None:
        job.payload.marchent  # mistake
        job.checkpoint("page 1")  # mistake
        job.last_checkpoint + 1  # mistake
        job.progress("half")  # mistake
        job.progres(1, 2)  # mistake
        job.key = "another"  # mistake
        job.export("SELECT 1", to="out.csv")  # mistake
        job.export(RowExport([(1,)], columns=("id",)), to="out.csv").row  # mistake


class NoJob(Worker[ExportRequest]):
    queue = "no-job"
    time_limit = 60

    def handle(self) -> None: ...  # mistake


class OtherJob(Worker[ExportRequest]):
    queue = "other-job"
    time_limit = 60

    def handle(self, job: Job[str]) -> None: ...  # mistake


def raised(number: int) -> None:
    if number:
        raise Retry(delay=b"5")  # mistake
    raise Snooze()  # mistake


def sent(client: Client) -> None:
    client.send(Exports, "m-17")  # mistake
    client.send(Exports(), ExportRequest("m-17"))  # mistake
    key: int = client.send(Exports, ExportRequest("m-17"))  # mistake
    client.status(Exports, key=key).stat  # mistake
    client.send_many(Exports, [NewJob("m-17")])  # mistake


async def sent_without_blocking(client: Client) -> None:
    await client.asend(Exports, "m-17")  # mistake
    client.asend(Exports, ExportRequest("m-17")) + ""  # mistake


def tried() -> None:
    run_one(Exports, 17)  # mistake
    run_one(Exports, ExportRequest("m-17"), checkpoint="one")  # mistake
    run_one(Exports, ExportRequest("m-17")).outcom  # mistake
