"""
The export of a job, as the ledger has it: the last file that was committed, or the state of the export that goes on.

The exports write this record (`steadyworker.exports.commit`); the page reads no file, because the file can be on another host.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct, field

from steadyworker.text.plain_text import plain_text
from steadyworker.text.redaction import redact, without_secrets
from steadyworker.units import count_text, size_text

MOST_TOTALS = 20
"""The number of totals on the page."""

_LONGEST = 500


class _KnownTotal(Struct, frozen=True):
    by: Mapping[str, str | None] = field(default_factory=dict)
    rows: int = 0
    sums: Mapping[str, str] = field(default_factory=dict)


class _KnownExport(Struct, frozen=True):
    """The parts of an export state that the page shows; the ledger can have a state of an earlier version, or of another export."""

    committed: str = ""
    folder: str = ""
    rows: int | None = None
    bytes: int | None = None
    sha256: str = ""
    totals: tuple[_KnownTotal, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)


class ExportFacts(Struct, frozen=True):
    """
    What the page shows of an export.

    Attributes:
        state: A sentence.
        facts: Names and values, for people.
        totals: A group, its number of rows and its sums, in words; at most `MOST_TOTALS`.
        all_totals: The number of all groups.
    """

    state: str
    facts: Sequence[tuple[str, str]]
    totals: Sequence[tuple[str, str, str]]
    all_totals: int


def export_facts(value: bytes | None, *, done: bool = False) -> ExportFacts | None:
    """Return what an export state has; None without a state, and for the state of an export class of the user; `done` is True for a job that is done."""
    try:
        state = msgspec.json.decode(value or b"", type=_KnownExport)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    if state == _KnownExport():
        return None
    path = f"{state.folder}/{state.committed}" if state.folder else state.committed
    text = "The export goes on, or ended before its file was committed; these are the rows that are saved."
    if done:
        text = "The job is done, and this is the last position of its export: its worker process ended before it recorded the file."
    if state.committed:
        verify = f"`steadyworker verify {shlex.quote(path)}` checks it against its manifest, on a host that has it."
        text = f"The last file of this job is committed. This page reads no file: {verify}"
    elif state.where:
        text = "Spark works on the export, or has worked on it."
    named = (
        ("file", path),
        ("rows", "" if state.rows is None else f"{state.rows:,}"),
        ("size", "" if state.bytes is None else f"{size_text(state.bytes)} ({count_text(state.bytes, 'byte')})"),
        ("SHA-256", state.sha256 if state.committed else ""),
        *(without_secrets(state.where).items()),
    )
    return ExportFacts(
        redact(text),
        [(plain_text(name, _LONGEST), plain_text(shown, _LONGEST)) for name, shown in named if shown],
        [_total_texts(total) for total in state.totals[:MOST_TOTALS]],
        len(state.totals),
    )


def _total_texts(total: _KnownTotal) -> tuple[str, str, str]:
    by = ", ".join(f"{name} {'NULL' if value is None else value}" for name, value in total.by.items())
    sums = ", ".join(f"{name} {value}" for name, value in total.sums.items())
    return plain_text(by or "all rows", _LONGEST), f"{total.rows:,}", plain_text(sums, _LONGEST)
