"""The check of a SQLite ledger's place: it must be a local disk with room."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from steadyworker.errors import Finding

_ROOM = 64 << 20
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gpfs|beegfs|davfs|ncpfs|"
    r"fuse\.(sshfs|s3fs|gcsfuse|rclone|davfs2?|ceph\S*|glusterfs|nfs\S*|smb\S*|juicefs|blobfuse2?)|glusterfs"
)


def place_findings(where: Path) -> list[Finding]:
    """Return the faults of the place of this (resolved) ledger file: no local disk, no room."""
    found = []
    kind = network_file_system(where, _MOUNTS.read_text()) if _MOUNTS.exists() else None
    if kind:
        found.append(
            Finding(
                "error",
                f"Expected the SQLite ledger {where} on a local disk, got a network file system ({kind}), where its locks do not work.",
                "put it on a local disk, or use --ledger postgresql://….",
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
                )
            )
    return found


def network_file_system(path: Path, mounts: str) -> str | None:
    """Return the type of the network file system that holds this path, or None; `mounts` is the text of /proc/self/mountinfo."""
    best, kind = "", ""
    where = str(path)
    for line in mounts.splitlines():
        fields, _, source = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), fields.split()[4])
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two mounts on one point, the later one is visible
            best, kind = point, source.split()[0]
    return kind if _NETWORK.fullmatch(kind) else None
