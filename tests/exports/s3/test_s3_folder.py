"""Several files in a bucket: the manifest is the commit, and a reader that begins with it sees all files or none."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from steadyworker.errors import ExportError, Interrupt, TargetExists
from steadyworker.exports import RowExport
from steadyworker.exports.formats import Csv
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.verifying import verify
from tests.exports.kit import FakeServices, Payments
from tests.exports.s3.store import Front, Request, Store, killed

FILES = [f"out/march/part-0000{number}.csv" for number in range(1, 6)]
MANIFEST = "out/march/_manifest.json"


def split(store: Store, services: FakeServices, count: int = 10, **options: Any) -> Manifest:
    options = {"format": Csv(), "split_rows": 2, **options}
    return Payments(count).export().write(services, store.at("out/march"), **options)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("point", "seen"),
    [
        pytest.param("before-PutObject-2", 0, id="before its claim"),
        pytest.param("before-PutObject-4", 0, id="before the first file"),
        pytest.param("after-PutObject-6", 1, id="among the files"),
        pytest.param("before-PutObject-9", 5, id="before the manifest"),
        pytest.param("after-PutObject-9", 6, id="after the manifest"),
    ],
)
def test_the_next_run_finishes_what_a_killed_one_left(store: Store, tmp_path: Path, point: str, seen: int) -> None:
    died = killed(store, tmp_path / "ledger", point, "uid-1", "split", key="out/march")
    assert died.returncode == -signal.SIGKILL, died.stdout + died.stderr
    left = [name for name in store.names() if ".sw-stage" not in name]
    assert len(left) >= seen
    assert (MANIFEST in left) == (seen == 6)

    manifest = split(store, FakeServices(tmp_path / "ledger", fence=2))

    assert store.names() == [MANIFEST, *FILES]
    assert verify(store.at("out/march")) == manifest
    assert [file.name for file in manifest.files or ()] == [name.rpartition("/")[2] for name in FILES]


def test_files_of_an_earlier_run_with_other_rows_are_replaced(store: Store, tmp_path: Path) -> None:
    """The earlier run was killed on another host, with seven files of other rows."""
    services = FakeServices(tmp_path / "ledger")

    def die() -> None:
        if services.leaves == 2:
            raise RuntimeError("killed")

    services.on_leave = die
    with pytest.raises(RuntimeError, match="killed"):
        RowExport([[number] for number in range(14)], columns=["id"]).write(
            services, store.at("out/march"), format=Csv(), split_rows=2
        )
    assert len([name for name in store.names() if name.startswith("out/march/part-")]) == 7
    shutil.rmtree(next(tmp_path.glob("steadyworker-*")))
    manifest = split(store, FakeServices(tmp_path / "ledger", fence=2))
    assert store.names() == [MANIFEST, *FILES]
    assert verify(store.at("out/march")) == manifest


def test_an_object_of_another_program_in_the_folder_stays(store: Store, tmp_path: Path) -> None:
    store.put("out/march/notes.txt", b"not ours")
    with pytest.raises(TargetExists, match=r"notes\.txt has no uid of a SteadyWorker job"):
        split(store, FakeServices(tmp_path / "ledger"))
    assert store.names() == ["out/march/notes.txt"]


@pytest.mark.parametrize("where", ["among its rows", "among its files", "before its manifest"])
def test_a_cancelled_job_takes_its_files_away(store: Store, tmp_path: Path, where: str) -> None:
    services = FakeServices(tmp_path / "ledger")

    def cancel(*_: object) -> None:
        raise Interrupt("cancelled")

    def later() -> None:
        if services.leaves == 2:
            cancel()

    def moved(done: float | None) -> None:
        if services.leaves == (0 if where == "among its rows" else 1):
            cancel()

    if where == "before its manifest":
        services.on_leave = later
    else:
        services.on_progress = moved
    with pytest.raises(Interrupt, match="cancelled"):
        split(store, services)
    assert store.names() == []


def test_of_two_jobs_one_publishes_its_folder_and_the_other_learns_whose_it_is(
    store: Store, spoiled: Front, tmp_path: Path
) -> None:
    """Both claim the folder at the same time."""
    ready = threading.Barrier(2)
    ends: dict[str, Manifest | ExportError] = {}

    def meet(request: Request) -> None:
        if request.method == "PUT" and request.path.endswith(".claim"):
            ready.wait()

    def run(uid: str, count: int) -> None:
        services = FakeServices(tmp_path / uid, uid=uid, key=f"key of {uid}")
        to = store.at("out/march", endpoint=spoiled.endpoint)
        try:
            ends[uid] = Payments(count).export().write(services, to, split_rows=2, format=Csv())
        except ExportError as error:
            ends[uid] = error

    spoiled.rule = meet
    threads = [threading.Thread(target=run, args=each) for each in (("uid-a", 6), ("uid-b", 8))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [end for end in ends.values() if isinstance(end, Manifest)]
    lost = [end for end in ends.values() if isinstance(end, TargetExists)]
    assert (len(won), len(lost)) == (1, 1)
    assert f"job {won[0].uid}" in str(lost[0])
    assert verify(store.at("out/march")) == won[0]
    assert len(store.names()) == 1 + len(won[0].files or ())
