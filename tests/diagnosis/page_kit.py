"""What the tests of the page share: a page of events, what holds for every page, and the text that a reader sees."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable

from steadyworker.diagnosis.page import LARGEST_PAGE, Page
from steadyworker.diagnosis.wire import Event


def page_of(events: Iterable[Event]) -> str:
    page, out = Page(), io.StringIO()
    for event in events:
        page.add(event)
    page.write(out)
    return out.getvalue()


def check(page: str) -> None:
    """What holds for every page, whatever its events are."""
    assert len(page.encode()) < LARGEST_PAGE
    assert set(re.findall(r"<([a-zA-Z]\w*)", page)) <= {
        *("html", "head", "meta", "title", "link", "style", "body", "main", "a", "div", "section", "footer", "figure"),
        *("h1", "h2", "p", "ul", "li", "span", "code", "table", "thead", "tbody", "tr", "th", "td", "figcaption"),
        *("svg", "rect", "text"),
    }
    assert re.findall(r'\s(?:on\w+|src|style|action)="', page) == []
    assert set(re.findall('href="([^"]*)"', page)) == {"data:,", "#main"}


def page_text(page: str) -> str:
    """The text that a reader sees, without that of the lanes."""
    body = page.partition("<main")[2].partition(">")[2].partition("</main>")[0]
    return " ".join(html.unescape(re.sub(r"<title>.*?</title>|<[^>]+>", " ", re.sub("</?code>", "", body))).split())


def headline(page: str) -> str:
    found = re.search(r"<h1[^>]*>(.*?)</h1>", page)
    assert found
    return html.unescape(found[1])
