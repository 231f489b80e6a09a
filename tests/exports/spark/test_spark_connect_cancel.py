"""A cancelled export at a Spark Connect server: what its own books say that still runs there, whatever moment it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from steadyworker.errors import Interrupt
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.conftest import Eventually
from tests.exports.spark.clusters import ConnectServer
from tests.exports.spark.sparkkit import BIG, SMALL_TASKS, LiveServices

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("spark servers"),
]


STAGES = "SELECT id % 100000 AS id, sum(hash(id)) AS h FROM range(0, 40000000, 1, 20) GROUP BY 1"
"""Several jobs one after the other: an aggregate, a sample for the order, the order, the file."""


_PROBE = "Range (0, 1, "  # in the plan of `sharing.probe`


class Books:
    """What the server says of what has begun there since, without the task that tries whether a folder is shared."""

    def __init__(self, server: ConnectServer) -> None:
        self._server = server
        self._jobs = max((int(job["jobId"]) for job in server.books("jobs")), default=-1)

    def jobs(self, *statuses: str) -> list[int]:
        """The jobs in one of these states, or all."""
        return [job["jobId"] for job in self._begun() if not statuses or job["status"] in statuses]

    def _begun(self) -> list[dict[str, Any]]:
        jobs = self._server.books("jobs")  # before the queries, so that the query of each job is known
        probes = {
            job
            for query in self._server.books("sql")
            if _PROBE in query["planDescription"]
            for state in ("runningJobIds", "successJobIds", "failedJobIds")
            for job in query[state]
        }
        return [job for job in jobs if int(job["jobId"]) > self._jobs and job["jobId"] not in probes]

    def tasks(self) -> bool:
        """A task runs."""
        return any(job["numActiveTasks"] for job in self._begun())

    def between(self) -> bool:
        """A job has ended and the next one has not begun, or only just."""
        return bool(self.jobs("SUCCEEDED"))


@pytest.fixture
def service(connect_server: ConnectServer, tmp_path: Path) -> Iterator[SparkService]:
    made = SparkService(SparkSettings(folder=tmp_path / "spark", master=connect_server.url, conf=SMALL_TASKS))
    yield made
    made.stop(10)


@contextmanager
def when(moment: Callable[[], bool], then: Callable[[], None]) -> Iterator[None]:
    """Do something as soon as this is true."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if moment():
                then()
                break

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    over.set()
    watcher.join()


@pytest.mark.parametrize(
    ("moment", "query"),
    [
        pytest.param("open", BIG, marks=pytest.mark.slow),
        pytest.param("started", BIG, marks=pytest.mark.slow),
        pytest.param("tasks", BIG),
        pytest.param("progress", BIG, marks=pytest.mark.slow),
        pytest.param("between", STAGES, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if len(value) < 10 else "",
)
def test_a_cancelled_export_leaves_no_job_at_the_server(
    service: SparkService,
    connect_server: ConnectServer,
    tmp_path: Path,
    moment: str,
    query: str,
    eventually: Eventually,
) -> None:
    books, now = Books(connect_server), threading.Event()

    def check(event: Mapping[str, Any] | None = None) -> None:
        if now.is_set() or (event and event["type"] == moment):
            raise Interrupt("cancelled")

    def cancel() -> None:
        now.set()
        services.wake()

    services = LiveServices(service, on_event=check, on_check=check, interrupt_at_once=moment == "open")
    export = SparkExport(query, tables={}, order_by=("id",))
    with when(getattr(books, moment, lambda: False), cancel), pytest.raises(Interrupt):
        export.write(services, tmp_path / "out.csv")
    eventually(lambda: not any(host.calls for host in service._hosts), within=50)  # before its host would be killed
    for _ in range(2):
        eventually(lambda: not connect_server.running(), within=120)
        threading.Event().wait(3)  # seconds for what a mistake would begin
    assert not connect_server.running()
    assert set(books.jobs()) == set(books.jobs("FAILED", "SUCCEEDED"))
    assert not (tmp_path / "out.csv").exists()
