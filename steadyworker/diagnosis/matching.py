"""
Finds the entries of the catalogue that a record matches.

The regular expression of a pattern is tried only on a record that contains the pattern's hint.
A record with an id of the catalogue (`explain=amqp.delivery-timeout`, `"explain": "amqp.delivery-timeout"`) matches that entry alone.
A `general` entry explains only a record that no other entry explains.
A `vague` entry explains no record in which an entry of the families tls, network or linux has the cause.

`Sieve` finds the few lines of a log that contain a hint, in one pass for all hints together.
`Sieve` deletes from the lines and from the hints all that JSON can escape, and the characters of such escapes.
The remaining text is called the rest: if a line contains a hint, then the rest of the line contains the rest of the hint.
So `Sieve` finds a hint in a line of JSON, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice

from ahocorasick_rs import BytesAhoCorasick

from steadyworker.diagnosis.catalogue import Entry
from steadyworker.diagnosis.formats import ERROR_MARKS, ERROR_NUMBER
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

_SPECIFIC, _WORDS = 18, 3
"""The smallest number of characters and of words of a hint that is specific: other software also writes "cannot be cast to"."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]{2,}")
"""A word of a hint, also within a name such as "ConnectionWrongStateError"."""

_TEXTS = frozenset({"text", "what"})
"""The groups that match whole sentences."""

CAUSES = frozenset({"tls", "network", "linux"})
"""The families of entries with causes that stand behind a client's "cannot connect"; their `vague` entries are none."""

NEAR_HINT = 4096
"""The number of characters before and after the hint that an expression searches."""

_DELETED = b"0123456789abcdefu\"'\\/<>&\r" + bytes(range(128, 256))
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
        self._expression = cache(_compiled)
        self._loosened = cache(loosened)

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
            if entry.id not in found and (match := self._loosened(regex).search(text)) is not None:
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
        enough = len(self._essences[hint]) >= _SPECIFIC and len(_WORD.findall(hint)) >= _WORDS and " " in hint.strip()
        excludes = entry.general or entry.opens or any("(?!" in regex for _, regex in self._by_hint[hint])
        return entry if len(entries) == 1 and enough and not excludes else None


def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.MULTILINE)


def _in_order(matches: Iterable[Match]) -> list[Match]:
    in_order = sorted(matches, key=lambda match: (match.line, match.entry.id))
    if any(match.entry.family in CAUSES and not match.entry.vague for match in in_order):
        in_order = [match for match in in_order if not match.entry.vague]
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
        self._hints: dict[bytes, list[str]] = {}
        for hint in hints:
            self._hints.setdefault(left(hint.encode()), []).append(hint)
        self._rests = list({*self._hints, *(left(mark.encode()) for mark in ERROR_MARKS)} - {b""})
        self._search = BytesAhoCorasick(self._rests)

    def hints_in(self, text: str) -> set[str]:
        """Return the hints that a record contains."""
        found = self._search.find_matches_as_indexes(left(text.encode()), overlapping=True)
        rests = {self._rests[number] for number, _, _ in found}
        return {hint for rest in rests for hint in self._hints.get(rest, ()) if hint in text}

    def ordinary(self, lines: bytes) -> bool:
        """Return True if no line of this block contains a hint or the mark of an error."""
        return not self._search.find_matches_as_indexes(left(lines)) and ERROR_NUMBER.search(lines) is None


def left(line: bytes) -> bytes:
    """Return a line or a hint without the deleted characters."""
    return line.translate(None, _DELETED)
