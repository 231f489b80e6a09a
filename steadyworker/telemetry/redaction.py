"""
Secrets taken out of text: URL passwords, `password=…`, STOMP frames, Authorization.

Patterns, not a URL parser: a password may hold `/` or `@`, and a list of URLs in parentheses is no URL.
In doubt too much is taken out: of everything between `://` and the last `@` only the user's name stays.
"""

from __future__ import annotations

import re

REDACTED = "***"

# Every repetition below is bounded, so that a line of any size and malice is searched in linear time.
_WORD = re.compile(r"\S+")
# Where the next URL of a list begins within a word; every other comma or quote may belong to a password.
_NEXT_URL = re.compile(r"""(?=[,;"'()]{1,3}[a-z][a-z0-9+.-]{0,30}://)""", re.IGNORECASE)
_NAMES = r"(?:passw(?:or)?d|passphrase|passcode|secret(?:[_-]?key)?|access[_-]?key|api[_-]?key|credentials?|token)"
_PAIR = re.compile(
    rf"""({_NAMES} \\{{0,9}}["']? \s{{0,9}} [=:] \s{{0,9}})                # name, and = or :
         (?: (\\{{0,9}}["']) (?:(?!\2).){{0,2000}} \2 | (?:(?!\\[nr])[^\s,;&"')\]}}])+ )  # a quoted value, or a word
    """,
    re.IGNORECASE | re.VERBOSE,
)
# The header lines of a frame, as they are or as a client's debug log repeats them (`\n` escaped, quoted).
_FRAME = re.compile(r"((?:^|\\n|[\"'])(?:login|passcode):)(?:(?!\\[nr])[^\n\"'])+", re.IGNORECASE | re.MULTILINE)
_AUTHORIZATION = re.compile(
    r"""(authorization \\{0,9}["']? \s{0,9} [=:] \s{0,9} (?:b(?=["']))? \\{0,9}["']?)  # name, and = or :
        (?:(?!\\[nr])[^\n"',}])+
    """,
    re.IGNORECASE | re.VERBOSE,
)
_BEARER = re.compile(r"\b(bearer\s{1,9})[\w.~+/-]{8,}=*", re.IGNORECASE)
_SECRET_NAME = re.compile(rf"{_NAMES}$|authorization$|cookie$", re.IGNORECASE)
# What any of the patterns needs; most texts have none of it and are done.
_HINTS = (
    *("://", "passw", "passphrase", "passcode", "login:", "secret", "credential", "token", "authorization", "bearer"),
    *("apikey", "api_key", "api-key", "accesskey", "access_key", "access-key", "cookie"),
)


def redact(text: str) -> str:
    """The text with every password, token and Authorization that can be recognised replaced by `***`."""
    if not may_hold_secret(text):
        return text
    if "://" in text and "@" in text:
        text = _WORD.sub(_redacted_word, text)
    text = _AUTHORIZATION.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    text = _FRAME.sub(rf"\1{REDACTED}", text)
    return _PAIR.sub(_redacted_pair, text)


def may_hold_secret(text: str) -> bool:
    """False when `redact` would leave the text as it is, and no word in it is a secret's name: so it is with most lines."""
    lowered = text.lower()
    for hint in _HINTS:  # noqa: SIM110 - `any` of a generator takes twice as long, and every line passes here
        if hint in lowered:
            return True
    return False


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is a secret whatever it looks like."""
    return _SECRET_NAME.search(name) is not None


def _redacted_word(match: re.Match[str]) -> str:
    """Each `scheme://user:password@` of a word, the password being all up to the last `@` of its item."""
    items = _NEXT_URL.split(match[0])
    for index, item in enumerate(items):
        scheme, _, rest = item.partition("://")
        userinfo, at, host = rest.rpartition("@")
        user, colon, _ = userinfo.partition(":")
        if at and colon:
            items[index] = f"{scheme}://{user}:{REDACTED}@{host}"
    return "".join(items)


def _redacted_pair(match: re.Match[str]) -> str:
    quote = match[2] or ""
    return f"{match[1]}{quote}{REDACTED}{quote}"
