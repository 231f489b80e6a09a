"""Exports into a bucket: one whole object or none, at whatever request the process dies, and for whichever of two jobs."""

from __future__ import annotations

import hashlib
import signal
import threading
from pathlib import Path
from unittest.mock import ANY

import pytest

from steadyworker.errors import ExportRejected, Interrupt, InterruptReason, TargetExists
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.verifying import verify
from tests.exports.kit import BY, TOTALS, FakeServices, Payments
from tests.exports.s3.store import Front, Request, Store, killed, wide

KEY, MANIFEST = "out/wide.csv", "out/wide.csv.manifest.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The same rows in a local file, by the code of local targets."""
    folder = tmp_path_factory.mktemp("local")
    return wide().write(FakeServices(folder / "ledger"), folder / "wide.csv")


def digest(store: Store, key: str) -> str:
    return hashlib.sha256(store.read(key)).hexdigest()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("point", "seen"),
    [
        pytest.param("before-CreateMultipartUpload-1", [], id="before the upload begins"),
        pytest.param("after-CreateMultipartUpload-1", [], id="before the upload is recorded"),
        pytest.param("after-PutObject-2", [], id="before the first part"),
        pytest.param("after-UploadPart-1", [], id="after the first part"),
        pytest.param("after-UploadPart-4", [], id="after the fourth part"),
        pytest.param("before-PutObject-3", [], id="before the manifest is in the stage"),
    ],
)
def test_the_next_run_uploads_only_what_a_killed_one_did_not(
    store: Store, spoiled: Front, tmp_path: Path, whole: Manifest, point: str, seen: list[str]
) -> None:
    ledger = tmp_path / "ledger"
    died = killed(store, ledger, point, key=KEY)
    assert died.returncode == -signal.SIGKILL, died.stdout + died.stderr
    assert [key for key in store.names() if ".sw-stage" not in key] == seen

    manifest = wide().write(FakeServices(ledger, fence=2), store.at(KEY, endpoint=spoiled.endpoint))

    assert (store.names(), store.uploads()) == ([KEY, MANIFEST], [])
    assert digest(store, KEY) == manifest.sha256 == whole.sha256
    assert manifest == Manifest.parse(store.read(MANIFEST), MANIFEST)
    assert spoiled.listed >= {"after-UploadPart-1": 1, "after-UploadPart-4": 4, "before-PutObject-3": 5}.get(point, 0)
    assert spoiled.parts() == 5 - spoiled.listed
    assert manifest.fence == 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("point", "seen", "leaves"),
    [
        pytest.param("before-CompleteMultipartUpload-1", [], 2, id="before complete"),
        pytest.param("after-CompleteMultipartUpload-1", [KEY], 0, id="between complete and manifest"),
        pytest.param("after-PutObject-4", [KEY, MANIFEST], 0, id="after the manifest"),
    ],
)
def test_the_next_run_publishes_without_a_row_what_a_killed_one_completed(
    store: Store, tmp_path: Path, whole: Manifest, point: str, seen: list[str], leaves: int
) -> None:
    ledger = tmp_path / "ledger"
    died = killed(store, ledger, point, key=KEY)
    assert died.returncode == -signal.SIGKILL, died.stdout + died.stderr
    assert [key for key in store.names() if ".sw-stage" not in key] == seen

    services = FakeServices(ledger, fence=2)
    manifest = wide().write(services, store.at(KEY))

    assert (services.beats, services.leaves, manifest.fence) == ([], leaves, 1)
    assert (store.names(), store.uploads()) == ([KEY, MANIFEST], [])
    assert digest(store, KEY) == manifest.sha256 == whole.sha256
    assert manifest == Manifest.parse(store.read(MANIFEST), MANIFEST)


def test_of_two_jobs_that_complete_at_the_same_time_one_wins_and_the_other_learns_whose_it_is(
    store: Store, tmp_path: Path
) -> None:
    """Both have permission before either completes."""
    ready = threading.Barrier(2)
    ends: dict[str, Manifest | TargetExists] = {}

    def run(uid: str, count: int) -> None:
        services = FakeServices(tmp_path / uid, uid=uid, key=f"key of {uid}")

        def wait() -> None:
            if services.leaves <= 2:  # the third one precedes the manifest
                ready.wait()

        services.on_leave = wait
        try:
            ends[uid] = Payments(count).export().write(services, store.at("out/pay.csv"))
        except TargetExists as error:
            ends[uid] = error

    threads = [threading.Thread(target=run, args=each) for each in (("uid-a", 5), ("uid-b", 7))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (winner,) = [uid for uid, end in ends.items() if isinstance(end, Manifest)]
    (loser,) = [uid for uid, end in ends.items() if isinstance(end, TargetExists)]
    assert f"was made by job {winner}" in str(ends[loser])
    assert verify(store.at("out/pay.csv")) == ends[winner]
    assert (store.names(), store.uploads()) == (["out/pay.csv", "out/pay.csv.manifest.json"], [])


def test_a_run_frozen_after_its_permission_and_the_next_one_make_one_object(store: Store, tmp_path: Path) -> None:
    """The second run completes what the first has put; the first then finds the object of its own job."""
    second = Payments()
    answers: list[Manifest] = []

    first = FakeServices(tmp_path / "ledger")

    def take_over() -> None:
        if first.leaves == 2:  # the second permission is the one before complete
            answers.append(second.export().write(FakeServices(tmp_path / "ledger", fence=2), store.at(KEY)))

    first.on_leave = take_over
    with pytest.raises(Interrupt, match="fenced"):  # its record in the ledger comes too late
        Payments().export().write(first, store.at(KEY))
    assert (second.starts, answers) == ([], [verify(store.at(KEY))])
    assert (store.names(), store.uploads()) == ([KEY, MANIFEST], [])


def test_a_stale_run_is_interrupted_when_the_next_one_has_completed_its_upload(store: Store, tmp_path: Path) -> None:
    answers: list[Manifest] = []

    def frozen(done: float | None) -> None:
        if not answers:
            answers.append(Payments(9).export().write(FakeServices(tmp_path / "ledger", fence=2), store.at(KEY)))

    with pytest.raises(Interrupt, match="fenced"):
        Payments().export().write(FakeServices(tmp_path / "ledger", on_progress=frozen), store.at(KEY))
    assert answers == [verify(store.at(KEY))]
    assert (answers[0].fence, answers[0].rows) == (2, 9)
    assert (store.names(), store.uploads()) == ([KEY, MANIFEST], [])


@pytest.mark.parametrize("reason", ["cancelled", "shutdown", "time-limit"])
@pytest.mark.parametrize("where", ["among its rows", "before its commit"])
def test_an_interrupted_run_leaves_its_parts_for_the_next_one_if_there_is_one(
    store: Store, tmp_path: Path, reason: InterruptReason, where: str
) -> None:
    def interrupted(*_: object) -> None:
        raise Interrupt(reason)

    services = FakeServices(tmp_path / "ledger", fence=2)
    if where == "before its commit":
        services.on_leave = interrupted
    else:
        services.on_progress = interrupted
    with pytest.raises(Interrupt):
        Payments().export().write(services, store.at(KEY))
    kept = reason != "cancelled"
    assert store.uploads() == ([KEY] if kept else [])
    assert bool(store.names()) == kept
    Payments().export().write(FakeServices(tmp_path / "ledger", fence=3), store.at(KEY))
    assert (store.names(), store.uploads()) == ([KEY, MANIFEST], [])


def test_a_rejected_export_leaves_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ExportRejected, match="merchant"):
        Payments().export().write(FakeServices(tmp_path / "ledger"), store.at(KEY), totals={"merchant": "sum"})
    assert (store.names(), store.uploads()) == ([], [])


@pytest.mark.parametrize(
    ("data", "metadata", "says"),
    [
        (b"not ours", {}, "has no uid of a SteadyWorker job"),
        (b"theirs", {"sw-uid": "uid-2"}, "was made by job uid-2; this job, job uid-1 of key 'payments-17'"),
        (b"ours", {"sw-uid": "uid-1"}, "does not have the manifest of its bytes"),
    ],
)
def test_what_another_put_there_stays_and_is_named(
    store: Store, tmp_path: Path, data: bytes, metadata: dict[str, str], says: str
) -> None:
    store.put(KEY, data, **metadata)
    source = Payments()
    with pytest.raises(TargetExists, match=f"^target exists: s3://.*{says}"):
        source.export().write(FakeServices(tmp_path / "ledger"), store.at(KEY))
    assert (source.starts, store.names(), store.read(KEY)) == ([], [KEY], data)


def test_a_manifest_of_another_job_without_its_object_stays(store: Store, tmp_path: Path) -> None:
    made = Payments(1).export().write(FakeServices(tmp_path / "theirs", uid="uid-2"), tmp_path / "wide.csv")
    store.put(MANIFEST, made.dump())
    with pytest.raises(TargetExists, match="exists without its object"):
        Payments().export().write(FakeServices(tmp_path / "ledger"), store.at(KEY))
    assert store.names() == [MANIFEST]


def test_an_object_that_its_user_removed_is_made_again(store: Store, tmp_path: Path) -> None:
    Payments(5).export().write(FakeServices(tmp_path / "ledger"), store.at(KEY))
    store.client.delete_object(Bucket=store.bucket, Key=KEY)
    manifest = Payments(6).export().write(FakeServices(tmp_path / "ledger", fence=2), store.at(KEY))
    assert (manifest.rows, manifest.fence) == (6, 2)
    assert verify(store.at(KEY)) == manifest


def test_a_second_run_returns_the_manifest_and_another_object_is_another_export(store: Store, tmp_path: Path) -> None:
    services = FakeServices(tmp_path / "ledger")
    first = Payments().export().write(services, store.at(KEY), totals=TOTALS, by=BY)
    source = Payments()
    assert (
        source.export().write(FakeServices(tmp_path / "ledger", fence=2), store.at(KEY), totals=TOTALS, by=BY) == first
    )
    assert source.starts == []
    assert b'"folder":"s3://' in (services.saved[-1] or b"")
    other = Payments().export().write(FakeServices(tmp_path / "ledger", fence=2), store.at("other/wide.csv"))
    assert other.sha256 == first.sha256
    head = store.client.head_object(Bucket=store.bucket, Key=KEY)
    assert (head["ContentType"], head["Metadata"]) == ("text/csv; charset=utf-8", {"sw-uid": "uid-1", "sw-target": ANY})


def test_the_stage_of_an_ended_job_is_removed_by_the_next_export_to_its_folder(store: Store, tmp_path: Path) -> None:
    """One job was killed before it could record its upload, and one after."""
    for uid, point in (("uid-3", "after-CreateMultipartUpload-1"), ("uid-4", "after-PutObject-2")):
        died = killed(store, tmp_path / uid, point, uid, key=f"out/{uid}.csv")
        assert died.returncode == -signal.SIGKILL, died.stdout + died.stderr
    assert len(store.uploads()) == 2
    living = FakeServices(tmp_path / "ledger", gone=frozenset({"uid-3", "uid-4"}))
    Payments().export().write(living, store.at(KEY))
    assert (store.names(), store.uploads()) == ([KEY, MANIFEST], [])


@pytest.mark.parametrize(
    ("begins", "left"),
    [pytest.param("uploads", [], id="create"), pytest.param("uploadId=", [KEY, MANIFEST], id="complete")],
)
def test_a_cancel_waits_for_the_request_that_the_bucket_is_at(
    store: Store, spoiled: Front, tmp_path: Path, begins: str, left: list[str]
) -> None:
    """Otherwise the bucket would begin an upload that no record names, or make the object appear, after the run has tidied up."""
    tidied, main, signalled = threading.Event(), threading.get_ident(), list[str]()

    def rule(request: Request) -> None:
        if request.method == "POST" and request.query.startswith(begins) and not signalled:
            signalled.append(request.query)
            signal.pthread_kill(main, signal.SIGUSR1)
            tidied.wait(0.5)  # this is set only if the run does not wait
        elif request.method == "DELETE":
            tidied.set()

    def cancelled(*_: object) -> None:
        raise Interrupt("cancelled")

    spoiled.rule = rule
    before = signal.signal(signal.SIGUSR1, cancelled)
    try:
        with pytest.raises(Interrupt, match="cancelled"):
            wide(5_001).write(FakeServices(tmp_path / "ledger"), store.at(KEY, endpoint=spoiled.endpoint))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (len(signalled), store.names(), store.uploads()) == (1, left, [])
    if left:
        assert verify(store.at(KEY)).rows == 5_001
