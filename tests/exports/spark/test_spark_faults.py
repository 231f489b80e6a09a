"""Full disks, exhausted memory, and death at any moment: one file, the same as undisturbed, and nothing else left."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from steadyworker.errors import ExportError
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.stage import STAGES
from steadyworker.exports.verifying import verify
from tests.conftest import Eventually
from tests.exports.spark.sparkkit import ORDER, QUERY, SMALL_TASKS, LiveServices, Made, at, export, java_of, used

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

WITHIN = 60.0
"""Seconds for what takes one on an idle machine."""


@pytest.fixture(scope="module")
def undisturbed(warm: SparkService, payments: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """What every file of this module has to be."""
    return export(LiveServices(warm), payments, tmp_path_factory.mktemp("undisturbed") / "out.csv")


# --- full disks ---


@contextmanager
def room(size: int, pid: int = 0) -> Iterator[None]:
    """A disk that takes files of so many bytes, for one process; others have all they want."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("point", "says"),
    [
        pytest.param("Spark's parts", "Spark did not make the export", marks=pytest.mark.slow),
        ("the joined file", "Expected room for the export"),
    ],
)
def test_a_full_disk_costs_a_run_and_the_next_one_has_the_file(
    warm: SparkService,
    payments: Path,
    undisturbed: Manifest,
    tmp_path: Path,
    eventually: Eventually,
    point: str,
    says: str,
) -> None:
    """`test_commit.py` has the disk that is full after that."""
    out = tmp_path / "out.csv"
    limits = ExitStack()

    def fill() -> None:
        parts = point == "Spark's parts"
        limits.enter_context(room(512, java_of(warm._hosts[0].process.pid)) if parts else room(100_000))

    with limits, pytest.raises(ExportError, match=says):
        export(LiveServices(warm, on_event=at("started", fill)), payments, out)
    assert not out.exists()
    eventually(lambda: not used(tmp_path / STAGES), within=WITHIN)  # Spark's job ends a moment after its caller
    manifest = export(LiveServices(warm, fence=2), payments, out)
    assert (manifest.sha256, manifest.rows, manifest.totals) == (
        undisturbed.sha256,
        undisturbed.rows,
        undisturbed.totals,
    )
    assert verify(out) == manifest
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("out", ".sw"))) == [
        "out.csv",
        "out.csv.manifest.json",
    ]


# --- memory ---


EXHAUSTING = {
    # A constant is folded by the thread that plans.
    "the driver": "SELECT 1 AS id, length(repeat('x', 2000000000)) AS x",
    "an executor's thread": "SELECT id, length(repeat('x', CAST(id + 2000000000 AS INT))) AS x FROM range(0, 100, 1, 4)",
    # Each result is small enough to be sent as it is; task-result-getter keeps them all.
    "task-result-getter": (
        "SELECT /*+ BROADCAST(b) */ a.id, size(b.x) AS x FROM range(3) a JOIN "
        "(SELECT id, transform(sequence(1, 100000), i -> xxhash64(id, i)) AS x FROM range(0, 3000, 1, 3000)) b "
        "ON a.id = b.id"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("where", EXHAUSTING)
def test_exhausted_memory_ends_the_host_not_its_neighbours_file(
    made: Made, payments: Path, undisturbed: Manifest, tmp_path: Path, where: str
) -> None:
    """A neighbour exhausts the memory of three JVMs, the last of them its own: it is given up, and the export is not."""
    service = made(
        resubmissions=2, conf=SMALL_TASKS | {"spark.driver.memory": "600m", "spark.driver.maxResultSize": "0"}
    )
    said: list[str] = []

    def exhaust() -> None:
        neighbour = LiveServices(service, uid="neighbour")
        try:
            SparkExport(EXHAUSTING[where], tables={}, order_by=("id",)).write(neighbour, tmp_path / "neighbour.csv")
        except ExportError as error:
            said.append(str(error))

    thread = threading.Thread(target=exhaust)
    services = LiveServices(service, on_event=at("started", thread.start))
    # Asleep now and then, so that it is under way for as long as it takes.
    nap = "WHERE coalesce(reflect('java.lang.Thread', 'sleep', if(id % 5000 = 7, 1000L, 0L)), '') <> 'never'"
    made_ = SparkExport(f"{QUERY} {nap}", tables={"payments": payments}, order_by=ORDER).write(
        services, tmp_path / "out.csv", totals={"amount": "sum"}
    )
    thread.join(400)
    assert [("Spark's JVM ran out of memory" in text, "OutOfMemoryError" in text) for text in said] == [(True, True)], (
        said
    )
    assert services.events[-1]["submissions"] in {2, 3}
    assert made_.sha256 == undisturbed.sha256
    assert not (tmp_path / "neighbour.csv").exists()


# --- death ---


KILLED_WHEN: dict[str, Callable[[Path], bool]] = {
    "its folder is made": lambda _: True,
    "its log is there": lambda folder: (folder / "log").exists(),
    "its settings are written": lambda folder: (folder / "spark.properties").stat().st_size > 0,
    "the JVM is there": lambda folder: any(folder.name in line for line in commands("java")),
    "Spark has made a folder": lambda folder: any((folder / "local").iterdir()),
    "it is warming up": lambda folder: (folder / "tmp" / "warm-up").exists(),
}
"""What of a host that starts is seen in its folder when it is killed."""


def commands(name: str) -> Iterator[str]:
    """The command lines of processes of this name."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "comm").read_text().strip() == name:
                yield (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_after_twenty_kills_nothing_is_left(made: Made, payments: Path, undisturbed: Manifest, tmp_path: Path) -> None:
    """The host at each stage of its start, host or JVM at each of an export; the file is made all the same, by the host that is let live."""
    hosts = tmp_path / "scratch" / "hosts"
    kills: list[str] = []
    service = made(resubmissions=30, conf=SMALL_TASKS)
    done = threading.Event()
    starting = list(KILLED_WHEN.items()) * 2

    def killer() -> None:
        seen: set[Path] = set()
        while starting and not done.is_set():
            when, is_so = starting[0]
            for folder in set(hosts.glob("*/")) - seen:
                with suppress(OSError, StopIteration):
                    if is_so(folder):
                        host = next(host for host in list(service._hosts) if host.process.folder == folder)
                        if host.ready:
                            continue
                        os.kill(host.process.pid, signal.SIGKILL)
                        kills.append(when)
                        seen.add(folder)
                        starting.pop(0)
            done.wait(0.01)

    moments = ["started", "progress", "started", "done"] * 2

    def on_event(event: Mapping[str, Any]) -> None:
        if not starting and moments and event["type"] == moments[0]:
            kills.append(moments.pop(0))
            host = service._hosts[0].process.pid
            os.kill(host if len(moments) % 2 else java_of(host), signal.SIGKILL)

    thread = threading.Thread(target=killer)
    thread.start()
    number = 0
    while len(kills) < 20:
        number += 1
        services = LiveServices(service, uid=f"uid-{number}", on_event=on_event)
        manifest = export(services, payments, tmp_path / f"{number}.csv")
        assert manifest.sha256 == undisturbed.sha256
    done.set()
    thread.join(60)
    print(f"20 kills: {kills}; {number} exports")
    service.stop(10)
    assert list(hosts.iterdir()) == []
    assert not [line for line in commands("java") if str(hosts) in line]
    assert not list(tmp_path.glob(".sw-stage/**/part-*"))
    assert len(list(tmp_path.glob("*.csv"))) == number
