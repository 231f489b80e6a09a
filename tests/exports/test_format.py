"""A new format is a subclass of `Format` in `FORMATS`, and a reader in `READERS`; no other code has to know of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from steadyworker.exports import formats, verifying
from steadyworker.exports.format import Format
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.readers import READERS
from steadyworker.exports.render import PLAIN, Out, TextKind, TextWriter, after, before
from steadyworker.exports.rows import RowExport
from steadyworker.exports.verifying import verify
from tests.exports.kit import FakeServices


class Marked(Format):
    """Cells between bars; texts have angles."""

    __slots__ = ()

    name: ClassVar[str] = "marked"
    endings: ClassVar[tuple[str, ...]] = (".marked",)
    lines: ClassVar[bool] = True

    def head(self, columns: Sequence[str]) -> bytes:
        return f"|{'|'.join(columns)}|\n".encode()

    def writer(self, out: Out, columns: Sequence[str]) -> TextWriter:
        starts = ["|", *[""] * (len(columns) - 1)]
        return TextWriter(out, columns, PLAIN, cell, starts=starts, between="|", end="|\n")


def cell(texts: Any, kind: TextKind) -> Any:
    """NULL is an empty cell."""
    made = before("<", after(texts, ">")) if kind is TextKind.TEXT else texts
    return made.fill_null("")


def read(file: Path, manifest: Manifest, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
    _, *lines = file.read_text(encoding="utf-8").splitlines()
    for line in lines:
        row = dict(zip(manifest.columns, line[1:-1].split("|"), strict=True))
        yield [row[name].strip("<>") for name in columns]


def test_a_format_is_one_class_and_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, Marked))
    monkeypatch.setattr(verifying, "READERS", {**READERS, "marked": read})
    out = tmp_path / "out.marked"
    made = RowExport([(1, "a"), (2, None), (3, "a")], columns=("n", "t")).write(
        FakeServices(tmp_path / "ledger"), out, totals={"n": "sum"}, by=("t",)
    )
    assert out.read_bytes() == b"|n|t|\n|1|<a>|\n|2||\n|3|<a>|\n"
    assert made.format == {"name": "marked"}
    assert [(total.by, total.sums) for total in made.totals] == [({"t": None}, {"n": "2"}), ({"t": "a"}, {"n": "4"})]
    assert verify(out) == made
