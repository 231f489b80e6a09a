"""The examples' page in a real browser, at a server that fails for a while; and the FastAPI application, which starts twice."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import pytest

from tests.conftest import Eventually
from tests.dashboard.browser import Browser
from tests.examples.conftest import EXAMPLES

PAGE = EXAMPLES / "web_page.html"
RUNNING = {"key": "k", "state": "running", "percent": 40.0, "text": "Your export is 40 % done.", "ended": False}
DONE = {"key": "k", "state": "done", "percent": 100.0, "text": "Your export is ready.", "ended": True}


class Replies(BaseHTTPRequestHandler):
    """Serves the page, and then these replies, each a status and a body; the last one again and again."""

    script: list[tuple[int, str]]

    def do_GET(self) -> None:
        if self.path == "/":
            return self._reply(200, PAGE.read_text())
        return self._reply(*(self.script.pop(0) if len(self.script) > 1 else self.script[0]))

    def do_POST(self) -> None:
        self._reply(202, json.dumps({"key": "k"}))

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""

    def _reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def served(*script: tuple[int, str]) -> Iterator[str]:
    handler = type("Script", (Replies,), {"script": list(script)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_the_page_asks_again_after_an_error(eventually: Eventually) -> None:
    failed = (500, "psycopg.OperationalError: no connection to db-3")
    with served((200, json.dumps(RUNNING)), failed, failed, (200, json.dumps(DONE))) as url, Browser() as browser:
        browser.call("Page.navigate", url=url)
        eventually(lambda: browser.run("document.readyState === 'complete' && !!document.getElementById('start')"))
        browser.run("document.getElementById('start').requestSubmit()")
        texts: set[str] = set()

        def text() -> str:
            texts.add(str(browser.run("document.getElementById('text').textContent")))
            return "Your export is ready." if "Your export is ready." in texts else ""

        eventually(text)
        assert "The server does not respond. This page tries again." in texts
        assert not any("psycopg" in each for each in texts)
        assert browser.run("document.getElementById('file').hidden") is False


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_the_page_shows_a_refusal_and_stops(eventually: Eventually) -> None:
    """After a logout, the page sent a request each second for ever."""
    refused, later = (403, "CSRF token of ann"), (429, "later")
    with served((200, json.dumps(RUNNING)), later, refused, (200, json.dumps(DONE))) as url, Browser() as browser:
        browser.call("Page.navigate", url=url)
        eventually(lambda: browser.run("document.readyState === 'complete' && !!document.getElementById('start')"))
        browser.run("document.getElementById('start').requestSubmit()")
        text = "document.getElementById('text').textContent"
        eventually(lambda: "refused" in str(browser.run(text)))
        assert browser.run(text) == "The server refused the request (403). Load the page again."
        assert browser.run("shown") is None
        browser.run("document.getElementById('start').requestSubmit()")
        eventually(lambda: browser.run(text) == "Your export is ready.")


def test_the_fastapi_application_starts_twice_in_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As with a test client for each test; each start has a client that is open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEADYWORKER_STATE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    app, exports = import_module("web_fastapi").app, import_module("web_exports")

    async def start() -> str:
        async with app.router.lifespan_context(app) as state:
            key: str = await state["client"].asend(exports.Exports, exports.ExportRequest("m"), key="k")
            return key

    assert [asyncio.run(start()) for _ in range(2)] == ["k", "k"]
