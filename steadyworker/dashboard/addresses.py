"""
The address of a job: `/job/<namespace>/<queue>/<key>`.

A name can contain `/`, `..` or any character, and proxies decode `%2F` and normalise `..` on the way.
So each part is written with letters, digits and `-_.@:` only, and any other byte is `~` with two hexadecimal digits.
A plain name stays as it is.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from steadyworker.ledger.job_id import JobId

_WRITTEN = re.compile(r"~([0-9A-Fa-f]{2})")
_PARTS = 3
LONGEST = 3000
"""The largest number of characters of a job's part of an address."""


def job_path(namespace: str, queue: str, key: str) -> str:
    """Return the path of a job's page."""
    return "/job/" + "/".join(map(_written, (namespace, queue, key)))


def job_of(rest: str) -> JobId | None:
    """Return the job that the part of the path after `/job/` names, without its round; None if it names no job."""
    parts = rest.split("/")
    if len(parts) != _PARTS or len(rest) > LONGEST or not all(parts):
        return None
    try:
        namespace, queue, key = parts
        return JobId(_read(namespace), _read(queue), _read(key))
    except UnicodeError:
        return None


def _written(name: str) -> str:
    text = quote(name, safe="@:").replace("~", "~7E").replace("%", "~")
    return text.replace(".", "~2E") if not text.strip(".") else text


def _read(written: str) -> str:
    """Return the name that a part of an address means; raise UnicodeError if it means none."""
    return _WRITTEN.sub(lambda found: chr(int(found[1], 16)), written).encode("latin-1").decode()
