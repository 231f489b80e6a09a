"""
The address of a job: `/job/<namespace>/<queue>/<key>`.

A name can contain `/`, `..` or any character, and proxies decode `%2F` and normalise `..` on the way.
So each part is written with letters, digits and `-_.@:` only, and any other byte is `~` with two hexadecimal digits.
A plain name stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from steadyworker.ledger.job_id import JobId

_WRITTEN = re.compile(r"~([0-9A-Fa-f]{2})")
_PARTS = 3
LONGEST = 3000
"""The largest number of characters of the names in an address."""


def job_path(namespace: str, queue: str, key: str) -> str:
    """Return the path of a job's page."""
    return f"/job/{names_path(namespace, queue, key)}"


def names_path(*names: str) -> str:
    """Return names as the parts of a path."""
    return "/".join(map(_written, names))


def names_of(path: str) -> Sequence[str]:
    """Return the names that the parts of a path mean; none if a part is empty, or means no name."""
    parts = path.split("/")
    if len(path) > LONGEST or not all(parts):
        return ()
    try:
        names = [_read(part) for part in parts]
    except UnicodeError:
        return ()
    return () if any("\0" in name for name in names) else names  # no name has a NUL, and PostgreSQL refuses it


def job_of(rest: str) -> JobId | None:
    """Return the job that the part of the path after `/job/` names, without its round; None if it names no job."""
    names = names_of(rest)
    return JobId(names[0], names[1], names[2]) if len(names) == _PARTS else None


def _written(name: str) -> str:
    text = quote(name, safe="@:").replace("~", "~7E").replace("%", "~")
    return text.replace(".", "~2E") if not text.strip(".") else text


def _read(written: str) -> str:
    """Return the name that a part of an address means; raise UnicodeError if it means none."""
    return _WRITTEN.sub(lambda found: chr(int(found[1], 16)), written).encode("latin-1").decode()
