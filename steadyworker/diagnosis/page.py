"""
The page of a trace: one HTML file to attach to a ticket, of less than 300 kB for a trace of any length.

`wire.py` describes the events:

    page = Page()
    for event in events:
        page.add(event)
    page.write(file)

The page loads nothing from outside, and its Content-Security-Policy allows only its own style and script.
Without JavaScript, only zoom and the display of values on the time line are missing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from string import Template
from typing import TextIO

from steadyworker.diagnosis.picture.markup import tag
from steadyworker.diagnosis.picture.sheet import sheet_of
from steadyworker.diagnosis.picture.trace import Trace

LARGEST_PAGE = 300_000
"""The largest size of a page, in bytes."""

_DATA = files("steadyworker.diagnosis.picture")


class Page:
    """The page of the events that were added; its memory does not grow with the number of events."""

    def __init__(self) -> None:
        self._trace = Trace()

    def add(self, event: Mapping[str, object]) -> None:
        """Add the next event."""
        self._trace.add(event)

    def write(self, out: TextIO) -> None:
        """Write the page as it is now; more events can follow, and then another page."""
        sheet = sheet_of(self._trace)
        style, script = _data("page.css"), _data("page.js")
        out.write(
            Template(_data("page.html")).substitute(
                title=tag("title", f"Trace: {sheet.title}"),
                policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
                "base-uri 'none'; form-action 'none'",
                style=style,
                script=script,
                body=sheet.body,
            )
        )


def _data(name: str) -> str:
    return _DATA.joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
