"""The check of a SQLite ledger's place, which must be a local disk with free space where this user may create files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from steadyworker.errors import Finding
from steadyworker.findings import FindingTexts
from steadyworker.system.mounts import mounted, network_file_system

_finding = FindingTexts("steadyworker.ledger")

_ROOM = 64 << 20


def creation_findings(path: Path) -> list[Finding]:
    """Return a fault if this user cannot write to the place in which a worker process will create the ledger."""
    folder = next(parent for parent in path.parents if parent.exists())
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return []
    return [_finding("ledger.unusable", "no-folder", path=path, folder=folder)]


def place_findings(where: Path) -> list[Finding]:
    """Return the faults of this ledger file's place (no local disk, no free space); the caller passes a resolved path."""
    found = []
    kind = network_file_system(where, mounted())
    if kind:
        found.append(_finding("ledger.network-file-system", path=where, kind=kind))
    if where.parent.is_dir():
        free = shutil.disk_usage(where.parent).free
        if free < _ROOM:
            found.append(_finding("ledger.little-space", least=_ROOM >> 20, path=where, free=free >> 20))
    return found
