"""
The bytes of one object, which go up in parts while later rows are rendered.

::

    write ──→ SHA-256 of all ──→ parts of a fixed size ──→ threads: SHA-256 of the part, UploadPart

At most six parts wait or are under way, besides the part that `write` fills; so memory has a limit, and a slow network slows the rows.
A part that an earlier run of the job has uploaded is left out, if the bucket lists it with the same size and hash.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from io import BytesIO
from types import TracebackType
from typing import Any, Self

from steadyworker.errors import ExportRejected
from steadyworker.exports.s3.bucket import Bucket
from steadyworker.exports.stores.files import CHECK_EVERY, CONNECTIONS, Stopped
from steadyworker.exports.stores.stage import UploadedPart

MOST_PARTS = 10_000
"""The most parts of an object; S3 allows no more."""

_AHEAD = 6


class _Body(BytesIO):
    """The bytes of a part; after a stop, the request that reads them ends."""

    def __init__(self, stopped: threading.Event) -> None:
        super().__init__()
        self._stopped = stopped

    def read(self, size: int | None = -1, /) -> bytes:
        if self._stopped.is_set():
            raise Stopped
        return super().read(size)


class PartsUpload:
    """
    An upload while its bytes are written: an `OutFile`.

    Attributes:
        bytes: The number of bytes written.
        parts: The parts, in order, after `sync`.

    Args:
        bucket: The bucket.
        upload: The id of the upload.
        there: What the bucket lists of the upload's parts.
        check: Raises Interrupt if the run must end; it is called while `write` waits for the network.
        moved: Reports progress; it is called for each part for which `sync` waited.
    """

    def __init__(
        self,
        bucket: Bucket,
        upload: str,
        there: Iterable[Mapping[str, Any]],
        *,
        check: Callable[[], None],
        moved: Callable[[], None],
    ) -> None:
        self._bucket, self._upload = bucket, upload
        self._there = {part["PartNumber"]: part for part in there}
        self._check, self._moved = check, moved
        self._pool = ThreadPoolExecutor(CONNECTIONS, "s3")
        self._flying: deque[Future[UploadedPart]] = deque()
        self._stopped = threading.Event()
        self._hash = hashlib.sha256()
        self._part = _Body(self._stopped)
        self._number = 0
        self.bytes = 0
        self.closed = False
        self.parts: list[UploadedPart] = []

    def write(self, data: bytes | memoryview, /) -> int:
        """Accept, count and hash all these bytes; wait if too many parts are under way."""
        self._hash.update(data)
        self.bytes += len(data)
        size = self._bucket.address.part_bytes
        with memoryview(data) as rest:
            at = 0
            while at < len(rest):
                at += self._part.write(rest[at : at + size - self._part.tell()])
                if self._part.tell() == size:
                    self._submit()
        return len(data)

    @property
    def sha256(self) -> str:
        """The SHA-256 of all bytes written so far, in hex digits."""
        return self._hash.hexdigest()

    def flush(self) -> None:
        """Do nothing: a part goes up when it is full."""

    def sync(self) -> None:
        """
        Return when all parts are in the bucket.

        Raises:
            AbsentError: The upload has ended.
            ExportRejected: A part is not accepted, and would not be in a later attempt; or there are too many parts.
            ExportError: A part did not arrive.
        """
        if self._part.tell() or not self._number:
            self._submit()
        while self._flying:
            self._await()
            self._moved()

    def close(self) -> None:
        """End the parts that are under way; what is in the bucket stays there for a later run."""
        self.closed = True
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _submit(self) -> None:
        """Let a thread upload the part that `write` has filled, and begin the next part."""
        self._number += 1
        if self._number > MOST_PARTS:
            raise ExportRejected(
                f"Expected at most {MOST_PARTS:,} parts of {self._bucket.address.part_bytes:,} bytes in {self._bucket.address}, got more: "
                "raise part_bytes of S3(…), or make several files."
            )
        while len(self._flying) >= _AHEAD:
            self._await()
        part, self._part = self._part, _Body(self._stopped)
        self._flying.append(self._pool.submit(self._send, self._number, part))

    def _await(self) -> None:
        """Wait for the oldest part."""
        while not wait([self._flying[0]], CHECK_EVERY).done:
            self._check()
        self.parts.append(self._flying.popleft().result())

    def _send(self, number: int, part: _Body) -> UploadedPart:
        """Upload a part, on a thread, unless it is there."""
        size = part.tell()
        with part.getbuffer() as data:
            sha256 = base64.b64encode(hashlib.sha256(data).digest()).decode()
            there = self._there.get(number)
            if there is not None and there["Size"] == size and _same(there, data, sha256):
                return UploadedPart(number=number, etag=there["ETag"], bytes=size, sha256=sha256)
        part.seek(0)
        answer = self._bucket.call(
            "upload_part",
            Key=self._bucket.address.key,
            UploadId=self._upload,
            PartNumber=number,
            Body=part,
            ContentLength=size,
            ChecksumSHA256=sha256,
        )
        return UploadedPart(number=number, etag=answer["ETag"], bytes=size, sha256=sha256)


def _same(there: Mapping[str, Any], data: memoryview, sha256: str) -> bool:
    """Return whether the bucket has these bytes; a key of KMS changes the ETag, and then the part goes up again."""
    if "ChecksumSHA256" in there:
        return bool(there["ChecksumSHA256"] == sha256)
    return bool(there["ETag"].strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest())
