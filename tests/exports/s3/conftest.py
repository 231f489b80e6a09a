"""A bucket for each test, on the S3Proxy that all tests of a run share; the objects are gone with the server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest

from tests.brokers.fixtures import Brokers, had
from tests.brokers.moto import Moto
from tests.brokers.s3proxy import REGION
from tests.exports.s3.store import Front, Store, front


@pytest.fixture
def store(brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with had():
        url = brokers.s3()
    with bucket_at(url, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def versioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A bucket with versions, which S3Proxy does not have."""
    with had():
        server = Moto()
    with closing(server):
        server.start()
        with bucket_at(server.address.url, tmp_path, monkeypatch) as made:
            made.client.put_bucket_versioning(Bucket=made.bucket, VersioningConfiguration={"Status": "Enabled"})
            yield made


@contextmanager
def bucket_at(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A fresh bucket on this server, and the server in the environment."""
    where = urlsplit(url)
    endpoint = f"http://{where.hostname}:{where.port}"
    assert where.username
    assert where.password
    for name, value in {
        "AWS_ACCESS_KEY_ID": where.username,
        "AWS_SECRET_ACCESS_KEY": where.password,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_CONFIG_FILE": str(tmp_path / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "no-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "TMPDIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.Session().client("s3")  # the default one keeps the login of another server
    bucket = f"test-{secrets.token_hex(6)}"
    client.create_bucket(Bucket=bucket)
    made = Store(client, bucket, endpoint)
    yield made
    client.close()


@pytest.fixture
def spoiled(store: Store) -> Iterator[Front]:
    """The server behind a proxy; a test sets the proxy's rule."""
    with front(store.endpoint) as made:
        yield made
