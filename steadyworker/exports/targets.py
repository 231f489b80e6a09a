"""
The targets of exports, behind one Protocol: `Local` is a file or a folder of this host, `StoreTarget` an object or a folder of a store.

What a run has made after each step, and what the next run does with it, is in `commit.py` for `Local` and in `stores/__init__.py` for `StoreTarget`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from steadyworker.export import Services
from steadyworker.exports.commit import publish
from steadyworker.exports.hashed import HashedFile, OutFile
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.s3.address import S3
from steadyworker.exports.stage import ExportTarget, StagingDir
from steadyworker.exports.stores.opening import store_address
from steadyworker.exports.stores.target import StoreTarget


class PublishTarget(Protocol):
    """The place to which an export publishes one file, or a folder of files."""

    @property
    def name(self) -> str:
        """The last name of the target, which decides the format."""
        ...

    @property
    def staged(self) -> ExportTarget:
        """The path on this host beside which a run has its stage."""
        ...

    @property
    def resumable(self) -> bool:
        """True if a later run can read the bytes that an earlier run has written."""
        ...

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences about what the target does not promise; the manifest lists them."""
        ...

    def publish(self, services: Services, write: Callable[[StagingDir], Manifest], *, if_exists: str) -> Manifest:
        """
        Make the target, whole or not at all, and return its manifest.

        If an earlier run of this job has made the target, return the manifest of that run.

        Args:
            services: The job's services.
            write: A function that writes the rows, durably, and returns their manifest.
                It writes one file to `open(stage)`, and several files to the folder `stage.data`.
            if_exists: `replace-own` to replace the file of an earlier job with the same queue and key; `fail` to replace nothing.

        Raises:
            TargetExists: The target has something that this job did not make, and may not replace.
            ExportRejected: No retry can make the export possible.
            ExportError: The export is not possible now.
            Interrupt: The run must end.
        """
        ...

    def open(self, stage: StagingDir) -> OutFile:
        """Return the output for the bytes of this run's one file."""
        ...


class Local:
    """
    A file or a folder on this host, which appears by one link or one rename.

    Raises:
        ExportRejected: The path is invalid as a target.
    """

    resumable = True
    limits = ()

    def __init__(self, to: str | os.PathLike[str], *, several: bool) -> None:
        self.staged = ExportTarget.of(to, several=several)
        self.name = self.staged.path.name

    def publish(self, services: Services, write: Callable[[StagingDir], Manifest], *, if_exists: str) -> Manifest:
        """Publish the stage as `commit.publish` does."""
        return publish(services, self.staged, write, if_exists=if_exists)

    def open(self, stage: StagingDir) -> OutFile:
        """Return the stage's new file."""
        return HashedFile(stage.data)


def target_of(to: str | os.PathLike[str] | S3, *, several: bool) -> PublishTarget:
    """
    Return the target that the caller of `Job.export` names.

    Raises:
        ExportRejected: `to` is invalid as a target.
    """
    address = store_address(to)
    if address is not None:
        return StoreTarget(address, several=several)
    assert not isinstance(to, S3)
    return Local(to, several=several)
