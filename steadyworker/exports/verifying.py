"""
Reading an exported file back, against its manifest, with another reader than wrote it.

| format | written by | read back by |
|---|---|---|
| CSV | `formats.py`, or Spark | pyarrow if it is there, else Python's csv |
| JSON Lines | `formats.py` | Python's json |
| Parquet | pyarrow | DuckDB if it is there, else pyarrow |
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation, localcontext
from pathlib import Path

from steadyworker.errors import ExportError
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.readers import READERS
from steadyworker.exports.stage import manifest_path
from steadyworker.exports.values import text

Groups = dict[tuple[str | None, ...], list[Decimal]]


def verify(path: str | os.PathLike[str]) -> Manifest:
    """
    Re-read a file against its manifest: size, SHA-256, rows, and totals by group.

    Answers the manifest when all of them agree.

    Raises:
        ExportError: No manifest, a file that cannot be read as its format, or all that differs.
    """
    file = Path(path)
    manifest = Manifest.load(manifest_path(file))
    try:
        wrong = _bytes_differ(file, manifest) or _rows_differ(file, manifest)
    except FileNotFoundError as error:
        raise ExportError(f"Expected {file}, which its manifest tells of, got no such file: was it moved?") from error
    if wrong:
        raise ExportError(f"{file} is not what its manifest says: {'; '.join(wrong)}. Export it again.")
    return manifest


def _bytes_differ(file: Path, manifest: Manifest) -> list[str]:
    size = file.stat().st_size
    if size != manifest.bytes:
        return [f"expected {manifest.bytes} bytes, got {size}"]
    with file.open("rb") as source:
        digest = hashlib.file_digest(source, "sha256").hexdigest()
    return [f"expected SHA-256 {manifest.sha256}, got {digest}"] if digest != manifest.sha256 else []


def _rows_differ(file: Path, manifest: Manifest) -> list[str]:
    """Count and sum what another reader reads, and compare."""
    name = manifest.format.get("name", "none")
    if name not in READERS:
        raise ExportError(f"Expected a format out of {', '.join(READERS)} in the manifest of {file}, got {name!r}.")
    by = list(manifest.totals[0].by) if manifest.totals else []
    summed = list(manifest.totals[0].sums) if manifest.totals else []
    nothing = manifest.format.get("null", "")
    rows = 0
    found: Groups = {}
    expected: Groups = {}
    with localcontext(Context(prec=200, traps=[Inexact, InvalidOperation])):
        for cells in READERS[name](file, manifest, [*by, *summed]):
            rows += 1
            if manifest.totals:
                numbers = [
                    Decimal(cell) if cell not in (None, "", nothing) else Decimal(0) for cell in cells[len(by) :]
                ]
                _add(found, [_shown(cell, nothing) for cell in cells[: len(by)]], [Decimal(1), *numbers])
        for total in manifest.totals:
            group = [_shown(cell, nothing) for cell in total.by.values()]
            _add(expected, group, [Decimal(total.rows), *map(Decimal, total.sums.values())])
    wrong = [] if rows == manifest.rows else [f"expected {manifest.rows} rows, got {rows}"]
    return wrong + list(_differences(["rows", *summed], expected, found))


def _shown(cell: object, nothing: str) -> str | None:
    """A cell's text; NULL and "" are one, because not every reader can tell them apart."""
    return None if cell in (None, "", nothing) else text(cell)


def _add(groups: Groups, group: Iterable[str | None], numbers: list[Decimal]) -> None:
    key = tuple(group)
    groups[key] = [one + other for one, other in zip(groups[key], numbers, strict=True)] if key in groups else numbers


def _differences(names: Sequence[str], expected: Groups, found: Groups) -> Iterator[str]:
    zeros = [Decimal(0)] * len(names)
    for group in {**expected, **found}:
        for name, wanted, got in zip(names, expected.get(group, zeros), found.get(group, zeros), strict=True):
            if wanted != got:
                of = f" of group {group}" if group else ""
                yield f"expected {name}{of} to be {wanted:f}, got {got:f}"
