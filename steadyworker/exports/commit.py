"""
The commit protocol: one whole file, or none, whatever dies and whoever runs the job a second time.

::

    step                                            a run killed after it: what the next run does
    ──────────────────────────────────────────────  ─────────────────────────────────────────────────────
    write the stage's data, fsync                   computes again (RowExport: goes on at its position)
    write the stage's manifest, rename, fsync       rolls forward: asks leave and links, computes nothing
    ask leave                                       the same
    link data to the target                         finds by inode whose it is, links the manifest
    link manifest, fsync the folder, save handle    answers from the manifest

- `link` never clobbers: of two runs one publishes, and the other finds that it is there.
  Which one does not matter: the loser looks whose file it is, and answers with that file's manifest.
- *Leave* is the ledger's word that this run's fence still holds.
  A run that has lost its fence stops there, and the target is untouched.
- A run that is frozen between leave and link may still win the link.
  Its file is whole and of the same job: it *is* the export.
- A `link` that a network file system reports as "exists" although it was ours is found by its inode, like any other.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from steadyworker.errors import ExportError, TargetExists
from steadyworker.exports.base import Services
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stage import (
    StagingDir,
    Target,
    drop_incomplete,
    make_folder,
    new_stage,
    reap,
    stage_of,
    stages,
    sync_folder,
)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV})


def publish(
    services: Services, to: str | os.PathLike[str], write: Callable[[Target, StagingDir], Manifest]
) -> Manifest:
    """
    Make the file at `to`, or answer with the one that an earlier run of this job made.

    Missing parent folders are created.  Stages that jobs left in the folder are removed first, if they are settled.

    Args:
        services: The job's.
        to: A local path.
        write: Writes `stage.data`, fsyncs it and answers its manifest;
            called only when there is no file and no complete stage.

    Raises:
        TargetExists: Something that this job did not make is at the target.
        ExportError: `to` cannot be an export's target, its file system has no hard links, or the disk is full.
        Interrupt: From `services`; nothing was published.
    """
    target = Target.of(to)
    try:
        make_folder(target.folder)
    except OSError as error:
        file = isinstance(error, (FileExistsError, NotADirectoryError))
        why = ", which is a file" if file else f": {error.strerror}"
        raise ExportError(
            f"Expected a folder to export to, got {error.filename!r}{why}: choose another path."
        ) from error
    reap(target.folder, services.ended)
    made = look(target, services)
    if made is not None:
        return made
    stage = stage_of(target, services.uid, services.fence)
    try:
        new_stage(target, services.uid, services.fence)
        stage.complete(write(target, stage))
        drop_incomplete(target, services.uid, services.fence)
    except OSError as error:
        if error.errno in _FULL:
            services.save_export_state(None)  # to resume would need the room twice: leave nothing unfinished
            drop_incomplete(target, services.uid, services.fence + 1)
            raise ExportError(
                f"Expected room for the export under {target.folder}, got {error.strerror!r}: free some; "
                "what was written was removed, and the next run starts from the first row."
            ) from error
        if not stage.path.exists():
            services.may_commit()  # a later run removed it: this one has lost its fence, and hears it here
        raise
    return commit(target, services, stage)


def look(target: Target, services: Services) -> Manifest | None:
    """
    Bring to its end what earlier runs of this job left, and answer the published file's manifest.

    None means that there was nothing to publish.

    Raises:
        TargetExists: Something that this job did not make is at the target.
    """
    if os.path.lexists(target.path):
        return _finish(target, services)
    if os.path.lexists(target.manifest) and _uid_at(target.manifest) != services.uid:
        raise TargetExists(
            f"target exists: {target.manifest} is there, but not its file. Remove it, or export to another name."
        )
    for stage in stages(target, services.uid):
        if stage.read() is not None:
            return commit(target, services, stage)
    return None


def commit(target: Target, services: Services, stage: StagingDir) -> Manifest:
    """
    Publish a complete stage and answer the manifest of the file that is at the target then.

    Raises:
        Interrupt: Leave was refused; the target is untouched.
        TargetExists: Another job's file was there first.
        ExportError: The file system has no hard links.
    """
    services.may_commit()
    try:
        os.link(stage.data, target.path)
    except FileExistsError:
        pass  # by a run of this job, or by another's: `_finish` tells
    except FileNotFoundError:
        services.may_commit()  # the stage was reaped, the job is settled: this run was frozen, and hears it here
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise ExportError(
            f"Expected a file system with hard links under {target.folder}, got {error.strerror!r}: "
            f"export to another folder. The finished file is at {stage.data}."
        ) from error
    manifest = _finish(target, services)
    # Here, and not whenever the file is found to be there: the handle may hold the position of the job's next file by then.
    services.save_export_state(msgspec.json.encode({"committed": target.path.name, "sha256": manifest.sha256}))
    return manifest


def _finish(target: Target, services: Services) -> Manifest:
    """What is at the target: ours without its manifest (link it), ours (answer), or another's (refuse)."""
    if target.path.is_symlink() or not target.path.is_file():
        raise TargetExists(f"target exists: {target.path} is not a regular file. Remove it, or export to another name.")
    for stage in stages(target, services.uid):
        manifest = stage.read()
        if manifest is not None and stage.data.samefile(target.path):
            _link_manifest(stage, target, services.uid)
            sync_folder(target.folder)
            return manifest
    uid = _uid_at(target.manifest)
    if uid != services.uid:
        owner = f"job {uid} made it" if uid else "it has no manifest of a SteadyWorker job"
        raise TargetExists(
            f"target exists: {target.path}: {owner}, not this one ({services.uid}). "
            "Move it away, or export to another name."
        )
    manifest = Manifest.load(target.manifest)
    size = target.path.stat().st_size
    if size != manifest.bytes:
        raise TargetExists(
            f"target exists: {target.path} was changed after this job made it: it has {size} bytes, "
            f"its manifest says {manifest.bytes}. Move both away."
        )
    return manifest


def _link_manifest(stage: StagingDir, target: Target, uid: str) -> None:
    """Link the manifest beside the target; one that this same job left is replaced, if someone removed its file."""
    try:
        os.link(stage.manifest, target.manifest)
    except FileExistsError:
        if stage.manifest.samefile(target.manifest):
            return
        if _uid_at(target.manifest) != uid:
            raise TargetExists(
                f"target exists: {target.manifest} belongs to another job. Remove it: the next run finishes the export."
            ) from None
        again = stage.path / "manifest.json.link"
        again.unlink(missing_ok=True)
        os.link(stage.manifest, again)
        again.replace(target.manifest)


def _uid_at(path: Path) -> str | None:
    """The uid in this manifest; None when there is none that can be read."""
    try:
        return Manifest.load(path).uid
    except ExportError:
        return None
