"""
The documentation as HTML, by pdoc: `make docs`, or `python -m tests.docs.build [FOLDER]`.

It begins with README; then come all settings, the guides, and what a user imports.
What only a contributor needs comes last: each package of `steadyworker/`, for the essay in its docstring.
A warning of pdoc's is an error, and so is a docstring that would be shown as its own source.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pdoc.doc
import pdoc.render

from tests.docs.guides import Link, contents, guides

ROOT = Path(__file__).parents[2]

PACKAGES = (
    "steadyworker",
    "steadyworker_rabbitmq",
    "steadyworker_rocketmq",
    "steadyworker_sqlite",
    "steadyworker_stomp",
)

USERS = {
    "Worker": "steadyworker.html#Worker",
    "Job": "steadyworker.html#Job",
    "Client": "steadyworker.html#Client",
    "RetryPolicy": "steadyworker.html#RetryPolicy",
    "run": "steadyworker.html#run",
    "Errors": "steadyworker/errors.html",
    "Events": "steadyworker/events.html",
    "Testing": "steadyworker/testing.html",
    "Exports": "steadyworker/exports.html",
    "Spark exports": "steadyworker/exports/spark.html",
}
"""What a user imports, in the order in which it is needed."""

PUBLIC = (
    "steadyworker.adapter",
    "steadyworker.delivery",
    "steadyworker.errors",
    "steadyworker.events",
    "steadyworker.names",
    "steadyworker.outcome",
)
"""Modules, beside the packages, that users or adapter authors import."""

NOT_RENDERED = {
    "a heading that is followed by nothing indented": re.compile(r"<p>(?:Args|Attributes|Raises|Returns):"),
    "a table without a line under its head": re.compile(r"<p>(?:[^<]*\n)?\| .* \|"),
    "a code fence that is not closed": re.compile(r"<p>```"),
}
"""What a docstring looks like in HTML when Markdown did not understand it."""


LITERAL = re.compile(r"^(.*\S)?::$", re.MULTILINE)
"""What announces a picture in a docstring: Markdown shows what is indented as it is, without being asked to."""


class DocstringError(Exception):
    """A docstring that cannot be rendered: which module, and what it would look like."""


def names() -> list[str]:
    """Every module that the reference has."""
    found = {*PACKAGES, *PUBLIC}
    for package in PACKAGES:
        paths = importlib.import_module(package).__path__
        found |= {module.name for module in pkgutil.walk_packages(paths, f"{package}.") if module.ispkg}
    return sorted(found)


def module(name: str) -> pdoc.doc.Module:
    """A module as pdoc sees it, once the names that its face imports late are there."""
    imported: ModuleType = importlib.import_module(name)
    for late in getattr(imported, "__all__", ()):
        setattr(imported, late, getattr(imported, late))
    found = pdoc.doc.Module(imported)
    announce_pictures(found)
    return found


def announce_pictures(documented: pdoc.doc.Doc[Any]) -> None:
    """Take the second colon of `::` out of a docstring, and out of those of its members."""
    documented.docstring = LITERAL.sub(lambda match: f"{match[1]}:" if match[1] else "", documented.docstring)
    if isinstance(documented, pdoc.doc.Namespace):
        for member in documented.members.values():
            announce_pictures(member)


def pages(wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
    """
    Each module's page, its path and its HTML.

    Raises:
        DocstringError: A docstring would be shown as its own source.
        Warning: Anything that pdoc warns of.
    """
    pdoc.render.configure(
        docformat="google",
        show_source=False,
        footer_text="SteadyWorker",
        template_directory=Path(__file__).with_name("templates"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modules = {name: module(name) for name in wanted}
        for name, one in modules.items():
            html = pdoc.render.html_module(one, modules)
            for fault, pattern in NOT_RENDERED.items():
                if found := pattern.search(html):
                    excerpt = html[found.start() : found.end() + 120]
                    raise DocstringError(f"{name}: expected a docstring in Markdown, got {fault}: {excerpt!r}")
            yield f"{name.replace('.', '/')}.html", html
        yield "search.js", pdoc.render.search_index(modules)


def build(folder: Path) -> int:
    """Write all pages; returns their number."""
    count = 0
    internal = [Link(name, f"{name.replace('.', '/')}.html") for name in names()]
    sections = contents([Link(text, href) for text, href in USERS.items()], internal)
    for path, text in (*pages(names()), *guides(sections, folder)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
        count += 1
    return count


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    print(f"{build(target)} pages in {target}, from {target / 'index.html'}")
