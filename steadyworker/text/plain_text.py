r"""
The conversion of text from outside (a handler, a library, a sender) to safe text, as soon as the text comes in.

`plain_text` converts reasons and notes to text that SteadyWorker can store, publish, log and show.
A lone surrogate (`\udce9`, from `os.fsdecode` of bytes that are not UTF-8) cannot be written as UTF-8.
A NUL is a problem, too, because PostgreSQL refuses NUL in a text.
"""

from __future__ import annotations

from typing import Any

from steadyworker.text.redaction import redact

LONGEST = 2000
"""The maximum length of a reason, in characters; `plain_text` cuts a longer text."""

_SEARCHED = 64 << 10
"""
The number of characters that `plain_text` searches for secrets.

`plain_text` searches far more characters than it keeps, so that no cut leaves half a secret.
"""

_UNPRINTABLE = "(cannot be printed)"


def plain_text(value: object, limit: int = LONGEST) -> str:
    """
    Return any value as valid Unicode text of at most `limit` characters, without NUL and without recognised secrets.

    An exception becomes `ValueError: no such merchant`, bytes are decoded, and None becomes an empty text.
    A value whose `__str__` raises an Exception becomes `(cannot be printed)`.
    """
    match value:
        case None:
            text = ""
        case bytes() | bytearray():
            text = bytes(value[:_SEARCHED]).decode("utf-8", "backslashreplace")
        case BaseException():
            printed = _printed(value)
            text = f"{type(value).__name__}: {printed}" if printed else type(value).__name__
        case _:
            text = _printed(value)
    text = redact(as_unicode(text).replace("\0", "\\x00"))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def as_unicode(text: str) -> str:
    """Return the text with an escape in place of each lone surrogate."""
    return text if surrogate_in(text) is None else text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """Return the text on one line, with an escape for each unprintable character."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def as_unicode_data(value: Any) -> Any:
    """Return plain data (texts, numbers, mappings, lists) with an escape in place of each lone surrogate."""
    match value:
        case str():
            return as_unicode(value)
        case dict():
            return {as_unicode_data(name): as_unicode_data(inner) for name, inner in value.items()}
        case list() | tuple():
            return [as_unicode_data(inner) for inner in value]
        case _:
            return value


def surrogate_in(text: str) -> int | None:
    """Return the position of the first lone surrogate, or None if the text is valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _printed(value: object) -> str:
    """Return the first part of the value's text as a plain `str`, because a subclass of `str` can run a user's code."""
    try:
        return str.__getitem__(str(value), slice(_SEARCHED))
    except Exception:  # noqa: BLE001 - a user's `__str__` can raise anything
        return _UNPRINTABLE
