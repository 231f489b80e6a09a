"""The reference can be built, and every name of ours that a text puts between backticks is there to be imported."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker import Client, JobStatus, Worker
from steadyworker.config.services import all_options

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"(?<![\w./-])steadyworker(?:_\w+)?(?:\.[A-Za-z_]\w*)+")
NO_MODULES = {
    *("steadyworker.toml", "steadyworker.replies"),
    *(f"steadyworker.{group}" for group in ("adapters", "commands", "findings", "remedies", "services")),
    *(f"steadyworker.{attribute}" for attribute in ("attempt", "fence", "outcome", "why")),
}
"""A file, an address of Artemis, the groups of entry points, and the attributes of spans."""


def texts() -> Iterator[tuple[Path, str]]:
    """Every page in Markdown, and every docstring of the packages."""
    for page in sorted(ROOT.glob("*.md")) + sorted(
        path for folder in ("adapters", "deploy", "examples", "tests") for path in (ROOT / folder).rglob("*.md")
    ):
        yield page, page.read_text(encoding="utf-8")
    for source in sorted([*(ROOT / "steadyworker").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield source, ast.get_docstring(node) or ""


def named(text: str) -> Iterator[str]:
    """Each of our dotted names between backticks."""
    for code in CODE.findall(text):
        yield from (name for name in NAME.findall(code) if name not in NO_MODULES)


def resolve(name: str) -> object:
    """What a dotted name stands for; raises ImportError or AttributeError when it stands for nothing."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module is there, and what it imports is not
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize(
    ("docstring", "fault"),
    [
        ("A section.\n\nArgs:\nname: What is not indented.", "a heading"),
        ("A fence.\n\n```python\nprint(1)\n", "a code fence"),
        ("A table.\n\n| a | b |\n| 1 | 2 |", "a table"),
    ],
)
def test_a_docstring_that_would_be_shown_as_source_fails(docstring: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "documented.py").write_text(f'"""\n{docstring}\n"""\n')
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from tests.docs.build import pages; [*pages(['documented'])]"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert re.search(rf"DocstringError: documented: .*{fault}", done.stderr)


@pytest.mark.long
def test_every_name_between_backticks_is_there() -> None:
    missing = []
    for path, text in texts():
        for name in named(text):
            try:
                resolve(name)
            except (ImportError, AttributeError) as error:
                missing.append(f"{path.relative_to(ROOT)}: {name}: {error}")
    assert missing == []


def test_a_name_that_is_not_there_is_missed() -> None:
    assert [*named("use `steadyworker.testing.run_two(Worker)`, `steadyworker.toml` and steadyworker.nothing")] == [
        "steadyworker.testing.run_two"
    ]
    with pytest.raises(AttributeError):
        resolve("steadyworker.testing.run_two")
    with pytest.raises(ModuleNotFoundError):
        resolve("steadyworker_nowhere.thing")


def test_the_changelog_names_the_calls_of_a_client_and_those_that_are_awaited() -> None:
    (line,) = re.findall(r"^- `Client`: (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    named_calls, awaited = re.split(r", and ", line)
    calls = {"send", "send_many", "status", "find", "cancel", "retry", "reschedule"}
    waits = {"asend", "asend_many", "astatus", "acancel"}
    assert set(CODE.findall(named_calls)) == calls
    assert set(CODE.findall(awaited)) == waits
    assert awaited.endswith(", which are the same awaited.")
    public = {name: call for name, call in vars(Client).items() if not name.startswith("_") and callable(call)}
    assert {name for name, call in public.items() if inspect.iscoroutinefunction(call)} == waits
    assert set(public) == {*calls, *waits, "close"}


def test_the_pages_state_that_concurrency_is_no_rate_and_that_a_large_result_needs_a_table() -> None:
    recipes = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert "`concurrency` limits how many jobs run at a time, but not how many jobs start in a second." in recipes
    kept = {field.name for field in dataclasses.fields(JobStatus)}
    assert kept & {"result", "checkpoint"} == {"result"}
    assert "`job.result(value)` keeps at most 64 KiB of JSON" in recipes


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.build", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
def test_the_documentation_is_built_without_a_warning(site: Path) -> None:
    page = (site / "steadyworker.html").read_text(encoding="utf-8")
    assert 'id="Worker.time_limit"' in page
    assert 'id="Job.checkpoint"' in page
    assert (site / "steadyworker_rabbitmq.html").exists()


@pytest.mark.long
def test_it_begins_with_readme_and_ends_with_what_contributors_need(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert "A worker receives a message and runs an export for three hours" in page
    assert re.findall(r"<h2>(Start|Guides|Reference|For contributors)</h2>", page) == [
        "Start",
        "Guides",
        "Reference",
        "For contributors",
    ]


@pytest.mark.long
def test_each_link_of_the_guides_leads_to_a_page_and_a_heading(site: Path) -> None:
    broken = []
    for page in [site / "index.html", site / "settings.html", *(site / "guides").iterdir()]:
        for href in re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8")):
            file, _, part = href.partition("#")
            target = (page.parent / file).resolve() if file else page
            if "://" in href or href.startswith(("data:", "mailto:")):
                continue
            if not target.exists() or (
                part and target.suffix == ".html" and f'id="{part}"' not in target.read_text(encoding="utf-8")
            ):
                broken.append(f"{page.name}: {href}")
    assert broken == []


@pytest.mark.long
def test_one_page_has_each_attribute_of_a_worker_and_each_option(site: Path) -> None:
    page = (site / "settings.html").read_text(encoding="utf-8")
    rows = set(re.findall(r"<td><code>([\w-]+)</code></td>", page))
    assert set(Worker.__annotations__) <= rows
    assert {option.flag for option in all_options()} <= rows
