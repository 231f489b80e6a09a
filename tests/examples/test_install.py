"""README's first commands as a stranger types them: a clone without this environment, `pip install`, and the first job."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.examples.conftest import ROOT, Terminal
from tests.examples.pages import Page, difference

SECTION = "Your first worker"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_clone_is_installed_and_runs_its_first_job(desk: Path, terminal: Terminal) -> None:
    """From the package index that pip uses here; CI's run has one."""
    page = Page("README.md")
    clone(desk / "clone")
    write = "".join(f"cat > {name} <<'END'\n{text}END\n" for name, text in page.files().items())
    commands = page.commands(lambda heading: heading == SECTION)
    install, first = commands[:3], commands[3:]
    assert [command.text.split()[0] for command in install] == ["python3", "pip", "mkdir"]
    texts = ["cd clone", *(command.text for command in install), write, *(command.text for command in first)]
    outputs = terminal(texts, within=500)
    for command, output in zip(first, outputs[-len(first) :], strict=True):
        assert not difference(command.shown, output), f"$ {command.text}\n{output}"


def clone(folder: Path) -> None:
    """The files of the working tree that git knows, or would take."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
