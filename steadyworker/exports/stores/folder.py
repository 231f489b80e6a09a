"""The publication of several objects: all of them are put first, and then the manifest that lists them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from steadyworker.errors import ExportError, TargetExists
from steadyworker.export import Services
from steadyworker.exports.commit import job_text
from steadyworker.exports.manifest import Manifest, ManifestFile
from steadyworker.exports.stage import INSIDE, ExportTarget, StagingDir
from steadyworker.exports.stores.files import StoppableFile, Upload, made_files, put_files
from steadyworker.exports.stores.reaping import withdraw
from steadyworker.exports.stores.run import StoreRun
from steadyworker.exports.stores.stage import RunRecord, StoreStage
from steadyworker.exports.stores.store import AbsentError, ConditionError, ObjectStore


class FolderRun(StoreRun):
    """One run that publishes a folder of objects."""

    def __init__(self, store: ObjectStore, staged: ExportTarget, services: Services) -> None:
        self._prefix = f"{store.address.key}/"
        super().__init__(store, staged, services, self._prefix + INSIDE)

    def made(self, write: Callable[[StagingDir], Manifest]) -> Manifest:
        """Make the files on this host, put them and their manifest, and return the manifest."""
        if (manifest := self.manifest()) is not None:
            if manifest.uid != self.services.uid:
                raise self.exists(self.manifest_key, manifest.uid, manifest)
            if self._is_whole(manifest):
                self.cleared()
                return manifest
        if self.store.head(self.address.key) is not None:  # on Azure, it hides the folder's objects
            raise TargetExists(f"target exists: {self.address} is an object, and no folder. Move it away.")
        # This request fails early without the right to write.
        self.stage.record(self.services.fence, RunRecord(key=self.address.key, several=True))
        self._claim()
        there = self._own()
        stage, manifest = made_files(self.staged, self.services, write)
        self._claim()  # again, because two jobs can take over the claim of an ended one
        for file in manifest.files or ():
            self.check_file(file, self._prefix + file.name, "set split_bytes or split_rows")
        self.services.may_commit()
        files = manifest.files or ()
        # These go before a file is put: if this run freezes later, the file of a later run can have such a key.
        for key in sorted(there.keys() - {self._prefix + file.name for file in files}):
            head = self.store.head(key)
            if head is not None and head.etag == there[key]:
                self.store.delete([key])
        put_files(self.services, files, partial(self._put, stage))
        self.services.may_commit()
        return self.committed(self.put_manifest(manifest))

    def _claim(self) -> None:
        """Claim the folder, or raise TargetExists."""
        if (other := self.stage.claim(self.services.ended)) is not None:
            raise TargetExists(
                f"target exists: {self.address} is the target of job {other}, which has not ended; this job is {job_text(self.services)}. "
                "Put job.name into the folder's name."
            )

    def withdraw(self) -> None:
        """Remove the files that this job has put, before the stage, so that a kill in between loses no record of them."""
        withdraw(self.store, self.address.key, self.label())

    def _is_whole(self, manifest: Manifest) -> bool:
        """
        Return whether the folder has the files of this manifest; False if another run of this job has put its own files over them.

        That is so if this manifest's run was frozen before it put the manifest.

        Raises:
            TargetExists: A file is missing, or is not this job's.
        """
        whole = True
        for file in manifest.files or ():
            key = self._prefix + file.name
            head = self.store.head(key)
            if head is None or head.label._replace(sha256=None) != self.label():
                raise TargetExists(
                    f"target exists: {self.address} was changed after this job made it: expected {self.address.at(key)}, as in its "
                    f"manifest, got {'none' if head is None else 'an object of another job or program'}. Move the folder away."
                )
            whole = whole and (head.label.sha256, head.size) == (file.sha256, file.bytes)
        return whole

    def _own(self) -> dict[str, str]:
        """
        Return the ETags of this export's objects in the folder by their keys.

        Raises:
            TargetExists: There is an object of another job, export or program.
            ExportError: There is an object of a job that has ended without a publication.
        """
        found = {}
        for each in self.store.objects(self._prefix):
            head = self.store.head(each.key)
            if head is None:
                continue
            owner = head.label.uid
            if owner != self.services.uid:
                if owner is not None and self._is_left(owner):
                    raise ExportError(
                        f"Expected no file of the ended job {owner} in {self.address}, got {self.address.at(each.key)}, which the store "
                        "has not let be removed yet: a later run removes it, or move it away."
                    )
                raise self.exists(each.key, owner, None)
            if head.label.target != self.staged.digest:
                raise TargetExists(
                    f"target exists: {self.address.at(each.key)} is another export of this job. Export the folder to another key."
                )
            found[each.key] = head.etag
        return found

    def _is_left(self, uid: str) -> bool:
        """Return whether this job has ended, and its stage for this folder is still there."""
        return uid in self.services.ended([uid]) and bool(StoreStage(self.store, uid, self.staged.digest).records())

    def _put(self, stage: StagingDir, file: ManifestFile, upload: Upload) -> None:
        """
        Put a file, on a thread, unless this job has put it before.

        Raises:
            TargetExists: Another job has an object of this key.
        """
        key, label = self._prefix + file.name, self.label(file.sha256)
        try:
            with StoppableFile(stage.data / file.name, upload) as data:
                self.store.put(key, data, over=False, label=label)
        except ConditionError as error:
            head = self.store.head(key)
            if head is None:
                raise ExportError(
                    f"Expected an object at {self.address.at(key)}, got {error} and no object: the next run puts it."
                ) from error
            if head.label.uid != self.services.uid:
                raise self.exists(key, head.label.uid, None) from None
            if (head.label.sha256, head.size) == (file.sha256, file.bytes):
                return
            self.services.may_commit()
            # An earlier run had other rows; `match` fails if a later run has put its own rows meanwhile.
            try:
                with StoppableFile(stage.data / file.name, upload) as data:
                    self.store.put(key, data, over=False, match=head.etag, label=label)
            except (AbsentError, ConditionError) as changed:
                raise ExportError(
                    f"Expected {self.address.at(key)} to stay, got {changed}: another run of this job has changed it."
                ) from changed
