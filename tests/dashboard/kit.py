"""The page of a seeded ledger: as an ASGI application that a test calls, and as a server for a browser."""

from __future__ import annotations

import asyncio
import html
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from steadyworker.dashboard.serving import listen, server


@dataclass(frozen=True)
class Answered:
    """A response: its status, its headers in lower case, and its text."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def words(self) -> str:
        """The text that a reader sees, on one line."""
        bare = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", self.text, flags=re.DOTALL)
        return " ".join(html.unescape(bare).split())


def request(
    app: ASGIApp,
    path: str = "/",
    *,
    method: str = "GET",
    host: str | None = "localhost:8080",
    client: str | None = "127.0.0.1",
    root_path: str = "",
    body: bytes = b"",
    **headers: str,
) -> Answered:
    """Send one request to the application; a header's name has `_` in place of `-`."""
    sent: list[Any] = []
    path, _, query = path.partition("?")
    named = [(name.replace("_", "-").encode(), text.encode("latin-1")) for name, text in headers.items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": root_path + path,
        "raw_path": (root_path + path).encode(),
        "query_string": query.encode(),
        "root_path": root_path,
        "headers": [*([(b"host", host.encode())] if host is not None else []), *named],
        "client": None if client is None else (client, 1),
        "server": ("127.0.0.1", 8080),
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def whole() -> None:
        await app(scope, receive, send)

    asyncio.run(whole())
    start, *bodies = sent
    answered = {name.decode(): text.decode() for name, text in start["headers"]}
    return Answered(start["status"], answered, b"".join(body.get("body", b"") for body in bodies).decode())


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Serve the application on a free port of loopback, and yield its address."""
    with listen("127.0.0.1", 0) as listener:
        serving = server(app)
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            serving.should_exit = True
            thread.join()
