"""What the tests of the page share: a page of events, what holds for every page, and the text that a reader sees."""

from __future__ import annotations

import html
import io
import re
from collections import Counter
from collections.abc import Iterable
from html.parser import HTMLParser

from steadyworker.diagnosis.page import LARGEST_PAGE, Page
from steadyworker.diagnosis.picture import words
from tests.diagnosis.page_stories import Event

ELEMENTS = {
    *("html", "head", "meta", "link", "title", "style", "body", "main", "header", "footer", "section", "script"),
    *("h1", "h2", "h3", "p", "a", "b", "i", "u", "em", "strong", "code", "span", "time", "div", "ul", "ol", "li"),
    *("table", "thead", "tbody", "tr", "th", "td", "details", "summary", "label", "input"),
    *("svg", "defs", "pattern", "rect", "line", "path", "circle", "text", "tspan", "g"),
}


def page_of(events: Iterable[Event]) -> str:
    page, out = Page(), io.StringIO()
    for event in events:
        page.add(event)
    page.write(out)
    return out.getvalue()


class Seen(HTMLParser):
    """The elements, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.unclosed: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in {"meta", "link", "input"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self.open.pop() != tag:
            self.unclosed.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


def check(page: str) -> Seen:
    """What holds for every page, whatever its events are."""
    assert len(page.encode()) < LARGEST_PAGE
    seen = Seen(page)
    assert set(seen.elements) <= ELEMENTS
    assert not seen.open
    assert not seen.unclosed
    assert seen.elements["script"] == seen.elements["style"] == 1
    names = {name for _, name, _ in seen.attributes}
    assert not {name for name in names if name.startswith("on")}
    assert not names & {"src", "srcset", "action", "formaction", "xlink:href", "style", "background", "poster", "data"}
    places = set(seen.values("id"))
    for link in seen.values("href"):
        assert link == "data:," or link.removeprefix("#") in places
    return seen


def page_text(page: str) -> str:
    """The text that a reader sees, with plain blanks."""
    body = page.partition("<main>")[2].partition("</main>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).replace(words.NO_BREAK, " ").split())


def headline(page: str) -> str:
    return page_text(f"<main>{re.search(r'<h1[^>]*>(.*?)</h1>', page)[1]}</main>")  # type: ignore[index]
