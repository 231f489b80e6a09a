"""What is counted, and how it is read."""

from __future__ import annotations

import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pika import exceptions

from steadyworker.adapter import Depth
from steadyworker.clock import Times
from steadyworker.errors import LedgerUnavailable
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
from steadyworker.ledger.base import JobId, Row
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.network.errors import Silent
from steadyworker.service.timed_ledger import timed
from steadyworker.telemetry.gauges import QueueReading
from steadyworker.telemetry.loss_reasons import REASONS, reason_of
from steadyworker.telemetry.metrics import REJECTIONS, Metrics, open_metrics
from steadyworker.testing.clock import FakeClock
from steadyworker_rabbitmq.errors import unavailable as rabbitmq_unavailable
from steadyworker_stomp.errors import BrokerError
from steadyworker_stomp.errors import unavailable as stomp_unavailable
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


def counted(metrics: Metrics, name: str) -> dict[str, float]:
    """The samples of this name, by their labels."""
    lines = metrics.page("")[1].decode().splitlines()
    pairs = [line.removeprefix(name).rsplit(" ", 1) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
    return {labels: float(value) for labels, value in pairs}


def settled(outcome: str, settlement: str) -> JobSettled:
    return JobSettled(
        **about(5),
        settlement=settlement,
        outcome=outcome,
        reason="ValueError: no merchant 17",
        attempts=1,
        crashes=0,
        losses=0,
        interruptions=0,
        settled="confirmed",
        seconds=2.0,
    )


def test_each_way_in_which_a_run_ends_is_counted_once(metrics: Metrics) -> None:
    for _ in range(2):
        metrics(JobStarted(**about(5), attempt=1, why="new"))
    metrics(settled("done", "ack"))
    metrics(settled("failed", "later"))
    metrics(settled("snoozed", "later"))
    metrics(settled("crashed", "dead-letter"))
    metrics(settled("interrupted", "release"))
    metrics(DeliveryRejected(**about(0), reason="bad-payload: expected int, got 'k-1'"))
    metrics(DeliveryLost(**about(5), cause="no heartbeat"))
    metrics(TakenOver(**about(5), losses=1))
    metrics(MessageLost(**about(5), unseen_for=181.0, state="running", fate="runs"))
    metrics(Fenced(**about(5), write="renew"))
    assert counted(metrics, "steadyworker_runs_started_total") == {'{queue="exports"}': 2}
    assert counted(metrics, "steadyworker_jobs_settled_total") == {
        '{outcome="done",queue="exports",settlement="ack"}': 1,
        '{outcome="failed",queue="exports",settlement="later"}': 1,
        '{outcome="snoozed",queue="exports",settlement="later"}': 1,
        '{outcome="crashed",queue="exports",settlement="dead-letter"}': 1,
        '{outcome="interrupted",queue="exports",settlement="release"}': 1,
    }
    assert counted(metrics, "steadyworker_retries_total") == {'{outcome="failed",queue="exports"}': 1}
    assert counted(metrics, "steadyworker_dead_letters_total") == {
        '{queue="exports",reason="crashed"}': 1,
        '{queue="exports",reason="bad-payload"}': 1,
    }
    for name in ("deliveries_lost", "jobs_taken_over", "messages_lost", "runs_fenced"):
        assert counted(metrics, f"steadyworker_{name}_total") == {'{queue="exports"}': 1}
    assert b"merchant" not in metrics.page(OPEN_METRICS)[1]


def test_an_attempt_is_counted_by_the_reason_of_its_end(metrics: Metrics) -> None:
    metrics.watch(["exports"], list, lambda: {"alive": True, "ready": True})
    ends = {
        ("done", ""): "done",
        ("retry", "time-limit"): "retry",
        ("failed", "ValueError: time-limit"): "failed",
        ("failed", "time-limit"): "time-limit",
        ("failed", "stalled"): "stalled",
        ("crashed", "SIGKILL"): "killed",
        ("crashed", "SIGSEGV"): "crashed",
        ("crashed", "memory-limit: 200 MiB of 100 MiB"): "memory-limit",
        ("rejected", "bad-payload: …"): "rejected",
        ("cancelled", "cancelled: wrong month"): "cancelled",
        ("snoozed", "snoozed for 60 s"): "snoozed",
        ("interrupted", "interrupted"): "interrupted",
    }
    for outcome, reason in ends:
        metrics(JobEnded(**about(5), outcome=outcome, reason=reason, seconds=1.0))
    found = counted(metrics, "steadyworker_attempts_total")
    assert found == {f'{{queue="exports",reason="{reason}"}}': 1 for reason in ends.values()}


def test_a_cancel_is_a_dead_letter_with_a_reason_of_its_own_and_no_retry(metrics: Metrics) -> None:
    metrics(settled("cancelled", "dead-letter"))
    metrics(settled("retry", "later"))
    assert counted(metrics, "steadyworker_dead_letters_total") == {'{queue="exports",reason="cancelled"}': 1}
    assert counted(metrics, "steadyworker_retries_total") == {}


def test_a_queue_is_not_up_while_the_process_cannot_know(metrics: Metrics) -> None:
    readings: list[QueueReading] = []
    metrics.watch(["exports"], lambda: readings, lambda: {"alive": True, "ready": True})
    assert counted(metrics, "steadyworker_up") == {'{queue="exports"}': 0}
    readings.append(reading())
    assert counted(metrics, "steadyworker_up") == {'{queue="exports"}': 1}
    for less in (
        replace(reading(), connected=False),
        replace(reading(), ledger_up=False),
        replace(reading(), known=False),
    ):
        readings[:] = [less]
        assert counted(metrics, "steadyworker_up") == {'{queue="exports"}': 0}


def test_a_run_of_three_hours_is_no_run_of_ten_seconds(metrics: Metrics) -> None:
    metrics(JobEnded(**about(5), outcome="done", reason="", seconds=3 * 3600 - 1))
    buckets = counted(metrics, "steadyworker_job_duration_seconds_bucket")
    assert buckets['{le="7200.0",outcome="done",queue="exports"}'] == 0
    assert buckets['{le="10800.0",outcome="done",queue="exports"}'] == 1


def reading() -> QueueReading:
    return QueueReading(
        queue="exports",
        running=2,
        slots=4,
        slots_ready=3,
        connected=True,
        blocked=False,
        ledger_up=True,
        oldest=61.5,
        time_limit=3600.0,
        losses={"heartbeat": 2, "reset": 0},
        paused=True,
    )


def test_the_state_of_the_process_is_read_at_each_scrape(metrics: Metrics) -> None:
    state = {"alive": True, "ready": True}
    readings: list[QueueReading] = []
    metrics.watch(["exports"], lambda: readings, lambda: state)
    assert counted(metrics, "steadyworker_slots") == {}, "before the first contact with the broker"
    assert counted(metrics, "steadyworker_ready") == {"": 1}
    readings.append(reading())
    state["ready"] = False
    assert counted(metrics, "steadyworker_ready") == {"": 0}
    expected = {
        "jobs_running": 2,
        "slots": 4,
        "slots_ready": 3,
        "connection_up": 1,
        "connection_blocked": 0,
        "ledger_up": 1,
        "job_oldest_run_seconds": 61.5,
        "job_time_limit_seconds": 3600,
        "paused": 1,
    }
    for name, value in expected.items():
        assert counted(metrics, f"steadyworker_{name}") == {'{queue="exports"}': value}
    assert counted(metrics, "steadyworker_connection_losses_total") == {
        '{queue="exports",reason="heartbeat"}': 2,
        '{queue="exports",reason="reset"}': 0,
    }
    assert list(counted(metrics, "steadyworker_info").values()) == [1]


def test_only_the_process_that_measured_a_queue_has_its_depth(metrics: Metrics) -> None:
    """A number that the broker does not report has no sample; a queue without a ready message has the age 0."""
    known = Depth(3, 2, 1795750882.5, 1, 4, 5, 61.5)
    unknown = Depth(ready=0, why={"unacked": "the broker counts none"})
    readings = [
        replace(reading(), depth=known),
        replace(reading(), queue="imports", depth=unknown),
        replace(reading(), queue="others"),
    ]
    metrics.watch(["exports"], lambda: readings, dict)
    assert counted(metrics, "steadyworker_queue_messages") == {
        '{queue="exports",state="ready"}': 3,
        '{queue="exports",state="delayed"}': 2,
        '{queue="exports",state="unacked"}': 1,
        '{queue="exports",state="dead"}': 4,
        '{queue="imports",state="ready"}': 0,
    }
    assert counted(metrics, "steadyworker_queue_consumers") == {'{queue="exports"}': 5}
    assert counted(metrics, "steadyworker_queue_oldest_ready_age_seconds") == {
        '{queue="exports"}': 61.5,
        '{queue="imports"}': 0,
    }
    assert counted(metrics, "steadyworker_queue_next_due_timestamp_seconds") == {'{queue="exports"}': 1795750882.5}


def test_the_process_that_measures_has_the_bytes_of_the_ledger(metrics: Metrics) -> None:
    """Another process, or a ledger that does not know its size, has no sample."""
    sizes: list[int | None] = [None, 40960]
    metrics.watch(["exports"], list, dict, lambda: sizes[0])
    assert counted(metrics, "steadyworker_ledger_bytes") == {}
    sizes.pop(0)
    assert counted(metrics, "steadyworker_ledger_bytes") == {"": 40960}


def test_the_counters_of_a_watched_queue_begin_with_zero(metrics: Metrics) -> None:
    """An alert on `increase` misses the first dead letter, if its series begins with 1."""
    metrics.watch(["exports"], list, dict)
    for name in (
        "runs_started",
        "retries",
        "dead_letters",
        "deliveries_lost",
        "jobs_taken_over",
        "messages_lost",
        "runs_fenced",
    ):
        assert set(counted(metrics, f"steadyworker_{name}_total").values()) == {0}, name
    begun = counted(metrics, "steadyworker_dead_letters_total")
    for reason in (*REJECTIONS, "failed", "rejected", "crashed", "interrupted"):
        assert f'{{queue="exports",reason="{reason}"}}' in begun


def test_a_call_of_the_ledger_is_measured_whether_it_answers_or_raises(metrics: Metrics, tmp_path: Path) -> None:
    clock = FakeClock()

    class Slow(SqliteLedger):
        def read(self, id: JobId) -> Row | None:
            clock.advance(0.2)
            return super().read(id)

        def purge(self) -> int:
            raise LedgerUnavailable("Expected a ledger, got none.")

    ledger = timed(Slow(tmp_path / "ledger.db", clock=clock, times=Times()), clock, metrics.ledger_call)
    for _ in range(2):
        assert ledger.read(JobId("n", "exports", "k", 0)) is None
    with pytest.raises(LedgerUnavailable):
        ledger.purge()
    assert ledger.url == f"sqlite:{tmp_path}/ledger.db", "what is no call is passed on"
    ledger.close()
    calls = counted(metrics, "steadyworker_ledger_call_duration_seconds_count")
    assert calls == {
        '{call="read",failed="false"}': 2,
        '{call="purge",failed="true"}': 1,
        '{call="close",failed="false"}': 1,
    }
    total = counted(metrics, "steadyworker_ledger_call_duration_seconds_sum")['{call="read",failed="false"}']
    assert total == pytest.approx(0.4)


def certificate_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = 20, "unable to get local issuer certificate"
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (exceptions.AMQPHeartbeatTimeout("no heartbeats in 20 s"), "heartbeat"),
        (exceptions.ConnectionClosedByBroker(320, "CONNECTION_FORCED - a test"), "closed_by_broker"),
        (exceptions.ConnectionBlockedTimeout(), "alarm"),
        (exceptions.StreamLostError("Stream connection lost: ConnectionResetError(104, 'Connection reset')"), "reset"),
        (ConnectionResetError(104, "Connection reset by peer"), "reset"),
        (BrokenPipeError(32, "Broken pipe"), "reset"),
        (TimeoutError(), "timeout"),
        (certificate_error(), "tls"),
        (ssl.SSLEOFError(), "tls"),
    ],
)
def test_the_reason_of_a_lost_connection_is_read_from_the_adapters_texts(error: Exception, reason: str) -> None:
    assert reason_of(str(rabbitmq_unavailable(error, "broker:5672"))) == reason
    assert reason in REASONS


def test_an_unknown_cause_is_a_reason_too_and_its_text_is_no_label() -> None:
    assert reason_of("the moon is full") == "other"
    assert reason_of(str(stomp_unavailable(Silent("nothing came for three heart-beats"), "b:61613"))) == "heartbeat"
    assert reason_of(str(stomp_unavailable(BrokerError("User name [a] or password is invalid."), "b"))) == "login"


def test_what_starts_nothing_is_counted_apart(metrics: Metrics) -> None:
    events: list[Event] = [
        DeliveryDeferred(**about(1), delay=30.0),
        DeliveryRejected(**about(1), reason="key-conflict"),
        Adopted(**about(1)),
        JobStarted(**about(1), attempt=1, why="claim"),
    ]
    for event in events:
        metrics(event)
    unrun = [line for line in metrics.page("")[1].decode().splitlines() if "unrun_total{" in line]
    assert unrun == [
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
