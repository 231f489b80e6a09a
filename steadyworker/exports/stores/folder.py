"""The publication of several objects: all of them are put first, and then the manifest that lists them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.export import Services
from steadyworker.exports.manifest import Manifest, ManifestFile
from steadyworker.exports.stage import INSIDE, ExportTarget, StagingDir
from steadyworker.exports.stores.files import StoppableFile, made_files, put_files
from steadyworker.exports.stores.run import StoreRun
from steadyworker.exports.stores.stage import RunRecord, withdraw
from steadyworker.exports.stores.store import ConditionError, Label, ObjectStore


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
            self.cleared()
            return manifest
        there = self._own()
        # This request fails early without the right to write.
        self.stage.record(self.services.fence, RunRecord(key=self.address.key, several=True))
        stage, manifest = made_files(self.staged, self.services, write)
        self._check_sizes(manifest)
        self.services.may_commit()
        files, put = manifest.files or (), partial(self._put, stage)
        put_files(self.services, files[:1], put)  # of two jobs, one fails here, before it has put another file
        put_files(self.services, files[1:], put)
        self.store.delete(sorted(there - {self._prefix + file.name for file in files}))
        self.services.may_commit()
        return self.committed(self.put_manifest(manifest))

    def withdraw(self) -> None:
        """Remove the files that this job has put, before the stage, so that a kill in between loses no record of them."""
        withdraw(self.store, self.address.key, self.services.uid)

    def _own(self) -> set[str]:
        """
        Return the keys of this job's objects in the folder.

        Raises:
            TargetExists: There is an object of another job or program.
        """
        found = set()
        for each in self.store.objects(self._prefix):
            head = self.store.head(each.key)
            if head is not None and head.label.uid != self.services.uid:
                raise self.exists(each.key, head.label.uid, None)
            found.add(each.key)
        return found

    def _check_sizes(self, manifest: Manifest) -> None:
        largest = self.store.largest
        for file in manifest.files or ():
            if largest is not None and file.bytes > largest:
                raise ExportRejected(
                    f"Expected files of at most {largest:,} bytes in a folder of a bucket, got {file.bytes:,} in {file.name}: "
                    "set split_bytes or split_rows."
                )

    def _put(self, stage: StagingDir, file: ManifestFile, stopped: threading.Event) -> None:
        """
        Put a file, on a thread, unless this job has put it before.

        Raises:
            TargetExists: Another job has an object of this key.
        """
        key, label = self._prefix + file.name, Label(self.services.uid, file.sha256)
        try:
            with StoppableFile(stage.data / file.name, stopped) as data:
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
                with StoppableFile(stage.data / file.name, stopped) as data:
                    self.store.put(key, data, over=False, match=head.etag, label=label)
            except ConditionError as changed:
                raise ExportError(
                    f"Expected {self.address.at(key)} to stay, got {changed}: another run of this job has changed it."
                ) from changed
