"""
HTML with everything escaped: a text becomes markup only in `tag`, and a `Markup` is only what `tag` returned.

There is no way to put a text on the page as it is.
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
    Return an element: a `Markup` in its content stays, any other text is escaped, and so is each attribute.

    In the names of attributes `_` stands for `-`, and one at the end is dropped (`class_`); None and False leave one out.
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
    """Return several pieces as one."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part) for part in parts))


def link(anchor: str, known: frozenset[str], *content: str) -> Markup:
    """Return a link to a place on the page; if this place was left out, only its text."""
    return tag("a", *content, href=f"#{anchor}") if anchor in known else tag("span", *content)


def anchors(markup: Markup) -> list[str]:
    """Return the places in a piece to which a link can lead."""
    return _ANCHOR.findall(markup)


def weight(markup: str) -> int:
    """Return the bytes of a piece on the page."""
    return len(markup.encode())


def _attribute(key: str, value: Value) -> str:
    key = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {key}"
    shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {key}="{html.escape(shown)}"'
