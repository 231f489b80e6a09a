"""
The commit protocol: it leaves one whole file or none, even if processes die and another worker runs the job again.

::

    step                                            if the run is killed after this step, the next run
    ──────────────────────────────────────────────  ─────────────────────────────────────────────────────
    write the stage's data, fsync                   computes again (RowExport: continues at its position)
    write the stage's manifest, rename, fsync       requests permission and links, computes nothing
    request permission to commit                    does the same
    link data to the target                         finds its own file by the inode, links the manifest
    link manifest, fsync the folder, save a state   removes the stage, returns the manifest
    remove the stage                                returns the manifest

Several files are in one folder, with their manifest; a single `rename` publishes all of them:

::

    step                                            if the run is killed after this step, the next run
    ──────────────────────────────────────────────  ─────────────────────────────────────────────────────
    write the stage's files, fsync                  computes again
    write the stage's manifest, rename, fsync       requests permission and renames, computes nothing
    request permission to commit                    does the same
    copy the manifest into the folder, fsync        does the same
    rename the folder to the target, fsync          finds its own manifest, removes the stage, returns the manifest

- `link` never overwrites a file: the first of two runs publishes its file, and the second finds a file at the target.
  The second run checks that this job made the file, and returns the file's manifest.
- Permission to commit is the ledger's confirmation that this run still owns the job, and that the job is not cancelled.
  A run without this permission stops, and the target does not change.
- A run that is frozen between permission and link can still publish, although a later run owns the job.
  This does no harm, because the file is complete and belongs to the same job.
- A run removes its stage when its file is published, or when its job is cancelled.
  A worker process later removes the stages of killed runs (`folders.py`).
- With `if_exists="replace-own"`, a run replaces the file of an earlier job with the same queue and key.
  The run does this only if the file still has the size that its manifest gives.
  The run renames first the data and then the manifest over the old files.
  A reader between these two steps sees a file that does not fit its manifest.
  Of a folder, the run first moves the old one into its stage; a reader between the two steps sees no folder.
- `rename` replaces no folder that has files, so of two runs only one can publish its folder.
- A network file system can report "exists" for a `link` that succeeded; the run then recognizes its own file by the inode.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from steadyworker.errors import ExportError, ExportRejected, Interrupt, TargetExists
from steadyworker.export import Services
from steadyworker.exports.manifest import Manifest, same_key
from steadyworker.exports.stage import (
    INSIDE,
    ExportTarget,
    StagingDir,
    drop_incomplete,
    is_whole,
    make_folder,
    new_stage,
    reap,
    remove_stages,
    stage_of,
    stages,
    sync_folder,
    write_durably,
)
from steadyworker.text.plain_text import as_unicode

IF_EXISTS = ("fail", "replace-own")
"""What an export can do about a file that is there."""

_RECORD_BYTES = 60_000  # the ledger accepts 64 KiB
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a disk that has no room."""

_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV})


def publish(
    services: Services, target: ExportTarget, write: Callable[[StagingDir], Manifest], *, if_exists: str
) -> Manifest:
    """
    Make the file or the folder at the target, and return its manifest.

    If an earlier run of this job has made the file, return the manifest of that file.
    Missing parent folders are created.
    The stages of settled jobs are removed from the folder first; this job's own stages are removed at the end.

    Args:
        services: The job's services.
        target: The target; if it is of several files, `write` makes a folder, and returns a manifest with `files`.
        write: A function that writes `stage.data`, fsyncs this file and returns the manifest.
            `publish` calls the function only if this job has no file at the target, and no complete stage.
        if_exists: `replace-own` to replace the file of an earlier job with the same queue and key; `fail` to replace nothing.

    Raises:
        TargetExists: The target has a file that this job did not make, and may not replace.
        ExportRejected: `if_exists` is unknown.
        ExportError: There is no folder for the target, the file system has no hard links, or the disk is full.
        Interrupt: The run must end; the file is published only if the interrupt came after the link.
            If the job is cancelled, its staging folders are removed.
    """
    if if_exists not in IF_EXISTS:
        raise ExportRejected(f"Expected if_exists out of {', '.join(IF_EXISTS)}, got {if_exists!r}: correct it.")
    replace = if_exists == "replace-own"
    try:
        make_folder(target.folder)
    except OSError as error:
        file = isinstance(error, (FileExistsError, NotADirectoryError))
        why = ", which is a file" if file else f": {error.strerror}"
        raise ExportError(
            f"Expected a folder to export to, got {error.filename!r}{why}: choose another path."
        ) from error
    reap(target.folder, services.ended)
    try:
        return publish_completed(target, services, replace=replace) or _make(target, services, write, replace=replace)
    except Interrupt as interrupt:
        if interrupt.reason == "cancelled":
            # An interrupt can come between the two links; a file without a manifest would belong to no job.
            with suppress(TargetExists):
                _finish_own(target, services, replace=replace)
            remove_stages(target, services.uid)
        raise


def _make(
    target: ExportTarget, services: Services, write: Callable[[StagingDir], Manifest], *, replace: bool
) -> Manifest:
    """Write a stage of this run, and publish it."""
    services.staged(target.folder)
    stage = stage_of(target, services.uid, services.fence)
    try:
        new_stage(target, services.uid, services.fence)
        stage.complete(write(stage))
        drop_incomplete(target, services.uid, services.fence)
    except OSError as error:
        if error.errno in FULL:
            services.save_export_state(None)  # a resume would need the disk space twice
            drop_incomplete(target, services.uid, services.fence + 1)
            raise ExportError(
                f"Expected room for the export under {target.folder}, got {error.strerror!r}: free disk space. "
                "The unfinished file was removed, and the next run starts from the first row."
            ) from error
        if not stage.path.exists():
            services.may_commit()  # raises Interrupt if a later run owns the job, and has removed this stage
        raise
    return commit(target, services, stage, replace=replace)


def publish_completed(target: ExportTarget, services: Services, *, replace: bool = False) -> Manifest | None:
    """
    Publish the file that an earlier run of this job completed, and return its manifest.

    Return None if no earlier run completed the file.

    Raises:
        TargetExists: The target has a file that this job did not make, and may not replace.
    """
    earlier = replace and _is_earlier(target, services)
    if os.path.lexists(target.path) and not earlier:
        manifest = _finish(target, services, replace=replace)
        remove_stages(target, services.uid)
        return manifest
    if not earlier and os.path.lexists(target.manifest):
        left = _manifest_at(target.manifest)
        if left is None or left.uid != services.uid:
            raise TargetExists(
                f"target exists: {target.manifest} exists without its file. Remove it, or export to another name."
            )
    for stage in stages(target, services.uid):
        if stage.read() is not None:
            return commit(target, services, stage, replace=replace)
    return None


def commit(target: ExportTarget, services: Services, stage: StagingDir, *, replace: bool = False) -> Manifest:
    """
    Publish a complete stage, and return the manifest of the file at the target.

    Raises:
        Interrupt: The ledger refused the permission; the target did not change.
        TargetExists: The target has a file of another job, and this job may not replace it.
        ExportError: The file system has no hard links.
    """
    # This check precedes the permission: if this run freezes, it must not mistake a later job's file for the file of an earlier job.
    earlier = replace and _is_earlier(target, services)
    services.may_commit()
    try:
        if target.several:
            _rename(stage, target, earlier=earlier)
        elif earlier:
            _link_over(stage, stage.data, target.path)
        else:
            os.link(stage.data, target.path)
    except FileExistsError:
        pass  # `_finish` checks whether this job made the file, or another job
    except FileNotFoundError:
        services.may_commit()  # raises Interrupt if the job was settled, and this stage removed, meanwhile
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise ExportError(
            f"Expected a file system with hard links under {target.folder}, got {error.strerror!r}: "
            f"export to another folder. The finished file is at {stage.data}."
        ) from error
    manifest = _finish(target, services, replace=replace)
    # `publish_completed` must not save this state: by then the export state can hold the position of the job's next file.
    services.save_export_state(committed(target.path.name, as_unicode(str(target.folder)), manifest))
    remove_stages(target, services.uid)
    return manifest


def committed(name: str, folder: str, manifest: Manifest) -> bytes:
    """Return the facts of a committed file for people; without the totals if the ledger has no room for them."""
    facts = {
        "committed": name,
        "folder": folder,
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "sha256": manifest.sha256,
    }
    whole = msgspec.json.encode({**facts, "totals": manifest.totals})
    return whole if len(whole) <= _RECORD_BYTES else msgspec.json.encode(facts)


def _finish(target: ExportTarget, services: Services, *, replace: bool) -> Manifest:
    """
    Return the manifest of this job's file at the target; first link the manifest if it is missing.

    Raises:
        TargetExists: Another job made the file at the target, or the file was changed.
    """
    if target.path.is_symlink() or not (target.path.is_dir() if target.several else target.path.is_file()):
        kind = "folder" if target.several else "regular file"
        raise TargetExists(f"target exists: {target.path} is not a {kind}. Remove it, or export to another name.")
    if (manifest := _finish_own(target, services, replace=replace)) is not None:
        return manifest
    manifest = _manifest_at(target.manifest)
    if manifest is None or manifest.uid != services.uid:
        made = "has no manifest of a SteadyWorker job" if manifest is None else f"was made by {job_text(manifest)}"
        raise TargetExists(
            f"target exists: {target.path} {made}; this job, {job_text(services)}, did not make it. "
            "Put job.name into the file's name, or move the existing file away"
            + (', or pass if_exists="replace-own".' if manifest and same_key(manifest, services) else ".")
        )
    if not _holds(target, manifest):
        got = "files of other sizes" if target.several else target.path.stat().st_size
        raise TargetExists(
            f"target exists: {target.path} was changed after this job made it: expected {manifest.bytes} bytes, as in its "
            f"manifest, got {got}. Move both away."
        )
    return manifest


def _finish_own(target: ExportTarget, services: Services, *, replace: bool) -> Manifest | None:
    """
    Link and return the manifest of this job's stage, if the file at the target comes from such a stage.

    Otherwise return None.
    """
    for stage in stages(target, services.uid):
        manifest = stage.read()
        if manifest is not None and target.path.exists() and stage.data.samefile(target.path):
            _link_manifest(stage, target, services, replace=replace)
            sync_folder(target.folder)
            return manifest
    return None


def _is_earlier(target: ExportTarget, services: Services) -> bool:
    """Return whether the target has the unchanged file of an earlier job with this job's queue and key."""
    manifest = _manifest_at(target.manifest)
    if manifest is None or manifest.uid == services.uid or not same_key(manifest, services):
        return False
    try:
        own = any(stage.read() and stage.data.samefile(target.path) for stage in stages(target, services.uid))
    except FileNotFoundError:
        return False
    return not own and _holds(target, manifest)


def _holds(target: ExportTarget, manifest: Manifest) -> bool:
    """Return whether the target is of the manifest's kind, and each file has the size in the manifest."""
    if target.path.is_symlink() or target.several is (manifest.files is None):
        return False
    try:
        return is_whole(target.path, manifest)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _rename(stage: StagingDir, target: ExportTarget, *, earlier: bool) -> None:
    """
    Rename the stage's folder to the target, with the manifest in it; first move away the folder of an earlier job.

    Raises:
        FileExistsError: There is another file or folder.
    """
    write_durably(stage.data / INSIDE, stage.manifest.read_bytes())
    sync_folder(stage.data)
    if earlier:
        target.path.rename(stage.path / "replaced")
    try:
        stage.data.rename(target.path)
    except OSError as error:
        if error.errno in _TAKEN:
            raise FileExistsError(error.errno, error.strerror, str(target.path)) from error
        raise
    sync_folder(target.folder)


def _link_over(stage: StagingDir, source: Path, to: Path) -> None:
    """Replace the file `to` by a link to the stage's file `source`, in one step."""
    again = stage.path / f"{source.name}.link"
    again.unlink(missing_ok=True)
    os.link(source, again)
    again.replace(to)


def _link_manifest(stage: StagingDir, target: ExportTarget, services: Services, *, replace: bool) -> None:
    """
    Link the manifest next to the target.

    An existing manifest is replaced if the manifest belongs to this job, or to a job whose file this job may replace.
    """
    try:
        os.link(stage.manifest, target.manifest)
    except FileExistsError:
        if stage.manifest.samefile(target.manifest):
            return
        found = _manifest_at(target.manifest)
        if found is None or not (found.uid == services.uid or (replace and same_key(found, services))):
            raise TargetExists(
                f"target exists: {target.manifest} belongs to another job. Remove it: the next run finishes the export."
            ) from None
        _link_over(stage, stage.manifest, target.manifest)


def _manifest_at(path: Path) -> Manifest | None:
    """Return this manifest; None if it is missing or unreadable."""
    try:
        return Manifest.load(path)
    except ExportError:
        return None


def job_text(named: Manifest | Services) -> str:
    """Return the name of a job, for an error."""
    return f"job {named.uid} of key {named.key!r}" + (f" in queue {named.queue!r}" if named.queue else "")
