"""A bucket of the tests' own, on S3Proxy: its client, its rows to export, and a proxy in front that spoils answers."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from steadyworker.exports.rows import RowExport
from steadyworker.exports.s3.address import S3

PART = 5 << 20
_WIDTH = 1_000
_BATCH = 5_000


@dataclass
class Store:
    """A bucket, and what a test asks of it by a client that is not the code under test."""

    client: Any
    bucket: str
    endpoint: str

    def at(self, key: str, **options: Any) -> S3:
        return S3(f"s3://{self.bucket}/{key}", **{"endpoint": self.endpoint, "part_bytes": PART, **options})

    def names(self) -> list[str]:
        return [each["Key"] for each in self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])]

    def uploads(self) -> list[str]:
        return [each["Key"] for each in self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])]

    def parts(self, key: str) -> list[int]:
        """The numbers of the parts of each unfinished upload to this key."""
        found = []
        for each in self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", []):
            if each["Key"] == key:
                listed = self.client.list_parts(Bucket=self.bucket, Key=key, UploadId=each["UploadId"])
                found += [part["PartNumber"] for part in listed.get("Parts", [])]
        return found

    def read(self, key: str) -> bytes:
        data: bytes = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return data

    def put(self, key: str, data: bytes, **metadata: str) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data, Metadata=metadata)


def wide(count: int = 25_000, marks: str = "") -> RowExport:
    """Rows of about 1,000 bytes: 25,000 of them make five parts."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])

    def rows(start: int) -> Iterator[pa.RecordBatch]:
        for first in range(start, count, _BATCH):
            numbers = range(first, min(first + _BATCH, count))
            texts = [f"{number:09}{marks}".ljust(_WIDTH, "x") for number in numbers]
            yield pa.record_batch([pa.array(numbers, pa.int64()), pa.array(texts)], schema=schema)

    return RowExport(rows, columns=("id", "text"), description="wide")


def killed(store: Store, ledger: Path, point: str, *more: str, key: str) -> subprocess.CompletedProcess[str]:
    """Export these rows in a process of its own, which dies at this point (`killed.py`)."""
    return subprocess.run(
        [sys.executable, "-m", "tests.exports.s3.killed", store.endpoint, store.bucket, key, str(ledger), point, *more],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@dataclass
class Request:
    """A request that the proxy has received."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_part(self) -> bool:
        return self.method == "PUT" and "partNumber=" in self.query


Rule = Callable[[Request], tuple[int, str] | None]
"""Return the status and S3's code for an error instead of the server's answer; None lets the request through, with the body that it has then."""


@dataclass
class Front:
    """A proxy in front of the server; `rule` can be set at any time."""

    endpoint: str
    rule: Rule = lambda _: None
    change: Callable[[Request, bytes], bytes] = lambda _, body: body
    location: Callable[[Request, str], str] = lambda _, url: url
    """Returns the URL to which an answer sends the client next; the URL is this proxy's already."""
    seen: list[Request] = field(default_factory=list)
    listed: int = 0
    """The number of parts in the server's last answer to ListParts; parts of a killed process can still arrive before it."""

    def parts(self) -> int:
        """The number of parts that were sent; one that was sent twice, because the server was slow, counts once."""
        return len({request.query for request in self.seen if request.is_part})


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Print no error of a connection that the client has closed: a test reads what a command prints."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def front(server: str) -> Iterator[Front]:
    """Run a proxy in front of a server of S3's requests."""
    to = urlsplit(server)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            request = Request(self.command, path, query, dict(self.headers), body)
            made.seen.append(request)
            spoiled = made.rule(request)
            if spoiled is not None:
                status, code = spoiled
                text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as the test wants</Message></Error>"
                self._answer(status, {"Content-Type": "application/xml"}, text.encode())
                return
            sent = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            with closing(http.client.HTTPConnection(to.hostname or "", to.port or 80, timeout=60)) as connection:
                connection.request(self.command, self.path, request.body, sent)
                answer = connection.getresponse()
                got, headers = made.change(request, answer.read()), dict(answer.getheaders())
            if request.method == "GET" and "uploadId=" in request.query:
                made.listed = got.count(b"<PartNumber>")
            if "Location" in headers:
                headers["Location"] = made.location(request, headers["Location"].replace(server, made.endpoint))
            self._answer(answer.status, headers, got)

        def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                    self.send_header(name, value)
            lengths = [value for name, value in headers.items() if name.lower() == "content-length"]
            length = (lengths or ["0"])[0] if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815 - the names of http.server

    server_ = _Server(("127.0.0.1", 0), Handler)
    server_.daemon_threads = True
    made = Front(f"http://127.0.0.1:{server_.server_address[1]}")
    thread = threading.Thread(target=server_.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server_.shutdown()
        server_.server_close()
        thread.join()
