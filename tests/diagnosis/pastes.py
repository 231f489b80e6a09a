"""The forms in which people paste a log: wrapped, quoted, boxed, escaped, cut; each form is a function of the plain text."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Callable


def hard(width: int) -> Callable[[str], str]:
    """As a terminal of this width shows the lines: broken after so many characters, in the middle of words, too."""

    def form(text: str) -> str:
        rows = [line[at : at + width] for line in text.split("\n") for at in range(0, len(line) or 1, width)]
        return "\n".join(row.rstrip() for row in rows)

    return form


def soft(width: int, indent: str = "") -> Callable[[str], str]:
    """As a mail program or a chat wraps the lines: between words."""

    def form(text: str) -> str:
        rows: list[str] = []
        for line in text.split("\n"):
            rows += textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]
        return "\n".join(rows)

    return form


def each(head: str, tail: str = "") -> Callable[[str], str]:
    """With the same text before and after each line."""
    return lambda text: "\n".join(f"{head}{line}{tail}" for line in text.split("\n"))


def boxed(text: str) -> str:
    """As rich and other programs print a text in a box of 100 columns."""
    rows = hard(96)(text).split("\n")
    return "\n".join(["╭" + "─" * 98 + "╮", *(f"│ {row:<96} │" for row in rows), "╰" + "─" * 98 + "╯"])


def coloured(text: str) -> str:
    """With the codes of colours, whose escape character is lost or is written out."""
    return "\n".join(f"[31m{line}[0m" for line in text.split("\n"))


def smart(text: str) -> str:
    """As text programs make their quotes and dashes."""
    out = ""
    for at, character in enumerate(text):
        opens = at == 0 or text[at - 1] in " \n([{=<:,"
        out += {"'": "\u2018" if opens else "\u2019", '"': "\u201c" if opens else "\u201d"}.get(character, character)
    return out.replace("...", "…").replace(" - ", " \u2013 ")


FORMS: dict[str, Callable[[str], str]] = {
    "wrapped at 80 columns, in words": hard(80),
    "wrapped at 160 columns, in words": hard(160),
    "wrapped at 80 columns, between words": soft(80),
    "wrapped at 160 columns, between words": soft(160),
    "wrapped at 72 columns and indented": soft(72, "    "),
    "wrapped at 111 columns, in words": hard(111),
    "quoted": each("> "),
    "quoted twice, wrapped": lambda text: each("> > ")(soft(76)(text)),
    "boxed": boxed,
    "indented": each("      "),
    "a list": each("- "),
    "a list with stars": each("* "),
    "HTML": html.escape,
    "HTML with decimal numbers": lambda text: html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    "HTML, twice": lambda text: html.escape(html.escape(text)),
    "JSON": json.dumps,
    "a field of JSON, cut out": lambda text: f'"log": {json.dumps(text)},',
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "colours": coloured,
    "smart quotes": smart,
    "Markdown": each("`", "`"),
}
