"""The Spark host dies, hangs, idles, ages and is orphaned: what its service makes of it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from steadyworker.errors import ExportError, Interrupt
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from steadyworker.exports.verifying import verify
from tests.conftest import Eventually
from tests.exports.spark.orphan import orphan
from tests.exports.spark.sparkkit import (
    BIG,
    ORDER,
    QUERY,
    SMALL_TASKS,
    LiveServices,
    Made,
    at,
    export,
    java_of,
    payment,
    payments_folder,
    session,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def shaky(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkService]:
    """A service whose hosts the tests kill, freeze and leave to the next test as they are; a job has one more chance."""
    settings = SparkSettings(folder=tmp_path_factory.mktemp("shaky"), conf=SMALL_TASKS, resubmissions=1, hung_after=8)
    service = SparkService(settings)
    yield service
    service.stop(10)


def host_of(service: SparkService) -> int:
    return service._hosts[0].process.pid


def test_a_host_that_dies_mid_export_costs_a_resubmission_and_the_file_is_the_same(
    shaky: SparkService, payments: Path, tmp_path: Path
) -> None:
    """SIGKILL of the host before its first part; a JVM's is in `test_spark_older.py`."""
    service = shaky
    undisturbed = export(LiveServices(service), payments, tmp_path / "a.csv")
    hosts = [host_of(service)]

    def kill_host() -> None:
        os.kill(host_of(service), signal.SIGKILL)

    services = LiveServices(service, uid="uid-2", on_event=at("started", kill_host))
    disturbed = export(services, payments, tmp_path / "b.csv")
    assert services.kinds().count("started") == 2
    assert services.events[-1]["submissions"] == 2
    assert (disturbed.sha256, disturbed.totals) == (undisturbed.sha256, undisturbed.totals)
    assert host_of(service) not in hosts
    assert [session(host) for host in hosts] == [[]]
    assert list(service._settings.hosts.iterdir()) == [service._hosts[0].process.folder], "the dead hosts' are gone"
    assert not list(tmp_path.glob(".sw-stage/**/part-*"))


def test_a_jvm_that_is_killed_while_it_starts_is_started_again(
    shaky: SparkService, payments: Path, tmp_path: Path, eventually: Eventually
) -> None:
    service = shaky
    for host in service._hosts:
        host.kill()
    eventually(lambda: not service._hosts, within=60)
    killed: list[int] = []

    def kill() -> None:
        def jvm() -> int:
            with suppress(StopIteration, IndexError):  # there is none yet
                return java_of(service._hosts[0].process.pid)
            return 0

        killed.append(eventually(jvm, within=60))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    services = LiveServices(service)
    assert export(services, payments, tmp_path / "a.csv").rows > 0
    thread.join()
    assert len(killed) == 1
    assert services.events[-1]["submissions"] == 2


def test_a_host_knows_neither_locale_nor_zone_of_the_machine(warm: SparkService, tmp_path: Path) -> None:
    """No locale, as under systemd; names of files are neither ASCII nor patterns; a parameter without a zone is UTC."""
    assert warm._environ is not None
    assert (warm._environ["LC_ALL"], warm._environ["TZ"]) == ("C", "Asia/Kolkata")
    folder = tmp_path / "öffentlich [1]{a,b}*#%20"
    payments_folder(folder / "payments", 20)
    since = payment(3)[2]
    manifest = SparkExport(
        QUERY + " WHERE paid_at >= :since",
        tables={"payments": folder / "payments"},
        order_by=ORDER,
        params={"since": since},
    ).write(LiveServices(warm), folder / "out.csv")
    assert manifest.rows == sum(payment(number)[2] >= since for number in range(20))
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert verify(folder / "out.csv") == manifest


def test_a_jvm_that_hangs_is_replaced(shaky: SparkService, payments: Path, tmp_path: Path) -> None:
    def freeze() -> None:
        os.kill(java_of(host_of(shaky)), signal.SIGSTOP)

    services = LiveServices(shaky, uid="frozen", on_event=at("started", freeze))
    assert export(services, payments, tmp_path / "out.csv").rows == 60_000
    assert services.events[-1]["submissions"] == 2


def test_an_idle_host_ends_and_its_folder_with_it(
    made: Made, payments: Path, tmp_path: Path, eventually: Eventually
) -> None:
    """Until then the JVM's command line has the flags that matter, and no setting that may be a secret."""
    conf = {"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.driver.extraJavaOptions": "-Dours=kept"}
    service = made(idle_stop=0.2, conf=conf)
    lines: list[bytes] = []

    def look() -> None:
        lines.extend(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in session(host_of(service)))

    export(LiveServices(service, on_event=at("started", look)), payments, tmp_path / "a.csv")
    assert any(b"-Dours=kept" in line and b"-XX:+ExitOnOutOfMemoryError" in line for line in lines)
    assert not any(b"hunter2" in line for line in lines)
    eventually(lambda: not service._hosts, within=60)
    assert list((tmp_path / "scratch" / "hosts").iterdir()) == []


def priorities(process: int) -> set[int]:
    """The priorities of a process's threads; of those that run tasks, too."""
    found, tasks = set(), 0
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            tasks += (thread / "comm").read_text().startswith("Executor task ")
            found.add(os.getpriority(os.PRIO_PROCESS, int(thread.name)))
    assert tasks
    return found


@pytest.mark.parametrize("dies", ["at once", pytest.param("slowly", marks=pytest.mark.slow)])
def test_host_and_jvm_are_gone_within_3_seconds_of_their_parents_death(
    archive: Path, tmp_path: Path, eventually: Eventually, dies: str
) -> None:
    """Slowly: its files are closed before its children have another parent, and they hear of that first."""
    with orphan(tmp_path, dies, folder=tmp_path) as (parent, host):
        if dies == "at once":
            behind = min(19, os.getpriority(os.PRIO_PROCESS, parent.pid) + 5)
            assert priorities(java_of(host)) == {behind}, "Spark stands behind the worker, with all its threads alike"
            parent.kill()
        began = time.monotonic()
        eventually(lambda: not session(host), within=15)  # five times what is promised, for busy machines
        print(f"gone {time.monotonic() - began:.2f} s after their parent's death")
        parent.kill()
        parent.wait()
        later = SparkService(SparkSettings(folder=tmp_path))

        def reaped() -> bool:
            later.reap()  # as a worker process does at its start and each hour; a thread of Java's can hold the lock while it ends
            return not list((tmp_path / "hosts").iterdir())

        eventually(reaped, within=60)


def test_a_worker_process_removes_what_dead_hosts_have_left_before_any_job_asks_for_spark(
    tmp_path: Path, eventually: Eventually
) -> None:
    """And leaves those alone that are in use."""
    settings = SparkSettings(folder=tmp_path)
    SparkService(settings).reap()  # there is nothing, not even a folder
    for name in ("dead", "alive"):
        (settings.hosts / name / "local").mkdir(parents=True)
    lock = os.open(settings.hosts / "alive" / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        SparkService(settings).reap()
        eventually(lambda: [path.name for path in settings.hosts.iterdir()] == ["alive"], within=60)
    finally:
        os.close(lock)


def test_stopping_the_service_ends_calls_hosts_and_threads(made: Made, tmp_path: Path, eventually: Eventually) -> None:
    service = made()
    services = LiveServices(service, uid="early", interrupt_at_once=True)
    with pytest.raises(Interrupt):  # before the host is ready
        SparkExport(BIG, tables={}, order_by=("id",)).write(services, tmp_path / "out.csv")
    eventually(lambda: not service._waiting and service._hosts and not service._hosts[0].calls, within=60)
    hosts: list[int] = []

    def stop() -> None:
        hosts.append(host_of(service))
        threading.Thread(target=service.stop, args=(5,)).start()

    services = LiveServices(service, on_event=at("progress", stop))
    with pytest.raises(ExportError, match="stopped"):
        SparkExport(BIG, tables={}, order_by=("id",)).write(services, tmp_path / "out.csv")
    service.stop(5)
    assert session(hosts[0]) == []
    assert list((tmp_path / "scratch" / "hosts").iterdir()) == []
    with pytest.raises(ExportError, match="stopped"):
        SparkExport(BIG, tables={}, order_by=("id",)).write(LiveServices(service), tmp_path / "out.csv")


def test_a_setting_that_spark_does_not_start_with_is_reported(made: Made, payments: Path, tmp_path: Path) -> None:
    broken = made(conf={"spark.driver.memory": "nonsense"}, resubmissions=0)
    with pytest.raises(ExportError, match=r"unavailable.*nonsense"):
        export(LiveServices(broken), payments, tmp_path / "b.csv")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_start_beside_twelve_busy_programs_on_one_core_is_not_killed(made: Made, tmp_path: Path) -> None:
    """As under `taskset`: what a thread begins has its cores."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(12)]
    began = time.monotonic()
    try:
        services = LiveServices(made(hung_after=5.0))
        assert SparkExport("SELECT 1 AS id", tables={}, order_by=("id",)).write(services, tmp_path / "x.csv").rows == 1
    finally:
        os.sched_setaffinity(0, cores)
        for one in busy:
            one.kill()
            one.wait()
    print(f"the first export after {time.monotonic() - began:.0f} s")
    assert services.events[-1]["submissions"] == 1
