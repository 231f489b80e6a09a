"""
The rules for names, checked before a name reaches a broker, a network or a file system.

Each adapter's `topology.py` has the rules of its broker, as `NameRule` values.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from ipaddress import ip_address

from steadyworker.text.plain_text import surrogate_in

PLAIN_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_ROUND = re.compile(r"\.r\d+$")
_NAME_BYTES = 100
_NAME_HEAD = 60


@dataclass(frozen=True, slots=True)
class NameRule:
    """A rule for names of one kind: a pattern for the whole name, a length in bytes, and reserved prefixes."""

    kind: str
    pattern: str = r"[A-Za-z0-9][A-Za-z0-9._-]*"
    max_bytes: int = 200
    reserved_prefixes: tuple[str, ...] = ()

    def problem(self, name: str) -> str | None:
        """Return the problem with the name as a sentence, or None for a valid name."""
        size = len(name.encode("utf-8", "surrogatepass"))  # the pattern refuses lone surrogates
        if size > self.max_bytes:
            return f"Expected a {self.kind} of at most {self.max_bytes} bytes, got {size}: shorten it."
        if not re.fullmatch(self.pattern, name):
            return f"Expected a {self.kind} that matches {self.pattern}, got {name!r}: rename it."
        for prefix in self.reserved_prefixes:
            if name.startswith(prefix):
                return f"Expected a {self.kind} that does not start with {prefix!r}, got {name!r}: rename it."
        return None


# This rule is wide, because a Worker can use any existing queue; each adapter has the narrower rules of its broker.
# It refuses control characters and outer blanks, which get into files and environments by mistake.
QUEUE_NAME = NameRule(
    "queue name (no control characters, no blanks at its ends)",
    pattern=r"(?!\s)[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+(?<!\s)",
    max_bytes=255,
)
# A list of hosts is a namespace, too.
NAMESPACE = NameRule("namespace", pattern=r"[A-Za-z0-9\[][A-Za-z0-9._:/@+,\[\]-]*")


def is_loopback(host: str) -> bool:
    """Return whether this host name or address is this machine's own, so that no other machine receives what is sent there."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def normal_key(key: str) -> str:
    """
    Return the key as the ledger stores it: a plain key unchanged, any other key as `h-` and the key's SHA-256.

    A plain key has at most 200 characters: ASCII letters, digits and `._:-`; the first character is a letter or digit.
    """
    if PLAIN_KEY.fullmatch(key):
        return key
    return "h-" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def checked_key(key: object) -> str:
    """
    Return the key in the form in which the ledger stores it.

    Raises ValueError for an empty key or invalid Unicode, and TypeError for a key that is not text.
    """
    if not isinstance(key, str):
        written = f"{key!r}.decode()" if isinstance(key, bytes) else f"str({key!r})"
        raise TypeError(f"Expected a key of text, got {key!r}: write {written}.")
    if (place := surrogate_in(key)) is not None:
        raise ValueError(f"Expected a key of valid Unicode, got {key!r}, which {no_unicode(place)}")
    if not key:
        raise ValueError("Expected a key that is not empty, got '': name the job; only `send` works without a key.")
    return normal_key(key)


def no_unicode(place: int) -> str:
    """Return the end of a sentence about a text that has a lone surrogate at this place."""
    return (
        f"has a lone surrogate at {place}, which os.fsdecode makes from bytes that are not UTF-8: "
        "decode the bytes with their own encoding, or send them in the payload as base64."
    )


def file_name(key: str, round_: int = 0) -> str:
    """
    Return the key in a form that is safe as a file name.

    A key stays unchanged if it has at most 100 characters: ASCII letters, digits and `._-`; the first character is a letter or digit.
    For any other key, the name begins with the key's first 60 characters, with `_` for unsafe characters.
    Then `-` and 12 digits of the key's SHA-256 follow.
    A key that ends like a round, such as `x.r1`, also gets such a name, so that no two jobs have the same name.
    For a round above 0, the name ends with the round: `.r1` after the first replay.
    """
    safe = key
    if _ROUND.search(key) or _UNSAFE.search(key) or len(key.encode()) > _NAME_BYTES or not key[:1].isalnum():
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        safe = f"{_UNSAFE.sub('_', key)[:_NAME_HEAD].lstrip('.') or 'key'}-{digest}"
    return f"{safe}.r{round_}" if round_ else safe
