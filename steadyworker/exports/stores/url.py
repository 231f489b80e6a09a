"""The address of a target in a store that fsspec reaches; this module does not import fsspec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from steadyworker.errors import ExportRejected
from steadyworker.text.redaction import redact

LIMITS = (
    "Of two jobs that export to this address at the same time, the later one can replace the file of the earlier one, if the server's move replaces files.",
    "A reader can see a part of the file, if the store does not move a file in one step.",
)
"""What is not promised of a store, unless it creates an object by one request, and only if there is none."""

_EXACT = frozenset({"gs", "gcs", "abfs", "abfss", "az"})

_REFUSED = {
    "file": "write it as a path, without file://",
    "local": "write it as a path, without local://",
    "memory": "export to a path, because the memory ends with the process",
    "s3a": "write it as s3://, which SteadyWorker publishes by its own requests",
    "s3n": "write it as s3://, which SteadyWorker publishes by its own requests",
}
_KEY_BYTES = 700  # Google Cloud allows 1,024; the stage and the manifest have longer keys
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]")  # with halves of characters, which UTF-8 does not have


@dataclass(frozen=True)
class StoreUrl:
    """
    An object of a store, or a folder of objects, such as `gs://reports/march.csv`.

    Credentials and options come from the store's own library, and from fsspec's configuration (`FSSPEC_…` in the environment, `~/.config/fsspec`).

    Args:
        url: The address.

    Raises:
        ExportRejected: The URL is invalid, has a password or a query, or is for a path of this host or for S3.
    """

    url: str

    scratch = None
    """No folder of its own: the default is a private folder below the system's folder for temporary files (`TMPDIR`)."""

    def __post_init__(self) -> None:
        if self.scheme in _REFUSED:
            raise ExportRejected(
                f"Expected another address than {redact(self.url)!r} to export to: {_REFUSED[self.scheme]}."
            )
        if not self.url.startswith(f"{self.scheme}://"):
            raise ExportRejected(
                f"Expected the scheme in small letters, got {redact(self.url)!r}: write {self.scheme}://."
            )
        try:
            where = urlsplit(self.url)
        except ValueError:  # `gs://[x/y`
            where = urlsplit("")
        names = self.key.split("/")
        if (
            where.password is not None
            or where.query
            or where.fragment
            or "::" in self.url
            or not where.netloc
            or {"", ".", ".."} & {*names}
        ):
            raise ExportRejected(
                f"Expected an address such as gs://bucket/folder/report.csv, without a password, ? and #, got {redact(self.url)!r}: "
                "correct it. Credentials come from the store's own library, and never from an address."
            )
        if _CONTROL.search(self.url) or len(self.key.encode(errors="replace")) > _KEY_BYTES:
            raise ExportRejected(
                f"Expected a key of at most {_KEY_BYTES} bytes without control characters and backslashes, got {redact(self.url)!r:.200}: rename it."
            )

    @property
    def scheme(self) -> str:
        """The part before `://`, such as `gs`."""
        return self.url.partition("://")[0].lower()

    @property
    def root(self) -> str:
        """The URL without the key and the slash before it."""
        return self.url[: len(self.scheme) + 3] + self._rest.partition("/")[0]

    @property
    def key(self) -> str:
        """The object's key, or the folder's without a slash at its end."""
        return self._rest.partition("/")[2].rstrip("/")

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
        """Sentences about what an export to this store does not promise; nothing for Google Cloud and Azure."""
        return () if self.scheme in _EXACT else LIMITS

    @property
    def reached_by(self) -> Mapping[str, str | None]:
        """Nothing beside the URL."""
        return {}

    def at(self, key: str) -> str:
        """Return the URL of another key in the same store."""
        return f"{self.root}/{key}"

    @property
    def _rest(self) -> str:
        return self.url[len(self.scheme) + 3 :]

    def __str__(self) -> str:
        return self.at(self.key)
