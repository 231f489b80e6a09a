"""The service against hosts that are not Spark: garbage, silence, deaf ears, and two services in one folder."""

from __future__ import annotations

import fcntl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from steadyworker.errors import ExportError, Interrupt
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.process import KEPT_LOG, reap_folders
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from steadyworker.exports.tables import Files
from tests.conftest import Eventually
from tests.exports.spark.sparkkit import LiveServices

pytestmark = pytest.mark.long

HOST = """#!{python}
import json, pathlib, sys, time
import pyarrow as pa, pyarrow.parquet as pq

def report(type, **facts):
    print(json.dumps({{"type": type, **facts}}), flush=True)

def ready():
    report("ready", pid=1, versions={{"pyspark": "0"}})

def started(run):
    plan = run["plan"]
    where = {{"session": plan["session"], "earlier": " ".join(plan["earlier"])}}
    report("started", job=run["job"], columns=["id"], where=where)

def done(run, *texts):
    "All that a host says of a job whose parts have these ids, one on each line."
    folder = pathlib.Path(run["plan"]["parts"])
    folder.mkdir(parents=True)
    started(run)
    parts = []
    for index, text in enumerate(texts):
        path = folder / f"part-{{index:05d}}-x-c000.parquet"
        pq.write_table(pa.table({{"c0": pa.array(map(int, text.split()), pa.int64())}}), path)
        parts.append(str(path))
        report("progress", job=run["job"], done=index + 1, total=len(texts))
    report("done", job=run["job"], parts=parts)

def commands():
    for line in sys.stdin:
        command = json.loads(line)
        if command["type"] == "stop":
            sys.exit()
        yield command

first = not pathlib.Path({seen!r}).exists()
pathlib.Path({seen!r}).touch()
{body}
"""

Made = Callable[..., SparkService]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Make a service whose hosts run this Python instead of Spark."""
    java = tmp_path / "jdk"
    (java / "bin").mkdir(parents=True)
    (java / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    (java / "bin" / "java").chmod(0o755)
    services: list[SparkService] = []

    def make(body: str, **settings: Any) -> SparkService:
        script = tmp_path / "host"
        script.write_text(HOST.format(python=sys.executable, seen=str(tmp_path / "seen"), body=body))
        script.chmod(0o755)
        monkeypatch.setattr("steadyworker.exports.spark.process.sys.executable", str(script))
        service = SparkService(
            SparkSettings(folder=tmp_path / "spark", **settings), environ={"JAVA_HOME": str(java), "PATH": "/bin"}
        )
        services.append(service)
        return service

    yield make
    for service in services:
        service.stop(5)


def export(services: LiveServices, to: Path, query: str = "SELECT 1 AS id", **tables: Files) -> Manifest:
    return SparkExport(query, tables=tables, order_by=("id",)).write(services, to)


def test_a_host_that_sends_what_is_no_message_is_replaced(host: Made, tmp_path: Path, eventually: Eventually) -> None:
    """Not JSON, and a message that nobody knows: either way nothing more of what it says is believed."""
    service = host(
        """
ready()
for run in commands():
    if first:
        print('Exception in thread "main"' if "2" in run["plan"]["query"] else '{"type": "partly"}', flush=True)
    done(run, "1\\n")
"""
    )
    for query in ("SELECT 1 AS id", "SELECT 2 AS id"):
        (tmp_path / "seen").unlink(missing_ok=True)
        services = LiveServices(service, uid=query[7])
        assert export(services, tmp_path / f"{query[7]}.csv", query).rows == 1
        assert services.events[-1]["submissions"] == 2
        service._hosts[0].kill()
        eventually(lambda: not service._hosts, within=60)


def test_a_host_that_never_reads_holds_nobody_up(host: Made, tmp_path: Path) -> None:
    """A plan that no pipe holds: the service goes on, finds that its pings are not answered, and starts another."""
    service = host(
        """
ready()
if first:
    time.sleep(600)
for run in commands():
    done(run, "1\\n")
""",
        hung_after=0.5,
    )
    services = LiveServices(service)
    assert export(services, tmp_path / "out.csv", "SELECT 1 AS id --" + "x" * 500_000).rows == 1
    assert services.events[-1]["submissions"] == 2


def test_a_long_join_shows_that_it_moves(host: Made, tmp_path: Path) -> None:
    """It is as good as a hang for a stall limit, unless each batch is progress."""
    service = host(
        """
ready()
for run in commands():
    done(run, "\\n".join(map(str, range(200_000))))
"""
    )
    services = LiveServices(service)
    assert export(services, tmp_path / "out.csv").rows == 200_000
    assert services.beats == [(80, 100), (86.6, 100), (93.1, 100), (99.7, 100), (100, 100)]


@pytest.mark.parametrize("change", ["unlink()", "write_bytes(b'PAR1')", "rename(parts[1])"])
def test_a_part_that_is_gone_or_another_file_is_never_published(host: Made, tmp_path: Path, change: str) -> None:
    service = host(
        f"""
ready()
report_done = report
def report(type, **facts):
    if type == "done":
        parts = [pathlib.Path(part) for part in facts["parts"]]
        parts[0].{change}
    report_done(type, **facts)
for run in commands():
    done(run, "1\\n", "2\\n")
"""
    )
    with pytest.raises(ExportError, match=r"Expected Spark's part .*part-00000-x-c000\.parquet, got"):
        export(LiveServices(service), tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_two_calls_of_one_run_never_share_a_folder(host: Made, tmp_path: Path) -> None:
    """A call that is given up may still write: whatever it writes is not where the next one's parts are."""
    service = host(
        """
ready()
for run in commands():
    if run["type"] == "run":
        if first:
            first = False
            report("failed", job=run["job"], kind="job", text=run["plan"]["parts"])
        else:
            done(run, "1\\n")
"""
    )
    services = LiveServices(service)
    with pytest.raises(ExportError):
        export(services, tmp_path / "out.csv")
    first = services.events[-1]["text"]
    Path(first).mkdir(parents=True)
    Path(first, "part-00000-late-c000.txt").write_text("late\n")
    folders: list[str] = []
    services.on_event = lambda event: folders.extend(event.get("parts", ()))
    assert export(services, tmp_path / "out.csv").rows == 1
    assert (tmp_path / "out.csv").read_text() == "id\n1\n"
    assert Path(folders[0]).parent != Path(first)


def test_sparks_text_is_passed_on_without_its_secrets(host: Made, tmp_path: Path) -> None:
    service = host(
        """
ready()
for run in commands():
    report("failed", job=run["job"], kind="query", text="Path does not exist: " + run["plan"]["tables"]["t"]["path"])
"""
    )
    with pytest.raises(ExportError, match="does not exist") as caught:
        export(LiveServices(service), tmp_path / "out.csv", t=Files("s3a://key:hunter2@bucket/t", format="csv"))
    assert "hunter2" not in str(caught.value)


def test_a_folder_in_the_making_is_not_reaped(host: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker process starts, and looks for what the dead have left, in the instant before the lock is held."""
    service = host("ready()\nfor run in commands(): done(run, '1\\n')")
    reaping: list[threading.Thread] = []
    lock = fcntl.flock

    def slow(descriptor: int, operation: int) -> None:
        if not reaping and Path(f"/proc/self/fd/{descriptor}").readlink().name == "lock":
            reaping.append(threading.Thread(target=reap_folders, args=(tmp_path / "spark" / "hosts",)))
            reaping[0].start()
            reaping[0].join(0.5)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", slow)
    services = LiveServices(service)
    assert export(services, tmp_path / "out.csv").rows == 1
    assert services.events[-1]["submissions"] == 1
    reaping[0].join()


STUCK = """
ready()
seen = {}
for command in commands():
    if command["type"] == "run":
        seen[command["job"]] = command
        if first:
            started(command)
            report("stuck", job=command["job"], text="nothing has moved for 60 s")
        else:
            done(command, "1\\n")
    elif command["type"] == "cancel":
"""


def test_a_job_that_is_stuck_is_cancelled_and_begun_again_on_the_same_host(host: Made, tmp_path: Path) -> None:
    service = host(
        STUCK
        + "        first = False\n        report('failed', job=command['job'], kind='cancelled', text='cancelled')\n"
    )
    services = LiveServices(service)
    assert export(services, tmp_path / "out.csv").rows == 1
    assert services.events[-1]["submissions"] == 2
    assert services.kinds() == ["started", "started", "progress", "done"], "a child hears nothing of it"
    first, second = (event["where"] for event in services.events if event["type"] == "started")
    assert (first["earlier"], second["earlier"]) == ("", first["session"])
    assert first["session"] != second["session"]


def test_a_stuck_job_that_no_cancel_ends_costs_the_host(host: Made, tmp_path: Path) -> None:
    """And the job, if it has had its chances; a job that is cancelled meanwhile is cancelled."""
    service = host(STUCK.replace("if first", "if True") + "        pass\n", hung_after=1.0, resubmissions=1)
    services = LiveServices(service)
    with pytest.raises(ExportError, match=r"\(stuck\): nothing has moved for 60 s"):
        export(services, tmp_path / "out.csv")
    assert services.events[-1]["submissions"] == 2
    first, second = (event["where"] for event in services.events if event["type"] == "started")
    assert second["earlier"] == first["session"] != second["session"]

    def interrupt() -> None:
        raise Interrupt("cancelled")

    services = LiveServices(service, uid="uid-2", on_check=interrupt)
    with pytest.raises(Interrupt):
        export(services, tmp_path / "out.csv")


def test_a_log_that_grows_without_end_keeps_its_newer_half_and_outlives_its_host(
    host: Made, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else can read what is kept, from its first byte: what narrows a file afterwards comes too late."""
    monkeypatch.setattr("steadyworker.exports.spark.process._LOG_LONGEST", 10_000)
    service = host(
        """
ready()
for command in commands():
    print("last words" if not first else "\\n".join(f"line {number}" for number in range(2_000)), file=sys.stderr, flush=True)
    first = False
    done(command, "1\\n")
"""
    )
    export(LiveServices(service), tmp_path / "a.csv")
    log = service._hosts[0].process.folder / "log"
    eventually(lambda: log.read_text().endswith("line 1999\n"), within=60)
    service._notes.put(lambda: None)  # anything that it does
    eventually(lambda: len(log.read_text()) <= 10_000 and log.read_text().endswith("line 1998\nline 1999\n"), within=60)
    assert "line 0\n" not in log.read_text()
    export(LiveServices(service, uid="uid-2"), tmp_path / "b.csv")
    eventually(lambda: log.read_text().endswith("line 1999\nlast words\n"), within=60)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    service._hosts[0].kill()
    eventually(lambda: not service._hosts, within=60)
    kept = tmp_path / "spark" / KEPT_LOG
    assert kept.read_text().endswith("last words\n")
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("what", ["a folder", "all folders"])
def test_what_cannot_be_reaped_keeps_no_job_waiting(host: Made, tmp_path: Path, what: str) -> None:
    """Root would be let into another user's folder: one whose lock cannot be opened, and a link to no folder, are as bad."""
    hosts = tmp_path / "spark" / "hosts"
    hosts.mkdir(parents=True)
    if what == "a folder":
        (hosts / "aaa" / "lock").mkdir(parents=True)
        (hosts / "bbb").mkdir()
    else:
        hosts.rmdir()
        hosts.touch()
    service = host("ready()\nfor run in commands(): done(run, '1\\n')")
    service.reap()
    services = LiveServices(service)
    if what == "a folder":
        assert export(services, tmp_path / "out.csv").rows == 1
        assert not (hosts / "bbb").exists(), "those after it are reaped"
    else:
        with pytest.raises(ExportError, match=r"\(unavailable\)"):
            export(services, tmp_path / "out.csv")


def test_a_host_that_cannot_be_made_leaves_nothing(host: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = host("ready()")

    def fails(*_: object) -> None:
        raise ValueError("of no kind that anybody expects")

    monkeypatch.setattr(SparkSettings, "properties", fails)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(ExportError, match="of no kind that anybody expects"):
            export(LiveServices(service), tmp_path / "out.csv")
    assert list((tmp_path / "spark" / "hosts").iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before


def test_a_second_try_gives_the_first_ones_disk_back(host: Made, tmp_path: Path) -> None:
    """Its parts go when the next one begins."""
    service = host(
        """
ready()
for run in commands():
    folder = pathlib.Path(run["plan"]["parts"])
    if first:
        folder.mkdir(parents=True)
        (folder / "part-00000-x-c000.txt").write_text("1\\n")
        report("started", job=run["job"], columns=["id"])
        time.sleep(600)
    while not pathlib.Path({gate!r}).exists():
        time.sleep(0.01)
    done(run, "1\\n")
""".replace("{gate!r}", repr(str(tmp_path / "gate")))
    )

    def look(event: Mapping[str, Any]) -> None:
        if event["type"] == "started" and not (tmp_path / "gate").exists():
            assert [*tmp_path.rglob("uid-1-1-1-1")]
            service._hosts[0].kill()
            (tmp_path / "gate").touch()
        elif event["type"] == "done":
            assert not [*tmp_path.rglob("uid-1-1-1-1")]

    services = LiveServices(service, on_event=look)
    assert export(services, tmp_path / "out.csv").rows == 1
    assert services.events[-1]["submissions"] == 2


def test_a_cancelled_job_that_does_not_end_costs_no_neighbour_its_host(
    host: Made, tmp_path: Path, eventually: Eventually
) -> None:
    """The host takes no more jobs, and is killed when its last one has ended."""
    service = host(
        f"""
import threading

def later(run):
    while not pathlib.Path({str(tmp_path / "go")!r}).exists():
        time.sleep(0.01)
    done(run, "1\\n")

ready()
for command in commands():
    if command["type"] == "ping":
        report("pong", number=1)
    elif command["type"] == "run" and "deaf" in command["job"]:
        started(command)
    elif command["type"] == "run":
        threading.Thread(target=later, args=(command,)).start()
""",
        hung_after=2.0,
    )
    deaf, neighbour = LiveServices(service, uid="deaf"), LiveServices(service, uid="neighbour")
    cancelled = threading.Event()

    def cancel() -> None:
        if cancelled.is_set():
            raise Interrupt("cancelled")

    deaf.on_check = cancel
    ended: list[str] = []

    def run(services: LiveServices) -> None:
        try:
            ended.append(f"{services.uid} {export(services, tmp_path / f'{services.uid}.csv').rows}")
        except Interrupt:
            ended.append(services.uid)

    threads = [threading.Thread(target=run, args=(services,)) for services in (deaf, neighbour)]
    threads[0].start()
    eventually(lambda: "started" in deaf.kinds())
    threads[1].start()
    eventually(lambda: [host for host in service._hosts if len(host.calls) == 2])
    first = service._hosts[0]
    cancelled.set()
    deaf.wake()
    threads[0].join(60)
    eventually(lambda: first.abandoned)
    assert [call.job.split("-")[0] for call in first.calls.values()] == ["neighbour"]
    assert not any(map(first.accepts, first.calls.values()))
    (tmp_path / "go").touch()
    threads[1].join(60)
    assert ended == ["deaf", "neighbour 1"]
    assert neighbour.events[-1]["submissions"] == 1
    eventually(lambda: not service._hosts)
    assert first.problem == "a cancelled job did not end"


@pytest.mark.parametrize("moves", ["pass", "time.sleep(0.1); print('.', file=sys.stderr, flush=True)"])
def test_a_start_that_moves_is_waited_for(host: Made, tmp_path: Path, moves: str) -> None:
    """It takes many times its limit, and computes, or writes to its log, all the time."""
    service = host(
        f"""
began = time.monotonic()
while time.monotonic() < began + 4:
    {moves}
ready()
for run in commands():
    done(run, "1\\n")
""",
        hung_after=1.0,
    )
    services = LiveServices(service)
    assert export(services, tmp_path / "out.csv").rows == 1
    assert services.events[-1]["submissions"] == 1


def test_a_start_that_stands_still_is_reported_in_a_sentence_without_its_stack(host: Made, tmp_path: Path) -> None:
    service = host(
        """
sys.stderr.write("ERROR Inbox: java.lang.NullPointerException: not yet\\n\\tat scala.concurrent.Promise\\n")
sys.stderr.write("Traceback (most recent call last):\\n  File \\"a.py\\"\\n    fails()\\n")
sys.stderr.flush()
time.sleep(600)
""",
        hung_after=0.3,
        resubmissions=1,
    )
    services = LiveServices(service)
    why = (
        r"the host was not ready after \d+ s, and stood still; "
        r"the end of its log: ERROR Inbox: java.lang.NullPointerException: not yet$"
    )
    with pytest.raises(ExportError, match=r"\(unavailable\): Spark did not start: " + why):
        export(services, tmp_path / "out.csv")
    assert services.events[-1]["submissions"] == 2


def test_two_jobs_whose_host_dies_at_its_start_wait_for_one_other_start(
    host: Made, tmp_path: Path, eventually: Eventually
) -> None:
    """Neither can have killed it; two starts at once would only take each other's processor time."""
    told = tmp_path / "told"
    service = host(
        f"""
def note(what):
    with open({str(told)!r}, "a") as file:
        file.write(what + " ")

note("begins")
while not pathlib.Path({str(tmp_path / "go")!r}).exists():
    time.sleep(0.01)
if first:
    sys.exit(1)
note("ready")
ready()
for run in commands():
    done(run, "1\\n")
"""
    )
    jobs = [LiveServices(service, uid=uid) for uid in ("a", "b")]
    threads = [threading.Thread(target=export, args=(job, tmp_path / f"{job.uid}.csv")) for job in jobs]
    for thread in threads:
        thread.start()
    eventually(lambda: [len(one.calls) for one in service._hosts] == [2])
    (tmp_path / "go").touch()
    for thread in threads:
        thread.join(60)
    assert told.read_text() == "begins begins ready "
    assert [job.events[-1]["submissions"] for job in jobs] == [2, 2]


def test_a_job_is_begun_three_times_again_and_its_error_has_how_spark_ended(
    host: Made, tmp_path: Path, eventually: Eventually
) -> None:
    """First our own sentence, then what is in the host's log, without its secrets."""
    service = host(
        """
ready()
for command in commands():
    started(command)
    print("java.lang.OutOfMemoryError: of amqp://guest:hunter2@rabbit", file=sys.stderr, flush=True)
    report("fatal", text="Spark's JVM ran out of memory")
    sys.exit(1)
"""
    )
    job = LiveServices(service)
    with pytest.raises(ExportError) as caught:
        export(job, tmp_path / "out.csv")
    assert str(caught.value) == (
        "Spark did not make the export (host-died): the Spark host died 4 times during this job, the last time: "
        "Spark's JVM ran out of memory; the end of its log: java.lang.OutOfMemoryError: of amqp://guest:***@rabbit"
    )
    assert job.kinds().count("started") == job.events[-1]["submissions"] == 4
    eventually(lambda: not service._hosts, within=60)
    assert list((tmp_path / "spark" / "hosts").iterdir()) == []


def test_a_job_that_ends_each_host_is_given_up_and_its_neighbour_is_not(host: Made, tmp_path: Path) -> None:
    """They die together twice; then each is begun alone."""
    deaths = tmp_path / "deaths"
    deaths.touch()
    service = host(
        f"""
ready()
deaths = pathlib.Path({str(deaths)!r})
for command in commands():
    if "poison" in command["job"]:
        deaths.write_text(deaths.read_text() + "x")
        sys.exit(1)
    if len(deaths.read_text()) >= 2:
        done(command, "1\\n")
"""
    )
    poison, neighbour = LiveServices(service, uid="poison"), LiveServices(service, uid="neighbour")
    said: list[str] = []

    def run() -> None:
        with pytest.raises(ExportError, match="died 4 times") as caught:
            export(poison, tmp_path / "poison.csv")
        said.append(str(caught.value))

    calls = threading.Thread(target=run)
    made: list[int] = []
    beside = threading.Thread(target=lambda: made.append(export(neighbour, tmp_path / "out.csv").rows))
    with service._opening:  # so that both are there when the service begins
        calls.start()
        beside.start()
    calls.join(120)
    beside.join(120)
    assert (len(said), made) == (1, [1])
    assert [job.events[-1]["submissions"] for job in (poison, neighbour)] == [4, 3]
    assert deaths.read_text() == "xxxx"
