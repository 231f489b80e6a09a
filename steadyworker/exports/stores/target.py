"""`StoreTarget`: one object of a store, or a folder of objects, as a target of exports."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.export import Services
from steadyworker.exports.commit import IF_EXISTS
from steadyworker.exports.hashed import HashedFile, OutFile
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.s3.address import S3
from steadyworker.exports.s3.bucket import Bucket
from steadyworker.exports.s3.object import ObjectRun
from steadyworker.exports.stage import ExportTarget, StagingDir, check_outside_stages, reap
from steadyworker.exports.stores.file import FileRun
from steadyworker.exports.stores.folder import FolderRun
from steadyworker.exports.stores.opening import open_store
from steadyworker.exports.stores.store import StoreAddress
from steadyworker.system.private import make_private_folder
from steadyworker.telemetry.logs import get_logger


class StoreTarget:
    """
    One object of a store, or a folder of objects: a `targets.PublishTarget`.

    Args:
        address: The address.
        several: True for a folder of several files.

    Raises:
        ExportRejected: The name is not valid as a file's name.
    """

    def __init__(self, address: StoreAddress, *, several: bool) -> None:
        if address.url.endswith("/") and not several:
            raise ExportRejected(
                f"Expected the key of an object to export to, got {address.url!r}: add the object's name."
            )
        check_outside_stages(address.key)
        self.name = ExportTarget.of(address.name, several=several).path.name
        self._address, self._several = address, several
        folder = _scratch_folder(address)
        digest = hashlib.sha256(f"{address}{'/' if several else ''}".encode()).hexdigest()[:16]
        self.staged = ExportTarget(folder / f"{digest}-{self.name}", several)
        self.limits = address.limits
        self._parts: ObjectRun | None = None  # set by `publish` if the object is made from parts

    @property
    def resumable(self) -> bool:
        """True if a run makes its file on this host first, so that the next run here continues it; no request reads the parts of an upload to S3."""
        return not isinstance(self._address, S3)

    def publish(self, services: Services, write: Callable[[StagingDir], Manifest], *, if_exists: str) -> Manifest:
        """Publish as `PublishTarget.publish` promises; `if_exists` can be `replace-own` only for one object of S3."""
        if if_exists not in IF_EXISTS:
            raise ExportRejected(f"Expected if_exists out of {', '.join(IF_EXISTS)}, got {if_exists!r}: correct it.")
        replace = if_exists == "replace-own"
        if replace and (self._several or not isinstance(self._address, S3)):
            what = f"the folder {self._address}" if self._several else str(self._address)
            raise ExportRejected(
                f'Expected if_exists="fail" for {what}, got {if_exists!r}: put job.name into the key, '
                f"because no request replaces {'several objects together' if self._several else 'an object of this store only if it is still the same'}."
            )
        if self._several and self.limits:
            raise ExportRejected(
                f"Expected one file for {self._address}, got split_rows, split_bytes or partition_by: export to a folder of this host, "
                "s3://, gs:// or abfs://. On this store the files of two jobs could mix in one folder."
            )
        self._prepare(services)
        with closing(open_store(self._address)) as store:
            if self.limits:
                get_logger("steadyworker.exports").warning(
                    "export_target_limited",
                    target=str(self._address),
                    limits=list(self.limits),
                    explain="steadyworker.export-target-limited",
                )
            if self._several:
                return FolderRun(store, self.staged, services).publish(write)
            if isinstance(store, Bucket):
                self._parts = ObjectRun(store, self.staged, services, replace=replace)
                return self._parts.publish(write)
            return FileRun(store, self.staged, services).publish(write)

    def open(self, stage: StagingDir) -> OutFile:
        """Return the object's upload, or the stage's new file."""
        return HashedFile(stage.data) if self._parts is None else self._parts.upload

    def _prepare(self, services: Services) -> None:
        """Make the folder on this host, and remove what settled jobs have left in it."""
        folder = self.staged.folder
        try:
            make_private_folder(folder)
            owner = folder.stat().st_uid
        except OSError as error:
            raise ExportError(
                f"Expected a folder for temporary files at {folder}, got {error.strerror}: set TMPDIR, or S3(…, scratch=…)."
            ) from error
        if self._address.scratch is None and owner != os.geteuid():
            raise ExportError(
                f"Expected a folder of this user at {folder}, got one of user {owner}: set TMPDIR, or S3(…, scratch=…)."
            )
        reap(folder, services.ended)
        services.staged(folder)


def _scratch_folder(address: StoreAddress) -> Path:
    """Return the folder for this address on this host; it may not exist yet."""
    if address.scratch is not None:
        return Path(address.scratch).absolute()
    return Path(os.environ.get("TMPDIR") or "/tmp").absolute() / f"steadyworker-{os.geteuid()}"  # noqa: S108 - `_prepare` checks its owner
