"""
The folders of Spark's parts: on a file system that the executors and this host share, or in a bucket.

::

    <target's folder>/.sw-stage/<uid>/<fence>/<digest>/parts/    all parts of a run, without `spark_stage`
    <spark_stage>/.sw-stage/<uid>/parts/                         all parts of a job's runs, with it
        <uid>-<fence>-<number>-<submission>/part-…               the parts of one submission

Spark's executors write with Hadoop's settings and credentials; this host lists, reads and removes with those of the AWS SDK.
What a killed run leaves is removed by the job's next run, or by a worker process after the job's end.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from steadyworker.errors import ConfigError, ExportError, ExportRejected
from steadyworker.exports.s3.address import S3, SCHEME
from steadyworker.exports.s3.bucket import Bucket
from steadyworker.exports.s3.reading import ObjectFile
from steadyworker.exports.sources import arrow
from steadyworker.exports.stage import STAGES, reap, remove_empty
from steadyworker.exports.stores.files import CONNECTIONS
from steadyworker.exports.stores.reaping import reap_address

BUCKET = "s3a://"
"""The scheme of Hadoop's file system for buckets."""

ALL = 1 << 63
"""A number above each submission's."""

_PART = re.compile(r"part-(\d+)-[^.]+.*")
_RUN = re.compile(r".*-(\d+)-(\d+)")
_SUBMISSION = re.compile(r".*-(\d+)-(\d+)-(\d+)(?:-probe)?")


class OnDisk:
    """
    A folder of a file system: of the parts of one submission, or of such folders.

    Attributes:
        url: The URL for Spark.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.url = path, f"file://{path}"

    def parts(self) -> tuple[str, ...]:
        """Return the paths of the parts, in the order of the tasks that wrote them."""
        with suppress(OSError):  # the folder is missing, or belongs to another user
            # A network file system can list an old state of a folder, unless this machine has changed the folder.
            tempfile.TemporaryFile(dir=self._path).close()
        return _in_order(map(str, self._path.iterdir())) if self._path.is_dir() else ()

    def open(self, part: str) -> str:
        """Return the path, from which pyarrow reads."""
        return part

    def remove(self) -> None:
        """Remove the folder; what cannot be removed stays."""
        shutil.rmtree(self._path, ignore_errors=True)

    def drop(self, job: str, before: int) -> None:
        """
        Remove in this folder the submissions of this job below a number, and all of the runs with a lower fence.

        Then remove the empty folders up to `.sw-stage`, but for a run's own stage.
        """
        with suppress(OSError):
            for path in self._path.iterdir():
                if _is_older(path.name, job, before):
                    shutil.rmtree(path, ignore_errors=True)
        if self._path.parent.parent.name == STAGES:
            remove_empty(self._path / job)


class InBucket:
    """
    The same in a bucket; the methods raise ExportError if it refuses a request, but not those that remove.

    Raises:
        ExportError: There is no boto3, or the SDK's settings are invalid.
    """

    def __init__(self, url: str) -> None:
        self.url, address = url, S3(SCHEME + url.removeprefix(BUCKET))
        self._root, self._prefix = f"{BUCKET}{address.bucket}/", f"{address.key}/"
        self._bucket = Bucket(address)

    def parts(self) -> tuple[str, ...]:
        """Return the URLs of the parts, in the order of the tasks that wrote them."""
        return _in_order(self._root + key for key in self._keys() if "/" not in key.removeprefix(self._prefix))

    def open(self, part: str) -> ObjectFile:
        """Return a file that reads the object in ranges."""
        return ObjectFile(self._bucket, part.removeprefix(self._root))

    def remove(self) -> None:
        """Remove the objects in the folder."""
        self._remove(lambda _: True)

    def drop(self, job: str, before: int) -> None:
        """Remove the objects of the folders that `OnDisk.drop` would remove."""
        self._remove(lambda name: _is_older(name, job, before))

    def _keys(self) -> list[str]:
        return [found.key for found in self._bucket.objects(self._prefix)]

    def _remove(self, which: Callable[[str], bool]) -> None:
        """Remove the objects in the folders whose names fit."""
        with suppress(ExportError), ThreadPoolExecutor(CONNECTIONS) as pool:
            found = [[key] for key in self._keys() if which(key.removeprefix(self._prefix).partition("/")[0])]
            list(pool.map(self._bucket.delete, found))


PartsFolder = OnDisk | InBucket


def parts_folder(folder: str) -> PartsFolder:
    """Return the folder of this path or `s3a://` URL."""
    return InBucket(folder) if folder.startswith(BUCKET) else OnDisk(Path(folder))


def remove_parts(folder: str) -> None:
    """Remove a folder of parts; what cannot be removed stays."""
    with suppress(ExportError):
        parts_folder(folder).remove()


@contextmanager
def opened(folder: PartsFolder, part: str) -> Iterator[Any]:
    """Open a part (pyarrow.parquet.ParquetFile); raise ExportError if it cannot be read."""
    import pyarrow.parquet as pq  # the callers have checked that it is installed

    try:
        with pq.ParquetFile(folder.open(part)) as source:
            yield source
    except (OSError, arrow().ArrowException) as error:
        raise ExportError(
            f"Expected Spark's part {part}, got {error}: see what changes files there; the next run repeats the export."
        ) from error


def rows_of(folder: PartsFolder, part: str) -> int:
    """Return the number of rows in a part's own index; raise ExportError if it cannot be read."""
    with opened(folder, part) as source:
        return int(source.metadata.num_rows)


def checked_stage(stage: str) -> str:
    """
    Return the setting `spark_stage` as a path or an `s3a://` URL, without a slash at its end.

    Raises:
        ConfigError: It is neither.
    """
    text = stage.rstrip("/")
    try:
        if text.startswith(BUCKET):
            S3(f"{SCHEME}{text.removeprefix(BUCKET)}/{STAGES}")  # checks the address
            return text
        path = unquote(text.removeprefix("file://")) if text.startswith("file:///") else text
        if not stage or path.startswith("/"):
            return path
    except ExportRejected:
        pass  # the text can have a key before an @
    raise ConfigError(
        "Expected spark_stage as s3a://bucket/folder, file:///folder or /folder, got another address: correct it. "
        "Credentials come from the settings of Hadoop and of the AWS SDK, and never from an address.",
        id="spark.setting",
    )


def runs_folder(stage: str, uid: str) -> str:
    """Return the folder for all parts of a job, in the folder that `checked_stage` has returned."""
    return f"{stage}/{STAGES}/{uid}/parts"


def reap_stage(stage: str, settled: Callable[[Sequence[str]], Iterable[str]]) -> None:
    """
    Remove the parts of settled jobs, as `stage.reap` does in the folders of targets.

    Raises:
        ExportError: The bucket refused a request or did not respond.
    """
    if stage.startswith(BUCKET):
        reap_address(S3(f"{SCHEME}{stage.removeprefix(BUCKET)}/{STAGES}"), settled)
    else:
        reap(Path(stage), settled)


def _in_order(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return those that are parts, in the order of their tasks."""
    found = [(int(match[1]), each) for each in addresses if (match := _PART.fullmatch(each.rpartition("/")[2]))]
    return tuple(address for _, address in sorted(found))


def _is_older(name: str, job: str, before: int) -> bool:
    """Return whether a folder is of a submission of this job with a number below `before`, or of a run with a lower fence."""
    folder, own = _SUBMISSION.fullmatch(name), _RUN.fullmatch(job)
    if folder is None or own is None:
        return False
    fence, number, submission = map(int, folder.groups())
    return fence < int(own[1]) or ((fence, number) == (int(own[1]), int(own[2])) and submission < before)
