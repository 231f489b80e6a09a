"""
Finds the entries of the catalogue that a record matches.

A regular expression is tried only on a record that contains the hint of its pattern.
A record with an id of the catalogue (`explain=amqp.delivery-timeout`, `"explain": "amqp.delivery-timeout"`) matches that entry.
An entry that is `general` explains only a record that no other entry explains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from steadyworker.diagnosis.catalogue import Entry

_ID = re.compile(r"""\bexplain["']?\s?[=:]\s?["']?([a-z0-9]+\.[a-z0-9-]+)|"kind": ?"flag", ?"id": ?"([a-z0-9.-]+)\"""")


@dataclass(frozen=True, slots=True)
class Match:
    """An entry that explains a record, and what the named groups of its pattern matched."""

    entry: Entry
    groups: Mapping[str, str]


class Matcher:
    """The entries of a catalogue, made ready for the search."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.id: entry for entry in entries}
        self._by_hint = [
            (pattern.hint, entry, pattern) for entry in self._entries.values() for pattern in entry.patterns
        ]
        self._compiled: dict[str, re.Pattern[str]] = {}

    def match(self, text: str) -> list[Match]:
        """Return every entry that explains the record with this text, without the general ones if another does."""
        found: dict[str, Match] = {}
        for by_flag in _ID.finditer(text):
            if (entry := self._entries.get(by_flag[1] or by_flag[2])) is not None:
                found.setdefault(entry.id, Match(entry, {}))
        for hint, entry, pattern in self._by_hint:
            if hint in text and entry.id not in found and (match := self._expression(pattern.regex).search(text)):
                found[entry.id] = Match(entry, {k: v for k, v in match.groupdict().items() if v is not None})
        special = [match for match in found.values() if not match.entry.general]
        return special or list(found.values())

    def _expression(self, regex: str) -> re.Pattern[str]:
        if regex not in self._compiled:
            self._compiled[regex] = re.compile(regex, re.MULTILINE)
        return self._compiled[regex]
