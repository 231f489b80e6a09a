"""What is counted, and how it is read."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from steadyworker.events import Adopted, DeliveryDeferred, DeliveryRejected, DuplicateAcked, Event, JobStarted
from steadyworker.telemetry.metrics import Metrics, open_metrics
from tests.test_health import Probed

OPEN_METRICS = "application/openmetrics-text"


@pytest.fixture
def metrics() -> Metrics:
    metrics = open_metrics()
    assert metrics is not None
    return metrics


def about(fence: int) -> dict[str, Any]:
    return {"key": "k-1", "queue": "exports", "fence": fence, "at": 0.0}


def test_a_delivery_answered_from_the_record_is_counted_and_names_the_run_that_did_it(metrics: Metrics) -> None:
    metrics(DuplicateAcked(**about(41), state="done"))
    metrics(DuplicateAcked(**about(42), state="done"))
    content_type, body = metrics.page(OPEN_METRICS)
    assert content_type.startswith(OPEN_METRICS)
    line = 'steadyworker_deliveries_unrun_total{action="duplicate_acked",queue="exports",state="done"} 2.0 # {fence="42"} 1.0'
    assert line in body.decode()


def test_what_starts_nothing_is_told_apart_and_all_else_is_not_counted(metrics: Metrics) -> None:
    events: list[Event] = [
        DeliveryDeferred(**about(1), delay=30.0),
        DeliveryRejected(**about(1), reason="key-conflict"),
        Adopted(**about(1)),
        JobStarted(**about(1), attempt=1, why="claim"),
    ]
    for event in events:
        metrics(event)
    counted = [line for line in metrics.page("")[1].decode().splitlines() if "_total{" in line]
    assert counted == [
        'steadyworker_deliveries_unrun_total{action="delivery_deferred",queue="exports",state=""} 1.0',
        'steadyworker_deliveries_unrun_total{action="delivery_rejected",queue="exports",state=""} 1.0',
        'steadyworker_deliveries_unrun_total{action="adopted",queue="exports",state=""} 1.0',
    ]


def test_no_key_is_ever_a_label(metrics: Metrics) -> None:
    metrics(DuplicateAcked(**about(7), state="dead"))
    assert b"k-1" not in metrics.page(OPEN_METRICS)[1]


def test_metrics_are_served_beside_the_probes(metrics: Metrics) -> None:
    probed = Probed(metrics.page)
    probed.server.start()
    try:
        metrics(DuplicateAcked(**about(7), state="done"))
        response, body = probed.ask("GET", "/metrics")
        assert (response.status, response.getheader("Content-Type", "")[:10]) == (200, "text/plain")
        assert "steadyworker_deliveries_unrun_total{" in body
    finally:
        probed.server.stop()


def test_without_the_library_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert open_metrics() is None
