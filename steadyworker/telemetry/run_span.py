"""The span of one run, which the runner begins and ends; `traces.py` explains what a trace shows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from steadyworker.telemetry.traces import between_processes, errors_logged
from steadyworker.text.versions import version

if TYPE_CHECKING:
    from opentelemetry.trace import Span


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
        with errors_logged():
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
    with errors_logged():
        from opentelemetry import propagate, trace
        from opentelemetry.context import Context

        sent = propagate.extract(headers, Context())
        sender = trace.get_current_span(sent).get_span_context()
        about = {"messaging.destination.name": queue} | {f"steadyworker.{name}": fact for name, fact in facts.items()}
        operation = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
        tracer = trace.get_tracer("steadyworker", _version())
        span = tracer.start_span(
            f"process {queue}",
            trace.set_span_in_context(trace.INVALID_SPAN, sent),  # a trace of its own: retries can go on for days
            trace.SpanKind.CONSUMER,
            {"messaging.system": system, **operation, **about},
            [trace.Link(sender)] if sender.is_valid else [],
        )
        if span.get_span_context().is_valid:  # otherwise the process has no tracer provider
            within = trace.set_span_in_context(span, sent)
            ours: dict[str, str] = {}
            with errors_logged():  # the run's span has begun, so it must have an end
                # This span has no operation and not the kind of a consumer, because each message counts once.
                tracer.start_span(f"start {queue}", within, attributes=about).end()
                between_processes().inject(ours, within)
            return RunSpan(span, ours)
    return None


@cache
def _version() -> str:
    """Return the version; only the first run reads its file."""
    return version()
