"""
What a name may look like, checked before any broker or file system sees it.

`NameRule` is a value; each adapter's `topology.py` holds the rules of its broker.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_NAME_BYTES = 100
_NAME_HEAD = 60


@dataclass(frozen=True, slots=True)
class NameRule:
    """What names of one kind may look like: an anchored pattern, a length in bytes, prefixes that are taken."""

    kind: str
    pattern: str = r"[A-Za-z0-9][A-Za-z0-9._-]*"
    max_bytes: int = 200
    reserved_prefixes: tuple[str, ...] = ()

    def problem(self, name: str) -> str | None:
        """What is wrong with the name, as a sentence; None when nothing is."""
        if len(name.encode()) > self.max_bytes:
            return f"Expected a {self.kind} of at most {self.max_bytes} bytes, got {len(name.encode())}: shorten it."
        if not re.fullmatch(self.pattern, name):
            return f"Expected a {self.kind} that matches {self.pattern}, got {name!r}: rename it."
        for prefix in self.reserved_prefixes:
            if name.startswith(prefix):
                return f"Expected a {self.kind} that does not start with {prefix!r}, got {name!r}: rename it."
        return None


QUEUE_NAME = NameRule("queue name")
NAMESPACE = NameRule("namespace", pattern=r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")


def normal_key(key: str) -> str:
    """The key as the ledger keeps it: itself when it is plain, else `h-` and its SHA-256 (contract §4, Keys)."""
    if _KEY.fullmatch(key):
        return key
    return "h-" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def file_name(key: str, round_: int = 0) -> str:
    """
    The key made safe for a file name.

    At most 100 bytes without `:` as it is, else 60 characters, `-`, and 12 hex digits of its SHA-256; `.r1` after a replay.
    """
    safe = key
    if _UNSAFE.search(key) or len(key.encode()) > _NAME_BYTES or not key[:1].isalnum():
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        safe = f"{_UNSAFE.sub('_', key)[:_NAME_HEAD].lstrip('.') or 'key'}-{digest}"
    return f"{safe}.r{round_}" if round_ else safe
