"""The example that keeps a pod's deletion cost, at an API server that is none."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import trustme

from steadyworker.events import Fenced, JobSettled, JobStarted
from tests.conftest import Eventually

EXAMPLE = run_path(str(Path(__file__).parents[2] / "examples/pod_deletion_cost.py"))
ANNOTATION, HIGHEST, DeletionCost = (EXAMPLE[name] for name in ("ANNOTATION", "HIGHEST", "DeletionCost"))
NOON = 1_795_000_000.0


class ApiServer:
    """An API server that knows one pod; it can refuse, and keep its callers waiting."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.status = 200
        self.open = threading.Event()
        self.open.set()
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / "ca.crt"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        ours = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                ours.asked.append((self.command, self.path, dict(self.headers), body))
                ours.open.wait(30)
                self.send_response(ours.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Be quiet."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.http.server_address[1]}"

    @property
    def costs(self) -> list[str]:
        return [body["metadata"]["annotations"][ANNOTATION] for _, _, _, body in self.asked]

    @property
    def protected(self) -> list[tuple[str, str]]:
        """The annotations for the cluster autoscaler and Karpenter, each time."""
        annotations = [body["metadata"]["annotations"] for _, _, _, body in self.asked]
        return [
            (each["cluster-autoscaler.kubernetes.io/safe-to-evict"], each["karpenter.sh/do-not-disrupt"])
            for each in annotations
        ]


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "namespace").write_text("shop")
    (tmp_path / "token").write_text("first-token\n")
    return tmp_path


@pytest.fixture
def server(account: Path) -> Iterator[ApiServer]:
    made = ApiServer(account)
    yield made
    made.open.set()
    made.http.shutdown()
    made.http.server_close()


def about(fence: int, at: float = NOON) -> dict[str, Any]:
    return {"key": f"k-{fence}", "queue": "exports", "fence": fence, "at": at}


def started(fence: int, at: float) -> JobStarted:
    return JobStarted(**about(fence, at), attempt=1, why="new")


def settled(fence: int) -> JobSettled:
    counters: dict[str, Any] = dict.fromkeys(("attempts", "crashes", "losses", "interruptions"), 0)
    how: dict[str, Any] = {"settlement": "ack", "outcome": "done", "reason": "", "settled": "confirmed", "seconds": 1.0}
    return JobSettled(**about(fence), **counters, **how)


@pytest.fixture
def costs(server: ApiServer, eventually: Eventually) -> Callable[[list[int]], None]:
    """Wait until these costs were written, in this order."""

    def wait(expected: list[int]) -> None:
        eventually(lambda: server.costs == [str(each) for each in expected])

    return wait


def test_the_pod_whose_job_is_oldest_costs_most(
    server: ApiServer, account: Path, costs: Callable[[list[int]], None]
) -> None:
    listener = DeletionCost(server.url, "exports-7f", account)
    costs([0])
    listener(started(1, NOON))
    costs([0, HIGHEST - int(NOON)])
    listener(started(2, NOON + 60))  # the oldest job is the same: nothing to write
    listener(settled(1))
    costs([0, HIGHEST - int(NOON), HIGHEST - int(NOON) - 60])
    listener(Fenced(**about(2), write="renew"))
    costs([0, HIGHEST - int(NOON), HIGHEST - int(NOON) - 60, 0])
    idle, busy = ("true", "false"), ("false", "true")
    assert server.protected == [idle, busy, busy, idle], "the nodes of idle pods can be emptied"
    method, path, headers, _ = server.asked[0]
    assert (method, path) == ("PATCH", "/api/v1/namespaces/shop/pods/exports-7f")
    assert headers["Authorization"] == "Bearer first-token"
    assert headers["Content-Type"] == "application/merge-patch+json"


def test_a_renewed_token_is_used(server: ApiServer, account: Path, costs: Callable[[list[int]], None]) -> None:
    listener = DeletionCost(server.url, "exports-7f", account)
    costs([0])
    listener(started(1, NOON))
    costs([0, HIGHEST - int(NOON)])
    (account / "token").write_text("second-token")
    listener(settled(1))
    costs([0, HIGHEST - int(NOON), 0])
    assert server.asked[2][2]["Authorization"] == "Bearer second-token"


def test_a_refusal_harms_no_job_and_the_next_change_is_written(
    server: ApiServer,
    account: Path,
    costs: Callable[[list[int]], None],
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
) -> None:
    server.status = 403
    listener = DeletionCost(server.url, "exports-7f", account)
    costs([0])
    listener(started(1, NOON))
    eventually(lambda: "403" in caplog.text)
    assert "first-token" not in caplog.text
    costs([0, HIGHEST - int(NOON)])
    server.status = 200
    listener(started(2, NOON - 60))
    costs([0, HIGHEST - int(NOON), HIGHEST - int(NOON) + 60])


@pytest.mark.parametrize("others", [0, 48])
def test_no_job_waits_for_a_server_that_does_not_answer(
    server: ApiServer, account: Path, costs: Callable[[list[int]], None], others: int
) -> None:
    """The calls return while the server still holds the first request; then only the last state is written."""
    server.open.clear()
    listener = DeletionCost(server.url, "exports-7f", account)
    costs([0])
    listener(started(1, NOON))
    costs([0, HIGHEST - int(NOON)])
    for fence in range(2, 2 + others):
        listener(started(fence, NOON))
        listener(settled(fence))
    listener(settled(1))
    server.open.set()
    costs([0, HIGHEST - int(NOON), 0])


def test_a_server_with_another_certificate_gets_no_token(
    server: ApiServer, account: Path, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    trustme.CA().cert_pem.write_to_path(str(account / "ca.crt"))
    DeletionCost(server.url, "exports-7f", account)(started(1, NOON))
    eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text)
    assert server.asked == []
