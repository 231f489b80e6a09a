"""The texts of findings, which stand in a `findings.toml` beside each check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from steadyworker.findings import TABLE, read_texts

ROOT = Path(__file__).parents[2]


def findings_texts() -> Iterator[tuple[str, str]]:
    """Yield each text of each table, with its place."""
    for folder in ("steadyworker", "adapters"):
        for path in sorted((ROOT / folder).rglob(TABLE)):
            for finding in read_texts(path.read_text(encoding="utf-8")):
                for text in (finding.title, finding.what, finding.remedy, finding.why):
                    yield f"{path.relative_to(ROOT).as_posix()}: {finding.id}", text
