"""The web applications of the examples, each on its own server, with a worker process and the embedded broker."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener, urlopen

import pytest

from steadyworker import Client
from steadyworker.exports import verify
from tests.brokers.process import free_ports
from tests.examples.conftest import EXAMPLES, payments
from tests.exports.s3.store import Store
from tests.support.stage import eventually

HELD = '''
"""The worker of the example, whose export waits at 40 % until there is a file `gate`."""
import time
from pathlib import Path
import web_exports

class Exports(web_exports.Exports):
    def payments(self, job, start):
        for number in range(start, web_exports.ROWS):
            while number == 400 and not Path("gate").exists():
                job.progress(400, web_exports.ROWS)
                time.sleep(0.05)  # the gate is a file that the test makes, which no event reports
            yield number, job.payload.merchant, number * 7 % 100
'''

SERVERS = {
    "fastapi": ["-m", "uvicorn", "web_fastapi:app", "--port", "{port}", "--log-level", "warning"],
    "django": ["web_django.py", "runserver", "--noreload", "127.0.0.1:{port}"],
}


class Browser:
    """A browser with the page's cookie."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._jar = CookieJar()
        self._open: OpenerDirector = build_opener(HTTPCookieProcessor(self._jar))

    def __call__(self, method: str, path: str) -> tuple[int, bytes]:
        token = next((cookie.value or "" for cookie in self._jar if cookie.name == "csrftoken"), "")
        request = Request(f"{self._url}{path}", method=method, headers={"X-CSRFToken": token})
        try:
            with self._open.open(request, timeout=30) as reply:
                return reply.status, reply.read()
        except HTTPError as error:
            with error:
                return error.code, error.read()

    def json(self, method: str, path: str, status: int = 200) -> Any:
        code, body = self(method, path)
        assert code == status, body
        return json.loads(body)

    def is_up(self) -> bool:
        try:
            return self("GET", "/")[0] == 200
        except URLError:
            return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Start a program in the folder of the example; it ends with the test."""
    for file in (*EXAMPLES.glob("web_*"), EXAMPLES / "payment_exports.py"):
        shutil.copy(file, tmp_path)
    (tmp_path / "held.py").write_text(HELD)
    with ExitStack() as ends:

        def started(*arguments: str, **environ: str) -> None:
            kept = {
                name: text for name, text in os.environ.items() if not name.startswith(("STEADYWORKER_", "PYTEST_"))
            }
            log = ends.enter_context((tmp_path / f"{len(list(tmp_path.glob('*.log')))}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=tmp_path,
                env={**kept, "STEADYWORKER_STATE_DIR": str(tmp_path / "state"), **environ},
                stdout=log,
                stderr=log,
            )
            ends.callback(process.wait, 30)
            ends.callback(process.terminate)

        yield started


@pytest.fixture(params=SERVERS)
def browser(request: pytest.FixtureRequest, start: Callable[..., None], tmp_path: Path) -> Browser:
    return opened(request.param, "held:Exports", start, tmp_path)


def opened(server: str, worker: str, start: Callable[..., None], tmp_path: Path, **environ: str) -> Browser:
    """Start a worker process and a web application, and return a browser that shows the page."""
    (port,) = free_ports(1)
    start("-m", "steadyworker", "run", worker, **environ)
    start(*(argument.format(port=port) for argument in SERVERS[server]), **environ)
    browser = Browser(f"http://127.0.0.1:{port}")
    eventually(browser.is_up, "the page", report=lambda: logs(tmp_path))
    eventually(lambda: "worker_started" in logs(tmp_path), "the worker", report=lambda: logs(tmp_path))
    return browser


def logs(folder: Path) -> str:
    return "\n".join(file.read_text() for file in folder.glob("*.log"))


def shown(browser: Browser, key: str, state: str, folder: Path) -> dict[str, Any]:
    """Poll as the page does, until the job has this state."""
    seen: list[dict[str, Any]] = []

    def reached() -> bool:
        seen.append(browser.json("GET", f"/exports/{key}"))
        return seen[-1]["state"] == state and (state != "running" or seen[-1]["percent"] == 40)

    eventually(reached, state, report=lambda: f"{seen[-1]}\n{logs(folder)}")
    return seen[-1]


@pytest.mark.processes
def test_an_export_shows_its_progress_and_can_be_downloaded_when_it_is_done(browser: Browser, tmp_path: Path) -> None:
    key = browser.json("POST", "/exports/harbour-books", 202)["key"]
    assert shown(browser, key, "running", tmp_path) == {
        "key": key,
        "state": "running",
        "percent": 40.0,
        "text": "Your export is 40 % done.",
        "ended": False,
    }
    assert browser.json("GET", f"/exports/{key}/file", 409) == {"detail": "The export is running."}
    assert browser.json("POST", "/exports/harbour-books", 202)["key"] == key
    (tmp_path / "gate").touch()
    assert shown(browser, key, "done", tmp_path)["percent"] == 100
    code, body = browser("GET", f"/exports/{key}/file")
    lines = body.decode().splitlines()
    assert (code, len(lines), lines[0], lines[1_000]) == (200, 1_001, "id,merchant,cents", "999,harbour-books,93")


@pytest.mark.processes
def test_an_export_that_is_cancelled_leaves_no_file(browser: Browser, tmp_path: Path) -> None:
    key = browser.json("POST", "/exports/harbour-books", 202)["key"]
    shown(browser, key, "running", tmp_path)
    assert browser("DELETE", f"/exports/{key}")[0] == 202
    status = shown(browser, key, "cancelled", tmp_path)
    assert (status["text"], status["ended"]) == ("Your export was cancelled.", True)
    assert browser("GET", f"/exports/{key}/file")[0] == 409
    assert list((tmp_path / "out").glob("*.csv")) == []
    again = browser.json("POST", "/exports/harbour-books", 202)["key"]
    assert again == f"{key}-2"
    assert browser.json("POST", "/exports/harbour-books", 202)["key"] == again
    (tmp_path / "gate").touch()
    shown(browser, again, "done", tmp_path)


@pytest.mark.processes
def test_a_key_that_is_no_job_is_unknown_and_names_no_file(browser: Browser) -> None:
    assert browser.json("GET", "/exports/no-such-job")["state"] == "unknown"
    assert browser("GET", "/exports/no-such-job/file")[0] == 409
    assert browser("GET", "/exports/..%2F..%2Fsecret/file")[0] in (404, 409)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize(
    ("server", "count", "by_spark"),
    [pytest.param("fastapi", 120_000, True, marks=pytest.mark.spark), ("django", 300, False)],
)
def test_an_accounting_export_goes_from_the_page_into_a_bucket_and_the_page_leads_to_a_link_with_an_end(
    server: str, count: int, *, by_spark: bool, start: Callable[..., None], store: Store, tmp_path: Path
) -> None:
    environ = {
        "PAYMENTS_SOURCE": payments(tmp_path / "payments.parquet", count),
        "PAYMENTS_OUT": f"s3://{store.bucket}/reports",
        "EXPORTS_QUEUE": "payment-exports",
    }
    browser = opened(server, "payment_exports:PaymentExports", start, tmp_path, **environ)
    began = datetime.now(UTC)
    key = browser.json("POST", "/exports/harbour-books", 202)["key"]
    status = shown(browser, key, "done", tmp_path)
    name = f"reports/{key}.csv"
    assert sorted(store.names()) == [name, f"{name}.manifest.json"]
    assert store.uploads() == []
    manifest = verify(f"s3://{store.bucket}/{name}")
    assert (manifest.rows, "pyspark" in manifest.versions) == (count, by_spark)
    assert (manifest.totals[0].rows, Decimal(manifest.totals[0].sums["amount"])) == (
        count,
        Decimal(count * (count + 1) // 2) / 100,
    )

    state = tmp_path / "state"
    with Client(f"sqlite:{state / 'broker.db'}", ledger=f"sqlite:{state / 'ledger.db'}") as client:
        result = client.status("payment-exports", key).result
    ends = datetime.fromisoformat(result["ends_at"])
    day = timedelta(hours=24)
    assert began + day <= ends + timedelta(seconds=1) <= datetime.now(UTC) + day + timedelta(seconds=1)
    assert status["text"] == f"Your export is ready. The link to it works until {ends:%Y-%m-%d %H:%M} UTC."
    with urlopen(result["url"], timeout=30) as reply:
        by_link = reply.read()
    assert hashlib.sha256(by_link).hexdigest() == manifest.sha256
    assert browser("GET", f"/exports/{key}/file") == (200, by_link)
    assert result["url"] not in logs(tmp_path)
