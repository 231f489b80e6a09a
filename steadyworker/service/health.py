"""
Serves `/livez`, `/readyz` and `/metrics` over HTTP.

`/livez` returns 200 while the process is alive.
A 503 of `/livez` means that the platform should restart the process.
`/readyz` returns 200 while the process accepts messages, or would accept them without the pause of a queue, otherwise 503.
Each 503 has its reasons in the body, and a 200 of `/readyz` names the pauses there.
The body is text, or JSON if the request accepts JSON and no text.
`/metrics` returns the page of `steadyworker.telemetry.metrics`, or 404 if the caller passes no page.
If the page or the snapshot fails, the response is 500 with the error's class.

One thread serves all connections, and never waits for a client, so slow clients do not delay a probe.
A client has 1 s to send the head of its request, and 5 s to read the response.
The head may have at most 8 KiB.
The server holds 64 connections.
For one more connection, the server drops the oldest connection whose client has not sent the head.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Any, cast

from steadyworker.errors import ConfigError
from steadyworker.service.watchdog import Snapshot
from steadyworker.telemetry.metrics import Page

_HEAD_BYTES = 8 << 10
_HEAD_WITHIN = 1.0
_READ_WITHIN = 5.0
_AT_A_TIME = 64


class HealthServer:
    """
    HTTP server for the probes, on its own thread.

    Args:
        address: `host:port`; port 0 chooses a free port.
        snapshot: A function that must return at once. The server's thread calls it for each probe.
        metrics: The page at `/metrics`. Without a page, `/metrics` returns 404.

    Raises:
        ConfigError: The server cannot listen on this address.
    """

    def __init__(self, address: str, snapshot: Callable[[], Snapshot], metrics: Page | None = None) -> None:
        self.snapshot = snapshot
        self.metrics = metrics
        self.connections: dict[_ProbeConnection, None] = {}
        host, _, port = address.rpartition(":")
        try:
            self._socket = _listening(host.strip("[]"), int(port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"Expected to listen on {address} for --health, got: {error}. Choose another address, or leave --health out.",
                id="config.health-address",
            ) from error
        place = self._socket.getsockname()
        self.address = f"[{place[0]}]:{place[1]}" if ":" in place[0] else f"{place[0]}:{place[1]}"
        """The address on which the server listens, as `host:port`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to serve probes."""
        self._loop = loop = asyncio.new_event_loop()
        # Ignore errors of clients, and of a process without descriptors.
        loop.set_exception_handler(lambda _loop, _context: None)
        loop.run_until_complete(loop.create_server(lambda: _ProbeConnection(self, loop), sock=self._socket))
        self._thread = threading.Thread(target=self._run, args=(loop,), name="health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; callable twice, and before `start`."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None
        self._socket.close()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        for connection in list(self.connections):
            connection.drop()
        loop.run_until_complete(asyncio.sleep(0))  # the loop closes the socket of a dropped connection in its next turn


def _listening(host: str, port: int) -> socket.socket:
    """
    Return a listening socket.

    Unlike `http.server`, this function does not ask a name server for the host's full name.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_AT_A_TIME)
    except BaseException:
        listener.close()
        raise
    return listener


class _ProbeConnection(asyncio.Protocol):
    """One connection: it collects the head of a request, sends the response, and closes."""

    def __init__(self, server: HealthServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._head = b""
        self._served = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._limit = self._loop.call_later(_HEAD_WITHIN, self.drop)
        others = self._server.connections
        if len(others) >= _AT_A_TIME:
            next((other for other in others if not other._served), next(iter(others))).drop()  # noqa: SLF001 - one of its own class
        others[self] = None

    def data_received(self, data: bytes) -> None:
        if self._served:
            return
        self._head += data
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._served = True
            self._limit.cancel()
            self._limit = self._loop.call_later(_READ_WITHIN, self.drop)
            self._transport.write(_Probe(self._head, self._server).response())
            self._transport.close()
        elif len(self._head) > _HEAD_BYTES:
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._limit.cancel()
        self._server.connections.pop(self, None)

    def drop(self) -> None:
        """Close the connection at once."""
        self._transport.abort()
        self._server.connections.pop(self, None)


class _Probe(BaseHTTPRequestHandler):
    """The response to one request, whose head is complete."""

    protocol_version = "HTTP/1.0"  # one request for each connection

    def __init__(self, head: bytes, server: HealthServer) -> None:
        # The base class would read from a socket, and write into it.
        self._ours = server
        self._response = BytesIO()
        self.rfile, self.wfile = BytesIO(head), self._response
        self.client_address = ("", 0)

    def response(self) -> bytes:
        """
        Return the whole response.

        The response is empty if the request is not HTTP and has no version.
        """
        self.handle_one_request()
        return self._response.getvalue()

    def do_GET(self) -> None:
        """Respond to a probe."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._count()
            return
        if path not in ("/livez", "/readyz"):
            self._respond(HTTPStatus.NOT_FOUND, ("expected /livez, /readyz or /metrics",))
            return
        try:
            snapshot = self._ours.snapshot()
        except Exception as error:  # noqa: BLE001 - the client gets any error, and the server continues
            self._respond(HTTPStatus.INTERNAL_SERVER_ERROR, (f"no snapshot: {type(error).__name__}",))
            return
        reasons = snapshot.unlive if path == "/livez" else (*snapshot.unlive, *snapshot.unready)
        notes = snapshot.pauses if path == "/readyz" else ()
        self._respond(HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, (*reasons, *notes))

    do_HEAD = do_GET  # noqa: N815 - the stdlib's name

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """
        Send an error if the request is not HTTP, or not GET or HEAD.

        The error repeats no text of the request.
        """
        del message, explain
        # The base class responds with 501 to a method that it does not find.
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._respond(status, ("expected GET or HEAD of /livez or /readyz",))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because probes arrive every few seconds."""

    def _count(self) -> None:
        if self._ours.metrics is None:
            self._respond(
                HTTPStatus.NOT_FOUND, ("no metrics: install prometheus-client (pip install 'steadyworker[metrics]')",)
            )
            return
        try:
            content_type, body = self._ours.metrics(self.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001 - the client gets any error, and the server continues
            self._respond(HTTPStatus.INTERNAL_SERVER_ERROR, (f"no metrics: {type(error).__name__}",))
            return
        self._send(HTTPStatus.OK, content_type, body)

    def _respond(self, status: HTTPStatus, reasons: tuple[str, ...]) -> None:
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
