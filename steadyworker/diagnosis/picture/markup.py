"""
HTML with all texts escaped: only `tag` makes markup from a text, and only `tag` makes a `Markup`.

There is no way to put a text on the page without escapes.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_EMPTY = frozenset({"br", "meta", "link", "input", "wbr"})
_DRAWN = frozenset({"rect", "line", "path", "circle", "use"})


_ANCHOR = re.compile(r' id="([a-z]+\w*)"')
Value = str | float | bool


class Markup(str):
    """A piece of HTML or SVG that is complete and escaped."""

    __slots__ = ()


def tag(name: str, *content: str, **attributes: Value | None) -> Markup:
    """
    Return an element; a `Markup` in its content stays unchanged, and any other text and each attribute is escaped.

    In the name of an attribute, `_` means `-`, and a `_` at the end is dropped (`class_`).
    An attribute with the value None or False is left out.
    """
    shown = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _EMPTY:
        return Markup(f"<{name}{shown}>")
    inner = together(content)
    if name in _DRAWN and not inner:
        return Markup(f"<{name}{shown}/>")
    return Markup(f"<{name}{shown}>{inner}</{name}>")


def together(parts: Iterable[str]) -> Markup:
    """Return several pieces as one piece."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part) for part in parts))


def link(anchor: str, known: frozenset[str], *content: str) -> Markup:
    """Return a link to a place on the page; if this place was left out, return only the text."""
    return tag("a", *content, href=f"#{anchor}") if anchor in known else tag("span", *content)


def anchors(markup: Markup) -> list[str]:
    """Return the anchors in a piece, which are the places that a link can have as its target."""
    return _ANCHOR.findall(markup)


def weight(markup: str) -> int:
    """Return the number of bytes that a piece takes on the page."""
    return len(markup.encode())


def _attribute(key: str, value: Value) -> str:
    key = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {key}"
    shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {key}="{html.escape(shown)}"'
