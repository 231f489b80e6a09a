"""
`python -m tests.exports.duckdb.killed OUT LEDGER POINT`: one export by DuckDB whose process dies by SIGKILL at a point.

POINT is `sort` (DuckDB has written to its folder), `link-N` (at the N-th link, before it),
`file-size` (no kill: a disk that takes files of 1 MB), or `none`.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from steadyworker.export import Services
from steadyworker.exports import DuckDBExport, Manifest
from tests.exports.killed import Death, die
from tests.exports.kit import FakeServices

ROWS = 700_000
QUERY = f"SELECT (i * 7919) % {ROWS} AS id, repeat('x', 100) || i AS text FROM range({ROWS}) AS t(i)"
"""More than the memory of the smallest export, which so sorts it on the disk."""


def export(services: Services, out: Path) -> Manifest:
    """Sort with the least memory."""
    return DuckDBExport(QUERY, tables={}, order_by=("id",), memory_limit="64MB", threads=1).write(services, out)


def spilled(out: Path) -> int:
    """The bytes in the folders of DuckDB's."""
    return sum(file.stat().st_size for file in out.parent.glob(".sw-stage/*/*/*/spill/*"))


def main(out: Path, ledger: Path, point: str) -> None:
    def on_check() -> None:
        if point == "sort" and spilled(out):
            die()

    os.link = Death(point).at("link", os.link)
    if point == "file-size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    try:
        export(FakeServices(ledger, on_check=on_check), out)
    except Exception as error:  # noqa: BLE001 - the test reads it
        print(f"{type(error).__name__}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
