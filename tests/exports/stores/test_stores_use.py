"""What users see of exports to Google Cloud and Azure: addresses, errors, and the command `verify`."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import closing
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner

from steadyworker import Job, Worker
from steadyworker.clock import SystemClock, Times
from steadyworker.errors import ExportError, ExportRejected, TargetExists
from steadyworker.exports import DuckDBExport
from steadyworker.exports.cli.verify import command
from steadyworker.exports.folders import StageFolders
from steadyworker.exports.formats import Csv
from steadyworker.exports.stores import filesystem
from steadyworker.exports.verifying import verify
from steadyworker.ledger.base import Claimed, JobId
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.testing import run_one
from tests.conftest import Eventually
from tests.exports.kit import FakeServices, Payments
from tests.exports.s3.store import Request, wide
from tests.exports.stores.place import Place

pytestmark = pytest.mark.xdist_group("stores")

KEY = "out/pay.csv"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nosuch://bucket/pay.csv", "Expected a store that this program or fsspec knows.*export to a path, s3://"),
        ("file:///tmp/pay.csv", "without file://"),
        ("memory://pay.csv", "the memory ends with the process"),
        ("s3a://bucket/pay.csv", "write it as s3://"),
        ("gs://bucket", "Expected an address such as gs://bucket/folder/report.csv"),
        ("gs://bucket/../pay.csv", "Expected an address such as gs://bucket/folder/report.csv"),
        ("gs://bucket/out/", "add the object's name"),
        ("gs://bucket/pay.csv?generation=1", "without a password, . and #"),
        ("sftp://user:very-secret@host/pay.csv", "Credentials come from the store's own library"),
        ("zip://pay.csv::gs://bucket/all.zip", "Expected an address such as"),
        ("GS://bucket/pay.csv", "in small letters"),
        ("S3://bucket/pay.csv", "in small letters"),
        ("gs://[bucket/pay.csv", "Expected an address such as gs://bucket/folder/report.csv"),
        ("gs://buc\nket/pay.csv", "without control characters"),
        ("gs://bucket/out\\pay.csv", "without control characters and backslashes"),
        ("gs://bucket/a\udcff/pay.csv", "without control characters"),
        ("gs://bucket/.sw-stage/pay.csv", "outside of .sw-stage"),
        ("gs://bucket/" + "x" * 701, "Expected a key of at most 700 bytes"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_the_remedy(url: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ExportRejected, match=says) as caught:
        Payments().export().write(FakeServices(tmp_path / "ledger"), url)
    assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize(("url", "package"), [("gs", "steadyworker[gcs]"), ("abfs", "steadyworker[azure]")])
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, package: str) -> None:
    loaded = import_module("fsspec.registry")._registry  # with the class that another test has loaded
    monkeypatch.delitem(loaded, url, raising=False)
    for module in ("gcsfs.core", "adlfs"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ExportError, match="client library for") as caught:
        Payments().export().write(FakeServices(tmp_path / "ledger"), f"{url}://bucket/pay.csv")
    assert package in str(caught.value)


def test_a_bucket_that_does_not_exist_is_final(place: Place, tmp_path: Path) -> None:
    source = Payments()
    to = f"{place.root.partition('://')[0]}://no-such-bucket/pay.csv"
    with pytest.raises(ExportRejected, match=r"create the (bucket|container), or correct"):
        source.export().write(FakeServices(tmp_path / "ledger"), to)
    assert source.starts == []


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # of gcsfs, by aiohttp
def test_an_upload_that_the_store_has_lost_can_be_made_again(google: Place, tmp_path: Path) -> None:
    rule, lost = google.front.rule, list[str]()
    services = FakeServices(tmp_path / "ledger")

    def lose(request: Request) -> tuple[int, str] | None:
        if services.leaves and "upload_id" in request.query and not lost:
            lost.append(request.query)
            return 404, "Not Found"
        return rule(request)

    google.front.rule = lose
    with pytest.raises(ExportError, match="let the job run again") as caught:
        wide(25_000).write(services, google.at("out/wide.csv"))
    assert not isinstance(caught.value, ExportRejected)
    assert "upload_id" not in str(caught.value)
    assert wide(25_000).write(FakeServices(tmp_path / "ledger", fence=2), google.at("out/wide.csv")).rows == 25_000


def test_a_refused_login_can_be_corrected(google: Place, tmp_path: Path) -> None:
    google.front.rule = lambda _: (403, "Forbidden")
    with pytest.raises(ExportError, match="check the credentials of the store's own library") as caught:
        Payments().export().write(FakeServices(tmp_path / "ledger"), google.at(KEY))
    assert not isinstance(caught.value, ExportRejected)


def test_a_wrong_key_of_azure_is_in_no_text(azure: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "d3Jvbmcta2V5LXRoYXQtaXMtc2VjcmV0"
    text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING", text.replace(text.split("AccountKey=")[1].split(";")[0], wrong)
    )
    with pytest.raises(ExportError, match="check the credentials of the store's own library") as caught:
        Payments().export().write(FakeServices(tmp_path / "ledger"), azure.at(KEY))
    assert wrong not in str(caught.value)


def test_an_export_leaves_no_connection(place: Place, tmp_path: Path, eventually: Eventually) -> None:
    manifest = Payments(9).export().write(FakeServices(tmp_path / "ledger"), place.at(KEY))
    port = urlsplit(place.front.endpoint).port

    def connections() -> int:
        found = psutil.Process().net_connections("tcp")
        return sum(bool(each.raddr) and each.raddr[1] == port and each.status == "ESTABLISHED" for each in found)

    assert verify(place.at(KEY)) == manifest
    assert eventually(lambda: connections() == 0)


def test_an_object_in_the_place_of_the_folder_stays_and_is_named(azure: Place, tmp_path: Path) -> None:
    """Azure lists nothing of a folder whose name is also a blob's."""
    azure.put("out/wide", b"not ours")
    with pytest.raises(TargetExists, match="out/wide is an object, and no folder"):
        wide(9).write(FakeServices(tmp_path / "ledger"), azure.at("out/wide"), split_rows=3, format=Csv())
    assert azure.names() == ["out/wide"]


def test_a_file_that_the_store_cannot_hold_is_final(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(filesystem._LARGEST, "'steadyworker[gcs]'", 100)
    monkeypatch.setitem(filesystem._LARGEST, "'steadyworker[azure]'", 100)
    with pytest.raises(ExportRejected, match=r"at most 100 bytes for .*: export a folder of several files"):
        wide(9).write(FakeServices(tmp_path / "ledger"), place.at(KEY))
    assert place.names() == []


def test_an_address_with_another_account_than_that_of_the_settings_is_refused(azure: Place, tmp_path: Path) -> None:
    to = f"abfs://{azure.bucket}@another.dfs.core.windows.net/{KEY}"
    with pytest.raises(ExportRejected, match=r"the Azure account of .*@another.*, got the account of the settings"):
        Payments(9).export().write(FakeServices(tmp_path / "ledger"), to)
    assert azure.names() == []


@pytest.mark.filterwarnings("ignore")  # aiohttp's, of the connections that are cut
def test_a_request_without_an_answer_ends(google: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, gcsfs waits for ever."""
    monkeypatch.setattr(filesystem, "_READ_WITHIN", 0.2)
    silent = threading.Event()
    google.front.rule = lambda _: (500, str(silent.wait(60)))
    try:
        with pytest.raises(ExportError, match=r"Expected the store to list .*: check the network"):
            Payments(9).export().write(FakeServices(tmp_path / "ledger"), google.at(KEY))
    finally:
        silent.set()


class Uploads(Worker[str]):
    """DuckDB sorts rows into the address of the message."""

    queue = "uploads"
    time_limit = 60

    def handle(self, job: Job[str]) -> None:
        job.export(DuckDBExport("SELECT * FROM range(3) AS t(id)", tables={}, order_by=("id DESC",)), to=job.payload)


def test_a_job_exports_by_duckdb_and_leaves_nothing_on_the_host(place: Place, tmp_path: Path) -> None:
    ran = run_one(Uploads, place.at(KEY))
    assert (place.read(KEY), ran.exports) == (b"id\n2\n1\n0\n", [verify(place.at(KEY))])
    assert [path.name for path in tmp_path.glob("steadyworker-*/*")] == []


def test_the_command_verifies_an_object_and_finds_what_changed(place: Place, tmp_path: Path) -> None:
    Payments(9).export().write(FakeServices(tmp_path / "ledger"), place.at(KEY))
    done = CliRunner().invoke(command, [place.at(KEY)])
    assert (done.exit_code, "9 rows" in done.output) == (0, True), done.output
    place.put(KEY, place.read(KEY).replace(b"m-1", b"m-2", 1))
    done = CliRunner().invoke(command, [place.at(KEY)])
    assert (done.exit_code, f"{place.at(KEY)} differs from its manifest" in done.output) == (1, True), done.output


def test_the_command_tries_a_target_before_a_deploy(place: Place) -> None:
    done = CliRunner().invoke(command, ["--target", place.at("out/"), "--json"])
    assert (done.exit_code, json.loads(done.output)) == (0, {"target": place.at("out/"), "ok": True, "limits": []})
    assert place.names() == []
    place.front.rule = lambda _: None  # now Google's server accepts a second object
    done = CliRunner().invoke(command, ["--target", f"{place.root.partition('://')[0]}://no-such-bucket/out"])
    assert (done.exit_code, "create the" in done.output) == (1, True), done.output


class Died(Exception):
    """The end of a run after which nothing is tidied up, as after a kill."""


def leave(place: Place, ledger: Path, uid: str) -> FakeServices:
    """Leave a folder's first file, as a job does that is killed."""
    services = FakeServices(ledger, uid=uid)

    def die(*_: object) -> None:
        if services.leaves and [name for name in place.names() if f"{uid}.parts/" in name]:
            raise Died

    services.on_progress = die
    with pytest.raises(Died):
        Payments(3).export().write(services, place.at(f"out/{uid}.parts"), split_rows=3, format=Csv())
    assert len([name for name in place.names() if f"{uid}.parts/" in name]) == 1
    return services


def test_a_worker_process_and_the_command_remove_what_ended_jobs_left(place: Place, tmp_path: Path) -> None:
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=SystemClock(), times=Times())) as ledger:
        row = ledger.claim(Claimed(JobId("n", "uploads", "ended"), None, "owner", 0, b"x" * 32, Counters()))
        assert row is not None
        ledger.done(row.token)
        url = ledger.url
    leave(place, tmp_path / "1", row.uid)
    services = leave(place, tmp_path / "2", "uid-3")
    arguments = ["--ledger", url, "--state-dir", str(tmp_path / "state"), "--reap", place.at("out/")]
    done = CliRunner().invoke(command, arguments)
    assert (done.exit_code, "removed the staging folders of 1 job." in done.output) == (0, True), done.output
    assert {name.split("/")[1] for name in place.names()} == {"uid-3.parts", ".sw-stage"}

    (record,) = [folder for folder in services.folders if isinstance(folder, str)]
    folders = StageFolders(tmp_path / "stages")
    folders.remember(record.encode())
    folders.purge(lambda uids: {"uid-3"} & {*uids})
    assert place.names() == []
