"""
The stage: the private folder where a run writes its file before it publishes it.

::

    OUT/report.csv                      the target: absent, or linked as the last step before its manifest
    OUT/report.csv.manifest.json        linked just after it
    OUT/.sw-stage/<uid>/<fence>/<SHA-256 of the target's name, first 16 hex digits>/
        data                            the file
        manifest.json                   written last: with it the stage is complete

If an export makes several files, the target is a folder, `data` is this folder, and its manifest is in it:

::

    OUT/report/                         absent, or renamed into place with all its files
        _manifest.json

The stage is on the target's file system, so that publishing is one `link` or one `rename`.
A stage belongs to one run (uid and fence), so that two runs of one job never write to the same file.
After the link, stage and target are the same file on disk; the run removes the stage when the manifest is linked too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.manifest import Manifest, same_key
from steadyworker.text.redaction import redact

STAGES = ".sw-stage"
SUFFIX = ".manifest.json"
INSIDE = "_manifest.json"
"""The name of a folder's manifest, in the folder."""

REMEMBERED = 30 * 86_400.0  # seconds; no ledger keeps a settled job for longer
_TRIES = 10
_NAME_BYTES = 255 - len(SUFFIX)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # with one slash, because Path removes the second one of `://`
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_outside_stages(path: str) -> None:
    """Raise ExportRejected if a path or a key leads through a stage: a reaper would remove what is there."""
    if STAGES in path.split("/")[:-1]:
        raise ExportRejected(
            f"Expected a target outside of {STAGES}, got {redact(path)!r}: export to another folder, because a worker removes this one."
        )


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """
    The file or the folder that an export makes: an absolute path with a name that is valid in any file system and log line.

    Attributes:
        path: The path.
        several: True for a folder of several files.
    """

    path: Path
    several: bool = False

    @classmethod
    def of(cls, to: str | os.PathLike[str], *, several: bool = False) -> ExportTarget:
        """
        Check a user's path and return it as a target; a relative path starts at the working directory.

        Args:
            to: The path; it can end in `/` if it is a folder's.
            several: True for a folder of several files.

        Raises:
            ExportRejected: The path is a URL, has control characters or has no file name, or the name is too long or reserved.
        """
        text = os.fspath(to)
        if _SCHEME.match(text):
            raise ExportRejected(
                f"Expected a local path, or an address such as s3://bucket/key as text, got {redact(text)!r}: write it as one of them."
            )
        text = text.rstrip("/") if several else text
        name = Path(text).name
        if not name or text.endswith(("/", "/.", "/..")) or name == "..":
            raise ExportRejected(f"Expected the path of a file to export to, got {text!r}: add the file's name.")
        if _CONTROL.search(text):
            raise ExportRejected(f"Expected a path without control characters to export to, got {text!r}: rename it.")
        try:
            size = len(name.encode())
        except UnicodeEncodeError as error:
            raise ExportRejected(f"Expected a path in UTF-8 to export to, got {text!r}: rename it.") from error
        if size > _NAME_BYTES:
            raise ExportRejected(
                f"Expected a file name of at most {_NAME_BYTES} bytes to export to, got {size} ({name!r}): shorten it."
            )
        if name.endswith(SUFFIX) or name == STAGES:
            raise ExportRejected(
                f"Expected a file name other than {STAGES} that does not end in {SUFFIX}, got {name!r}: rename it."
            )
        check_outside_stages(text)
        return cls(Path(text).absolute(), several)

    @property
    def folder(self) -> Path:
        """The folder that holds target, manifest and stages."""
        return self.path.parent

    @property
    def manifest(self) -> Path:
        """The path of the manifest."""
        return self.path / INSIDE if self.several else manifest_path(self.path)

    @property
    def digest(self) -> str:
        """The hash of the target's file name; the target's stage is a folder of this name."""
        name = self.path.name + ("/" if self.several else "")
        return hashlib.sha256(name.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class StagingDir:
    """One run's private folder for one target."""

    path: Path
    fence: int

    @property
    def data(self) -> Path:
        """The path of the file or the folder itself; the run writes and fsyncs it before it calls `complete`."""
        return self.path / "data"

    @property
    def manifest(self) -> Path:
        """The path of the manifest, which makes the stage complete."""
        return self.path / "manifest.json"

    def complete(self, manifest: Manifest) -> None:
        """
        Write the manifest durably; from then on any run of this job can publish the stage without computing anything.

        The caller must write and fsync `data` before.
        """
        written = self.path / "manifest.json.new"
        write_durably(written, manifest.dump())
        written.replace(self.manifest)
        sync_folder(self.path)

    def read(self) -> Manifest | None:
        """Return the manifest if the stage is complete and its data has the size in the manifest, otherwise None."""
        try:
            manifest = Manifest.load(self.manifest)
            return manifest if is_whole(self.data, manifest) else None
        except (ExportError, FileNotFoundError):
            return None

    def remove(self) -> None:
        """Remove the stage, and then each empty folder above it; a published file stays."""
        shutil.rmtree(self.path, ignore_errors=True)
        remove_empty(self.path)


def stage_of(target: ExportTarget, uid: str, fence: int) -> StagingDir:
    """Return this run's stage for this target; it may not exist yet."""
    return StagingDir(target.folder / STAGES / uid / str(fence) / target.digest, fence)


def new_stage(target: ExportTarget, uid: str, fence: int) -> StagingDir:
    """Create this run's stage, empty and durable; an earlier stage of the same run is removed."""
    stage = stage_of(target, uid, fence)
    stage.remove()
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # another run has just removed its stage, and this folder
            make_folder(stage.path.parent)
            stage.path.mkdir()  # fails if `remove` left anything
            sync_folder(stage.path.parent)
            return stage
    raise ExportError(f"Expected to make the folder {stage.path}, but it vanished: see what removes it.")


def remove_empty(path: Path) -> None:
    """Remove the empty folders above this path, up to `.sw-stage`; leave a path outside of a stage alone."""
    if STAGES not in path.parts:
        return
    with suppress(OSError):  # not empty
        for folder in path.parents:
            with suppress(FileNotFoundError):
                folder.rmdir()
            if folder.name == STAGES:
                return


def stages(target: ExportTarget, uid: str) -> list[StagingDir]:
    """Return the stages that runs of this job have left for this target, newest fence first."""
    paths = (target.folder / STAGES / uid).glob(f"*/{target.digest}")
    found = [StagingDir(path, int(path.parent.name)) for path in paths if path.parent.name.isdecimal()]
    return sorted(found, key=lambda stage: stage.fence, reverse=True)


def remove_stages(target: ExportTarget, uid: str) -> None:
    """Remove the stages of all runs of this job for this target."""
    for stage in stages(target, uid):
        stage.remove()


def drop_incomplete(target: ExportTarget, uid: str, before: int) -> None:
    """Remove the incomplete stages of this job's runs with a fence below `before`."""
    for stage in stages(target, uid):
        if stage.fence < before and stage.read() is None:
            stage.remove()


def reap(folder: Path, settled: Callable[[Sequence[str]], Iterable[str]]) -> tuple[str, ...]:
    """
    Remove the stages of settled jobs in this folder, and return the jobs' uids.

    If a job was killed between its file and the manifest, and ended without another run, link the manifest before.

    Args:
        folder: A folder to which jobs export.
        settled: A function that gets uids, and returns the uids that are done or dead in the ledger (`Services.ended`).
            A uid without a row may belong to another ledger.
            The stage of such a uid is removed if no run of this uid has begun in the last 30 days.
            No ledger keeps a settled job for longer.
    """
    try:
        found = {
            entry.name: entry.stat(follow_symlinks=False).st_mtime
            for entry in os.scandir(folder / STAGES)
            if entry.is_dir(follow_symlinks=False)
        }
    except FileNotFoundError:
        return ()
    forgotten = SystemClock().wall() - REMEMBERED
    done = frozenset(settled(list(found))) if found else frozenset()
    gone = tuple(sorted(uid for uid, begun in found.items() if uid in done or begun < forgotten))
    for uid in gone:
        _finish(folder, uid)
        shutil.rmtree(folder / STAGES / uid, ignore_errors=True)
    with suppress(OSError):  # not empty
        (folder / STAGES).rmdir()
    return gone


def _finish(folder: Path, uid: str) -> None:
    """Link the manifests of the files that a job has published here; its stages have the only copies."""
    for path in (folder / STAGES / uid).glob("*/*"):
        stage = StagingDir(path, 0)
        with suppress(OSError, ExportError):  # the file was not published, or it was removed
            manifest = stage.read()
            if manifest is None or manifest.files is not None or manifest.uid != uid:
                continue
            target = ExportTarget.of(folder / manifest.name)
            if (target.folder, target.digest) != (folder.absolute(), path.name) or not _is_same(
                target.path, stage.data
            ):
                continue
            try:
                os.link(stage.manifest, target.manifest)
            except FileExistsError:
                there = Manifest.load(target.manifest)  # that of an earlier job whose file this job has replaced
                if there.uid != uid and same_key(there, manifest) and _is_same(target.path, stage.data):
                    stage.manifest.replace(target.manifest)
            sync_folder(folder)


def _is_same(one: Path, other: Path) -> bool:
    """Return whether two paths are links to one regular file; a symbolic link is none."""
    first, second = one.lstat(), other.lstat()
    return stat.S_ISREG(first.st_mode) and (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def make_folder(path: Path) -> None:
    """
    Create a folder and its parents, durably, if they are missing.

    Raises:
        OSError: The folder cannot be created, or is a file.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def manifest_path(path: Path) -> Path:
    """Return the path of the manifest of this file, or of this existing folder."""
    return path / INSIDE if path.is_dir() else path.with_name(path.name + SUFFIX)


def is_whole(path: Path, manifest: Manifest) -> bool:
    """
    Return whether the file, or each file in the folder, has the size in its manifest.

    Raises:
        FileNotFoundError: The file, the folder or a file in it does not exist.
    """
    size = path.stat().st_size
    if manifest.files is None:
        return size == manifest.bytes
    return all((path / file.name).stat().st_size == file.bytes for file in manifest.files)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file, and return when its bytes are on disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Fsync a folder, so that files created, linked or renamed in it are durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
