"""A bucket with versions: a kill and a second run leave one version of the object, and a replaced object stays as the older one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from steadyworker.exports.verifying import verify
from tests.exports.kit import FakeServices, Payments
from tests.exports.s3.store import Store, killed, wide

KEY, MANIFEST = "out/wide.csv", "out/wide.csv.manifest.json"

pytestmark = pytest.mark.slow


def versions(store: Store, key: str) -> list[str]:
    """The ids of the versions of this object, the newest first; a delete marker is one, too."""
    listed = store.client.list_object_versions(Bucket=store.bucket, Prefix=key)
    found = [*listed.get("Versions", []), *listed.get("DeleteMarkers", [])]
    return [each["VersionId"] for each in sorted(found, key=lambda each: not each["IsLatest"]) if each["Key"] == key]


@pytest.mark.parametrize(
    ("point", "before"),
    [
        ("before-CompleteMultipartUpload-1", (0, 0)),
        ("after-CompleteMultipartUpload-1", (1, 0)),
        ("after-UploadPart-2", (0, 0)),
    ],
)
def test_a_kill_and_a_second_run_make_one_version_of_the_object_and_of_its_manifest(
    versioned: Store, tmp_path: Path, point: str, before: tuple[int, int]
) -> None:
    died = killed(versioned, tmp_path / "ledger", point, key=KEY)
    assert died.returncode == -signal.SIGKILL, died.stdout + died.stderr
    assert (len(versions(versioned, KEY)), len(versions(versioned, MANIFEST))) == before
    made = wide().write(FakeServices(tmp_path / "ledger", fence=2), versioned.at(KEY))
    assert verify(versioned.at(KEY)) == made
    assert (len(versions(versioned, KEY)), len(versions(versioned, MANIFEST))) == (1, 1)
    assert (versioned.names(), versioned.uploads()) == ([KEY, MANIFEST], [])


def test_a_replaced_object_stays_as_the_older_version(versioned: Store, tmp_path: Path) -> None:
    Payments(10).export().write(FakeServices(tmp_path / "ledger"), versioned.at(KEY))
    old = versioned.read(KEY)
    services = FakeServices(tmp_path / "uid-2", uid="uid-2")
    made = Payments(3).export().write(services, versioned.at(KEY), if_exists="replace-own")
    assert verify(versioned.at(KEY)) == made
    _, older = versions(versioned, KEY)
    found = versioned.client.get_object(Bucket=versioned.bucket, Key=KEY, VersionId=older)["Body"].read()
    assert found == old
    assert len(versions(versioned, MANIFEST)) == 2
