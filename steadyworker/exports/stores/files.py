"""The files of a run on this host, which are made first, and then put into a store, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from io import FileIO
from pathlib import Path
from typing import BinaryIO, TypeVar

from steadyworker.errors import ExportError
from steadyworker.export import Services
from steadyworker.exports.commit import FULL
from steadyworker.exports.manifest import Manifest, ManifestFile
from steadyworker.exports.stage import ExportTarget, StagingDir, drop_incomplete, new_stage, stages

Answer = TypeVar("Answer")

CONNECTIONS = 4
"""The number of parts or files that go up at the same time."""

CHECK_EVERY = 0.5
"""The seconds between two checks whether the run must end, while it waits for the network."""


class Stopped(BaseException):
    """The end of an upload that is under way; no Exception, so that a client library does not try again."""


class Upload:
    """
    What the main thread shares with the threads that put files.

    Args:
        services: The job's services.
        total: The bytes of all files.

    Attributes:
        stopped: An event after which no thread reads a file.
    """

    def __init__(self, services: Services, total: int) -> None:
        self.stopped = threading.Event()
        self._services, self._total = services, total
        self._lock, self._bytes, self._reported = threading.Lock(), 0, -1

    def count(self, size: int) -> None:
        """Count the bytes that a request has read."""
        with self._lock:
            self._bytes += size  # a request that is repeated reads some again

    def report(self) -> None:
        """Report progress if bytes have moved, and raise Interrupt if the run must end."""
        if self._bytes != self._reported:
            self._reported = self._bytes
            self._services.progress(min(self._bytes, self._total), self._total, "uploading")
        self._services.check()


class StoppableFile(FileIO):
    """
    A file of this host that goes up.

    Args:
        path: The file.
        upload: Counts the bytes; after its end, the request that reads the file ends.
        at_end: A function that is called when the file has no more bytes, and before the request can know it.
    """

    def __init__(self, path: Path, upload: Upload, at_end: Callable[[], None] = lambda: None) -> None:
        super().__init__(path, "rb")
        self._upload, self._at_end = upload, at_end

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as FileIO does; after the upload's end, raise an error that no client library handles."""
        if self._upload.stopped.is_set():
            raise Stopped
        data = super().read(-1 if size is None else size)
        self._upload.count(len(data))
        if not data:
            self._at_end()
        return data


def made_files(
    staged: ExportTarget, services: Services, write: Callable[[StagingDir], Manifest]
) -> tuple[StagingDir, Manifest]:
    """
    Return the complete stage of an earlier run of this job on this host, or make one.

    Raises:
        ExportError: The disk has no room.
    """
    for stage in stages(staged, services.uid):
        if (manifest := stage.read()) is not None:
            return stage, manifest
    stage = new_stage(staged, services.uid, services.fence)
    try:
        manifest = write(stage)
        stage.complete(manifest)
    except OSError as error:
        if error.errno not in FULL:
            if not stage.path.exists():
                services.may_commit()  # raises Interrupt if a later run owns the job, and has removed this stage
            raise
        drop_incomplete(staged, services.uid, services.fence + 1)
        raise ExportError(
            f"Expected room for the files of the export under {staged.folder}, got {error.strerror!r}: "
            "free disk space, or set TMPDIR (of S3: S3(…, scratch=…)) to a larger disk."
        ) from error
    drop_incomplete(staged, services.uid, services.fence)
    return stage, manifest


def put_file(services: Services, path: Path, put: Callable[[BinaryIO], None]) -> None:
    """
    Put one file; ask for permission when all its bytes are read, so that a run that was frozen before makes nothing appear.

    Args:
        services: The job's services.
        path: The file.
        put: A function that reads the file to its end, and then makes the object appear; it is called on a thread.
    """
    upload, asked, answered = Upload(services, path.stat().st_size), threading.Event(), threading.Event()
    permitted = False

    def wait_for_permission() -> None:
        asked.set()
        answered.wait()
        if not permitted:
            raise Stopped

    with StoppableFile(path, upload, wait_for_permission) as file, ThreadPoolExecutor(1, "store") as pool:
        try:
            request = pool.submit(put, file)
            request.add_done_callback(lambda _: asked.set())  # if it fails before the file's end
            while not asked.wait(CHECK_EVERY):
                upload.report()
            if not request.done():
                services.may_commit()
            permitted = True
            answered.set()
            while not wait([request], CHECK_EVERY).done:
                upload.report()
            request.result()
        finally:
            answered.set()
            upload.stopped.set()


def put_files(services: Services, files: Sequence[ManifestFile], put: Callable[[ManifestFile, Upload], None]) -> None:
    """
    Put all files, several at a time.

    Args:
        services: The job's services.
        files: The files.
        put: A function that puts one file; it is called on a thread, and ends after the end of the upload.
    """
    upload = Upload(services, sum(file.bytes for file in files))
    pool = ThreadPoolExecutor(CONNECTIONS, "store")
    try:
        waiting = {pool.submit(put, file, upload) for file in files}
        while waiting:
            done, waiting = wait(waiting, CHECK_EVERY, FIRST_COMPLETED)
            for each in done:
                each.result()
            upload.report()
    except FileNotFoundError:
        services.may_commit()  # raises Interrupt if a later run owns the job, and has removed this stage
        raise
    finally:
        upload.stopped.set()
        pool.shutdown(cancel_futures=True)


def call_to_end(request: Callable[[], Answer]) -> Answer:
    """
    Make a request on a thread, and return its answer; if an Interrupt comes meanwhile, raise it when the request has ended.

    An Interrupt in the thread of the request would end only the wait: the store would still change after the run has tidied up.
    """
    with ThreadPoolExecutor(1, "store") as pool:
        pool.submit(int).result()  # an Interrupt while the thread starts would not wait for it
        return pool.submit(request).result()
