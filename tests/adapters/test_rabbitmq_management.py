"""The management API can answer anything, or nothing: it is never more than a reason why something is not known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from steadyworker_rabbitmq.checks.management import ManagementApi, Unanswered
from steadyworker_rabbitmq.checks.queue_state import ExistingQueue

QUEUE = """{
    "type": "quorum", "durable": true, "arguments": {"x-queue-type": "quorum"}, "policy": "shop",
    "effective_policy_definition": {"consumer-timeout": 600000},
    "consumer_details": [{"consumer_timeout": 600000}, {"consumer_timeout": "undefined"}, {}]
}"""
SECRET = "s3cr3t-pässword"


class Server:
    """Answers each request as the test has set it, and remembers the paths and credentials."""

    def __init__(self) -> None:
        self.status, self.body, self.location = 200, QUEUE.encode(), ""
        self.seen: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.seen.append((self.path, self.headers["Authorization"]))
                self.send_response(server.status)
                if server.location:
                    self.send_header("Location", server.location)
                self.send_header("Content-Length", str(len(server.body)))
                self.end_headers()
                self.wfile.write(server.body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = False  # so that closing waits for them
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self._thread.join()
        self.http.server_close()


@pytest.fixture
def another() -> Iterator[Callable[[], Server]]:
    made: list[Server] = []

    def make() -> Server:
        made.append(Server())
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def server(another: Callable[[], Server]) -> Server:
    return another()


def at(url: str) -> ManagementApi:
    return ManagementApi(url, "shop", SECRET, "a/b", within=0.5)


def unanswered(management: ManagementApi) -> str:
    with pytest.raises(Unanswered) as raised:
        management.queue("exports")
    chain = f"{raised.value!r} {raised.value.__cause__!r} {management!r}"
    assert SECRET not in chain
    return str(raised.value)


def test_a_queue_is_reported_with_what_policies_add(server: Server) -> None:
    assert at(f"{server.url}/rabbit").queue("ex ports/#é") == ExistingQueue(
        "ex ports/#é",
        arguments={"x-queue-type": "quorum"},
        policy={"consumer-timeout": 600_000},
        policy_name="shop",
        type="quorum",
        consumer_timeout=600_000,
    )
    assert [path for path, _ in server.seen] == ["/rabbit/api/queues/a%2Fb/ex%20ports%2F%23%C3%A9"]


def test_lists_in_arguments_and_policies_are_passed_on(server: Server) -> None:
    server.body = b"""{"type": "classic", "arguments": {"x-list": [1, {"a": null}]}, "auto_delete": true,
        "effective_policy_definition": {"ha-params": ["a@b"], "expires": 60000}}"""
    queue = at(server.url).queue("exports")
    assert queue is not None
    assert queue.arguments == {"x-list": [1, {"a": None}]}
    assert queue.policy == {"ha-params": ["a@b"], "expires": 60_000}
    assert queue.number("expires") == 60_000
    assert queue.auto_delete


@pytest.mark.parametrize(
    ("body", "policy"),
    [
        (b'{"arguments": {}}', None),
        (b'{"arguments": {}, "effective_policy_definition": null}', {}),
        (b'{"arguments": {}, "effective_policy_definition": []}', {}),
    ],
)
def test_a_policy_that_is_not_reported_is_unknown_and_not_none(
    server: Server, body: bytes, policy: dict[str, int] | None
) -> None:
    server.body = body
    queue = at(server.url).queue("exports")
    assert queue is not None
    assert queue.policy == policy


def test_a_queue_that_it_does_not_know_is_none(server: Server) -> None:
    server.status, server.body = 404, b""
    assert at(server.url).queue("exports") is None


@pytest.mark.parametrize(
    ("status", "reason"),
    [(401, "'shop' may not read"), (403, "HTTP 403"), (503, "responded with HTTP 503"), (204, "HTTP 204")],
)
def test_a_refusal_is_a_reason(server: Server, status: int, reason: str) -> None:
    server.status, server.body = status, b""
    assert reason in unanswered(at(server.url))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"arguments": 5}',
        b'{"arguments": {}, "consumer_details": [5]}',
        b"[" * 100_000,
    ],
)
def test_an_answer_that_makes_no_sense_is_a_reason(server: Server, body: bytes) -> None:
    server.body = body
    assert server.url in unanswered(at(server.url))


def test_credentials_go_nowhere_else(
    server: Server, another: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where a redirection points, nor through a proxy of the environment."""
    elsewhere = another()
    monkeypatch.setenv("http_proxy", elsewhere.url)
    server.status, server.location = 302, f"{elsewhere.url}/api/queues/a%2Fb/exports"
    assert "HTTP 302" in unanswered(at(server.url))
    assert len(server.seen) == 1
    assert elsewhere.seen == []


def test_nobody_there_is_a_reason(server: Server) -> None:
    server.close()
    assert "does not respond" in unanswered(at(server.url))


@pytest.mark.parametrize("part", ["head", "body"])
def test_an_answer_that_trickles_is_waited_for_no_longer_than_the_limit(server: Server, part: str) -> None:
    """Each byte is in time, and the answer would take a minute."""
    over = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(QUEUE), QUEUE.encode())
        rest = answer if part == "head" else QUEUE.encode()
        handler.wfile.write(answer.removesuffix(rest))
        try:
            for byte in rest:
                if over.wait(0.2):
                    return
                handler.wfile.write(bytes([byte]))
        except OSError:
            return

    server.http.RequestHandlerClass.do_GET = trickle  # type: ignore[attr-defined]
    before = time.monotonic()
    reason = unanswered(at(server.url))
    over.set()
    assert "does not respond (timed out)" in reason
    assert time.monotonic() - before < 5


def test_a_silent_server_is_waited_for_no_longer_than_the_limit(server: Server) -> None:
    release = threading.Event()
    server.http.RequestHandlerClass.do_GET = lambda _: release.wait(20)  # type: ignore[attr-defined]
    assert "does not respond (timed out)" in unanswered(at(server.url))
    release.set()
