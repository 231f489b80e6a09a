"""
Serves `/livez`, `/readyz` and `/metrics` over HTTP.

`/livez` returns 200 while the process is alive; 503 means that the platform should restart the process.
`/readyz` returns 200 while the process takes messages, else 503.
Each 503 has its reasons in the body: as text, or as JSON if the request accepts JSON and no text.
`/metrics` returns the page of `steadyworker.telemetry.metrics`, or 404 if the caller passes no page.

The server allows 5 s and 8 KiB for a request, and 16 requests at a time, so that probes cannot overload the process.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any, cast

from steadyworker.clock import Clock, SystemClock
from steadyworker.errors import ConfigError
from steadyworker.telemetry.metrics import Page

_HEAD_BYTES = 8 << 10
_WITHIN = 5.0
_AT_A_TIME = 16
_LOOK_EVERY = 0.2  # seconds between two checks for a stop


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The reasons why the process is not alive, and why it is not ready; a tuple is empty if there are no reasons."""

    unlive: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()


class HealthServer:
    """
    HTTP server for the probes, on its own thread.

    Args:
        address: `host:port`; port 0 takes a free port.
        snapshot: A function that the server calls for each probe, from any thread; it must return at once.
        metrics: The page at `/metrics`; without it that path returns 404.

    Raises:
        ConfigError: The server cannot listen on this address.
    """

    def __init__(
        self,
        address: str,
        snapshot: Callable[[], Snapshot],
        clock: Clock | None = None,
        metrics: Page | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        try:
            self._server = _Server(host.strip("[]"), int(port), snapshot, clock or SystemClock(), metrics)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"Expected to listen on {address} for --health, got: {error}. Choose another address, or leave --health out.",
                id="config.health-address",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_EVERY,), name="health", daemon=True
        )

    @property
    def address(self) -> str:
        """The address on which the server listens, as `host:port`."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def start(self) -> None:
        """Start to serve probes."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; it can be called twice, and before `start`."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 64
    daemon_threads = True
    block_on_close = False  # a probe that hangs must not delay the stop

    def __init__(
        self, host: str, port: int, snapshot: Callable[[], Snapshot], clock: Clock, metrics: Page | None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.snapshot = snapshot
        self.metrics = metrics
        self.clock = clock
        self._places = threading.BoundedSemaphore(_AT_A_TIME)
        super().__init__((host, port), _Probe)

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of the host name, which can wait for a name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error of a client that has disconnected."""


class _Probe(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # one request for each connection

    @property
    def _ours(self) -> _Server:
        return cast(_Server, self.server)

    def handle(self) -> None:
        """Read the head of one request within the limits of size and time, then handle the request."""
        if head := self._head():
            self.rfile = BytesIO(head)
            self.handle_one_request()

    def do_GET(self) -> None:
        """Respond to a probe."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._count()
            return
        if path not in ("/livez", "/readyz"):
            self._say(HTTPStatus.NOT_FOUND, ("expected /livez, /readyz or /metrics",))
            return
        try:
            snapshot = self._ours.snapshot()
        except Exception as error:  # noqa: BLE001 - the client gets any error, and the server continues
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, (f"no snapshot: {type(error).__name__}",))
            return
        reasons = snapshot.unlive if path == "/livez" else (*snapshot.unlive, *snapshot.unready)
        self._say(HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, reasons)

    do_HEAD = do_GET  # noqa: N815 - the stdlib's name

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error if the request is not HTTP, or not GET or HEAD; the error repeats no text of the request."""
        del message, explain
        # The base class responds with 501 to a method that it does not find.
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._say(status, ("expected GET or HEAD of /livez or /readyz",))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because probes arrive every few seconds."""

    def _count(self) -> None:
        if self._ours.metrics is None:
            self._say(
                HTTPStatus.NOT_FOUND, ("no metrics: install prometheus-client (pip install 'steadyworker[metrics]')",)
            )
        else:
            content_type, body = self._ours.metrics(self.headers.get("Accept", ""))
            self._send(HTTPStatus.OK, content_type, body)

    def _head(self) -> bytes:
        deadline = self._ours.clock.monotonic() + _WITHIN
        head = b""
        with suppress(OSError):
            while b"\r\n\r\n" not in head and b"\n\n" not in head:
                left = deadline - self._ours.clock.monotonic()
                if left <= 0 or len(head) > _HEAD_BYTES:
                    return b""
                self.connection.settimeout(left)
                if not (more := self.connection.recv(_HEAD_BYTES)):
                    return b""
                head += more
            self.connection.settimeout(_WITHIN)
            return head
        return b""

    def _say(self, status: HTTPStatus, reasons: tuple[str, ...]) -> None:
        accepts = self.headers.get("Accept", "") if hasattr(self, "headers") else ""
        if "json" in accepts and "text" not in accepts:
            kind, body = "application/json", json.dumps({"ok": status == HTTPStatus.OK, "reasons": reasons})
        else:
            kind, body = "text/plain; charset=utf-8", "\n".join(reasons) or "ok"
        self._send(status, kind, f"{body}\n".encode())

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        # `send_response_only` sends no Server header and no Date header.
        self.send_response_only(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
