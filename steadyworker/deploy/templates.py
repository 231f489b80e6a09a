"""
The templates of files, and how they are filled in.

A template has `@{name}` for a value, because `$`, `%` and plain braces have a meaning in units, alerts and boards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent

TEMPLATES = Path(__file__).with_name("templates")
_VALUE = re.compile(r"^( *)@\{(\w+)\}\n|@\{(\w+)\}", re.MULTILINE)


def filled(template: str, values: Mapping[str, str]) -> str:
    """
    Return the text of a template with its values.

    If a place for a value is alone on its line, the value can have several lines.
    Each line of the value gets the same indent.
    If the value is empty, the line is left out.
    """

    def value(found: re.Match[str]) -> str:
        margin, block, inline = found.groups()
        if inline is not None:
            return values[inline]
        return indent(f"{values[block].rstrip()}\n", margin) if values[block] else ""

    return _VALUE.sub(value, TEMPLATES.joinpath(template).read_text(encoding="utf-8"))


def templates_below(folder: str) -> list[str]:
    """Return the paths of all templates below a folder, sorted."""
    return sorted(str(path.relative_to(TEMPLATES)) for path in TEMPLATES.glob(f"{folder}/**/*") if path.is_file())
