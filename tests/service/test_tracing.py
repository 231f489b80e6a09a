"""The spans of whole worker processes: the worker process ends the span of a run, however its handler ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from steadyworker.ledger.base import State
from tests.examples.pages import Page
from tests.support.stage import Stage

SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LINK = ("0x0af7651916cd43dd8448eb211c80319c", "0xb7ad6b7169203331")
TRACED = "tests.service.traced:Traced"

Span = dict[str, Any]


def spans_of(stage: Stage, name: str) -> list[Span]:
    """Return the exported spans with this name, in the order of their ends."""
    return [span for span in map(json.loads, stage.lines("spans")) if span["name"] == name]


def links(span: Span) -> list[tuple[str, str]]:
    return [(link["context"]["trace_id"], link["context"]["span_id"]) for link in span["links"]]


@pytest.mark.parametrize(
    ("target", "queue", "first", "outcome", "failure"),
    [
        (TRACED, "traced", "dies", "crashed", "killed"),
        (TRACED, "traced", "fails", "failed", "ValueError"),
        (f"{TRACED}InThreads", "traced-in-threads", "fails", "failed", "ValueError"),
    ],
)
def test_each_run_of_a_job_has_a_trace_with_the_spans_of_its_handler(
    stage: Stage, target: str, queue: str, first: str, outcome: str, failure: str
) -> None:
    stage.send(queue, {"first": first}, headers={"traceparent": SENDER})
    process = stage.command("run", target, max_jobs=2)
    process.ended(0)
    runs, starts, pages = (spans_of(stage, name) for name in (f"process {queue}", f"start {queue}", "read the pages"))
    found = [run["attributes"] for run in runs]
    assert [each["steadyworker.outcome"] for each in found] == [outcome, "done"]
    assert [each.get("error.type") for each in found] == [failure, None]
    assert [run["status"] for run in runs] == [{"status_code": "ERROR"}, {"status_code": "UNSET"}]
    assert {each["messaging.system"] for each in found} == {"steadyworker"}
    for own in (starts, pages):
        assert [(span["context"]["trace_id"], span["parent_id"]) for span in own] == [
            (run["context"]["trace_id"], run["context"]["span_id"]) for run in runs
        ]
    assert [links(run) for run in runs] == [[LINK], [LINK]]
    assert len({run["context"]["trace_id"] for run in runs}) == 2
    assert "hunter2" not in "".join(stage.lines("spans"))


def test_a_run_whose_worker_process_dies_leaves_the_span_of_its_start(stage: Stage) -> None:
    stage.send("traced", {"first": "waits"}, headers={"traceparent": SENDER})
    lost = stage.worker(TRACED).started()
    stage.notes("began", 1)
    lost.kill()
    stage.worker(TRACED).started()
    row = stage.reaches("traced", State.DONE)
    first, second = spans_of(stage, "start traced")
    assert (first["attributes"]["steadyworker.why"], second["attributes"]["steadyworker.why"]) == ("new", "taken over")
    (run,) = spans_of(stage, "process traced")
    assert run["attributes"]["steadyworker.fence"] == row.fence > first["attributes"]["steadyworker.fence"]
    assert run["context"]["span_id"] == second["parent_id"]
    assert links(run) == [LINK]


def test_an_unknown_propagator_harms_no_job(stage: Stage) -> None:
    stage.send("traced", {"first": ""})
    process = stage.worker(TRACED, env={"OTEL_PROPAGATORS": "pigeons"}, max_jobs=1)
    process.ended(0)
    (line,) = process.lines("tracing_failed")
    assert (line["level"], line["explain"]) == ("error", "steadyworker.tracing-failed")
    assert "Propagator pigeons not found" in line["exception"]
    assert "OTEL_PROPAGATORS" in line["remedy"]
    assert [span["parent_id"] for span in spans_of(stage, "read the pages")] == [None]
    assert stage.reaches("traced", State.DONE).counters.attempts == 0


class Collector(ThreadingHTTPServer):
    """A server that receives spans by OTLP over HTTP: for each span, the name of its service and its own."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receives)
        self.found: list[tuple[str, str]] = []


class _Receives(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            (service,) = [
                each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
            ]
            names = [(service, span.name) for scope in resource.scope_spans for span in scope.spans]
            assert isinstance(self.server, Collector)
            self.server.found += names
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_example_of_the_page_exports_the_spans_of_both_processes(stage: Stage, collector: Collector) -> None:
    (stage.folder / "tracing.py").write_text(Page("deploy/README.md").files()["tracing.py"])
    exports = Page("README.md").files()["exports.py"]
    own = "trace.get_tracer('exports').start_span('imported').end()"
    (stage.folder / "exports.py").write_text(f"import tracing\nfrom opentelemetry import trace\n{own}\n{exports}")
    stage.send("payment-exports", {"merchant": "m-17", "pages": 1})
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    names = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_SERVICE_NAME": "exports"}
    process = stage.worker("exports:PaymentExports", env=names, max_jobs=1)
    process.ended(0)
    spans = ["imported", "imported", "process payment-exports", "start payment-exports"]
    assert sorted(collector.found) == [("exports", name) for name in spans]
