"""What is read of an export in a bucket: by `verify`, by the command line, and by a link in a job's result."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from steadyworker import Job, Worker
from steadyworker.errors import ExportError
from steadyworker.exports import DownloadLink, DuckDBExport, RowExport, download_link
from steadyworker.exports.cli.verify import command
from steadyworker.exports.formats import Csv
from steadyworker.exports.spark import Files
from steadyworker.exports.verifying import verify
from steadyworker.testing import run_one
from tests.exports.kit import BY, TOTALS, FakeServices, Payments
from tests.exports.s3.store import Store

KEY = "out/pay.csv"


class Uploads(Worker[dict[str, str]]):
    """Exports to a URL, and gives its user a link."""

    queue = "uploads"
    time_limit = 60

    def handle(self, job: Job[dict[str, str]]) -> None:
        to = job.payload["to"]
        job.export(RowExport([(1, "a"), (2, "b")], columns=("id", "text")), to=to)
        link = download_link(to, timedelta(hours=1))
        job.result({"url": link.url, "ends_at": link.ends_at})


def test_a_job_exports_to_a_url_and_its_result_has_a_link_with_its_end(store: Store) -> None:
    ran = run_one(Uploads, {"to": f"s3://{store.bucket}/{KEY}"})
    assert (store.read(KEY), ran.exports) == (b"id,text\n1,a\n2,b\n", [verify(store.at(KEY))])
    result: dict[str, str] = ran.result
    with urllib.request.urlopen(result["url"], timeout=30) as answer:
        assert answer.read() == store.read(KEY)
    assert result["ends_at"].endswith("+00:00")
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        urllib.request.urlopen(result["url"].replace("X-Amz-Signature=", "X-Amz-Signature=0"), timeout=30)
    refused.value.close()


class Sorted(Worker[dict[str, str]]):
    """DuckDB sorts a CSV file into a bucket."""

    queue = "sorted"
    time_limit = 60

    def handle(self, job: Job[dict[str, str]]) -> None:
        table = Files(job.payload["table"], schema="id BIGINT, text STRING")
        job.export(DuckDBExport("SELECT * FROM t", tables={"t": table}, order_by=("id DESC",)), to=job.payload["to"])


def test_duckdb_exports_to_a_bucket_and_leaves_nothing_on_the_host(store: Store, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("id,text\n1,a\n3,c\n2,b\n")
    ran = run_one(Sorted, {"table": str(table), "to": f"s3://{store.bucket}/{KEY}"})
    assert (store.read(KEY), ran.exports) == (b"id,text\n3,c\n2,b\n1,a\n", [verify(store.at(KEY))])
    assert [path.name for path in tmp_path.glob("steadyworker-*/*")] == []


@pytest.mark.parametrize("lifetime", [0, "8d", timedelta(days=7, seconds=1), "soon"])
def test_a_link_ends_within_seven_days(store: Store, lifetime: Any) -> None:
    with pytest.raises(ValueError, match="Expected"):
        download_link(store.at(KEY), lifetime)
    assert isinstance(download_link(store.at(KEY), "7d"), DownloadLink)


def test_verify_reads_the_object_again(store: Store, tmp_path: Path) -> None:
    manifest = Payments(50).export().write(FakeServices(tmp_path / "ledger"), store.at(KEY), totals=TOTALS, by=BY)
    url = f"s3://{store.bucket}/{KEY}"
    assert verify(url) == verify(store.at(KEY)) == manifest
    whole = store.read(KEY)
    store.put(KEY, whole.replace(b"EUR", b"USD", 1))
    with pytest.raises(ExportError, match=f"^{url} differs from its manifest: expected SHA-256"):
        verify(url)
    store.put(KEY, whole + b"more")
    with pytest.raises(ExportError, match=f"expected {len(whole)} bytes, got {len(whole) + 4}"):
        verify(url)
    store.client.delete_object(Bucket=store.bucket, Key=KEY)
    with pytest.raises(ExportError, match=f"Expected {url}, which has a manifest, got no such file"):
        verify(url)
    with pytest.raises(ExportError, match=r"Expected a manifest at s3://.* got none"):
        verify(f"s3://{store.bucket}/out/other.csv")


def test_verify_names_what_differs_in_a_folder(store: Store, tmp_path: Path) -> None:
    services = FakeServices(tmp_path / "ledger")
    manifest = Payments(6).export().write(services, store.at("out/march/"), format=Csv(), split_rows=2)
    assert verify(f"s3://{store.bucket}/out/march/") == manifest
    store.put("out/march/part-00002.csv", b"")
    store.put("out/march/more.csv", b"")
    with pytest.raises(ExportError, match=r"expected no file more\.csv; part-00002\.csv: expected \d+ bytes, got 0"):
        verify(f"s3://{store.bucket}/out/march")


def test_the_command_verifies_a_url(store: Store, tmp_path: Path) -> None:
    manifest = Payments(50).export().write(FakeServices(tmp_path / "ledger"), store.at(KEY))
    url = f"s3://{store.bucket}/{KEY}"
    done = CliRunner().invoke(command, [url])
    assert (done.exit_code, done.output) == (0, f"ok  {url}: {_summary(manifest)}\n")
    shown = CliRunner().invoke(command, [url, "--json"])
    assert json.loads(shown.output)["sha256"] == manifest.sha256
    assert CliRunner().invoke(command, [f"s3://{store.bucket}/none.csv"]).exit_code == 1


def _summary(manifest: Any) -> str:
    return f"50 rows, {manifest.bytes:,} bytes, sha256 {manifest.sha256[:12]}…, job payments-17, run 1"
