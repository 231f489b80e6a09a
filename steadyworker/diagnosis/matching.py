"""
Finds the entries of the catalogue that a record matches.

The regular expression of a pattern is tried only on a record that contains the pattern's hint.
A record with an id of the catalogue (`explain=amqp.delivery-timeout`, `"explain": "amqp.delivery-timeout"`) matches that entry alone.
A `general` entry explains only a record that no other entry explains.

`Sieve` finds the few lines of a log that contain a hint, faster than any search for hundreds of texts.
`Sieve` deletes the digits, the letters a to f and u, and the quotes from the lines and from the hints.
The remaining text is called the rest.
No match is lost: if a line contains a hint, then the rest of the line contains the rest of the hint.
In an ordinary log, many lines have the same rest, because lines mostly differ in numbers and identifiers.
`Sieve` keeps a set of known rests, and searches only a new rest with the expression.
The characters that JSON escapes are also deleted, so `Sieve` finds a hint in a line of JSON, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from steadyworker.diagnosis.catalogue import Entry
from steadyworker.diagnosis.formats import ERROR_MARKS
from steadyworker.diagnosis.loose import essence, loosened
from steadyworker.diagnosis.own_lines import groups_of
from steadyworker.diagnosis.protocols import Spelled, erlang_binary, spell, spell_bytes, spell_length

_ID = re.compile(
    r"""\bexplain["']?\s?[=:]\s?["']?(?P<explain>[a-z0-9]+\.[a-z0-9-]+)
      | "kind":\ ?"flag",\ ?.{0,200}?"id":\ ?"(?P<flag>[a-z0-9]+\.[a-z0-9-]+)\"
    """,
    re.VERBOSE,
)
_NUMBER = re.compile(r"[0-9]{1,20}")
_ID_HINTS = ("explain=", "explain:", 'explain":', '"kind": "flag"', '"kind":"flag"')
_MOST_OF_ONE = 100
"""The largest number of matches of one pattern in one record."""

_SPECIFIC, _WORDS = 14, 2
"""The smallest number of characters and of words of a hint that is specific."""

_TEXTS = frozenset({"text", "what"})
"""The groups that match whole sentences."""

NEAR_HINT = 4096
"""The number of characters before and after the hint that an expression searches."""

_DELETED = b"0123456789abcdefu\"'\\/<>&\r" + bytes(range(128, 256))
_MOST_KNOWN = 20_000
_LONGEST_KNOWN = 400  # bytes
LEAST_LEFT = 4
"""The smallest size, in bytes, of a hint's rest (`left`); a shorter rest would not distinguish lines."""


@dataclass(frozen=True, slots=True)
class Match:
    """
    An entry that explains a record.

    Attributes:
        entry: The entry.
        groups: The texts that the named groups of the pattern matched.
        line: The number of lines in the record before the match.
        size: The number of characters that the pattern matched.
        probable: Whether the record has only the pattern's hint.
        loosened: Whether only the loosened pattern matched.
    """

    entry: Entry
    groups: Mapping[str, str]
    line: int = 0
    size: int = 0
    probable: bool = False
    loosened: bool = False


class Matcher:
    """The entries of a catalogue, prepared for the search."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.id: entry for entry in entries}
        self._by_hint: dict[str, list[tuple[Entry, str]]] = {}
        for entry in self._entries.values():
            for pattern in entry.patterns:
                self._by_hint.setdefault(pattern.hint, []).append((entry, pattern.regex))
        self._essences = {hint: essence(hint) for hint in self._by_hint}
        self.sieve = Sieve([*_ID_HINTS, *self._by_hint])
        self._compiled: dict[str, re.Pattern[str]] = {}
        self._loosened: dict[str, re.Pattern[str]] = {}

    def match(self, text: str, *, pasted: bool = False) -> list[Match]:
        """
        Return every entry that explains the record with this text.

        General entries are returned only if no other entry explains the record.
        An entry is returned several times if its pattern matches several times with different values in the groups.
        If no pattern matches, the loosened patterns are tried (`loose.py`); in a pasted text, their hints may vary, too.
        If these do not match either, an entry with a specific hint in the record explains the record probably.
        """
        found: dict[tuple[str, ...], Match] = {}
        hints = self.sieve.hints_in(text)
        for named in _ID.finditer(text) if not hints.isdisjoint(_ID_HINTS) else ():
            if (entry := self._entries.get(named["explain"] or named["flag"])) is not None:
                found.setdefault((entry.id,), Match(entry, groups_of(text), text.count("\n", 0, named.start())))
        if found:
            return _in_order(found.values())
        for hint in self._by_hint.keys() & hints:
            for entry, regex in self._by_hint[hint]:
                for match in islice(_matches(self._expression(regex), hint, text), _MOST_OF_ONE):
                    groups = {name: value for name, value in match.groupdict().items() if value}
                    if entry.opens and ((bytes_ := spelled(entry, groups)) is None or bytes_.kind not in entry.opens):
                        continue
                    key = (entry.id, *(f"{name}={value}" for name, value in sorted(groups.items())))
                    found.setdefault(key, Match(entry, groups, text.count("\n", 0, match.start()), len(match[0])))
        if all(match.entry.general for match in found.values()) and len(text) <= 2 * NEAR_HINT:
            near = self._near(text, hints, pasted=pasted)
            if not found or any(not match.probable and not match.entry.general for match in near):
                return _in_order(near)
        return _in_order(found.values())

    def _near(self, text: str, hints: set[str], *, pasted: bool) -> list[Match]:
        """Return the entries whose loosened patterns match, or else the entries that have a specific hint in the record."""
        if pasted:
            whole = essence(text)
            hints = {hint for hint, short in self._essences.items() if short in whole}
        hints &= self._by_hint.keys()
        found: dict[str, Match] = {}
        for entry, regex in (pattern for hint in hints for pattern in self._by_hint[hint]):
            if regex not in self._loosened:
                self._loosened[regex] = loosened(regex)
            if entry.id not in found and (match := self._loosened[regex].search(text)) is not None:
                groups = {name: value.strip(" .,") for name, value in match.groupdict().items() if value}
                if entry.opens and ((bytes_ := spelled(entry, groups)) is None or bytes_.kind not in entry.opens):
                    continue
                groups = {name: value for name, value in groups.items() if name in _TEXTS or " " not in value}
                found[entry.id] = Match(entry, groups, text.count("\n", 0, match.start()), len(match[0]), loosened=True)
        if found:
            return list(found.values())
        return [
            Match(only, {}, text.count("\n", 0, max(0, text.find(hint))), len(hint), probable=True)
            for hint in hints
            if (only := self._specific(hint)) is not None and loosened(re.escape(hint)).search(text)
        ]

    def _specific(self, hint: str) -> Entry | None:
        """Return the only entry that has this hint, if the hint distinguishes it; a pattern that excludes a text needs more."""
        entries = {entry.id: entry for entry, _ in self._by_hint[hint]}
        entry = next(iter(entries.values()))
        enough = len(self._essences[hint]) >= _SPECIFIC and len(hint.split()) >= _WORDS
        excludes = entry.general or entry.opens or any("(?!" in regex for _, regex in self._by_hint[hint])
        return entry if len(entries) == 1 and enough and not excludes else None

    def _expression(self, regex: str) -> re.Pattern[str]:
        if regex not in self._compiled:
            self._compiled[regex] = re.compile(regex, re.MULTILINE)
        return self._compiled[regex]


def _in_order(matches: Iterable[Match]) -> list[Match]:
    in_order = sorted(matches, key=lambda match: (match.line, match.entry.id))
    return [match for match in in_order if not match.entry.general] or in_order


def _matches(expression: re.Pattern[str], hint: str, text: str) -> Iterator[re.Match[str]]:
    """Yield the matches; in a long record, search only near the hint, so that no expression searches for long."""
    if len(text) <= 2 * NEAR_HINT:
        yield from expression.finditer(text)
        return
    at = text.find(hint)
    while at >= 0:
        yield from expression.finditer(text, max(0, at - NEAR_HINT), at + NEAR_HINT)
        at = text.find(hint, at + NEAR_HINT - len(hint))


def spelled(entry: Entry, groups: Mapping[str, str]) -> Spelled | None:
    """
    Return the numbers or bytes in a record as the bytes of the connection.

    Return None if the entry has no such groups, or if the record lacks them.
    """
    numbers = {name: int(value) for name, value in groups.items() if _NUMBER.fullmatch(value)}
    match entry.spelled:
        case "frame":
            return spell({name: number for name, number in numbers.items() if name in {"type", "channel", "size"}})
        case "length" if "size" in numbers:
            return spell_length(numbers["size"])
        case "length-plus-4" if "size" in numbers:
            return spell_length(numbers["size"] - 4)
        case "raw" if "bytes" in groups:
            raw = erlang_binary(groups["bytes"])
            return spell_bytes(raw if raw is not None else groups["bytes"].encode("latin-1", "replace"))
        case _:
            return None


class Sieve:
    """A fast check whether lines may contain a hint, or the mark of an error."""

    def __init__(self, hints: Iterable[str]) -> None:
        by_left = {hint: left(hint.encode()) for hint in hints}
        alternation = _alternation({*by_left.values(), *(left(mark.encode()) for mark in ERROR_MARKS)} - {b""})
        self._any = re.compile(alternation)
        self._each = re.compile(b"(?=(" + alternation + b"))")
        self._hints: dict[bytes, list[str]] = {}
        for hint, shape in by_left.items():
            if (found := self._any.match(shape)) is not None:
                self._hints.setdefault(found[0], []).append(hint)
        self._known: set[bytes] = set()

    def hints_in(self, text: str) -> set[str]:
        """Return the hints that a record contains."""
        found = {match[1] for match in self._each.finditer(left(text.encode()))}
        return {hint for shape in found for hint in self._hints.get(shape, ()) if hint in text}

    def ordinary(self, lines: bytes) -> bool:
        """Return True if no line of this block contains a hint or the mark of an error."""
        new = {*left(lines).split(b"\n")} - self._known
        if not new:
            return True
        suspicious = self._any.search(b"\n".join(new)) is not None
        if suspicious:
            new = {line for line in new if self._any.search(line) is None}
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known.update(line for line in new if len(line) <= _LONGEST_KNOWN)
        return not suspicious


def _alternation(texts: Iterable[bytes]) -> bytes:
    """
    Return one regular expression that finds any of these texts; common beginnings of texts appear only once in it.

    This expression is more than ten times as fast as `text|text|…`, which tries every text at every place.
    """
    tree: dict[bytes, Any] = {}
    for text in texts:
        node = tree
        for at in range(len(text)):
            node = node.setdefault(text[at : at + 1], {})
        node[b""] = {}  # a text ends here, so longer texts with this beginning are not checked further

    def expression(node: Mapping[bytes, Any]) -> bytes:
        if b"" in node:
            return b""
        parts = [re.escape(character) + expression(rest) for character, rest in sorted(node.items())]
        return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"

    return expression(tree)


def left(line: bytes) -> bytes:
    """Return a line or a hint without the deleted characters."""
    return line.translate(None, _DELETED)
