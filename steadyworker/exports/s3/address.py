"""The address of an export in a bucket of S3; this module does not import boto3."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from steadyworker.errors import ExportRejected
from steadyworker.text.redaction import redact

SCHEME = "s3://"

PART_BYTES = 16 << 20
"""The default size of a part: 10,000 parts, as many as S3 allows, are 160 GiB."""

_LEAST_PART = 5 << 20  # S3's own limit, for all parts but the last
_KEY_BYTES = 900  # S3 allows 1,024; the stage and the manifest have longer keys
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # with halves of characters, which UTF-8 does not have
_SIGNED = re.compile(r"[?&](X-Amz-|AWSAccessKeyId=|Signature=)", re.IGNORECASE)
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(/[^\s?#@]*)?")


@dataclass(frozen=True)
class S3:
    """
    An object of a bucket, or a folder of objects, with options that `"s3://bucket/key"` alone does not have.

    Credentials come from the AWS SDK's own chain: environment, profile, container or instance.
    What is None here, the SDK finds in its own settings, such as `AWS_DEFAULT_REGION` and `AWS_ENDPOINT_URL_S3`.

    Args:
        url: The address, such as `s3://reports/2026/march.csv`.
        endpoint: The URL of another server than Amazon's, such as `https://minio.example.com:9000`.
        region: The bucket's region.
        profile: The profile in the SDK's configuration.
        kms_key: The id or ARN of the KMS key that encrypts the object; None for the bucket's own encryption.
        storage_class: Such as "STANDARD_IA"; None for the bucket's standard class.
        part_bytes: The size of each part; memory holds up to ten of them, and an object has at most 10,000.
        scratch: A folder of this host for what a run must keep outside of memory: a sort of DuckDB, the parts of Spark, several files.
            The default is a private folder below the system's folder for temporary files (`TMPDIR`).

    Raises:
        ExportRejected: The URL or a size is invalid.
    """

    url: str
    _: KW_ONLY
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    kms_key: str | None = None
    storage_class: str | None = None
    part_bytes: int = PART_BYTES
    scratch: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        bucket, slash, key = self.url.removeprefix(SCHEME).partition("/")
        valid = self.url.startswith(SCHEME) and _BUCKET.fullmatch(bucket) and slash and not _SIGNED.search(key)
        if not valid or any(part in {"", ".", ".."} for part in key.rstrip("/").split("/")):
            raise ExportRejected(
                f"Expected an address such as s3://bucket/folder/report.csv, got {redact(self.url)!r}: correct it. "
                "Credentials come from the AWS SDK's own settings, and never from an address."
            )
        if _CONTROL.search(key) or len(key.encode(errors="replace")) > _KEY_BYTES:
            raise ExportRejected(
                f"Expected a key of at most {_KEY_BYTES} bytes without control characters, got {key!r:.200}: rename it."
            )
        if self.endpoint is not None and not _ENDPOINT.fullmatch(self.endpoint):
            raise ExportRejected(
                f"Expected an endpoint such as https://minio.example.com:9000, without a password, ? and #, got {redact(self.endpoint.partition('?')[0])!r}: correct it."
            )
        if self.part_bytes < _LEAST_PART:
            raise ExportRejected(
                f"Expected part_bytes of at least {_LEAST_PART:,}, which is S3's own limit, got {self.part_bytes:,}: raise it."
            )

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self.url.removeprefix(SCHEME).partition("/")[0]

    @property
    def key(self) -> str:
        """The object's key, or the folder's without a slash at its end."""
        return self.url.removeprefix(SCHEME).partition("/")[2].rstrip("/")

    @property
    def name(self) -> str:
        """The last name of the key."""
        return self.key.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The beginning of the key up to the name: empty, or with a slash at its end."""
        return self.key[: -len(self.name)]

    @property
    def limits(self) -> tuple[str, ...]:
        """Nothing: an export to S3 promises all."""
        return ()

    @property
    def reached_by(self) -> Mapping[str, str | None]:
        """The settings of the SDK, beside the URL, by which another process of this host reaches the same bucket."""
        return {"endpoint": self.endpoint, "region": self.region, "profile": self.profile}

    def at(self, key: str) -> str:
        """Return the URL of another key in the same bucket."""
        return f"{SCHEME}{self.bucket}/{key}"

    def __str__(self) -> str:
        return self.at(self.key)
