"""The demo's six jobs: what is sent, the expected result, and what Celery 5.7 does with such a job."""

from __future__ import annotations

from dataclasses import dataclass

import demo_data
from demo_jobs import FAILS_TWICE, KILLS_ITSELF
from payment_exports import SPARK_ABOVE, ExportRequest

from steadyworker.ledger.base import State


@dataclass(frozen=True)
class Story:
    """
    One job.

    Attributes:
        runs: How many runs the job needs.
        end: Its final state.
        why: The reason for the number of runs, for the table.
        celery: What Celery 5.7 does with such a job.
        reason: The beginning of its dead letter's reason.
        needs_java: Whether Spark runs it.
    """

    key: str
    request: ExportRequest | bytes
    runs: int
    end: State
    why: str
    celery: str
    reason: str = ""
    needs_java: bool = False


STORIES = (
    Story(
        "tiny",
        ExportRequest(demo_data.TINY),
        1,
        State.DONE,
        "streamed by its own process",
        "The same; but you must write the code that leaves no half-written file after a crash.",
    ),
    Story(
        "bad-payload",
        b'{"merchant": 17}',
        1,
        State.DEAD,
        "its payload does not decode: the handler was not called",
        "Calls your function with the 17, unless you use pydantic.",
        "bad-payload",
    ),
    Story(
        KILLS_ITSELF,
        ExportRequest(demo_data.TINY),
        3,
        State.DEAD,
        "after three starts it is a dead letter, and blocks no other job",
        "With task_acks_late: drops it silently. With task_reject_on_worker_lost: 48 starts in 70 s, unless 5.7's new limit is set.",
        "crash-loop: SIGKILL",
    ),
    Story(
        FAILS_TWICE,
        ExportRequest(demo_data.SMALL),
        3,
        State.DONE,
        "it failed twice, and was retried after a second each time",
        "The same, once you have written the retry; on classic queues the message waits in the worker's memory.",
    ),
    Story(
        "middle",
        ExportRequest(demo_data.MIDDLE),
        2,
        State.DONE,
        "its worker process was killed: the second run continued at row {:,}",
        "Lost, because it is acknowledged before it runs. With task_acks_late: starts again from row 1.",
    ),
    Story(
        "biggest",
        ExportRequest(demo_data.BIGGEST),
        1,
        State.DONE,
        f"Spark runs it (more than {SPARK_ABOVE:,} rows); its JVM was killed, and restarted inside the same run",
        "Spark in the worker's child ends with its JVM, and is not restarted; you must write progress, cancelling and the whole file.",
        needs_java=True,
    ),
)
