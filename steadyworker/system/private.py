"""Files and folders for one user only, because a user who can write to the ledger can forge the record of every job."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from steadyworker.errors import Finding

FOLDER, FILE = 0o700, 0o600
"""The permissions of a new folder and of a new file; the umask can only remove permissions."""


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

    SQLite gives its `-wal` and `-shm` files the permissions of the database.
    Raises OSError if the file cannot be created.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE))
    except FileExistsError:
        return


def access_findings(what: str, path: Path) -> list[Finding]:
    """
    Return warnings if other users can access the file, or can write to its folder.

    This function changes no permissions, because an operator can have given them to a group on purpose.
    """
    found = []
    if (rights := _rights(path)) & 0o077:
        found.append(
            Finding(
                "warning",
                f"Expected {what} {path} to be private, got the rights {rights:o}: other users can read or change it.",
                f"chmod go-rwx {path}*",
            )
        )
    folder = _rights(path.parent)
    if folder & 0o022 and not folder & stat.S_ISVTX:
        found.append(
            Finding(
                "warning",
                f"Expected the folder of {what} {path} to be writable for one user, got the rights {folder:o}: "
                "other users can replace its files.",
                f"chmod go-w {path.parent}",
            )
        )
    return found


def _rights(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0  # another finding reports a path that cannot be read
