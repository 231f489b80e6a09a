"""A Worker whose module sets OpenTelemetry up: each process writes its spans to the file `spans` of the stage's folder."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from steadyworker import Job, RetryPolicy, Worker
from tests.support.jobs import note


class ToFile(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            note("spans", span.to_json(indent=None))
        return SpanExportResult.SUCCESS


trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(ToFile()))  # type: ignore[attr-defined]


class Traced(Worker[dict[str, Any], int]):
    """Its first run waits, dies or fails, as the payload's `first` names; a later run is done at once."""

    queue = "traced"
    time_limit = 60
    retry = RetryPolicy(wait=0)

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        with trace.get_tracer("shop").start_as_current_span("read the pages"):
            first = "" if job.last_checkpoint else job.payload["first"]
        job.checkpoint(1)
        match first:
            case "waits":
                note("began", job.key)
                threading.Event().wait()
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "fails":
                raise ValueError("hunter2")


class TracedInThreads(Traced):
    queue = "traced-in-threads"
    isolation = "thread"
