"""
Metrics for Prometheus; with prometheus-client (extra `metrics`), the worker process serves them at `/metrics`, beside the probes.

`Metrics` is a listener that counts events.
`gauges.py` reads the present state of the worker process when a scrape asks for it.
`steadyworker/service/timed_ledger.py` measures the calls of the ledger.

Keys and fences are not labels, because each value would create a time series.
Instead, some counts have the fence of the job's run as an *exemplar*; only the page's OpenMetrics format shows exemplars.
Each counter of a queue begins with 0, because an alert on `increase` would miss a series that begins with 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from steadyworker.events import (
    Adopted,
    DeliveryDeferred,
    DeliveryLost,
    DeliveryRejected,
    DuplicateAcked,
    Event,
    Fenced,
    JobEnded,
    JobSettled,
    JobStarted,
    MessageLost,
    TakenOver,
)
from steadyworker.telemetry.gauges import QueueReading, gauges

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Page = Callable[[str], tuple[str, bytes]]
"""A function that receives an `Accept` header, and returns a content type and a body."""

JOB_SECONDS = (1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 2700, 3600, 5400, 7200, 10800, 14400, 28800)
"""The buckets of a job's duration: jobs last seconds to hours, but the default buckets of prometheus-client end at 10 s."""

LEDGER_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""The buckets of a ledger call: a call takes 1 ms at best, and fails after 10 s (`Times.call_timeout`)."""

OUTCOMES = ("done", "failed", "retry", "rejected", "cancelled", "crashed", "snoozed", "interrupted")
"""The outcomes of a run, as the log line `job_settled` names them; `retry` is a retry for which the handler asked."""

ATTEMPT_REASONS = (*OUTCOMES, "time-limit", "stalled", "memory-limit", "killed")
"""The reasons for which an attempt ended: its outcome, or the cause of a failure or a crash if SteadyWorker knows it."""

REJECTIONS = ("key-conflict", "no-key", "bad-header", "bad-payload", "unshown")
"""The reasons for which a message becomes a dead letter without a run."""

_RETRIED = ("failed", "crashed")
_DEAD = ("failed", "retry", "rejected", "cancelled", "crashed", "interrupted")


class Metrics(Protocol):
    """A listener that counts events, and returns all metrics as a page."""

    def __call__(self, event: Event) -> None:
        """Count one event."""
        ...

    def watch(
        self,
        queues: Sequence[str],
        readings: Callable[[], Sequence[QueueReading]],
        state: ProcessState,
        ledger_bytes: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Begin the counters of these queues with 0; from now on, each scrape reads the gauges with these functions."""
        ...

    def ledger_call(self, call: str, seconds: float, *, failed: bool) -> None:
        """Count one call of the ledger; `call` is the name of the method."""
        ...

    def page(self, accept: str) -> tuple[str, bytes]:
        """Return the content type and the body, in the format that `accept` requests."""
        ...


def reason_of_attempt(outcome: str, reason: str) -> str:
    """Return the word of `ATTEMPT_REASONS` for the outcome of an attempt and the text of its reason."""
    match outcome, reason:
        case "failed", "time-limit" | "stalled":
            return reason
        case "crashed", "SIGKILL":
            return "killed"
        case "crashed", _ if reason.startswith("memory-limit"):
            return "memory-limit"
        case _:
            return outcome


ProcessState = Callable[[], Mapping[str, bool]]
"""A function that returns whether the process is `alive` and `ready`."""


def open_metrics() -> Metrics | None:
    """Return metrics with a registry of their own, or None if prometheus-client is not installed."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        return None
    return _PrometheusMetrics(CollectorRegistry())


class _PrometheusMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Histogram

        def counter(name: str, text: str, *labels: str) -> Any:
            return Counter(f"steadyworker_{name}", text, ("queue", *labels), registry=registry)

        self._registry = registry
        self._unrun = counter(
            "deliveries_unrun",
            "Deliveries that started no run: acknowledged as duplicates, deferred, rejected, or adopted by the run under way.",
            "action",
            "state",
        )
        self._plain: dict[type[Event], Any] = {
            JobStarted: counter("runs_started", "Runs that began."),
            DeliveryLost: counter("deliveries_lost", "Deliveries that were lost while their run went on."),
            TakenOver: counter("jobs_taken_over", "Jobs whose owner was gone, and that continued here."),
            MessageLost: counter(
                "messages_lost", "Jobs whose message did not come again; the ledger keeps a copy of it."
            ),
            Fenced: counter("runs_fenced", "Runs that ended because a later run has their job."),
        }
        self._settled = counter(
            "jobs_settled", "Runs whose message was settled, by the run's outcome.", "settlement", "outcome"
        )
        self._attempts = counter("attempts", "Attempts that ended, by the reason of their end.", "reason")
        self._retries = counter("retries", "Failed and crashed runs whose job will run again.", "outcome")
        self._dead = counter(
            "dead_letters",
            "Dead letters, by the outcome of the last run, or by the reason of a message that started no run; "
            "a cancelled job is no failure.",
            "reason",
        )
        self._duration = Histogram(
            "steadyworker_job_duration_seconds",
            "Duration of runs.",
            ("queue", "outcome"),
            buckets=JOB_SECONDS,
            registry=registry,
        )
        self._ledger = Histogram(
            "steadyworker_ledger_call_duration_seconds",
            "Duration of calls of the ledger.",
            ("call", "failed"),
            buckets=LEDGER_SECONDS,
            registry=registry,
        )

    def __call__(self, event: Event) -> None:
        queue = event.queue
        exemplar = {"fence": str(event.fence)}
        if (plain := self._plain.get(type(event))) is not None:
            plain.labels(queue).inc()
        match event:
            case JobEnded(outcome=outcome, reason=reason, seconds=seconds):
                self._attempts.labels(queue, reason_of_attempt(outcome, reason)).inc(exemplar=exemplar)
                self._duration.labels(queue, outcome).observe(seconds, exemplar)
            case JobSettled():
                self._count_settled(event, exemplar)
            case DuplicateAcked(state=state):
                self._unrun.labels(queue, "duplicate_acked", state).inc(exemplar=exemplar)
            case DeliveryDeferred():
                self._unrun.labels(queue, "delivery_deferred", "").inc(exemplar=exemplar)
            case DeliveryRejected(reason=reason):
                self._unrun.labels(queue, "delivery_rejected", "").inc(exemplar=exemplar)
                self._dead.labels(queue, reason.partition(":")[0]).inc()  # the rest is text about the message
            case Adopted():
                self._unrun.labels(queue, "adopted", "").inc(exemplar=exemplar)
            case _:
                return

    def _count_settled(self, event: JobSettled, exemplar: dict[str, str]) -> None:
        self._settled.labels(event.queue, event.settlement, event.outcome).inc(exemplar=exemplar)
        if event.settlement == "dead-letter":
            self._dead.labels(event.queue, event.outcome).inc(exemplar=exemplar)
        elif event.settlement == "later" and event.outcome in _RETRIED:
            self._retries.labels(event.queue, event.outcome).inc(exemplar=exemplar)

    def watch(
        self,
        queues: Sequence[str],
        readings: Callable[[], Sequence[QueueReading]],
        state: ProcessState,
        ledger_bytes: Callable[[], int | None] = lambda: None,
    ) -> None:
        for queue in queues:
            for counter in self._plain.values():
                counter.labels(queue)
            for outcome in _RETRIED:
                self._retries.labels(queue, outcome)
            for reason in (*_DEAD, *REJECTIONS):
                self._dead.labels(queue, reason)
            for reason in ATTEMPT_REASONS:
                self._attempts.labels(queue, reason)
            for outcome in OUTCOMES:
                self._duration.labels(queue, outcome)
        self._registry.register(gauges(queues, readings, state, ledger_bytes))

    def ledger_call(self, call: str, seconds: float, *, failed: bool) -> None:
        self._ledger.labels(call, str(failed).lower()).observe(seconds)

    def page(self, accept: str) -> tuple[str, bytes]:
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._registry)
