"""
A page in Markdown as a program: its files, its commands, and the output that it shows for each.

A block of a language is written to the file that its first line names (`# exports.py`).
A `console` block has commands behind `$ ` and below each the output that it prints, on a terminal of 140 columns.

In a shown output, `…` stands for the rest of a line that is not shown, and a line `…` for lines that are not shown.
Before two outputs are compared, `SAME` makes the same what differs between two runs; everything else has to be equal.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:#|--) ([\w.-]+\.\w+)\n")
_PROMPT, _MORE = "$ ", "> "

SAME = (
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),  # colours
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"\b(pid|fence|seconds|uid)(=|: +)[\w.-]+"), r"\1\2N"),
    (re.compile(r"\b\d+(\.\d+)? ?s\b"), "N s"),
    (re.compile(r"\b\d\d:\d\d\b"), "HH:MM"),
    (re.compile(r"[─━]+"), "─"),  # as long as the terminal is wide
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r" $|^ ", re.MULTILINE), ""),
    (re.compile(r"\n{2,}"), "\n"),
)


@dataclass(frozen=True)
class Command:
    """What is typed, and what the page shows of its output."""

    text: str
    shown: str


@dataclass(frozen=True)
class Block:
    """A fenced block, and the heading that it stands under."""

    language: str
    text: str
    heading: str

    @property
    def file(self) -> str | None:
        """The file that it is, if it says so."""
        match = _FILE.match(self.text)
        return match[1] if match else None

    def commands(self) -> Iterator[Command]:
        """Of a `console` block, in order."""
        typed, shown = "", ""
        for line in self.text.splitlines():
            if line.startswith(_PROMPT):
                if typed:
                    yield Command(typed, shown)
                typed, shown = line.removeprefix(_PROMPT), ""
            elif typed and not shown and line.startswith(_MORE):
                typed += "\n" + line.removeprefix(_MORE)
            else:
                assert typed, f"a `console` block begins with a command, not with {line!r}"
                shown += line + "\n"
        yield Command(typed, shown)


class Page:
    """One file in Markdown."""

    def __init__(self, path: str) -> None:
        self.path = ROOT / path
        self.text = self.path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        """All fenced blocks, in order."""
        return [Block(match[2], dedent(match[3]), self._heading(match.start())) for match in _BLOCK.finditer(self.text)]

    def _heading(self, position: int) -> str:
        headings: list[str] = re.findall(r"^## (.*)$", self.text[:position], re.MULTILINE)
        return headings[-1] if headings else ""

    def files(self) -> dict[str, str]:
        """What is to be written before the first command."""
        found: dict[str, str] = {}
        for block in self.blocks:
            if block.file is not None:
                assert found.setdefault(block.file, block.text) == block.text, f"{block.file} stands here twice"
        return found

    def commands(self, under: Callable[[str], bool] = lambda _: True) -> list[Command]:
        """Those under the headings that are wanted."""
        return [
            command
            for block in self.blocks
            if block.language == "console" and under(block.heading)
            for command in block.commands()
        ]

    def code(self) -> list[str]:
        """What stands between backticks, in blocks or in lines."""
        return [block.text for block in self.blocks] + re.findall(r"(?<!`)`([^`\n]+`)", self.text)

    def section(self, heading: str) -> str:
        """The text under one heading."""
        return self.text.split(f"\n## {heading}\n")[1].split("\n## ")[0]

    def links(self) -> list[Path]:
        """The files and folders that it links to."""
        return [self.path.parent / target for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", self.text)]


def plain(output: str) -> str:
    """An output without what differs between two runs."""
    for pattern, same in SAME:
        output = pattern.sub(same, output)
    return output.strip("\n")


def difference(shown: str, got: str) -> str:
    """Where an output is not what is shown, as a diff; empty when it is."""
    wanted, found = plain(shown), plain(got)
    pattern = ""
    for line in wanted.splitlines():
        pattern += r"(?:[^\n]*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + "\n"
    if re.fullmatch(pattern, f"{found}\n" if found else ""):
        return ""
    return "\n".join(difflib.unified_diff(wanted.splitlines(), found.splitlines(), "shown", "printed", lineterm=""))
