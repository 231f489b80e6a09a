"""
The environment of the templates.

Every value that a template prints is escaped, and a name that a template misspells is an error.
A text can come from a broker, a handler or a sender, so unprintable characters, such as marks that turn the direction of text, are shown as escapes.
A template prints times in UTC, so that a text that a person copies from a page is exact.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from steadyworker.text.plain_text import as_unicode, printable
from steadyworker.units import amount, count_text, size_text, span

HERE = Path(__file__).parent

_CODE = re.compile(r"`([^`]+)`")


def environment(*folders: Path) -> Environment:
    """Return the environment of the templates in these folders, and in this one."""
    made = Environment(
        loader=FileSystemLoader([*folders, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "amount": amount,
        "coded": coded,
        "count": count_text,
        "instant": instant,
        "moment": moment,
        "size": size_text,
        "span": span,
    }
    return made


def _finalized(value: Any) -> Any:
    """Return the value as a template prints it; markup of a template is unchanged."""
    if value is None:
        return ""
    if isinstance(value, Markup) or not isinstance(value, str) or value.isprintable():
        return value
    return "\n".join(printable(line) for line in as_unicode(value).split("\n"))


def coded(text: str) -> Markup:
    """Return a text whose parts in backticks are marked as code, such as a command."""
    return Markup("").join(
        Markup("<code>{}</code>").format(_finalized(part)) if number % 2 else escape(_finalized(part))
        for number, part in enumerate(_CODE.split(text))
    )


def instant(wall: float | None) -> str:
    """Return a wall-clock time as ISO 8601 in UTC; empty for None, and for a number outside the range of times."""
    try:
        return "" if wall is None else f"{datetime.fromtimestamp(wall, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):  # the number's size decides which error is raised
        return ""


def moment(wall: float | None, now: float) -> Markup:
    """Return a wall-clock time as an element: `03:12:05` today, otherwise `26 Nov 03:12`; "–" for None."""
    written = instant(wall)
    if not written or wall is None:
        return Markup("–")
    then, today = datetime.fromtimestamp(wall, UTC), datetime.fromtimestamp(now, UTC)
    if then.date() == today.date():
        text = f"{then:%H:%M:%S}"
    else:
        text = f"{then:%d %b %H:%M}" if then.year == today.year else f"{then:%d %b %Y}"
    return Markup('<time datetime="{}">{}</time>').format(written, text)
