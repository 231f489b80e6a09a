"""
The server of the page: uvicorn, with limits for slow clients and for connections.

uvicorn has no limit for the time in which a request arrives, so one client could keep every connection.
Here a connection ends if a request and its response are not complete in time, and further connections are refused.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from steadyworker.errors import ConfigError

WITHIN = 30.0
"""Seconds for one request and its response; a ledger responds within 10 s."""

MOST_CONNECTIONS = 500
IDLE = 5
"""Seconds for which a connection waits for its next request."""

_LARGEST_HEAD = 16 << 10
_BACKLOG = 128


class TimedProtocol(H11Protocol):
    """One connection, with a limit for each request."""

    within = WITHIN
    most = MOST_CONNECTIONS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._late: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
            return
        self._begin_request()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._begin_request()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    def _begin_request(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(self.within, self.transport.abort)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise ConfigError if the address is in use, or does not exist."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        # `create_server` adds the address to the system's text.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ConfigError(
            f"Expected to listen on {host}, port {port}, got: {reason}: choose another --port or --host."
        ) from error


def server(app: Any, root_path: str = "") -> uvicorn.Server:
    """Return the server of the application below a path; `run(sockets=[…])` serves until a signal."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http=TimedProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",  # any client can cause a warning
            access_log=False,
            server_header=False,
            proxy_headers=False,
            root_path=root_path,
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
        )
    )
