"""
The removal of secrets from text: URL passwords, `password=…`, STOMP frames, Authorization.

`redact` uses patterns and no URL parser, because a password can contain `/` or `@`, and a list of URLs is not a URL.
In doubt it removes too much: of the text between `://` and the last `@`, only the user's name remains.
"""

from __future__ import annotations

import re

REDACTED = "***"

# Every repetition below is bounded, so that the search takes linear time, even in a long line that an attacker wrote.
_WORD = re.compile(r"\S+")
# The start of a list's next URL within a word; every other comma or quote can belong to a password.
_NEXT_URL = re.compile(r"""(?=[,;"'()]{1,3}[a-z][a-z0-9+.-]{0,30}://)""", re.IGNORECASE)
_NAMES = r"(?:passw(?:or)?d|passphrase|passcode|secret(?:[_-]?key)?|access[_-]?key|api[_-]?key|credentials?|token)"
_PAIR = re.compile(
    rf"""({_NAMES} \\{{0,9}}["']? \s{{0,9}} [=:] \s{{0,9}})                # name, and = or :
         (?: (\\{{0,9}}["']) (?:(?!\2).){{0,2000}} \2 | (?:(?!\\[nr])[^\s,;&"')\]}}])+ )  # a quoted value, or a word
    """,
    re.IGNORECASE | re.VERBOSE,
)
# The header lines of a STOMP frame, as they are sent or as a client's debug log shows them (`\n` escaped, quoted).
_FRAME = re.compile(r"((?:^|\\n|[\"'])(?:login|passcode):)(?:(?!\\[nr])[^\n\"'])+", re.IGNORECASE | re.MULTILINE)
_AUTHORIZATION = re.compile(
    r"""(authorization \\{0,9}["']? \s{0,9} [=:] \s{0,9} (?:b(?=["']))? \\{0,9}["']?)  # name, and = or :
        (?:(?!\\[nr])[^\n"',}])+
    """,
    re.IGNORECASE | re.VERBOSE,
)
_BEARER = re.compile(r"\b(bearer\s{1,9})[\w.~+/-]{8,}=*", re.IGNORECASE)
# The path of a field in an error message such as `$.password: expected str, got int`, which contains no secret.
_PLACE = re.compile(r"\$(?:\.[\w-]{1,60}|\[\d{1,9}\]){0,9}\.\w{0,60}$")
_LONGEST_PLACE = 700
_SAID_OF_PLACES = frozenset({"duplicate", "expected", "field", "input", "missing", "unknown"})
_SECRET_NAME = re.compile(rf"{_NAMES}$|authorization$|cookie$", re.IGNORECASE)
# Each pattern matches only a text that contains one of these hints; most log texts contain none, and need no search.
_HINTS = (
    *("://", "passw", "passphrase", "passcode", "login:", "secret", "credential", "token", "authorization", "bearer"),
    *("apikey", "api_key", "api-key", "accesskey", "access_key", "access-key", "cookie"),
)


def redact(text: str) -> str:
    """Return the text with every recognised password, token and Authorization replaced by `***`."""
    if not may_hold_secret(text):
        return text
    if "://" in text and "@" in text:
        text = _WORD.sub(_redacted_word, text)
    text = _AUTHORIZATION.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    text = _FRAME.sub(rf"\1{REDACTED}", text)
    return _PAIR.sub(_redacted_pair, text)


def may_hold_secret(text: str) -> bool:
    """
    Return True if the text can contain a secret, or the name of one.

    The result is False for most log lines; then `redact` would replace nothing.
    """
    lowered = text.lower()
    for hint in _HINTS:  # noqa: SIM110 - `any` of a generator takes twice as long, and every line passes here
        if hint in lowered:
            return True
    return False


def is_secret_name(name: str) -> bool:
    """Return whether a value with this name is always a secret."""
    return _SECRET_NAME.search(name) is not None


def _redacted_word(match: re.Match[str]) -> str:
    """
    Return the word with the password of each `scheme://user:password@` replaced.

    In a list of URLs a password ends at the last `@` of its item.
    """
    items = _NEXT_URL.split(match[0])
    for index, item in enumerate(items):
        scheme, _, rest = item.partition("://")
        userinfo, at, host = rest.rpartition("@")
        user, colon, _ = userinfo.partition(":")
        if at and colon:
            items[index] = f"{scheme}://{user}:{REDACTED}@{host}"
    return "".join(items)


def _redacted_pair(match: re.Match[str]) -> str:
    """Return the pair without its value, but keep the text of an error about a payload's field."""
    quote = match[2] or ""
    value = match[0].removeprefix(match[1])
    if value in _SAID_OF_PLACES and _PLACE.search(match.string, max(0, match.start() - _LONGEST_PLACE), match.start()):
        return match[0]
    return f"{match[1]}{quote}{REDACTED}{quote}"
