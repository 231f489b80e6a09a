"""What the publication of an object and that of a folder of objects share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from steadyworker.errors import ExportError, ExportRejected, Interrupt, TargetExists
from steadyworker.export import Services
from steadyworker.exports.commit import committed, job_text
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.s3.bucket import AbsentError, Bucket, ConditionError
from steadyworker.exports.s3.stage import UID, BucketStage, reap_bucket
from steadyworker.exports.stage import ExportTarget, StagingDir, remove_stages

_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "ndjson": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "gz": "application/gzip",
    "zst": "application/zstd",
}


class BucketRun(ABC):
    """
    One run that publishes to a bucket.

    Args:
        bucket: The bucket.
        staged: The path on this host beside which the run has its stage.
        services: The job's services.
        manifest_key: The key of the manifest.
    """

    def __init__(self, bucket: Bucket, staged: ExportTarget, services: Services, manifest_key: str) -> None:
        self.bucket, self.staged, self.services, self.manifest_key = bucket, staged, services, manifest_key
        self.address = bucket.address
        self.stage = BucketStage(bucket, services.uid, staged.digest)

    def publish(self, write: Callable[[StagingDir], Manifest]) -> Manifest:
        """Make the target, or finish what an earlier run has begun, and return the manifest."""
        try:
            # This request is the first, because the errors of a request for an object's head have no text.
            reap_bucket(self.bucket, self.services.ended, but=self.services.uid)
            return self.made(write)
        except (Interrupt, ExportRejected) as error:
            with suppress(ExportError, AbsentError, ConditionError):  # what stays is removed by `reap_bucket`
                self.left(error)
            raise

    @abstractmethod
    def made(self, write: Callable[[StagingDir], Manifest]) -> Manifest:
        """Do the work of `publish`."""

    def left(self, error: Interrupt | ExportRejected) -> bool:
        """
        Remove what no later run can use after this error; return False if a later run has begun.

        After a shutdown or a time limit, all stays for the next run.
        """
        if isinstance(error, Interrupt) and error.reason not in {"cancelled", "fenced"}:
            return False
        ended = not isinstance(error, Interrupt) or error.reason == "cancelled"
        last = self.stage.leave(self.services.fence, ended=ended)
        if last and ended:
            remove_stages(self.staged, self.services.uid)
        return last

    def manifest(self) -> Manifest | None:
        """
        Return the manifest at the target; None if there is none.

        Raises:
            TargetExists: There is another file in its place.
        """
        data = self.bucket.read(self.manifest_key)
        try:
            return None if data is None else Manifest.parse(data, self.manifest_url)
        except ExportError as error:
            raise TargetExists(f"target exists: {error}") from error

    @property
    def manifest_url(self) -> str:
        """The address of the manifest, for people."""
        return f"s3://{self.address.bucket}/{self.manifest_key}"

    def put_manifest(self, manifest: Manifest) -> Manifest:
        """
        Put the manifest, over one of an earlier run of this job; return the manifest that is there then.

        Raises:
            TargetExists: There is another job's manifest.
        """
        data = manifest.dump()
        try:
            self.bucket.put(self.manifest_key, data, over=False, ContentType="application/json")
        except ConditionError:
            found = self.manifest()
            if found is not None and found.uid != self.services.uid:
                raise TargetExists(
                    f"target exists: {self.manifest_url} belongs to {job_text(found)}. Remove it: the next run finishes the export."
                ) from None
            if found is not None and found.fence >= manifest.fence:
                return found
            self.bucket.put(self.manifest_key, data, ContentType="application/json")
        return manifest

    def committed(self, manifest: Manifest) -> Manifest:
        """Record the commit in the ledger, and remove the stages of this job's runs."""
        folder = f"s3://{self.address.bucket}/{self.address.folder}".rstrip("/")
        self.services.save_export_state(committed(self.address.name, folder, manifest))
        return self.cleared(manifest)

    def cleared(self, manifest: Manifest) -> Manifest:
        """Remove the stages of this job's runs, in the bucket and on this host, and return the manifest."""
        self.stage.remove()
        remove_stages(self.staged, self.services.uid)
        return manifest

    def options(self, name: str) -> dict[str, Any]:
        """Return the arguments of a new object of this name, which carries the job's uid."""
        kind = _TYPES.get(name.rpartition(".")[2].lower(), "application/octet-stream")
        found: dict[str, Any] = {"ContentType": kind, "Metadata": {UID: self.services.uid}}
        if self.address.kms_key is not None:
            found |= {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self.address.kms_key}
        if self.address.storage_class is not None:
            found["StorageClass"] = self.address.storage_class
        return found

    def exists(self, key: str, uid: str | None, manifest: Manifest | None) -> TargetExists:
        """Return the error for an object that another job or program has made."""
        if manifest is not None and manifest.uid == uid:
            made = f"was made by {job_text(manifest)}"
        else:
            made = f"was made by job {uid}" if uid else "has no uid of a SteadyWorker job"
        return TargetExists(
            f"target exists: s3://{self.address.bucket}/{key} {made}; this job, {job_text(self.services)}, did not make it. "
            "Put job.name into the key, or move the existing object away."
        )
