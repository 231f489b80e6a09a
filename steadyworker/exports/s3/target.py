"""`S3Target`: one object of a bucket, or a folder of objects, as a target of exports."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.export import Services
from steadyworker.exports.commit import IF_EXISTS
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.s3.address import S3, scratch_folder
from steadyworker.exports.s3.bucket import Bucket
from steadyworker.exports.s3.folder import FolderRun
from steadyworker.exports.s3.object import ObjectRun
from steadyworker.exports.s3.upload import PartsUpload
from steadyworker.exports.stage import ExportTarget, StagingDir, reap
from steadyworker.system.private import make_private_folder


class S3Target:
    """
    One object of a bucket, or a folder of objects: a `targets.PublishTarget`.

    Args:
        address: The address.
        several: True for a folder of several files.

    Raises:
        ExportRejected: The name is not valid as a file's name.
    """

    resumable = False  # no request reads the parts of an upload

    def __init__(self, address: S3, *, several: bool) -> None:
        if address.url.endswith("/") and not several:
            raise ExportRejected(
                f"Expected the key of an object to export to, got {address.url!r}: add the object's name."
            )
        self.name = ExportTarget.of(address.name, several=several).path.name
        self._address, self._several = address, several
        folder = scratch_folder(address)
        digest = ExportTarget(folder / str(address).replace("/", " "), several).digest
        self.staged = ExportTarget(folder / f"{digest}-{self.name}", several)
        self._run: ObjectRun  # set by `publish`

    def publish(self, services: Services, write: Callable[[StagingDir], Manifest], *, if_exists: str) -> Manifest:
        """Publish as `PublishTarget.publish` promises; of a folder, `if_exists` can only be `fail`."""
        if if_exists not in IF_EXISTS:
            raise ExportRejected(f"Expected if_exists out of {', '.join(IF_EXISTS)}, got {if_exists!r}: correct it.")
        replace = if_exists == "replace-own"
        if replace and self._several:
            raise ExportRejected(
                f'Expected if_exists="fail" for the folder {self._address}, got {if_exists!r}: put job.name into the key, '
                "because no request replaces several objects together."
            )
        self._prepare(services)
        with closing(Bucket(self._address)) as bucket:
            if self._several:
                return FolderRun(bucket, self.staged, services).publish(write)
            self._run = ObjectRun(bucket, self.staged, services, replace=replace)
            return self._run.publish(write)

    def open(self, stage: StagingDir) -> PartsUpload:
        """Return the object's upload."""
        del stage
        return self._run.upload

    def _prepare(self, services: Services) -> None:
        """Make the folder on this host, and remove what settled jobs have left in it."""
        folder = self.staged.folder
        try:
            make_private_folder(folder)
            owner = folder.stat().st_uid
        except OSError as error:
            raise ExportError(
                f"Expected a folder for temporary files at {folder}, got {error.strerror}: set S3(…, scratch=…) or TMPDIR."
            ) from error
        if self._address.scratch is None and owner != os.geteuid():
            raise ExportError(
                f"Expected a folder of this user at {folder}, got one of user {owner}: set S3(…, scratch=…) or TMPDIR."
            )
        reap(folder, services.ended)
        services.staged(folder)
