r"""
Loosens the patterns of the catalogue, so that a pattern also matches what another version or another client writes.

| the pattern has | the loosened pattern also matches |
|---|---|
| a quote | any other quote, or none |
| a space, a comma | more or fewer spaces, a line's end, a hyphen |
| a number, also with a unit | `2,000 ms`, `2000ms`, `2.0 s` |
| a process of Erlang, `<0.12.0>` | a process whose numbers were hidden, `<x.y.z>` |
| capitals and small letters | the others |
| `cannot`, `waiting for`, `timeout` and the like | the other words for the same |
| the beginning of a line | the text behind the name of a logger |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise

_PART = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?<[=!][^)]*\)|\(\?(?:P<\w+>|P=\w+\)|[=!:])|\{\d+(?:,\d*)?\}|.", re.DOTALL
)
_UNIT = r"(?:ms|s|(?:milli)?seconds?|millis|secs?)"
_WORDS: tuple[tuple[str, str], ...] = (
    (r"\b(?:cannot|can not|can't|could not|couldn't|failed to|unable to)\b", "(?:cannot|can not|can't|could not|couldn't|failed to|unable to)"),
    (r"\bwaiting (?:for|on)\b", "waiting (?:for|on)"),
    (r"\btime-?out\b", "time-?out"),
    (r"\bdid(?: not|n't)\b", "did(?: not|n't)"),
    (rf"(?<=\\d\+)(\)?) ?{_UNIT}\b", rf"\1\\s*{_UNIT}"),
    (r"<\[\\d\.\]\+>", r"<[\\w.]+>"),
)  # fmt: skip
_QUOTES = "\"'`"
_SPACED = frozenset(",=")
_LOOSE = {
    **dict.fromkeys([*_QUOTES, *(f"\\{quote}" for quote in _QUOTES)], r"(?:\\?[\"'`]?)"),
    # Possessive: a search that could give back spaces one by one would take minutes for a record with many of them.
    **dict.fromkeys([" ", r"\ "], r"(?:\s++|-)"),
    r"\n": r"(?:[ \t]*+\n\s*+)",
    r"\d": r"[\d.,]",
    "(?!": r"(?![\s\"'`]*+",
    "^": r"(?:^|(?<=[\s:|\]]))",
    "$": r"[\s.!]*$",
}

_ESSENCE: tuple[Callable[[str], str], ...] = (
    partial(re.compile(r"[\s\"'`,:=_.\\-]+").sub, ""),
    partial(re.compile(r"cannot|cant|couldnot|couldnt|failedto|unableto").sub, "cannot"),
    partial(re.compile(r"waitingon").sub, "waitingfor"),
    partial(re.compile(r"didnt").sub, "didnot"),
    partial(re.compile(r"(?<=\d)(?:milliseconds?|millis|ms|seconds?|secs?)").sub, "s"),
)


def loosened(regex: str) -> re.Pattern[str]:
    """Return the loosened form of a pattern's expression, with the same groups."""
    for word, words in _WORDS:
        regex = re.sub(word, words, regex)
    found: list[str] = []
    last = ""
    parts = _PART.findall(regex)
    for part, after in pairwise([*parts, ""]):
        if part == " " and last in _SPACED:
            continue
        if part.startswith("[^") and any(quote in part for quote in _QUOTES):
            found.append(f"[^{_QUOTES}{part[2:]}")
        elif part == "^" and after in ("(?!", "(?="):
            found.append(part)  # what looks ahead over a line looks once
        elif part in _SPACED:  # behind an optional sign, the spaces belong to what follows
            found.append(rf"(?:\s*+{part})" if after in ("?", ")") else rf"(?:\s*+{part}\s*+)")
        else:
            found.append(_LOOSE.get(part, part))
        last = part
    return re.compile("".join(found), re.MULTILINE | re.IGNORECASE)


def essence(text: str) -> str:
    """Return a text without all that `loosened` lets vary, for the search of a hint."""
    text = text.lower()
    for without in _ESSENCE:
        text = without(text)
    return text
