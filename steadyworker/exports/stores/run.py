"""What all publications to a store share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from steadyworker.errors import ExportError, ExportRejected, Interrupt, TargetExists
from steadyworker.export import Services
from steadyworker.exports.commit import committed, job_text
from steadyworker.exports.manifest import Manifest, ManifestFile, same_key
from steadyworker.exports.stage import ExportTarget, StagingDir, remove_stages
from steadyworker.exports.stores.files import call_to_end
from steadyworker.exports.stores.reaping import reap_store, recorded
from steadyworker.exports.stores.stage import RunRecord, StoreStage
from steadyworker.exports.stores.store import AbsentError, ConditionError, Label, ObjectStore
from steadyworker.telemetry.logs import get_logger

_LONGEST_KEY = 1_024
"""The bytes of a key: the limit of S3 and Google Cloud; Azure has 1,024 characters."""


class StoreRun(ABC):
    """
    One run that publishes to a store.

    Args:
        store: The store.
        staged: The path on this host beside which the run has its stage.
        services: The job's services.
        manifest_key: The key of the manifest.
        replace: True to replace what an earlier job with the same queue and key has made.
    """

    def __init__(
        self, store: ObjectStore, staged: ExportTarget, services: Services, manifest_key: str, *, replace: bool = False
    ) -> None:
        self.store, self.staged, self.services = store, staged, services
        self.manifest_key, self.replace = manifest_key, replace
        self.address = store.address
        self.stage = StoreStage(store, services.uid, staged.digest)

    def publish(self, write: Callable[[StagingDir], Manifest]) -> Manifest:
        """Make the target, or finish what an earlier run has begun, and return the manifest."""
        try:
            self.services.staged(recorded(self.address))
            # This request is the first, because the errors of a request for an object's head have no text.
            # What another job's stage refuses is no error of this job; a worker process tries it again.
            reap_store(self.store, self.services.ended, but=self.services.uid, waiting=self.staged.digest)
            return self.made(write)
        except (Interrupt, ExportRejected) as error:
            with suppress(ExportError, AbsentError, ConditionError):  # what stays is removed by `reap_store`
                self.left(error)
            raise

    @abstractmethod
    def made(self, write: Callable[[StagingDir], Manifest]) -> Manifest:
        """Do the work of `publish`."""

    def left(self, error: Interrupt | ExportRejected) -> None:
        """Remove what the job's runs have put, if this error ends the job and this is the newest run; otherwise a later run uses it, or removes it."""
        ended = not isinstance(error, Interrupt) or error.reason == "cancelled"
        if ended and 0 < max(self.stage.records(), default=0) <= self.services.fence:
            self.withdraw()
            remove_stages(self.staged, self.services.uid)
            self.stage.remove()

    def withdraw(self) -> None:  # noqa: B027 - one object needs none
        """Remove the objects that were put, but are not published; of one object, there is none."""

    def manifest(self) -> Manifest | None:
        """
        Return the manifest at the target; None if there is none.

        Raises:
            TargetExists: There is another file in its place.
        """
        data = self.store.read(self.manifest_key)
        try:
            return None if data is None else Manifest.parse(data, self.manifest_url)
        except ExportError as error:
            raise TargetExists(f"target exists: {error}") from error

    @property
    def manifest_url(self) -> str:
        """The address of the manifest, for people."""
        return self.address.at(self.manifest_key)

    def put_manifest(self, manifest: Manifest) -> Manifest:
        """
        Put the manifest, over one of an earlier run of this job, or of the job whose object this job has replaced.

        Return the manifest that is there then.

        Raises:
            TargetExists: There is another job's manifest.
            ExportError: Another run has put a manifest at the same time.
        """
        data, label = manifest.dump(), self.label()
        with suppress(ConditionError):
            call_to_end(partial(self.store.put, self.manifest_key, data, over=False, label=label))
            return manifest
        head = self.store.head(self.manifest_key)  # before the read, so that a manifest put after the read stays
        found = self.manifest()
        if found is not None and found.uid != self.services.uid:
            if not self.may_replace(found) or self.owner() != self.services.uid:
                raise TargetExists(
                    f"target exists: {self.manifest_url} belongs to {job_text(found)}. Remove it: the next run finishes the export."
                )
        elif found is not None:
            if (found.sha256, found.files) == (manifest.sha256, manifest.files):
                return found
            self.services.may_commit()  # of two runs with other rows, the newest one's manifest stays
        try:
            match = head.etag if head else None
            call_to_end(partial(self.store.put, self.manifest_key, data, over=False, match=match, label=label))
        except (AbsentError, ConditionError) as error:
            raise ExportError(
                f"Expected {self.manifest_url} to stay, got {error}: another run has changed it. The next run finishes the export."
            ) from error
        return manifest

    def check_file(self, file: ManifestFile, key: str, remedy: str) -> None:
        """Raise ExportRejected if the store does not accept a file of this size and key by one `put`."""
        if len(key.encode()) > _LONGEST_KEY:
            raise ExportRejected(
                f"Expected keys of at most {_LONGEST_KEY:,} bytes, got {len(key.encode()):,} in {self.address.at(key)!r:.300}: "
                "shorten the folder's name, or the values of partition_by."
            )
        if self.store.largest is not None and file.bytes > self.store.largest:
            raise ExportRejected(
                f"Expected files of at most {self.store.largest:,} bytes for {self.address}, got {file.bytes:,} in {file.name}: {remedy}."
            )

    def label(self, sha256: str | None = None) -> Label:
        """Return the label of an object of this run."""
        return Label(self.services.uid, sha256, self.staged.digest)

    def may_replace(self, made: Manifest) -> bool:
        """Return whether this run may replace what the job of this manifest has made."""
        return self.replace and same_key(made, self.services)

    def owner(self) -> str | None:
        """Return the uid of the job that made the object at the address; None if there is no object, or no uid."""
        head = self.store.head(self.address.key)
        return None if head is None else head.label.uid

    def committed(self, manifest: Manifest) -> Manifest:
        """Record the commit in the ledger, remove the stages of this job's runs, and return the manifest."""
        folder = self.address.at(self.address.folder).rstrip("/")
        self.services.save_export_state(committed(self.address.name, folder, manifest))
        self.cleared()
        return manifest

    def cleared(self) -> None:
        """
        Remove the stages of this job's runs, on this host and in the store, after the publication.

        What the store refuses is removed after the job's end; a mark there keeps what a reader takes away meanwhile from coming back.
        """
        remove_stages(self.staged, self.services.uid)
        try:
            self.stage.remove()
        except (ExportError, AbsentError, ConditionError) as error:
            with suppress(ExportError, AbsentError, ConditionError):
                self.stage.record(
                    self.services.fence, RunRecord(key=self.address.key, several=self.staged.several, published=True)
                )
            get_logger("steadyworker.exports").warning(
                "export_stage_left",
                target=str(self.address),
                cause=str(error),
                explain="steadyworker.export-stage-left",
            )

    def exists(self, key: str, uid: str | None, manifest: Manifest | None) -> TargetExists:
        """Return the error for an object that another job or program has made."""
        own = False
        if manifest is not None and manifest.uid == uid:
            made = f"was made by {job_text(manifest)}"
            own = manifest.files is None and same_key(manifest, self.services)
        else:
            made = f"was made by job {uid}" if uid else "has no uid of a SteadyWorker job"
        return TargetExists(
            f"target exists: {self.address.at(key)} {made}; this job, {job_text(self.services)}, did not make it. "
            "Put job.name into the key, or move the existing object away"
            + (', or pass if_exists="replace-own".' if own else ".")
        )
