"""What the publications of one object share: an object of an upload's parts (`s3/object.py`), and one file that is put (`file.py`)."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress

from steadyworker.errors import ExportRejected, Interrupt, TargetExists
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stores.run import StoreRun
from steadyworker.exports.stores.store import ObjectHead


class SingleRun(StoreRun):
    """One run that publishes one object."""

    replaced: str | None = None
    """The ETag of the object to replace, if there is one."""

    @abstractmethod
    def staged_manifest(self, head: ObjectHead) -> Manifest | None:
        """Return the manifest in this job's stage for this object, which this job or another one made."""

    def left(self, error: Interrupt | ExportRejected) -> None:
        """Remove what no later run can use after this error."""
        if isinstance(error, Interrupt) and error.reason == "cancelled":
            with suppress(TargetExists):
                self.finished()  # an interrupt can come between the object and the manifest
        elif isinstance(error, TargetExists) and self._is_own():
            return  # the next run finishes the export, when the strange manifest is removed
        super().left(error)

    def _is_own(self) -> bool:
        """Return whether this job has made the object at the address; without labels, its size and SHA-256 show it."""
        head = self.store.head(self.address.key)
        if head is None or self.store.exact:
            return head is not None and head.label.uid == self.services.uid
        return self.staged_manifest(head) is not None

    def finished(self) -> Manifest | None:
        """
        Return the manifest of this job's object, and put it if it is missing; None if there is no object, or one to replace.

        Raises:
            TargetExists: Another job or program made the object and this job may not replace it, or the object has no manifest.
        """
        self.replaced = None
        head, manifest = self.store.head(self.address.key), self.manifest()
        if head is None:
            if manifest is not None and manifest.uid != self.services.uid:
                raise TargetExists(
                    f"target exists: {self.manifest_url} exists without its object. Remove it, or export to another key."
                )
            return None
        uid = head.label.uid
        if uid == self.services.uid or not self.store.exact:
            staged = self.staged_manifest(head)
            if staged is not None:
                return self.put_manifest(staged)
        if not self.store.exact and manifest is not None and manifest.bytes == head.size:
            uid = manifest.uid  # such a store has no labels
        whole = manifest is not None and (manifest.uid, manifest.bytes) == (uid, head.size)
        if uid != self.services.uid:
            if manifest is not None and whole and self.may_replace(manifest):
                self.replaced = head.etag
                return None
            raise self.exists(self.address.key, uid, manifest)
        if not whole:
            raise TargetExists(
                f"target exists: {self.address} was made by this job, but does not have the manifest of its bytes. Move it away."
            )
        return manifest
