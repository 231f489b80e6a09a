"""What stays, what is refused and what is named when a store, another job or another program does what no run expects."""

from __future__ import annotations

import errno
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow.fs import LocalFileSystem

from steadyworker.errors import ExportError, ExportRejected, Interrupt, TargetExists
from steadyworker.exports import RowExport
from steadyworker.exports.cli.verify import command
from steadyworker.exports.formats import Csv
from steadyworker.exports.manifest import Manifest, ManifestFile
from steadyworker.exports.stores import files, filesystem
from steadyworker.exports.stores.reaping import reap_address, reap_store
from steadyworker.exports.stores.store import ConditionError, Label
from steadyworker.exports.stores.trial import tried
from steadyworker.exports.stores.url import StoreUrl
from steadyworker.exports.verifying import verify
from tests.exports.kit import FakeServices, Payments
from tests.exports.stores.memory import Memory

pytestmark = pytest.mark.xdist_group("stores")

FOLDER = "gs://bucket/out/wide"


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return Memory(monkeypatch)


def test_verify_writes_no_file_outside_of_its_own_folder(memory: Memory, tmp_path: Path) -> None:
    """A key can be `out/wide//etc/passwd`, and the path after `out/wide/` is absolute then."""
    manifest = Payments(9).export().write(FakeServices(tmp_path / "ledger"), FOLDER, split_rows=3, format=Csv())
    outside = tmp_path / "outside.txt"
    outside.write_text("precious")
    memory.put(f"out/wide/{outside}", b"")
    assert verify(FOLDER) == manifest
    assert outside.read_text() == "precious"
    for name in (str(outside), "../outside.txt", "a/./b", "a//b"):
        listed = ManifestFile(name=name, rows=1, bytes=5, sha256="0" * 64)
        evil = msgspec.structs.replace(manifest, files=(*(manifest.files or ()), listed))
        memory.put("out/wide/_manifest.json", evil.dump())
        memory.put(f"out/wide/{name}", b"owned")
        with pytest.raises(ExportError, match=r"Expected names of files in the manifest .*, got "):
            verify(FOLDER)
    assert outside.read_text() == "precious"


def test_verify_finds_a_file_that_the_manifest_does_not_list(memory: Memory, tmp_path: Path) -> None:
    Payments(9).export().write(FakeServices(tmp_path / "ledger"), FOLDER, split_rows=3, format=Csv())
    memory.put("out/wide/more/stray.csv", b"not ours")
    with pytest.raises(ExportError, match=r"expected no file more/stray\.csv"):
        verify(FOLDER)


def test_verify_names_a_key_that_is_a_file_and_a_folder(memory: Memory, tmp_path: Path) -> None:
    Payments(9).export().write(FakeServices(tmp_path / "ledger"), FOLDER, split_rows=3, format=Csv())
    for key in ("out/wide/a", "out/wide/a/b"):
        memory.put(key, b"")
    with pytest.raises(ExportError, match=rf"Expected to copy {FOLDER} to this host, got "):
        verify(FOLDER)


def test_of_two_jobs_with_one_folder_the_first_one_wins_whatever_the_names_of_their_files(
    memory: Memory, tmp_path: Path
) -> None:
    """Each of them puts a file before the other one's has its name."""
    ends: list[str] = []

    def rows(merchants: str) -> RowExport:
        return RowExport([[1, merchant] for merchant in merchants], columns=["id", "merchant"])

    def second() -> None:
        with pytest.raises(TargetExists, match=f"{FOLDER} is the target of job uid-1, which has not ended"):
            rows("bcd").write(
                FakeServices(tmp_path / "2", uid="uid-2", key="2"), FOLDER, partition_by=("merchant",), format=Csv()
            )
        ends.append("refused")

    first = FakeServices(tmp_path / "1", on_leave=lambda: None if ends else second())
    manifest = rows("abc").write(first, FOLDER, partition_by=("merchant",), format=Csv())
    assert (ends, verify(FOLDER)) == (["refused"], manifest)
    assert [name.split("/")[2] for name in memory.names()] == [
        "_manifest.json",
        *(f"merchant={merchant}" for merchant in "abc"),
    ]


def test_the_claim_of_a_job_that_has_ended_keeps_no_other_job_out(memory: Memory, tmp_path: Path) -> None:
    """A run that was frozen between its record and its claim puts the claim after its job has ended."""
    export = partial(Payments(9).export().write, to=FOLDER, split_rows=3, format=Csv())
    keys = list[str]()
    real = memory.put

    def put(key: str, *more: Any, **options: Any) -> None:
        real(key, *more, **options)
        keys.extend([key] if key.endswith(".claim") else [])

    memory.put = put  # type: ignore[method-assign]
    export(FakeServices(tmp_path / "1"))
    memory.delete([name for name in memory.names() if name.startswith("out/wide/")])
    real(keys[0], b"uid-1", label=Label("uid-1"))
    manifest = export(FakeServices(tmp_path / "2", uid="uid-2", key="2", gone=frozenset({"uid-1"})))
    assert (verify(FOLDER), len(memory.names())) == (manifest, 4)


def test_a_run_that_was_frozen_removes_no_file_of_a_later_run(memory: Memory, tmp_path: Path) -> None:
    """The frozen run's source had fewer rows than those of the runs before and after it."""
    ledger, real = tmp_path / "ledger", memory.put
    export = {rows: partial(Payments(rows).export().write, to=FOLDER, split_rows=3, format=Csv()) for rows in (9, 15)}
    made: list[Manifest] = []

    def die(key: str, *more: Any, **options: Any) -> None:
        if key.endswith("_manifest.json"):
            raise Killed
        real(key, *more, **options)

    def freeze(key: str, *more: Any, **options: Any) -> None:
        if key.endswith("part-00003.csv") and not made:
            memory.put = real  # type: ignore[method-assign]
            made.append(export[15](FakeServices(ledger, fence=3)))
        real(key, *more, **options)

    memory.put = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        export[15](FakeServices(ledger))
    memory.put = freeze  # type: ignore[method-assign]
    shutil.rmtree(next(tmp_path.glob("steadyworker-*")))  # the next run is on another host
    with pytest.raises(Interrupt, match="fenced"):
        export[9](FakeServices(ledger, fence=2))
    assert made == [verify(FOLDER)]


class Killed(BaseException):
    """The end of a run after which nothing is tidied up, as after a kill."""


def die_at(memory: Memory, end: str, *, after: bool = False) -> None:
    """Let a run die at the put of a key with this end."""
    real = memory.put

    def put(key: str, *more: Any, **options: Any) -> None:
        if not key.endswith(end) or after:
            real(key, *more, **options)
        if key.endswith(end):
            memory.put = real  # type: ignore[method-assign]
            raise Killed

    memory.put = put  # type: ignore[method-assign]


def test_the_reaper_puts_the_manifest_that_a_killed_job_could_not_put(memory: Memory, tmp_path: Path) -> None:
    """The job ended without another run: it was cancelled, or had no attempts left."""
    to = "gs://bucket/out/pay.csv"
    die_at(memory, ".manifest.json")
    with pytest.raises(Killed):
        Payments(9).export().write(FakeServices(tmp_path / "1"), to)
    assert [name for name in memory.names() if ".sw-stage" not in name] == ["out/pay.csv"]
    assert reap_store(memory, lambda uids: uids) == (("uid-1",), None)
    assert memory.names() == ["out/pay.csv", "out/pay.csv.manifest.json"]
    assert (verify(to).rows, verify(to).uid) == (9, "uid-1")


def test_a_manifest_that_the_store_refuses_stays_in_the_stage(memory: Memory, tmp_path: Path) -> None:
    die_at(memory, ".manifest.json")
    with pytest.raises(Killed):
        Payments(9).export().write(FakeServices(tmp_path / "1"), "gs://bucket/out/pay.csv")
    real, names = memory.put, memory.names()

    def busy(*_: object, **__: object) -> None:
        raise ExportError("busy")

    memory.put = busy  # type: ignore[method-assign]
    done = reap_store(memory, lambda uids: uids)
    assert (done.uids, str(done.error), memory.names()) == ((), "busy", names)
    memory.put = real  # type: ignore[method-assign]
    assert reap_store(memory, lambda uids: uids).uids == ("uid-1",)


@pytest.mark.parametrize("several", [{}, {"split_rows": 3}], ids=["file", "folder"])
def test_what_a_reader_takes_away_does_not_come_back_and_takes_nothing_with_it(
    memory: Memory, tmp_path: Path, several: dict[str, Any]
) -> None:
    """The store let the job not remove its stage; the reader takes the manifest first."""
    real = memory.delete

    def refuse(keys: list[str]) -> None:
        raise ExportError(f"busy: {keys}")

    memory.delete = refuse  # type: ignore[method-assign]
    Payments(9).export().write(FakeServices(tmp_path / "1"), FOLDER, format=Csv(), **several)
    memory.delete = real  # type: ignore[method-assign]
    real([name for name in memory.names() if name.endswith("manifest.json")])
    left = [name for name in memory.names() if ".sw-stage" not in name]
    assert reap_store(memory, {"uid-1"}.intersection) == (("uid-1",), None)
    assert memory.names() == left
    assert len(left) == (3 if several else 1)


def test_the_reaper_removes_no_folder_whose_manifest_it_cannot_read(memory: Memory, tmp_path: Path) -> None:
    """A newer SteadyWorker has published it, and was killed before it removed its stage."""
    die_at(memory, "_manifest.json", after=True)
    with pytest.raises(Killed):
        Payments(9).export().write(FakeServices(tmp_path / "1"), FOLDER, split_rows=3, format=Csv())
    key = "out/wide/_manifest.json"
    content, etag, label = memory.objects_by_key[key]
    memory.objects_by_key[key] = (content.replace(b'"schema": 1', b'"schema": 99'), etag, label)
    assert b'"schema": 99' in memory.objects_by_key[key][0]
    assert reap_store(memory, {"uid-1"}.intersection) == (("uid-1",), None)
    assert len(memory.names()) == 4


def test_a_job_waits_for_one_refusal_of_its_store_and_not_for_each_earlier_job(memory: Memory, tmp_path: Path) -> None:
    refused: list[list[str]] = []

    def refuse(keys: list[str]) -> None:
        refused.append(keys)
        raise ExportRejected("no right")

    memory.delete = refuse  # type: ignore[method-assign]
    gone = frozenset(f"uid-{number}" for number in range(5))
    for number in range(6):
        services = FakeServices(tmp_path / str(number), uid=f"uid-{number}", key=str(number), gone=gone)
        Payments(9).export().write(services, f"gs://bucket/out/{number}.csv")
    assert len(refused) == 6 + 5  # one at each end, and one at the beginning of each but the first


def test_the_newest_run_puts_its_manifest_over_that_of_a_run_with_other_rows(memory: Memory, tmp_path: Path) -> None:
    """The newest run puts the file that an earlier one has made on its host, so its manifest has the lower fence."""
    ledger, real = tmp_path / "ledger", memory.put
    export = {rows: partial(Payments(rows).export().write, to=FOLDER, split_rows=3, format=Csv()) for rows in (9, 12)}
    (tmp_path / "other").mkdir()
    die_at(memory, "_manifest.json")
    with pytest.raises(Killed):
        export[9](FakeServices(ledger))
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("TMPDIR", str(tmp_path / "other"))
        die_at(memory, "_manifest.json")
        with pytest.raises(Killed):
            export[12](FakeServices(ledger, fence=2))
    late = Manifest.load(next((tmp_path / "other").rglob("manifest.json")))

    def overtaken(key: str, *more: Any, **options: Any) -> None:
        if key.endswith("_manifest.json"):
            memory.put = real  # type: ignore[method-assign]
            real(key, late.dump(), label=options["label"])  # the frozen run's request arrives
        real(key, *more, **options)

    memory.put = overtaken  # type: ignore[method-assign]
    manifest = export[9](FakeServices(ledger, fence=3))
    assert (late.fence, manifest.fence, verify(FOLDER)) == (2, 1, manifest)


def test_a_claim_that_was_taken_over_twice_lets_only_the_last_job_go_on(memory: Memory, tmp_path: Path) -> None:
    """Such stores compare before the request, so two jobs can both take over the claim of a job that has ended."""
    real = memory.put

    def put(key: str, data: Any, **options: Any) -> None:
        real(key, data, **options)
        if key.endswith(".claim"):
            memory.put = real  # type: ignore[method-assign]
            real(key, data, label=Label("uid-2", target=options["label"].target))

    memory.put = put  # type: ignore[method-assign]
    with pytest.raises(TargetExists, match="is the target of job uid-2"):
        Payments(9).export().write(FakeServices(tmp_path / "1"), FOLDER, split_rows=3, format=Csv())
    assert [name for name in memory.names() if ".sw-stage" not in name] == []


def test_what_a_busy_store_keeps_of_an_ended_job_is_removed_by_a_retry(memory: Memory, tmp_path: Path) -> None:
    """Another ended job's stage, which comes first in the list and cannot be removed, does not hide it."""
    for folder, uid in (("gs://bucket/out/other", "uid-0"), (FOLDER, "uid-1")):
        die_at(memory, "_manifest.json")
        with pytest.raises(Killed):
            Payments(9).export().write(FakeServices(tmp_path / uid, uid=uid), folder, split_rows=3, format=Csv())
    real, busy = memory.delete, [True]

    def delete(keys: list[str]) -> None:
        if "out/other/" in keys[0] or (busy and "part-00001" in keys[0] and busy.pop()):
            raise ExportError("busy")
        real(keys)

    memory.delete = delete  # type: ignore[method-assign]
    export = partial(Payments(6).export().write, to=FOLDER, split_rows=3, format=Csv())
    gone = frozenset({"uid-0", "uid-1"})
    with pytest.raises(ExportError, match="no file of the ended job uid-1 in") as caught:
        export(FakeServices(tmp_path / "2", uid="uid-2", key="2", gone=gone))
    assert not isinstance(caught.value, ExportRejected)
    manifest = export(FakeServices(tmp_path / "2", uid="uid-2", key="2", fence=2, gone=gone))
    assert verify(FOLDER) == manifest


def test_the_files_of_a_published_folder_without_its_manifest_are_anothers(memory: Memory, tmp_path: Path) -> None:
    """No run removes them, so a retry would not help."""
    Payments(9).export().write(FakeServices(tmp_path / "1"), FOLDER, split_rows=3, format=Csv())
    memory.delete(["out/wide/_manifest.json"])
    services = FakeServices(tmp_path / "2", uid="uid-2", key="2", gone=frozenset({"uid-1"}))
    with pytest.raises(TargetExists, match="was made by job uid-1"):
        Payments(9).export().write(services, FOLDER, split_rows=3, format=Csv())
    assert len(memory.names()) == 3


def test_times_of_a_list_are_read_in_each_form() -> None:
    at = datetime(2026, 11, 28, tzinfo=UTC)
    for info in ({"mtime": at}, {"last_modified": at.replace(tzinfo=None)}, {"mtime": at.timestamp()}):
        assert filesystem._put_at(info) == at


@pytest.mark.parametrize("theirs", [b"not ours", b""])
def test_the_reaper_puts_no_manifest_beside_another_object(memory: Memory, tmp_path: Path, theirs: bytes) -> None:
    die_at(memory, ".manifest.json")
    with pytest.raises(Killed):
        Payments(9).export().write(FakeServices(tmp_path / "1"), "gs://bucket/out/pay.csv")
    memory.put("out/pay.csv", theirs or memory.objects_by_key["out/pay.csv"][0])
    assert reap_store(memory, lambda uids: uids).uids == ("uid-1",)
    assert memory.names() == ["out/pay.csv"]


def test_a_folder_and_another_export_of_the_same_job_keep_apart(memory: Memory, tmp_path: Path) -> None:
    services = FakeServices(tmp_path / "ledger")
    summary = Payments(2).export().write(services, f"{FOLDER}/summary.csv")
    Payments(9).export().write(services, f"{FOLDER}/sub", split_rows=3, format=Csv())
    names = memory.names()
    with pytest.raises(TargetExists, match=r"/sub/.* is another export of this job"):
        Payments(9).export().write(services, FOLDER, split_rows=3, format=Csv())
    assert memory.names() == names
    assert verify(f"{FOLDER}/summary.csv") == summary


def test_a_folder_that_lost_a_file_is_not_reported_as_done(memory: Memory, tmp_path: Path) -> None:
    Payments(9).export().write(FakeServices(tmp_path / "ledger"), FOLDER, split_rows=3, format=Csv())
    kept = memory.objects_by_key.pop("out/wide/part-00002.csv")
    again = FakeServices(tmp_path / "ledger", fence=2)
    with pytest.raises(TargetExists, match=r"was changed after this job made it: .*part-00002\.csv.*, got none"):
        Payments(9).export().write(again, FOLDER, split_rows=3, format=Csv())
    memory.objects_by_key["out/wide/part-00002.csv"] = (kept[0], kept[1], Label("uid-2"))
    with pytest.raises(TargetExists, match="got an object of another job or program"):
        Payments(9).export().write(again, FOLDER, split_rows=3, format=Csv())


def test_a_manifest_of_a_frozen_run_over_the_files_of_another_is_replaced(memory: Memory, tmp_path: Path) -> None:
    """The first run freezes before its manifest; the second one has other rows, and dies before its manifest."""
    ledger, real, frozen = tmp_path / "ledger", memory.put, list[str]()
    export = {rows: partial(Payments(rows).export().write, to=FOLDER, split_rows=3, format=Csv()) for rows in (9, 12)}

    def put(key: str, *more: Any, **options: Any) -> None:
        if key.endswith("_manifest.json") and not frozen:
            frozen.append(key)
            (tmp_path / "other").mkdir()
            with pytest.MonkeyPatch.context() as elsewhere:
                elsewhere.setenv("TMPDIR", str(tmp_path / "other"))
                die_at(memory, "_manifest.json")
                with pytest.raises(Killed):
                    export[12](FakeServices(ledger, fence=2))
        real(key, *more, **options)

    memory.put = put  # type: ignore[method-assign]
    for file in range(1, 4):  # other bytes than those of the second run
        memory.objects_by_key.pop(f"out/wide/part-0000{file}.csv", None)
    first = FakeServices(ledger)
    with pytest.raises(Interrupt, match="fenced"):
        RowExport([[n] for n in range(9)], columns=["id"]).write(first, FOLDER, split_rows=3, format=Csv())
    with pytest.raises(ExportError):
        verify(FOLDER)
    shutil.rmtree(next(tmp_path.glob("steadyworker-*")))
    manifest = export[9](FakeServices(ledger, fence=3))
    assert (manifest.fence, verify(FOLDER)) == (3, manifest)


@pytest.mark.parametrize("several", [{}, {"split_rows": 3}], ids=["file", "folder"])
def test_a_store_that_lets_nothing_be_removed_gets_whole_exports(
    memory: Memory, tmp_path: Path, several: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """By a retention policy, or without the right; another job's stage that cannot be removed is no matter either."""

    def refuse(keys: list[str]) -> None:
        raise ExportRejected(f"no right to delete {keys}")

    memory.delete = refuse  # type: ignore[method-assign]
    memory.put("out/.sw-stage/uid-9.0123456789abcdef.1.json", b"{}")
    memory.put("out/.sw-stage/uid-9.garbage.json", b"{}")
    services = FakeServices(tmp_path / "ledger", gone=frozenset({"uid-9"}))
    manifest = Payments(9).export().write(services, FOLDER, format=Csv(), **several)
    assert verify(FOLDER) == manifest
    again = FakeServices(tmp_path / "ledger", fence=2)
    assert Payments(9).export().write(again, FOLDER, format=Csv(), **several) == manifest
    warned = [record for record in caplog.records if "export_stage_left" in str(record.msg)]
    assert len(warned) == 2


def test_one_stage_that_cannot_be_removed_keeps_no_other_one(memory: Memory, tmp_path: Path) -> None:
    for uid in ("uid-1", "uid-2", "uid-3"):
        die_at(memory, ".manifest.json")
        with pytest.raises(Killed):
            Payments(9).export().write(FakeServices(tmp_path / uid, uid=uid), f"gs://bucket/out/{uid}.csv")
    real = memory.delete

    def delete(keys: list[str]) -> None:
        if "uid-2." in keys[0]:
            raise ExportError("busy")
        real(keys)

    memory.delete = delete  # type: ignore[method-assign]
    done = reap_store(memory, lambda uids: uids)
    assert (done.uids, str(done.error)) == (("uid-1", "uid-3"), "busy")
    with pytest.raises(ExportError, match="busy"):
        reap_address(memory.address, lambda uids: uids)


def test_a_record_of_a_stage_is_only_for_what_is_beside_the_stage(memory: Memory, tmp_path: Path) -> None:
    other = Payments(9).export().write(FakeServices(tmp_path / "1"), "gs://bucket/other/x", split_rows=3, format=Csv())
    memory.delete(["other/x/_manifest.json"])
    record = msgspec.json.encode({"key": "other/x", "several": True})
    memory.put("out/.sw-stage/uid-1.0123456789abcdef.1.json", record)
    memory.address = StoreUrl("gs://bucket/out/y")
    assert reap_store(memory, lambda uids: uids).uids == ("uid-1",)
    assert len(memory.names()) == len(other.files or ())


def test_a_full_disk_of_verify_is_named(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Payments(9).export().write(FakeServices(tmp_path / "ledger"), "gs://bucket/out/pay.csv")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory, "copy_to", full)
    with pytest.raises(ExportError, match=r"got 'No space left on device': free disk space, set TMPDIR"):
        verify("gs://bucket/out/pay.csv")


def test_a_long_upload_reports_progress(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `stall_limit` would end it; each report waits here for the next piece of the file."""
    monkeypatch.setattr(files, "CHECK_EVERY", 0.001)
    services, reported, real = FakeServices(tmp_path / "ledger"), threading.Event(), memory.put
    seen = list[float]()

    def put(key: str, data: Any, **options: Any) -> None:
        if key == "out/pay.csv":
            whole = b""
            while piece := data.read(100):
                whole += piece
                reported.clear()
                assert reported.wait(30)
            data = whole
        real(key, data, **options)

    def progress(done: float | None) -> None:
        seen.append(done or 0)
        reported.set()

    memory.put, services.on_progress = put, progress  # type: ignore[method-assign]
    manifest = Payments(9).export().write(services, "gs://bucket/out/pay.csv")
    moved = [done for done in seen if done >= 100]
    assert (len(moved), moved[-1]) == (-(-manifest.bytes // 100), manifest.bytes)


def test_a_key_that_no_store_accepts_is_final(memory: Memory, tmp_path: Path) -> None:
    rows = RowExport([[1, "x" * 200, "y" * 200, "z" * 200]], columns=["id", "a", "b", "c"])
    with pytest.raises(ExportRejected, match=r"keys of at most 1,024 bytes, got .*shorten the folder's name"):
        rows.write(
            FakeServices(tmp_path / "ledger"),
            f"gs://bucket/{'k' * 200}/{'k' * 200}/{'k' * 200}",
            partition_by=("a", "b", "c"),
            format=Csv(),
        )
    assert memory.names() == []


class Hdfs(ArrowFSWrapper):  # type: ignore[misc]
    """A folder of this host as the partner of a test, by the class that reaches HDFS."""

    def __init__(self, **options: object) -> None:
        super().__init__(LocalFileSystem(), skip_instance_cache=options.get("skip_instance_cache"))

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("hdfs://").partition("/")[2]

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        del path
        return {}


def test_two_jobs_export_to_hdfs_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(filesystem, "_kind", lambda _: (Hdfs, {}))
    root, write, done = f"hdfs://host{tmp_path}/out", filesystem.FileSystem._write, list[Manifest]()

    def beside(self: filesystem.FileSystem, key: str, data: object, *more: object) -> None:
        write(self, key, data, *more)  # type: ignore[arg-type]
        if key.endswith(".new") and not isinstance(data, bytes) and "uid-1" in key:
            services = FakeServices(tmp_path / "other", uid="uid-2", key="another")
            done.append(Payments(8).export().write(services, f"{root}/other.csv"))

    monkeypatch.setattr(filesystem.FileSystem, "_write", beside)
    manifest = Payments(9).export().write(FakeServices(tmp_path / "ledger"), f"{root}/pay.csv")
    assert ([verify(f"{root}/pay.csv")], [verify(f"{root}/other.csv")]) == ([manifest], done)
    left = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert sorted(left) == ["other.csv", "other.csv.manifest.json", "pay.csv", "pay.csv.manifest.json"]


def test_the_trial_of_a_target_lists_and_reports_the_first_error(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(what: str) -> Callable[..., None]:
        def refused(*_: object, **__: object) -> None:
            raise ExportError(f"no right to {what}")

        return refused

    monkeypatch.setattr(memory, "delete", refuse("delete"))
    for what in ("put", "objects"):
        monkeypatch.setattr(memory, what, refuse(what))
        with pytest.raises(ExportError, match=f"no right to {what}"):
            tried(StoreUrl("gs://bucket/out/object"))


def test_an_interrupt_waits_for_the_request_that_puts_the_manifest(memory: Memory, tmp_path: Path) -> None:
    """As in fsspec, an error of the thread that waits does not end the request; then it would list files that the cancel has removed."""
    real_put, real_delete = memory.put, memory.delete
    begun, removed, main = threading.Event(), threading.Event(), threading.get_ident()

    def request(key: str, *more: Any, **options: Any) -> None:
        begun.set()
        removed.wait(0.5)  # this is set only if the run does not wait
        real_put(key, *more, **options)

    def put(key: str, *more: Any, **options: Any) -> None:
        if key.endswith("_manifest.json"):
            server.submit(request, key, *more, **options).result()
        else:
            real_put(key, *more, **options)

    def delete(keys: list[str]) -> None:
        real_delete(keys)
        if keys == ["out/wide/part-00003.csv"]:
            removed.set()

    def cancel() -> None:
        assert begun.wait(30)
        signal.pthread_kill(main, signal.SIGUSR1)

    def cancelled(*_: object) -> None:
        raise Interrupt("cancelled")

    memory.put, memory.delete = put, delete  # type: ignore[method-assign]
    before = signal.signal(signal.SIGUSR1, cancelled)
    canceller = threading.Thread(target=cancel)
    try:
        canceller.start()
        with ThreadPoolExecutor(1) as server, pytest.raises(Interrupt, match="cancelled"):
            Payments(9).export().write(FakeServices(tmp_path / "ledger"), FOLDER, split_rows=3, format=Csv())
    finally:
        canceller.join()
        signal.signal(signal.SIGUSR1, before)
    assert (verify(FOLDER).rows, len(memory.names())) == (9, 4)


def test_a_condition_that_fails_without_an_object_can_be_tried_again(memory: Memory, tmp_path: Path) -> None:
    """S3 refuses so while another request is under way (409 ConditionalRequestConflict)."""
    real = memory.put

    def conflict(key: str, *more: Any, **options: Any) -> None:
        if key.endswith("part-00002.csv"):
            raise ConditionError("ConditionalRequestConflict")
        real(key, *more, **options)

    memory.put = conflict  # type: ignore[method-assign]
    with pytest.raises(
        ExportError, match=r"Expected an object at .*part-00002\.csv, got ConditionalRequestConflict"
    ) as caught:
        Payments(9).export().write(FakeServices(tmp_path / "ledger"), FOLDER, split_rows=3, format=Csv())
    assert not isinstance(caught.value, ExportRejected)
    memory.put = real  # type: ignore[method-assign]
    again = FakeServices(tmp_path / "ledger", fence=2)
    assert Payments(9).export().write(again, FOLDER, split_rows=3, format=Csv()) == verify(FOLDER)


def test_the_next_run_finishes_the_export_when_a_strange_manifest_is_removed(memory: Memory, tmp_path: Path) -> None:
    real, strange = (
        memory.put,
        Payments(4).export().write(FakeServices(tmp_path / "4", uid="uid-2"), "gs://bucket/4.csv"),
    )

    def put(key: str, *more: Any, **options: Any) -> None:
        real(key, *more, **options)
        if key == "out/x.csv":
            real("out/x.csv.manifest.json", strange.dump())

    memory.put = put  # type: ignore[method-assign]
    with pytest.raises(TargetExists, match=r"Remove it: the next run finishes the export"):
        Payments(9).export().write(FakeServices(tmp_path / "ledger"), "gs://bucket/out/x.csv")
    memory.put = real  # type: ignore[method-assign]
    memory.delete(["out/x.csv.manifest.json"])
    source = Payments(9)
    manifest = source.export().write(FakeServices(tmp_path / "ledger", fence=2), "gs://bucket/out/x.csv")
    assert (manifest, source.starts) == (verify("gs://bucket/out/x.csv"), [])
    assert [name for name in memory.names() if name.startswith("out/")] == ["out/x.csv", "out/x.csv.manifest.json"]


def test_two_addresses_never_share_a_stage_on_this_host(memory: Memory, tmp_path: Path) -> None:
    real, services = memory.put, FakeServices(tmp_path / "ledger")

    def put(key: str, *more: Any, **options: Any) -> None:
        if key == "x y/k.csv":
            raise ExportError("no network")
        real(key, *more, **options)

    memory.put = put  # type: ignore[method-assign]
    with pytest.raises(ExportError, match="no network"):
        Payments(9).export().write(services, "gs://bucket/x y/k.csv")
    assert Payments(4).export().write(services, "gs://bucket/x/y/k.csv").rows == 4


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize("url", ["sftp://partner:very-secret@host/in", "gs://bucket/k?sig=very-secret"])
def test_the_command_prints_no_secret_of_an_address(url: str, more: list[str]) -> None:
    for arguments in (["--target", url], [url], ["--reap", url]):
        done = CliRunner().invoke(command, [*arguments, *more])
        assert (done.exit_code != 0, "very-secret" in done.output) == (True, False), done.output


def test_a_list_that_fails_is_not_an_empty_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty list, a run would not know its own file, and remove nothing."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(filesystem, "_kind", lambda _: (Hdfs, {}))
    to = f"hdfs://host{tmp_path}/out/pay.csv"
    with monkeypatch.context() as broken:

        def reset(*_: object, **__: object) -> None:
            raise ConnectionResetError(104, "Connection reset by peer")

        broken.setattr(Hdfs, "ls", reset)
        with pytest.raises(ExportError, match=r"Expected the store to list .*Connection reset by peer"):
            Payments(9).export().write(FakeServices(tmp_path / "ledger"), to)
    assert Payments(9).export().write(FakeServices(tmp_path / "ledger", fence=2), to) == verify(to)
