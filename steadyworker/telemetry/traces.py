"""
Traces: one span of OpenTelemetry for each run, with a link to the span in which the sender sent the message.

`run_span.py` makes the span of a run, in the worker process; the functions here are for senders and handlers.

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

if TYPE_CHECKING:
    from opentelemetry.propagators.composite import CompositePropagator

API = "opentelemetry.trace"
"""The module by which a program uses spans; if the program has not imported it, nothing traces the program."""


@contextmanager
def continued(headers: Mapping[str, str]) -> Iterator[None]:
    """Let the spans within the `with` block be children of the span with these `RunSpan.headers`; without headers, do nothing."""
    token = None
    if headers:
        with errors_logged(), libraries_first():
            from opentelemetry.context import Context, attach

            token = attach(between_processes().extract(headers, Context()))
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
    if API in sys.modules and "traceparent" not in map(str.lower, given):
        with errors_logged():
            from opentelemetry import propagate, trace

            if trace.get_current_span().get_span_context().is_valid:
                propagate.inject(headers)
    return headers


def between_processes() -> CompositePropagator:
    """Return the propagator from the worker process to the handler, which no setting changes."""
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.propagators.composite import CompositePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])


@contextmanager
def errors_logged() -> Iterator[None]:
    """Log an error of OpenTelemetry, or of a user's part of it, and go on."""
    try:
        yield
    except Exception:  # a user's sampler, span processor or propagator can raise anything
        log = get_logger("steadyworker.traces")
        log.exception("tracing_failed", explain="steadyworker.tracing-failed")
