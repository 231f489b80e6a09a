"""
Counters for Prometheus, served at `/metrics` beside the probes if prometheus-client is installed (extra `metrics`).

The counter is a listener like any other: it receives events and changes nothing.
Keys and fences are not labels, because each value would create a time series.
Instead, each count has the fence of the job's run as *exemplar*; only the OpenMetrics format of the page shows exemplars.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from steadyworker.events import Adopted, DeliveryDeferred, DeliveryRejected, DuplicateAcked, Event

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter

Page = Callable[[str], tuple[str, bytes]]
"""A function from an `Accept` header to a content type and a body."""


class Metrics(Protocol):
    """A listener that counts events, and returns its counters as a page."""

    def __call__(self, event: Event) -> None:
        """Count one event."""
        ...

    def page(self, accept: str) -> tuple[str, bytes]:
        """Return the content type and the body, in the format that `accept` requests."""
        ...


def open_metrics() -> Metrics | None:
    """Return counters with a registry of their own, or None if prometheus-client is not installed."""
    try:
        from prometheus_client import CollectorRegistry, Counter
    except ImportError:
        return None
    registry = CollectorRegistry()
    unrun = Counter(
        "steadyworker_deliveries_unrun",
        "Deliveries that started no run: acknowledged as duplicates, deferred, rejected, or adopted by the run under way.",
        ("queue", "action", "state"),
        registry=registry,
    )
    return _Counted(registry, unrun)


class _Counted:
    def __init__(self, registry: CollectorRegistry, unrun: Counter) -> None:
        self._registry = registry
        self._unrun = unrun

    def __call__(self, event: Event) -> None:
        match event:
            case DuplicateAcked(state=state):
                action = "duplicate_acked"
            case DeliveryDeferred():
                action, state = "delivery_deferred", ""
            case DeliveryRejected():
                action, state = "delivery_rejected", ""
            case Adopted():
                action, state = "adopted", ""
            case _:
                return
        self._unrun.labels(event.queue, action, state).inc(exemplar={"fence": str(event.fence)})

    def page(self, accept: str) -> tuple[str, bytes]:
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._registry)
