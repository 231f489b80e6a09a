"""`run_one`: a Worker's own tests, without broker, ledger or child."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from steadyworker import Interrupt, Job, Reject, Retry, RetryPolicy, Snooze, Worker
from steadyworker.errors import BadPayload, ConfigError
from steadyworker.outcome import Ack, Done, Failed, Interrupted, Later, Rejected, Release, Snoozed, ToDeadLetter
from steadyworker.testing import run_one


@dataclass
class Request:
    pages: int = 3
    do: str = "work"


@dataclass
class Exported:
    """An export that asks for everything, as `RowExport` would."""

    said: list[Any] = field(default_factory=list)

    def write(self, services: Any, to: Path, **_options: Any) -> Any:
        services.save_export_state(b"position")
        services.may_commit()
        self.said += [services.export_state(), services.ended(["u"]), services.key]
        return f"manifest of {to}"


@dataclass
class ExportedPages:
    """What a job may give as its result: anything that a payload may be."""

    pages: int
    place: str


class Pages(Worker[Request, int]):
    queue = "pages"
    time_limit = 60
    retry = RetryPolicy(max_attempts=2, wait=lambda _state: 5.0)

    def __init__(self) -> None:
        self.calls: list[str] = []

    def setup(self) -> None:
        self.calls.append("setup")

    def teardown(self) -> None:
        self.calls.append("teardown")

    def handle(self, job: Job[Request, int]) -> None:
        self.calls.append(f"handle in {os.getpid()}")
        match job.payload.do:
            case "fail":
                raise ValueError("boom")
            case "result":
                job.result({"pages": job.payload.pages})
                job.result(ExportedPages(job.payload.pages, "out.csv"))
            case "retry":
                raise Retry("later", delay=9)
            case "reject":
                raise Reject("never")
            case "snooze":
                raise Snooze(3)
            case "export":
                job.export(Exported(), to="out.csv")
            case "spark":
                job.export(Remote(), to="out.csv")
            case "log":
                job.log.info("exported", rows=3)
                logging.getLogger("library").warning("slow %s", "query")
        for page in range(job.last_checkpoint or 0, job.payload.pages):
            job.progress(page, job.payload.pages)
            job.checkpoint(page + 1)


class Remote:
    def write(self, services: Any, to: Path, **_options: Any) -> Any:
        list(services.call("spark", {}))


class Sleepy(Worker[Request]):
    queue = "sleepy"
    time_limit = None

    async def handle(self, job: Job[Request]) -> None:
        await asyncio.sleep(0)
        job.checkpoint({"attempt": job.attempt, "tenant": job.headers["tenant"], "name": job.name})
        assert job.time_left is None


def test_a_run_is_recorded_whole() -> None:
    ran = run_one(Pages, Request(3))
    assert (ran.outcome, ran.settlement, ran.error) == (Done(), Ack(), None)
    assert ran.checkpoints == [1, 2, 3]
    assert ran.progress == [(0, 3, ""), (1, 3, ""), (2, 3, "")]


def test_a_class_is_set_up_and_torn_down_and_an_instance_is_not() -> None:
    worker = Pages()
    run_one(worker, Request(0))
    assert worker.calls == [f"handle in {os.getpid()}"]

    class Watched(Pages):
        made: list[Pages] = []  # noqa: RUF012 - of this test

        def __init__(self) -> None:
            super().__init__()
            self.made.append(self)

    run_one(Watched, Request(0))
    assert Watched.made[0].calls == ["setup", f"handle in {os.getpid()}", "teardown"]


def test_a_stop_at_a_checkpoint_and_the_run_after_it() -> None:
    first = run_one(Pages, Request(3), stop_at_checkpoint=2)
    assert (first.outcome, first.settlement, first.checkpoints) == (Interrupted(), Release(), [1, 2])
    assert isinstance(first.error, Interrupt)
    second = run_one(Pages, Request(3), checkpoint=first.checkpoints[-1])
    assert (second.outcome, second.checkpoints) == (Done(), [3])


def test_an_unplanned_exception_comes_through_unless_it_is_asked_for() -> None:
    with pytest.raises(ValueError, match="boom"):
        run_one(Pages, Request(do="fail"))
    ran = run_one(Pages, Request(do="fail"), raises=False)
    assert ran.outcome == Failed("ValueError: boom", "ValueError")
    assert ran.settlement == Later(5.0)
    assert run_one(Pages, Request(do="fail"), attempt=2, raises=False).settlement == ToDeadLetter("exhausted")


@pytest.mark.parametrize(
    ("do", "outcome", "settlement"),
    [
        ("retry", Failed("later", "Retry", 9, planned=True), Later(9)),
        ("reject", Rejected("never"), ToDeadLetter("never")),
        ("snooze", Snoozed(3), Later(3)),
    ],
)
def test_what_a_handler_asks_for_is_an_outcome(do: str, outcome: object, settlement: object) -> None:
    ran = run_one(Pages, Request(do=do))
    assert (ran.outcome, ran.settlement) == (outcome, settlement)


def test_payloads_are_checked_like_real_ones() -> None:
    assert run_one(Pages, {"pages": 1}).checkpoints == [1]
    assert run_one(Pages, b'{"pages": 1}').checkpoints == [1]
    with pytest.raises(BadPayload, match=r"\$\.pages: expected int, got str"):
        run_one(Pages, {"pages": "x"})
    assert run_one(Pages, b'{"pages": "x"}').outcome == Rejected(
        "bad-payload: $.pages: expected int, got str", "BadPayload"
    )


def test_an_async_handler_runs_to_its_end() -> None:
    ran = run_one(Sleepy, Request(), key="a/b", attempt=3, headers={"tenant": "t"})
    assert ran.outcome == Done()
    assert ran.checkpoints == [{"attempt": 3, "tenant": "t", "name": "a_b-c14cddc033f6"}]


def test_the_last_result_is_recorded_and_a_run_that_is_not_done_has_none() -> None:
    assert run_one(Pages, Request(3, "result")).result == {"pages": 3, "place": "out.csv"}
    assert run_one(Pages, Request(0, "retry")).result is None


def test_exports_and_logs_are_recorded() -> None:
    assert run_one(Pages, Request(0, "export")).exports == ["manifest of out.csv"]
    logs = run_one(Pages, Request(0, "log")).logs
    assert [(line["level"], line["event"]) for line in logs] == [("info", "exported"), ("warning", "slow query")]
    assert logs[0].items() >= {"rows": 3, "queue": "pages", "key": "test", "attempt": 1, "fence": 1}.items()


def test_a_service_of_the_worker_process_is_missed_with_the_remedy() -> None:
    with pytest.raises(RuntimeError, match=r"got a request for 'spark': use steadyworker\.testing\.Harness"):
        run_one(Pages, Request(0, "spark"))


def test_a_time_limit_may_be_a_text_and_a_wrong_one_is_named() -> None:
    class Limited(Worker[dict[str, str]]):
        queue = "limited"
        time_limit = "3h"

        def handle(self, job: Job[dict[str, str]]) -> None:
            assert job.time_left is not None
            job.checkpoint(round(job.time_left / 60))

    class Wrong(Limited):
        time_limit = "3 parsecs"

    assert run_one(Limited, {}).checkpoints == [180]
    with pytest.raises(ConfigError, match=r"Wrong\.time_limit: Expected seconds above 0.* Got '3 parsecs'"):
        run_one(Wrong, {})
