"""The demo's six jobs: what is sent, what has to become of it, and what Celery 5.7 does with the like."""

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
        runs: How often a slot is given the job.
        end: What it is in the end,
        reason: and how the reason of its dead letter begins.
        why: Why it ran so often, for the table.
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
        "The same; that nothing is left half-written when it dies is yours to code.",
    ),
    Story(
        "bad-payload",
        b'{"merchant": 17}',
        1,
        State.DEAD,
        "it does not decode: the handler was never called",
        "Calls your function with the 17, unless you asked for pydantic.",
        "bad-payload",
    ),
    Story(
        KILLS_ITSELF,
        ExportRequest(demo_data.TINY),
        3,
        State.DEAD,
        "three starts, and it is out of the others' way",
        "task_acks_late: drops it without a word. With task_reject_on_worker_lost: 48 starts in 70 s, unless 5.7's new limit is set.",
        "crash-loop: SIGKILL",
    ),
    Story(
        FAILS_TWICE,
        ExportRequest(demo_data.SMALL),
        3,
        State.DONE,
        "two failures, each tried again after a second",
        "The same, once you have coded the retry; on classic queues the message waits in the worker's memory.",
    ),
    Story(
        "middle",
        ExportRequest(demo_data.MIDDLE),
        2,
        State.DONE,
        "its worker process was killed: the second run went on at row {:,}",
        "Acknowledged before it ran: lost. With task_acks_late: again from row 1.",
    ),
    Story(
        "biggest",
        ExportRequest(demo_data.BIGGEST),
        1,
        State.DONE,
        f"more than {SPARK_ABOVE:,} rows: Spark, whose JVM was killed: begun again inside the run",
        "Spark inside the worker's child dies with its JVM, and stays dead; progress, cancelling and the one whole file are yours.",
        needs_java=True,
    ),
)
