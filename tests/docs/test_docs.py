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

from steadyworker import Client, JobStatus

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"(?<![\w./-])steadyworker(?:_\w+)?(?:\.[A-Za-z_]\w*)+")
GROUPS = {f"steadyworker.{name}" for name in ("adapters", "commands", "remedies", "services")}
NO_MODULES = GROUPS | {"steadyworker.toml", "steadyworker.replies"}
"""Groups of entry points, a file, and an address of Artemis."""


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


@pytest.mark.long
def test_the_reference_is_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.build", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "steadyworker.html").read_text(encoding="utf-8")
    assert 'id="Worker.time_limit"' in page
    assert 'id="Job.checkpoint"' in page
    assert (tmp_path / "steadyworker_rabbitmq.html").exists()


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


def test_the_changelog_names_the_calls_of_a_client_and_the_one_that_is_awaited() -> None:
    (line,) = re.findall(r"^- `Client`: (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    named_calls, awaited = re.split(r", and ", line)
    assert set(CODE.findall(named_calls)) == {"send", "status", "cancel"}
    assert awaited == "`asend`, which is `send` awaited."
    public = {name: call for name, call in vars(Client).items() if not name.startswith("_") and callable(call)}
    assert {name for name, call in public.items() if inspect.iscoroutinefunction(call)} == {"asend"}
    assert set(public) == {"send", "asend", "status", "cancel", "close"}


def test_the_pages_say_that_concurrency_is_no_rate_and_that_no_result_is_kept() -> None:
    recipes = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert "`concurrency` limits how many jobs run at a time, and not how many start in a second." in recipes
    kept = {field.name for field in dataclasses.fields(JobStatus)}
    assert not kept & {"result", "checkpoint"}, "the recipe for results says that neither is kept"
