"""The recipes of examples/recipes, each against a real other side: an archive, an SFTP server, an HTTP server, a growing table."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import importlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import pyzipper

from steadyworker.exports import Manifest, verify
from steadyworker.outcome import Done, Failed, Rejected
from steadyworker.testing import run_one
from tests.examples.conftest import EXAMPLES

PAYMENTS = [(at, "harbour-books" if at % 2 else "villa-rosa", "EUR", at * 101) for at in range(1, 11)]
REQUEST = {"merchant": "harbour-books"}
LINES = [
    "id,currency,cents",
    *(f"{at},EUR,{cents}" for at, merchant, _, cents in PAYMENTS if merchant == "harbour-books"),
]


def add(payments: list[tuple[int, str, str, int]]) -> None:
    with closing(sqlite3.connect("shop.db")) as shop, shop:
        shop.executemany("INSERT INTO payments VALUES (?, ?, ?, ?)", payments)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a small shop, and the recipes on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES / "recipes"))
    with closing(sqlite3.connect("shop.db")) as shop:
        shop.execute("CREATE TABLE payments (id INTEGER PRIMARY KEY, merchant TEXT, currency TEXT, cents INTEGER)")
    add(PAYMENTS)
    return tmp_path


def recipe(name: str) -> Any:
    return importlib.import_module(name)


def test_an_archive_opens_only_with_its_password(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "password").write_text("correct horse\n")
    monkeypatch.setenv("ARCHIVE_PASSWORD_FILE", str(place / "password"))
    for _ in range(2):  # a repeated run makes the archive again
        assert run_one(recipe("encrypted").EncryptedExports, REQUEST, key="march").outcome == Done()
    assert [path.name for path in (place / "exports").iterdir()] == ["march.zip"]
    with pyzipper.AESZipFile(place / "exports/march.zip") as archive:
        with pytest.raises(RuntimeError, match="password"):
            archive.read("march.xlsx")
        archive.setpassword(b"correct horse")
        assert archive.read("march.xlsx") == (place / "private/march.xlsx").read_bytes()
    assert verify(place / "private/march.xlsx").rows == 5


@contextmanager
def sftp_server(place: Path) -> Iterator[int]:
    """An SFTP server whose root is the folder `partner`; yields its port."""
    keys = {name: asyncssh.generate_private_key("ssh-ed25519") for name in ("host", "client")}
    keys["client"].write_private_key(place / "client-key")
    keys["client"].write_public_key(place / "authorized")
    (place / "partner").mkdir()
    loop = asyncio.new_event_loop()

    async def listen() -> Any:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[keys["host"]],
            authorized_client_keys=str(place / "authorized"),
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=bytes(place / "partner")),
        )

    server = loop.run_until_complete(listen())
    port = server.get_port()
    (place / "known-hosts").write_text(f"[127.0.0.1]:{port} {keys['host'].export_public_key().decode()}")
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def close() -> None:
        server.close()
        await server.wait_closed()

    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_partner_gets_the_whole_file_under_its_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = recipe("sftp").SftpExports
    with sftp_server(place) as port:
        variables = {"HOST": "127.0.0.1", "PORT": str(port), "USER": "shop"}
        variables |= {"KEY_FILE": str(place / "client-key"), "KNOWN_HOSTS": str(place / "known-hosts")}
        for name, value in variables.items():
            monkeypatch.setenv(f"SFTP_{name}", value)
        for _ in range(2):  # a repeated run uploads the same bytes under the same name
            assert run_one(worker, REQUEST, key="march").outcome == Done()
    assert [path.name for path in (place / "partner").iterdir()] == ["march.csv.gz"]
    assert gzip.decompress((place / "partner/march.csv.gz").read_bytes()).decode().splitlines() == LINES
    away = run_one(worker, REQUEST, key="march").outcome
    assert isinstance(away, Failed)


@contextmanager
def http_server(codes: list[int]) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A server that answers with these codes, one after the other; yields its URL, and the calls that it got."""
    calls: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            calls.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(codes[len(calls) - 1])
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/ready", calls
        finally:
            server.shutdown()
            thread.join()


def test_a_webhook_is_signed_and_called_again_only_where_that_can_help(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "secret").write_text("shared\n")
    monkeypatch.setenv("WEBHOOK_SECRET_FILE", str(place / "secret"))
    worker = recipe("webhook").AnnouncedExports
    with http_server([503, 200, 403]) as (url, calls):
        monkeypatch.setenv("WEBHOOK_URL", url)
        outcomes = [run_one(worker, REQUEST, key="march").outcome for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [Failed, Done, Rejected]
    assert len({body for _, body in calls}) == 1
    headers, body = calls[0]
    assert headers["Idempotency-Key"] == "march"
    assert headers["X-Signature"] == "sha256=" + hmac.new(b"shared", body, hashlib.sha256).hexdigest()
    made = Manifest.load(place / "exports/march.csv.manifest.json")
    assert json.loads(body) == {
        "key": "march",
        "file": "march.csv",
        "rows": 5,
        "bytes": made.bytes,
        "sha256": made.sha256,
    }


def test_each_export_begins_where_the_last_one_ended(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = recipe("since_last")
    newest = module.newest

    def newest_and_later() -> int:
        """A payment comes after the upper end was read, before the rows are."""
        last: int = newest()
        add([(last + 1, "late", "EUR", 1)])
        return last

    monkeypatch.setattr(module, "newest", newest_and_later)
    interrupted = run_one(module.NewPayments, {}, key="monday", stop_at_checkpoint=1)
    assert not (place / "exports").exists()
    assert run_one(module.NewPayments, {}, key="monday", checkpoint=interrupted.checkpoints[-1]).outcome == Done()
    assert run_one(module.NewPayments, {}, key="tuesday").outcome == Done()
    files = [verify(place / f"exports/new-payments/{day}.csv") for day in ("monday", "tuesday")]
    assert [(made.parameters["after"], made.parameters["last"], made.rows) for made in files] == [
        (0, 10, 10),
        (10, 11, 1),
    ]
