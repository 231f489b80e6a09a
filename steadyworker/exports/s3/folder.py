"""The publication of several objects: all of them are put first, and then the manifest that lists them."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from steadyworker.errors import ExportError, ExportRejected, Interrupt
from steadyworker.export import Services
from steadyworker.exports.manifest import Manifest, ManifestFile
from steadyworker.exports.s3.bucket import CONNECTIONS, Bucket, ConditionError
from steadyworker.exports.s3.run import BucketRun
from steadyworker.exports.s3.stage import UID, RunRecord, withdraw
from steadyworker.exports.s3.upload import CHECK_EVERY, StoppableFile
from steadyworker.exports.stage import INSIDE, ExportTarget, StagingDir, drop_incomplete, new_stage, stages

_SHA256 = "sw-sha256"
_LARGEST = 5 << 30  # bytes; S3 puts no larger object by one request


class FolderRun(BucketRun):
    """One run that publishes a folder of objects."""

    def __init__(self, bucket: Bucket, staged: ExportTarget, services: Services) -> None:
        self._prefix = f"{bucket.address.key}/"
        super().__init__(bucket, staged, services, self._prefix + INSIDE)

    def made(self, write: Callable[[StagingDir], Manifest]) -> Manifest:
        """Make the files on this host, put them and their manifest, and return the manifest."""
        if (manifest := self.manifest()) is not None:
            if manifest.uid != self.services.uid:
                raise self.exists(self.manifest_key, manifest.uid, manifest)
            return self.cleared(manifest)
        there = self._own()
        # This request fails early without the right to write.
        self.stage.record(self.services.fence, RunRecord(key=self.address.key, several=True))
        stage, manifest = self._completed() or self._write(write)
        self.services.may_commit()
        files = manifest.files or ()
        self._put_all(stage, files[:1])  # of two jobs, one fails here, before it has put another file
        self._put_all(stage, files[1:])
        self.bucket.delete(sorted(there - {self._prefix + file.name for file in files}))
        self.services.may_commit()
        return self.committed(self.put_manifest(manifest))

    def left(self, error: Interrupt | ExportRejected) -> None:
        """Remove what no later run can use after this error, with the objects that this job has put."""
        fences = self.stage.records()
        ended = not isinstance(error, Interrupt) or error.reason == "cancelled"
        if ended and 0 < max(fences, default=0) <= self.services.fence:
            # First the objects: if this process is killed now, the stage still names them.
            withdraw(self.bucket, self.address.key, self.services.uid)
        super().left(error)

    def _own(self) -> set[str]:
        """
        Return the keys of this job's objects in the folder.

        Raises:
            TargetExists: There is an object of another job or program.
        """
        found = set()
        for each in self.bucket.objects(self._prefix):
            head = self.bucket.head(each["Key"])
            uid = None if head is None else head["Metadata"].get(UID)
            if uid == self.services.uid:
                found.add(each["Key"])
            elif head is not None:
                raise self.exists(each["Key"], uid, None)
        return found

    def _completed(self) -> tuple[StagingDir, Manifest] | None:
        """Return the complete stage of an earlier run of this job on this host."""
        for stage in stages(self.staged, self.services.uid):
            if (manifest := stage.read()) is not None:
                return stage, manifest
        return None

    def _write(self, write: Callable[[StagingDir], Manifest]) -> tuple[StagingDir, Manifest]:
        """Make the files on this host."""
        stage = new_stage(self.staged, self.services.uid, self.services.fence)
        try:
            manifest = write(stage)
            stage.complete(manifest)
        except OSError as error:
            drop_incomplete(self.staged, self.services.uid, self.services.fence + 1)
            raise ExportError(
                f"Expected room for the files of the export under {self.staged.folder}, got {error.strerror!r}: "
                "free disk space, or set S3(…, scratch=…) to a larger disk."
            ) from error
        drop_incomplete(self.staged, self.services.uid, self.services.fence)
        for file in manifest.files or ():
            if file.bytes > _LARGEST:
                raise ExportRejected(
                    f"Expected files of at most {_LARGEST:,} bytes in a folder of a bucket, got {file.bytes:,} in {file.name}: "
                    "set split_bytes or split_rows."
                )
        return stage, manifest

    def _put_all(self, stage: StagingDir, files: tuple[ManifestFile, ...]) -> None:
        """Put all files, several at a time."""
        stopped = threading.Event()
        pool = ThreadPoolExecutor(CONNECTIONS, "s3")
        try:
            waiting = {pool.submit(self._put, stage, file, stopped) for file in files}
            while waiting:
                done, waiting = wait(waiting, CHECK_EVERY, FIRST_COMPLETED)
                for each in done:
                    each.result()
                if done:
                    self.services.progress(len(files) - len(waiting), len(files), "uploading the files")
                self.services.check()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)

    def _put(self, stage: StagingDir, file: ManifestFile, stopped: threading.Event) -> None:
        """
        Put a file, on a thread, unless this job has put it before.

        Raises:
            TargetExists: Another job has an object of this key.
        """
        key, options = self._prefix + file.name, self.options(file.name)
        options["Metadata"] = {**options["Metadata"], _SHA256: file.sha256}
        options["ChecksumSHA256"] = base64.b64encode(bytes.fromhex(file.sha256)).decode()
        try:
            with StoppableFile(stage.data / file.name, stopped) as data:
                self.bucket.put(key, data, over=False, **options)
        except ConditionError:
            head = self.bucket.head(key)
            found = {} if head is None else head["Metadata"]
            if head is None or found.get(UID) != self.services.uid:
                raise self.exists(key, found.get(UID), None) from None
            if (found.get(_SHA256), head["ContentLength"]) == (file.sha256, file.bytes):
                return
            self.services.may_commit()
            # An earlier run had other rows; `IfMatch` fails if a later run has put its own rows meanwhile.
            try:
                with StoppableFile(stage.data / file.name, stopped) as data:
                    self.bucket.put(key, data, IfMatch=head["ETag"], **options)
            except ConditionError as error:
                raise ExportError(
                    f"Expected s3://{self.address.bucket}/{key} to stay, got {error}: another run of this job has changed it."
                ) from error
