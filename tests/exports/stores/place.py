"""A bucket of Google Cloud or Azure for tests: a client that is not the code under test, and a proxy that can kill between two requests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from tests.exports.s3.store import Front, Request

_RANGE = re.compile(r"bytes (?:\d+-(\d+)|\*)/(\d+)")


@dataclass
class Place:
    """
    A bucket.

    `fs` is at the server itself, and the environment of the code under test is at the proxy.
    `appears` returns the key of the object that a request makes appear.
    """

    root: str
    fs: Any
    front: Front
    appears: Callable[[Request], str | None]

    @property
    def bucket(self) -> str:
        return self.root.partition("://")[2]

    def at(self, key: str) -> str:
        return f"{self.root}/{key}"

    def names(self) -> list[str]:
        self.fs.invalidate_cache()
        return sorted(path.removeprefix(f"{self.bucket}/") for path in self.fs.find(self.bucket))

    def read(self, key: str) -> bytes:
        data: bytes = self.fs.cat_file(f"{self.bucket}/{key}")
        return data

    def put(self, key: str, data: bytes, **metadata: str) -> None:
        with self.fs.open(f"{self.bucket}/{key}", "wb", metadata=metadata or None) as out:
            out.write(data)

    def killed(self, key: str, ledger: Path, at: str, when: str, *more: str) -> int:
        """Export in a process of its own, kill it before or after the request that makes the object `at` appear, and return its exit code."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.exports.stores.killed", self.at(key), str(ledger), *more],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

        def kill(request: Request) -> bool:
            found = self.appears(request)
            if found is None or not found.startswith(at):
                return False
            os.kill(process.pid, signal.SIGKILL)
            return True

        rule, change = self.front.rule, self.front.change
        if when == "before":
            self.front.rule = lambda request: (500, "killed") if kill(request) else rule(request)
        else:

            def changed(request: Request, body: bytes) -> bytes:
                kill(request)
                return body

            self.front.change = changed
        try:
            output, _ = process.communicate(timeout=60)
        finally:
            self.front.rule, self.front.change = rule, change
        if process.returncode not in {0, -signal.SIGKILL}:
            print(output.decode())
        return process.returncode


def of_azure(request: Request) -> str | None:
    """Return the key of the blob that this request makes appear."""
    if request.method != "PUT" or "comp=blocklist" not in request.query:
        return None
    return unquote(request.path.split("/", 3)[3])


def of_google(request: Request) -> str | None:
    """Return the key of the object that this request makes appear."""
    query = parse_qs(request.query)
    if not request.path.startswith("/upload/"):
        return None
    if query.get("uploadType") == ["multipart"]:
        found = re.search(rb'"name": "([^"]+)"', request.body)
        return found[1].decode() if found else None
    range_ = _RANGE.match(request.headers.get("Content-Range", ""))
    ends = range_ and (range_[1] is None or int(range_[1]) + 1 == int(range_[2]))
    return query["name"][0] if ends and "name" in query else None


def keep_conditions(front: Front, exists: Callable[[str], bool]) -> None:
    """
    Let the proxy keep `ifGenerationMatch=0` as Google Cloud does, also for an upload in several requests.

    Google's server puts the condition into the URL of the upload, and compares at its last request.
    """
    lock, begun = threading.Lock(), set[str]()

    def location(request: Request, url: str) -> str:
        query = parse_qs(request.query)
        condition = "&ifGenerationMatch=0" if "ifGenerationMatch" in query else ""
        return f"{url}{condition}&name={quote(query['name'][0], safe='')}" if "name" in query else url

    def rule(request: Request) -> tuple[int, str] | None:
        if request.method == "DELETE":
            begun.discard(unquote(request.path.rpartition("/o/")[2]))
        key = of_google(request)
        if key is None or "ifGenerationMatch=0" not in request.query:
            return None
        with lock:
            if key in begun or exists(key):
                return 412, "conditionNotMet"
            begun.add(key)
            return None

    front.location, front.rule = location, rule
