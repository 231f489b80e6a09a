"""What killed jobs leave in a bucket is removed when they have ended: by a worker process, by the next export, or by a command."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from click.testing import CliRunner

from steadyworker.clock import SystemClock, Times
from steadyworker.errors import ExportError, Interrupt
from steadyworker.exports.cli.verify import command
from steadyworker.exports.folders import StageFolders
from steadyworker.exports.formats import Csv
from steadyworker.exports.s3 import bucket
from steadyworker.exports.stage import STAGES, ExportTarget, new_stage
from steadyworker.exports.stores import reaping
from steadyworker.exports.stores.reaping import reap_store, recorded
from steadyworker.exports.verifying import verify
from steadyworker.ledger.base import Claimed, JobId
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from tests.exports.kit import FakeServices, Payments
from tests.exports.s3.store import Front, Request, Store
from tests.support.stage import Stage, eventually

DAY = 86_400.0


class Died(Exception):
    """The end of a run after which nothing is tidied up, as after a kill."""


def leave_object(store: Store, ledger: Path, uid: str) -> None:
    """Leave an upload with its part, as a job does that is killed."""

    def die(done: float | None) -> None:
        if done is None:  # the parts are there
            raise Died

    services = FakeServices(ledger, uid=uid, on_progress=die)
    with pytest.raises(Died):
        Payments(9).export().write(services, store.at(f"out/{uid}.csv"))
    assert len(store.parts(f"out/{uid}.csv")) == 1


def leave_folder(store: Store, ledger: Path, uid: str, *, whole: bool = False) -> None:
    """Leave objects of a folder, and if it is whole the manifest, as a job does that is killed."""
    services = FakeServices(ledger, uid=uid)

    def die(*_: object) -> None:
        if services.leaves and [name for name in store.names() if f"{uid}/" in name]:
            raise Died

    if whole:
        services.on_save = die
    else:
        services.on_progress = die
    with pytest.raises(Died):
        Payments(3).export().write(services, store.at(f"out/{uid}"), format=Csv(), split_rows=3)
    put = [name for name in store.names() if name.startswith(f"out/{uid}/")]
    assert len(put) == (2 if whole else 1)


def of(store: Store, uid: str) -> list[str]:
    """The keys and the uploads of this job."""
    return [key for key in [*store.names(), *store.uploads()] if uid in key]


def test_the_next_export_to_the_folder_withdraws_the_files_of_an_ended_job(store: Store, tmp_path: Path) -> None:
    """A third job was killed after its manifest: its folder is whole, and stays."""
    leave_folder(store, tmp_path / "whole", "uid-5", whole=True)
    leave_folder(store, tmp_path / "ended", "uid-3")
    leave_folder(store, tmp_path / "running", "uid-4")
    running = of(store, "uid-4")
    living = FakeServices(tmp_path / "ledger", gone=frozenset({"uid-3", "uid-5"}))
    Payments(9).export().write(living, store.at("out/payments.csv"))
    assert of(store, "uid-3") == []
    assert of(store, "uid-4") == running
    assert verify(store.at("out/uid-5")).uid == "uid-5"
    assert not [key for key in store.names() if f"{STAGES}/uid-5" in key]


def test_a_cancelled_job_withdraws_what_its_killed_run_has_put(store: Store, tmp_path: Path) -> None:
    leave_folder(store, tmp_path / "ledger", "uid-1")

    def cancel(*_: object) -> None:
        raise Interrupt("cancelled")

    services = FakeServices(tmp_path / "ledger", fence=2, on_progress=cancel)
    with pytest.raises(Interrupt, match="cancelled"):
        Payments(9).export().write(services, store.at("out/uid-1"), format=Csv(), split_rows=3)
    assert store.names() == []


def ended(*gone: str) -> Any:
    def answer(uids: Sequence[str]) -> Iterable[str]:
        return {*gone} & {*uids}

    return answer


def test_the_record_of_a_bucket_is_enough_to_remove_what_ended_jobs_left(store: Store, tmp_path: Path) -> None:
    leave_object(store, tmp_path / "1", "uid-3")
    leave_folder(store, tmp_path / "2", "uid-4")
    leave_object(store, tmp_path / "3", "uid-5")
    services = FakeServices(tmp_path / "ledger", uid="uid-6")
    Payments(9).export().write(services, store.at("out/payments.csv"))
    (record,) = [folder for folder in services.folders if isinstance(folder, str)]
    clock, place = FakeClock(), tmp_path / "stages"
    folders = StageFolders(place, clock)
    folders.remember(os.fsencode(record))
    (entry,) = place.iterdir()
    os.utime(entry, (clock.wall(), clock.wall()))
    clock.advance(7_200)

    folders.purge(ended("uid-3", "uid-4"))
    assert (of(store, "uid-3"), of(store, "uid-4")) == ([], [])
    assert "out/uid-5.csv" in of(store, "uid-5")
    assert [*place.iterdir()] == [entry], "a job's stage is left"

    folders.purge(ended("uid-5"))
    assert (store.names(), store.uploads()) == (["out/payments.csv", "out/payments.csv.manifest.json"], [])
    assert [*place.iterdir()] == []


def test_a_bucket_that_does_not_respond_is_reported_and_forgotten_after_thirty_days(
    tmp_path: Path, spoiled: Front, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "_TRIES", 1)
    spoiled.rule = lambda _: (503, "SlowDown")
    clock, place, out = FakeClock(), tmp_path / "stages", tmp_path / "out"
    folders = StageFolders(place, clock)
    new_stage(ExportTarget.of(out / "payments.csv"), "uid-1", 1)
    for folder in (recorded(store.at("out/payments.csv", endpoint=spoiled.endpoint)).encode(), bytes(out)):
        folders.remember(folder)
    (place / "0").write_bytes(b'{"url":"no address"}')
    for entry in place.iterdir():
        os.utime(entry, (clock.wall(), clock.wall()))

    clock.advance(29 * DAY)
    with pytest.raises(ExportError, match=rf"list_objects_v2 for s3://{store.bucket}/out/.sw-stage, got SlowDown"):
        folders.purge(ended("uid-1"))
    assert not (out / STAGES).exists()
    assert len([*place.iterdir()]) == 1

    clock.advance(2 * DAY)
    with pytest.raises(ExportError, match="SlowDown"):
        folders.purge(ended("uid-1"))
    assert [*place.iterdir()] == []


def test_the_command_removes_what_ended_jobs_left(store: Store, tmp_path: Path) -> None:
    uids = {}
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=SystemClock(), times=Times())) as ledger:
        for key in ("ended", "running"):
            row = ledger.claim(Claimed(JobId("n", "uploads", key), None, "owner", 0, b"x" * 32, Counters()))
            assert row is not None
            uids[key] = row.uid
            if key == "ended":
                ledger.done(row.token)
        url = ledger.url
    leave_object(store, tmp_path / "1", uids["ended"])
    leave_object(store, tmp_path / "2", uids["running"])
    state = str(tmp_path / "state")
    done = CliRunner().invoke(command, ["--ledger", url, "--state-dir", state, "--reap", f"s3://{store.bucket}/out/"])
    assert (done.exit_code, "removed the staging folders of 1 job." in done.output) == (0, True), done.output
    assert of(store, uids["ended"]) == []
    assert f"out/{uids['running']}.csv" in of(store, uids["running"])
    refused = CliRunner().invoke(command, ["--ledger", url, "--state-dir", state, "--reap", "s3://no-such-bucket/out"])
    assert refused.exit_code != 0
    assert "create the bucket, or correct its name" in refused.output


@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize("more", [{}, {"split_rows": 5_000}], ids=["object", "folder"])
def test_a_worker_process_removes_what_a_killed_one_left_of_an_ended_job(
    store: Store, tmp_path: Path, more: dict[str, int]
) -> None:
    """It is the first purge of the second process, which knows the bucket from the state directory of this host."""
    stage = Stage(tmp_path)
    try:
        stage.send("uploads", {"to": f"s3://{store.bucket}/out/wide", **more})
        first = stage.worker("tests.exports.s3.jobs:Uploads")
        first.ended(-signal.SIGKILL)
        left = [key for key in [*store.names(), *store.uploads()] if STAGES not in key]
        assert left
        assert "out/wide/_manifest.json" not in left
        row = stage.row("uploads")
        assert row is not None
        stage.ledger.done(row.token)
        second = stage.worker("tests.exports.s3.jobs:Uploads")
        eventually(lambda: not store.names() and not store.uploads(), "an empty bucket", report=stage.logs)
        second.terminate()
        second.ended(0)
        assert stage.lines("starts") == ["job"]
    finally:
        stage.close()


@pytest.mark.parametrize("attempts", [1, 2])
def test_the_reaper_waits_for_a_complete_that_the_bucket_is_still_at(
    store: Store, spoiled: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    """Complete of many parts takes minutes in S3; the job's last attempt has sent it, and was killed."""
    to = store.at("out/pay.csv", endpoint=spoiled.endpoint)
    sent: list[Request] = []

    def lose(request: Request) -> tuple[int, str] | None:
        if request.method == "POST" and request.query.startswith("uploadId="):
            sent.append(request)
            return 400, "InvalidRequest"
        return None

    spoiled.rule = lose
    for fence in range(1, attempts + 1):
        with pytest.raises(ExportError):
            Payments(9).export().write(FakeServices(tmp_path / "ledger", fence=fence), to)
    spoiled.rule = lambda _: None
    names = store.names()
    assert (len(sent), [name for name in names if name.endswith(f".{attempts}.json")]) == (attempts, [ANY])
    with closing(bucket.Bucket(to)) as reaper:
        assert reap_store(reaper, lambda uids: uids) == ((), None)
        assert store.names() == names
        monkeypatch.setattr(reaping, "_LATE", -600.0)
        assert reap_store(reaper, lambda uids: uids) == (("uid-1",), None)
    assert (store.names(), store.uploads()) == ([], [])
