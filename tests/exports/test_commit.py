"""The commit protocol: one whole file or none, whoever dies, freezes or comes second."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pytest

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportError, ExportRejected, Interrupt, InterruptReason, TargetExists
from steadyworker.exports import commit, hashed
from steadyworker.exports.folders import StageFolders
from steadyworker.exports.hashed import HashedFile
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stage import STAGES, ExportTarget, StagingDir, manifest_path, new_stage, reap, stages
from steadyworker.exports.verifying import verify
from tests.exports.kit import BY, COLUMNS, TOTALS, FakeServices, Payments, killed, undisturbed


def visible(folder: Path, *shown: str) -> list[str]:
    """What is in a folder; of `.sw-stage` only on request."""
    return sorted(path.name for path in folder.iterdir() if path.name != STAGES or path.name in shown)


@pytest.mark.parametrize(
    ("point", "left"),
    [
        pytest.param("link-1", [], id="stage complete, before link"),
        pytest.param("link-2", ["payments.csv"], id="between link and manifest link"),
        pytest.param("word", ["payments.csv", "payments.csv.manifest.json"], id="before the ledger's word"),
    ],
)
def test_kill_points_roll_forward_without_computing(tmp_path: Path, point: str, left: list[str]) -> None:
    out, ledger = tmp_path / "out" / "payments.csv", tmp_path / "ledger"
    assert killed(out, ledger, point).returncode == -signal.SIGKILL
    assert visible(out.parent) == left

    source = Payments()
    services = FakeServices(ledger, fence=2)
    manifest = source.export().write(services, out, totals=TOTALS, by=BY)

    assert source.starts == []  # computed once, by the run that was killed
    assert visible(out.parent, STAGES) == ["payments.csv", "payments.csv.manifest.json"]
    assert manifest == Manifest.load(manifest_path(out)) == verify(out)
    assert (manifest.sha256, manifest.totals) == (undisturbed(tmp_path).sha256, undisturbed(tmp_path).totals)
    assert manifest.fence == 1
    assert services.leaves == (1 if point == "link-1" else 0)
    assert (b"committed" in (services.export_state() or b"")) == (point == "link-1")  # one that was linked is no news


def test_each_step_is_durable_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What power cuts would show: bytes on the disk, then the ledger's position; manifest, folder, leave, links, folder, word."""
    out = tmp_path / "deep" / "out" / "payments.csv"
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def seen_fsync(descriptor: int) -> None:
        steps.append("fsync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def seen_link(source: Path, target: Path) -> None:
        steps.append("link " + target.name)
        link(source, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "link", seen_link)
    services = FakeServices(
        tmp_path / "ledger",
        on_leave=lambda: steps.append("leave"),
        on_save=lambda value: steps.append("position" if value and b"committed" not in value else "word"),
    )
    Payments(3_000).export().write(services, out)
    digest = ExportTarget.of(out).digest
    assert steps == [
        *[f"fsync {name}" for name in ("deep", tmp_path.name)],  # that have the new folders in them
        *[f"fsync {name}" for name in ("uid-1", STAGES, "out", "1")],  # and the stage's
        *["fsync data", f"fsync {digest}", "position"],
        *["fsync data", "fsync manifest.json.new", f"fsync {digest}"],
        *["leave", "link payments.csv", "link payments.csv.manifest.json", "fsync out", "word"],
    ]


def test_a_second_run_is_answered_from_the_manifest(tmp_path: Path) -> None:
    out = tmp_path / "payments.csv"
    first = Payments().export().write(FakeServices(tmp_path / "ledger"), out)
    source = Payments()
    services = FakeServices(tmp_path / "ledger", fence=2)
    assert source.export().write(services, out) == first
    assert (source.starts, services.leaves) == ([], 0)


def test_a_file_in_place_shares_its_bytes_with_no_stage(tmp_path: Path) -> None:
    """A report that its user deletes must free its disk."""
    out = tmp_path / "out" / "payments.csv"
    Payments().export().write(FakeServices(tmp_path / "ledger"), out)
    assert visible(out.parent, STAGES) == ["payments.csv", "payments.csv.manifest.json"]
    assert [path.stat().st_nlink for path in out.parent.iterdir()] == [1, 1]


@pytest.mark.parametrize("reason", ["cancelled", "shutdown", "fenced"])
@pytest.mark.parametrize("where", ["among its rows", "before its commit"])
def test_a_cancelled_job_leaves_no_stage_and_every_other_interrupted_one_does(
    tmp_path: Path, reason: InterruptReason, where: str
) -> None:
    out, ledger = tmp_path / "out" / "payments.csv", tmp_path / "ledger"

    def interrupted(*_: object) -> None:
        raise Interrupt(reason)

    services = FakeServices(ledger, fence=2)
    if where == "before its commit":
        services.on_leave = interrupted
    else:
        services.on_progress = interrupted
    with pytest.raises(Interrupt):
        Payments().export().write(services, out)
    left = [] if reason == "cancelled" else [STAGES]
    assert visible(out.parent, STAGES) == left


@pytest.mark.parametrize("links", [1, 2], ids=["after the file's link", "after the manifest's link"])
def test_a_cancel_between_the_links_leaves_a_file_with_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: int
) -> None:
    """A signal raises it in the handler's thread, at any line of the commit."""
    out = tmp_path / "out" / "payments.csv"
    link, made = os.link, []

    def slow(source: Path, target: Path) -> None:
        link(source, target)
        made.append(target)
        if len(made) == links:
            raise Interrupt("cancelled")

    monkeypatch.setattr(os, "link", slow)
    with pytest.raises(Interrupt, match="cancelled"):
        Payments().export().write(FakeServices(tmp_path / "ledger"), out)
    assert visible(out.parent, STAGES) == ["payments.csv", "payments.csv.manifest.json"]
    assert verify(out).uid == "uid-1"


def test_a_stale_run_is_refused_leave_and_touches_nothing(tmp_path: Path) -> None:
    """The first run is frozen past its lease before it asks for leave; the second has not finished."""
    out = tmp_path / "out" / "payments.csv"
    stale = FakeServices(tmp_path / "ledger", fence=1)
    FakeServices(tmp_path / "ledger", fence=2)
    with pytest.raises(Interrupt, match="fenced"):
        Payments().export(save_rows=10**9).write(stale, out)
    assert visible(out.parent) == []


def test_a_stale_run_leaves_what_the_second_run_published(tmp_path: Path) -> None:
    """The first run is frozen in the middle of its rows; when it goes on, the second is done."""
    out, ledger = tmp_path / "out" / "payments.csv", tmp_path / "ledger"
    answers: list[Manifest] = []

    def frozen(done: float | None) -> None:
        if not answers:
            answers.append(Payments().export().write(FakeServices(ledger, fence=2), out))

    with pytest.raises(Interrupt, match="fenced"):
        Payments(5_000).export().write(FakeServices(ledger, on_progress=frozen), out)
    assert answers == [verify(out)]
    assert answers[0].fence == 2


def test_frozen_between_leave_and_link_one_whole_file_whoever_wins(tmp_path: Path) -> None:
    """A second run takes over at that very moment, rolls the first one's stage forward, and both answer the same."""
    out = tmp_path / "out" / "payments.csv"
    ledger = tmp_path / "ledger"
    second_source = Payments()
    answers: list[Manifest] = []

    def take_over() -> None:
        answers.append(second_source.export().write(FakeServices(ledger, fence=2), out))

    with pytest.raises(Interrupt, match="fenced"):  # the first run's word to the ledger comes too late
        Payments().export().write(FakeServices(ledger, fence=1, on_leave=take_over), out)
    assert second_source.starts == []
    assert answers == [verify(out)]
    assert visible(out.parent) == ["payments.csv", "payments.csv.manifest.json"]


def test_the_loser_of_the_link_gives_the_winners_manifest_to_the_winners_file(tmp_path: Path) -> None:
    """Two complete stages of one job with different bytes: file and manifest are of the same stage."""
    out = tmp_path / "payments.csv"
    target = ExportTarget.of(out)
    services = FakeServices(tmp_path / "ledger", fence=2)

    def frozen_first_run_wakes_and_links() -> None:
        stage = new_stage(target, services.uid, 1)
        stage.data.write_bytes(b"first\n")
        stage.complete(manifest_of(b"first\n", fence=1))
        os.link(stage.data, out)

    services.on_leave = frozen_first_run_wakes_and_links
    manifest = Payments(3).export().write(services, out)
    assert (manifest.fence, out.read_bytes()) == (1, b"first\n")
    assert Manifest.load(manifest_path(out)) == manifest
    assert manifest.sha256 == hashlib.sha256(out.read_bytes()).hexdigest()


def manifest_of(data: bytes, *, fence: int, uid: str = "uid-1") -> Manifest:
    return Manifest(
        uid=uid,
        key="payments-17",
        fence=fence,
        name="payments.csv",
        query="test",
        columns=COLUMNS,
        rows=1,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        format={"name": "csv"},
        created_at="2026-01-01T00:00:00+00:00",
    )


def a_file(out: Path) -> None:
    out.write_text("not ours")


def a_directory(out: Path) -> None:
    out.mkdir()


def a_link(out: Path) -> None:
    out.symlink_to(out.with_name("elsewhere"))


def anothers_manifest(out: Path) -> None:
    manifest_path(out).write_bytes(manifest_of(b"", fence=1, uid="uid-2").dump())


def another_jobs_file(out: Path) -> None:
    out.write_text("")
    anothers_manifest(out)


def our_file_changed(out: Path) -> None:
    out.write_text("longer than it was")
    manifest_path(out).write_bytes(manifest_of(b"", fence=1).dump())


@pytest.mark.parametrize(
    ("put", "says"),
    [
        (a_file, "no manifest of a SteadyWorker job"),
        (a_directory, "not a regular file"),
        (a_link, "not a regular file"),
        (anothers_manifest, "without its file"),
        (
            another_jobs_file,
            "was made by job uid-2 of key 'payments-17'; this job, job uid-1 of key 'payments-17' in queue 'daily', did not make it. Put job.name into the file's name",
        ),
        (our_file_changed, "was changed after this job made it"),
    ],
)
def test_what_another_put_there_stays_and_is_named(tmp_path: Path, put: object, says: str) -> None:
    out = tmp_path / "payments.csv"
    assert callable(put)
    put(out)
    before = sorted((path.name, path.lstat().st_ino) for path in tmp_path.iterdir())
    source = Payments()
    with pytest.raises(TargetExists, match=f"^target exists: .*{says}"):
        source.export().write(FakeServices(tmp_path / "elsewhere ledger"), out)
    assert source.starts == []
    after = sorted((path.name, path.lstat().st_ino) for path in tmp_path.iterdir() if "ledger" not in path.name)
    assert after == before


def test_another_job_that_links_first_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "payments.csv"
    services = FakeServices(tmp_path / "ledger", on_leave=lambda: a_file(out))
    with pytest.raises(TargetExists):
        Payments().export().write(services, out)
    assert out.read_text() == "not ours"
    assert not manifest_path(out).exists()


def test_a_file_that_its_user_moved_away_is_made_again(tmp_path: Path) -> None:
    """Its manifest was left behind; the stage is gone, so the rows are computed again."""
    out = tmp_path / "payments.csv"
    first = Payments().export().write(FakeServices(tmp_path / "ledger"), out)
    out.unlink()
    source = Payments()
    again = source.export().write(FakeServices(tmp_path / "ledger", fence=2), out)
    assert source.starts == [0]
    assert (again.sha256, again.fence) == (first.sha256, 2)
    assert verify(out) == again


def test_a_complete_stage_whose_data_was_cut_is_not_published(tmp_path: Path) -> None:
    out, ledger = tmp_path / "out" / "payments.csv", tmp_path / "ledger"
    killed(out, ledger, "link-1")
    data = stages(ExportTarget.of(out), "uid-1")[0].data
    os.truncate(data, data.stat().st_size - 1)
    source = Payments()
    manifest = source.export().write(FakeServices(ledger, fence=2), out, totals=TOTALS, by=BY)
    assert source.starts == [0]
    assert manifest.sha256 == undisturbed(tmp_path).sha256


def test_a_full_disk_gives_everything_back(tmp_path: Path) -> None:
    out, ledger = tmp_path / "out" / "payments.csv", tmp_path / "ledger"
    ended = killed(out, ledger, "file-size")
    assert ended.returncode == 1
    assert ended.stdout.startswith("ExportError: Expected room for the export under")
    assert visible(out.parent) == []
    assert stages(ExportTarget.of(out), "uid-1") == []
    assert not FakeServices(ledger, fence=2).export_state()  # a position was saved before, and is forgotten
    source = Payments()
    manifest = source.export().write(FakeServices(ledger, fence=2), out)
    assert source.starts == [0]
    assert manifest.sha256 == undisturbed(tmp_path).sha256


@pytest.mark.parametrize(
    "full", ["the stage's manifest", "the file's link", "the manifest's link", "the ledger's word"]
)
def test_a_disk_that_is_full_at_the_commit_costs_a_run_and_the_next_one_has_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out, link = tmp_path / "out" / "payments.csv", os.link
    services = FakeServices(tmp_path / "ledger")
    with monkeypatch.context() as patch:
        if full == "the stage's manifest":
            patch.setattr(StagingDir, "complete", no_room)
        elif full == "the ledger's word":
            services.on_save = lambda value: no_room() if value and b"committed" in value else None
        else:
            which = ".json" if full == "the manifest's link" else ".csv"
            patch.setattr(os, "link", lambda a, b, **k: no_room() if str(b).endswith(which) else link(a, b, **k))
        with pytest.raises((ExportError, OSError), match="No space left"):
            Payments().export().write(services, out)
    source = Payments()
    manifest = source.export().write(FakeServices(tmp_path / "ledger", fence=2), out)
    assert source.starts == ([0] if full == "the stage's manifest" else []), "what is complete is not computed again"
    assert visible(out.parent, STAGES) == ["payments.csv", "payments.csv.manifest.json"]
    assert manifest == verify(out)
    assert manifest.sha256 == undisturbed(tmp_path).sha256


def test_a_file_system_without_hard_links_is_named_and_the_work_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(ExportError, match="file system with hard links") as caught:
        Payments().export().write(FakeServices(tmp_path / "ledger"), tmp_path / "payments.csv")
    assert str(stages(ExportTarget.of(tmp_path / "payments.csv"), "uid-1")[0].data) in str(caught.value)


def test_folders_are_made_and_several_files_of_one_job_do_not_meet(tmp_path: Path) -> None:
    services = FakeServices(tmp_path / "ledger")
    for name in ("a.csv", "b.csv"):
        Payments(3).export().write(services, tmp_path / "deep" / "er" / name)
    assert len(visible(tmp_path / "deep" / "er")) == 4


def test_the_next_export_reaps_the_stages_of_settled_jobs_only(tmp_path: Path) -> None:
    for uid in ("done", "running", "unknown"):
        new_stage(ExportTarget.of(tmp_path / f"{uid}.csv"), uid, 1)
    services = FakeServices(tmp_path / "ledger", uid="next", gone=frozenset({"done", "next"}))
    Payments(3).export().write(services, tmp_path / "next.csv")
    assert sorted(path.name for path in (tmp_path / STAGES).iterdir()) == ["running", "unknown"]


def test_the_stages_of_jobs_that_every_ledger_has_forgotten_are_reaped(tmp_path: Path) -> None:
    """A ledger keeps the row of a job that ended for at most 30 days, and every other row for as long as the job lives."""
    for uid, days in (("young", 29), ("old", 31)):
        new_stage(ExportTarget.of(tmp_path / f"{uid}.csv"), uid, 1)
        then = SystemClock().wall() - days * 86_400
        os.utime(tmp_path / STAGES / uid, (then, then))
    assert reap(tmp_path, lambda _: ()) == ("old",)
    assert [path.name for path in (tmp_path / STAGES).iterdir()] == ["young"]


def test_stages_of_ended_jobs_are_reaped_in_every_folder_that_a_job_exported_to(tmp_path: Path) -> None:
    """A folder for each month, as reports have them: no later job exports to an old one."""
    place = tmp_path / "state" / "stages"
    folders = {name: tmp_path / "out" / name for name in ("march", "april", "may", "gone")}

    def stop(_: object) -> None:
        raise Interrupt("shutdown")

    for name, folder in folders.items():
        services = FakeServices(tmp_path / "ledger", uid=name, on_progress=stop)
        with pytest.raises(Interrupt):
            Payments().export().write(services, folder / "payments.csv")
        assert services.folders == [folder]
        StageFolders(place).remember(bytes(folder))
    shutil.rmtree(folders["gone"])

    def ended(uids: Sequence[str]) -> Iterable[str]:
        return {"march", "may"} & set(uids)

    StageFolders(place).purge(ended)
    assert {name for name, folder in folders.items() if (folder / STAGES).exists()} == {"april"}
    assert len(list(place.iterdir())) == 4, "a job may be about to make its stage"
    hour_ago = SystemClock().wall() - 3601
    for entry in place.iterdir():
        os.utime(entry, (hour_ago, hour_ago))
    StageFolders(place).purge(ended)
    assert [entry.read_text() for entry in place.iterdir()] == [str(folders["april"])]


def test_a_memory_of_folders_that_cannot_be_written_fails_no_export(tmp_path: Path) -> None:
    (tmp_path / "stages").touch()
    StageFolders(tmp_path / "stages").remember(b"/out")
    StageFolders(tmp_path / "stages").purge(lambda _: ())


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("s3://bucket/file.csv", "local path"),
        ("file:///tmp/file.csv", "local path"),
        (Path("s3://bucket/file.csv"), "local path"),
        ("", "path of a file"),
        ("out/", "path of a file"),
        ("out/..", "path of a file"),
        ("out/new\nline.csv", "control characters"),
        ("out/\x85.csv", "control characters"),
        ("out/\udcff.csv", "in UTF-8"),
        ("é" * 121 + ".csv", "at most 241 bytes"),
        ("payments.csv.manifest.json", "does not end in"),
        (".sw-stage", "does not end in"),
        ("out/.sw-stage/payments.csv", "outside of .sw-stage"),
    ],
)
def test_paths_that_cannot_be_a_target_are_refused_with_the_reason(to: str | Path, says: str) -> None:
    with pytest.raises(ExportRejected, match=says):
        ExportTarget.of(to)


@pytest.mark.parametrize("folder", ["/proc/none", "/" + "x" * 300])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, folder: str) -> None:
    with pytest.raises(ExportError, match=f"Expected a folder to export to, got '{folder}': [A-Z].*: choose another"):
        Payments(1).export().write(FakeServices(tmp_path / "ledger"), Path(folder, "payments.csv"))


def test_a_parent_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ExportError, match=r"Expected a folder to export to, got '.*out', which is a file"):
        Payments(1).export().write(FakeServices(tmp_path / "ledger"), tmp_path / "out" / "payments.csv")


def test_a_file_whose_disk_began_early_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces below, at and above what the disk is told to begin with; it is told of each byte once."""
    begun: list[tuple[int, int]] = []
    begin = hashed._begin

    def told(file: int, start: int, length: int) -> None:
        begun.append((start, length))
        begin(file, start, length)

    monkeypatch.setattr(hashed, "_begin", told)
    pieces = [bytes([number]) * size for number, size in enumerate((5 << 20, 3 << 20, 1, 20 << 20, 7))]
    with HashedFile(tmp_path / "file") as file:
        for piece in pieces:
            file.write(piece)
        file.sync()
        whole = b"".join(pieces)
        assert (file.bytes, file.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
        assert (tmp_path / "file").read_bytes() == whole
    assert begun == [(0, 8 << 20), (8 << 20, (20 << 20) + 1)]


@pytest.mark.parametrize("replace", [False, True])
def test_the_reaper_links_the_manifest_that_a_killed_job_could_not_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    """The job ended without another run: it was cancelled, or had no attempts left."""
    out = tmp_path / "out" / "payments.csv"
    if replace:
        Payments(3).export().write(FakeServices(tmp_path / "0", uid="uid-0"), out)

    class Killed(BaseException):
        """The end of a run after which nothing is tidied up, as after a kill."""

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as mortal:
        mortal.setattr(commit, "_link_manifest", die)
        with pytest.raises(Killed):
            Payments(9).export().write(
                FakeServices(tmp_path / "1"), out, if_exists="replace-own" if replace else "fail"
            )
    assert reap(out.parent, lambda uids: uids) == ("uid-1",)
    assert visible(out.parent, STAGES) == ["payments.csv", "payments.csv.manifest.json"]
    assert (verify(out).rows, verify(out).uid) == (9, "uid-1")


@pytest.mark.parametrize("name", ["../secret.csv", "/secret.csv", "secret.csv"])
def test_the_reaper_believes_no_forged_stage(tmp_path: Path, name: str) -> None:
    """Who may write into the folder could otherwise put a manifest beside each file that the worker may see."""
    out, secret = tmp_path / "out", tmp_path / "secret.csv"
    real = Payments(9).export().write(FakeServices(tmp_path / "1"), out / "payments.csv")
    secret.write_bytes((out / "payments.csv").read_bytes())
    if name == "secret.csv":
        (out / name).symlink_to(secret)
    forged = msgspec.structs.replace(
        real, name=name.replace("/secret", f"{tmp_path}/secret") if name[0] == "/" else name
    )
    stage = StagingDir(stages_path := out / STAGES / real.uid / "1" / ExportTarget.of(out / "secret.csv").digest, 1)
    stages_path.mkdir(parents=True)
    stage.data.symlink_to(secret)
    stage.manifest.write_bytes(forged.dump())
    assert stage.read() is not None
    assert reap(out, lambda uids: uids) == (real.uid,)
    assert [*tmp_path.rglob("secret.csv.manifest.json")] == []
