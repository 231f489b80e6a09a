"""
Reads the catalogue of the lines that brokers and clients write when something fails, with causes and remedies.

The catalogue is data: each file of `entries/*.toml` is a list of `[[entry]]`.
`Entry`, `Pattern` and `FindingText` are the schema.
The reader refuses a file that does not keep the schema, and names the place and the reason.
The regular expressions are compiled when they are first needed, because a log needs only a few of them.

A report of SteadyWorker's own checks and errors is a `[[finding]]`, in a table beside the checks.
`steadyworker.findings` describes this table.

The texts of an entry may contain the groups of its patterns: `{queue}` becomes the text that the group `queue` matched.
If the record has no such group, `{queue|a queue}` becomes "a queue", and `{queue}` becomes `<queue>`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from steadyworker.errors import ConfigError
from steadyworker.findings import TABLE, FindingText, general

FOLDER = "steadyworker.diagnosis.entries"

FINDINGS = "steadyworker.findings"
"""The entry-point group of the packages that have a table of findings."""

GROUPS = frozenset(
    {
        *("connection", "peer", "channel", "queue", "message", "user", "vhost", "host", "port", "code", "text"),
        *("size", "max", "type", "seconds", "version", "id", "exchange", "topic", "group", "client", "bytes", "name"),
        *("what", "remedy", "part", "limit", "lines"),  # of SteadyWorker's own lines
    }
)
"""The names of groups that mean the same in every entry; an entry may have further groups for its own texts."""

_GROUP = re.compile(r"\(\?P<(\w+)>")
_PLACE = re.compile(r"\{([a-z_]+)(?:\|((?:[^{}]|\{[a-z_]*\})*))?\}")  # a default can contain the text "{name}"
_NAME_OR_WORDS = re.compile(r"`\{([a-z_]+)\|([^{}`]* [^{}`]*)\}`")
_ADDRESS = re.compile(r"(?:\w[\w+.-]*://)?(?P<host>\[[^\]\s]*\]|[^\[\]:/\s]+)(?::(?P<port>\d{1,5}))?/?")

Id = Annotated[str, Meta(pattern=r"^[a-z0-9]+\.[a-z0-9]+(-[a-z0-9]+)*$")]
Text = Annotated[str, Meta(min_length=1)]


class Pattern(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    r"""
    One form of the records that an entry explains.

    Attributes:
        hint: A text on one line of each record that matches; the regular expression is tried only on records with the hint.
        regex: The regular expression, which is searched in the whole record.
            The record's lines are joined by `\n`, and `^` matches the start of each line.
    """

    hint: Annotated[str, Meta(min_length=4)]
    regex: Text


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """
    A kind of failure, with everything that a reader must know about it.

    Attributes:
        id: The family and a name, such as "amqp.second-header"; an id never changes.
        title: The conclusion, in one short sentence without a full stop.
        what: What happened, in the reader's words.
        why: The cause.
        remedies: What to do; the most likely remedy is first.
        worker: What to do if SteadyWorker's own log names the entry, and the first remedy does not fit.
            This field is empty if the text of such a line always has the remedy.
        verify: Commands that confirm the cause.
        read: URLs of further reading.
        sources: The evidence for this entry: versions, issues, documents.
        severity: "error", or "warning" if nothing has failed yet.
        spelled: The groups that are bytes of the connection (`bytes` in the file):
            "frame" (type, channel and size), "length" (size, the 32-bit length of a frame),
            "length-plus-4" (size, to which Netty has added the size of the length itself),
            or "raw" (bytes, as `<<65,77>>` or `'AM'`).
        opens: Kinds of protocols (`protocols.OPENINGS`): the entry explains only bytes that open a protocol of these kinds.
        keys: Named groups by which related records join into one time line.
        follows: The ids of entries that cause this failure.
            If the time line has such an entry, this failure is not a separate finding.
        general: Whether this entry explains only records that no other entry explains.
        vague: Whether this entry is only about a connection that failed or was lost, for any cause (`matching`).
        speaks_for_itself: Whether the line of the log itself contains what happened and what to do (`entry_of`).
        patterns: The patterns that recognise the failure (`[[entry.pattern]]`).
            An entry without a pattern is recognised only by its id, in SteadyWorker's own log or in a trace.
    """

    id: Id
    title: Text
    what: Text
    why: Text
    remedies: Annotated[tuple[Text, ...], Meta(min_length=1)]
    worker: str | None = None
    verify: tuple[Text, ...] = ()
    read: tuple[Text, ...] = ()
    sources: Annotated[tuple[Text, ...], Meta(min_length=1)]
    severity: Literal["error", "warning"]
    spelled: Literal["frame", "length", "length-plus-4", "raw"] | None = msgspec.field(default=None, name="bytes")
    opens: tuple[Text, ...] = ()
    keys: tuple[Text, ...] = ()
    follows: tuple[Id, ...] = ()
    general: bool = False
    vague: bool = False
    speaks_for_itself: bool = False
    patterns: tuple[Pattern, ...] = msgspec.field(default=(), name="pattern")

    @property
    def family(self) -> str:
        """The part of the id before the point."""
        return self.id.partition(".")[0]

    @cached_property
    def groups(self) -> frozenset[str]:
        """The names of all groups of the patterns."""
        return frozenset(name for pattern in self.patterns for name in _GROUP.findall(pattern.regex))

    def filled(self, text: str, groups: Mapping[str, str]) -> str:
        """
        Return one of the entry's texts, filled with the texts that the groups matched.

        A value in backticks is a name: its default loses them if it is made of several words.
        In a text with a place for the port, the host is only the host, also if its group matched an address or a URL.
        """
        text = _NAME_OR_WORDS.sub(lambda place: place[0] if groups.get(place[1]) else place[2], text)
        if "{port" in text and (address := _ADDRESS.fullmatch(groups.get("host", ""))) is not None:
            groups = {
                **{name: value for name, value in address.groupdict().items() if value},
                **groups,
                "host": address["host"],
            }

        def value(place: re.Match[str]) -> str:
            name, default = place[1], place[2]
            if name not in self.groups and name not in GROUPS:
                return place[0]
            found = _trimmed(groups.get(name, "")) or (f"<{name}>" if default is None else default)
            return found.removesuffix(".") if text.startswith(".", place.end()) else found

        return _PLACE.sub(value, text)


_OPENINGS = {")": "(", "]": "[", "}": "{"}
_UNFINISHED = " ,;([{\\"


def _trimmed(value: str) -> str:
    """
    Return a value without the marks at its end that belong to the line around it.

    Such a mark is a bracket or a quote that nothing in the value opens, or a mark that needs more text behind it.
    """
    while value:
        last = value[-1]
        opening = _OPENINGS.get(last)
        unopened = value.count(last) == 1 if last in "\"'" else opening and value.count(opening) < value.count(last)
        if not (unopened or last in _UNFINISHED or (last == ":" and not value.endswith("::"))):
            break
        value = value[:-1]
    return value


_VALUE = re.compile(r"(\{\w+\})?")
"""A template that is empty, or has only a value."""

_WHAT = "The line of the log, or of `steadyworker check`, has what happened."
_REMEDY = "Do what the line asks for: it has the remedy, with the names and numbers of your case."


def entry_of(texts: Sequence[FindingText]) -> Entry:
    """
    Return the catalogue's entry for a finding or an error of SteadyWorker itself; the entry has all texts with this id.

    Raises:
        ConfigError: There is no title, and `what` has no text that can be the title.
    """
    first = texts[0]
    whats = [general(text.what) for text in texts if not _VALUE.fullmatch(text.what)]
    remedies = [general(text.remedy) for text in texts if not _VALUE.fullmatch(text.remedy)]
    if not first.title and not whats:
        raise ConfigError(f"{first.id}: expected a title, or a text in `what`, got neither: add a title.")
    return Entry(
        id=first.id,
        title=first.title or whats[0].partition(": ")[0].rstrip("."),
        what=f"{{what|{' Or: '.join(dict.fromkeys(whats)) or _WHAT}}}",
        why=first.why,
        remedies=(f"{{remedy|{' Or: '.join(dict.fromkeys(remedies)) or _REMEDY}}}",),
        read=first.read,
        sources=("SteadyWorker's own checks and errors",),
        severity="warning",
        keys=("queue", "message"),
        speaks_for_itself=True,
    )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entries: tuple[Entry, ...] = msgspec.field(default=(), name="entry")
    findings: tuple[FindingText, ...] = msgspec.field(default=(), name="finding")


def load(skipped: Callable[[str], object] = lambda _text: None) -> dict[str, Entry]:
    """
    Return all entries by id.

    Args:
        skipped: Receives a text about each package of the group `FINDINGS` whose table cannot be used.

    Raises:
        ConfigError: A file of the catalogue itself does not keep the schema.
    """
    found: dict[str, Entry] = {}
    for path in _entries():
        found |= _new(found, read(path.read_text(encoding="utf-8"), path.name), path.name)
    for point in _packages():
        try:
            found |= _new(found, read(_table(point.value), TABLE), TABLE)
        except Exception as error:  # noqa: BLE001 - the package can be gone, and the search for it can run any code
            package = f"{point.value} (of {point.dist.name})" if point.dist is not None else point.value
            skipped(
                f"Expected a {TABLE} that can be used in {package}, an entry point of the group {FINDINGS}, "
                f"got {type(error).__name__}: {error}\n"
                "Its ids are not explained: install that distribution again, or uninstall it."
            )
    return found


def find(id: str) -> Entry | None:
    """
    Return the entry with this id, or None if there is no such entry.

    Only the file with the entry is read, for programs that need few entries.
    """
    for path in _entries():
        if (entry := _entry(path.read_text(encoding="utf-8"), path.name, id)) is not None:
            return entry
    for point in _packages():
        with suppress(Exception):  # as in `load`
            if (entry := _entry(_table(point.value), TABLE, id)) is not None:
                return entry
    return None


def _entry(text: str, name: str, id: str) -> Entry | None:
    return next((entry for entry in read(text, name) if entry.id == id), None) if f'id = "{id}"' in text else None


def _new(found: Mapping[str, Entry], entries: Iterable[Entry], name: str) -> dict[str, Entry]:
    new: dict[str, Entry] = {}
    for entry in entries:
        if entry.id in found or entry.id in new:
            raise ConfigError(f"{name}: expected each id once, got {entry.id} again: rename one of the two.")
        new[entry.id] = entry
    return new


def _entries() -> list[Traversable]:
    entries = [path for path in files(FOLDER).iterdir() if path.name.endswith(".toml")]
    return sorted(entries, key=lambda path: path.name)


def _packages() -> list[EntryPoint]:
    points = {point.value: point for point in entry_points(group=FINDINGS)}
    return [points[package] for package in sorted(points)]


def _table(package: str) -> str:
    """
    Return the text of the package's table of findings without an import of the package.

    The import of an adapter's package would need the adapter's client library.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No package named {package!r}")
    return (Path(spec.submodule_search_locations[0]) / TABLE).read_text(encoding="utf-8")


def read(text: str, name: str) -> tuple[Entry, ...]:
    """
    Return the entries of one file's text.

    Raises:
        ConfigError: The text is not TOML, or does not keep the schema; the message names the entry, the field and the reason.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: expected TOML, got: {error}") from error
    try:
        file = msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {_with_id(str(error), data)}") from error
    by_id: dict[str, list[FindingText]] = {}
    for finding in file.findings:
        by_id.setdefault(finding.id, []).append(finding)
    return (*file.entries, *map(entry_of, by_id.values()))


def _with_id(complaint: str, data: Mapping[str, object]) -> str:
    """Return msgspec's message with the id of the entry that its path (`$.entry[3].title`) points to."""
    place = re.search(r"\$\.(entry|finding)\[(\d+)\]", complaint)
    entries = data.get(place[1]) if place else None
    if place and isinstance(entries, list) and isinstance(found := entries[int(place[2])], dict) and "id" in found:
        return f"{found['id']}: {complaint}"
    return complaint
