"""The demo's optional part, `make demo STORE=s3`: an export from a web page into a bucket, and a link to its object on the page."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import boto3
from demo_checks import rows_and_totals, wrong_with
from demo_screen import Screen, table
from demo_worker import Watched

from steadyworker.exports import S3, Manifest, download_link
from steadyworker.exports.stage import SUFFIX, manifest_path
from steadyworker.ledger.base import Ledger, State

HERE = Path(__file__).parent
LOCAL = "s3"
SERVER = (sys.executable, "-m", "tests.brokers", "s3proxy")
"""Starts S3Proxy, which Maven brings at the first time; prints its URL, and stops the server at Ctrl-C."""
WEB = (sys.executable, "-m", "uvicorn", "web_fastapi:app", "--port", "0", "--no-access-log")
STEADYWORKER = (sys.executable, "-m", "steadyworker")

_ASK_EVERY, _LOOK_EVERY, _WITHIN = 1.0, 0.05, 300.0  # seconds
_HALF_WAY = 4  # parts of 16 MiB


class Store:
    """
    The place for the object: a server of S3's requests on this machine, or a bucket of yours.

    Args:
        screen: Shows what happens.
        place: "s3" for the server, or an address such as `s3://reports/demo`; the AWS SDK's own settings then have the credentials.

    Attributes:
        folder: The address of the folder for the object.
    """

    def __init__(self, screen: Screen, place: str) -> None:
        self._server: subprocess.Popen[str] | None = None
        self.folder = f"{place.rstrip('/')}/steadyworker-demo-{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
        try:
            if place == LOCAL:
                self.folder = "s3://demo/exports"
                screen.chapter(
                    "Starting S3Proxy, a server of S3's requests; at the first time, Maven fetches it (55 MB)"
                )
                self._start()
            self._at, self._client = S3(self.folder), boto3.client("s3")
            if place == LOCAL:
                self._client.create_bucket(Bucket=self._at.bucket)
        except BaseException:
            self._end()
            raise

    def _start(self) -> None:
        """Start the server; give this process, and those that it starts, its URL and credentials."""
        self._server = subprocess.Popen(SERVER, cwd=HERE.parent, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        got = self._server.stdout.readline().removeprefix("s3proxy: ").strip()
        url = urlsplit(got)
        if url.scheme != "http" or not url.username or not url.password:
            sys.exit(
                f"Expected a local S3 server for STORE=s3, got none. {got}\n"
                "The demo also runs without it (make demo), or with a bucket of yours (make demo STORE=s3://bucket/folder)."
            )
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ |= {
            "AWS_ACCESS_KEY_ID": url.username,
            "AWS_SECRET_ACCESS_KEY": url.password,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": f"http://{url.hostname}:{url.port}",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "no_proxy": "127.0.0.1",
        }

    def parts(self) -> int:
        """Return how many parts of unfinished uploads the bucket has; no reader of the bucket sees them."""
        where, listed = {"Bucket": self._at.bucket}, 0
        for upload in self._client.list_multipart_uploads(**where, Prefix=self._at.key).get("Uploads", []):
            with suppress(self._client.exceptions.NoSuchUpload):  # it has just ended
                found = self._client.list_parts(**where, Key=upload["Key"], UploadId=upload["UploadId"])
                listed += len(found.get("Parts", []))
        return listed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()
        self._end()

    def _end(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.communicate()


class Accountant:
    """
    A person in accounting, who has `web_fastapi.py` in the browser: starts an export, sees its progress, and follows the link.

    Args:
        screen: Shows what the page shows.
        environ: The variables of the web application, in addition to the environment.
        log: The file for its output.

    Attributes:
        address: The URL of the web application.
        ended: Whether the page has shown the end of the export.
    """

    def __init__(self, screen: Screen, environ: Mapping[str, str], log: Path) -> None:
        self._screen = screen
        self._key, self._text, self._next, self.ended = "", "", 0.0, False
        with log.open("w", encoding="utf-8") as out:
            self._web = subprocess.Popen(WEB, cwd=HERE, env=os.environ | environ, stdout=out, stderr=out)
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text(encoding="utf-8"))):
            if self._web.poll() is not None:
                raise RuntimeError(f"Expected a web application that runs, got one that has ended: see {log}.")
            time.sleep(_LOOK_EVERY)
        self.address = found[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._web.terminate()
        self._web.wait()

    def start(self, merchant: str) -> str:
        """Start the export of this merchant, and return the job's key."""
        self._key = self._call("POST", f"/exports/{merchant}")["key"]
        return self._key

    def sees_the_end(self) -> bool:
        """Show what is new on the page, which asks once in a second; return whether the export has ended."""
        if not self.ended and time.monotonic() >= self._next:
            self._next = time.monotonic() + _ASK_EVERY
            status = self._call("GET", f"/exports/{self._key}")
            self.ended = status["ended"]
            if status["text"] != self._text:
                self._text = status["text"]
                self._screen.say(f"the page shows: {self._text}", "bold")
        return self.ended

    def download(self, file: Path) -> str:
        """Write what the page's link leads to into this file, and return the last URL."""
        with _open(f"{self.address}/exports/{self._key}/file") as reply, file.open("wb") as out:
            shutil.copyfileobj(reply, out)
            return str(reply.url)

    def _call(self, method: str, path: str) -> Any:
        with _open(self.address + path, method) as reply:
            return json.load(reply)


def accounting_export(
    screen: Screen, ledger: Ledger, environ: Mapping[str, str], store: Store, out: Path, merchant: str
) -> list[str]:
    """
    Export this merchant's payments from a web page into the bucket, show what is there, and return what is wrong with it.

    Args:
        screen: Shows what happens.
        ledger: The worker's ledger.
        environ: The variables of the worker and of the web application, in addition to the environment.
        store: The bucket.
        out: The folder for logs and for the downloaded file.
        merchant: The merchant.
    """
    environ = {**environ, "PAYMENTS_OUT": store.folder, "EXPORTS_QUEUE": "payment-exports"}
    with (
        Accountant(screen, environ, out / "web.log") as accountant,
        Watched(screen, ledger, environ, out / "worker.log") as worker,
    ):
        screen.say(f"web_fastapi.py serves {accountant.address}; its page starts the export of `{merchant}`")

        def is_half_way() -> bool:
            time.sleep(_LOOK_EVERY)
            return accountant.sees_the_end() or store.parts() >= _HALF_WAY

        worker.start()
        worker.until(lambda: worker.ready, time.monotonic() + _WITHIN)
        key = accountant.start(merchant)
        worker.until(is_half_way, time.monotonic() + _WITHIN)
        if killed := not accountant.ended:
            worker.end(signal.SIGKILL)
            screen.say(
                f"worker process {worker.pid} got SIGKILL; the bucket has {store.parts()} parts, which no reader sees",
                "bold red",
            )
            worker.start()
            worker.until(accountant.sees_the_end, time.monotonic() + _WITHIN)
        worker.end(signal.SIGTERM)
        row = worker.row(key)
        if row is None or row.state is not State.DONE:
            return [f"{key}: expected a job that is done, got {row.reason if row else 'none'}"]
        file = out / "downloads" / f"{key}.csv"
        file.parent.mkdir(exist_ok=True)
        link = urlsplit(accountant.download(file))
    address = f"{store.folder}/{key}.csv"
    with _open(download_link(address + SUFFIX, 60).url) as reply:
        manifest_path(file).write_bytes(reply.read())
    manifest = Manifest.load(manifest_path(file))
    with file.open("rb") as data:
        sha256 = hashlib.file_digest(data, "sha256").hexdigest()
    checked = subprocess.run([*STEADYWORKER, "verify", address], stdout=subprocess.PIPE, text=True, check=False)
    screen.table(
        table(
            "One object, its manifest, and a link for the browser",
            ("", ""),
            [
                ("object", f"{address}, {manifest.bytes:,} bytes, made by run {manifest.fence} of job {manifest.key}"),
                ("manifest", f"{address}{SUFFIX}: {rows_and_totals(file)}"),
                ("steadyworker verify", checked.stdout.strip()),
                ("link", f"{link.scheme}://{link.netloc}{link.path}?… (the rest is the signature)"),
                ("fetched by urllib", f"{file.stat().st_size:,} bytes, SHA-256 {sha256[:12]}…"),
            ],
        )
    )
    wrong = [] if worker.runs[key] == 1 + killed else [f"expected {1 + killed} runs, got {worker.runs[key]}"]
    if left := store.parts():
        wrong.append(f"expected no parts in the bucket, got {left}")
    wrong += wrong_with(file, Path(environ["PAYMENTS_SOURCE"]), merchant)
    if sha256 != manifest.sha256:
        wrong.append(f"expected the SHA-256 {manifest.sha256}, got {sha256} by the link")
    if checked.returncode or link.path != urlsplit(download_link(address, 60).url).path:
        wrong.append("`steadyworker verify` does not confirm the object, or the link leads elsewhere")
    return [f"{key} in the bucket: {fault}" for fault in wrong]


def _open(url: str, method: str = "GET") -> Any:
    """Send a request to one of the demo's own servers or to the bucket, and return the open answer."""
    return urlopen(Request(url, method=method), timeout=60)  # noqa: S310 - each URL is http:// or https://
