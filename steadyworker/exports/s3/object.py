"""The publication of one object from an upload's parts; the package's docstring shows the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from steadyworker.errors import ExportError
from steadyworker.export import Services
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.s3.bucket import Bucket, PartsDifferError
from steadyworker.exports.s3.upload import PartsUpload
from steadyworker.exports.stage import SUFFIX, ExportTarget, StagingDir, new_stage
from steadyworker.exports.stores.files import call_to_end
from steadyworker.exports.stores.single import SingleRun
from steadyworker.exports.stores.stage import CompleteStage, RunRecord, UploadedPart
from steadyworker.exports.stores.store import AbsentError, ConditionError, ObjectHead


class ObjectRun(SingleRun):
    """
    One run that publishes one object.

    Args:
        bucket: The bucket.
        staged: The path on this host beside which the run has its stage.
        services: The job's services.
        replace: True to replace the object of an earlier job with the same queue and key.

    Attributes:
        upload: The upload of the object's bytes, known when the rows are written.
    """

    upload: PartsUpload

    def __init__(self, bucket: Bucket, staged: ExportTarget, services: Services, *, replace: bool) -> None:
        super().__init__(bucket, staged, services, bucket.address.key + SUFFIX, replace=replace)
        self._bucket = bucket

    def made(self, write: Callable[[StagingDir], Manifest]) -> Manifest:
        """Make the object, or finish what an earlier run has begun, and return its manifest."""
        if (manifest := self.finished()) is not None:
            self.cleared()
            return manifest
        complete = self.stage.read()
        if complete is None:
            complete = self._write(write)
        else:  # the time of this run's record shows the reaper when its last request can have been sent
            self.stage.record(self.services.fence, RunRecord(key=self.address.key, upload=complete.upload))
        return self.committed(self._complete(complete))

    def staged_manifest(self, head: ObjectHead) -> Manifest | None:
        """Return the manifest with which the stage is complete."""
        del head
        complete = self.stage.read()
        return None if complete is None else complete.manifest

    def _write(self, write: Callable[[StagingDir], Manifest]) -> CompleteStage:
        """Upload the rows, and put what completes the object."""
        stage = new_stage(self.staged, self.services.uid, self.services.fence)
        try:
            id, there = self._begin()
            self.upload = PartsUpload(
                self._bucket,
                id,
                there,
                check=self.services.check,
                moved=lambda: self.services.progress(None, None, "uploading the last parts"),
            )
            with self.upload:
                manifest = write(stage)
        except AbsentError as error:
            self.services.may_commit()  # raises Interrupt if a later run owns the job, and has completed the upload
            raise ExportError(
                f"Expected the upload of {self.address} to go on, got {error}: see what ends uploads there. "
                "The next run begins a new upload."
            ) from error
        finally:
            stage.remove()
        self.services.may_commit()  # a stale run must not put it after a later run has removed the stage
        return self.stage.complete(CompleteStage(upload=id, parts=tuple(self.upload.parts), manifest=manifest))

    def _begin(self) -> tuple[str, list[Mapping[str, Any]]]:
        """Return the upload of an earlier run of this job and its parts, or a new upload."""
        options = self._bucket.options(self.address.key, self.label())
        known = {name: value for name, value in options.items() if name != "Metadata"}
        new = RunRecord(key=self.address.key, options={**known, "part_bytes": self._bucket.address.part_bytes})
        records = self.stage.records()
        for record in records.values():
            if record.upload is not None and record.options == new.options:
                with suppress(AbsentError):
                    there = self._bucket.parts(self.address.key, record.upload)
                    self.stage.record(self.services.fence, record)
                    return record.upload, there
        if records:
            self.stage.end()  # uploads with other options, and those that no run could record
        self.stage.record(self.services.fence, new)
        create = partial(self._bucket.call, "create_multipart_upload", Key=self.address.key, ChecksumAlgorithm="SHA256")
        upload: str = call_to_end(partial(create, **options))["UploadId"]
        self.stage.record(self.services.fence, RunRecord(key=new.key, upload=upload, options=new.options))
        return upload, []

    def _complete(self, complete: CompleteStage) -> Manifest:
        """Complete the upload, and put the manifest."""
        # This check precedes the permission: if this run freezes, it must not mistake a later job's object for an earlier one's.
        if self.replace and (manifest := self.finished()) is not None:
            return manifest
        self.services.may_commit()
        try:
            call_to_end(
                partial(
                    self._bucket.call,
                    "complete_multipart_upload",
                    Key=self.address.key,
                    UploadId=complete.upload,
                    MultipartUpload={"Parts": [_listed(part) for part in complete.parts]},
                    **({"IfNoneMatch": "*"} if self.replaced is None else {"IfMatch": self.replaced}),
                )
            )
        except (ConditionError, AbsentError, PartsDifferError) as error:
            self.services.may_commit()
            if (manifest := self.finished()) is not None:
                return manifest  # another run has completed it, or this run has, and got no answer
            if isinstance(error, ConditionError):
                raise ExportError(
                    f"Expected {self.address} to stay as it was, got {error}: see what else writes or removes it. "
                    "The next run completes the upload."
                ) from error
            self.stage.reopen()
            raise ExportError(
                f"Expected the upload of {self.address} to be complete, got {error}: see what ends or changes uploads there. "
                "The next run makes the object again."
            ) from error
        self.services.may_commit()  # a frozen run must not put a manifest that a reader has taken away
        return self.put_manifest(complete.manifest)


def _listed(part: UploadedPart) -> dict[str, Any]:
    """Return a part as CompleteMultipartUpload expects it."""
    return {"PartNumber": part.number, "ETag": part.etag, "ChecksumSHA256": part.sha256}
