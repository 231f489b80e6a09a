"""The publication of one file: it is made on this host, and then put by one request; the package's docstring shows the steps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from tempfile import TemporaryFile

from steadyworker.errors import ExportError
from steadyworker.export import Services
from steadyworker.exports.manifest import Manifest, ManifestFile
from steadyworker.exports.stage import SUFFIX, ExportTarget, StagingDir
from steadyworker.exports.stores.files import made_files, put_file
from steadyworker.exports.stores.single import SingleRun
from steadyworker.exports.stores.stage import RunRecord
from steadyworker.exports.stores.store import ConditionError, ObjectHead, ObjectStore


class FileRun(SingleRun):
    """One run that publishes one file of this host."""

    def __init__(self, store: ObjectStore, staged: ExportTarget, services: Services) -> None:
        super().__init__(store, staged, services, store.address.key + SUFFIX)

    def made(self, write: Callable[[StagingDir], Manifest]) -> Manifest:
        """Make the file and put it, or finish what an earlier run has begun, and return its manifest."""
        if (manifest := self.finished()) is not None:
            self.cleared()
            return manifest
        # This request fails early without the right to write.
        self.stage.record(self.services.fence, RunRecord(key=self.address.key))
        stage, manifest = made_files(self.staged, self.services, write)
        whole = ManifestFile(name=manifest.name, rows=manifest.rows, bytes=manifest.bytes, sha256=manifest.sha256)
        self.check_file(whole, self.address.key, "export a folder of several files, with split_bytes or split_rows")
        # Each run has its own record, so the manifest of an object is found by its SHA-256, whichever run has put the object.
        self.stage.record(self.services.fence, RunRecord(key=self.address.key, manifest=manifest))
        label = self.label(manifest.sha256)
        try:
            put_file(
                self.services, stage.data, lambda data: self.store.put(self.address.key, data, over=False, label=label)
            )
        except (FileNotFoundError, ExportError):
            self.services.may_commit()  # raises Interrupt if a later run owns the job, and has removed what this run puts
            raise
        except ConditionError as error:
            self.services.may_commit()
            if (found := self.finished()) is not None:
                return self.committed(found)  # another run has put it, or this run has, and got no answer
            raise ExportError(
                f"Expected {self.address} to stay as it was, got {error}: see what else writes or removes it. The next run puts the file."
            ) from error
        self.services.may_commit()  # a frozen run must not put a manifest that a reader has taken away
        return self.committed(self.put_manifest(manifest))

    def staged_manifest(self, head: ObjectHead) -> Manifest | None:
        """Return the manifest of the run whose file this is, by the file's size and SHA-256."""
        made = [record.manifest for record in self.stage.records().values() if record.manifest is not None]
        found = [manifest for manifest in made if manifest.bytes == head.size]
        if found:
            sha256 = head.label.sha256 or self._sha256()
            return next((manifest for manifest in found if manifest.sha256 == sha256), None)
        return None

    def _sha256(self) -> str:
        """Return the SHA-256 of the object, of which the store has no label."""
        with TemporaryFile() as copy:
            self.store.copy_to(self.address.key, copy)
            copy.seek(0)
            return hashlib.file_digest(copy, "sha256").hexdigest()
