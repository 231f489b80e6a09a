"""The check whether a path is on a mounted network file system, because SQLite's locks do not work there."""

from __future__ import annotations

import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gpfs|beegfs|davfs|ncpfs|"
    r"fuse\.(sshfs|s3fs|gcsfuse|rclone|davfs2?|ceph\S*|glusterfs|nfs\S*|smb\S*|juicefs|blobfuse2?)|glusterfs"
)


def mounted() -> str:
    """Return the text of /proc/self/mountinfo, or an empty text if that file does not exist (macOS)."""
    return _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape") if _MOUNTS.exists() else ""


def network_file_system(path: Path, mounts: str) -> str | None:
    """
    Return the type of the network file system that holds this resolved path, or None.

    `mounts` is the text of /proc/self/mountinfo (proc_pid_mountinfo(5)).
    """
    best, kind = "", ""
    where = str(path)
    for line in mounts.splitlines():
        fields, _, source = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), fields.split()[4])
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two mounts on one point, the later mount is visible
            best, kind = point, source.split()[0]
    return kind if _NETWORK.fullmatch(kind) else None
