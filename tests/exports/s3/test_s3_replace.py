"""`if_exists="replace-own"` in a bucket: a later job with the same key replaces the object of an earlier one, and no other object."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from steadyworker.errors import ExportError, ExportRejected, Interrupt, TargetExists
from steadyworker.exports.formats import Csv
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.verifying import verify
from tests.exports.kit import FakeServices, Payments
from tests.exports.s3.store import Front, Request, Store, killed, wide

KEY, MANIFEST = "out/wide.csv", "out/wide.csv.manifest.json"


@pytest.fixture
def earlier(store: Store, tmp_path: Path) -> Manifest:
    """The object that job `uid-1` of key `payments-17` has made, of 10 rows."""
    return Payments(10).export().write(FakeServices(tmp_path / "ledger"), store.at(KEY))


def later(tmp_path: Path, uid: str = "uid-2", fence: int = 1, **more: Any) -> FakeServices:
    """The services of a later job."""
    return FakeServices(tmp_path / uid, uid=uid, fence=fence, **more)


def test_a_later_job_of_the_same_key_replaces_the_object_and_its_manifest(
    store: Store, tmp_path: Path, earlier: Manifest
) -> None:
    source = Payments(3)
    made = source.export().write(later(tmp_path), store.at(KEY), if_exists="replace-own")
    assert (made.uid, made.rows) == ("uid-2", 3)
    assert verify(store.at(KEY)) == made
    assert source.export().write(later(tmp_path, fence=2), store.at(KEY), if_exists="replace-own") == made
    assert source.starts == [0], "its own object is never made again"
    assert (store.names(), store.uploads()) == ([KEY, MANIFEST], [])
    head = store.client.head_object(Bucket=store.bucket, Key=KEY)
    assert head["Metadata"] == {"sw-uid": "uid-2", "sw-target": ANY}


def test_without_an_object_it_makes_one(store: Store, tmp_path: Path) -> None:
    made = Payments(3).export().write(later(tmp_path), store.at(KEY), if_exists="replace-own")
    assert verify(store.at(KEY)) == made


def test_nothing_is_replaced_unless_it_was_asked_for_and_the_remedy_is_named(
    store: Store, tmp_path: Path, earlier: Manifest
) -> None:
    with pytest.raises(TargetExists, match='or pass if_exists="replace-own"'):
        Payments(3).export().write(later(tmp_path), store.at(KEY))
    with pytest.raises(ExportRejected, match=r"if_exists out of fail, replace-own, got 'replace'"):
        Payments(3).export().write(later(tmp_path), store.at(KEY), if_exists="replace")
    assert verify(store.at(KEY)) == earlier


def test_a_folder_of_objects_is_not_replaced(store: Store, tmp_path: Path) -> None:
    source = Payments(4)
    with pytest.raises(ExportRejected, match="no request replaces several objects together"):
        source.export().write(
            later(tmp_path), store.at("out/march"), if_exists="replace-own", format=Csv(), split_rows=2
        )
    assert (source.starts, store.names()) == ([], [])


@pytest.mark.parametrize("what", ["another key", "another queue", "another broker", "changed", "no manifest", "no uid"])
def test_what_no_earlier_job_of_this_key_has_made_is_not_replaced(
    store: Store, tmp_path: Path, earlier: Manifest, what: str
) -> None:
    others: dict[str, dict[str, Any]] = {
        "another key": {"key": "payments-18"},
        "another queue": {"queue": "monthly"},
        "another broker": {"namespace": "elsewhere"},
    }
    services = later(tmp_path, **others.get(what, {}))
    match what:
        case "changed":
            store.put(KEY, store.read(KEY) + b"a line of the accountant's\n", **{"sw-uid": "uid-1"})
        case "no manifest":
            store.client.delete_object(Bucket=store.bucket, Key=MANIFEST)
        case "no uid":
            store.put(KEY, store.read(KEY))
    held, source = store.read(KEY), Payments(3)
    with pytest.raises(TargetExists):
        source.export().write(services, store.at(KEY), if_exists="replace-own")
    assert (store.read(KEY), source.starts) == (held, [])


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("point", "uid", "fits"),
    [
        ("after-UploadPart-4", "uid-1", True),
        ("before-CompleteMultipartUpload-1", "uid-1", True),
        ("after-CompleteMultipartUpload-1", "uid-2", False),
        ("after-PutObject-5", "uid-2", True),
    ],
)
def test_a_kill_leaves_the_old_object_or_the_new_one_and_the_next_run_finishes(
    store: Store, tmp_path: Path, earlier: Manifest, point: str, uid: str, fits: bool
) -> None:
    """The fifth PutObject is of the manifest: the fourth does not replace an earlier one."""
    died = killed(store, tmp_path / "uid-2", point, "uid-2", "replace", key=KEY)
    assert died.returncode == -signal.SIGKILL, died.stdout + died.stderr
    assert store.client.head_object(Bucket=store.bucket, Key=KEY)["Metadata"] == {"sw-uid": uid, "sw-target": ANY}
    if fits:
        assert verify(store.at(KEY)).uid == uid
    else:
        with pytest.raises(ExportError, match="differs from its manifest"):
            verify(store.at(KEY))
    services = later(tmp_path, fence=2)
    made = wide().write(services, store.at(KEY), if_exists="replace-own")
    assert (made.uid, made.rows, bool(services.beats)) == ("uid-2", 25_000, point == "after-UploadPart-4")
    assert verify(store.at(KEY)) == made
    assert (store.names(), store.uploads()) == ([KEY, MANIFEST], [])


def test_an_object_that_came_after_the_permission_stays(store: Store, tmp_path: Path, earlier: Manifest) -> None:
    services = later(tmp_path)

    def put() -> None:
        if services.leaves == 2:  # the permission before complete
            store.put(KEY, b"an accountant's")

    services.on_leave = put
    with pytest.raises(TargetExists, match="has no uid of a SteadyWorker job"):
        Payments(3).export().write(services, store.at(KEY), if_exists="replace-own")
    assert store.read(KEY) == b"an accountant's"
    assert store.uploads() == []


def test_a_job_that_may_not_commit_leaves_the_earlier_object(store: Store, tmp_path: Path, earlier: Manifest) -> None:
    services = later(tmp_path)

    def refuse() -> None:
        raise Interrupt("cancelled")

    services.on_leave = refuse
    with pytest.raises(Interrupt):
        Payments(3).export().write(services, store.at(KEY), if_exists="replace-own")
    assert verify(store.at(KEY)) == earlier
    assert (store.names(), store.uploads()) == ([KEY, MANIFEST], [])


def test_a_run_frozen_before_its_manifest_changes_nothing_of_a_later_job(
    store: Store, spoiled: Front, tmp_path: Path, earlier: Manifest
) -> None:
    """Meanwhile its job's next run has finished, and a third job has replaced what that run made."""
    made: list[Manifest] = []

    def frozen(request: Request) -> None:
        if request.method == "PUT" and request.path.endswith(".manifest.json") and not made:
            runs = (later(tmp_path, fence=2), later(tmp_path, "uid-3"))
            made.extend(Payments(5).export().write(run, store.at(KEY), if_exists="replace-own") for run in runs)

    spoiled.rule = frozen
    with pytest.raises(TargetExists, match="belongs to job uid-3"):
        Payments(3).export().write(later(tmp_path), store.at(KEY, endpoint=spoiled.endpoint), if_exists="replace-own")
    assert [each.uid for each in made] == ["uid-2", "uid-3"]
    assert verify(store.at(KEY)) == made[1]
