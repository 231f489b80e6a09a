"""A bucket for each test, on servers that the tests of one test process share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec.config
import pytest
from adlfs import AzureBlobFileSystem
from gcsfs.core import GCSFileSystem

from tests.brokers.azurite import ACCOUNT, KEY, Azurite
from tests.brokers.fixtures import had
from tests.brokers.gcs import Gcs
from tests.exports.s3.store import front
from tests.exports.stores.place import Place, keep_conditions, of_azure, of_google


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with had():
        server = Azurite()
    with closing(server):
        server.start()
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[Gcs]:
    with had():
        server = Gcs()
    with closing(server):
        server.start()
        yield server


@pytest.fixture
def azure(azurite: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with front(azurite.url) as made:
        name = f"test-{secrets.token_hex(6)}"
        account = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint="
        fs = AzureBlobFileSystem(
            connection_string=f"{account}{azurite.url}/{ACCOUNT}", skip_instance_cache=True, use_listings_cache=False
        )
        fs.mkdir(name)
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{account}{made.endpoint}/{ACCOUNT}")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        yield Place(f"abfs://{name}", fs, made, of_azure)


@pytest.fixture
def google(gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with front(gcs.url) as made:
        name = f"test-{secrets.token_hex(6)}"
        fs = GCSFileSystem(
            project="test", token="anon", endpoint_url=gcs.url, skip_instance_cache=True, use_listings_cache=False
        )
        fs.mkdir(name)
        keep_conditions(made, lambda key: bool(fs.exists(f"{name}/{key}")))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", made.endpoint)
        monkeypatch.setenv("FSSPEC_GS_TOKEN", "anon")  # for a process of its own; this one has read its environment
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        yield Place(f"gs://{name}", fs, made, of_google)


@pytest.fixture(params=["google", "azure"])
def place(request: pytest.FixtureRequest) -> Any:
    """A bucket of each of them."""
    return request.getfixturevalue(request.param)
