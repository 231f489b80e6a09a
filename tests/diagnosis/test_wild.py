"""What `explain` finds in lines as people pasted them into tickets: clipped, quoted, with the prefixes of other programs, of old versions."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from steadyworker.diagnosis.scan import Scanner, Search
from tests.diagnosis.explaining import catalogue

pytestmark = pytest.mark.long

FILES = [Path(__file__).with_name("wild.toml"), *sorted(Path(__file__).parent.glob("world-*.toml"))]
LINES: list[dict[str, Any]] = [
    line for file in FILES for line in tomllib.loads(file.read_text(encoding="utf-8"))["line"]
]


@pytest.mark.parametrize("line", LINES, ids=[line["source"].rpartition("://")[2] for line in LINES])
def test_a_line_of_a_ticket_is_explained_or_unknown(line: dict[str, Any]) -> None:
    search = Search(catalogue().values())
    assert sorted({seen.entry.id for seen in Scanner("ticket", search).whole([line["text"].encode()])}) == line["finds"]


def test_most_of_them_are_known() -> None:
    known = [line for line in LINES if line["finds"]]
    unknown = [line for line in LINES if line.get("unknown")]
    assert len(known) >= 200
    assert len(unknown) <= len(LINES) // 8
