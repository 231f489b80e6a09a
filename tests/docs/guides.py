"""
The pages of the reference that are Markdown files of this repository, and one page with all settings.

Their order is the order in which a new user needs them; what only a contributor needs comes last.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from posixpath import dirname, join, normpath

import pdoc.render
import pdoc.render_helpers

from steadyworker import Worker
from steadyworker.config.options import as_variable
from steadyworker.config.services import all_options

ROOT = Path(__file__).parents[2]

START = {"README.md": "SteadyWorker"}
GUIDES = {
    "deploy/README.md": "Running it: systemd, Kubernetes, ledgers",
    "examples/README.md": "Recipes: sending, exports, testing",
    "examples/lake/README.md": "From a lake to one object in a bucket",
    "examples/recipes/README.md": "Recipes for exports",
    "examples/programs/README.md": "Any program as a job",
    "adapters/steadyworker_rabbitmq/README.md": "RabbitMQ",
    "adapters/steadyworker_stomp/README.md": "ActiveMQ and Artemis",
    "adapters/steadyworker_rocketmq/README.md": "RocketMQ",
    "adapters/steadyworker_sqlite/README.md": "The embedded queue",
    "examples/diagnosis/README.md": "Five stories of lost connections",
    "tests/drills/README.md": "Drills, beside other libraries",
    "tests/benchmarks/README.md": "What it costs",
    "tests/README.md": "Every promise, with its tests",
    "CHANGELOG.md": "Changes",
    "SECURITY.md": "Security",
}
CONTRIBUTORS = {"CONTRIBUTING.md": "Contributing"}
SETTINGS = "settings.html"

HREF = re.compile(r'(<a href=")([^"]+)(")')
ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)$", re.MULTILINE)


@dataclass(frozen=True)
class Link:
    """An entry of the table of contents."""

    text: str
    href: str


def page_of(path: str) -> str:
    """Return the address of a Markdown file's page: `deploy/README.md` becomes `guides/deploy.html`."""
    if path in START:
        return "index.html"
    name = path.removesuffix(".md").removesuffix("/README").removeprefix("adapters/steadyworker_").lower()
    return f"guides/{name.replace('/', '-')}.html"


def contents(first: Sequence[Link], internal: Sequence[Link]) -> list[tuple[str, list[Link]]]:
    """Return the table of contents; `first` are the modules for users, and `internal` those for contributors."""
    guides = [Link(text, page_of(path)) for path, text in GUIDES.items()]
    return [
        ("Start", [Link("The first page", "index.html"), Link("All settings", SETTINGS)]),
        ("Guides", guides),
        ("Reference", list(first)),
        ("For contributors", [*(Link(text, page_of(path)) for path, text in CONTRIBUTORS.items()), *internal]),
    ]


def guides(sections: list[tuple[str, list[Link]]], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the HTML of each page; a link to a file without a page leads from `folder` into the clone."""
    for path, title in {**START, **GUIDES, **CONTRIBUTORS}.items():
        page = page_of(path)
        html = _rendered(title, (ROOT / path).read_text(encoding="utf-8"), page, sections)
        yield page, HREF.sub(partial(_target, path=path, page=page, folder=folder), html)
    yield SETTINGS, _rendered("All settings", settings(), SETTINGS, sections)


def _rendered(title: str, markdown: str, page: str, sections: list[tuple[str, list[Link]]]) -> str:
    body = pdoc.render_helpers.to_html(markdown)
    template = pdoc.render.env.get_template("guide.html.jinja2")
    return template.render(title=title, body=body, sections=sections, up="../" * page.count("/"))


def _target(link: re.Match[str], *, path: str, page: str, folder: Path) -> str:
    """Return a link of the file `path` as its `page` has it."""
    file, hash_, part = link[2].partition("#")
    if not file or "://" in file or file.endswith(".html"):
        return link[0]
    wanted = normpath(join(dirname(path), file))
    if (ROOT / wanted / "README.md").is_file():
        wanted = f"{wanted}/README.md"
    known = wanted in {**START, **GUIDES, **CONTRIBUTORS}
    to = os.path.relpath(folder / page_of(wanted) if known else ROOT / wanted, folder / dirname(page))
    return f"{link[1]}{to}{hash_}{part}{link[3]}"


def settings() -> str:
    """Return the page of all settings, in Markdown: the attributes of a Worker, and the options of a worker process."""
    lines = [
        "# All settings",
        "",
        "## The attributes of a Worker",
        "",
        "The class sets them, or `[workers.NAME]` in `steadyworker.toml`.",
        "",
        "| attribute | default | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {default} | {meaning} |" for name, default, meaning in attributes()),
        "",
        "## The options of a worker process",
        "",
        "The option of the command line outranks the environment's variable, and this outranks the line of `steadyworker.toml`.",
        "A URL or a secret can also stand in a file: `--broker-file`, `STEADYWORKER_BROKER_FILE`.",
        "",
        "| option | variable | line of steadyworker.toml | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for option in all_options():
        default = "" if option.default is None else f"`{as_variable(option.default)}`" if option.default != {} else ""
        meaning = option.help.replace("|", "\\|")
        lines.append(f"| `{option.flag}` | `{option.variable}` | `{option.name}` | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def attributes() -> Iterator[tuple[str, str, str]]:
    """Yield each attribute of a Worker with its default and its meaning, from the class and its docstring."""
    section = (inspect.getdoc(Worker) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    for name, text in ATTRIBUTE.findall(section):
        value = getattr(Worker, name, ...)
        plain = value is None or isinstance(value, (str, int))
        default = "required" if value is ... else f"`{value!r}`" if plain else f"`{type(value).__name__}()`"
        yield name, default.replace("|", "\\|"), " ".join(text.split()).replace("|", "\\|")
