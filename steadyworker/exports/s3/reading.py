"""What reads objects of a bucket: a link for a user's browser, and a file that is read in ranges, for Spark's parts."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import UTC, datetime, timedelta
from io import RawIOBase

import msgspec

from steadyworker.clock import Clock, SystemClock
from steadyworker.exports.s3.address import S3
from steadyworker.exports.s3.bucket import Bucket
from steadyworker.exports.stores.store import AbsentError, ConditionError
from steadyworker.units import parse_seconds

_LONGEST = 7 * 86_400  # seconds; signature version 4 allows no later end


class DownloadLink(msgspec.Struct, frozen=True, kw_only=True):
    """
    A URL by which anyone can read one object until it ends; so it is as secret as the object.

    Attributes:
        url: The URL.
        ends_at: The end, ISO 8601 in UTC.
    """

    url: str
    ends_at: str


def download_link(to: str | S3, lifetime: float | timedelta | str, *, clock: Clock | None = None) -> DownloadLink:
    """
    Return a link to an exported object, for a `job.result` that only its user sees.

    The link is signed on this host, without a request.
    If the credentials are temporary, as those of a container or an instance are, the link ends with them at the latest.

    Args:
        to: The object, as `Job.export` got it.
        lifetime: Seconds, a timedelta, or a text such as "12h"; at most 7 days.
        clock: Its wall time gives the end.

    Raises:
        ValueError: The lifetime is not between 1 second and 7 days.
        ExportError: There is no boto3, or there are no credentials.
    """
    seconds = int(parse_seconds(lifetime))
    if not 1 <= seconds <= _LONGEST:
        raise ValueError(f"Expected a lifetime from 1 second to 7 days, got {lifetime!r}: correct it.")
    address = to if isinstance(to, S3) else S3(to)
    with closing(Bucket(address)) as bucket:
        url = bucket.link(seconds)
    ends = datetime.fromtimestamp((clock or SystemClock()).wall(), UTC) + timedelta(seconds=seconds)
    return DownloadLink(url=url, ends_at=ends.isoformat(timespec="seconds"))


class ObjectFile(RawIOBase):
    """
    An object as a file of bytes; each read is one request, and memory holds only what was read.

    Raises:
        OSError: The object does not exist, or another one has replaced it since it was opened.
        ExportError: The request failed.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        head = bucket.head(key)
        if head is None:
            raise FileNotFoundError("no such object")
        self._bucket, self._key, self._at = bucket, key, 0
        self._size, self._etag = head.size, head.etag

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position of the next byte, and return it."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Return so many bytes, or fewer at the end of the object."""
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        try:
            data = self._bucket.read_range(self._key, self._at, end - 1, self._etag)
        except (AbsentError, ConditionError) as error:
            raise OSError(f"another object, or none ({error})") from error
        self._at = end
        return data
