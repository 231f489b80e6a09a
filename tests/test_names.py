"""Names in the code: one class name means one thing, and machines report, send and receive; they do not speak."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.findings_texts import findings_texts

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]

SPEECH = {
    *("say", "says", "said", "tell", "tells", "told", "hear", "hears", "heard", "heed", "heeds"),
    *("look", "looks", "looked"),
}
"""Words that no name has: a machine reports, sends, receives, reads, checks."""

SPOKEN = re.compile(r"\b(?:says?|said|tells?|told|hears?|heard|heeds?)\b", re.IGNORECASE)


@cache
def trees() -> tuple[tuple[str, ast.Module], ...]:
    paths = [path for folder in ("steadyworker", "adapters") for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in paths)


def words(name: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def named(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each name that the code gives, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def spoken(place: str, tree: ast.Module) -> Iterator[str]:
    """Yield each name and each text in which a machine speaks."""
    for line, name in named(tree):
        if words(name) & SPEECH:
            yield f"{place}:{line}: {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from spoken_in(f"{place}:{node.lineno}", node.value)


def spoken_in(place: str, text: str) -> Iterator[str]:
    for match in SPOKEN.finditer(text):
        yield f"{place}: {text[max(0, match.start() - 30) : match.end() + 30]!r}"


def test_machines_do_not_speak() -> None:
    assert [each for place, tree in trees() for each in spoken(place, tree)] == []
    assert [each for place, text in findings_texts() for each in spoken_in(place, text)] == []


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for place, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_planted_word_is_found() -> None:
    tree = ast.parse('def _tell(told):\n    """The broker says no."""\n    look_again = told\n')
    assert len([*spoken("x", tree)]) == 4
