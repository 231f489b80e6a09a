"""
One job, in this process: for a Worker's own tests, and for a debugger.

No broker, no ledger, no child: the handler is called in the calling thread, so that breakpoints and mocks work.
What the job asks of its worker process is granted at once; time limits are not enforced.
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
from steadyworker.errors import Interrupt, Reject, Retry, Snooze, seconds
from steadyworker.link import CANCEL, Answer, Link, Task
from steadyworker.outcome import Counters, Failed, Outcome, Settlement
from steadyworker.payload import encode, plain_encode
from steadyworker.retry import count, decide, drawn_delay
from steadyworker.slots.execute import Executor
from steadyworker.spec import payload_type
from steadyworker.worker import Worker

P = TypeVar("P")
C = TypeVar("C", default=Any)


@dataclass(frozen=True, slots=True)
class Ran:
    """
    What one run did.

    Attributes:
        outcome: How the handler ended.
        settlement: What would follow for the message, by the Worker's retry policy.
        error: What the handler raised, if anything.
        checkpoints: What was saved, in order, as plain JSON data.
        progress: Every `progress` call as (done, total, note), in order.
        exports: The manifests that `job.export` has answered.
        logs: The log lines that were written meanwhile, at INFO and above: `level`, `event`, `logger`, and what else they carry.
    """

    outcome: Outcome
    settlement: Settlement
    error: BaseException | None
    checkpoints: list[Any]
    progress: list[tuple[float | None, float | None, str]]
    exports: list[Any]
    logs: list[dict[str, Any]]


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
) -> Ran:
    """
    Run one job here and now.

    Args:
        worker: A Worker class (`setup` and `teardown` run), or an instance (they don't: inject your fakes).
        payload: The payload, or plain data that decodes to it, or a raw body.
        key: The job's key.
        attempt: Which attempt this is, from 1.
        checkpoint: The checkpoint that an earlier run left.
        headers: The message's headers.
        stop_at_checkpoint: Shut down at this checkpoint, from 1: `Interrupt` is raised after that save.
        raises: Let an exception that nobody planned for (not Retry, Reject or Snooze) through, as a test likes it.

    Raises:
        BadPayload: The payload is not of the Worker's payload type.
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
        uid=f"test-{key}",
        fence=1,
        attempt=attempt,
        body=payload if isinstance(payload, bytes) else encode(payload, payload_type(cls)),
        headers=dict(headers or {}),
        last_checkpoint=None if checkpoint is None else plain_encode(checkpoint),
        time_limit=seconds(getattr(cls, "time_limit", None)),
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
    return Ran(ran.outcome, settlement, ran.error, desk.checkpoints, desk.progress, link.exports, logs)


class _Desk:
    """Stands where the worker process would: grants everything, and keeps a record."""

    def __init__(self, stop_at_checkpoint: int | None) -> None:
        self.link: Link
        self.checkpoints: list[Any] = []
        self.progress: list[tuple[float | None, float | None, str]] = []
        self._stop_at = stop_at_checkpoint

    def progressed(self, done: float | None, total: float | None, note: str) -> None:
        self.progress.append((done, total, note))

    def asked(self, id: int, what: str, data: Any) -> None:
        answer: Any = True
        match what:
            case "checkpoint":
                self.checkpoints.append(msgspec.json.decode(data))
                if len(self.checkpoints) == self._stop_at:
                    self.link.interrupt("shutdown", hard=True)
            case "ended":
                answer = []
            case "export_state" | "may_commit":
                pass
            case _ if what != CANCEL:
                raise RuntimeError(
                    f"Expected a job that needs no service of a worker process, but it asks for {what!r}: "
                    "use steadyworker.testing.Harness, or give the handler a fake."
                )
        self.link.answer(id, Answer(answer))


@contextmanager
def _captured() -> Iterator[list[dict[str, Any]]]:
    """Everything that is logged meanwhile, at INFO and above."""
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
    """Keeps log records as plain mappings, those of structlog and of the standard library alike."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        said = record.msg if isinstance(record.msg, dict) else {"event": record.getMessage()}
        self.lines.append({"level": record.levelname.lower(), "logger": record.name, **said})
