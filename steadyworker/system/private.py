"""Files and folders for one user only, because a user who can write to the ledger can forge the record of every job."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from steadyworker.errors import Finding
from steadyworker.findings import FindingTexts

_finding = FindingTexts("steadyworker.system")

FOLDER, FILE = 0o700, 0o600
"""The permissions of a new folder and of a new file; the umask can only remove permissions."""

_ROOT = 0


def make_private_folder(path: Path) -> None:
    """
    Create a folder and its missing parents with the permissions 700; a folder that exists keeps its permissions.

    Raises OSError if the folder cannot be created.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER, exist_ok=True)
    path.mkdir(mode=FOLDER, exist_ok=True)  # raises if the path is not a folder


def make_private_file(path: Path) -> None:
    """
    Create an empty file with the permissions 600; a file that exists keeps its content and its permissions.

    For a symbolic link to a missing file, create the missing file.
    SQLite gives its `-wal` and `-shm` files the permissions of the database.
    Raises OSError if the file cannot be created.
    """
    with suppress(FileExistsError):
        place = os.path.realpath(path)  # O_EXCL treats a link as an existing file
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE))


def access_findings(what: str, path: Path) -> list[Finding]:
    """
    Return warnings about access by other users.

    There is a warning if other users can access the file or write to its folder.
    There is also a warning if another user owns the file or the folder.
    `what` is the file's description in the text, such as "the ledger".
    This function changes no permissions, because an operator can have given a group these permissions on purpose.
    """
    found = []
    if (rights := _rights(path)) & 0o077:
        found.append(_finding("file.not-private", file=what, path=path, rights=rights))
    folder = _rights(path.parent)
    if folder & 0o022 and not folder & stat.S_ISVTX:
        found.append(_finding("file.folder-writable", file=what, path=path, rights=folder, folder=path.parent))
    for owned in (path, path.parent):
        owner = _owner(owned)
        if owner not in (None, os.geteuid(), _ROOT):
            found.append(_finding("file.other-owner", path=owned, user=os.geteuid(), owner=owner, file=what))
    return found


def _rights(path: Path) -> int:
    status = _status(path)
    return 0 if status is None else stat.S_IMODE(status.st_mode)


def _owner(path: Path) -> int | None:
    status = _status(path)
    return None if status is None else status.st_uid


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None  # another finding reports a path that cannot be read
