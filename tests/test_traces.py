"""The spans of runs: what they have, what they lack, and how a trace goes on through headers, retries and handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from steadyworker.adapter import Capabilities, QueueSpec, Settings
from steadyworker.backends.connections import JobQueue
from steadyworker.backends.registry import open_adapter
from steadyworker.client import message
from steadyworker.delivery import UID, Target
from steadyworker.ledger.base import JobId, Renewal
from steadyworker.link import Task
from steadyworker.outcome import Crashed, Done, Failed, Interrupted, Outcome, Rejected, Snoozed
from steadyworker.runner.state import Cancelled, Renewed
from steadyworker.telemetry.run_span import begin_run
from steadyworker.telemetry.traces import continued
from steadyworker.testing.plugin import MakeHarness
from tests.runner.bench import NAMESPACE, Bench, PlayedAdapter
from tests.runner.kit import QUEUE, worker

SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, SPAN = (int(part, 16) for part in SENDER.split("-")[1:3])

Exporter = InMemorySpanExporter


def provider(*processors: SpanProcessor, **more: Any) -> TracerProvider:
    made = TracerProvider(shutdown_on_exit=False, **more)
    for each in processors:
        made.add_span_processor(each)
    return made


def traces(monkeypatch: pytest.MonkeyPatch, made: TracerProvider) -> None:
    """Let this provider be the one of the process; the API lets a process set one only once."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exporter]:
    exporter = Exporter()
    made = provider(SimpleSpanProcessor(exporter))
    traces(monkeypatch, made)
    yield exporter
    made.shutdown()


@pytest.fixture
def bench() -> Bench:
    return Bench(adapter=PlayedAdapter(Capabilities(system="pigeons")))


def named(spans: Exporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == f"{name} {QUEUE}"]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def context_of(span: ReadableSpan) -> trace.SpanContext:
    context: Any = span.context
    assert isinstance(context, trace.SpanContext)
    return context


def present(bench: Bench) -> Task:
    task = bench.slots[0].task
    assert task is not None
    return task


# --- One span a run -------------------------------------------------------------------------------------------------------


def test_a_run_has_one_span_and_a_span_of_its_start_that_is_exported_at_once(bench: Bench, spans: Exporter) -> None:
    bench.deliver("k", traceparent=SENDER)
    (start,) = spans.get_finished_spans()
    about = {
        "messaging.destination.name": QUEUE,
        "steadyworker.fence": present(bench).fence,
        "steadyworker.attempt": 1,
        "steadyworker.why": "new",
    }
    assert (start.name, start.kind, attributes(start)) == (f"start {QUEUE}", SpanKind.INTERNAL, about)

    bench.ended(0, Done())
    _, run = spans.get_finished_spans()
    assert (run.name, run.kind, run.status.status_code) == (f"process {QUEUE}", SpanKind.CONSUMER, StatusCode.UNSET)
    assert attributes(run) == about | {
        "messaging.system": "pigeons",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "steadyworker.outcome": "done",
    }
    assert (run.parent, start.parent) == (None, run.context)
    assert links(run) == [(TRACE, SPAN)]
    assert context_of(run).trace_id != TRACE


@pytest.mark.parametrize(
    ("outcome", "name", "failure"),
    [
        (Failed("ValueError: no such merchant", "ValueError"), "failed", "ValueError"),
        (Failed("time-limit"), "failed", "time-limit"),
        (Failed("nothing ran: handle returned a generator"), "failed", "failed"),
        (Rejected("no such merchant"), "rejected", "rejected"),
        (Rejected("bad-payload: expected an object", "BadPayload"), "rejected", "BadPayload"),
        (Crashed("SIGKILL"), "crashed", "killed"),
        (Crashed("memory-limit: 200 MiB"), "crashed", "memory-limit"),
        (Failed("the bank is closed", "Retry", 60.0, planned=True), "retry", None),
        (Snoozed(60.0), "snoozed", None),
        (Interrupted(), "interrupted", None),
    ],
    ids=str,
)
def test_only_a_failure_is_an_error(
    bench: Bench, spans: Exporter, outcome: Outcome, name: str, failure: str | None
) -> None:
    bench.deliver("k")
    bench.ended(0, outcome)
    (run,) = named(spans, "process")
    found = attributes(run)
    assert (found["steadyworker.outcome"], found.get("error.type")) == (name, failure)
    assert run.status.status_code is (StatusCode.UNSET if failure is None else StatusCode.ERROR)
    assert (run.status.description, run.events) == (None, ())


def test_a_cancelled_run_is_no_error_and_a_job_that_never_starts_has_no_span(bench: Bench, spans: Exporter) -> None:
    bench.deliver("k")
    id = JobId(NAMESPACE, QUEUE, "k")
    bench.real.cancel(id, "no longer needed")
    row = bench.real.read(id)
    assert row is not None
    bench.handle(Cancelled({row.uid: "no longer needed"}))
    bench.ended(0, Rejected("cancelled"))
    (run,) = named(spans, "process")
    assert attributes(run)["steadyworker.outcome"] == "cancelled"
    assert run.status.status_code is StatusCode.UNSET

    bench.real.cancel(JobId(NAMESPACE, QUEUE, "before"), "not at all")
    bench.deliver("before")
    assert len(spans.get_finished_spans()) == 2


def test_the_span_of_a_run_whose_lease_another_run_has_is_an_error(bench: Bench, spans: Exporter) -> None:
    bench.deliver("k")
    row = bench.real.read(JobId(NAMESPACE, QUEUE, "k"))
    assert row is not None
    bench.handle(Renewed(bench.clock.boottime(), [(row.token, Renewal(granted=False))]))
    bench.ended(0, Interrupted())
    (run,) = named(spans, "process")
    found = attributes(run)
    assert (found["steadyworker.outcome"], found["error.type"]) == ("fenced", "fenced")
    assert run.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    ("url", "system"),
    [
        ("amqp://127.0.0.1:1/", "rabbitmq"),
        ("stomp://127.0.0.1:1", "activemq"),
        ("rocketmq://127.0.0.1:1", "rocketmq"),
        ("rocketmq+grpc://127.0.0.1:1", "rocketmq"),
        ("sqlite:{folder}/broker.db", "steadyworker"),
    ],
)
def test_each_broker_has_the_name_that_the_conventions_give_it(tmp_path: Path, url: str, system: str) -> None:
    queue = QueueSpec(QUEUE, f"{QUEUE}.dead")
    adapter = open_adapter(url.format(folder=tmp_path), queue, Settings())
    try:
        assert adapter.capabilities.system == system
    finally:
        adapter.stop(1)


# --- The way of a trace ----------------------------------------------------------------------------------------------------


def test_a_retry_and_its_dead_letter_carry_the_context_of_the_sender(bench: Bench, spans: Exporter) -> None:
    bench.deliver("k", traceparent=SENDER, tracestate="shop=1", baggage="tenant=north")
    bench.ended(0, Failed("boom", "ValueError"))
    (retry,) = bench.adapter.published
    bench.tick(3600)
    bench.deliver("k", **cast(dict[str, Any], retry.headers))
    bench.ended(0, Rejected("no such merchant"))
    _, letter = bench.adapter.published
    assert letter.to is Target.DEAD
    theirs = {"traceparent": SENDER, "tracestate": "shop=1", "baggage": "tenant=north"}
    for headers in (retry.headers, letter.headers):
        assert headers.items() >= theirs.items()
        assert UID in headers
    first, second = named(spans, "process")
    assert links(first) == links(second) == [(TRACE, SPAN)]
    assert context_of(first).trace_id != context_of(second).trace_id
    assert [attributes(run)["steadyworker.attempt"] for run in (first, second)] == [1, 2]
    assert attributes(second)["steadyworker.why"] == "after moved"


@pytest.mark.parametrize(
    "header", ["", "00-0-0-01", "x" * 5000, SENDER.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32)]
)
def test_a_sender_without_a_valid_context_has_no_link(bench: Bench, spans: Exporter, header: str) -> None:
    bench.deliver("k", traceparent=header)
    bench.ended(0, Done())
    (run,) = named(spans, "process")
    assert links(run) == []


def reads_the_pages(found: list[Any]) -> None:
    """Note the baggage, and the message that `Client.send` would send, within a span."""
    with trace.get_tracer("shop").start_as_current_span("read the pages"):
        sent = message(JobQueue("next", "next", None, Any), {}, key=None, delay=0, headers={})
        found.append((baggage.get_baggage("tenant"), sent))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_spans_of_a_handler_are_children_of_its_run(
    harness: MakeHarness, spans: Exporter, asynchronous: bool
) -> None:
    found: list[Any] = []

    def handle(_self: object, _job: Any) -> None:
        reads_the_pages(found)

    async def handle_later(_self: object, _job: Any) -> None:
        await asyncio.sleep(0)
        reads_the_pages(found)

    exports = worker(handle=handle_later if asynchronous else handle)
    h = harness(exports)
    h.wait(h.send(exports, {}, headers={"traceparent": SENDER, "baggage": "tenant=north"}))
    (run,) = named(spans, "process")
    (own,) = [span for span in spans.get_finished_spans() if span.name == "read the pages"]
    assert own.parent is not None
    assert (own.parent.span_id, context_of(own).trace_id) == (context_of(run).span_id, context_of(run).trace_id)
    ((tenant, sent),) = found
    assert tenant == "north"
    following = trace.get_current_span(propagate.extract(sent.headers)).get_span_context()
    assert following.span_id == context_of(own).span_id
    assert not trace.get_current_span().get_span_context().is_valid


def test_the_lines_of_a_traced_run_name_its_span_and_those_of_another_run_its_senders_trace(
    bench: Bench, spans: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.deliver("k", traceparent=SENDER)
    fields = present(bench).context()
    bench.ended(0, Done())
    (run,) = named(spans, "process")
    assert fields["trace_id"] == f"{context_of(run).trace_id:032x}"
    assert fields["span_id"] == f"{context_of(run).span_id:016x}"

    traces(monkeypatch, cast(Any, trace.NoOpTracerProvider()))
    bench.deliver("other", traceparent=SENDER)
    fields = present(bench).context()
    assert (fields["trace_id"], fields.get("span_id")) == (SENDER.split("-")[1], None)
    assert present(bench).trace == {}


def test_the_handler_of_a_run_that_is_not_sampled_exports_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, spans: Exporter
) -> None:
    exporting = trace.get_tracer_provider()
    traces(monkeypatch, provider(sampler=ALWAYS_OFF))
    bench.deliver("k")
    traces(monkeypatch, cast(Any, exporting))
    with continued(present(bench).trace), trace.get_tracer("shop").start_as_current_span("read the pages"):
        pass
    bench.ended(0, Done())
    assert spans.get_finished_spans() == ()


# --- The sender -------------------------------------------------------------------------------------------------------------


def headers_of(**given: str) -> dict[str, str]:
    return dict(message(JobQueue(QUEUE, QUEUE, None, Any), {}, key="k", delay=0, headers=given).headers)


def test_a_message_carries_the_active_span_and_baggage_of_its_sender(spans: Exporter) -> None:
    token = attach(baggage.set_baggage("tenant", "north"))
    try:
        assert headers_of() == {"sw-job-key": "k"}
        with trace.get_tracer("shop").start_as_current_span("order") as span:
            context = span.get_span_context()
            ours = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
            assert headers_of() == {"sw-job-key": "k", "traceparent": ours, "baggage": "tenant=north"}
            assert headers_of(traceparent=SENDER) == {"sw-job-key": "k", "traceparent": SENDER}
    finally:
        detach(token)


# --- No harm ------------------------------------------------------------------------------------------------------------------


def test_no_attribute_has_a_key_a_payload_a_header_or_a_text_of_an_error(bench: Bench, spans: Exporter) -> None:
    bench.deliver(
        "canary-key", b'"canary-body"', traceparent=SENDER, tenant="canary-header", baggage="a=canary-baggage"
    )
    bench.ended(0, Failed("ValueError: canary-text", "ValueError"))
    bench.deliver("canary-other")
    bench.ended(0, Crashed("canary-cause"))
    found = spans.get_finished_spans()
    assert len(found) == 4
    assert "canary" not in "".join(span.to_json() for span in found)


class Broken(SpanProcessor):
    """Raises where it is called."""

    def __init__(self, place: str) -> None:
        self.place = place

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.place == "start":
            raise LookupError("no room for a span")

    def on_end(self, span: ReadableSpan) -> None:
        if self.place == "end":
            raise LookupError("no room for a span")


@pytest.mark.parametrize(("place", "errors"), [("start", 1), ("end", 2)])
def test_a_span_processor_that_raises_harms_no_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str, errors: int
) -> None:
    """At the end, it raises for `start QUEUE` and for `process QUEUE`; so the run's span has an end."""
    traces(monkeypatch, provider(Broken(place)))
    bench.deliver("k")
    assert present(bench).trace == {}
    bench.ended(0, Done())
    assert bench.state("k") is not None
    assert [settled for settled, _ in bench.adapter.settled] == ["d1"]
    lines: list[Any] = [record.msg for record in caplog.records if record.levelno == logging.ERROR]
    assert [line["event"] for line in lines] == ["tracing_failed"] * errors
    assert lines[0]["explain"] == "steadyworker.tracing-failed"


def test_without_a_provider_a_run_has_no_span(bench: Bench) -> None:
    assert begin_run("pigeons", QUEUE, {"traceparent": SENDER}, {}) is None
    bench.deliver("k", traceparent=SENDER)
    assert present(bench).trace == {}
    bench.ended(0, Done())
