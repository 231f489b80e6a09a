"""
Runs one job in this process: for tests of a Worker, and for a debugger.

There is no broker, no ledger and no child process.
The handler runs in the calling thread, so that breakpoints and mocks work.
Every request of the job is granted at once, and no time limit applies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from typing_extensions import TypeVar

from steadyworker.clock import SystemClock
from steadyworker.errors import Interrupt, Reject, Retry, Snooze
from steadyworker.link import (
    Answer,
    CallService,
    CancelCall,
    FindEnded,
    JobRequest,
    Link,
    MayCommit,
    RememberFolder,
    SaveCheckpoint,
    SaveExportState,
    Task,
)
from steadyworker.outcome import Counters, Done, Failed, Outcome, Settlement
from steadyworker.payload import encode, plain_encode
from steadyworker.retry import count, decide, drawn_delay
from steadyworker.slots.execute import Executor
from steadyworker.spec import AttributeCheck, duration, payload_type
from steadyworker.worker import Worker

P = TypeVar("P")
C = TypeVar("C", default=Any)


@dataclass(frozen=True, slots=True)
class RunResult:
    """
    The result of one run.

    Attributes:
        outcome: The run's outcome.
        settlement: The settlement that the Worker's retry policy decides on.
        error: The exception that the handler raised, or None.
        checkpoints: The saved checkpoints, in order, as plain JSON data.
        progress: Every `progress` call as (done, total, note), in order.
        exports: The manifests that `job.export` returned.
        result: The job's result as plain JSON data; None if the run is not done, or has no result.
        logs: The log lines of the run, at INFO and above: `level`, `event`, `logger`, and their other fields.
    """

    outcome: Outcome
    settlement: Settlement
    error: BaseException | None
    checkpoints: list[Any]
    progress: list[tuple[float | None, float | None, str]]
    exports: list[Any]
    logs: list[dict[str, Any]]
    result: Any = None


def run_one(
    worker: type[Worker[P, C]] | Worker[P, C],
    payload: P | bytes | Mapping[str, Any],
    *,
    key: str = "test",
    attempt: int = 1,
    checkpoint: C | None = None,
    headers: Mapping[str, str] | None = None,
    stop_at_checkpoint: int | None = None,
    raises: bool = True,
) -> RunResult:
    """
    Run one job in the calling thread, and return its result.

    Args:
        worker: A Worker class, or an instance of a Worker class, which can hold fakes.
            `run_one` calls `setup` and `teardown` only if `worker` is a class.
        payload: The payload itself, or plain data that decodes to the payload, or a raw body.
        key: The job's key.
        attempt: The number of this attempt, from 1.
        checkpoint: The checkpoint of an earlier run.
        headers: The message's headers.
        stop_at_checkpoint: The number of a checkpoint, from 1; after this checkpoint, `Interrupt` is raised as in a shutdown.
        raises: True to raise an unexpected exception of the handler (not Retry, Reject, Snooze or Interrupt) to the caller.

    Raises:
        BadPayload: The payload is not of the Worker's payload type.
        ConfigError: The Worker's `time_limit` is no duration.
    """
    instance = worker() if isinstance(worker, type) else worker
    cls = type(instance)
    clock = SystemClock()
    executor = Executor(instance, clock)
    desk = _Desk(stop_at_checkpoint)
    desk.link = link = Link(desk, clock, progress_every=0.0)
    task = Task(
        key=key,
        queue=getattr(cls, "queue", "test"),
        namespace="test",
        uid=f"test-{key}",
        fence=1,
        attempt=attempt,
        body=payload if isinstance(payload, bytes) else encode(payload, payload_type(cls)),
        headers=dict(headers or {}),
        last_checkpoint=None if checkpoint is None else plain_encode(checkpoint),
        time_limit=AttributeCheck(cls.__qualname__)("time_limit", getattr(cls, "time_limit", None), duration),
    )
    with _captured() as logs:
        try:
            if isinstance(worker, type):
                executor.setup()
            ran = executor.run(task, link)
            if isinstance(worker, type):
                executor.teardown()
        finally:
            executor.close()
    planned = isinstance(ran.error, Retry | Reject | Snooze | Interrupt)
    if raises and ran.error is not None and isinstance(ran.outcome, Failed) and not planned:
        raise ran.error
    counters = count(ran.outcome, Counters(attempts=attempt - 1), clock.wall())
    settlement = decide(ran.outcome, counters, cls.retry, drawn_delay(ran.outcome, counters, cls.retry))
    kept = ran.outcome.result if isinstance(ran.outcome, Done) else None
    result = None if kept is None else msgspec.json.decode(kept)
    return RunResult(ran.outcome, settlement, ran.error, desk.checkpoints, desk.progress, link.exports, logs, result)


class _Desk:
    """A substitute for the worker process, which grants and records every request."""

    def __init__(self, stop_at_checkpoint: int | None) -> None:
        self.link: Link
        self.checkpoints: list[Any] = []
        self.progress: list[tuple[float | None, float | None, str]] = []
        self._stop_at = stop_at_checkpoint

    def send_progress(self, done: float | None, total: float | None, note: str) -> None:
        self.progress.append((done, total, note))

    def send_request(self, id: int, request: JobRequest) -> None:
        answer: Any = True
        match request:
            case SaveCheckpoint(value=value):
                self.checkpoints.append(msgspec.json.decode(value))
                if len(self.checkpoints) == self._stop_at:
                    self.link.interrupt("shutdown", hard=True)
            case FindEnded():
                answer = []
            case CallService(service=service):
                raise RuntimeError(
                    f"Expected a job that needs no service of a worker process, got a request for {service!r}: "
                    "use steadyworker.testing.Harness, or give the handler a fake."
                )
            case SaveExportState() | MayCommit() | RememberFolder() | CancelCall():
                pass
        self.link.answer(id, Answer(answer))


@contextmanager
def _captured() -> Iterator[list[dict[str, Any]]]:
    """Record everything that is logged in this context, at INFO and above."""
    root = logging.getLogger()
    handler = _Recorder()
    level = root.level
    root.addHandler(handler)
    root.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        yield handler.lines
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


class _Recorder(logging.Handler):
    """A recorder, which keeps log records of structlog and of the standard library as plain mappings."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Append the record to the lines."""
        fields = record.msg if isinstance(record.msg, dict) else {"event": record.getMessage()}
        self.lines.append({"level": record.levelname.lower(), "logger": record.name, **fields})
