"""A cancelled export at a Spark Connect server: what its own books say that still runs there, whatever moment it was."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from steadyworker.errors import Interrupt
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.kills import Closed, Kills, mark
from steadyworker.exports.spark.server import Server
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.conftest import Eventually
from tests.exports.spark.clusters import ConnectServer
from tests.exports.spark.sparkkit import BIG, SMALL_TASKS, LiveServices

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("spark servers"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
]

WIDE = "SELECT id, {} FROM range(0, 200000000, 1, 2000)".format(
    ", ".join(
        f"CASE WHEN id % {n + 2} = 0 THEN concat('a{n}', CAST(id * {n} AS STRING)) "
        f"WHEN id % {n + 3} = 1 THEN CAST(hash(id, {n}) AS STRING) ELSE 'x{n}' END AS c{n}"
        for n in range(60)
    )
)
"""Seconds in which the server compiles code and runs no job, then minutes of jobs."""
STAGES = "SELECT id % 100000 AS id, sum(hash(id)) AS h FROM range(0, 40000000, 1, 20) GROUP BY 1"
"""Several jobs one after the other: an aggregate, a sample for the order, the order, the file."""


_PROBE = "Range (0, 1, "  # in the plan of `sharing.probe`


class Books:
    """What the server says of what has begun there since, without the task that tries whether a folder is shared."""

    def __init__(self, server: ConnectServer) -> None:
        self._server = server
        self._jobs, self._queries = self._newest("jobs", "jobId"), self._newest("sql", "id")

    def _newest(self, what: str, key: str) -> int:
        return max((int(entry[key]) for entry in self._server.books(what)), default=-1)

    def jobs(self, *statuses: str) -> list[int]:
        """The jobs in one of these states, or all."""
        return [job["jobId"] for job in self._begun() if not statuses or job["status"] in statuses]

    def _begun(self) -> list[dict[str, Any]]:
        probes = {
            job
            for query in self._server.books("sql")
            if _PROBE in query["planDescription"]
            for state in ("runningJobIds", "successJobIds", "failedJobIds")
            for job in query[state]
        }
        jobs = self._server.books("jobs")
        return [job for job in jobs if int(job["jobId"]) > self._jobs and job["jobId"] not in probes]

    def planned(self) -> bool:
        """A query has its plan and is on the way to its first job."""
        queries = [query for query in self._server.books("sql") if int(query["id"]) > self._queries]
        return any(_PROBE not in query["planDescription"] for query in queries) and not self.jobs()

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
        pytest.param("planned", WIDE, marks=pytest.mark.slow),
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
    """Those too that its operation begins after its own end: `planned` waits until there was such a job, and it was cancelled."""
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
    eventually(lambda: not any(host.calls for host in service._hosts), within=9)  # before its host would be killed
    if moment == "planned":
        eventually(books.jobs, within=120)
    for _ in range(2):
        eventually(lambda: not connect_server.running(), within=120)
        threading.Event().wait(3)  # seconds for what a mistake would begin
    assert not connect_server.running()
    assert set(books.jobs()) == set(books.jobs("FAILED", "SUCCEEDED"))
    assert not (tmp_path / "out.csv").exists()


@pytest.fixture
def server(connect_server: ConnectServer) -> Iterator[Server]:
    made = Server(connect_server.url)
    yield made
    made.close()


@contextmanager
def writing(session: SparkSession, query: str, to: Path) -> Iterator[threading.Thread]:
    """This query's result is being written, in a thread that does not mind how it ends."""

    def write() -> None:
        with suppress(Exception):
            session.sql(query).orderBy("id").write.parquet(f"file://{to}")

    thread = threading.Thread(target=write)
    thread.start()
    yield thread
    thread.join()


def test_one_kill_cancels_all_that_a_session_runs_and_nobody_elses(
    server: Server, connect_server: ConnectServer, tmp_path: Path, eventually: Eventually
) -> None:
    """And its operation ends without having been interrupted, as of any job that fails."""
    names = [str(uuid.uuid4()), str(uuid.uuid4())]
    mine, other = map(server.attach, names)
    books = Books(connect_server)
    kills, others = mark(mine, names[0]), mark(other, names[1])
    with writing(other, BIG, tmp_path / "b"):
        (spared,) = eventually(lambda: books.jobs("RUNNING"))
        with writing(mine, BIG, tmp_path / "a"):
            eventually(lambda: len(books.jobs("RUNNING")) == 2)
            kills.kill()
        assert books.jobs("RUNNING") == [spared]
        others.kill()
    assert len(books.jobs("FAILED")) == 2
    server.release(mine)
    server.release(other)
    late = server.attach(names[0])
    with pytest.raises(Closed):
        Kills(late, names[0]).kill()
    server.release(late)


def test_a_job_that_an_interrupted_operation_begins_after_its_end_is_cancelled_by_whoever_knows_the_sessions_name(
    server: Server, connect_server: ConnectServer, tmp_path: Path, eventually: Eventually
) -> None:
    """Spark begins it: where this waits in vain, the interrupt of a later Spark does all that is to be done."""
    name = str(uuid.uuid4())
    session = server.attach(name)
    books = Books(connect_server)
    mark(session, name).kill()  # so that an id is used up, and passed over
    with writing(session, WIDE, tmp_path / "a") as thread:
        eventually(books.planned, within=120)
        while thread.is_alive():
            server.interrupt(session)
            thread.join(0.2)
    (late,) = eventually(lambda: books.jobs("RUNNING"), within=120)
    server.end(name)
    server.release(session)
    eventually(lambda: books.jobs("FAILED") == [late])
    assert not connect_server.running()
