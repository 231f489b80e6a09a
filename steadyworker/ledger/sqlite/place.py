"""The check of a SQLite ledger's place: it must be a local disk with free space, where this user may create files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from steadyworker.errors import Finding
from steadyworker.system.mounts import mounted, network_file_system

_ROOM = 64 << 20


def creation_findings(path: Path) -> list[Finding]:
    """Return the fault of the place in which a worker process will create the ledger: this user cannot write there."""
    folder = next(parent for parent in path.parents if parent.exists())
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return []
    what = f"Expected to create the ledger {path}, got {folder}, where this user cannot create files."
    return [Finding("error", what, "make it a writable directory, or name another file.", id="ledger.unusable")]


def place_findings(where: Path) -> list[Finding]:
    """Return the faults of this ledger file's place (no local disk, no free space); the path must be resolved."""
    found = []
    kind = network_file_system(where, mounted())
    if kind:
        found.append(
            Finding(
                "error",
                f"Expected the SQLite ledger {where} on a local disk, got a network file system ({kind}), where its locks do not work.",
                "put it on a local disk, or use --ledger postgresql://….",
                id="ledger.network-file-system",
            )
        )
    if where.parent.is_dir():
        free = shutil.disk_usage(where.parent).free
        if free < _ROOM:
            found.append(
                Finding(
                    "warning",
                    f"Expected at least {_ROOM >> 20} MiB of free space for the ledger {where}, got {free >> 20} MiB.",
                    "free some space: while the ledger cannot write, no job starts or ends.",
                    id="ledger.little-space",
                )
            )
    return found
