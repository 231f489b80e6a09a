"""User code type-checks, and the mistakes that people make do not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


def run(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout


def mypy(file: Path, _folder: Path) -> set[int]:
    """The lines of this file that `mypy --strict` complains of."""
    said = run("mypy", "--strict", "--no-error-summary", file)
    name = re.escape(file.relative_to(REPOSITORY).as_posix())
    return {int(line) for line in re.findall(rf"^{name}:(\d+): error", said, re.MULTILINE)}


def pyright(file: Path, folder: Path) -> set[int]:
    """The lines of this file that pyright complains of, as a project of its own: ours leaves the mistakes out."""
    project = folder / file.stem
    project.mkdir()
    shutil.copy(file, project)
    options = {"include": [file.name], "extraPaths": [str(REPOSITORY)], "pythonVersion": "3.11"}
    (project / "pyrightconfig.json").write_text(json.dumps(options), encoding="utf-8")
    said = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, "--project", project))
    assert said["summary"]["filesAnalyzed"] == 1
    return {
        diagnostic["range"]["start"]["line"] + 1
        for diagnostic in said["generalDiagnostics"]
        if diagnostic["severity"] == "error"
    }


def marked(file: Path) -> set[int]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# mistake")}


@pytest.mark.parametrize("checker", [mypy, pyright])
@pytest.mark.timeout(300)
def test_the_checkers_find_every_mistake_and_nothing_else(
    checker: Callable[[Path, Path], set[int]], tmp_path: Path
) -> None:
    assert checker(HERE / "good.py", tmp_path) == set()
    assert checker(HERE / "mistakes.py", tmp_path) == marked(HERE / "mistakes.py")
