"""
Verification of an exported file against its manifest, if possible with another library than the library that wrote the file.

| format | written by | read back by |
|---|---|---|
| CSV | Arrow's kernels (`render.py`) | Python's csv |
| JSON Lines | Arrow's kernels (`render.py`) | Python's json |
| Parquet | pyarrow | DuckDB if installed, otherwise pyarrow; DuckDB's rows come through pyarrow, too |
| XLSX | XlsxWriter | Python's zipfile and XML parser |

A compressed file is read by the same reader: gzip by Python, zstd by pyarrow.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation, localcontext
from pathlib import Path

import msgspec

from steadyworker.errors import ExportError
from steadyworker.exports.manifest import Manifest, ManifestFile
from steadyworker.exports.readers import READERS
from steadyworker.exports.s3.address import S3
from steadyworker.exports.stage import INSIDE, manifest_path
from steadyworker.exports.stores.copying import copied
from steadyworker.exports.stores.opening import store_address
from steadyworker.exports.values import text

Groups = dict[tuple[str | None, ...], list[Decimal]]
_EXACT = Context(prec=200, traps=[Inexact, InvalidOperation])
_LISTED = 5  # the most differences that an error lists


def verify(path: str | os.PathLike[str] | S3, *, source: Iterable[Sequence[object]] | None = None) -> Manifest:
    """
    Check a file, or a folder of several files, against its manifest: size, SHA-256, rows, and totals by group.

    Return the manifest if all of them agree.

    Args:
        path: The file, whose manifest is next to it, or the folder, whose manifest is in it.
            An object or a folder in a store (`"s3://bucket/key"`, `"gs://bucket/key"`, `S3`) is copied to this host for the check.
        source: Counts and sums that you queried from the source, one row for each group; they are compared, too.
            A row has the group's values, its row count and its sums, all in the manifest's order
            (`SELECT currency, count(*), sum(amount) … GROUP BY currency`).
            Without groups, `source` has a single row of count and sums.

    Raises:
        ExportError: There is no manifest, the file cannot be read in its format, or something differs.
    """
    address = store_address(path)
    if address is not None:
        with copied(address) as copy:
            try:
                return _verified(copy, source)
            except ExportError as error:
                raise ExportError(str(error).replace(str(copy), str(address))) from error
    assert not isinstance(path, S3)
    return _verified(Path(path), source)


def _verified(file: Path, source: Iterable[Sequence[object]] | None) -> Manifest:
    manifest = Manifest.load(manifest_path(file))
    try:
        if manifest.files is None:
            wrong = _bytes_differ(file, manifest) or _rows_differ(file, manifest)
        else:
            wrong = _files_differ(file, manifest, manifest.files)
        other = "manifest"
        if source is not None and not wrong:
            wrong, other = _source_differs(manifest, source), "source"
    except FileNotFoundError as error:
        raise ExportError(
            f"Expected {file}, which has a manifest, got no such file: move it back next to its manifest."
        ) from error
    except ExportError:
        raise
    except Exception as error:  # each reader raises its library's errors
        kind = manifest.format.get("name")
        raise ExportError(
            f"Expected {file} to be {kind}, as in its manifest, got: {error!s:.500}: export it again."
        ) from error
    if wrong:
        more = [f"and {len(wrong) - _LISTED} more"] if len(wrong) > _LISTED else []
        raise ExportError(f"{file} differs from its {other}: {'; '.join(wrong[:_LISTED] + more)}. Export it again.")
    return manifest


def _files_differ(folder: Path, manifest: Manifest, files: Sequence[ManifestFile]) -> list[str]:
    """Read each file in the folder, and return where the files differ from the manifest's."""
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    wrong = [f"expected no file {name}" for name in sorted(there - {INSIDE, *(file.name for file in files)})]
    groups: Groups = {}
    for file in files:
        part = msgspec.structs.replace(
            manifest, rows=file.rows, bytes=file.bytes, sha256=file.sha256, totals=file.totals, files=None
        )
        found = _bytes_differ(folder / file.name, part) or _rows_differ(folder / file.name, part)
        wrong += [f"{file.name}: {each}" for each in found]
        with localcontext(_EXACT):
            for group, numbers in _totals(part).items():
                _add(groups, group, numbers)
    wrong += _differences(manifest, _totals(manifest), groups)
    sums = [("rows", manifest.rows, sum(file.rows for file in files))]
    sums.append(("bytes", manifest.bytes, sum(file.bytes for file in files)))
    wrong += [f"expected {wanted} {what} in all files, got {got}" for what, wanted, got in sums if wanted != got]
    digest = hashlib.sha256(ManifestFile.listing(files)).hexdigest()
    return wrong + (
        [f"expected SHA-256 {manifest.sha256} of the list of files, got {digest}"] if digest != manifest.sha256 else []
    )


def _bytes_differ(file: Path, manifest: Manifest) -> list[str]:
    size = file.stat().st_size
    if size != manifest.bytes:
        return [f"expected {manifest.bytes} bytes, got {size}"]
    with file.open("rb") as source:
        digest = hashlib.file_digest(source, "sha256").hexdigest()
    return [f"expected SHA-256 {manifest.sha256}, got {digest}"] if digest != manifest.sha256 else []


def _rows_differ(file: Path, manifest: Manifest) -> list[str]:
    """Read the file, and return where its counts and sums differ from the manifest's."""
    name = manifest.format.get("name", "none")
    if name not in READERS:
        raise ExportError(
            f"Expected a format out of {', '.join(READERS)} in the manifest of {file}, got {name!r}: export it again."
        )
    by, sums = _names(manifest)
    cells = READERS[name](file, manifest, [*by, *sums])
    found: Groups = {}
    if manifest.totals:
        found = _summed(manifest, ((*row[: len(by)], 1, *row[len(by) :]) for row in cells))
        count = int(sum(numbers[0] for numbers in found.values()))
    else:
        count = sum(1 for _ in cells)
    wrong = [] if count == manifest.rows else [f"expected {manifest.rows} rows, got {count}"]
    return wrong + _differences(manifest, _totals(manifest), found)


def _source_differs(manifest: Manifest, source: Iterable[Sequence[object]]) -> list[str]:
    """Return where the source's counts and sums differ from the manifest's."""
    by, sums = _names(manifest)

    def checked() -> Iterator[Sequence[object]]:
        for row in source:
            if len(row) != len(by) + 1 + len(sums):
                raise ExportError(
                    f"Expected source rows of {', '.join([*by, 'rows', *sums])}, got {len(row)} values ({row!r:.200}): "
                    "select exactly these, in this order."
                )
            yield row

    whole: Groups = {(): [Decimal(manifest.rows)]}
    return _differences(manifest, _summed(manifest, checked()), _totals(manifest) if manifest.totals else whole)


def _names(manifest: Manifest) -> tuple[list[str], list[str]]:
    """Return the columns of the manifest's groups, and those of its sums."""
    return ([*manifest.totals[0].by], [*manifest.totals[0].sums]) if manifest.totals else ([], [])


def _totals(manifest: Manifest) -> Groups:
    """Return the manifest's totals by group."""
    return _summed(
        manifest, ((*total.by.values(), total.rows, *map(Decimal, total.sums.values())) for total in manifest.totals)
    )


def _summed(manifest: Manifest, rows: Iterable[Sequence[object]]) -> Groups:
    """
    Return the exact sums of rows by group; a row has the group's values, a count and the numbers to sum.

    NULL, the format's null text and "" are treated as equal, because not every reader can distinguish them.
    With the format's `decimal_comma`, the text of a number has a comma.
    """
    by, nothing = len(_names(manifest)[0]), (None, "", manifest.format.get("null", ""))
    comma = "," if manifest.format.get("decimal_comma") else "."
    groups: Groups = {}
    with localcontext(_EXACT):
        for row in rows:
            group = [None if cell in nothing else text(cell) for cell in row[:by]]
            _add(groups, group, [Decimal(0 if cell in nothing else str(cell).replace(comma, ".")) for cell in row[by:]])
    return groups


def _add(groups: Groups, group: Iterable[str | None], numbers: list[Decimal]) -> None:
    key = tuple(group)
    groups[key] = [one + other for one, other in zip(groups[key], numbers, strict=True)] if key in groups else numbers


def _differences(manifest: Manifest, expected: Groups, found: Groups) -> list[str]:
    names = ["rows", *_names(manifest)[1]]
    zeros = [Decimal(0)] * len(names)
    return [
        f"expected {name}{f' of group {group!s:.200}' if group else ''} to be {wanted:f}, got {got:f}"
        for group in {**expected, **found}
        for name, wanted, got in zip(names, expected.get(group, zeros), found.get(group, zeros), strict=True)
        if wanted != got
    ]
