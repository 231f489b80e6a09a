"""
Shows findings: as text for people, and as JSON.

The first line of a finding is the conclusion.
Below it, each part has its label on the left.
Text from a log is shown without secrets, and with escapes in place of control characters.
A line of a log is cut at the width of the terminal; commands and URLs are never cut, so that they can be copied.

`as_data` has the fields of `--json`:

| field | content |
|---|---|
| kind | "finding"; a later line replaces an earlier line with the same number |
| number | from 1 |
| id, title, severity | the entry's; severity is "error" or "warning" |
| certainty | "certain", or "probable" if the lines have only a part of what the entry's pattern needs |
| times | the number of times that the failure was seen |
| first, last | the first and the last time: `time` (as in the log), `source`, `line` |
| what, why, remedies, verify, read | the entry's, with the values of the first time |
| bytes | null, or `rows` (each with field, number, hex, characters), `text`, and `protocol` (null if there is none) |
| values | for each named group, each value with the number of times that it was seen |
| timeline | the related records in order, each with `time`, `source`, `line`, `id`, `title`, `text`, `times` |
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from steadyworker.diagnosis.catalogue import Entry
from steadyworker.diagnosis.matching import spelled
from steadyworker.diagnosis.protocols import Spelled, characters
from steadyworker.diagnosis.records import LONGEST
from steadyworker.diagnosis.scan import Unknown
from steadyworker.diagnosis.timeline import LogFinding, Sighting, TimelineStep
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact
from steadyworker.units import count_text

WIDEST = 100
"""The largest number of characters in a line of text; a line from a log can use the whole terminal."""

_LABEL = 12
_LONGEST = 400  # the largest number of characters of a log's line in JSON
_MOST_VALUES = 6
_ROWS = 6  # the largest number of rows for the line that causes a finding
_NEAR = 3  # lines of a record
_STYLES = {"error": "bold red", "warning": "bold yellow"}
_COMMAND = re.compile(r"[a-z$][\w./-]* .*[^.]$|https?://")
_SHOWN = frozenset(
    {"connection", "peer", "queue", "exchange", "topic", "group", "message", "user", "vhost", "client", "host"}
)
_DAY = re.compile(r"\d{4}-\d\d-\d\d[T ](?=\d\d:\d\d:\d\d)")
_FRACTION = re.compile(r"(?<=:\d\d)[.,]\d+(?:\+00:00)?")
_TIME_HEAD = re.compile(r"^[\[(]?\d{4}[-/]\d\d[-/]\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?\s*(?:\[(\w+)\s*\]|\|)?\s*")


class Report:
    """The text of all findings, on one console."""

    def __init__(self, console: Console, sources: Sequence[str] = ()) -> None:
        self._console = console
        self._width = min(console.width, WIDEST)
        names = Counter(source.rpartition("/")[2] for source in sources)
        short = {source: source.rpartition("/")[2] for source in sources}
        self._names = {source: name if names[name] == 1 else source for source, name in short.items()}

    def finding(self, number: int, finding: LogFinding) -> None:
        """Show a whole finding."""
        entry, groups = finding.entry, _safe_groups(finding.root.groups)
        self._title(number, finding)
        self._part("What", self._wrapped(entry.filled(entry.what, groups)))
        self._part("Likely why" if finding.probable else "Why", self._wrapped(entry.filled(entry.why, groups)))
        self._line()
        if (bytes_ := spelled(entry, finding.root.groups)) is not None:
            self._part("The bytes", _byte_rows(bytes_))
        self._part("Seen", self._steps(finding))
        self._part("Values", self._values(finding))
        self._line()
        label = "If so, do" if finding.probable else "What to do"
        self._part(label, self._numbered(entry.filled(remedy, groups) for remedy in entry.remedies))
        self._part("Make sure", self._commands(entry.filled(line, groups) for line in entry.verify))
        self._part("Read on", ([Text(link, "blue")] for link in entry.read))
        self._line()

    def overview(self, findings: Sequence[LogFinding]) -> None:
        """Show the conclusions of many findings, before the findings themselves."""
        widest = max(len(f"{finding.times:,}") for finding in findings)
        for number, finding in enumerate(findings, 1):
            lines = "line " if finding.times == 1 else "lines"
            self._line(
                Text(f"{number:>4}. "),
                Text(f"{finding.times:>{widest},} {lines}  ", "dim"),
                Text(title(finding), _STYLES[finding.entry.severity].removeprefix("bold ")),
            )
        self._line()

    def again(self, number: int, finding: LogFinding, steps: Iterable[TimelineStep]) -> None:
        """Show in a few lines what came after a finding was shown, or that the same finding came again."""
        self._title(number, finding, again=True)
        self._part("Seen", (line for step in steps for line in self._step(step, _ROWS)))
        self._line()

    def end(self, found: int, lines: int, unknown: Unknown) -> None:
        """Show the number of findings, and the errors that the catalogue does not explain."""
        result = count_text(found, "finding") if found else "Nothing known" if unknown.count else "Nothing found"
        self._line(Text(f"{result} in {count_text(lines, 'line')}.", "bold"))
        self.unknown(unknown)

    def unknown(self, unknown: Unknown, most: int = 3) -> None:
        """Show the errors that the catalogue does not explain."""
        if not unknown.count:
            return
        if unknown.count == 1:
            note = "1 line looks like a failure, and is not in the catalogue:"
        else:
            frequent = "" if len(unknown.shapes) <= most else "; the most frequent of them"
            note = f"{unknown.count:,} lines look like failures, and are not in the catalogue{frequent}:"
        self._line(Text(note, "yellow"))
        for times, record in unknown.most_frequent(most):
            self._line("   ", Text(f"{self._place(record.source, record.line)}{_times(times)}", "dim"))
            for row in self._quoted(_head(record.text), 4, self._width - 5):
                self._line("     ", row)

    def entry(self, entry: Entry) -> None:
        """Show an entry of the catalogue without a log."""
        self._line(Text(_unfilled(entry, entry.title), _STYLES[entry.severity]))
        self._line(Text(f"{entry.id}, {entry.severity}", "dim"))
        self._line()
        self._part("What", self._wrapped(_unfilled(entry, entry.what)))
        self._part("Why", self._wrapped(_unfilled(entry, entry.why)))
        self._part("What to do", self._numbered(_unfilled(entry, remedy) for remedy in entry.remedies))
        self._part("Make sure", self._commands(_unfilled(entry, line) for line in entry.verify))
        self._part("Read on", ([Text(link, "blue")] for link in entry.read))
        self._part("Follows", ([Text(each)] for each in entry.follows))
        self._part("Known from", (line for source in entry.sources for line in self._wrapped(source)))
        self._part("Lines with", ([Text(hint, "dim")] for hint in _hints(entry)))

    # --- Parts ---

    def _title(self, number: int, finding: LogFinding, *, again: bool = False) -> None:
        self._line(Text(f"{number}. {'Again: ' if again else ''}{title(finding)}", _STYLES[finding.entry.severity]))
        first, last = finding.first, finding.last
        facts = [finding.entry.id, self._place(first.record.source, first.line)]
        if finding.times > 1:
            facts.append(f"{finding.times:,} lines")
        if first.record.stamp:
            facts.append(_between(first.record.stamp, last.record.stamp))
        self._line("   ", Text(", ".join(facts), "dim"))
        if not again:
            self._line()

    def _part(self, label: str, lines: Iterable[list[Text]]) -> None:
        for position, parts in enumerate(lines):
            head = label if position == 0 else ""
            self._line(Text(f"   {head:<{_LABEL}}", "bold"), *parts)

    @property
    def _room(self) -> int:
        """The number of characters to the right of the labels."""
        return self._width - _LABEL - 3

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

    def _steps(self, finding: LogFinding) -> Iterator[list[Text]]:
        rows = _ROWS
        for step in finding.example.in_order():
            if step.seen.entry.id == finding.entry.id:
                yield from self._step(step, rows)
                rows = 1  # a second record of the entry has nearly the same text
            else:
                yield from self._step(step, 1, step.seen.entry.title)
        if finding.example.left_out:
            yield [Text(f"… and {finding.example.left_out:,} more", "dim")]

    def _step(self, step: TimelineStep, rows: int, title: str = "") -> Iterator[list[Text]]:
        seen = step.seen
        at = f"{clock(seen.record.stamp)}  " if seen.record.stamp else ""
        place = f"{at}{self._place(seen.record.source, seen.line)}{_times(step.times)}  "
        yield [Text(place, "dim"), Text(seen.entry.filled(title, _safe_groups(seen.groups)))]
        for row in self._quoted(_excerpt(seen, rows), rows, self._room - 2):
            yield [Text("  "), row]

    def _quoted(self, text: str, rows: int, width: int) -> Iterator[Text]:
        """Yield a line from a log on at most `rows` rows."""
        width = max(20, width)
        wrapped = textwrap.wrap(safe(text), width, break_on_hyphens=False)
        if len(wrapped) > rows:
            wrapped[rows - 1 :] = [f"{wrapped[rows - 1][: width - 2].rstrip()} …"]
        return (Text(row, "italic") for row in wrapped)

    def _values(self, finding: LogFinding) -> Iterator[list[Text]]:
        for name, counter in finding.values.items():
            if name not in _SHOWN or len(counter) < 2:  # noqa: PLR2004 - one value stands in the quoted line
                continue
            if len(counter) > _MOST_VALUES and max(counter.values()) == 1:
                counted = len(counter) if counter.total() == finding.times else f"at least {len(counter)}"
                yield from self._wrapped(f"{name}: {counted} different ones, such as {safe(min(counter))}")
                continue
            most = [
                f"{safe(value)} ({times:,})" if max(counter.values()) > 1 else safe(value)
                for value, times in counter.most_common(_MOST_VALUES)
            ]
            more = len(counter) - len(most)
            yield from self._wrapped(f"{name}: {', '.join(most)}{f' and {more:,} more' if more else ''}")

    def _place(self, source: str, line: int) -> str:
        return f"{printable(self._names[source])}:{line}" if source in self._names else f"line {line}"

    def _line(self, *parts: Text | str) -> None:
        line = Text.assemble(*parts)
        line.rstrip()
        self._console.print(line, soft_wrap=True)


def title(finding: LogFinding) -> str:
    """Return the conclusion; if the lines have only the hint of a pattern, the conclusion is marked as probable."""
    return ("Probably: " if finding.probable else "") + finding.entry.filled(
        finding.entry.title, _safe_groups(finding.root.groups)
    )


def safe(text: str, most: int = _LONGEST) -> str:
    """Return text from a log as one line of at most `most` characters, without secrets and control characters."""
    return printable(" ".join(redact(text[:LONGEST]).split()))[:most]


def clock(stamp: str) -> str:
    """Return the time of a day, without date and zone."""
    found = re.search(r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,3})?", stamp)
    return found[0] if found else stamp


def _between(first: str, last: str) -> str:
    first, last = (_FRACTION.sub("", stamp, count=1) for stamp in (first, last))
    if first == last or not last:
        return first
    day = _DAY.match(first)
    return f"{first} to {last[len(day[0]) :] if day and last.startswith(day[0]) else last}"


def _times(times: int) -> str:
    return f", {times:,} times" if times > 1 else ""


def _head(text: str) -> str:
    """Return a record without the time and the level at its beginning."""
    return _TIME_HEAD.sub("", text, count=1)


def _excerpt(seen: Sighting, rows: int) -> str:
    """
    Return the beginning of the record, and also the line of the match if this line is further down.

    If there is only one row, return only the text at the match.
    """
    lines = _head(seen.record.text).split("\n")
    at = max(0, seen.line - seen.record.line)
    if rows == 1:
        return " ".join(lines[at : at + _NEAR])
    return " ".join(lines[:_NEAR] if at < _NEAR else [lines[0], "…", *lines[at : at + 2]])


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
    if bytes_.protocol is not None:
        yield [Text(f"= {characters(bytes_.raw)}", "bold"), Text(f"  {_beginning(bytes_.protocol)}")]


def _beginning(protocol: str) -> str:
    article = "an" if protocol[0] in "AEIOH" else "a"  # an HTTP request
    return f"the beginning of {protocol if protocol.isupper() else f'{article} {protocol}'}"


# --- JSON -------------------------------------------------------------------------------------------------------------


def as_data(number: int, finding: LogFinding) -> dict[str, Any]:
    """Return a finding as `--json` prints it; the module's docstring has the fields."""
    entry, groups = finding.entry, _safe_groups(finding.root.groups)
    bytes_ = spelled(entry, finding.root.groups)
    return {
        "kind": "finding",
        "number": number,
        "id": entry.id,
        "title": title(finding),
        "severity": entry.severity,
        "certainty": "probable" if finding.probable else "certain",
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
    """Return the errors that the catalogue does not explain, as `--json` prints them."""
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
        **{name: getattr(entry, name) for name in ("id", "severity")},
        **{name: _unfilled(entry, getattr(entry, name)) for name in ("title", "what", "why")},
        **{name: [_unfilled(entry, text) for text in getattr(entry, name)] for name in ("remedies", "verify")},
        **{name: list(getattr(entry, name)) for name in ("read", "sources", "follows")},
        "hints": _hints(entry),
    }


def _hints(entry: Entry) -> list[str]:
    """Return the hints of an entry; each line that the entry explains has at least one of the hints."""
    return list(dict.fromkeys(pattern.hint for pattern in entry.patterns))


def _unfilled(entry: Entry, text: str) -> str:
    """Return a text of an entry without a record; each placeholder becomes its default, or its name in angle brackets."""
    return entry.filled(text, {})


def _safe_groups(groups: Mapping[str, str]) -> dict[str, str]:
    return {name: safe(value) for name, value in groups.items()}


def _where(seen: Sighting) -> dict[str, Any]:
    return {"time": seen.record.stamp or None, "source": seen.record.source, "line": seen.line}
