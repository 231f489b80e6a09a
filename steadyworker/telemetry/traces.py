"""
Traces: one span of OpenTelemetry for each run, with a link to the span in which the sender sent the message.

::

    the sender's trace             the run's trace
    span ── send ──→ headers ·····→ process QUEUE      linked; the worker process ends it, whatever ends the run
                                     ├── start QUEUE   exported at once, so that even a lost run has a span
                                     └── spans of the handler

The user's code sets OpenTelemetry up; if it has not imported the API, no span can be active, and this file imports nothing.
A span has neither the job's key nor the text of an error, because both can hold personal data or secrets.
The fence in a span leads to the run's log lines and to the run in the ledger; `trace_id` in a log line leads to the span.
An error in the user's part, such as a span processor, is logged and harms no job.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from steadyworker.telemetry.late_imports import libraries_first
from steadyworker.telemetry.logs import get_logger
from steadyworker.text.versions import version

if TYPE_CHECKING:
    from opentelemetry.propagators.composite import CompositePropagator
    from opentelemetry.trace import Span

_API = "opentelemetry.trace"


class RunSpan:
    """
    The span of one run, for the runner's thread.

    `headers` let the handler's spans, in another process, be children of this span.
    """

    def __init__(self, span: Span, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self._span = span

    def end(self, outcome: str, failure: str = "") -> None:
        """End the span with the name of the run's outcome; `failure` is the type of the error, empty for a run that did not fail."""
        with _errors_logged():
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("steadyworker.outcome", outcome)
            if failure:
                self._span.set_attribute("error.type", failure)
                self._span.set_status(StatusCode.ERROR)
            self._span.end()


def begin_run(system: str, queue: str, headers: Mapping[str, str], facts: Mapping[str, str | int]) -> RunSpan | None:
    """
    Begin the span of a run; return None if nothing traces this process.

    `system` is the broker's name in traces, `headers` are those of the run's message, and `facts` describe the run.
    """
    if _API not in sys.modules:
        return None
    with _errors_logged():
        from opentelemetry import propagate, trace
        from opentelemetry.context import Context

        sent = propagate.extract(headers, Context())
        sender = trace.get_current_span(sent).get_span_context()
        about = {"messaging.destination.name": queue} | {f"steadyworker.{name}": fact for name, fact in facts.items()}
        operation = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
        tracer = trace.get_tracer("steadyworker", version())
        span = tracer.start_span(
            f"process {queue}",
            trace.set_span_in_context(trace.INVALID_SPAN, sent),  # a trace of its own: retries can go on for days
            trace.SpanKind.CONSUMER,
            {"messaging.system": system, **operation, **about},
            [trace.Link(sender)] if sender.is_valid else [],
        )
        if span.get_span_context().is_valid:  # otherwise the process has no tracer provider
            within = trace.set_span_in_context(span, sent)
            # This span has no operation and not the kind of a consumer, because each message counts once.
            tracer.start_span(f"start {queue}", within, attributes=about).end()
            ours: dict[str, str] = {}
            _between_processes().inject(ours, within)
            return RunSpan(span, ours)
    return None


@contextmanager
def continued(headers: Mapping[str, str]) -> Iterator[None]:
    """Let the spans within the `with` block be children of the span with these `RunSpan.headers`; without headers, do nothing."""
    token = None
    if headers:
        with _errors_logged(), libraries_first():
            from opentelemetry.context import Context, attach

            token = attach(_between_processes().extract(headers, Context()))
    try:
        yield
    finally:
        if token is not None:
            from opentelemetry.context import detach

            detach(token)


def sender_headers(given: Mapping[str, str]) -> dict[str, str]:
    """
    Return the headers that carry the active span from a sender to the runs of its message; empty without an active span.

    They are empty, too, if the sender has `given` a header `traceparent`.
    """
    headers: dict[str, str] = {}
    if _API in sys.modules and "traceparent" not in given:
        with _errors_logged():
            from opentelemetry import propagate, trace

            if trace.get_current_span().get_span_context().is_valid:
                propagate.inject(headers)
    return headers


def _between_processes() -> CompositePropagator:
    """Return the propagator from the worker process to the handler, which no setting changes."""
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.propagators.composite import CompositePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])


@contextmanager
def _errors_logged() -> Iterator[None]:
    """Log an error of OpenTelemetry, or of a user's part of it, and go on."""
    try:
        yield
    except Exception:  # a user's sampler, span processor or propagator can raise anything
        log = get_logger("steadyworker.traces")
        log.exception("tracing_failed", explain="steadyworker.tracing-failed")
