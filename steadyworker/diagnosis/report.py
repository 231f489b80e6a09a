"""
Shows findings: as text for people, and as JSON.

The first line of a finding is the conclusion.
Below it, each part has its label on the left, or above it on a narrow terminal.
What comes from a log is shown without secrets, and with escapes in place of control characters.
A line of a log is cut at the end of the terminal's line; commands and URLs are never cut, so that they can be copied.

`as_data` has the fields of `--json`:

| field | content |
|---|---|
| kind | "finding"; a later line with the same number replaces an earlier one |
| number | from 1 |
| id, title, severity | of the entry; severity is "error" or "warning" |
| times | how often it was seen |
| first, last | the first and the last time: `time` (as in the log), `source`, `line` |
| what, why, remedies, verify, read | of the entry, with the values of the first time |
| bytes | null, or `rows` (each with field, number, hex, characters), `text`, and `protocol` (null if it is none) |
| values | for each named group, each value with the number of times |
| timeline | the related records in order: `time`, `source`, `line`, `id`, `title`, `text`, `times` |
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from steadyworker.diagnosis.catalogue import Entry
from steadyworker.diagnosis.matching import spelled
from steadyworker.diagnosis.protocols import Spelled, characters
from steadyworker.diagnosis.records import Record
from steadyworker.diagnosis.scan import Unknown
from steadyworker.diagnosis.timeline import Finding, Incident, Sighting, Step
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact
from steadyworker.units import count_text

WIDEST = 100
"""The largest number of characters in a line of text; a line from a log can use the whole terminal."""

_LABEL = 12
_NARROW = 64
_LONGEST = 400  # characters of a line from a log, in JSON
_MOST_VALUES = 6
_STYLES = {"error": "bold red", "warning": "bold yellow"}
_COMMAND = re.compile(r"[a-z$][\w./-]* .*[^.]$|https?://")
_SHOWN = frozenset(
    {"connection", "peer", "queue", "exchange", "topic", "group", "message", "user", "vhost", "client", "host"}
)
_SAME_DAY = re.compile(r"\d{4}-\d\d-\d\d[T ](?=\d\d:\d\d:\d\d)")
_TIME_HEAD = re.compile(r"^[\[(]?\d{4}[-/]\d\d[-/]\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?\s*(?:\[(\w+)\s*\]|\|)?\s*")


class Report:
    """What a reader is shown, on one console."""

    def __init__(self, console: Console, *, sources: bool = True) -> None:
        self._console = console
        self._sources = sources  # whether a line is said to be of a file; of a pipe only its number counts
        self._width = min(console.width, WIDEST)

    def finding(self, number: int, finding: Finding) -> None:
        """Show a whole finding."""
        entry, groups = finding.entry, {name: safe(value) for name, value in finding.first.groups.items()}
        self._title(number, finding)
        self._part("What", self._wrapped(entry.filled(entry.what, groups)))
        self._part("Why", self._wrapped(entry.filled(entry.why, groups)))
        if (bytes_ := spelled(entry, finding.first.groups)) is not None:
            self._part("The bytes", _byte_rows(bytes_))
        self._part("Seen", self._steps(finding.example))
        self._part("Also", self._values(finding))
        self._part("What to do", self._numbered(entry.filled(remedy, groups) for remedy in entry.remedies))
        self._part("Make sure", self._commands(entry.filled(line, groups) for line in entry.verify))
        self._part("Read on", ([Text(link, "blue")] for link in entry.read))
        self._line()

    def again(self, number: int, finding: Finding, steps: Iterable[Step]) -> None:
        """Show in a few lines what came after a finding was shown, or the same finding again."""
        self._title(number, finding, again=True)
        for step in steps:
            self._line("  ", *self._step(step))
        self._line()

    def unknown(self, unknown: Unknown, most: int = 3) -> None:
        """Show that there were errors which the catalogue does not explain."""
        if not unknown.count:
            return
        lines, are, they = ("line", "is", "it") if unknown.count == 1 else ("lines", "are", "the most frequent of them")
        self._line(
            Text(f"{unknown.count:,} {lines} with the level of an error {are} not in the catalogue; {they}:", "yellow")
        )
        for times, record in unknown.most_frequent(most):
            place = f"{self._place(record.source, record.line)}  {count_text(times, 'time')}  "
            self._line("  ", Text(place, "dim"), self._cut(record.text, len(place) + 2))

    def entry(self, entry: Entry) -> None:
        """Show an entry of the catalogue, without any log."""
        self._line(Text(entry.title, _STYLES[entry.severity]))
        self._line(Text(f"{entry.id}, {entry.severity}", "dim"))
        self._line()
        self._part("What", self._wrapped(entry.what))
        self._part("Why", self._wrapped(entry.why))
        self._part("What to do", self._numbered(entry.remedies))
        self._part("Make sure", self._commands(entry.verify))
        self._part("Read on", ([Text(link, "blue")] for link in entry.read))
        self._part("Follows", ([Text(each)] for each in entry.follows))
        self._part("Known from", (line for source in entry.sources for line in self._wrapped(source)))
        for sample in entry.samples:
            self._part("Seen in", [[Text(f"{sample.origin} ({sample.how})", "dim")]])
            self._part("", ([Text(printable(line))] for line in sample.text.strip("\n").splitlines()))

    # --- Parts ---

    def _title(self, number: int, finding: Finding, *, again: bool = False) -> None:
        title = finding.entry.filled(finding.entry.title, {n: safe(v) for n, v in finding.first.groups.items()})
        self._line(Text(f"{number}. {'Again: ' if again else ''}{title}", _STYLES[finding.entry.severity]))
        first, last = finding.first, finding.last
        said = [finding.entry.id, self._place(first.record.source, first.line)]
        if finding.times > 1:
            said.append(f"{finding.times:,} times")
        if first.record.stamp:
            said.append(_between(first.record.stamp, last.record.stamp))
        self._line("   ", Text(", ".join(said), "dim"))
        if not again:
            self._line()

    def _part(self, label: str, lines: Iterable[list[Text]]) -> None:
        for position, parts in enumerate(lines):
            head = label if position == 0 else ""
            if self._width >= _NARROW:
                self._line(Text(f"   {head:<{_LABEL}}", "bold"), *parts)
            else:
                if head:
                    self._line(Text(f" {head}", "bold"))
                self._line("   ", *parts)

    @property
    def _room(self) -> int:
        """The number of characters behind the labels."""
        return self._width - (_LABEL + 3 if self._width >= _NARROW else 3)

    def _wrapped(self, text: str, indent: str = "") -> Iterator[list[Text]]:
        for paragraph in text.strip().splitlines():
            for line in textwrap.wrap(
                paragraph,
                max(20, self._room),
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            ):
                yield [Text(line)]

    def _numbered(self, texts: Iterable[str]) -> Iterator[list[Text]]:
        for number, text in enumerate(texts, 1):
            yield from self._wrapped(f"{number}. {' '.join(text.split())}", "   ")

    def _commands(self, lines: Iterable[str]) -> Iterator[list[Text]]:
        for line in lines:
            if _COMMAND.match(line) and "\n" not in line:
                yield [Text(line, "cyan")]
            else:
                yield from self._wrapped(line)

    def _steps(self, incident: Incident) -> Iterator[list[Text]]:
        for step in incident.in_order():
            yield self._step(step, _LABEL + 3 if self._width >= _NARROW else 3)
        if incident.left_out:
            yield [Text(f"… and {incident.left_out:,} more", "dim")]

    def _step(self, step: Step, indent: int = 2) -> list[Text]:
        seen = step.seen
        place = self._place(seen.record.source, seen.line)
        times = f" ({step.times:,} times)" if step.times > 1 else ""
        head = f"{clock(seen.record.stamp)}  {place}  " if seen.record.stamp else f"{place}  "
        return [Text(head, "dim"), self._cut(_said(seen), indent + len(head) + len(times)), Text(times, "dim")]

    def _values(self, finding: Finding) -> Iterator[list[Text]]:
        for name, counter in finding.values.items():
            if name in _SHOWN and len(counter) > 1:
                most = [f"{safe(value)} ({times:,})" for value, times in counter.most_common(_MOST_VALUES)]
                more = len(counter) - len(most)
                yield from self._wrapped(f"{name}: {', '.join(most)}{f' and {more:,} more' if more else ''}")

    def _place(self, source: str, line: int) -> str:
        return f"{printable(source)}:{line}" if self._sources and source != "-" else f"line {line}"

    def _cut(self, text: str, before: int) -> Text:
        """Return a line from a log; the rest that does not fit behind `before` characters is cut."""
        line, room = safe(text), max(30, max(self._console.width, WIDEST) - before)
        return Text(line if len(line) <= room else f"{line[: room - 1]}…")

    def _line(self, *parts: Text | str) -> None:
        line = Text.assemble(*parts)
        line.rstrip()
        self._console.print(line, soft_wrap=True)


def safe(text: str, most: int = _LONGEST) -> str:
    """Return text from a log as one line of at most `most` characters, without secrets and control characters."""
    return printable(" ".join(redact(text[: 4 * most]).split()))[:most]


def clock(stamp: str) -> str:
    """Return the time of a day, without date and zone."""
    found = re.search(r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,3})?", stamp)
    return found[0] if found else stamp


def _between(first: str, last: str) -> str:
    if first == last or not last:
        return first
    day = _SAME_DAY.match(first)
    return f"{first} to {last[len(day[0]) :] if day and last.startswith(day[0]) else last}"


def _said(seen: Sighting) -> str:
    """Return the record's text from the matching line on, without time and level: these stand before it."""
    lines = seen.record.text.split("\n")
    at = max(0, seen.line - seen.record.line)
    head = _TIME_HEAD.sub("", lines[0], count=1)
    if at == 0:
        return " ".join([head, *lines[1:3]])
    return " ".join(
        line.strip() for line in ([head, lines[at]] if len(head) + len(lines[at]) <= _LONGEST else lines[at:])
    )


def _byte_rows(bytes_: Spelled) -> Iterator[list[Text]]:
    fields = max(len(row.field) for row in bytes_.rows)
    numbers = max(len(str(row.number)) for row in bytes_.rows)
    hexes = max(len(row.hex) for row in bytes_.rows)
    for row in bytes_.rows:
        yield [
            Text(f"{row.field:<{fields}}  {row.number:>{numbers}}  ", "dim"),
            Text(f"{row.hex:<{hexes}}  "),
            Text(row.characters, "bold"),
        ]
    said = f"= {characters(bytes_.raw)}"
    yield [
        Text(said, "bold"),
        Text(f"  {_article(bytes_.protocol)}" if bytes_.protocol else "  no protocol that is known"),
    ]


def _article(protocol: str) -> str:
    if protocol.isupper():
        return f"the beginning of {protocol}"
    return f"the beginning of {'an' if protocol[0] in 'AEIOH' else 'a'} {protocol}"


# --- JSON -------------------------------------------------------------------------------------------------------------


def as_data(number: int, finding: Finding) -> dict[str, Any]:
    """Return a finding as `--json` prints it; the module's docstring has the fields."""
    entry, groups = finding.entry, {name: safe(value) for name, value in finding.first.groups.items()}
    bytes_ = spelled(entry, finding.first.groups)
    return {
        "kind": "finding",
        "number": number,
        "id": entry.id,
        "title": entry.filled(entry.title, groups),
        "severity": entry.severity,
        "times": finding.times,
        "first": _where(finding.first),
        "last": _where(finding.last),
        "what": entry.filled(entry.what, groups),
        "why": entry.filled(entry.why, groups),
        "bytes": bytes_
        and {
            "rows": [asdict(row) for row in bytes_.rows],
            "text": characters(bytes_.raw),
            "protocol": bytes_.protocol,
        },
        "remedies": [entry.filled(text, groups) for text in entry.remedies],
        "verify": [entry.filled(text, groups) for text in entry.verify],
        "read": list(entry.read),
        "values": {
            name: {safe(value): times for value, times in counter.most_common()}
            for name, counter in finding.values.items()
        },
        "timeline": [
            {
                **_where(step.seen),
                "id": step.seen.entry.id,
                "title": step.seen.entry.filled(step.seen.entry.title, _safe_groups(step.seen.groups)),
                "text": safe(step.seen.record.text),
                "times": step.times,
            }
            for step in finding.example.in_order()
        ],
    }


def unknown_data(unknown: Unknown, most: int = 10) -> dict[str, Any]:
    """Return the errors that are not in the catalogue as `--json` prints them."""
    return {
        "kind": "unknown",
        "count": unknown.count,
        "most_frequent": [
            {"times": times, "source": record.source, "line": record.line, "text": safe(record.text)}
            for times, record in unknown.most_frequent(most)
        ],
    }


def entry_data(entry: Entry) -> dict[str, Any]:
    """Return an entry of the catalogue as `--json` prints it."""
    return {
        "kind": "entry",
        **{name: getattr(entry, name) for name in ("id", "title", "severity", "what", "why")},
        **{name: list(getattr(entry, name)) for name in ("remedies", "verify", "read", "sources", "follows")},
        "samples": [{"from": sample.origin, "how": sample.how, "text": sample.text} for sample in entry.samples],
    }


def _safe_groups(groups: Mapping[str, str]) -> dict[str, str]:
    return {name: safe(value) for name, value in groups.items()}


def _where(seen: Sighting) -> dict[str, Any]:
    return {"time": seen.record.stamp or None, "source": seen.record.source, "line": seen.line}


def record_place(record: Record) -> str:
    """Return the place of a record."""
    return f"{record.source}:{record.line}"
