"""Texts for people use the field's words: none of those that were replaced comes back, and no rule is cited by a number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.findings_texts import findings_texts

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / folder for folder in ("adapters", "deploy", "examples"))]

REPLACED = {
    r"hand[- ]?overs?|HandOver": "a delivery (from the broker) or a settlement plan (to the broker)",
    r"adrift": "detached; its delivery is lost",
    r"SettlesSoon|settle_soon": "SettlesAsync, settle_async",
    r"ladder": "delay levels",
    r"stamp(?:s|ed)? (?:it|them|a message|messages)|unkeyed=\"stamp\"": 'to generate a key; unkeyed="generate"',
    r"last beat|LAST BEAT|last_beat": "last progress",
    r"vigil|tenure|standings?(?! )|lookout": "monitor, child state, slot health, audit thread",
    r"\bcredits\b": "prefetch",
    r"(?<!-)(?:nobody|whoever|somebody)": "the actor by name",
    r"anew|for ever|so long(?! as)|of ours": "again, without end, that long, our",
    r"is let be": "is ignored",
}
"""Each pattern of words that were replaced, and what stands in their place."""


@cache
def texts() -> list[tuple[str, str]]:
    return list(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    """Every docstring, every other string, every text of a finding and every page, each with its place."""
    for folder in ("steadyworker", "adapters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{place}:{node.lineno}", node.value
    yield from findings_texts()
    for page in PAGES:
        for path in [page] if page.is_file() else sorted(page.rglob("*.md")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("pattern", REPLACED, ids=list(REPLACED.values()))
def test_replaced_words_stay_away(pattern: str) -> None:
    words = re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)
    found = [f"{place}: {match[0]!r} in {text[:100]!r}" for place, text in texts() if (match := words.search(text))]
    assert not found, f"write {REPLACED[pattern]!r}:\n" + "\n".join(found)


@pytest.mark.long
def test_no_text_cites_a_numbered_rule() -> None:
    """A reader has no document with such numbers: what the rule says stands in the text itself. One name remains: Amazon's store."""
    numbered = re.compile("contract" + r" §|\b(?:R[1-9]|S[124-9])\b")
    paths = [
        path for end in ("py", "md", "toml") for path in sorted(ROOT.rglob(f"*.{end}")) if ".venv" not in path.parts
    ]
    found = [str(path.relative_to(ROOT)) for path in paths if numbered.search(path.read_text(encoding="utf-8"))]
    assert not found


@pytest.mark.parametrize("pattern", REPLACED)
def test_each_pattern_finds_its_word(pattern: str) -> None:
    """A pattern that finds nothing in a text with the word would find nothing anywhere."""
    planted = "hand-over adrift SettlesSoon ladder stamped it last beat vigil credits nobody for ever is let be"
    assert re.search(rf"\b(?:{pattern})\b", planted, re.IGNORECASE)
