"""`if_exists="replace-own"`: a later job with the same key replaces the file of an earlier one, whole or not at all."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import pytest

from steadyworker import Job, Worker
from steadyworker.errors import ExportError, ExportRejected, Interrupt, TargetExists
from steadyworker.exports import RowExport, verify
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stage import manifest_path
from steadyworker.outcome import Done
from steadyworker.testing import run_one
from tests.exports.kit import BY, TOTALS, FakeServices, Payments, killed


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The file that job `uid-1` of key `payments-17` has made, of 10 rows."""
    path = tmp_path / "out" / "payments.csv"
    Payments(10).export().write(FakeServices(tmp_path / "ledger"), path)
    return path


def later(tmp_path: Path, **more: str) -> FakeServices:
    """The services of a later job."""
    return FakeServices(tmp_path / "ledger 2", **{"uid": "uid-2", **more})  # type: ignore[arg-type] # only texts


def test_a_later_job_of_the_same_key_replaces_the_file_and_its_manifest(tmp_path: Path, out: Path) -> None:
    source = Payments(3)
    made = source.export().write(later(tmp_path), out, if_exists="replace-own")
    assert (made.uid, made.rows) == ("uid-2", 3)
    assert verify(out) == made
    assert source.export().write(later(tmp_path), out, if_exists="replace-own") == made
    assert source.starts == [0], "its own file is never made again"
    assert sorted(path.name for path in out.parent.iterdir()) == ["payments.csv", "payments.csv.manifest.json"]


def test_nothing_is_replaced_unless_it_was_asked_for_and_the_remedy_is_named(tmp_path: Path, out: Path) -> None:
    before = verify(out)
    with pytest.raises(TargetExists, match='or pass if_exists="replace-own"'):
        Payments(3).export().write(later(tmp_path), out)
    with pytest.raises(ExportRejected, match=r"if_exists out of fail, replace-own, got 'replace'"):
        Payments(3).export().write(later(tmp_path), out, if_exists="replace")
    assert verify(out) == before


@pytest.mark.parametrize(
    "what",
    ["another key", "another queue", "another broker", "an old manifest", "changed", "no manifest", "link", "folder"],
)
def test_what_no_earlier_job_of_this_key_has_made_is_not_replaced(tmp_path: Path, out: Path, what: str) -> None:
    others = {
        "another key": {"key": "payments-18"},
        "another queue": {"queue": "monthly"},
        "another broker": {"namespace": "elsewhere"},
    }
    services = later(tmp_path, **others.get(what, {}))
    match what:
        case "an old manifest":  # of a version that recorded neither
            manifest = Manifest.load(manifest_path(out))
            manifest_path(out).write_bytes(msgspec.structs.replace(manifest, namespace="", queue="").dump())
        case "changed":
            out.write_text(out.read_text() + "a line of the accountant's\n")
        case "no manifest":
            (out.parent / "payments.csv.manifest.json").unlink()
        case "link":
            out.rename(out.with_name("moved.csv"))
            out.symlink_to("moved.csv")
        case "folder":
            out.unlink()
            out.mkdir()
    held = out.read_bytes() if out.is_file() else None
    with pytest.raises(TargetExists):
        Payments(3).export().write(services, out, if_exists="replace-own")
    assert (out.read_bytes() if out.is_file() else None) == held


@pytest.mark.parametrize("point", ["link-1", "link-2", "link-3", "word"])
def test_a_kill_leaves_the_old_file_or_the_new_one_and_the_next_run_finishes(
    tmp_path: Path, out: Path, point: str
) -> None:
    old, manifest = out.read_bytes(), out.with_name("payments.csv.manifest.json")
    assert killed(out, tmp_path / "ledger 2", point, "uid-2").returncode == -signal.SIGKILL
    assert (out.read_bytes() == old) == (point == "link-1")
    assert ("uid-2" in manifest.read_text()) == (point == "word")
    if point in ("link-2", "link-3"):  # the new file beside the old manifest, until a run comes
        says = rf"{out} differs from its manifest: expected {len(old)} bytes, got {out.stat().st_size}\."
        with pytest.raises(ExportError, match=says):
            verify(out)
    else:
        assert verify(out).uid == ("uid-2" if point == "word" else "uid-1")
    source = Payments(3)
    services = later(tmp_path)
    services.fence = 2
    (tmp_path / "ledger 2" / "fence").write_text("2")
    made = source.export().write(services, out, totals=TOTALS, by=BY, if_exists="replace-own")
    assert source.starts == []
    assert verify(out) == made
    assert (made.uid, made.rows) == ("uid-2", 3)


@pytest.mark.parametrize(("if_exists", "uid"), [("fail", "uid-1"), ("replace-own", "uid-2")])
def test_only_who_may_replace_a_file_replaces_its_manifest(tmp_path: Path, out: Path, if_exists: str, uid: str) -> None:
    """The manifest, without its file, comes back after this run has looked, and before it links its own."""
    services = later(tmp_path)
    before = verify(out)
    out.unlink()
    kept = manifest_path(out).rename(out.with_name("kept.json"))

    def back() -> None:
        kept.rename(manifest_path(out))

    services.on_leave = back
    if if_exists == "fail":
        with pytest.raises(TargetExists, match=r"manifest\.json belongs to another job\. Remove it"):
            Payments(3).export().write(services, out, if_exists=if_exists)
    else:
        Payments(3).export().write(services, out, if_exists=if_exists)
    found = Manifest.load(manifest_path(out))
    assert found.uid == uid
    assert (found == before) == (uid == "uid-1")


def test_a_job_that_may_not_commit_leaves_the_earlier_file(tmp_path: Path, out: Path) -> None:
    before = verify(out)
    services = later(tmp_path)

    def refuse() -> None:
        raise Interrupt("cancelled")

    services.on_leave = refuse
    with pytest.raises(Interrupt):
        Payments(3).export().write(services, out, if_exists="replace-own")
    assert verify(out) == before


class Daily(Worker[dict[str, str]]):
    """Exports its payload's number of the day, again for each message of the same key."""

    queue = "daily"
    time_limit = 60

    def handle(self, job: Job[dict[str, str]]) -> None:
        export = RowExport([(job.payload["number"],)], columns=("number",))
        job.export(export, job.payload["to"], if_exists="replace-own")


def test_a_handler_asks_for_it(tmp_path: Path, out: Path) -> None:
    """Each Worker that is tried like this has a ledger of its own, so it is a later job."""
    before = verify(out)
    assert not isinstance(run_one(Daily, {"number": "3", "to": str(out)}, key="tomorrow").outcome, Done)
    assert verify(out) == before
    assert isinstance(run_one(Daily, {"number": "2", "to": str(out)}, key=before.key).outcome, Done)
    assert out.read_text() == "number\n2\n"
    assert verify(out).uid != before.uid
