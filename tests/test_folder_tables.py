"""The table of files in a package's docstring lists the Python files and sub-packages of its folder, each once, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAD = re.compile(r"\|\s*file\s*\|")
NAME = re.compile(r"`([^`]+)`")


def listed(docstring: str) -> list[str]:
    """Return the names in the first cells of the tables whose first column is `file`."""
    lines = [line.strip() for line in docstring.splitlines()]
    tables = [lines[at + 1 :] for at, line in enumerate(lines) if HEAD.match(line)]
    rows = [row for table in tables for row in takewhile(lambda line: line.startswith("|"), table)]
    return [name for row in rows for name in NAME.findall(row.split("|")[1])]


def present(folder: Path) -> list[str]:
    """Return the Python files of a folder, without `__init__.py`, and its sub-packages, as `name/`."""
    files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    return [*files, *(f"{path.parent.name}/" for path in folder.glob("*/__init__.py"))]


def complaints(docstring: str, folder: Path) -> Iterator[str]:
    """Yield what a table lacks, has too much, or names twice."""
    names, files = listed(docstring), present(folder)
    yield from (f"lacks {name}" for name in sorted(set(files) - set(names)))
    yield from (f"names {name}, which is not there" for name in sorted(set(names) - set(files)))
    yield from (f"names {name} twice" for name in sorted(set(names)) if names.count(name) > 1)


def packages() -> Iterator[tuple[str, str]]:
    """Yield the folder and the docstring of each package that has a table of its files."""
    for root in ("steadyworker", "adapters"):
        for path in sorted((ROOT / root).rglob("__init__.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            if listed(docstring):
                yield path.parent.relative_to(ROOT).as_posix(), docstring


TABLES = dict(packages())


@pytest.mark.parametrize("folder", TABLES)
def test_a_table_lists_the_files_of_its_folder(folder: str) -> None:
    found = list(complaints(TABLES[folder], ROOT / folder))
    assert not found, f"the table in {folder}/__init__.py:\n" + "\n".join(found)


def test_the_largest_rooms_have_a_table() -> None:
    assert TABLES.keys() >= {f"steadyworker/{room}" for room in ("diagnosis", "exports", "exports/spark", "runner")}


PLANTED = """
What it does.

| word | meaning |
|---|---|
| `gone.py` | no file, because this table lists none |

| file | subject |
|---|---|
| `one.py`, `two.py` | both |
| `inner/` | a package, beside `three.py` |
| `old.py`, `one.py` | gone, and named before |
"""


def test_planted_mistakes_are_found(tmp_path: Path) -> None:
    for name in ("__init__.py", "one.py", "two.py", "three.py", "notes.md"):
        (tmp_path / name).touch()
    for folder, name in (("inner", "__init__.py"), ("data", "table.toml")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    assert list(complaints(PLANTED, tmp_path)) == [
        "lacks three.py",
        "names old.py, which is not there",
        "names one.py twice",
    ]
