"""What a bucket refuses: each error names the bucket and the remedy, has no secret, and is final only if a retry cannot help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.cli.verify import command
from steadyworker.exports.formats import Csv
from steadyworker.exports.s3 import bucket
from steadyworker.exports.s3.address import S3
from steadyworker.exports.targets import target_of
from steadyworker.exports.verifying import verify
from tests.exports.kit import FakeServices, Payments
from tests.exports.s3.store import Front, Request, Store, front, wide

KEY = "out/pay.csv"


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK tries twice, because six tries wait for half a minute."""
    monkeypatch.setattr(bucket, "_TRIES", 2)


def always(
    status: int, code: str, chosen: Callable[[Request], bool] = lambda _: True
) -> Callable[[Request], tuple[int, str] | None]:
    return lambda request: (status, code) if chosen(request) else None


def begins_upload(request: Request) -> bool:
    return request.method == "POST" and request.query.startswith("uploads")


@pytest.mark.parametrize(
    ("status", "code", "kind", "says"),
    [
        (403, "AccessDenied", ExportRejected, "the rights that `steadyworker.exports.s3` lists"),
        (400, "KMS.DisabledException", ExportRejected, "correct the KMS key"),
        (400, "KMS.NotFoundException", ExportRejected, "correct the KMS key"),
        (400, "InvalidStorageClass", ExportRejected, "correct storage_class"),
        (501, "NotImplemented", ExportRejected, "a server that has S3's multipart uploads"),
        (400, "AuthorizationHeaderMalformed", ExportRejected, "the bucket's own region"),
        (400, "ExpiredToken", ExportError, "renew the credentials"),
        (403, "InvalidAccessKeyId", ExportError, "correct the credentials"),
        (403, "RequestTimeTooSkewed", ExportError, "set this host's clock"),
        (503, "SlowDown", ExportError, "the next run continues"),
        (500, "InternalError", ExportError, "the next run continues"),
    ],
)
def test_a_refused_upload_makes_no_row(
    spoiled: Front,
    store: Store,
    tmp_path: Path,
    twice: None,
    status: int,
    code: str,
    kind: type[ExportError],
    says: str,
) -> None:
    spoiled.rule = always(status, code, begins_upload)
    source = Payments()
    with pytest.raises(
        ExportError, match=f"create_multipart_upload for s3://{store.bucket}/{KEY}, got {code}.*{says}"
    ) as caught:
        source.export().write(FakeServices(tmp_path / "ledger"), store.at(KEY, endpoint=spoiled.endpoint))
    assert type(caught.value) is kind
    assert (source.starts, store.uploads()) == ([], [])
    assert (store.names() == []) == (kind is ExportRejected)


def test_a_bucket_that_does_not_exist_is_final(store: Store, tmp_path: Path) -> None:
    source = Payments()
    with pytest.raises(ExportRejected, match="create the bucket, or correct its name"):
        source.export().write(
            FakeServices(tmp_path / "ledger"), S3("s3://no-such-bucket/pay.csv", endpoint=store.endpoint)
        )
    assert source.starts == []


@pytest.mark.parametrize(
    ("variables", "options", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "very-secret-indeed"}, {}, "correct the credentials"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, {}, "give the AWS SDK's settings credentials"),
        ({}, {"endpoint": "http://127.0.0.1:9"}, "check the endpoint"),
    ],
    ids=["a wrong login", "no login", "no server"],
)
def test_what_an_operator_can_correct_is_not_final_and_no_secret_is_in_its_text(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    twice: None,
    variables: dict[str, str],
    options: dict[str, str],
    says: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ExportError, match=says) as caught:
        Payments().export().write(FakeServices(tmp_path / "ledger"), store.at(KEY, **options))
    assert not isinstance(caught.value, ExportRejected)
    assert "very-secret-indeed" not in repr(caught.value)


def test_a_part_that_is_throttled_goes_up_again(spoiled: Front, store: Store, tmp_path: Path) -> None:
    throttled: list[str] = []

    def once(request: Request) -> tuple[int, str] | None:
        if request.is_part and request.query not in throttled:
            throttled.append(request.query)
            return 503, "SlowDown"
        return None

    spoiled.rule = once
    manifest = Payments().export().write(FakeServices(tmp_path / "ledger"), store.at(KEY, endpoint=spoiled.endpoint))
    assert sum(request.is_part for request in spoiled.seen) == 2 * spoiled.parts() == 2
    assert verify(store.at(KEY)) == manifest


def test_a_body_that_changes_on_its_way_is_refused(spoiled: Front, store: Store, tmp_path: Path) -> None:
    """The signature has the body's checksum instead of the body, so that no body is hashed twice."""
    bodies: list[Request] = []

    def change(request: Request) -> None:
        if request.is_part:
            bodies.append(replace(request))
            request.body = request.body[:-1] + b"!"

    spoiled.rule = change
    with pytest.raises(ExportError, match="upload_part"):
        Payments().export().write(FakeServices(tmp_path / "ledger"), store.at(KEY, endpoint=spoiled.endpoint))
    for each in bodies:
        sent = {name.lower(): value for name, value in each.headers.items()}
        assert sent["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        assert "x-amz-checksum-sha256;" in sent["authorization"]
        assert b64decode(sent["x-amz-checksum-sha256"]) == sha256(each.body).digest()
    assert bodies
    assert store.parts(KEY) == []
    spoiled.rule = lambda _: None
    manifest = Payments().export().write(FakeServices(tmp_path / "ledger", fence=2), store.at(KEY))
    assert verify(store.at(KEY)) == manifest


def test_credentials_that_expire_in_the_middle_lose_no_part(spoiled: Front, store: Store, tmp_path: Path) -> None:
    spoiled.rule = always(400, "ExpiredToken", lambda request: request.is_part and "partNumber=4" in request.query)
    with pytest.raises(ExportError, match=r"upload_part.*ExpiredToken.*renew the credentials"):
        wide().write(FakeServices(tmp_path / "ledger"), store.at(KEY, endpoint=spoiled.endpoint))
    assert {1, 2, 3} <= {*store.parts(KEY)}
    spoiled.rule = lambda _: None
    spoiled.seen.clear()
    manifest = wide().write(FakeServices(tmp_path / "ledger", fence=2), store.at(KEY, endpoint=spoiled.endpoint))
    assert spoiled.parts() == 5 - spoiled.listed
    assert verify(store.at(KEY)) == manifest


def test_parts_whose_etag_is_no_md5_go_up_again(spoiled: Front, store: Store, tmp_path: Path, twice: None) -> None:
    """As with a key of KMS, if the server lists no SHA-256."""
    spoiled.rule = always(
        500, "InternalError", lambda request: request.method == "POST" and request.query.startswith("uploadId")
    )
    with pytest.raises(ExportError, match="complete_multipart_upload"):
        wide(5_001).write(FakeServices(tmp_path / "ledger"), store.at(KEY, endpoint=spoiled.endpoint))
    for each in store.names():
        if each.endswith("complete.json"):
            store.client.delete_object(Bucket=store.bucket, Key=each)
    assert len(store.parts(KEY)) == 1
    spoiled.rule = lambda _: None
    spoiled.seen.clear()
    spoiled.change = lambda request, body: (
        body.replace(b"<ETag>", b"<ETag>kms") if request.method == "GET" and "uploadId=" in request.query else body
    )
    manifest = wide(5_001).write(FakeServices(tmp_path / "ledger", fence=2), store.at(KEY, endpoint=spoiled.endpoint))
    assert spoiled.parts() == 1
    assert verify(store.at(KEY)) == manifest


def test_the_trial_of_a_target_tries_an_upload_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers keep If-None-Match for PutObject alone."""
    done = CliRunner().invoke(command, ["--target", f"s3://{store.bucket}/out/pay.csv", "--json"])
    assert (done.exit_code, json.loads(done.output)["ok"]) == (0, True), done.output
    assert (store.names(), store.uploads()) == ([], [])
    call = bucket.Bucket.call

    def forgetful(self: bucket.Bucket, operation: str, **arguments: Any) -> Any:
        if operation == "complete_multipart_upload":
            del arguments["IfNoneMatch"]
        return call(self, operation, **arguments)

    monkeypatch.setattr(bucket.Bucket, "call", forgetful)
    done = CliRunner().invoke(command, ["--target", f"s3://{store.bucket}/out/pay.csv"])
    assert (done.exit_code, "refuse a second object of one key by upload" in done.output) == (1, True), done.output
    assert (store.names(), store.uploads()) == ([], [])


def test_labels_are_read_in_each_spelling_of_the_servers_headers(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = bucket.Bucket.call

    def canonical(self: bucket.Bucket, operation: str, **arguments: Any) -> Any:
        answer = call(self, operation, **arguments)
        if operation == "head_object":
            answer["Metadata"] = {name.title(): text for name, text in answer["Metadata"].items()}
        return answer

    monkeypatch.setattr(bucket.Bucket, "call", canonical)
    manifest = Payments(9).export().write(FakeServices(tmp_path / "ledger"), store.at(KEY))
    assert Payments(9).export().write(FakeServices(tmp_path / "ledger", fence=2), store.at(KEY)) == manifest


def test_a_verify_that_is_ended_leaves_no_copy(spoiled: Front, store: Store, tmp_path: Path) -> None:
    Payments(9).export().write(FakeServices(tmp_path / "ledger"), store.at(KEY))
    began, ended = threading.Event(), threading.Event()

    def wait(request: Request) -> None:
        if request.path.endswith("pay.csv") and request.method == "GET":
            began.set()
            ended.wait(60)

    spoiled.rule = wait
    folder = tmp_path / "copies"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "steadyworker", "verify", f"s3://{store.bucket}/{KEY}"],
        env={**os.environ, "AWS_ENDPOINT_URL_S3": spoiled.endpoint, "TMPDIR": str(folder)},
        stderr=subprocess.DEVNULL,
    )
    try:
        assert began.wait(60)
        assert [path.name[:20] for path in folder.iterdir()] == ["steadyworker-verify-"]
        process.terminate()
        assert process.wait(60) != 0
    finally:
        ended.set()
        process.kill()
        process.wait()
    assert [*folder.iterdir()] == []


def test_the_options_reach_the_server_and_each_object_has_the_key_of_kms(versioned: Store, tmp_path: Path) -> None:
    """A bucket's policy can refuse each object that has no such key; S3Proxy has no KMS."""
    with front(versioned.endpoint) as made:
        to = versioned.at(KEY, endpoint=made.endpoint, kms_key="key-1", storage_class="STANDARD_IA")
        assert Payments(9).export().write(FakeServices(tmp_path / "1"), to) == verify(versioned.at(KEY))
        to = replace(to, url=f"s3://{versioned.bucket}/out/pay")
        split = Payments(9).export().write(FakeServices(tmp_path / "2"), to, split_rows=3, format=Csv())
    assert split == verify(versioned.at("out/pay"))
    new = [each for each in made.seen if begins_upload(each) or (each.method == "PUT" and not each.is_part)]
    sent = [{name.lower(): value for name, value in each.headers.items()} for each in new]
    assert [each["x-amz-server-side-encryption"] for each in sent] == ["aws:kms"] * len(sent)
    assert {each["x-amz-server-side-encryption-aws-kms-key-id"] for each in sent} == {"key-1"}
    (upload,) = [each for each, request in zip(sent, new, strict=True) if begins_upload(request)]
    assert (upload["x-amz-storage-class"], upload["x-amz-meta-sw-uid"]) == ("STANDARD_IA", "uid-1")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://bucket", "Expected an address such as"),
        ("s3://bucket/", "Expected an address such as"),
        ("s3://bucket//pay.csv", "Expected an address such as"),
        ("s3://bucket/../pay.csv", "Expected an address such as"),
        ("s3://key:secret@bucket/pay.csv", "never from an address"),
        ("s3://bucket/a\nb.csv", "without control characters"),
        ("s3://bucket/" + "a/" * 500 + "pay.csv", "at most 900 bytes"),
        ("https://bucket.example.com/pay.csv", "Expected an address such as"),
        ("s3://bucket/a\udcff/pay.csv", "without control characters"),
        ("s3://bucket/pay.csv?X-Amz-Signature=secret", "never from an address"),
        ("s3://bucket/.sw-stage/pay.csv", "outside of .sw-stage"),
        ("s3://bucket/out/.sw-stage/x/pay.csv", "outside of .sw-stage"),
        ("s3://bucket/out/", "add the object's name"),
        ("s3://bucket/out/pay.csv.manifest.json", "does not end in .manifest.json"),
    ],
)
def test_addresses_that_are_refused(url: str, says: str) -> None:
    with pytest.raises(ExportRejected, match=says) as caught:
        target_of(S3(url), several=False)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint",
    [
        "minio:9000",
        "https://",
        "http://exa mple",
        "ftp://minio",
        "https://user:secret@minio",
        "https://minio?key=secret",
    ],
)
def test_endpoints_that_are_refused(endpoint: str) -> None:
    with pytest.raises(ExportRejected, match="Expected an endpoint such as https") as caught:
        S3("s3://bucket/pay.csv", endpoint=endpoint)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "https://[::1]:9000/", "https://s3.example.com/base"])
def test_endpoints_that_are_accepted(endpoint: str) -> None:
    assert S3("s3://bucket/pay.csv", endpoint=endpoint).reached_by["endpoint"] == endpoint


def test_an_invalid_endpoint_of_the_sdks_settings_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "minio:9000")
    with pytest.raises(ExportError, match=r"Invalid endpoint: minio:9000.*the SDK's settings"):
        Payments().export().write(FakeServices(tmp_path / "ledger"), "s3://bucket/pay.csv")


def test_small_parts_are_refused() -> None:
    with pytest.raises(ExportRejected, match="at least 5,242,880, which is S3's own limit, got 1,000"):
        S3("s3://bucket/pay.csv", part_bytes=1_000)
