"""
Restores a log as the program wrote it from the text that a person copied out of a terminal, a ticket, a mail or a chat.

| what happened to the text | what is restored |
|---|---|
| it was escaped for HTML or JSON, once or several times | the characters, and the lines |
| its quotes, dashes and spaces became those of print | the plain ones |
| its lines have marks: quoted, boxed, a list, a code block, `grep`'s name of the file, codes of colours | the lines without the marks |
| its lines were wrapped by a terminal, after a fixed number of characters | the lines before that |
| its lines were wrapped by a program for text, between words | the lines before that |

A reader cannot know how a text was wrapped, so `readings` yields several texts, and the reader takes the first that makes sense.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence

from steadyworker.diagnosis.formats import prefix, start

MOST = 64 << 10
"""The largest size of a text that a person pastes, in bytes."""

Lines = Sequence[tuple[int, str]]
"""Lines of a restored text, each with the number of the pasted line from which it begins."""

_LEVELS = 3  # the largest number of times that a text was escaped
_ESCAPED = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|([nrt"'\\/]))""")
_STRING = re.compile(r"""\s*(?:["'\w@.-]+\s*[:=]\s*)?"(.*?)"?,?\s*""", re.DOTALL)
_CHARACTERS = {"n": "\n", "r": "", "t": "\t"}
_TAG = re.compile(r"</?(?:a|b|code|div|em|i|li|p|pre|span|strong|td|tr)(?:\s[^<>]*)?>")
_BREAK = re.compile(r"<br ?/?>|#012")
_COLOUR = re.compile(r"(?:\x1b|\\x1b|\\033|\\e|\\u001b|#033|\^\[|\ufffd|\u241b)\[[\d;]*m|\[\d{1,3}(?:;\d{1,3})*m")
_PRINTED = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("\u00a0\u2007\u202f", " "),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", ""),
        "…": "...",
    }
)
_BORDER = re.compile(r"[\s\u2500-\u257f+|=-]*[\u2500-\u257f+|=-]{3}[\s\u2500-\u257f+|=-]*|\s*(?:```|~~~)\w*\s*")
_QUOTED = re.compile(r"\s*(?:[>\u2502\u2503\u2551\u258c]\s?|\|\s)+")
_BOXED = re.compile(r"\s*[\u2502\u2503\u2551]\s*$")
_ITEM = re.compile(r"\s*(?:[-*+\u2022\u2023\u25e6\u00b7]|\d{1,4}[.):|])(?: {1,2}|(?=\t))")
_GREPPED = re.compile(r"[\w./-]+\.(?:log|out|txt)(?:\.\d+)?[:-](?:\d+[:-])?")
_SHORTEST = 20  # the smallest number of characters in a line that was wrapped


def readings(text: str) -> Iterator[Lines]:
    """Yield the texts that this text can have been; the first of those that make equal sense is the most probable one."""
    lines = _unmarked(text)
    seen = set[Lines]()
    for join in (None, _by_terminal, _between_words, _within_long_words, _one_line):
        joined = lines if join is None else _joined(lines, join)
        for levels in range(_LEVELS + 1):
            reading = tuple(_unescaped(joined, levels))
            if reading not in seen:
                seen.add(reading)
                yield reading


def _unmarked(text: str) -> Lines:
    """Return the lines without what was written before and after each of them."""
    lines = [(number, _COLOUR.sub("", line).rstrip()) for number, line in enumerate(text.split("\n"))]
    lines = [(number, line) for number, line in lines if not _BORDER.fullmatch(line)]
    for mark in (_QUOTED, _GREPPED, _ITEM):
        written = [line for _, line in lines if line]
        if mark is _QUOTED or 2 * sum(mark.match(line) is not None for line in written) > len(written):
            lines = [(number, mark.sub("", line, count=1) if mark.match(line) else line) for number, line in lines]
    lines = [(number, _BOXED.sub("", line).rstrip()) for number, line in lines]
    if all(line[:1] == line[-1:] == "`" for _, line in lines if line):
        lines = [(number, line.strip("`")) for number, line in lines]
    indent = min((len(line) - len(line.lstrip()) for _, line in lines if line), default=0)
    return [(number, line[indent:]) for number, line in lines]


def _unescaped(lines: Lines, levels: int) -> Iterator[tuple[int, str]]:
    """Yield the lines without escapes; those of JSON are undone at most so many times."""
    for number, line in lines:
        text = line
        for _ in range(_LEVELS):
            text = html.unescape(text)
        text = _TAG.sub("", _BREAK.sub("\n", text)).translate(_PRINTED)
        for _ in range(levels):
            if (whole := _STRING.fullmatch(text)) is not None:
                text = whole[1]
            text = _ESCAPED.sub(
                lambda found: chr(int(found[1], 16)) if found[1] else _CHARACTERS.get(found[2], found[2]), text
            )
        for part in text.split("\n"):
            yield number, _COLOUR.sub("", part)


def _joined(lines: Lines, join: Callable[[str, str, int], str | None]) -> Lines:
    """Return the lines, each joined with those that are its continuation."""
    width = max((len(line) for _, line in lines), default=0)
    found: list[tuple[int, str]] = []
    last = ""  # the line that was joined last
    for number, line in lines:
        text = None
        if last and line and not begins(line):
            text = join(last, line, width)
        if text is None:
            found.append((number, line))
        else:
            found[-1] = (found[-1][0], found[-1][1] + text)
        last = line
    return found


def begins(line: str) -> bool:
    """Return whether the line is the beginning of a record."""
    return start(prefix(line)[1]) is not None


def _by_terminal(last: str, line: str, width: int) -> str | None:
    if len(last) == width >= _SHORTEST:
        return line
    return f" {line}" if len(last) == width - 1 else None


def _between_words(last: str, line: str, width: int) -> str | None:
    word = line.split(maxsplit=1)[0]
    return f" {line.strip()}" if len(last) + 1 + len(word) > width >= _SHORTEST else None


def _within_long_words(last: str, line: str, width: int) -> str | None:
    return line.strip() if len(last) == width >= _SHORTEST else _between_words(last, line, width)


def _one_line(_last: str, line: str, _width: int) -> str | None:
    return f" {line.strip()}"
