"""The recipes for alerts run in a real worker process, with a chat, a mail server and a Sentry of this test."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.examples.conftest import EXAMPLES

SENTRY = """
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

tags = {}
init = flush = lambda *_: None


@contextmanager
def new_scope():
    yield SimpleNamespace(set_tag=tags.__setitem__)


def capture_message(text, level):
    Path("sentry").write_text(f"{level} {tags['queue']} {tags['key']} {text}")
"""
TEXT = "reports: job may was given up: no template 'letter' (steadyworker dead show reports may)"


@contextmanager
def chat(received: list[str]) -> Iterator[str]:
    """A webhook that keeps what is posted."""

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Write no line."""

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()
        thread.join()


@contextmanager
def mail_server(received: list[str]) -> Iterator[int]:
    """An SMTP server for one mail."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw", newline="\r\n") as lines:

            def reply(text: str) -> None:
                lines.write(f"{text}\n")
                lines.flush()

            reply("220 mail")
            while (command := lines.readline().strip().upper()) != "QUIT":
                if command != "DATA":
                    reply("250 ok")
                    continue
                reply("354 go on")
                while (line := lines.readline().strip()) != ".":
                    received.append(line)
                reply("250 ok")
            reply("221 bye")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(20)


@pytest.mark.processes
def test_the_alerts_arrive_at_chat_mail_and_sentry(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "alerts.py", tmp_path)
    (tmp_path / "sentry_sdk.py").write_text(SENTRY)
    posted: list[str] = []
    mailed: list[str] = []
    with chat(posted) as hook, mail_server(mailed) as port:
        environment = os.environ | {
            "STEADYWORKER_STATE_DIR": str(tmp_path / "state"),
            "SENTRY_DSN": "https://key@sentry.example/1",
            "ALERT_MAIL": "ops@example.com",
            "SMTP_HOST": "127.0.0.1",
            "SMTP_PORT": str(port),
            "CHAT_WEBHOOK": hook,
        }
        for arguments in (
            ("send", "alerts:Reports", '{"template": "letter"}', "--key", "may"),
            ("run", "alerts:Reports", "--max-jobs", "1"),
        ):
            command = [sys.executable, "-m", "steadyworker", *arguments]
            ran = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert ran.returncode == 0, ran.stderr
    assert posted == [TEXT]
    assert (tmp_path / "sentry").read_text() == f"error reports may {TEXT}"
    assert "Subject: Job may was given up" in mailed
    assert "To: ops@example.com" in mailed
